//! Tables of packet threads that are gone, or whose flows come to other threads now: read by all threads, and only marked.
//!
//! In: those tables. Out: their flows, one by one, in the table of the thread that a flow comes to now ([`FlowTable::adopt`]); a walk
//! over those that no thread has adopted yet. Not here: when it is dropped. Ticks wrap, so that its owner does so once
//! [`crate::Timeouts::longest`] has passed since it was made.
//! Invariant: no entry changes, so that threads share it without a lock; a flow is live in it as long as in its old table. The marks
//! of an entry are only ever set, each by one atomic step.
//! Each table stays as it came: in one for all of them a flow could find both of its buckets full.

use core::sync::atomic::{AtomicU8, Ordering::Relaxed};

use crate::carry::append;
use crate::entry::{Entry, Packed, Signal};
use crate::layout::WAYS;
use crate::table::{FlowTable, Hit, Place};
use crate::tick::Tick;
use crate::walk::{Cursor, Filter};

/// The flows of threads that are gone.
#[derive(Debug)]
pub struct Former {
    tables: Box<[Marked]>,
}

/// Where the next step of a walk over former tables, and then a thread's own, begins; the default is the start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlowCursor {
    /// In former tables, if there are any.
    Former(Cursor),
    /// In its own.
    Own(Cursor),
}

impl Default for FlowCursor {
    fn default() -> Self {
        Self::Former(Cursor::START)
    }
}

/// One step of such a walk.
#[derive(Clone, Copy, Debug)]
pub struct Step {
    /// Where it begins.
    pub from: FlowCursor,
    /// What it is about.
    pub filter: Filter,
    /// How many buckets it may visit; at least one is.
    pub buckets: usize,
}

#[derive(Debug)]
struct Marked {
    flows: FlowTable,
    marks: Box<[AtomicU8]>, // one a bucket, two bits a place
}

#[derive(Clone, Copy)]
enum Mark {
    /// A thread's own table has it, or had it.
    Adopted,
    /// It is found no more.
    Purged,
}

impl Former {
    /// Of these tables, whatever their sizes; they count and are hashed alike: one clock, one key.
    ///
    /// # Cost
    /// A byte a bucket is allocated: a 64th of the tables.
    #[must_use]
    pub fn new(tables: Vec<FlowTable>) -> Self {
        Self { tables: tables.into_iter().map(Marked::new).collect() }
    }

    /// Entries, expired and marked ones too.
    #[must_use]
    pub fn len(&self) -> usize {
        self.tables.iter().map(|table| table.flows.len()).sum()
    }

    /// Whether it has no entry at all.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Places of each table: a table with as many takes in what [`Former::pack`] gives of it.
    pub fn capacities(&self) -> impl Iterator<Item = usize> {
        self.tables.iter().map(|table| table.flows.buckets() * WAYS)
    }

    /// As [`FlowTable::pack`], of the table with this number, from 0: its flows that are live, that no thread has adopted and nobody
    /// has purged.
    pub fn pack(
        &self,
        table: usize,
        from: Cursor,
        buckets: usize,
        now: Tick,
        to: &mut Vec<u8>,
    ) -> Option<Cursor> {
        let table = self.tables.get(table)?;
        let (start, end, next) = table.flows.step(from, buckets);
        for bucket in start..end {
            let mut line = *table.flows.line(bucket);
            for (way, entry) in line.0.iter_mut().enumerate() {
                if !table.is_left(Place { bucket, way }, *entry, now) {
                    *entry = Packed::EMPTY;
                }
            }
            append(bucket, &line, to);
        }
        next
    }

    /// The live flow of `hash`, as its thread saw it last: of two threads, the one that had it later.
    ///
    /// # Cost
    /// Two cache lines for each table, and one more for what is found.
    #[must_use]
    pub fn peek(&self, hash: u64, now: Tick) -> Option<Entry> {
        self.find(hash, now)?.2.read(now)
    }

    /// The live flows of the next `buckets` buckets that pass the filter, without those that a thread has adopted; and the cursor of
    /// the next step, `None` when the walk is done. A step ends with its table; it is at least one bucket.
    ///
    /// # Cost
    /// As [`FlowTable::list`].
    pub fn list<'a>(
        &'a self,
        from: Cursor,
        filter: &'a Filter,
        buckets: usize,
        now: Tick,
    ) -> (impl Iterator<Item = Entry>, Option<Cursor>) {
        let (table, from, next) = self.step(from, buckets);
        let entries = table.into_iter().flat_map(move |table| table.walk(from, buckets, filter));
        let live = entries.filter(move |(table, place, entry)| table.is_left(*place, *entry, now));
        (live.filter_map(move |(_, _, entry)| entry.read(now)), next)
    }

    /// Has the flows of the next `buckets` buckets that pass the filter found no more. Returns how many, without those that a thread
    /// has adopted, and the cursor of the next step as [`Former::list`].
    pub fn purge(&self, from: Cursor, filter: &Filter, buckets: usize) -> (usize, Option<Cursor>) {
        let (table, from, next) = self.step(from, buckets);
        let entries = table.into_iter().flat_map(|table| table.walk(from, buckets, filter));
        let purged = entries.filter(|(table, place, _)| {
            let was_found = table.set(Mark::Purged, *place);
            was_found && !table.is(Mark::Adopted, *place)
        });
        (purged.count(), next)
    }

    /// The table that a step is about, where it begins there, and the step after it.
    fn step(&self, from: Cursor, buckets: usize) -> (Option<&Marked>, Cursor, Option<Cursor>) {
        let mut first = 0;
        for (index, table) in self.tables.iter().enumerate() {
            let end = first + table.flows.buckets();
            if from.0 < end {
                let here = Cursor(from.0 - first);
                let (_, stop, more) = table.flows.step(here, buckets);
                let goes_on = more.is_some() || index + 1 < self.tables.len();
                return (Some(table), here, goes_on.then_some(Cursor(first + stop)));
            }
            first = end;
        }
        (None, Cursor::START, None)
    }

    fn find(&self, hash: u64, now: Tick) -> Option<(&Marked, Place, Packed)> {
        let known = self.tables.iter().filter_map(|table| {
            let (place, entry) = table.flows.live_at(hash, now)?;
            (!table.is(Mark::Purged, place)).then_some((table, place, entry))
        });
        known.min_by_key(|(_, _, entry)| now.since(entry.tick()))
    }
}

impl Marked {
    fn new(flows: FlowTable) -> Self {
        let marks = (0..flows.buckets()).map(|_| AtomicU8::new(0)).collect();
        Self { flows, marks }
    }

    /// The entries of so many buckets that pass the filter.
    fn walk<'a>(
        &'a self,
        from: Cursor,
        buckets: usize,
        filter: &'a Filter,
    ) -> impl Iterator<Item = (&'a Self, Place, Packed)> {
        let (start, end, _) = self.flows.step(from, buckets);
        let places = (start..end).flat_map(|bucket| (0..WAYS).map(move |way| Place { bucket, way }));
        let entries = places.map(move |place| (self, place, self.flows.line(place.bucket).0[place.way]));
        entries.filter(|(_, _, entry)| self.flows.passes(*entry, filter))
    }

    /// Whether it is live, and here alone.
    fn is_left(&self, place: Place, entry: Packed, now: Tick) -> bool {
        !self.flows.has_expired(entry, now) && !self.is(Mark::Adopted, place) && !self.is(Mark::Purged, place)
    }

    fn is(&self, mark: Mark, place: Place) -> bool {
        self.marks[place.bucket].load(Relaxed) & mark.bit(place) != 0
    }

    /// `false`: it was set before.
    fn set(&self, mark: Mark, place: Place) -> bool {
        self.marks[place.bucket].fetch_or(mark.bit(place), Relaxed) & mark.bit(place) == 0
    }
}

impl Mark {
    fn bit(self, place: Place) -> u8 {
        match self {
            Self::Adopted => 1 << place.way,
            Self::Purged => 1 << (WAYS + place.way),
        }
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
        let (table, was_at, entry) = former.find(hash, now)?;
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
        table.set(Mark::Adopted, was_at);
        Some(hit)
    }
    /// [`Former::list`] until that is done, then [`FlowTable::list`]: shows `each` live flow of the step. Returns the next step's cursor.
    pub fn list_after(
        &self,
        former: Option<&Former>,
        step: &Step,
        now: Tick,
        each: impl FnMut(Entry),
    ) -> Option<FlowCursor> {
        if let (Some(former), FlowCursor::Former(at)) = (former, step.from) {
            let (entries, next) = former.list(at, &step.filter, step.buckets, now);
            entries.for_each(each);
            return Some(FlowCursor::after_former(next));
        }
        let (entries, next) = self.list(step.from.own(), &step.filter, step.buckets, now);
        entries.for_each(each);
        next.map(FlowCursor::Own)
    }

    /// [`Former::purge`] until that is done, so that nothing is adopted after, then [`FlowTable::purge`]. Returns how many flows were
    /// forgotten, and the next step's cursor.
    pub fn purge_after(&mut self, former: Option<&Former>, step: &Step) -> (usize, Option<FlowCursor>) {
        if let (Some(former), FlowCursor::Former(at)) = (former, step.from) {
            let (count, next) = former.purge(at, &step.filter, step.buckets);
            return (count, Some(FlowCursor::after_former(next)));
        }
        let (count, next) = self.purge(step.from.own(), &step.filter, step.buckets);
        (count, next.map(FlowCursor::Own))
    }
}

impl FlowCursor {
    fn after_former(next: Option<Cursor>) -> Self {
        next.map_or(Self::Own(Cursor::START), Self::Former)
    }

    fn own(self) -> Cursor {
        match self {
            Self::Former(_) => Cursor::START,
            Self::Own(at) => at,
        }
    }
}
