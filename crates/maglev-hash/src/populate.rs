//! The loop that fills the table. In each turn a backend takes the free slot that it prefers most.
//!
//! While many slots are free, each backend steps along its preferences and tests slots in a bit
//! set, which fits into the L1 cache. Several backends with consecutive turns first look for their
//! next free slots together, without branches that wait for memory. Then these backends take their
//! slots one after the other. When few slots are free, all free slots are compared by their
//! position in the preferences, and the slot that comes first is taken.
//!
//! Invariant: all slots that a backend prefers to its slot `next` are taken. The loop implements
//! pseudocode 1 in §3.4 of the Maglev paper.

use alloc::vec;
use alloc::vec::Vec;

use crate::permutation::{Preference, invert_all};
use crate::turns::Turns;

/// The position of one backend in its list of preferences.
pub(crate) struct Walk<E> {
    /// The slot of the next preference.
    pub(crate) next: u32,
    /// The distance from one preference to the next, modulo the size.
    pub(crate) skip: u32,
    /// The rank of the backend, which is written into the slots of the backend.
    pub(crate) rank: E,
}

/// Returns the number of free slots at which the build changes its method, which is 1.5 times the
/// square root of the table size. With fewer free slots, searching the free slots is faster than
/// stepping through the preferences of a backend.
///
/// Each step finds a free slot with probability free/size. Stepping therefore takes size/free steps
/// on average, and searching takes one comparison per free slot. The exact number is not critical.
/// For example, if the methods were changed at the square root of the size, the build would take
/// only a few percent longer.
pub(crate) fn endgame_at(size: u32) -> u32 {
    size.isqrt() * 3 / 2
}

/// Assigns every slot to a backend. The number of turns must equal `size`. `endgame` is the number
/// of free slots at which the search begins. This number must be below 2^16, and affects only the
/// running time.
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

/// A table under construction.
struct Filling<E> {
    size: u32,
    entries: Vec<E>,
    taken: Taken,
    /// The number of slots without a backend.
    free: u32,
    /// Scratch space for the indexes of walks that are still searching for a slot.
    pending: Vec<u32>,
}

impl<E: Copy + Default> Filling<E> {
    fn new(size: u32, walks: usize) -> Self {
        let taken = Taken(vec![0; size as usize / 64 + 1]);
        Self { size, entries: vec![E::default(); size as usize], taken, free: size, pending: vec![0; walks] }
    }

    /// Takes one slot for every walk in `walks`, in order. The slots of a backend are found by
    /// stepping through its permutation.
    fn step(&mut self, walks: &mut [Walk<E>]) {
        let size = self.size;
        let advanced = walks.len() >= SHORT as usize;
        if advanced {
            let pending = &mut self.pending[..walks.len()];
            // The number of lanes is about the expected number of preferences that must be tested
            // to find a free slot.
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

    /// Takes one slot for every walk in `walks`. Slots are found by searching `left`, which
    /// contains all free slots.
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

/// Advances each walk to its first free preference. Each pass tests `LANES` preferences per walk,
/// and the passes end when few walks are still searching.
///
/// The function does not take slots. Walks that are still searching move to the front of `pending`,
/// so that no branch depends on the result of a test.
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

/// Finds the slot in `left` that the backend prefers most, and removes it.
fn take_first(left: &mut Vec<u32>, preference: &Preference) -> u32 {
    // The code computes four independent minimums, because the comparisons for a single minimum
    // would wait for each other.
    let mut least = [u64::MAX; 4];
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
    /// Tests the next `LANES` preferences, and moves to the first free slot. Returns `true` if all
    /// these slots are taken.
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

    /// Takes `slot`, which must be free, and moves to the preference after it.
    #[inline]
    fn take(&mut self, slot: u32, taken: &mut Taken, size: u32) -> u32 {
        taken.insert(slot);
        self.next = wrap(slot + self.skip, size);
        slot
    }

    /// Steps to the first free preference and takes it.
    ///
    /// The loop tests [`LANES`] preferences per iteration, which reduces the mispredicted branches
    /// of a walk from one per step to one in total.
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

/// A bit set with the slots that have a backend.
struct Taken(Vec<u64>);

impl Taken {
    /// Returns 1 if `slot` is free, otherwise 0.
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

/// Returns `sum mod size` without a branch. The sum must be below twice the size.
#[inline]
fn wrap(sum: u32, size: u32) -> u32 {
    sum.min(sum.wrapping_sub(size))
}

/// The minimum length of a run whose walks advance together.
const SHORT: u32 = 16;

/// The minimum number of free slots for each walk that advances together with other walks. With
/// fewer free slots, too many walks would end at a slot that an earlier walk has already taken.
const CROWD: u32 = 8;

/// The number of preferences that one walk tests in each iteration. Building with eight lanes was
/// not faster, and building with one lane took one seventh longer.
const LANES: usize = 4;
