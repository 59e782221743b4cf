//! A queue of array indexes in insertion order. Every operation takes constant time, even the
//! removal of an index from the middle.
//!
//! Invariant: an index is added only if it is not in the queue, and removed only if it is in the
//! queue.

use crate::{NONE, filled};

/// A queue from which any index can be removed.
#[derive(Debug)]
pub(crate) struct InsertionOrder {
    links: Box<[Links]>,
    ends: Links, // `after` is the oldest index and `before` the newest.
    pub(crate) len: usize,
}

#[derive(Clone, Copy, Debug)]
struct Links {
    before: u32,
    after: u32,
}

impl InsertionOrder {
    /// Creates an empty queue for indexes below `capacity`. Returns `None` if the allocation fails.
    pub(crate) fn new(capacity: usize) -> Option<Self> {
        Some(Self { links: filled(capacity, Links::NONE)?, ends: Links::NONE, len: 0 })
    }

    pub(crate) fn bytes(capacity: usize) -> usize {
        capacity * size_of::<Links>()
    }

    pub(crate) fn oldest(&self) -> Option<u32> {
        Some(self.ends.after).filter(|&place| place != NONE)
    }

    pub(crate) fn add(&mut self, place: u32) {
        let newest = core::mem::replace(&mut self.ends.before, place);
        self.at(newest).after = place;
        self.links[place as usize] = Links { before: newest, after: NONE };
        self.len += 1;
    }

    pub(crate) fn remove(&mut self, place: u32) {
        let Links { before, after } = self.links[place as usize];
        self.at(before).after = after;
        self.at(after).before = before;
        self.len -= 1;
    }

    fn at(&mut self, place: u32) -> &mut Links {
        if place == NONE { &mut self.ends } else { &mut self.links[place as usize] }
    }
}

impl Links {
    const NONE: Self = Self { before: NONE, after: NONE };
}
