//! What happened in one table, counted by its one owner; the packet thread copies the sums out.
//!
//! Invariants: every look-up is a hit or a miss; every insert call is an insert, a refresh or untracked;
//! `insert = len + expired + evicted_from_probation + purged`.

/// Sums since construction. They wrap at 2^64.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Look-ups that found a live flow.
    pub hit: u64,
    /// Look-ups that found none.
    pub miss: u64,
    /// Entries created.
    pub insert: u64,
    /// Live entries written anew: a hit that moved tick or state, an insert over the same tag, a reassignment.
    pub refresh: u64,
    /// Entries that had expired when somebody looked at them.
    pub expired: u64,
    /// Live entries on probation that gave way to a newcomer.
    pub evicted_from_probation: u64,
    /// Inserts that found no place: the packet is forwarded without an entry.
    pub untracked: u64,
    /// Live or expired entries removed by a purge on request.
    pub purged: u64,
    /// Entries moved to their other bucket to make room.
    pub moved: u64,
}
