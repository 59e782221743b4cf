//! The finished table: flow hash to rank, immutable.
//!
//! In: entries and the backends by rank, from [`build`](crate::build). Out: ranks.
//! Not here: what a rank means to the caller; names and weights are kept so that two tables can be compared.
//! Invariant: as many entries as slots, each below the number of backends.

use alloc::boxed::Box;
use alloc::vec;
use alloc::vec::Vec;
use core::fmt;

use crate::Backend;

/// A lookup table. Equal tables have equal backends, weights and slots.
#[derive(Clone, PartialEq, Eq)]
pub struct Table {
    size: u32,
    entries: Entries,
    /// All names by rank, without separators.
    names: Box<[u8]>,
    backends: Box<[Span]>,
}

/// Ranks by slot, as narrow as the number of backends allows.
#[derive(Clone, PartialEq, Eq)]
pub(crate) enum Entries {
    Narrow(Vec<u16>),
    Wide(Vec<u32>),
}

/// A rank in the table's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Entry<'a> {
    /// Of a table of up to 65,535 backends.
    Narrow(&'a u16),
    /// Of a larger one.
    Wide(&'a u32),
}

/// Where a name ends in `names` (it starts where the one before ends), and its weight.
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

    /// The rank of the backend that serves flows with this hash.
    ///
    /// A rank is a backend's place among all the backends given to [`build`](crate::build), weight 0 included, in the
    /// bytewise order of their names. The hash should be uniform over 64 bits; its high bits count most.
    ///
    /// # Cost
    /// One multiplication and one load from a table of [`entry_bytes`](Self::entry_bytes) a slot.
    #[inline]
    #[must_use]
    pub fn lookup(&self, hash: u64) -> u32 {
        self.get(self.slot_of(hash))
    }

    /// The slot of this hash, below [`size`](Self::size): `hash * size / 2^64`, so equal ranges of hashes.
    #[inline]
    #[must_use]
    pub fn slot_of(&self, hash: u64) -> u32 {
        #[expect(clippy::cast_possible_truncation, reason = "below size, as hash / 2^64 is below 1")]
        let slot = ((u128::from(hash) * u128::from(self.size)) >> 64) as u32;
        slot
    }

    /// The rank in a slot.
    ///
    /// # Panics
    /// When `slot` is not below [`size`](Self::size).
    #[inline]
    #[must_use]
    pub fn get(&self, slot: u32) -> u32 {
        match self.entry(slot) {
            Entry::Narrow(rank) => u32::from(*rank),
            Entry::Wide(rank) => *rank,
        }
    }

    /// The rank in a slot where it lies in memory, for who asks the CPU for it ahead.
    ///
    /// # Panics
    /// When `slot` is not below [`size`](Self::size).
    #[inline]
    #[must_use]
    pub fn entry(&self, slot: u32) -> Entry<'_> {
        match &self.entries {
            Entries::Narrow(entries) => Entry::Narrow(&entries[slot as usize]),
            Entries::Wide(entries) => Entry::Wide(&entries[slot as usize]),
        }
    }

    /// Slots of the table.
    #[inline]
    #[must_use]
    pub fn size(&self) -> u32 {
        self.size
    }

    /// The ranks by slot.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = u32> + '_ {
        (0..self.size).map(|slot| self.get(slot))
    }

    /// Bytes of one slot: 2 up to 65,535 backends, else 4.
    #[must_use]
    pub fn entry_bytes(&self) -> usize {
        match self.entries {
            Entries::Narrow(_) => size_of::<u16>(),
            Entries::Wide(_) => size_of::<u32>(),
        }
    }

    /// Slots by rank; they add up to [`size`](Self::size).
    #[must_use]
    pub fn shares(&self) -> Vec<u32> {
        let mut shares = vec![0; self.backends.len()];
        self.iter().for_each(|rank| shares[rank as usize] += 1);
        shares
    }

    /// The backends by rank, as they were given to [`build`](crate::build).
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
