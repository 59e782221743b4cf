//! The prefixes of VIPs as the program looks through them: a tree over a few bits at a time, in one value of an array.
//!
//! In: prefixes with the head room that each wants. Out: the whole table, and its exchange for another in one step.
//! Not here: which prefixes there are (`filter`), the walk (`find_prefix` in `bpf/whose.h`).
//! Invariant: the table that the program may be reading is never written to: there are two, and the kernel returns from the
//! exchange when no program reads the old one any more.

use std::collections::BTreeMap;
use std::net::IpAddr;

use aya::maps::{Array, ArrayOfMaps, MapData};
use forwarder::{FILTER_PREFIXES, Prefix};

use super::SteerError;
use crate::attach::{self, AttachError, in_map};

/// The two tables, and the map that says which one counts.
pub(super) struct PrefixMaps {
    pub(super) chosen: ArrayOfMaps<MapData, Array<MapData, Table>>,
    pub(super) tables: [Array<MapData, Table>; 2],
    /// Of the two the one that nobody reads.
    pub(super) spare: usize,
}

impl PrefixMaps {
    pub(super) fn new(ebpf: &mut aya::Ebpf) -> Result<Self, AttachError> {
        let tables = [attach::map(ebpf, "prefixes_a")?, attach::map(ebpf, "prefixes_b")?];
        Ok(Self { chosen: attach::map(ebpf, "prefixes")?, tables, spare: 0 })
    }

    /// These and no others, in one step.
    pub(super) fn set(&mut self, prefixes: &BTreeMap<Prefix, u8>) -> Result<(), SteerError> {
        let table = Table::new(prefixes).ok_or(SteerError::TooManyPrefixes(prefixes.len()))?;
        let spare = &mut self.tables[self.spare];
        spare.set(0, table.as_ref(), 0).map_err(in_map("prefixes"))?;
        self.chosen.set(0, spare, 0).map_err(in_map("prefixes"))?;
        self.spare = 1 - self.spare;
        Ok(())
    }
}

/// `struct prefix_table` in `bpf/whose.h`. A step is the number of an entry, or with [`BRANCH`] that of a branch.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Table {
    /// Of IPv6 and of IPv4.
    roots: [u32; 2],
    branches: [Branch; ENTRIES],
    slots: [u16; SLOTS],
    /// The first one holds all addresses and is none.
    entries: [Entry; ENTRIES],
}

/// `mask + 1` slots from `first` on, by the bits above `shift` in one half of the address.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Branch {
    first: u16,
    mask: u16,
    half: u16,
    shift: u16,
}

/// Halves of addresses are numbers of the machine, the first half first.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Entry {
    bits: [u64; 2],
    mask: [u64; 2],
    value: u32,
    /// The longest of those that hold this one.
    parent: u32,
}

// SAFETY: numbers alone, and no gap between them, as `tests` says by their sizes.
unsafe impl aya::Pod for Table {}

/// A prefix among those of its family.
#[derive(Clone, Copy)]
struct Given {
    bits: u128,
    length: u8,
    is_v4: bool,
    /// Its entry.
    number: u16,
}

impl Table {
    /// `None`: too many.
    fn new(prefixes: &BTreeMap<Prefix, u8>) -> Option<Box<Self>> {
        // Wide branches are faster and have room for `FILTER_PREFIXES` of any shape: all that lie side by side have less than
        // four slots a prefix, and at most 22 lie one below the other, for they look at six bits as long as there are 32.
        // Narrow ones have room for any: 16 slots each, and less than 40 one below the other.
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
    /// With the place of an IPv4 address within a mapped one.
    fn new(prefix: Prefix) -> Self {
        let before = if prefix.address().is_ipv4() { 96 } else { 0 };
        let bits = u128::from_be_bytes(attach::key(prefix.address()));
        let is_v4 = matches!(prefix.address(), IpAddr::V4(_));
        Self { bits, length: before + prefix.length(), is_v4, number: 0 }
    }

    fn holds(&self, other: &Self) -> bool {
        self.length < other.length && (self.bits ^ other.bits) & high(self.length) == 0
    }

    /// Whether some of its addresses have `slot` as the `width` bits behind the first `used`.
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
    /// To the longest of `given` that an address can have, else to `default`, which holds them all. `None`: no room.
    fn step(&mut self, given: &[Given], default: u16) -> Option<u16> {
        let [first, rest @ ..] = given else { return Some(default) };
        let last = rest.last().unwrap_or(first);
        // Sorted, so the two that differ most are the outer ones, and one that holds all others is the first.
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

/// The mask of the first `length` of 128 bits.
fn high(length: u8) -> u128 {
    u128::MAX.checked_shl(128 - u32::from(length)).unwrap_or(0)
}

#[expect(clippy::cast_possible_truncation, reason = "both halves are wanted, one at a time")]
fn halves(bits: u128) -> [u64; 2] {
    [(bits >> 64) as u64, bits as u64]
}

/// A set, another that replaces it, and what both have in common, which has at most as many entries as both together.
const ENTRIES: usize = 4 * FILTER_PREFIXES;
const SLOTS: usize = 4_096;
const BRANCH: u16 = 1 << 15;
/// The value of no entry; `NO_PREFIX` in the program.
const NONE: u32 = 1 << 31;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_is_numbers_without_a_gap() {
        let parts = 2 * 4 + ENTRIES * 8 + SLOTS * 2 + ENTRIES * 40;
        assert_eq!((size_of::<Branch>(), size_of::<Entry>(), size_of::<Table>()), (8, 40, parts));
    }

    #[test]
    fn prefixes_of_any_shape_find_room() {
        let v6 = |bits: u128, length| Prefix::new(IpAddr::V6(bits.into()), length).unwrap();
        // Each beside the next, which lies deeper; each within the one before; and side by side.
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
