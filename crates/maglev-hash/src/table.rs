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

/// The number of a backend in a table, which lookups return. [`Table::backend`] and [`Table::name`]
/// return the backend with this rank. A rank is valid only for the table that returned it.
///
/// A rank is the position of the backend among all backends of the table, sorted by name. The rank
/// is not an index into the slice that was passed to [`build`](crate::build).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(transparent)]
pub struct Rank(u32);

impl Rank {
    /// Returns the position of the backend among all backends of the table, sorted by the bytes of
    /// their names. [`Table::backends`] returns the backends in the same order. Backends with
    /// weight 0 are included.
    #[inline]
    #[must_use]
    pub const fn index_by_name(self) -> usize {
        self.0 as usize
    }
}

/// The table entries. The entry of a slot is the rank of the slot's backend. Entries are 16 bits
/// wide if there are at most 65,535 backends, and otherwise 32 bits.
#[derive(Clone, PartialEq, Eq)]
pub(crate) enum Entries {
    Narrow(Vec<u16>),
    Wide(Vec<u32>),
}

/// A reference to the table entry of a slot, which is the rank of the slot's backend.
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

    /// Returns the rank of the backend for a flow, session or key with this hash. Pass the rank to
    /// [`backend`](Self::backend) or [`name`](Self::name).
    ///
    /// The function mixes the bits of `hash`. Any number that differs between flows is suitable: a
    /// 64-bit hash, a 32-bit hash such as a CRC, or a sequential ID. If attackers can choose the
    /// flows, use a keyed hash function.
    ///
    /// # Cost
    /// Three multiplications and one load. The table takes [`entry_bytes`](Self::entry_bytes) per
    /// slot.
    #[inline]
    #[must_use]
    pub fn lookup(&self, hash: u64) -> Rank {
        self.lookup_uniform(mixed(hash))
    }

    /// Returns the rank of the backend for a hash that is uniform over 64 bits, such as a SipHash.
    /// The hash is not mixed, so the result differs from that of [`lookup`](Self::lookup). All
    /// machines of a cluster must use the same function.
    ///
    /// The high bits of the hash select the backend: all 32-bit numbers select the same backend.
    ///
    /// # Cost
    /// One multiplication and one load.
    #[inline]
    #[must_use]
    pub fn lookup_uniform(&self, hash: u64) -> Rank {
        self.get(self.slot_of(hash))
    }

    /// Returns the slot of a hash that is uniform over 64 bits. The slot is `hash * size / 2^64`,
    /// so all slots cover equally large ranges of hashes. [`lookup_uniform`](Self::lookup_uniform)
    /// uses this slot, and [`lookup`](Self::lookup) usually uses another slot.
    #[inline]
    #[must_use]
    pub fn slot_of(&self, hash: u64) -> u32 {
        #[expect(clippy::cast_possible_truncation, reason = "below size, as hash / 2^64 is below 1")]
        let slot = ((u128::from(hash) * u128::from(self.size)) >> 64) as u32;
        slot
    }

    /// Returns the rank of the backend to which `slot` is assigned.
    ///
    /// # Panics
    /// Panics if `slot` is not below [`size`](Self::size).
    #[inline]
    #[must_use]
    pub fn get(&self, slot: u32) -> Rank {
        Rank(match self.entry(slot) {
            Entry::Narrow(rank) => u32::from(*rank),
            Entry::Wide(rank) => *rank,
        })
    }

    /// Returns a reference to the table entry of `slot`, so that the caller can prefetch the entry.
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

    /// Returns an iterator over the slots, which yields the rank of each slot's backend.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = Rank> + '_ {
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

    /// Returns the backends, sorted by name, each with its number of slots. The numbers add up to
    /// [`size`](Self::size).
    pub fn shares(&self) -> impl ExactSizeIterator<Item = (Backend<'_>, u32)> {
        let mut shares = vec![0; self.backends.len()];
        self.iter().for_each(|rank| shares[rank.index_by_name()] += 1);
        self.backends().zip(shares)
    }

    /// Returns the backend with this rank, with the name and weight that were passed to
    /// [`build`](crate::build).
    ///
    /// # Panics
    /// Panics if this table has no backend with this rank, which is possible only if a different
    /// table returned the rank. Otherwise, a rank from a different table may select a wrong
    /// backend.
    #[must_use]
    pub fn backend(&self, rank: Rank) -> Backend<'_> {
        let Span { end, weight } = self.backends[rank.index_by_name()];
        let before = rank.index_by_name().checked_sub(1);
        let start = before.map_or(0, |before| self.backends[before].end);
        Backend { name: &self.names[start..end], weight }
    }

    /// Returns the name of the backend with this rank.
    ///
    /// # Panics
    /// Panics under the same condition as [`backend`](Self::backend).
    #[must_use]
    pub fn name(&self, rank: Rank) -> &[u8] {
        self.backend(rank).name
    }

    /// Returns the backends sorted by the bytes of their names, with the names and weights passed
    /// to [`build`](crate::build).
    pub fn backends(&self) -> impl ExactSizeIterator<Item = Backend<'_>> {
        let mut start = 0;
        self.backends.iter().map(move |span| {
            let name = &self.names[start..span.end];
            start = span.end;
            Backend { name, weight: span.weight }
        })
    }
}

/// Mixes the bits of a hash with the finalizer of splitmix64, which is a bijection. Every bit of
/// the result depends on all bits of the hash.
#[inline]
const fn mixed(hash: u64) -> u64 {
    let hash = (hash ^ (hash >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let hash = (hash ^ (hash >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    hash ^ (hash >> 31)
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
