//! How many places of each machine's flow table are taken, when there is a limit.
//!
//! In: flows that ask for a place, and from when on a place is free. Out: whether there was one.
//! Not here: whose place it is (`run` knows which machines hold a flow).
//! Without a limit nothing is counted. Invariant: what was said of a table before it was emptied frees nothing in it.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};

/// Of all machines.
#[derive(Debug)]
pub(crate) struct Places {
    limit: Option<u32>,
    taken: Vec<u32>,
    /// How often a table was emptied.
    lives: Vec<u16>,
    leaving: BinaryHeap<Reverse<Leaving>>,
    /// Of those, how many stay after all.
    kept: HashMap<Leaving, u32>,
}

/// A place that is free at a time: the time, the machine, which of its lives.
type Leaving = (u32, u16, u16);

impl Places {
    pub(crate) fn new(limit: Option<u32>, machines: usize) -> Self {
        let (taken, lives) = (vec![0; machines], vec![0; machines]);
        Self { limit, taken, lives, leaving: BinaryHeap::new(), kept: HashMap::new() }
    }

    /// Whether the order in which flows ask makes a difference.
    pub(crate) fn are_limited(&self) -> bool {
        self.limit.is_some()
    }

    /// Frees what is free by now.
    #[inline]
    pub(crate) fn pass_until(&mut self, now_ms: u32) {
        while let Some(Reverse(next)) = self.leaving.peek().copied().filter(|next| next.0.0 <= now_ms) {
            self.leaving.pop();
            let (_, machine, life) = next;
            if let Some(kept) = self.kept.get_mut(&next).filter(|kept| **kept > 0) {
                *kept -= 1;
            } else if self.lives[usize::from(machine)] == life {
                self.taken[usize::from(machine)] -= 1;
            }
        }
    }

    /// A place for a flow.
    #[inline]
    pub(crate) fn take(&mut self, machine: u16) -> bool {
        let taken = &mut self.taken[usize::from(machine)];
        let is_room = self.limit.is_none_or(|limit| *taken < limit);
        *taken += u32::from(is_room);
        is_room
    }

    /// Its flow will be forgotten then.
    #[inline]
    pub(crate) fn free_at(&mut self, at_ms: u32, machine: u16) {
        if self.are_limited() {
            self.leaving.push(Reverse((at_ms, machine, self.lives[usize::from(machine)])));
        }
    }

    /// It will not: the flow came back.
    pub(crate) fn keep(&mut self, at_ms: u32, machine: u16) {
        if self.are_limited() {
            *self.kept.entry((at_ms, machine, self.lives[usize::from(machine)])).or_default() += 1;
        }
    }

    /// The machine starts anew.
    pub(crate) fn empty(&mut self, machine: usize) {
        self.taken[machine] = 0;
        self.lives[machine] += 1;
    }
}
