//! The lookup table for VIP prefixes. The table is a tree, stored as one value of an array map.
//! Each branch of the tree selects a subtree by a few address bits. `find_prefix` in `bpf/whose.h`
//! performs the lookup.
//!
//! Invariant: a table that the program may read is never written. There are two tables, and the
//! program reads one of them. The system call that switches the program to the other table returns
//! only after no program reads the old table anymore.

use std::collections::BTreeMap;
use std::net::IpAddr;

use aya::maps::{Array, ArrayOfMaps, MapData};
use forwarder::{FILTER_PREFIXES, Prefix};

use super::SteerError;
use crate::attach::{self, AttachError, in_map};

/// The two tables, and the map that selects the table to read.
pub(super) struct PrefixMaps {
    pub(super) chosen: ArrayOfMaps<MapData, Array<MapData, Table>>,
    pub(super) tables: [Array<MapData, Table>; 2],
    /// The index of the table that the program is not using.
    pub(super) spare: usize,
}

impl PrefixMaps {
    pub(super) fn new(ebpf: &mut aya::Ebpf) -> Result<Self, AttachError> {
        let tables = [attach::map(ebpf, "prefixes_a")?, attach::map(ebpf, "prefixes_b")?];
        Ok(Self { chosen: attach::map(ebpf, "prefixes")?, tables, spare: 0 })
    }

    /// Replaces all prefixes in a single step.
    pub(super) fn set(&mut self, prefixes: &BTreeMap<Prefix, u8>) -> Result<(), SteerError> {
        let table = Table::new(prefixes).ok_or(SteerError::TooManyPrefixes(prefixes.len()))?;
        let spare = &mut self.tables[self.spare];
        spare.set(0, table.as_ref(), 0).map_err(in_map("prefixes"))?;
        self.chosen.set(0, spare, 0).map_err(in_map("prefixes"))?;
        self.spare = 1 - self.spare;
        Ok(())
    }
}

/// The lookup table, with the layout of `struct prefix_table` in `bpf/whose.h`. A lookup step is
/// the index of an entry or, with the flag [`BRANCH`], the index of a branch.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Table {
    /// The first lookup step for an IPv6 address, and the first lookup step for an IPv4 address.
    roots: [u32; 2],
    branches: [Branch; ENTRIES],
    slots: [u16; SLOTS],
    /// The prefixes. Entry 0 stands for "no prefix" and matches all addresses.
    entries: [Entry; ENTRIES],
}

/// A branch of the tree. A lookup shifts one half of the address right by `shift` and masks the
/// result with `mask`. The result selects a slot, counted from slot `first`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Branch {
    first: u16,
    mask: u16,
    half: u16,
    shift: u16,
}

/// A prefix. An address has two halves of 64 bits in host byte order, and the high half comes
/// first.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Entry {
    bits: [u64; 2],
    mask: [u64; 2],
    value: u32,
    /// The index of the next shorter prefix that contains this prefix.
    parent: u32,
}

// SAFETY: the type consists of integers without padding. The tests check this by comparing sizes.
unsafe impl aya::Pod for Table {}

/// A prefix in the form that is needed to build the table.
#[derive(Clone, Copy)]
struct Given {
    bits: u128,
    length: u8,
    is_v4: bool,
    /// The index of the entry for this prefix.
    number: u16,
}

impl Table {
    /// Builds the table. Returns `None` if there are too many prefixes.
    fn new(prefixes: &BTreeMap<Prefix, u8>) -> Option<Box<Self>> {
        // Branches of up to 8 bits make lookups faster. The table still has room for any set of
        // `FILTER_PREFIXES` prefixes, because the branches at one level need fewer than four slots
        // for each prefix. At most 22 branches are nested, because a branch with at least 32
        // prefixes uses six bits. If the table is still too small, it is built with branches of up
        // to 4 bits. Any set of prefixes then fits, with 16 slots for each branch and fewer than 40
        // nested branches.
        [8, 4].into_iter().find_map(|widest| Self::build(prefixes, widest))
    }

    fn build(prefixes: &BTreeMap<Prefix, u8>, widest: u8) -> Option<Box<Self>> {
        let mut table = Box::new(Self {
            roots: [0; 2],
            branches: [Branch::default(); ENTRIES],
            slots: [0; SLOTS],
            entries: [Entry { value: NONE, ..Entry::default() }; ENTRIES],
        });
        let mut given: Vec<(Given, u8)> =
            prefixes.iter().map(|(prefix, encap_overhead)| (Given::new(*prefix), *encap_overhead)).collect();
        given.sort_by_key(|(given, _)| (given.is_v4, given.bits, given.length));
        for (number, (given, _)) in (1..).zip(&mut given) {
            given.number = number;
        }
        for (own, encap_overhead) in &given {
            let holds = |other: &&(Given, u8)| other.0.is_v4 == own.is_v4 && other.0.holds(own);
            let parent = given.iter().filter(holds).max_by_key(|(other, _)| other.length);
            let (bits, mask) = (halves(own.bits), halves(high(own.length)));
            let parent = parent.map_or(0, |(other, _)| other.number.into());
            *table.entries.get_mut(usize::from(own.number))? =
                Entry { bits, mask, value: u32::from(*encap_overhead), parent };
        }
        let mut tree = Growing { table, branches: 0, slots: 0, widest };
        for is_v4 in [false, true] {
            let family: Vec<Given> =
                given.iter().map(|(given, _)| *given).filter(|given| given.is_v4 == is_v4).collect();
            tree.table.roots[usize::from(is_v4)] = tree.step(&family, 0)?.into();
        }
        Some(tree.table)
    }
}

impl Given {
    /// Converts a prefix. IPv4 addresses are converted to IPv4-mapped IPv6 addresses.
    fn new(prefix: Prefix) -> Self {
        let before = if prefix.address().is_ipv4() { 96 } else { 0 };
        let bits = u128::from_be_bytes(attach::key(prefix.address()));
        let is_v4 = matches!(prefix.address(), IpAddr::V4(_));
        Self { bits, length: before + prefix.length(), is_v4, number: 0 }
    }

    fn holds(&self, other: &Self) -> bool {
        self.length < other.length && (self.bits ^ other.bits) & high(self.length) == 0
    }

    /// Returns `true` if the prefix contains addresses that select `slot`. The slot is selected by
    /// the `width` bits that follow the first `used` bits.
    fn meets(&self, used: u8, width: u8, slot: u16) -> bool {
        let bits = width.min(self.length - used);
        self.bits << used >> (128 - bits) == u128::from(slot >> (width - bits))
    }
}

/// A table under construction.
struct Growing {
    table: Box<Table>,
    branches: u16,
    slots: u16,
    widest: u8,
}

impl Growing {
    /// Builds the subtree for the `given` prefixes and returns its lookup step. `default` is a
    /// shorter prefix that contains all given prefixes. Addresses that match none of the given
    /// prefixes belong to `default`. Returns `None` if the table is full.
    fn step(&mut self, given: &[Given], default: u16) -> Option<u16> {
        let [first, rest @ ..] = given else { return Some(default) };
        let last = rest.last().unwrap_or(first);
        // The prefixes are sorted. The earliest bit in which any two prefixes differ is therefore
        // also the first bit in which the first and the last prefix differ. A prefix that contains
        // all others comes first.
        let common = u8::try_from((first.bits ^ last.bits).leading_zeros()).unwrap_or(u8::MAX);
        if first.length <= common {
            return self.step(rest, first.number);
        }
        let count = u8::try_from(given.len().ilog2()).unwrap_or(u8::MAX);
        let width = count.saturating_add(1).min(self.widest).min(64 - common % 64);
        let (first, mask) = (self.slots, (1 << width) - 1);
        let branch =
            Branch { first, mask, half: (common / 64).into(), shift: (64 - common % 64 - width).into() };
        let number = self.branches;
        *self.table.branches.get_mut(usize::from(number))? = branch;
        (self.branches, self.slots) = (number + 1, first + mask + 1);
        for slot in 0..=mask {
            let inside: Vec<Given> =
                given.iter().copied().filter(|given| given.meets(common, width, slot)).collect();
            let step = self.step(&inside, default)?;
            *self.table.slots.get_mut(usize::from(first + slot))? = step;
        }
        Some(BRANCH | number)
    }
}

/// Returns a 128-bit mask with the highest `length` bits set.
fn high(length: u8) -> u128 {
    u128::MAX.checked_shl(128 - u32::from(length)).unwrap_or(0)
}

#[expect(clippy::cast_possible_truncation, reason = "each half of the 128 bits is taken separately")]
fn halves(bits: u128) -> [u64; 2] {
    [(bits >> 64) as u64, bits as u64]
}

/// The number of entries. The table has room for an old set of prefixes, a new set, and the
/// overlaps between the two sets. There are at most as many overlaps as prefixes in both sets.
const ENTRIES: usize = 4 * FILTER_PREFIXES;
const SLOTS: usize = 4_096;
const BRANCH: u16 = 1 << 15;
/// The value that stands for "no prefix". `NO_PREFIX` in `bpf/whose.h` must have the same value.
const NONE: u32 = 1 << 31;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table_consists_of_integers_without_padding() {
        let parts = 2 * 4 + ENTRIES * 8 + SLOTS * 2 + ENTRIES * 40;
        assert_eq!((size_of::<Branch>(), size_of::<Entry>(), size_of::<Table>()), (8, 40, parts));
    }

    #[test]
    fn table_has_room_for_prefixes_of_any_shape() {
        let v6 = |bits: u128, length| Prefix::new(IpAddr::V6(bits.into()), length).unwrap();
        // Tests three kinds of sets: disjoint prefixes of increasing length, nested prefixes, and
        // adjacent prefixes.
        let ladder = (1..=128).map(|length| v6(1 << (128 - length), u8::try_from(length).unwrap()));
        let nested = (0..=128).map(|length| v6(high(length), length));
        let shapes = [
            ladder.collect::<Vec<_>>(),
            nested.collect(),
            (0..255).map(|n| v6(n << 20, 128)).collect(),
            (0..255).map(|n| v6(n << 120, 8)).collect(),
        ];
        for shape in shapes {
            let of = |shape: &[Prefix]| shape.iter().map(|prefix| (*prefix, 0)).collect();
            assert!(Table::new(&of(&shape)).is_some());
        }
        let many: BTreeMap<Prefix, u8> = (0..256).map(|n| (v6(n << 20, 128), 0)).collect();
        assert!(Table::new(&many).is_none());
    }
}
