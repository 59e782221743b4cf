//! What happened in one table, counted by its one owner; the packet thread copies the sums out.
//!
//! Invariants: every call of `first` is one of recorded, duplicate, conflict; every call of `later` one of known,
//! held, refused (three); `recorded = known datagrams + expired_known + evicted + succeeded`;
//! `held = held frames + released + expired_frames`.

/// Sums since construction. They wrap at 2^64.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// First fragments whose decision was recorded.
    pub recorded: u64,
    /// First fragments like the one that was recorded.
    pub duplicates: u64,
    /// First fragments other than the one that was recorded.
    pub conflicts: u64,
    /// Whole datagrams whose name another one took over before their time.
    pub succeeded: u64,
    /// Later fragments that found a decision.
    pub known: u64,
    /// Later fragments that were given a hold slot.
    pub held: u64,
    /// Held frames given back because their first fragment came.
    pub released: u64,
    /// Later fragments refused: their datagram had its share of hold slots.
    pub refused_datagram: u64,
    /// Later fragments refused: their source had its share of hold slots.
    pub refused_source: u64,
    /// Later fragments refused: all hold slots were taken.
    pub refused_buffer: u64,
    /// Datagrams that expired after their first fragment had come: the usual end.
    pub expired_known: u64,
    /// Datagrams that expired before their first fragment came.
    pub expired_waiting: u64,
    /// Held frames given back because their first fragment did not come in time.
    pub expired_frames: u64,
    /// Datagrams with a decision that gave way to a newer one before their time.
    pub evicted: u64,
}
