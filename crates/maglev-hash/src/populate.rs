//! Filling the table: each turn takes its backend's most preferred slot that is still free.
//!
//! In: one [`Walk`] a seat, the order of turns. Out: the entries.
//! While many slots are free, a walk steps along its preferences over a bit set (which fits in the first-level cache,
//! where the table would not). The walks of a run are first advanced side by side without taking anything, so that no
//! branch waits for a look-up; then they take their slots in order. When few slots are left, they are compared by
//! their places in the preferences, and the least wins.
//! Invariant: every preference before a walk's `next` is taken.
//! Source: Maglev §3.4, pseudocode 1.

use alloc::vec;
use alloc::vec::Vec;

use crate::permutation::{Preference, invert_all};
use crate::turns::Turns;

/// How far one backend has come in its preferences.
pub(crate) struct Walk<E> {
    /// Slot of its next preference.
    pub(crate) next: u32,
    /// From one preference to the next, modulo the size.
    pub(crate) skip: u32,
    /// What it writes into a slot.
    pub(crate) rank: E,
}

/// Free slots at which searching them becomes cheaper than stepping: one and a half times the square root of the size.
///
/// A step succeeds with probability free/size, so stepping costs size/free and searching costs free. The optimum is
/// flat: the root alone is within a few hundredths.
pub(crate) fn endgame_at(size: u32) -> u32 {
    size.isqrt() * 3 / 2
}

/// Gives every slot to a backend. The turns add up to `size`; `endgame`, below 2^16, changes the time only, never the
/// result.
pub(crate) fn populate<E: Copy + Default>(
    size: u32,
    walks: &mut [Walk<E>],
    turns: Turns,
    endgame: u32,
) -> Vec<E> {
    let mut filling = Filling::new(size, walks.len());
    let mut left = Vec::new();
    for seats in turns {
        let mut run = &mut walks[seats];
        while filling.free > endgame && !run.is_empty() {
            let most = (filling.free - endgame).min(SHORT.max(filling.free / CROWD));
            let (batch, rest) = run.split_at_mut(run.len().min(most as usize));
            filling.step(batch);
            run = rest;
        }
        if !run.is_empty() {
            if left.is_empty() {
                left = filling.taken.free_slots(size);
            }
            filling.search(run, &mut left);
        }
    }
    filling.entries
}

/// A table on its way.
struct Filling<E> {
    size: u32,
    entries: Vec<E>,
    taken: Taken,
    /// Slots without a backend.
    free: u32,
    /// Room for the numbers of walks that have not found a slot yet.
    pending: Vec<u32>,
}

impl<E: Copy + Default> Filling<E> {
    fn new(size: u32, walks: usize) -> Self {
        let taken = Taken(vec![0; size as usize / 64 + 1]);
        Self { size, entries: vec![E::default(); size as usize], taken, free: size, pending: vec![0; walks] }
    }

    /// One turn of each of `walks`, in their order, by stepping.
    fn step(&mut self, walks: &mut [Walk<E>]) {
        let size = self.size;
        let advanced = walks.len() >= SHORT as usize;
        if advanced {
            let pending = &mut self.pending[..walks.len()];
            // About as many lanes as preferences are looked at before one is free.
            match u64::from(self.free) * 16 / u64::from(size) {
                11.. => advance::<1, E>(walks, &self.taken, size, pending),
                5.. => advance::<2, E>(walks, &self.taken, size, pending),
                2.. => advance::<4, E>(walks, &self.taken, size, pending),
                _ => advance::<8, E>(walks, &self.taken, size, pending),
            }
        }
        for walk in walks {
            let slot = if advanced && self.taken.is_free(walk.next) == 1 {
                walk.take(walk.next, &mut self.taken, size)
            } else {
                walk.step(&mut self.taken, size)
            };
            self.entries[slot as usize] = walk.rank;
            self.free -= 1;
        }
    }

    /// One turn of each of `walks`, in their order, by looking through `left`, the slots that are free.
    fn search(&mut self, walks: &[Walk<E>], left: &mut Vec<u32>) {
        let mut inverses: Vec<u32> = walks.iter().map(|walk| walk.skip).collect();
        invert_all(&mut inverses, self.size);
        for (walk, inverse) in walks.iter().zip(inverses) {
            let slot = take_first(left, &Preference::new(walk.next, inverse, self.size));
            self.entries[slot as usize] = walk.rank;
            self.free -= 1;
        }
    }
}

/// Advances each walk to its first free preference, `LANES` preferences a pass, until few are left to find one.
///
/// It takes nothing, and no branch depends on what it finds: unfinished walks go to the front of `pending`.
fn advance<const LANES: usize, E>(walks: &mut [Walk<E>], taken: &Taken, size: u32, pending: &mut [u32]) {
    let mut count = 0;
    for (index, walk) in (0..).zip(walks.iter_mut()) {
        pending[count] = index;
        count += usize::from(walk.advance::<LANES>(taken, size));
    }
    while count > walks.len() / 16 {
        let mut kept = 0;
        for place in 0..count {
            let index = pending[place];
            pending[kept] = index;
            kept += usize::from(walks[index as usize].advance::<LANES>(taken, size));
        }
        count = kept;
    }
}

/// Takes the slot out of `left` that comes first in the preferences.
fn take_first(left: &mut Vec<u32>, preference: &Preference) -> u32 {
    let mut least = [u64::MAX; 4]; // four, as each comparison waits for the one before
    let mut index = 0;
    let mut fours = left.chunks_exact(4);
    for four in &mut fours {
        for (least, &slot) in least.iter_mut().zip(four) {
            *least = preference.key(slot, index).min(*least);
            index += 1;
        }
    }
    for &slot in fours.remainder() {
        least[0] = preference.key(slot, index).min(least[0]);
        index += 1;
    }
    let least = least[0].min(least[1]).min(least[2].min(least[3]));
    left.swap_remove(Preference::index(least))
}

impl<E> Walk<E> {
    /// Looks at `LANES` preferences and stays at the first free one; `true` when there was none.
    #[inline]
    fn advance<const LANES: usize>(&mut self, taken: &Taken, size: u32) -> bool {
        let mut lanes = [0; LANES];
        let mut beyond = self.next;
        for lane in &mut lanes {
            *lane = beyond;
            beyond = wrap(beyond + self.skip, size);
        }
        self.next =
            lanes.iter().rev().fold(beyond, |next, &slot| if taken.is_free(slot) == 1 { slot } else { next });
        self.next == beyond
    }

    /// Takes `slot`, which is free, and goes on behind it.
    #[inline]
    fn take(&mut self, slot: u32, taken: &mut Taken, size: u32) -> u32 {
        taken.insert(slot);
        self.next = wrap(slot + self.skip, size);
        slot
    }

    /// Steps to the first free preference and takes it.
    ///
    /// [`LANES`] preferences are looked at together: one mispredicted branch ends the walk, not one a step.
    #[inline]
    fn step(&mut self, taken: &mut Taken, size: u32) -> u32 {
        let double = wrap(self.skip + self.skip, size);
        let second = wrap(self.next + self.skip, size);
        let mut lanes = [self.next, second, wrap(self.next + double, size), wrap(second + double, size)];
        let stride = wrap(double + double, size);
        loop {
            let free = lanes.iter().rev().fold(0, |free, &slot| free << 1 | taken.is_free(slot));
            if free != 0 {
                let slot = lanes[free.trailing_zeros() as usize % LANES];
                return self.take(slot, taken, size);
            }
            lanes = lanes.map(|slot| wrap(slot + stride, size));
        }
    }
}

/// The slots that have a backend, one bit each.
struct Taken(Vec<u64>);

impl Taken {
    /// 1 when `slot` is free, else 0.
    #[inline]
    fn is_free(&self, slot: u32) -> u64 {
        !(self.0[slot as usize / 64] >> (slot % 64)) & 1
    }

    #[inline]
    fn insert(&mut self, slot: u32) {
        self.0[slot as usize / 64] |= 1 << (slot % 64);
    }

    fn free_slots(&self, size: u32) -> Vec<u32> {
        (0..size).filter(|&slot| self.is_free(slot) == 1).collect()
    }
}

/// `sum mod size` for a sum below twice the size, without a branch.
#[inline]
fn wrap(sum: u32, size: u32) -> u32 {
    sum.min(sum.wrapping_sub(size))
}

/// Walks below which a run is too short to advance its walks side by side.
const SHORT: u32 = 16;

/// Free slots for each walk that is advanced, or too many would find their slot taken by one before them.
const CROWD: u32 = 8;

/// Preferences looked at together by one walk alone. Eight were no faster, and one took a seventh longer.
const LANES: usize = 4;
