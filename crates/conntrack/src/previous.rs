//! Provides read-only access to the connection tables of previous packet threads. These threads
//! have usually ended, and packets of their flows now arrive at other threads.
//!
//! The entries of these tables never change, so all threads share the tables without a lock. Each
//! entry has two atomic marks, which are set once and never cleared. When the next packet of a flow
//! arrives at a thread, the thread copies the flow into its own table with [`FlowTable::adopt`].
//! The old tables are not merged, because both buckets of a flow could be full in a merged table.
//! Instead, an index of all flows selects the one table to search (module `directory`).
//!
//! Ticks wrap. The owner must therefore drop a [`PreviousTables`] once [`crate::Timeouts::longest`]
//! has passed since its construction.

use core::sync::atomic::{AtomicU8, Ordering::Relaxed};
use std::sync::OnceLock;

use crate::carry::append;
use crate::directory::Directory;
use crate::entry::{Entry, Packed, Signal};
use crate::layout::{WAYS, tag_of};
use crate::table::{FlowTable, Hit, Place};
use crate::tick::Tick;
use crate::walk::{Cursor, Filter};

/// The tables of packet threads that no longer exist.
#[derive(Debug)]
pub struct PreviousTables {
    tables: Box<[Marked]>,
    /// Empty until [`PreviousTables::build_index`] has finished. Lookups then search all tables.
    directory: OnceLock<Directory>,
}

/// The position of a walk that visits the previous process's tables first and then the thread's own
/// table. The default is the start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlowCursor {
    /// A position in the previous process's tables, if there are any.
    PreviousTables(Cursor),
    /// A position in the thread's own table.
    Own(Cursor),
}

impl Default for FlowCursor {
    fn default() -> Self {
        Self::PreviousTables(Cursor::START)
    }
}

/// The parameters of one step of a walk through all tables.
#[derive(Clone, Copy, Debug)]
pub struct Step {
    /// The position at which the step begins.
    pub from: FlowCursor,
    /// The entries that the step selects.
    pub filter: Filter,
    /// The maximum number of buckets to visit. A step visits at least one bucket.
    pub buckets: usize,
}

#[derive(Debug)]
pub(crate) struct Marked {
    flows: FlowTable,
    marks: Box<[AtomicU8]>, // Two bits per entry, which is one byte per bucket.
}

#[derive(Clone, Copy)]
enum Mark {
    /// The entry was copied into the table of a running thread.
    Adopted,
    /// The entry was purged, so lookups must not return it.
    Purged,
}

impl PreviousTables {
    /// Creates a read-only view of `tables` that all threads can share. The tables may differ in
    /// size, but must use the same hash key and clock.
    ///
    /// Lookups search all tables until [`PreviousTables::build_index`] has finished.
    ///
    /// # Cost
    /// The marks take one byte per bucket, which is 1/64 of the table memory.
    #[must_use]
    pub fn new(tables: Vec<FlowTable>) -> Self {
        Self { tables: tables.into_iter().map(Marked::new).collect(), directory: OnceLock::new() }
    }

    /// Builds an index of all flows if there are several tables. From then on, a lookup searches at
    /// most one table. Call this function on a thread that processes no packets. Other threads can
    /// use the tables in the meantime. If the memory cannot be allocated, lookups continue to
    /// search all tables.
    ///
    /// # Cost
    /// Reads all tables twice, which takes about a tenth of a second for a million flows. The index
    /// takes 9 bytes per flow, and another 4 bytes while it is built.
    pub fn build_index(&self) {
        let flows: Vec<&FlowTable> = self.tables.iter().map(|table| &table.flows).collect();
        if flows.len() > 1
            && let Some(directory) = Directory::of(&flows)
        {
            // Another call may already have built an index with the same content.
            let _ = self.directory.set(directory);
        }
    }

    /// Returns the number of entries, including expired and marked entries.
    #[must_use]
    pub fn len(&self) -> usize {
        self.tables.iter().map(|table| table.flows.len()).sum()
    }

    /// Returns `true` if the tables contain no entries.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the capacity of each table. Import the records that [`PreviousTables::pack`] wrote
    /// into a table with the same capacity.
    pub fn capacities(&self) -> impl Iterator<Item = usize> {
        self.tables.iter().map(|table| table.flows.buckets() * WAYS)
    }

    /// Appends the records of the next `buckets` buckets of one table, as [`FlowTable::pack`] does.
    /// `table` is the index of the table.
    ///
    /// Only live flows that were neither adopted nor purged are included.
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

    /// Returns the live flow with this hash. If several tables contain the flow, only the most
    /// recently used entry counts. If the entry has expired or was purged, the flow is unknown.
    ///
    /// # Cost
    /// With an index, a lookup of an unknown flow usually reads two cache lines, and that of a
    /// known flow five: two of the index, two of its table, and one for its mark. Without an index,
    /// a lookup reads two cache lines per table.
    #[must_use]
    pub fn peek(&self, hash: u64, now: Tick) -> Option<Entry> {
        self.find(hash, now)?.2.read(now)
    }

    /// Visits the next `buckets` buckets, at least one. Returns the live flows that pass the filter
    /// and were not adopted, and the cursor of the next step. The cursor is `None` after the last
    /// table.
    ///
    /// A step never spans two tables.
    ///
    /// # Cost
    /// The same as for [`FlowTable::list`].
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

    /// Purges the flows in the next `buckets` buckets that pass the filter. Lookups no longer
    /// return a purged flow. Returns the number of purged flows that were not adopted, and the
    /// cursor of the next step as in [`PreviousTables::list`].
    pub fn purge(&self, from: Cursor, filter: &Filter, buckets: usize) -> (usize, Option<Cursor>) {
        let (table, from, next) = self.step(from, buckets);
        let entries = table.into_iter().flat_map(|table| table.walk(from, buckets, filter));
        let purged = entries.filter(|(table, place, _)| {
            let was_found = table.set(Mark::Purged, *place);
            was_found && !table.is(Mark::Adopted, *place)
        });
        (purged.count(), next)
    }

    /// Returns the table that contains `from`, the cursor inside that table, and the cursor of the
    /// next step.
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
        let mut newest: Option<(&Marked, Place, Packed)> = None;
        for table in self.candidates(hash) {
            if let Some((place, entry)) = table.flows.find(table.flows.candidates(hash))
                && newest.is_none_or(|(.., other)| entry.tick().is_later_than(other.tick()))
            {
                newest = Some((table, place, entry));
            }
        }
        newest.filter(|(table, place, entry)| {
            !table.flows.has_expired(*entry, now) && !table.is(Mark::Purged, *place)
        })
    }

    /// Returns the tables to search for a flow. With an index, this is at most one table.
    pub(crate) fn candidates(&self, hash: u64) -> &[Marked] {
        let Some(directory) = self.directory.get() else { return &self.tables };
        let table = directory.table_of(tag_of(hash)).and_then(|table| self.tables.get(table));
        table.map(std::slice::from_ref).unwrap_or_default()
    }
}

impl Marked {
    fn new(flows: FlowTable) -> Self {
        let marks = (0..flows.buckets()).map(|_| AtomicU8::new(0)).collect();
        Self { flows, marks }
    }

    /// Returns the entries in the next `buckets` buckets that pass the filter.
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

    /// Returns `true` if the entry is live and was neither adopted nor purged.
    fn is_left(&self, place: Place, entry: Packed, now: Tick) -> bool {
        !self.flows.has_expired(entry, now) && !self.is(Mark::Adopted, place) && !self.is(Mark::Purged, place)
    }

    fn is(&self, mark: Mark, place: Place) -> bool {
        self.marks[place.bucket].load(Relaxed) & mark.bit(place) != 0
    }

    /// Sets a mark. Returns `false` if the mark was already set.
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
    /// Copies a flow from one of the previous tables into this table. Call this method if
    /// [`FlowTable::lookup`] has not found the flow. The copied entry keeps the state, age and
    /// probation flag of the flow, and this packet then updates them.
    ///
    /// If this table has no free entry, this method returns the flow without copying it and counts
    /// it as untracked. Returns `None` if no previous table contains the flow.
    ///
    /// # Cost
    /// One [`PreviousTables::peek`], and one [`FlowTable::insert`] if the flow is found.
    pub fn adopt(&mut self, previous: &PreviousTables, hash: u64, signal: Signal, now: Tick) -> Option<Hit> {
        let (table, was_at, entry) = previous.find(hash, now)?;
        let clock = entry.clock();
        let hit = Hit { slot: entry.slot(), vip: entry.vip(), renewed: clock.renewed_by(signal) };
        let moved = if clock.unmoved_by(signal, now) { clock } else { clock.after(signal, now) };
        self.limits.follow(self.kept);
        // The flow is not new, so the limit on searches for new flows does not apply.
        let searches = core::mem::replace(&mut self.searches, u64::MAX);
        let place = self.make_room(self.candidates(hash), now);
        self.searches = searches;
        let Some(place) = place else {
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

    /// Lists the flows of the previous tables first and then of this table. Each call performs one
    /// step. Each live flow is passed to `each`. Returns the cursor of the next step.
    pub fn list_after(
        &self,
        previous: Option<&PreviousTables>,
        step: &Step,
        now: Tick,
        each: impl FnMut(Entry),
    ) -> Option<FlowCursor> {
        if let (Some(previous), FlowCursor::PreviousTables(at)) = (previous, step.from) {
            let (entries, next) = previous.list(at, &step.filter, step.buckets, now);
            entries.for_each(each);
            return Some(FlowCursor::after_previous(next));
        }
        let (entries, next) = self.list(step.from.own(), &step.filter, step.buckets, now);
        entries.for_each(each);
        next.map(FlowCursor::Own)
    }

    /// Purges flows from the previous tables first and then from this table. Each call performs one
    /// step. The order of the tables matters: a flow that was purged from this table first could be
    /// copied again from a previous table.
    ///
    /// Returns the number of removed flows and the cursor of the next step.
    pub fn purge_after(
        &mut self,
        previous: Option<&PreviousTables>,
        step: &Step,
    ) -> (usize, Option<FlowCursor>) {
        if let (Some(previous), FlowCursor::PreviousTables(at)) = (previous, step.from) {
            let (count, next) = previous.purge(at, &step.filter, step.buckets);
            return (count, Some(FlowCursor::after_previous(next)));
        }
        let (count, next) = self.purge(step.from.own(), &step.filter, step.buckets);
        (count, next.map(FlowCursor::Own))
    }
}

impl FlowCursor {
    fn after_previous(next: Option<Cursor>) -> Self {
        next.map_or(Self::Own(Cursor::START), Self::PreviousTables)
    }

    fn own(self) -> Cursor {
        match self {
            Self::PreviousTables(_) => Cursor::START,
            Self::Own(at) => at,
        }
    }
}
