//! A fixed-size connection table for one packet thread: flow hash in, slot and VIP out.
//!
//! In: a 64-bit keyed hash of the flow, what the packet says ([`Signal`]), the time ([`Tick`]). Out: [`Hit`].
//! Not here: the hash function (the caller's, keyed and secret), the choice of a backend, the clock.
//! Invariants: memory is taken once and never grows; a flow stands in at most one place; a live flow that is
//! off probation leaves only by expiry or purge.
//! Source: Eisenbud et al., *Maglev*, NSDI 2016, §3.3; Fan et al., *Cuckoo Filter*, CoNEXT 2014, §3.1 (the
//! other bucket follows from the entry alone).
//!
//! ```
//! use conntrack::{Config, FlowTable, Hit, Inserted, Signal, Target, Tick};
//!
//! let mut table = FlowTable::new(&Config { capacity: 1_000, ..Config::default() })?;
//! let (flow, now) = (0x5bd1_e995_9e37_79b9, Tick::from_millis(0));
//! assert_eq!(table.lookup(flow, Signal::Syn, now), None);
//! assert_eq!(table.insert(flow, Target { slot: 3, vip: 1 }, Signal::Syn, now), Inserted::Tracked);
//! let later = Tick::from_millis(300);
//! assert_eq!(table.lookup(flow, Signal::Data, later), Some(Hit { slot: 3, vip: 1, renewed: false }));
//! # Ok::<(), conntrack::ConfigError>(())
//! ```

mod carry;
mod config;
mod counters;
mod entry;
mod former;
mod layout;
mod prefetch;
mod room;
mod table;
mod tick;
mod walk;

#[cfg(test)]
mod tests;

pub use carry::{RECORD_BYTES, Unreadable};
pub use config::{Config, ConfigError, Timeouts};
pub use counters::Counters;
pub use entry::{Entry, ID_LIMIT, Signal, State, Target};
pub use former::{FlowCursor, Former, Step};
pub use layout::{ENTRY_BYTES, LAYOUT_VERSION, LINE_BYTES, MAGIC};
pub use prefetch::prefetch;
pub use table::{FlowTable, Glance, Hit, Inserted, Query};
pub use tick::{TICKS_PER_SECOND, Tick};
pub use walk::{Cursor, Filter};

/// The example of the README is a test too.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
