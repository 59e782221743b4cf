//! Tables of packet threads that are gone, or whose flows come to other threads now: read by all threads, written by none.
//!
//! In: those tables. Out: their flows, one by one, in the table of the thread that a flow comes to now ([`FlowTable::adopt`]).
//! Not here: when it is dropped. Ticks wrap, so that its owner does so once [`crate::Timeouts::longest`] has passed since it was made.
//! Invariant: nothing in it changes, so that threads share it without a lock; a flow is live in it as long as in its old table.
//! Each table stays as it came: in one for all of them a flow could find both of its buckets full.

use crate::entry::{Entry, Packed, Signal};
use crate::table::{FlowTable, Hit};
use crate::tick::Tick;

/// The flows of threads that are gone.
#[derive(Debug)]
pub struct Former {
    tables: Box<[FlowTable]>,
}

impl Former {
    /// Of these tables, whatever their sizes; they count and are hashed alike: one clock, one key.
    #[must_use]
    pub fn new(tables: Vec<FlowTable>) -> Self {
        Self { tables: tables.into_boxed_slice() }
    }

    /// Entries, expired ones too.
    #[must_use]
    pub fn len(&self) -> usize {
        self.tables.iter().map(FlowTable::len).sum()
    }

    /// Whether it has no entry at all.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.tables.iter().all(FlowTable::is_empty)
    }

    /// The live flow of `hash`, as its thread saw it last: of two threads, the one that had it later.
    ///
    /// # Cost
    /// Two cache lines for each table.
    #[must_use]
    pub fn peek(&self, hash: u64, now: Tick) -> Option<Entry> {
        self.find(hash, now)?.read(now)
    }

    fn find(&self, hash: u64, now: Tick) -> Option<Packed> {
        let live = self.tables.iter().filter_map(|table| table.live_entry(hash, now));
        live.min_by_key(|entry| now.since(entry.tick()))
    }
}

impl FlowTable {
    /// Takes over a flow that [`FlowTable::lookup`] has just not found from a former thread: it goes on with its state, age and
    /// probation, moved on by this packet. Where no room can be made it is answered all the same, and counts as untracked. `None`: no
    /// former thread has it.
    ///
    /// # Cost
    /// As [`Former::peek`], and for what is found as [`FlowTable::insert`].
    pub fn adopt(&mut self, former: &Former, hash: u64, signal: Signal, now: Tick) -> Option<Hit> {
        let entry = former.find(hash, now)?;
        let clock = entry.clock();
        let hit = Hit { slot: entry.slot(), vip: entry.vip(), renewed: clock.renewed_by(signal) };
        let moved = if clock.unmoved_by(signal, now) { clock } else { clock.after(signal, now) };
        self.limits.follow(self.kept);
        let Some(place) = self.make_room(self.candidates(hash), now) else {
            self.counters.untracked += 1;
            return Some(hit);
        };
        *self.at(place) = entry.with_clock(moved);
        self.counters.insert += 1;
        self.entries += 1;
        self.kept += usize::from(!moved.on_probation());
        Some(hit)
    }
}
