//! The lookup table for VIP prefixes. The table is a tree, stored as one value of an array map.
//! Each branch of the tree selects a subtree by a few address bits. `is_in_prefix` in `bpf/whose.h`
//! performs the lookup.

use std::collections::BTreeSet;
use std::net::IpAddr;

use forwarder::{FILTER_PREFIXES, Prefix};

use crate::attach;

/// The lookup table, with the layout of `struct prefix_table` in `bpf/whose.h`. A lookup step is
/// the index of an entry or, with the flag [`BRANCH`], the index of a branch.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Table {
    /// The first lookup step for an IPv6 address, and the first lookup step for an IPv4 address.
    roots: [u32; 2],
    branches: [Branch; ENTRIES],
    slots: [u16; SLOTS],
    /// The prefixes. No prefix has the number 0, which stands for "no prefix".
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
    pub(super) fn new(prefixes: &BTreeSet<Prefix>) -> Option<Box<Self>> {
        // In the sort order, a prefix comes before the prefixes that it contains.
        let mut outer: Vec<Prefix> = Vec::new();
        for prefix in prefixes {
            if !outer.last().is_some_and(|last| last.covers(prefix)) {
                outer.push(*prefix);
            }
        }
        // Branches of up to 8 bits make lookups faster. The table still has room for any set of
        // `FILTER_PREFIXES` prefixes, because the branches at one level need fewer than four slots
        // for each prefix. At most 22 branches are nested, because a branch with at least 32
        // prefixes uses six bits. If the table is still too small, it is built with branches of up
        // to 4 bits. Any set of prefixes then fits, with 16 slots for each branch and fewer than 40
        // nested branches.
        [8, 4].into_iter().find_map(|widest| Self::build(&outer, widest))
    }

    fn build(prefixes: &[Prefix], widest: u8) -> Option<Box<Self>> {
        let mut table = Box::new(Self {
            roots: [0; 2],
            branches: [Branch::default(); ENTRIES],
            slots: [0; SLOTS],
            entries: [Entry::default(); ENTRIES],
        });
        let mut given: Vec<Given> = prefixes.iter().map(|prefix| Given::new(*prefix)).collect();
        given.sort_by_key(|given| (given.is_v4, given.bits, given.length));
        for (number, given) in (1..).zip(&mut given) {
            given.number = number;
        }
        for given in &given {
            let (bits, mask) = (halves(given.bits), halves(high(given.length)));
            *table.entries.get_mut(usize::from(given.number))? = Entry { bits, mask };
        }
        let mut tree = Growing { table, branches: 0, slots: 0, widest };
        for is_v4 in [false, true] {
            let family: Vec<Given> = given.iter().copied().filter(|given| given.is_v4 == is_v4).collect();
            tree.table.roots[usize::from(is_v4)] = tree.step(&family)?.into();
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
    /// Builds the subtree for the `given` prefixes, none of which contains another one. Returns its
    /// lookup step, or `None` if the table is full.
    fn step(&mut self, given: &[Given]) -> Option<u16> {
        let [first, .., last] = given else { return Some(given.first().map_or(0, |only| only.number)) };
        // The prefixes are sorted. The earliest bit in which any two prefixes differ is therefore
        // also the first bit in which the first and the last prefix differ.
        let common = u8::try_from((first.bits ^ last.bits).leading_zeros()).unwrap_or(u8::MAX);
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
            let step = self.step(&inside)?;
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
pub(super) fn halves(bits: u128) -> [u64; 2] {
    [(bits >> 64) as u64, bits as u64]
}

/// The number of entries. The table has room for an old set of prefixes, a new set, and the
/// overlaps between the two sets. There are at most as many overlaps as prefixes in both sets.
const ENTRIES: usize = 4 * FILTER_PREFIXES;
const SLOTS: usize = 4_096;
const BRANCH: u16 = 1 << 15;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table_consists_of_integers_without_padding() {
        let parts = 2 * 4 + ENTRIES * 8 + SLOTS * 2 + ENTRIES * 32;
        assert_eq!((size_of::<Branch>(), size_of::<Entry>(), size_of::<Table>()), (8, 32, parts));
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
            let of = |shape: &[Prefix]| shape.iter().copied().collect();
            assert!(Table::new(&of(&shape)).is_some());
        }
        let many: BTreeSet<Prefix> = (0..256).map(|n| v6(n << 20, 128)).collect();
        assert!(Table::new(&many).is_none());
    }
}
