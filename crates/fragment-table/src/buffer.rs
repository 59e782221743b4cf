//! Manages hold slots for fragments that wait until the first fragment of their datagram arrives.
//! The caller stores the frames, and this module assigns and frees the indexes of the hold slots.
//!
//! Invariant: a slot is free, in the list of one datagram, or in the release queue. Removing a slot
//! from the queue frees the slot.

use crate::{NONE, filled};

/// The index of a hold slot, below [`crate::Config::buffered`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct HoldSlot(pub u32);

/// The action that the caller must perform for a released frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate<D> {
    /// The first fragment arrived. The caller must apply this decision to the frame.
    Forward(D),
    /// The first fragment did not arrive in time. The caller must drop the frame.
    Expired,
}

#[derive(Debug)]
pub(crate) struct Buffer<D> {
    entries: Box<[HoldEntry<D>]>,
    free: u32,
    pub(crate) queue: List,
    pub(crate) taken: usize, // The number of slots that are in use or queued.
}

/// The state of a hold slot, which is free, in use or queued for release.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HoldEntry<D> {
    next: u32,
    source: u32,   // The index in `Sources`.
    fate: Fate<D>, // Valid only in the release queue.
}

/// A list of slots, oldest first. Each datagram has a list, and the release queue is also a list.
#[derive(Clone, Copy, Debug)]
pub(crate) struct List {
    head: u32,
    tail: u32,
    pub(crate) len: usize,
}

impl<D: Copy> Buffer<D> {
    /// Creates a buffer with `slots` free hold slots. Slots are assigned in ascending order.
    /// Returns `None` if the allocation fails.
    pub(crate) fn new(slots: usize) -> Option<Self> {
        let mut entries = filled(slots, HoldEntry { next: NONE, source: NONE, fate: Fate::Expired })?;
        for (entry, after) in entries.iter_mut().zip(1u32..).take(slots.saturating_sub(1)) {
            entry.next = after;
        }
        Some(Self { entries, free: 0, queue: List::EMPTY, taken: 0 })
    }

    pub(crate) fn bytes(slots: usize) -> usize {
        slots * size_of::<HoldEntry<D>>()
    }

    pub(crate) fn is_full(&self) -> bool {
        self.taken == self.entries.len()
    }

    /// Takes a free slot for a fragment and appends it to the list of its datagram.
    ///
    /// # Panics
    /// Panics if the buffer is full.
    pub(crate) fn keep(&mut self, list: &mut List, source: u32) -> HoldSlot {
        let slot = self.free;
        self.free = self.entries[slot as usize].next;
        self.entries[slot as usize].source = source;
        self.taken += 1;
        self.append(list, slot);
        HoldSlot(slot)
    }

    /// Queues all held fragments of a datagram for release.
    ///
    /// # Cost
    /// One step per fragment. The fate is stored with each fragment, because the datagram may be
    /// removed before the fragment is released.
    pub(crate) fn queue(&mut self, list: List, fate: Fate<D>) {
        let (mut slot, mut queue) = (list.head, self.queue);
        while slot != NONE {
            let after = self.entries[slot as usize].next;
            self.entries[slot as usize].fate = fate;
            self.append(&mut queue, slot);
            slot = after;
        }
        self.queue = queue;
    }

    /// Frees the slot that was queued first. Returns the slot, the index of its source in
    /// `Sources`, and its fate.
    pub(crate) fn pop(&mut self) -> Option<(HoldSlot, u32, Fate<D>)> {
        let slot = Some(self.queue.head).filter(|&slot| slot != NONE)?;
        let entry = &mut self.entries[slot as usize];
        let (source, fate) = (entry.source, entry.fate);
        let after = core::mem::replace(&mut entry.next, self.free);
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
        self.entries[slot as usize].next = NONE;
        match list.tail {
            NONE => list.head = slot,
            tail => self.entries[tail as usize].next = slot,
        }
        (list.tail, list.len) = (slot, list.len + 1);
    }
}

impl List {
    pub(crate) const EMPTY: Self = Self { head: NONE, tail: NONE, len: 0 };
}
