//! The immutable lookup table that [`build`](crate::build) returns.
//!
//! The table also stores the names and weights of the backends, which are needed to compare two
//! tables. Invariant: the table has one entry per slot, and each entry is below the number of
//! backends.

use alloc::boxed::Box;
use alloc::vec;
use alloc::vec::Vec;
use core::fmt;

use crate::Backend;

/// A lookup table. Two tables compare equal if they have the same backends, weights and slots.
#[derive(Clone, PartialEq, Eq)]
pub struct Table {
    size: u32,
    entries: Entries,
    /// The names, ordered by rank and without separators.
    names: Box<[u8]>,
    backends: Box<[Span]>,
}

/// The rank in each slot. Ranks are 16 bits wide if there are at most 65,535 backends, and
/// otherwise 32 bits.
#[derive(Clone, PartialEq, Eq)]
pub(crate) enum Entries {
    Narrow(Vec<u16>),
    Wide(Vec<u32>),
}

/// A reference to a rank in the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Entry<'a> {
    /// An entry of a table with up to 65,535 backends.
    Narrow(&'a u16),
    /// An entry of a table with more than 65,535 backends.
    Wide(&'a u32),
}

/// The weight of a backend, and the end of its name in `names`. The name starts at the end of the
/// previous name.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Span {
    end: usize,
    weight: u32,
}

impl Table {
    pub(crate) fn new(size: u32, entries: Entries, ranked: &[Backend<'_>]) -> Self {
        let mut names = Vec::with_capacity(ranked.iter().map(|backend| backend.name.len()).sum());
        let mut backends = Vec::with_capacity(ranked.len());
        for backend in ranked {
            names.extend_from_slice(backend.name);
            backends.push(Span { end: names.len(), weight: backend.weight });
        }
        Self { size, entries, names: names.into(), backends: backends.into() }
    }

    /// Returns the rank of the backend for flows with this hash.
    ///
    /// The rank is the index of the backend among all backends passed to [`build`](crate::build),
    /// sorted by the bytes of their names. Backends with weight 0 are included. The hash should be
    /// uniform over 64 bits, because its high bits select the slot.
    ///
    /// # Cost
    /// One multiplication and one load. The table takes [`entry_bytes`](Self::entry_bytes) per
    /// slot.
    #[inline]
    #[must_use]
    pub fn lookup(&self, hash: u64) -> u32 {
        self.get(self.slot_of(hash))
    }

    /// Returns the slot of a hash, which is `hash * size / 2^64`. All slots cover equally large
    /// ranges of hashes.
    #[inline]
    #[must_use]
    pub fn slot_of(&self, hash: u64) -> u32 {
        #[expect(clippy::cast_possible_truncation, reason = "below size, as hash / 2^64 is below 1")]
        let slot = ((u128::from(hash) * u128::from(self.size)) >> 64) as u32;
        slot
    }

    /// Returns the rank in a slot.
    ///
    /// # Panics
    /// Panics if `slot` is not below [`size`](Self::size).
    #[inline]
    #[must_use]
    pub fn get(&self, slot: u32) -> u32 {
        match self.entry(slot) {
            Entry::Narrow(rank) => u32::from(*rank),
            Entry::Wide(rank) => *rank,
        }
    }

    /// Returns a reference to the rank in a slot, which the caller can prefetch.
    ///
    /// # Panics
    /// Panics if `slot` is not below [`size`](Self::size).
    #[inline]
    #[must_use]
    pub fn entry(&self, slot: u32) -> Entry<'_> {
        match &self.entries {
            Entries::Narrow(entries) => Entry::Narrow(&entries[slot as usize]),
            Entries::Wide(entries) => Entry::Wide(&entries[slot as usize]),
        }
    }

    /// Returns the number of slots.
    #[inline]
    #[must_use]
    pub fn size(&self) -> u32 {
        self.size
    }

    /// Returns an iterator over the rank in each slot.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = u32> + '_ {
        (0..self.size).map(|slot| self.get(slot))
    }

    /// Returns the number of bytes per slot: 2 with at most 65,535 backends, otherwise 4.
    #[must_use]
    pub fn entry_bytes(&self) -> usize {
        match self.entries {
            Entries::Narrow(_) => size_of::<u16>(),
            Entries::Wide(_) => size_of::<u32>(),
        }
    }

    /// Returns the number of slots for each rank. The numbers add up to [`size`](Self::size).
    #[must_use]
    pub fn shares(&self) -> Vec<u32> {
        let mut shares = vec![0; self.backends.len()];
        self.iter().for_each(|rank| shares[rank as usize] += 1);
        shares
    }

    /// Returns the backends ordered by rank, with the names and weights passed to
    /// [`build`](crate::build).
    pub fn backends(&self) -> impl ExactSizeIterator<Item = Backend<'_>> {
        let mut start = 0;
        self.backends.iter().map(move |span| {
            let name = &self.names[start..span.end];
            start = span.end;
            Backend { name, weight: span.weight }
        })
    }
}

impl fmt::Debug for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Table")
            .field("size", &self.size)
            .field("backends", &self.backends.len())
            .field("entry_bytes", &self.entry_bytes())
            .finish_non_exhaustive()
    }
}
