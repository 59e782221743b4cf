//! A hash table that maps hashes to array indexes. Each hash selects a chain of indexes, and unused
//! indexes are in a free list. The caller stores and compares the keys.
//!
//! Invariant: an index is in exactly one chain or in the free list. All indexes below the capacity
//! can be in use at the same time, and even then a chain has at most one element on average. Only
//! an attacker who knows the hash key can create long chains.

use crate::{NONE, filled};

#[derive(Debug)]
pub(crate) struct Chains {
    // The first index of each chain. The number of chains is a power of two that is not below the
    // capacity.
    heads: Box<[u32]>,
    next: Box<[u32]>, // The next index in the chain or in the free list.
    free: u32,
    shift: u32,
}

impl Chains {
    /// Creates a table with `capacity` free indexes, which are taken in ascending order. Returns
    /// `None` if the allocation fails.
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

    /// Returns the indexes in the chain of `hash`, newest first. The caller must compare the keys
    /// of the entries at these indexes.
    pub(crate) fn of(&self, hash: u64) -> impl Iterator<Item = u32> {
        let link = |place: u32| Some(place).filter(|&place| place != NONE);
        core::iter::successors(link(self.heads[self.head(hash)]), move |&place| {
            link(self.next[place as usize])
        })
    }

    /// Takes a free index and adds it to the chain of `hash`.
    ///
    /// # Panics
    /// Panics if all indexes are taken. The callers have limits that prevent this.
    pub(crate) fn take(&mut self, hash: u64) -> u32 {
        let (place, head) = (self.free, self.head(hash));
        self.free = core::mem::replace(&mut self.next[place as usize], self.heads[head]);
        self.heads[head] = place;
        place
    }

    /// Frees an index that was taken for `hash`.
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

    /// Returns the chain of a hash. If the caller selects the thread or the machine by some bits of
    /// the hash, these bits are the same in all hashes of this table. The multiplication makes the
    /// chain depend on all bits.
    fn head(&self, hash: u64) -> usize {
        #[expect(clippy::cast_possible_truncation, reason = "below the number of heads")]
        {
            (hash.wrapping_mul(MIX) >> self.shift) as usize
        }
    }
}

/// Returns the number of chains. The minimum is two, because `shift` would be 64 with a single
/// chain.
fn heads(capacity: usize) -> usize {
    capacity.max(2).next_power_of_two()
}

const MIX: u64 = 0x9e37_79b9_7f4a_7c15; // 2^64 divided by the golden ratio.
