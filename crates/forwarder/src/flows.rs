//! The flows that a packet thread knows: its connection table, and those of threads that another process had.
//!
//! In: flow keys. Out: entries; former tables, which all threads share, are asked on a miss until they have idled out. Walks over
//! them are the first thread's: it lists, counts and purges flows that no thread has had a packet of yet. Not here: where former
//! tables come from (`datapath`).
//! Invariant: this thread is never the last to let go of them, so that it frees nothing: who gave them to it has them for longer.

use std::sync::Arc;

use conntrack::{Entry, FlowCursor, FlowTable, Former, Hit, Signal, Step, Tick};

use crate::{FlowTableCounters, Now};

#[derive(Debug)]
pub(crate) struct Flows {
    pub(crate) table: FlowTable,
    swept: Now,
    former: Option<FormerFlows>,
}

/// Until when they can be live.
#[derive(Debug)]
struct FormerFlows {
    flows: Arc<Former>,
    until: Now,
    is_walked_here: bool,
}

impl Flows {
    pub(crate) fn new(table: FlowTable) -> Self {
        Self { table, swept: Now::default(), former: None }
    }

    /// As [`crate::Pipeline::ask_former`] says.
    pub(crate) fn ask_former(&mut self, flows: Arc<Former>, until: Now, is_walked_here: bool) {
        self.former = Some(FormerFlows { flows, until, is_walked_here });
    }

    /// Once a batch.
    #[inline]
    pub(crate) fn look_at_former(&mut self, now: Now) {
        if self.former.as_ref().is_some_and(|former| former.until < now) {
            self.former = None;
        }
    }

    /// What was found, else what a former thread knew; the flow is this thread's then.
    #[inline(always)]
    pub(crate) fn or_former(&mut self, hit: Option<Hit>, key: u64, signal: Signal, now: Tick) -> Option<Hit> {
        match &self.former {
            Some(former) if hit.is_none() => self.table.adopt(&former.flows, key, signal, now),
            _ => hit,
        }
    }

    /// The flow, unchanged and uncounted.
    pub(crate) fn peek(&self, key: u64, now: Tick) -> Option<Entry> {
        let former = || self.former.as_ref()?.flows.peek(key, now);
        self.table.peek(key, now).or_else(former)
    }

    /// [`FlowTable::list_after`], of what is walked here.
    pub(crate) fn list(&self, step: &Step, now: Tick, each: impl FnMut(Entry)) -> Option<FlowCursor> {
        self.table.list_after(walked(&self.former), step, now, each)
    }

    /// [`FlowTable::purge_after`], of what is walked here.
    pub(crate) fn purge(&mut self, step: &Step) -> (usize, Option<FlowCursor>) {
        self.table.purge_after(walked(&self.former), step)
    }

    /// Frees expired entries, one round an hour however often it is called, and one in ten seconds
    /// while the table fills: long before the 24-bit tick comes round to
    /// them again, and in steps that no packet notices.
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

fn walked(former: &Option<FormerFlows>) -> Option<&Former> {
    former.as_ref().filter(|former| former.is_walked_here).map(|former| &*former.flows)
}

/// An hour.
const SWEEP_ROUND_NANOS: u128 = 3_600_000_000_000;
/// While time-outs are shortened: they are whole again soon after a flood.
const HURRIED_ROUND_NANOS: u128 = 10_000_000_000;
/// At ten polls a second, as a sleeping thread has them, this is more than the largest table needs.
const SWEEP_BUCKETS: usize = 4096;
