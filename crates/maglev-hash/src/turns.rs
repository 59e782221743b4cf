//! Whose turn is it: weights, as frequencies of turns.
//!
//! In: weights by rank, a size. Out: runs of seats ([`Turns`]), and which rank sits on which seat.
//! Backends of one weight form a class and take their turns together, by rank. A class of weight `w` has its round `k`
//! at time `(k + 1/2) / w`, so one backend's weight does not shift the times of the others; at equal times the heavier
//! class goes first. A share is fixed beforehand by largest remainder, so it is exact to one slot at any weights,
//! and a class that has its share takes no more turns. Equal weights are one class: the paper's pseudocode 1.
//! Invariant: the runs add up to the size.

use alloc::collections::{BinaryHeap, binary_heap::PeekMut};
use alloc::vec::Vec;
use core::cmp::{Ordering, Reverse};
use core::ops::Range;

/// The backends of one weight.
struct Class {
    weight: u32,
    seats: Range<usize>,
    /// Slots that each of them gets.
    rounds: u32,
    /// How many of them, from the first, get one more.
    extra: usize,
}

/// A class and its next round.
#[derive(PartialEq, Eq)]
struct Event {
    /// `2 k + 1` for round `k`: twice the time, times the weight.
    odd: u64,
    weight: u64,
    class: usize,
    last: u64,
}

impl Ord for Event {
    fn cmp(&self, other: &Self) -> Ordering {
        // Fractions compared exactly: odd < 2^26 and weight < 2^32.
        let times = (self.odd * other.weight).cmp(&(other.odd * self.weight));
        times.then(self.class.cmp(&other.class))
    }
}

impl PartialOrd for Event {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// The order of turns: an iterator over runs of seats, each of which takes one slot.
pub(crate) struct Turns {
    classes: Vec<Class>,
    due: BinaryHeap<Reverse<Event>>,
}

impl Turns {
    /// The turns for `size` slots, and the rank on each seat. At least one weight is above 0.
    pub(crate) fn new(weights: impl Iterator<Item = u32>, size: u32) -> (Self, Vec<usize>) {
        let mut ranks: Vec<(u32, usize)> = weights
            .enumerate()
            .filter(|&(_, weight)| weight > 0)
            .map(|(rank, weight)| (weight, rank))
            .collect();
        ranks.sort_unstable_by_key(|&(weight, rank)| (Reverse(weight), rank));
        let mut classes = Vec::new();
        for members in ranks.chunk_by(|a, b| a.0 == b.0) {
            let first = classes.last().map_or(0, |class: &Class| class.seats.end);
            let seats = first..first + members.len();
            classes.push(Class { weight: members[0].0, seats, rounds: 0, extra: 0 });
        }
        apportion(&mut classes, size);
        let due = classes
            .iter()
            .enumerate()
            .filter_map(|(class, this)| first_event(class, this))
            .map(Reverse)
            .collect();
        (Self { classes, due }, ranks.into_iter().map(|(_, rank)| rank).collect())
    }
}

impl Iterator for Turns {
    type Item = Range<usize>;

    fn next(&mut self) -> Option<Range<usize>> {
        let mut soonest = self.due.peek_mut()?;
        let Event { odd, class, last, .. } = soonest.0;
        if odd == last {
            PeekMut::pop(soonest);
        } else {
            soonest.0.odd = odd + 2;
        }
        let Class { seats, rounds, extra, .. } = &self.classes[class];
        let members = if odd / 2 == u64::from(*rounds) { *extra } else { seats.len() };
        Some(seats.start..seats.start + members)
    }
}

fn first_event(class: usize, this: &Class) -> Option<Event> {
    let rounds = u64::from(this.rounds) + u64::from(this.extra > 0);
    (rounds > 0).then(|| Event { odd: 1, weight: u64::from(this.weight), class, last: 2 * rounds - 1 })
}

/// Shares by largest remainder: each rounded down, then one slot more in the order of what was cut off.
///
/// Nothing overflows: with at most 2^24 backends and slots and weights below 2^32 all products stay below 2^57.
fn apportion(classes: &mut [Class], size: u32) {
    let total: u64 = classes.iter().map(|class| u64::from(class.weight) * class.seats.len() as u64).sum();
    let exact = |class: &Class| u64::from(size) * u64::from(class.weight);
    let mut left = size as usize;
    for class in classes.iter_mut() {
        #[expect(
            clippy::cast_possible_truncation,
            reason = "at most size, as the weight is at most the total"
        )]
        let rounds = (exact(class) / total) as u32;
        class.rounds = rounds;
        left -= rounds as usize * class.seats.len();
    }
    let mut order: Vec<usize> = (0..classes.len()).collect();
    order.sort_by_key(|&class| Reverse(exact(&classes[class]) % total)); // stable: heavier first among equals
    for class in order {
        let extra = left.min(classes[class].seats.len());
        classes[class].extra = extra;
        left -= extra;
    }
}
