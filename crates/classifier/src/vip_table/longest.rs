//! Longest match on one end of an address, for prefixes and suffixes alike.
//!
//! A tree that branches on many bits at once. A [`Node`] compares the bits that were passed and, where entries part, leads on
//! by about as many bits as distinguish them; the nodes of a branch stand side by side, so that a step is one cache line.
//! Entries that end within a branch's bits stand in all of its nodes that they hold, so a look-up never goes back. Entries at
//! random cost the root and another node, and a third for one in three, whatever their number and lengths; each entry that
//! holds a crowd of others adds one. A step has no branch to predict, and its only load that may be far away can be asked for
//! ahead ([`Longest::start`]).
//! Source: level and path compression: Nilsson, Karlsson, *IP-Address Lookup Using LC-Tries*, IEEE JSAC 17(6), 1999, §III;
//! entries that end within a branch: Srinivasan, Varghese, *Fast Address Lookups Using Controlled Prefix Expansion*, ACM
//! TOCS 17(1), 1999, §3.

use core::hint::select_unpredictable;
use core::ops::Range;

use conntrack::prefetch;

use crate::prefix::high;

/// Entries in spaces that know nothing of each other. `LOW`: the last bits count, not the first.
#[derive(Debug)]
pub(super) struct Longest<const LOW: bool> {
    /// Where each space begins.
    roots: Box<[Node]>,
    nodes: Box<[Node]>,
}

/// An end of an address that leads to `value`, which is below 2³¹ - 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) space: u32,
    pub(super) bits: u128,
    /// How many bits count, of 128.
    pub(super) length: u8,
    pub(super) value: u32,
}

/// How far a look-up has come: the number of the node that is next, or a value with the first bit set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Step(u32);

/// Two to a cache line. The half of an address and the bits to skip come from the builder; their masks say so to the compiler.
#[derive(Clone, Copy, Debug)]
#[repr(align(32))]
struct Node {
    bits: u64,
    mask: u64,
    /// For addresses that have the bits: a value, or the first of `slots + 1` nodes; and for others.
    same: Step,
    other: Step,
    /// A mask of the bits that distinguish those nodes, which stand above `shift`.
    slots: u32,
    half: Half,
    slot_half: Half,
    shift: u8,
}

/// 0 is the first 64 bits of an address.
type Half = u8;

/// An address as nodes look at it.
pub(super) type Halves = [u64; 2];

impl<const LOW: bool> Longest<LOW> {
    /// Of entries for the same bits the last one counts.
    ///
    /// # Cost
    /// `O(n log n)` time and, as long as entries lie within few others, `O(n)` memory: about 64 bytes an entry.
    pub(super) fn build(spaces: usize, mut entries: Vec<Entry>) -> Self {
        if LOW {
            entries.iter_mut().for_each(|entry| entry.bits = entry.bits.reverse_bits());
        }
        // Turned round before a stable sort: of equals the last one is first, and is kept.
        entries.reverse();
        entries.sort_by_key(|entry| (entry.space, entry.bits, entry.length));
        entries.dedup_by_key(|entry| (entry.space, entry.bits, entry.length));
        let mut tree = Growing::<LOW>::default();
        let mut roots = vec![Node::to(Step::NONE); spaces];
        for of_space in entries.chunk_by(|a, b| a.space == b.space) {
            roots[of_space[0].space as usize] = tree.node(of_space, 0, Step::NONE);
        }
        Self { roots: roots.into(), nodes: tree.nodes.into() }
    }

    /// What it takes of memory.
    #[cfg(test)]
    pub(super) fn bytes(&self) -> usize {
        size_of_val(&*self.roots) + size_of_val(&*self.nodes)
    }

    /// The value of the longest entry of `space` whose bits `address` has.
    #[inline]
    pub(super) fn find(&self, space: u32, address: &Halves) -> Option<u32> {
        let root = self.roots.get(space as usize)?;
        self.finish(root.step(address), address).value()
    }

    /// The first step, which also asks for the memory of the second.
    #[inline]
    pub(super) fn start(&self, space: u32, address: &Halves) -> Step {
        let Some(root) = self.roots.get(space as usize) else { return Step::NONE };
        let step = root.step(address);
        if let Some(node) = self.nodes.get(step.0 as usize) {
            prefetch(node);
        }
        step
    }

    /// The next step; that of a value is itself.
    #[inline]
    pub(super) fn next(&self, step: Step, address: &Halves) -> Step {
        // No node has the number of a value.
        self.nodes.get(step.0 as usize).map_or(step, |node| node.step(address))
    }

    /// All further steps.
    #[inline]
    pub(super) fn finish(&self, mut step: Step, address: &Halves) -> Step {
        while step.is_open() {
            step = self.next(step, address);
        }
        step
    }
}

impl Step {
    pub(super) const NONE: Self = Self(u32::MAX);

    /// That an entry was found.
    const fn at(value: u32) -> Self {
        Self(VALUE | value)
    }

    /// Whether there is another step.
    #[inline]
    pub(super) const fn is_open(self) -> bool {
        self.0 & VALUE == 0
    }

    /// What was found at the end.
    #[inline]
    pub(super) fn value(self) -> Option<u32> {
        (self != Self::NONE).then_some(self.0 & !VALUE)
    }
}

impl Node {
    /// For all addresses.
    const fn to(step: Step) -> Self {
        Self { bits: 0, mask: 0, same: step, other: step, slots: 0, half: 0, slot_half: 0, shift: 0 }
    }

    #[inline]
    #[expect(clippy::cast_possible_truncation, reason = "the mask has 32 bits")]
    fn step(&self, address: &Halves) -> Step {
        let slot = (address[usize::from(self.slot_half & 1)] >> (self.shift & 63)) as u32 & self.slots;
        let is_same = (address[usize::from(self.half & 1)] ^ self.bits) & self.mask == 0;
        // A value has no slots, so nothing is added to it.
        select_unpredictable(is_same, Step(self.same.0.wrapping_add(slot)), self.other)
    }
}

/// A tree under construction. Here the bits of entries that count are the first ones, also those of suffixes.
#[derive(Default)]
struct Growing<const LOW: bool> {
    nodes: Vec<Node>,
}

impl<const LOW: bool> Growing<LOW> {
    /// To the longest of `entries`, else on to `default`, for addresses whose first `known` bits are those of the entries.
    fn node(&mut self, entries: &[Entry], known: u8, default: Step) -> Node {
        let [first, rest @ ..] = entries else { return Node::to(default) };
        if entries.len() <= FEW {
            return self.one_by_one(entries, known, default);
        }
        let common = common(entries);
        // In the order of bits and lengths, an entry that holds all others is the first.
        if first.length == common {
            let inside = self.node(rest, common, Step::at(first.value));
            let inside = if known == common { return inside } else { self.push(inside) };
            return self.compare(first.bits, known..common, Node::to(inside), default);
        }
        let branch = self.branch(entries, common, default);
        self.compare(first.bits, known..common, branch, default)
    }

    fn push(&mut self, node: Node) -> Step {
        self.nodes.push(node);
        Step(index(self.nodes.len()) - 1)
    }

    /// The longest first.
    fn one_by_one(&mut self, entries: &[Entry], known: u8, default: Step) -> Node {
        let mut entries = entries.to_vec();
        entries.sort_by_key(|entry| entry.length);
        let mut node = Node::to(default);
        for (number, entry) in entries.iter().enumerate() {
            let other = if number == 0 { default } else { self.push(node) };
            node = self.compare(entry.bits, known..entry.length, Node::to(Step::at(entry.value)), other);
        }
        node
    }

    /// Leads addresses with these of `bits` where `node` does, and all others to `other`, a half at a time.
    fn compare(&mut self, bits: u128, compared: Range<u8>, node: Node, other: Step) -> Node {
        if compared.is_empty() {
            return node;
        }
        let Range { start: from, end: to } = compared;
        let half = (to - 1) / 64;
        let start = from.max(half * 64);
        let [bits_here, mask] = [bits, u128::MAX].map(|all| {
            let all = all & high(to) & !high(start);
            halves(if LOW { all.reverse_bits() } else { all })[usize::from(Self::half(half))]
        });
        let node = Node { bits: bits_here, mask, other, half: Self::half(half), ..node };
        if start == from {
            return node;
        }
        let here = self.push(node);
        self.compare(bits, from..start, Node::to(here), other)
    }

    /// From where `entries` part, behind the bits `used`.
    fn branch(&mut self, entries: &[Entry], used: u8, default: Step) -> Node {
        let width = width(entries, used);
        let (end, slots) = (used + width, 1 << width);
        let steps = ends(entries, used, width, default);
        let first = self.nodes.len();
        self.nodes.resize(first + slots, Node::to(Step::NONE));
        let longer: Vec<Entry> = entries.iter().copied().filter(|entry| entry.length > end).collect();
        let mut longer = longer.chunk_by(|a, b| front(a, used, width) == front(b, used, width)).peekable();
        for (slot, step) in steps.into_iter().enumerate() {
            let inside = longer.next_if(|inside| front(&inside[0], used, width) == slot);
            let place = if LOW { slot.reverse_bits() >> (usize::BITS - u32::from(width)) } else { slot };
            self.nodes[first + place] = self.node(inside.unwrap_or_default(), end, step);
        }
        let shift = if LOW { used % 64 } else { 64 - (used % 64) - width };
        let (slots, slot_half) = (index(slots - 1), Self::half(used / 64));
        Node { slots, slot_half, shift, ..Node::to(Step(index(first))) }
    }

    /// The place of the `nth` half in which bits count.
    const fn half(nth: u8) -> Half {
        if LOW { 1 - nth } else { nth }
    }
}

/// What each slot of a branch leads to if no entry is longer than the branch's bits.
fn ends(entries: &[Entry], used: u8, width: u8, default: Step) -> Vec<Step> {
    let end = used + width;
    let mut steps = vec![default; 1 << width];
    let mut ending: Vec<&Entry> = entries.iter().filter(|entry| entry.length <= end).collect();
    ending.sort_by_key(|entry| entry.length);
    for entry in ending {
        let from = front(entry, used, width);
        steps[from..from + (1 << (end - entry.length))].fill(Step::at(entry.value));
    }
    steps
}

/// How many of their first bits all share. No entry is shorter.
fn common(entries: &[Entry]) -> u8 {
    let [first, .., last] = entries else { return 0 };
    let shortest = entries.iter().map(|entry| entry.length).min().unwrap_or(0);
    // Sorted, so the two that differ most are the outer ones.
    u8::try_from((first.bits ^ last.bits).leading_zeros()).map_or(shortest, |same| same.min(shortest))
}

/// As many bits as give each entry a slot of its own, but no more than entries make use of. All in one half.
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

#[inline]
#[expect(clippy::cast_possible_truncation, reason = "both halves are wanted, one at a time")]
pub(super) fn halves(bits: u128) -> Halves {
    [(bits >> 64) as u64, bits as u64]
}

fn index(n: usize) -> u32 {
    u32::try_from(n).unwrap_or(u32::MAX)
}

/// In a step: a value, not a node.
const VALUE: u32 = 1 << 31;
/// Entries that no branch distinguishes.
const FEW: usize = 2;
/// A branch has this many bits more than there are entries, as long as one slot in so many is used.
const SPARE: u8 = 1;
const SLOTS_A_FRONT: usize = 4;
