//! Which places of an array stand under a hash: chains through fixed arrays, with a list of the free places.
//!
//! In: hashes. Out: places, below a capacity. Not here: what stands in a place, comparing it.
//! Invariant: a place is in exactly one chain, or free.
//! All places can be taken, whatever the hashes. A chain is as long as hashes collide: one place on average when
//! all are taken, and nobody without the hash's key can make a long one.

use crate::{NONE, filled};

#[derive(Debug)]
pub(crate) struct Chains {
    heads: Box<[u32]>, // as many as places or more, a power of two
    next: Box<[u32]>,  // of a place in its chain, or in the free list
    free: u32,
    shift: u32,
}

impl Chains {
    /// `capacity` free places, the lowest of which is taken first; `None` without the memory.
    pub(crate) fn new(capacity: usize) -> Option<Self> {
        let heads = filled(heads(capacity), NONE)?;
        let mut next = filled(capacity, NONE)?;
        for (link, after) in next.iter_mut().zip(1u32..).take(capacity.saturating_sub(1)) {
            *link = after;
        }
        let shift = u64::BITS - heads.len().trailing_zeros();
        Some(Self { heads, next, free: 0, shift })
    }

    pub(crate) fn bytes(capacity: usize) -> usize {
        (heads(capacity) + capacity) * size_of::<u32>()
    }

    /// The places that may stand under `hash`, the newest first.
    pub(crate) fn of(&self, hash: u64) -> impl Iterator<Item = u32> {
        let link = |place: u32| Some(place).filter(|&place| place != NONE);
        core::iter::successors(link(self.heads[self.head(hash)]), move |&place| {
            link(self.next[place as usize])
        })
    }

    /// Puts a free place under `hash`.
    ///
    /// # Panics
    /// When no place is free: the owner's bounds rule it out.
    pub(crate) fn take(&mut self, hash: u64) -> u32 {
        let (place, head) = (self.free, self.head(hash));
        self.free = core::mem::replace(&mut self.next[place as usize], self.heads[head]);
        self.heads[head] = place;
        place
    }

    /// Frees a place that was taken for `hash`.
    pub(crate) fn give_back(&mut self, hash: u64, place: u32) {
        let after = core::mem::replace(&mut self.next[place as usize], self.free);
        self.free = place;
        let head = self.head(hash);
        if self.heads[head] == place {
            self.heads[head] = after;
            return;
        }
        let mut before = self.heads[head] as usize;
        while self.next[before] != place {
            before = self.next[before] as usize;
        }
        self.next[before] = after;
    }

    /// The caller may have chosen the thread or the machine by some bits of the same hash, so that those bits are
    /// equal in all that come here: a product's upper bits depend on all of them.
    fn head(&self, hash: u64) -> usize {
        #[expect(clippy::cast_possible_truncation, reason = "below the number of heads")]
        {
            (hash.wrapping_mul(MIX) >> self.shift) as usize
        }
    }
}

/// Two at least, or the shift would be one of all 64 bits.
fn heads(capacity: usize) -> usize {
    capacity.max(2).next_power_of_two()
}

const MIX: u64 = 0x9e37_79b9_7f4a_7c15; // 2^64 over the golden ratio
