//! A priority queue of the BFD sessions' deadlines.
//!
//! Each session has a queue entry whose time is the deadline of the session or earlier. If an entry
//! becomes due before the deadline of its session, the session gets a new entry. This method is
//! cheaper than updating the queue for every packet.

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

    /// Removes and returns the earliest entry if it is due.
    pub(crate) fn pop(&mut self, now: Instant) -> Option<(Instant, u32)> {
        self.next().filter(|&at| at <= now)?;
        self.0.pop().map(|Reverse(entry)| entry)
    }
}
