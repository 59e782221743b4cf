//! Protects packets of established flows while the connection table is full. A SYN then costs
//! several times as much as a packet of an established flow, because the table searches for an
//! entry that it can use.
//!
//! While the table is crowded, each batch has a budget for new flows of one, plus one per sixteen
//! packets of established flows in the previous batch. New flows above the budget are forwarded,
//! but the table does not search other buckets for them, so they often get no entry. If the thread
//! is also overloaded, the table searches no other buckets, and SYNs above the budget are dropped
//! before any other work, because the receive queue would otherwise drop packets of all flows. SYNs
//! on the slow path are not dropped.

use super::Core;
use super::fast_path::FastBatch;
use super::state::Batch;
use crate::Now;

/// The load of the thread in the last batches.
#[derive(Debug, Default)]
pub(super) struct Load {
    /// The number of consecutive full batches, each at most [`MAX_GAP_NANOS`] after the previous
    /// batch.
    full_batches: u32,
    last: Now,
    /// The number of packets of the last batch whose flow had an entry in the connection table.
    pub(super) established: u32,
}

impl Load {
    /// Returns the number of new flows for which the connection table may search other buckets, or
    /// that are admitted if the thread is overloaded.
    const fn budget(&self) -> u32 {
        1 + self.established / PER_NEW_FLOW
    }

    /// Returns `true` if packets arrive faster than this thread processes them, and a part of them
    /// belongs to established flows.
    fn is_overloaded(&self, packets: usize) -> bool {
        self.full_batches >= FULL_BATCHES && self.established as usize * PER_NEW_FLOW as usize >= packets
    }

    fn follow(&mut self, now: Now, is_full: bool) {
        let is_soon = now.nanos().saturating_sub(self.last.nanos()) <= MAX_GAP_NANOS;
        self.full_batches = if is_full && is_soon { self.full_batches.saturating_add(1) } else { 0 };
        self.last = now;
    }
}

impl Core {
    /// Begins a batch: sets the budget for new flows in the connection table, and the number of
    /// SYNs to admit if the thread is overloaded.
    #[inline]
    pub(super) fn begin_batch(&mut self, batch: &Batch<'_>, fast: &mut FastBatch, packets: usize) {
        self.load.follow(batch.now, packets == fast.places.len());
        let is_crowded = self.flows.table.is_crowded();
        let budget = self.load.budget();
        let is_overloaded = is_crowded && self.load.is_overloaded(packets);
        self.load.established = 0;
        self.flows.table.allow_searches(match (is_crowded, is_overloaded) {
            (false, _) => u64::MAX,
            (true, false) => budget.into(),
            (true, true) => 0,
        });
        fast.admission.left = (is_overloaded && !batch.snapshot.has_shared_entries).then_some(budget);
    }
}

/// The number of packets of established flows per new flow in the budget.
const PER_NEW_FLOW: u32 = 16;
/// The number of consecutive full batches after which the thread is considered overloaded. With
/// the default batch size, these batches contain 1,024 packets. A NIC that delivers packets in
/// bursts can fill a few batches of a thread that is not overloaded.
const FULL_BATCHES: u32 = 16;
/// The longest time between the starts of two batches of an overloaded thread.
const MAX_GAP_NANOS: u64 = 1_000_000;
