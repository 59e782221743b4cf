//! The connection tables that a packet thread searches: its own table and, after an upgrade, the
//! tables of the previous process. All threads share the previous process's tables. A thread
//! searches the shared tables for flows that are missing in its own table, until all entries of the
//! shared tables have expired. The first thread also lists, counts and purges the flows that no
//! thread has copied from the previous process yet. The crate `datapath` maps these tables into
//! memory.
//!
//! A packet thread never drops the last reference to the previous process's tables, because it
//! would then have to free their memory.

use std::sync::Arc;

use conntrack::{
    Entry, FlowCursor, FlowTable, Hit, Inserted, Newcomer, PreviousTables, Signal, Step, Target, Tick,
};

use crate::{FlowTableCounters, Now, SlotId};

#[derive(Debug)]
pub(crate) struct Flows {
    pub(crate) table: FlowTable,
    swept: Now,
    previous: Option<PreviousFlows>,
}

/// The connection tables of the previous process, used until all their entries have expired.
#[derive(Debug)]
struct PreviousFlows {
    flows: Arc<PreviousTables>,
    until: Now,
    is_walked_here: bool,
}

impl Flows {
    pub(crate) fn new(table: FlowTable) -> Self {
        Self { table, swept: Now::default(), previous: None }
    }

    pub(crate) fn use_previous_tables(
        &mut self,
        flows: Arc<PreviousTables>,
        until: Now,
        is_walked_here: bool,
    ) {
        self.previous = Some(PreviousFlows { flows, until, is_walked_here });
    }

    /// Drops the reference to the previous process's tables once their entries have expired. Call
    /// this function once per batch.
    #[inline]
    pub(crate) fn look_at_previous(&mut self, now: Now) {
        if self.previous.as_ref().is_some_and(|previous| previous.until < now) {
            self.previous = None;
        }
    }

    /// Returns `hit` if it is `Some`. Otherwise, this function looks the flow up in the previous
    /// process's tables, and copies a matching entry to this thread's table before returning it.
    ///
    /// A SYN is not looked up while this thread's table is crowded. The SYN usually begins a new
    /// flow, and the table has no free entry for a copy. [`Flows::insert_new`] handles the SYN of a
    /// flow that these tables do contain.
    #[inline(always)]
    pub(crate) fn or_previous(
        &mut self,
        hit: Option<Hit>,
        key: u64,
        signal: Signal,
        now: Tick,
    ) -> Option<Hit> {
        match &self.previous {
            Some(previous) if hit.is_none() && !(signal == Signal::Syn && self.table.is_crowded()) => {
                self.table.adopt(&previous.flows, key, signal, now)
            }
            _ => hit,
        }
    }

    /// Adds a flow that [`Flows::or_previous`] has not found. Returns a slot if the flow is not
    /// tracked, but the previous process's tables contain it.
    ///
    /// A SYN may have been added without a lookup in these tables. If it is not tracked, the next
    /// packets of the flow find the previous process's entry, so the SYN must follow the entry too.
    #[inline(always)]
    pub(crate) fn insert_new(
        &mut self,
        key: u64,
        target: Target,
        signal: Signal,
        now: Tick,
    ) -> Option<SlotId> {
        self.insert_newcomer(self.table.newcomer(key), key, target, signal, now)
    }

    /// Does the same as [`Flows::insert_new`], given the location for the entry.
    #[inline(always)]
    pub(crate) fn insert_newcomer(
        &mut self,
        at: Newcomer,
        key: u64,
        target: Target,
        signal: Signal,
        now: Tick,
    ) -> Option<SlotId> {
        // If the connection table is full, the flow is not tracked, and Maglev chooses a backend
        // for each packet. The table counts such flows.
        match self.table.insert_newcomer(at, target, signal, now) {
            Inserted::Tracked => None,
            Inserted::Untracked => self.previous_slot(key, signal, now),
        }
    }

    #[cold]
    fn previous_slot(&self, key: u64, signal: Signal, now: Tick) -> Option<SlotId> {
        let previous = self.previous.as_ref().filter(|_| signal == Signal::Syn)?;
        previous.flows.peek(key, now).map(|entry| SlotId(entry.slot))
    }

    /// Returns the connection table entry for a key, without changing the entry and without
    /// updating the lookup counters.
    pub(crate) fn peek(&self, key: u64, now: Tick) -> Option<Entry> {
        let previous = || self.previous.as_ref()?.flows.peek(key, now);
        self.table.peek(key, now).or_else(previous)
    }

    /// Lists flows. See [`FlowTable::list_after`]. The first thread also lists the previous
    /// process's flows.
    pub(crate) fn list(&self, step: &Step, now: Tick, each: impl FnMut(Entry)) -> Option<FlowCursor> {
        self.table.list_after(walked(&self.previous), step, now, each)
    }

    /// Purges flows. See [`FlowTable::purge_after`]. The first thread also purges the previous
    /// process's flows.
    pub(crate) fn purge(&mut self, step: &Step) -> (usize, Option<FlowCursor>) {
        self.table.purge_after(walked(&self.previous), step)
    }

    /// Frees expired entries in steps that are short enough not to delay packets. A full pass over
    /// the table takes one hour, or ten seconds while the table fills up. The duration does not
    /// depend on how often this function is called. Both times are much shorter than the period of
    /// the 24-bit tick counter.
    pub(crate) fn sweep(&mut self, now: Now) {
        let passed = u128::from(now.nanos().saturating_sub(self.swept.nanos()));
        let round = if self.table.is_filling() { HURRIED_ROUND_NANOS } else { SWEEP_ROUND_NANOS };
        let due = self.table.buckets() as u128 * passed / round;
        if due > 0 {
            self.table.sweep(usize::try_from(due).unwrap_or(SWEEP_BUCKETS).min(SWEEP_BUCKETS), now.tick());
            self.swept = now;
        }
    }

    pub(crate) fn publish(&self, capacity: usize, to: &FlowTableCounters) {
        let from = self.table.counters();
        to.entries.set(self.table.len() as u64);
        to.capacity.set(capacity as u64);
        to.hits.set(from.hit);
        to.misses.set(from.miss);
        to.inserts.set(from.insert);
        to.refreshes.set(from.refresh);
        to.expired.set(from.expired);
        to.evicted.set(from.evicted_from_probation);
        to.untracked.set(from.untracked);
    }
}

fn walked(previous: &Option<PreviousFlows>) -> Option<&PreviousTables> {
    previous.as_ref().filter(|previous| previous.is_walked_here).map(|previous| &*previous.flows)
}

const SWEEP_ROUND_NANOS: u128 = 3_600_000_000_000;
/// The duration of one sweep over the whole table while the table fills up. The timeouts of flows
/// stay shortened until a sweep has finished, so a short sweep restores the full timeouts soon
/// after a flood.
const HURRIED_ROUND_NANOS: u128 = 10_000_000_000;
/// The maximum number of buckets to sweep per call. A sleeping thread calls `sweep` ten times per
/// second. At this rate, a sleeping thread can still sweep the largest table in time.
const SWEEP_BUCKETS: usize = 4096;
