//! Longest match on one end of an address, for prefixes and suffixes alike.
//!
//! A tree that branches on many bits at once. Where entries part, a [`Branch`] leads on by about as many bits as tell them
//! apart, past bits that they share; a [`Compare`] tells the last few apart and looks at all bits that were passed. Entries
//! that end within a branch's bits stand in all slots that they hold, so a look-up never goes back. Entries at random cost a
//! branch and a compare, two cache lines, whatever their number and lengths; each entry that holds a crowd of others adds one.
//! Source: level and path compression: Nilsson, Karlsson, *IP-Address Lookup Using LC-Tries*, IEEE JSAC 17(6), 1999, §III;
//! entries that end within a branch: Srinivasan, Varghese, *Fast Address Lookups Using Controlled Prefix Expansion*, ACM
//! TOCS 17(1), 1999, §3.

use crate::prefix::high;

/// Entries in spaces that know nothing of each other. `LOW`: the last bits count, not the first.
#[derive(Debug)]
pub(super) struct Longest<const LOW: bool> {
    /// Where each space begins.
    roots: Box<[Step]>,
    branches: Box<[Branch]>,
    slots: Box<[Step]>,
    compares: Box<[Compare]>,
}

/// An end of an address that leads to `value`, which is below 2³⁰ - 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) space: u32,
    pub(super) bits: u128,
    /// How many bits count, of 128.
    pub(super) length: u8,
    pub(super) value: u32,
}

/// What a look-up does next: gives a value, or goes to a branch or a compare. The kind is in the upper two bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Step(u32);

/// `mask + 1` slots from `first` on, by the bits above `shift` in one half of the address.
#[derive(Clone, Copy, Debug)]
struct Branch {
    first: u32,
    mask: u32,
    half: Half,
    shift: u8,
}

/// Two to a cache line.
#[derive(Clone, Copy, Debug)]
#[repr(align(32))]
struct Compare {
    bits: u64,
    mask: u64,
    /// For addresses that have these bits, and for others.
    same: Step,
    other: Step,
    half: Half,
}

/// Of the 128 bits in the order in which they count: 0 has the first 64.
type Half = u8;

impl<const LOW: bool> Longest<LOW> {
    /// Of entries for the same bits the last one counts.
    ///
    /// # Cost
    /// `O(n log n)` time and, as long as entries lie within few others, `O(n)` memory: about 64 bytes an entry.
    pub(super) fn build(spaces: usize, mut entries: Vec<Entry>) -> Self {
        if LOW {
            entries.iter_mut().for_each(|entry| entry.bits = entry.bits.reverse_bits());
        }
        // Turned round before a stable sort: of equals the last one is first, and stays.
        entries.reverse();
        entries.sort_by_key(|entry| (entry.space, entry.bits, entry.length));
        entries.dedup_by_key(|entry| (entry.space, entry.bits, entry.length));
        let mut tree = Growing::<LOW>::default();
        let mut roots = vec![NONE; spaces];
        for of_space in entries.chunk_by(|a, b| a.space == b.space) {
            roots[of_space[0].space as usize] = tree.step(of_space, 0, NONE);
        }
        let (branches, slots, compares) = (tree.branches.into(), tree.slots.into(), tree.compares.into());
        Self { roots: roots.into(), branches, slots, compares }
    }

    /// What it takes of memory.
    #[cfg(test)]
    pub(super) fn bytes(&self) -> usize {
        size_of_val(&*self.slots) + size_of_val(&*self.branches) + size_of_val(&*self.compares)
    }

    /// The value of the longest entry of `space` whose bits `bits` has.
    #[inline]
    pub(super) fn find(&self, space: u32, bits: u128) -> Option<u32> {
        let halves = halves::<LOW>(bits);
        let mut step = *self.roots.get(space as usize)?;
        loop {
            let place = (step.0 & PLACE) as usize;
            step = match step.0 & KIND {
                COMPARE => {
                    let compare = self.compares.get(place)?;
                    let word = halves[usize::from(compare.half & 1)];
                    if (word ^ compare.bits) & compare.mask == 0 { compare.same } else { compare.other }
                }
                BRANCH => {
                    let branch = self.branches.get(place)?;
                    let word = halves[usize::from(branch.half & 1)] >> (branch.shift & 63);
                    #[expect(clippy::cast_possible_truncation, reason = "the mask has 32 bits")]
                    let slot = branch.first as usize + (word & u64::from(branch.mask)) as usize;
                    *self.slots.get(slot)?
                }
                _ => return (step != NONE).then_some(step.0),
            }
        }
    }
}

/// A tree under construction. Here the bits of entries that count are the first ones, also those of suffixes.
#[derive(Default)]
struct Growing<const LOW: bool> {
    branches: Vec<Branch>,
    slots: Vec<Step>,
    compares: Vec<Compare>,
}

impl<const LOW: bool> Growing<LOW> {
    /// To the longest of `entries`, else on to `default`, for addresses of which `known` bits were looked at.
    fn step(&mut self, entries: &[Entry], known: u8, default: Step) -> Step {
        let [first, rest @ ..] = entries else { return default };
        if entries.len() <= FEW {
            return self.one_by_one(entries, known, default);
        }
        let common = common(entries);
        // In the order of bits and lengths, an entry that holds all others is the first.
        if first.length == common {
            let inside = self.step(rest, common, Step(first.value));
            return self.compare(first.bits, (known, common), (inside, default));
        }
        self.branch(entries, (known, common), default)
    }

    /// The longest first.
    fn one_by_one(&mut self, entries: &[Entry], known: u8, default: Step) -> Step {
        let mut entries = entries.to_vec();
        entries.sort_by_key(|entry| entry.length);
        entries.iter().fold(default, |other, entry| {
            self.compare(entry.bits, (known, entry.length), (Step(entry.value), other))
        })
    }

    /// Leads addresses with the bits `from` to `to` of `bits` one way and all others the other way, a half at a time.
    fn compare(&mut self, bits: u128, (from, to): (u8, u8), (same, other): (Step, Step)) -> Step {
        if from >= to {
            return same;
        }
        let half = (to - 1) / 64;
        let start = from.max(half * 64);
        let [bits_here, mask] = [bits, u128::MAX].map(|all| {
            let all = all & high(to) & !high(start);
            halves::<LOW>(if LOW { all.reverse_bits() } else { all })[usize::from(half)]
        });
        self.compares.push(Compare { bits: bits_here, mask, same, other, half });
        let here = Step(COMPARE | (index(self.compares.len()) - 1));
        self.compare(bits, (from, start), (here, other))
    }

    /// From where `entries` part, behind the bits `used`.
    fn branch(&mut self, entries: &[Entry], (known, used): (u8, u8), default: Step) -> Step {
        let width = width(entries, used);
        let (end, slots) = (used + width, 1 << width);
        let steps = self.ends(entries, (known, used), width, default);
        let (number, first) = (self.branches.len(), self.slots.len());
        let shift = if LOW { used % 64 } else { 64 - (used % 64) - width };
        let (half, mask) = (used / 64, index(slots - 1));
        self.branches.push(Branch { first: index(first), mask, half, shift });
        self.slots.resize(first + slots, NONE);
        // What a slot says of the bits from `used` to `end` helps only if those before are known too.
        let known = if known == used { end } else { known };
        let longer: Vec<Entry> = entries.iter().copied().filter(|entry| entry.length > end).collect();
        let mut longer = longer.chunk_by(|a, b| front(a, used, width) == front(b, used, width)).peekable();
        for (slot, end) in steps.into_iter().enumerate() {
            let inside = longer.next_if(|inside| front(&inside[0], used, width) == slot);
            let step = inside.map_or(end, |inside| self.step(inside, known, end));
            let place = if LOW { slot.reverse_bits() >> (usize::BITS - u32::from(width)) } else { slot };
            self.slots[first + place] = step;
        }
        Step(BRANCH | index(number))
    }

    /// What each slot of a branch leads to if no entry is longer than the branch's bits.
    fn ends(&mut self, entries: &[Entry], (known, used): (u8, u8), width: u8, default: Step) -> Vec<Step> {
        let end = used + width;
        let mut steps = vec![default; 1 << width];
        let mut ending: Vec<&Entry> = entries.iter().filter(|entry| entry.length <= end).collect();
        ending.sort_by_key(|entry| entry.length);
        for entry in ending {
            let step = self.compare(entry.bits, (known, used), (Step(entry.value), default));
            let from = front(entry, used, width);
            steps[from..from + (1 << (end - entry.length))].fill(step);
        }
        steps
    }
}

/// How many of their first bits all share. No entry is shorter.
fn common(entries: &[Entry]) -> u8 {
    let [first, .., last] = entries else { return 0 };
    let shortest = entries.iter().map(|entry| entry.length).min().unwrap_or(0);
    // Sorted, so the two that differ most are the outer ones.
    u8::try_from((first.bits ^ last.bits).leading_zeros()).map_or(shortest, |same| same.min(shortest))
}

/// As many bits as give each entry some slots of its own, but no more than entries make use of. All in one half.
fn width(entries: &[Entry], used: u8) -> u8 {
    let bits = u8::try_from(entries.len().ilog2()).unwrap_or(u8::MAX).saturating_add(SPARE);
    let most = bits.min(64 - used % 64);
    let is_used = |width: &u8| {
        let fronts = entries.chunk_by(|a, b| front(a, used, *width) == front(b, used, *width));
        fronts.count() * SLOTS_A_FRONT >= 1 << *width
    };
    (1..=most).rev().find(is_used).unwrap_or(1)
}

/// The `width` bits behind the first `used`, above 0.
fn front(entry: &Entry, used: u8, width: u8) -> usize {
    usize::try_from(entry.bits << used >> (128 - width)).unwrap_or(usize::MAX)
}

/// In the order in which they count.
#[inline]
#[expect(clippy::cast_possible_truncation, reason = "both halves are wanted, one at a time")]
fn halves<const LOW: bool>(bits: u128) -> [u64; 2] {
    let (front, back) = ((bits >> 64) as u64, bits as u64);
    if LOW { [back, front] } else { [front, back] }
}

fn index(n: usize) -> u32 {
    u32::try_from(n).unwrap_or(u32::MAX)
}

const PLACE: u32 = (1 << 30) - 1;
const KIND: u32 = !PLACE;
const COMPARE: u32 = 1 << 30;
const BRANCH: u32 = 1 << 31;
/// No value.
const NONE: Step = Step(PLACE);
/// Entries that no branch tells apart.
const FEW: usize = 2;
/// A branch has this many bits more than there are entries, as long as one slot in so many is used.
const SPARE: u8 = 2;
const SLOTS_A_FRONT: usize = 8;
