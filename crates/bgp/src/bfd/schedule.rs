//! A priority queue with the deadlines of the BFD sessions.
//!
//! Each session has a queue entry whose time is the deadline of the session or earlier. When an
//! entry is reached too early, the session gets a new entry. This approach is cheaper than a queue
//! update at every packet.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Instant;

#[derive(Debug, Default)]
pub(crate) struct Schedule(BinaryHeap<Reverse<(Instant, u32)>>);

impl Schedule {
    pub(crate) fn push(&mut self, at: Instant, slot: u32) {
        self.0.push(Reverse((at, slot)));
    }

    pub(crate) fn next(&self) -> Option<Instant> {
        self.0.peek().map(|Reverse((at, _))| *at)
    }

    /// Removes and returns the earliest entry if its time has come.
    pub(crate) fn pop(&mut self, now: Instant) -> Option<(Instant, u32)> {
        self.next().filter(|&at| at <= now)?;
        self.0.pop().map(|Reverse(entry)| entry)
    }
}
