//! The flows that a packet thread knows: its connection table, and those of threads that another process had.
//!
//! In: flow keys. Out: entries; former tables, which all threads share, are asked on a miss until they have idled out. Not here:
//! where former tables come from (`datapath`).
//! Invariant: this thread is never the last to let go of them, so that it frees nothing: who gave them to it has them for longer.

use std::sync::Arc;

use conntrack::{Entry, FlowTable, Former, Hit, Signal};

use super::Pipeline;
use super::state::Batch;
use crate::{FlowTableCounters, Now};

#[derive(Debug)]
pub(super) struct Flows {
    pub(super) table: FlowTable,
    swept: Now,
    former: Option<FormerFlows>,
}

/// Until when they can be live.
#[derive(Debug)]
struct FormerFlows {
    flows: Arc<Former>,
    until: Now,
}

impl Pipeline {
    /// Has it ask for flows that its connection table does not know, before Maglev, up to `until`: the longest time-out after their
    /// last packet. Before the first packet.
    pub fn ask_former(&mut self, flows: Arc<Former>, until: Now) {
        self.core.flows.former = Some(FormerFlows { flows, until });
    }
}

impl Flows {
    pub(super) fn new(table: FlowTable) -> Self {
        Self { table, swept: Now::default(), former: None }
    }

    /// Once a batch.
    #[inline]
    pub(super) fn look_at_former(&mut self, now: Now) {
        if self.former.as_ref().is_some_and(|former| former.until < now) {
            self.former = None;
        }
    }

    /// What was found, else what a former thread knew; the flow is this thread's then.
    #[inline(always)]
    pub(super) fn or_former(
        &mut self,
        hit: Option<Hit>,
        key: u64,
        signal: Signal,
        batch: &Batch<'_>,
    ) -> Option<Hit> {
        match &self.former {
            Some(former) if hit.is_none() => self.table.adopt(&former.flows, key, signal, batch.tick),
            _ => hit,
        }
    }

    /// The flow, unchanged and uncounted.
    pub(super) fn peek(&self, key: u64, batch: &Batch<'_>) -> Option<Entry> {
        let former = || self.former.as_ref()?.flows.peek(key, batch.tick);
        self.table.peek(key, batch.tick).or_else(former)
    }

    /// Frees expired entries, one round an hour however often it is called, and one in ten seconds
    /// while the table fills: long before the 24-bit tick comes round to
    /// them again, and in steps that no packet notices.
    pub(super) fn sweep(&mut self, now: Now) {
        let passed = u128::from(now.nanos().saturating_sub(self.swept.nanos()));
        let round = if self.table.is_filling() { HURRIED_ROUND_NANOS } else { SWEEP_ROUND_NANOS };
        let due = self.table.buckets() as u128 * passed / round;
        if due > 0 {
            self.table.sweep(usize::try_from(due).unwrap_or(SWEEP_BUCKETS).min(SWEEP_BUCKETS), now.tick());
            self.swept = now;
        }
    }

    pub(super) fn publish(&self, capacity: usize, to: &FlowTableCounters) {
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

/// An hour.
const SWEEP_ROUND_NANOS: u128 = 3_600_000_000_000;
/// While time-outs are shortened: they are whole again soon after a flood.
const HURRIED_ROUND_NANOS: u128 = 10_000_000_000;
/// At ten polls a second, as a sleeping thread has them, this is more than the largest table needs.
const SWEEP_BUCKETS: usize = 4096;
