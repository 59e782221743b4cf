//! A fixed-size table of fragmented datagrams for one packet thread: what was decided for a first fragment holds
//! for the later ones, and later ones that come too early wait for it.
//!
//! In: the datagram's [`Key`] and a keyed hash of it, the caller's decision, the time ([`Millis`]). Out: [`First`],
//! [`Later`], and the numbers of held frames whose wait is over ([`Release`]).
//! Not here: the frames (their owner keeps them under the numbers, [`HoldSlot`]), the hash functions, the clock, what
//! a decision means.
//! Invariants: memory is taken once; a hold slot is free, in one datagram, or queued for release; a datagram
//! without its first fragment holds at least one frame.
//! Source: Eisenbud et al., *Maglev*, NSDI 2016, §4.3; RFC 791 §3.2; RFC 8200 §4.5.
//!
//! ```
//! use fragment_table::{Config, Extent, Fate, First, Fragment, FragmentTable, Key, Later, Millis, Release};
//!
//! let mut table = FragmentTable::new(&Config::default())?;
//! let key = Key { source: [1; 16], destination: [2; 16], protocol: 17, id: 7 };
//! let (hash, source) = (0x5bd1_e995_9e37_79b9, 0x94d0_49bb_1331_11eb); // keyed: of the key, of the source
//! let piece = |offset, more| Fragment { key: &key, hash, extent: Extent { offset, bytes: 1_480, more } };
//! // The second fragment comes before the first: its frame waits under a number.
//! let Later::Hold(slot) = table.later(&piece(1_480, true), source, Millis(10)) else { panic!() };
//! assert_eq!(table.first(&piece(0, true), 0xd1ce, "backend 3", Millis(11)), First::Recorded);
//! // Between batches the caller takes out what is ready, and empties the number's place at once.
//! assert_eq!(table.release(), Some(Release { slot, fate: Fate::Forward("backend 3") }));
//! assert_eq!(table.release(), None);
//! // The third fragment finds the decision.
//! assert_eq!(table.later(&piece(2_960, false), source, Millis(12)), Later::Known("backend 3"));
//! // Two seconds after its first sight the datagram is forgotten.
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
pub use datagram::{Extent, Fragment, Key, Millis};
pub use table::{First, FragmentTable, Later, Refusal, Release};

use chains::Chains;

/// A slice of `len` copies, or `None` without the memory. Every page is written, so that no packet meets a page fault.
fn filled<T: Clone>(len: usize, value: T) -> Option<Box<[T]>> {
    let mut room = Vec::new();
    room.try_reserve_exact(len).ok()?;
    room.resize(len, value);
    Some(room.into_boxed_slice())
}

/// No place, in links between places of an array.
const NONE: u32 = u32::MAX;

/// The example of the README is a test too.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
