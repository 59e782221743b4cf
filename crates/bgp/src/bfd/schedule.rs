//! Which session is due next.
//!
//! Invariant: each session has an entry that is not later than its deadline; entries that have become early are put right when
//! they come up, which costs less than moving them at every packet.

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

    /// The next entry that is due, with its time.
    pub(crate) fn pop(&mut self, now: Instant) -> Option<(Instant, u32)> {
        self.next().filter(|&at| at <= now)?;
        self.0.pop().map(|Reverse(entry)| entry)
    }
}
