//! The counters of one table. The packet thread that owns the table reads and publishes them.
//!
//! Invariants: every lookup is counted as a hit or a miss. Every call of `insert` is counted as an
//! insert, as a refresh or as untracked. The equation `insert = len + expired +
//! evicted_from_probation + purged` always holds.

/// Counts since the table was built. They wrap at 2^64.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Lookups that found a live flow.
    pub hit: u64,
    /// Lookups that found no live flow.
    pub miss: u64,
    /// Entries created.
    pub insert: u64,
    /// The number of times that a live entry was rewritten. Reasons are a lookup that changed the
    /// tick or state, an insert of an existing tag, and a reassignment to another backend slot.
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
    /// Entries moved to their second bucket to make room for a new flow.
    pub moved: u64,
}
