//! A fixed-size table of fragmented datagrams for one packet thread. The caller decides where to
//! forward the first fragment of a datagram, and the table returns this decision for the datagram's
//! later fragments. A later fragment that arrives before the first fragment is held.
//!
//! The caller passes the [`Key`] of the datagram with a keyed hash, the decision and the time
//! ([`Millis`]). The caller also keeps the held frames, under the indexes that the table assigns
//! ([`HoldSlot`]). The table allocates its memory once. If the first fragment of a datagram in the
//! table is missing, at least one later fragment of this datagram is held.
//!
//! The table follows §4.3 of the Maglev paper (Eisenbud et al., NSDI 2016) and the fragmentation
//! rules of RFC 791 §3.2 and RFC 8200 §4.5.
//!
//! ```
//! use fragment_table::{Arrival, Config, Extent, Fate, First, FragmentTable, Key};
//! use fragment_table::{Later, Millis, Release};
//!
//! let mut table = FragmentTable::new(&Config::default())?;
//! let key = Key::new([192, 0, 2, 9].into(), [203, 0, 113, 10].into(), 17, 7);
//! // Keyed hashes of the key and of the source.
//! let (hash, source) = (0x5bd1_e995_9e37_79b9, 0x94d0_49bb_1331_11eb);
//! let extent = |offset, more| Extent { offset, bytes: 1_480, more };
//! let fragment = |offset, more| Arrival { key: &key, hash, extent: extent(offset, more) };
//! // The second fragment arrives before the first, so its frame is held.
//! let held = table.later(&fragment(1_480, true), source, Millis(10));
//! let Later::Hold(slot) = held else { panic!("not held") };
//! assert_eq!(table.first(&fragment(0, true), 0xd1ce, "backend 3", Millis(11)), First::Recorded);
//! // Between batches the caller takes released frames out of their hold slots.
//! assert_eq!(table.release(), Some(Release { slot, fate: Fate::Forward("backend 3") }));
//! assert_eq!(table.release(), None);
//! // The third fragment finds the decision.
//! assert_eq!(table.later(&fragment(2_960, false), source, Millis(12)), Later::Known("backend 3"));
//! // The datagram expires two seconds after its first arrival.
//! assert_eq!(table.expire(Millis(2_010), 16), 1);
//! # Ok::<(), fragment_table::ConfigError>(())
//! ```
#![forbid(unsafe_code)]

mod buffer;
mod chains;
mod config;
mod counters;
mod datagram;
mod insertion_order;
mod sources;
mod table;

#[cfg(test)]
mod tests;

pub use buffer::{Fate, HoldSlot};
pub use config::{Config, ConfigError};
pub use counters::Counters;
pub use datagram::{Arrival, Extent, Key, Millis};
pub use table::{First, FragmentTable, Later, Refusal, Release};

use chains::Chains;

/// Returns a boxed slice with `len` copies of `value`, or `None` if the allocation fails. Writes to
/// every page, so that no packet causes a page fault later.
fn filled<T: Clone>(len: usize, value: T) -> Option<Box<[T]>> {
    let mut room = Vec::new();
    room.try_reserve_exact(len).ok()?;
    room.resize(len, value);
    Some(room.into_boxed_slice())
}

/// The end of a linked list of array indexes.
const NONE: u32 = u32::MAX;

/// Compiles the example in the README as a test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
