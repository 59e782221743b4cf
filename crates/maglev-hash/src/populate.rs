//! Filling the table: each turn takes its backend's most preferred slot that is still free.
//!
//! In: one [`Walk`] a seat, the order of turns. Out: the entries.
//! Two ways to the same slot: while many slots are free a walk steps along its preferences over a bit set (which
//! fits in the first-level cache, where the table would not); when few are left, each free slot's place in the
//! preferences is computed, and the least wins.
//! Invariant: every preference before a walk's `next` is taken.
//! Source: Maglev §3.4, pseudocode 1.

use alloc::vec;
use alloc::vec::Vec;

use crate::permutation::Inverse;
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

/// Free slots at which searching them becomes cheaper than stepping: half the square root of the size.
///
/// A step succeeds with probability free/size, so stepping costs size/free and searching costs free. The optimum is
/// flat: measured, the whole root costs up to a tenth more and twice the root a fifth.
pub(crate) fn endgame_at(size: u32) -> u32 {
    size.isqrt() / 2
}

/// Gives every slot to a backend. The turns add up to `size`; `endgame` changes the time only, never the result.
pub(crate) fn populate<E: Copy + Default>(
    size: u32,
    walks: &mut [Walk<E>],
    turns: Turns,
    endgame: u32,
) -> Vec<E> {
    let mut entries = vec![E::default(); size as usize];
    let mut taken = Taken(vec![0; size as usize / 64 + 1]);
    let mut free = size;
    let mut left: Option<Vec<u32>> = None;
    for seats in turns {
        for walk in &mut walks[seats] {
            let slot = if free > endgame {
                walk.step(&mut taken, size)
            } else {
                walk.search(left.get_or_insert_with(|| taken.free_slots(size)), size)
            };
            entries[slot as usize] = walk.rank;
            free -= 1;
        }
    }
    entries
}

impl<E> Walk<E> {
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
                taken.insert(slot);
                self.next = wrap(slot + self.skip, size);
                return slot;
            }
            lanes = lanes.map(|slot| wrap(slot + stride, size));
        }
    }

    /// Takes the one of `left` that comes first in the preferences.
    fn search(&self, left: &mut Vec<u32>, size: u32) -> u32 {
        let inverse = Inverse::new(self.next, self.skip, size);
        let (mut best, mut least) = (0, u32::MAX);
        for (index, &slot) in left.iter().enumerate() {
            let place = inverse.place_of(slot);
            if place < least {
                (best, least) = (index, place);
            }
        }
        left.swap_remove(best)
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

/// Preferences looked at together. Eight were no faster, and one took a seventh longer.
const LANES: usize = 4;
