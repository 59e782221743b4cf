//! The counters of one table. The packet thread that owns the table reads and publishes them.
//!
//! Invariants: every lookup is counted as a hit or a miss. Every call to `insert` is counted as an
//! insert, a refresh or an untracked flow. The equation `insert = len + expired +
//! evicted_from_probation + purged` always holds.

/// The counts of events since the table was built, which wrap at 2^64.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Lookups that found a live flow.
    pub hit: u64,
    /// Lookups that found no live flow.
    pub miss: u64,
    /// Entries created.
    pub insert: u64,
    /// The number of rewrites of a live entry: by a lookup that changed its tick or state, by an
    /// insert with the same tag, or by a reassignment to a different backend slot.
    pub refresh: u64,
    /// Expired entries that were freed.
    pub expired: u64,
    /// Live entries on probation that were evicted for a new flow.
    pub evicted_from_probation: u64,
    /// Inserts that found no free entry. The flow then has no entry, but its packet is still
    /// forwarded.
    pub untracked: u64,
    /// Live or expired entries that were removed by a purge.
    pub purged: u64,
    /// Entries that were moved to their other bucket to make room for a new flow.
    pub moved: u64,
}
