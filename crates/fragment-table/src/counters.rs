//! The counters of one table. The packet thread that owns the table reads and publishes them.
//!
//! Invariants: every call to `first` is counted as recorded, a duplicate or a conflict. Every call
//! to `later` is counted as known, held or refused for one of three reasons. These equations always
//! hold: `recorded = known datagrams + expired_known + evicted + replaced`, and `held = held frames
//! + released + expired_frames`.

/// The counts of events since the table was built, which wrap at 2^64.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// First fragments whose decision was recorded.
    pub recorded: u64,
    /// First fragments whose digest is the same as the recorded digest.
    pub duplicates: u64,
    /// First fragments whose digest differs from the recorded digest.
    pub conflicts: u64,
    /// Complete datagrams that were replaced before they expired, because a new datagram with the
    /// same key arrived.
    pub replaced: u64,
    /// Later fragments whose datagram had a decision.
    pub known: u64,
    /// Later fragments that received a hold slot.
    pub held: u64,
    /// Held frames released because their first fragment arrived.
    pub released: u64,
    /// Later fragments that were refused because their datagram had reached its limit of held
    /// frames.
    pub refused_datagram: u64,
    /// Later fragments that were refused because their source had reached its limit of held frames.
    pub refused_source: u64,
    /// Later fragments that were refused because all hold slots were in use.
    pub refused_buffer: u64,
    /// Datagrams that expired after their first fragment had arrived. Most entries are removed for
    /// this reason.
    pub expired_known: u64,
    /// Datagrams that expired before their first fragment arrived.
    pub expired_waiting: u64,
    /// Held frames released because their first fragment did not arrive in time.
    pub expired_frames: u64,
    /// Datagrams with a decision that were evicted before they expired, to make room for a newer
    /// datagram.
    pub evicted: u64,
}
