//! Computes the order in which backends take slots. The order depends on the weights of the
//! backends.
//!
//! Backends with the same weight form a class. The backends of a class take their turns together,
//! ordered by rank. Round `k` of a class with weight `w` is at time `(k + 1/2) / w`, so the weight
//! of one backend does not shift the times of the others. If two rounds have the same time, the
//! round of the heavier class comes first. The number of slots per backend is computed beforehand
//! with the largest remainder method, so that it is exact to within one slot for any weights. A
//! class that has all its slots takes no further turns. If all weights are the same, there is one
//! class, and the order is the same as in pseudocode 1 in the paper.
//!
//! Invariant: the lengths of all runs add up to the size.

use alloc::collections::{BinaryHeap, binary_heap::PeekMut};
use alloc::vec::Vec;
use core::cmp::{Ordering, Reverse};
use core::ops::Range;

/// The backends that have the same weight.
struct Class {
    weight: u32,
    seats: Range<usize>,
    /// The number of slots that each backend of the class gets.
    rounds: u32,
    /// The number of backends that get one additional slot. The first backends of the class get
    /// these slots.
    extra: usize,
}

/// The next round of a class.
#[derive(PartialEq, Eq)]
struct Event {
    /// The value `2 k + 1` for round `k`. The quotient `odd / 2w` is the time `(k + 1/2) / w` of
    /// the round.
    odd: u64,
    weight: u64,
    class: usize,
    last: u64,
}

impl Ord for Event {
    fn cmp(&self, other: &Self) -> Ordering {
        // The comparison of fractions is exact, because odd < 2^26 and weight < 2^32.
        let times = (self.odd * other.weight).cmp(&(other.odd * self.weight));
        times.then(self.class.cmp(&other.class))
    }
}

impl PartialOrd for Event {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// An iterator over the runs, in the order in which the backends take their slots. A run is a range
/// of seats, which are positions in the list of backends. The backend on each seat of the run takes
/// one slot of the table.
pub(crate) struct Turns {
    classes: Vec<Class>,
    due: BinaryHeap<Reverse<Event>>,
}

impl Turns {
    /// Returns the turns that fill `size` slots, and the rank of the backend on each seat. At least
    /// one weight must be above 0.
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

/// Computes how many slots each class gets, by the largest remainder method. Each share is rounded
/// down, and the remaining slots go to the classes with the largest remainders.
///
/// The products cannot overflow: with at most 2^24 backends, at most 2^24 slots and weights below
/// 2^32, they stay below 2^57.
fn apportion(classes: &mut [Class], size: u32) {
    let total: u64 = classes.iter().map(|class| u64::from(class.weight) * class.seats.len() as u64).sum();
    let exact = |class: &Class| u64::from(size) * u64::from(class.weight);
    let mut left = size as usize;
    for class in classes.iter_mut() {
        #[expect(
            clippy::cast_possible_truncation,
            reason = "the quotient is at most `size`, because `weight` is at most `total`"
        )]
        let rounds = (exact(class) / total) as u32;
        class.rounds = rounds;
        left -= rounds as usize * class.seats.len();
    }
    let mut order: Vec<usize> = (0..classes.len()).collect();
    // `classes` is ordered by weight and the sort is stable. If two classes have the same
    // remainder, the heavier class therefore comes first.
    order.sort_by_key(|&class| Reverse(exact(&classes[class]) % total));
    for class in order {
        let extra = left.min(classes[class].seats.len());
        classes[class].extra = extra;
        left -= extra;
    }
}
