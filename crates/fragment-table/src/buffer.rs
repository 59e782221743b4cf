//! Which hold slots are taken, by which datagram, and which are queued for release.
//!
//! In: pieces to keep, datagrams whose wait is over. Out: numbers below the buffer's size.
//! Not here: the frames, whose pieces they are (`table`), how many a source may have (`sources`).
//! Invariant: a slot is free, in one datagram's list, or queued. Popped from the queue, it is free.

use crate::{NONE, filled};

/// The number of a place for one held frame, below [`crate::Config::buffered`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct HoldSlot(pub u32);

/// Why a frame is held no longer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate<D> {
    /// The first fragment came: do with this frame as was decided for it.
    Forward(D),
    /// The first fragment did not come in time: drop this frame, by name.
    Expired,
}

#[derive(Debug)]
pub(crate) struct Buffer<D> {
    pieces: Box<[Piece<D>]>,
    free: u32,
    pub(crate) queue: List,
    pub(crate) taken: usize, // kept or queued
}

/// A hold slot: free, kept or queued.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Piece<D> {
    next: u32,
    source: u32,   // its place in `Sources`
    fate: Fate<D>, // in the queue; before that it stands for nothing
}

/// Slots of one datagram, or of the queue, the oldest first.
#[derive(Clone, Copy, Debug)]
pub(crate) struct List {
    head: u32,
    tail: u32,
    pub(crate) len: usize,
}

impl<D: Copy> Buffer<D> {
    /// `slots` free ones, the lowest of which is taken first; `None` without the memory.
    pub(crate) fn new(slots: usize) -> Option<Self> {
        let mut pieces = filled(slots, Piece { next: NONE, source: NONE, fate: Fate::Expired })?;
        for (piece, after) in pieces.iter_mut().zip(1u32..).take(slots.saturating_sub(1)) {
            piece.next = after;
        }
        Some(Self { pieces, free: 0, queue: List::EMPTY, taken: 0 })
    }

    pub(crate) fn bytes(slots: usize) -> usize {
        slots * size_of::<Piece<D>>()
    }

    pub(crate) fn is_full(&self) -> bool {
        self.taken == self.pieces.len()
    }

    /// Takes a free slot for a piece and appends it to its datagram's list.
    ///
    /// # Panics
    /// When it is full.
    pub(crate) fn keep(&mut self, list: &mut List, source: u32) -> HoldSlot {
        let slot = self.free;
        self.free = self.pieces[slot as usize].next;
        self.pieces[slot as usize].source = source;
        self.taken += 1;
        self.append(list, slot);
        HoldSlot(slot)
    }

    /// Queues all pieces of a datagram.
    ///
    /// # Cost
    /// One step for each: the datagram may be gone before they are popped, so each takes its fate along.
    pub(crate) fn queue(&mut self, list: List, fate: Fate<D>) {
        let (mut slot, mut queue) = (list.head, self.queue);
        while slot != NONE {
            let after = self.pieces[slot as usize].next;
            self.pieces[slot as usize].fate = fate;
            self.append(&mut queue, slot);
            slot = after;
        }
        self.queue = queue;
    }

    /// Frees the slot that was queued first; with its place in `Sources` and its fate.
    pub(crate) fn pop(&mut self) -> Option<(HoldSlot, u32, Fate<D>)> {
        let slot = Some(self.queue.head).filter(|&slot| slot != NONE)?;
        let piece = &mut self.pieces[slot as usize];
        let (source, fate) = (piece.source, piece.fate);
        let after = core::mem::replace(&mut piece.next, self.free);
        self.queue = if after == NONE {
            List::EMPTY
        } else {
            List { head: after, len: self.queue.len - 1, ..self.queue }
        };
        self.free = slot;
        self.taken -= 1;
        Some((HoldSlot(slot), source, fate))
    }

    fn append(&mut self, list: &mut List, slot: u32) {
        self.pieces[slot as usize].next = NONE;
        match list.tail {
            NONE => list.head = slot,
            tail => self.pieces[tail as usize].next = slot,
        }
        (list.tail, list.len) = (slot, list.len + 1);
    }
}

impl List {
    pub(crate) const EMPTY: Self = Self { head: NONE, tail: NONE, len: 0 };
}
