//! Counts the occupied entries of flow tables whose size is limited.
//!
//! [`Places`] counts the entries of each machine and frees an entry at the time that the caller has
//! scheduled. The caller tracks which machine has an entry for which flow. The counts are not used
//! for unlimited tables. When a table is emptied, releases that were scheduled earlier have no
//! effect on its new entries.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};

/// The occupied flow table entries of all machines.
#[derive(Debug)]
pub(crate) struct Places {
    limit: Option<u32>,
    taken: Vec<u32>,
    /// The number of times that the table of each machine was emptied.
    lives: Vec<u16>,
    leaving: BinaryHeap<Reverse<Leaving>>,
    /// The number of scheduled releases that were canceled because the flow returned to the
    /// machine.
    kept: HashMap<Leaving, u32>,
}

/// A scheduled release: the time in milliseconds, the machine, and how many times the table of the
/// machine had been emptied before.
type Leaving = (u32, u16, u16);

impl Places {
    pub(crate) fn new(limit: Option<u32>, machines: usize) -> Self {
        let (taken, lives) = (vec![0; machines], vec![0; machines]);
        Self { limit, taken, lives, leaving: BinaryHeap::new(), kept: HashMap::new() }
    }

    /// Returns `true` if the size of the tables is limited. Flows must then be processed in order
    /// of time.
    pub(crate) fn are_limited(&self) -> bool {
        self.limit.is_some()
    }

    /// Performs all releases that are scheduled up to `now_ms`.
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

    /// Reserves an entry for a flow in the flow table of a machine. Returns `false` if the table is
    /// full.
    #[inline]
    pub(crate) fn take(&mut self, machine: u16) -> bool {
        let taken = &mut self.taken[usize::from(machine)];
        let is_room = self.limit.is_none_or(|limit| *taken < limit);
        *taken += u32::from(is_room);
        is_room
    }

    /// Schedules the release of one table entry of the machine at the time `at_ms`.
    #[inline]
    pub(crate) fn free_at(&mut self, at_ms: u32, machine: u16) {
        if self.are_limited() {
            self.leaving.push(Reverse((at_ms, machine, self.lives[usize::from(machine)])));
        }
    }

    /// Cancels a scheduled release because the flow has returned to the machine.
    pub(crate) fn keep(&mut self, at_ms: u32, machine: u16) {
        if self.are_limited() {
            *self.kept.entry((at_ms, machine, self.lives[usize::from(machine)])).or_default() += 1;
        }
    }

    /// Empties the table of a machine that restarts.
    pub(crate) fn empty(&mut self, machine: usize) {
        self.taken[machine] = 0;
        self.lives[machine] += 1;
    }
}
