//! A fixed-size connection table for one packet thread. The table maps the hash of a flow to the
//! slot of its backend and its VIP.
//!
//! The caller passes a 64-bit keyed hash of the flow, the packet type ([`Signal`]) and the time
//! ([`Tick`]). The table allocates its memory once and never grows. A flow has at most one entry. A
//! live flow that is not on probation is removed only when it expires or is purged.
//!
//! References: Eisenbud et al., *Maglev*, NSDI 2016, §3.3. Fan et al., *Cuckoo Filter*, CoNEXT
//! 2014, §3.1, describes how to compute the second bucket from the entry.
//!
//! ```
//! use conntrack::{Config, FlowTable, Hit, Inserted, Signal, Target, Tick};
//!
//! let mut table = FlowTable::new(&Config { capacity: 1_000, ..Config::default() })?;
//! let (flow, now) = (0x5bd1_e995_9e37_79b9, Tick::from_millis(0));
//! assert_eq!(table.lookup(flow, Signal::Syn, now), None);
//! assert_eq!(table.insert(flow, Target::new(3, 1)?, Signal::Syn, now), Inserted::Tracked);
//! let later = Tick::from_millis(300);
//! let hit = table.lookup(flow, Signal::Data, later);
//! assert_eq!(hit, Some(Hit { slot: 3, vip: 1, renewed: false }));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod carry;
mod config;
mod counters;
mod directory;
mod entry;
mod id;
mod layout;
mod prefetch;
mod previous;
mod room;
mod table;
mod tick;
mod walk;

#[cfg(test)]
mod tests;

pub use carry::{RECORD_BYTES, Unreadable};
pub use config::{Config, ConfigError, Timeouts};
pub use counters::Counters;
pub use entry::{BusyClocks, Entry, Signal, State};
pub use id::{ID_LIMIT, Id, IdTooLarge, Target};
pub use layout::{ENTRY_BYTES, LAYOUT_VERSION, LINE_BYTES, MAGIC};
pub use prefetch::prefetch;
pub use previous::{FlowCursor, PreviousTables, Step};
pub use table::{BucketProbe, FlowTable, Hit, Inserted, Newcomer, Query};
pub use tick::{TICKS_PER_SECOND, Tick};
pub use walk::{Cursor, Filter};

/// Compiles the example in the README as a test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
