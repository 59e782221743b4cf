//! A lookup table that finds the longest prefix that matches an address. The same structure finds
//! the longest matching suffix, which consists of the last bits of an address.
//!
//! The structure is a tree that branches on many bits at once. A [`Node`] first compares the bits
//! that follow the bits that its parent compared. The node then branches on about as many bits as
//! are needed to distinguish its entries. The child nodes of a branch are adjacent in memory, so
//! each step reads one cache line. An entry that ends within the bits of a branch is stored in all
//! child nodes that it covers, so a lookup never backtracks. Most lookups read two or three nodes.
//! [`Longest::start`] prefetches the second node of a lookup, which is not near the first node in
//! memory.
//!
//! See Nilsson and Karlsson, *IP-Address Lookup Using LC-Tries*, IEEE JSAC 17(6), 1999, §III, and
//! Srinivasan and Varghese, *Fast Address Lookups Using Controlled Prefix Expansion*, ACM TOCS
//! 17(1), 1999, §3.

use core::hint::select_unpredictable;
use core::ops::Range;

use conntrack::prefetch;

use crate::prefix::high;

/// A lookup table with independent sets of entries, which are called spaces. If `LOW` is `true`,
/// entries are suffixes and match the last bits of an address. Otherwise, entries are prefixes.
#[derive(Debug)]
pub(super) struct Longest<const LOW: bool> {
    /// The root node of each space.
    roots: Box<[Node]>,
    nodes: Box<[Node]>,
}

/// A prefix or suffix, and the value that a lookup returns if it matches. The value must be below
/// 2³¹ - 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) space: u32,
    pub(super) bits: u128,
    /// The number of significant bits, at most 128.
    pub(super) length: u8,
    pub(super) value: u32,
}

/// The state of a lookup: the index of the next node or, if the highest bit is set, the value that
/// was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Step(u32);

/// A tree node, which fills half a cache line. The builder ensures that `half`, `slot_half` and
/// `shift` are valid. The masks in [`Node::step`] only allow the compiler to omit bounds checks.
#[derive(Clone, Copy, Debug)]
#[repr(align(32))]
struct Node {
    bits: u64,
    mask: u64,
    /// The step for addresses whose bits match: a value, or the index of the first child node of
    /// `slots + 1`.
    same: Step,
    /// The step for addresses whose bits do not match.
    other: Step,
    /// The mask of the bits that select the child node, applied after the address word is shifted
    /// right by `shift`.
    slots: u32,
    half: Half,
    slot_half: Half,
    shift: u8,
}

/// The index of a 64-bit word in an address: 0 or 1. The first word has index 0.
type Half = u8;

/// An address as two 64-bit words.
pub(super) type Halves = [u64; 2];

impl<const LOW: bool> Longest<LOW> {
    /// Builds the tree. If several entries have the same bits, the last entry is used.
    ///
    /// # Cost
    /// Building takes `O(n log n)` time. The tree takes `O(n)` memory, about 64 bytes per entry, if
    /// few entries contain other entries.
    pub(super) fn build(spaces: usize, mut entries: Vec<Entry>) -> Self {
        if LOW {
            entries.iter_mut().for_each(|entry| entry.bits = entry.bits.reverse_bits());
        }
        // The entries are reversed and then sorted stably, so that the last of several identical
        // entries comes first and is kept.
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

    /// Returns the size of the tree in bytes.
    #[cfg(test)]
    pub(super) fn bytes(&self) -> usize {
        size_of_val(&*self.roots) + size_of_val(&*self.nodes)
    }

    /// Returns the value of the longest entry of `space` that matches `address`.
    #[inline]
    pub(super) fn find(&self, space: u32, address: &Halves) -> Option<u32> {
        let root = self.roots.get(space as usize)?;
        self.finish(root.step(address), address).value()
    }

    /// Performs the first step of a lookup and prefetches the node for the second step.
    #[inline]
    pub(super) fn start(&self, space: u32, address: &Halves) -> Step {
        let Some(root) = self.roots.get(space as usize) else { return Step::NONE };
        let step = root.step(address);
        if let Some(node) = self.nodes.get(step.0 as usize) {
            prefetch(node);
        }
        step
    }

    /// Performs one step of a lookup. The state of a finished lookup does not change.
    #[inline]
    pub(super) fn next(&self, step: Step, address: &Halves) -> Step {
        // A state that is a value is never a valid node index.
        self.nodes.get(step.0 as usize).map_or(step, |node| node.step(address))
    }

    /// Performs all remaining steps of a lookup.
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

    /// Returns the state of a finished lookup that found `value`.
    const fn at(value: u32) -> Self {
        Self(VALUE | value)
    }

    /// Returns `true` if the lookup needs another step.
    #[inline]
    pub(super) const fn is_open(self) -> bool {
        self.0 & VALUE == 0
    }

    /// Returns the value that a finished lookup found.
    #[inline]
    pub(super) fn value(self) -> Option<u32> {
        (self != Self::NONE).then_some(self.0 & !VALUE)
    }
}

impl Node {
    /// Returns a node from which all lookups continue at `step`.
    const fn to(step: Step) -> Self {
        Self { bits: 0, mask: 0, same: step, other: step, slots: 0, half: 0, slot_half: 0, shift: 0 }
    }

    #[inline]
    #[expect(clippy::cast_possible_truncation, reason = "the mask has 32 bits")]
    fn step(&self, address: &Halves) -> Step {
        let slot = (address[usize::from(self.slot_half & 1)] >> (self.shift & 63)) as u32 & self.slots;
        let is_same = (address[usize::from(self.half & 1)] ^ self.bits) & self.mask == 0;
        // If the step is a value, `slots` is 0, so the addition does not change the value.
        select_unpredictable(is_same, Step(self.same.0.wrapping_add(slot)), self.other)
    }
}

/// A tree under construction. The bits of suffixes are reversed here. As a result, the significant
/// bits always come first.
#[derive(Default)]
struct Growing<const LOW: bool> {
    nodes: Vec<Node>,
}

impl<const LOW: bool> Growing<LOW> {
    /// Returns a node that finds the longest matching entry among `entries`, or goes to `default`
    /// if no entry matches. The first `known` bits of the address have already been compared.
    fn node(&mut self, entries: &[Entry], known: u8, default: Step) -> Node {
        let [first, rest @ ..] = entries else { return Node::to(default) };
        if entries.len() <= FEW {
            return self.one_by_one(entries, known, default);
        }
        let common = common(entries);
        // Entries are sorted by bits and length, so an entry that contains all others comes first.
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

    /// Returns a chain of nodes that compare the entries one after another, the longest entry
    /// first.
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

    /// Returns a node that compares an address with `bits`. The lookup continues at the target of
    /// `node` if the bits match, and at `other` if they differ. A second node is added if the
    /// compared bits extend over both words of the address.
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

    /// Returns a node that branches on the bits after the first `used` bits.
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

    /// Returns the index of the `nth` word, counted from the most significant bits.
    const fn half(nth: u8) -> Half {
        if LOW { 1 - nth } else { nth }
    }
}

/// Returns the step for each child node of a branch. Only entries that end within the bits of the
/// branch are considered.
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

/// Returns the number of leading bits that all entries share. The result is at most the length of
/// the shortest entry.
fn common(entries: &[Entry]) -> u8 {
    let [first, .., last] = entries else { return 0 };
    let shortest = entries.iter().map(|entry| entry.length).min().unwrap_or(0);
    // The entries are sorted, so all entries share the bits that the first and the last entry
    // share.
    u8::try_from((first.bits ^ last.bits).leading_zeros()).map_or(shortest, |same| same.min(shortest))
}

/// Returns the width of a branch in bits, which is at least 1. The branch is as wide as possible
/// while at least one in [`SLOTS_A_FRONT`] child nodes has entries and all bits are in one word.
fn width(entries: &[Entry], used: u8) -> u8 {
    let bits = u8::try_from(entries.len().ilog2()).unwrap_or(u8::MAX).saturating_add(SPARE);
    let most = bits.min(64 - used % 64);
    let is_used = |width: &u8| {
        let fronts = entries.chunk_by(|a, b| front(a, used, *width) == front(b, used, *width));
        fronts.count() * SLOTS_A_FRONT >= 1 << *width
    };
    (1..=most).rev().find(is_used).unwrap_or(1)
}

/// Returns the `width` bits after the first `used` bits. `width` must be above 0.
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

/// The bit that marks a lookup state as a value instead of a node index.
const VALUE: u32 = 1 << 31;
/// The maximum number of entries that are compared one after another instead of by a branch.
const FEW: usize = 2;
/// The maximum number of additional bits that a branch may use, beyond the number that its entry
/// count requires.
const SPARE: u8 = 1;
const SLOTS_A_FRONT: usize = 4;
