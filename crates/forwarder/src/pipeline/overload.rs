//! Protects packets of established flows while the connection table is full. A SYN then costs
//! several times as much as a packet of an established flow, because the table searches for an
//! entry that it can use.
//!
//! The protection applies while flows that are not on probation use 7/8 of the table, batches are
//! full, and packets of established flows make up at least 1/16 of the last batch. The thread then
//! has a budget for new flows of one per 64 packets. New flows above the budget are forwarded, but
//! the table does not search other buckets for them, so they often get no entry. If 1,024 packets
//! have arrived in full batches without a pause, the thread is overloaded. The table then searches
//! no other buckets. If the last batch had more SYNs than the budget, SYNs above the budget are
//! dropped, because the receive queue would otherwise drop packets of all flows.
//!
//! A SYN is dropped before anything but its headers is read. Deny lists and limits therefore do not
//! see it. SYNs on the slow path are not dropped.

use std::mem;

use super::admitted::{Part, Whole};
use super::fast_path::Admission;
use super::state::{Batch, PacketState};
use super::{Core, Scratch};
use crate::{DropReason, Now, Verdict};

/// The load of the thread in the last batches.
#[derive(Debug, Default)]
pub(super) struct Load {
    /// The number of packets in the last full batches, without the first batch after a pause. A
    /// batch that is not full resets the number to 0.
    full_packets: usize,
    last: Now,
    /// The number of packets of the last batch whose flow had an entry in the connection table,
    /// without SYNs.
    pub(super) established: u32,
    /// The number of SYNs of the last batch on the fast path.
    pub(super) syns: u32,
    /// The number of packets that the budget has not used yet, less than [`PACKETS_PER_NEW_FLOW`].
    unused: usize,
}

impl Load {
    /// Begins a batch of `packets` packets, of which a full batch has `most`. Returns `true` if
    /// packets of established flows must be protected.
    #[inline]
    fn follow(&mut self, now: Now, packets: usize, most: usize) -> bool {
        let passed = now.nanos().saturating_sub(self.last.nanos());
        let is_soon = passed <= MAX_NANOS_PER_PACKET * packets as u64;
        self.full_packets = if packets == most && is_soon { self.full_packets + packets } else { 0 };
        self.last = now;
        let established = mem::take(&mut self.established) as usize;
        self.full_packets > 0 && established * LEAST_ESTABLISHED >= packets
    }

    /// Returns the budget for new flows in a batch of `packets` packets.
    const fn budget(&mut self, packets: usize) -> u32 {
        let packets = self.unused + packets;
        self.unused = packets % PACKETS_PER_NEW_FLOW;
        #[expect(clippy::cast_possible_truncation, reason = "a batch has fewer than 65,536 packets")]
        let budget = (packets / PACKETS_PER_NEW_FLOW) as u32;
        budget
    }
}

impl Core {
    /// Begins a batch: limits the searches of the connection table. Returns the SYNs to admit if
    /// the thread is overloaded.
    #[inline]
    pub(super) fn begin_batch(
        &mut self,
        batch: &Batch<'_>,
        scratch: &Scratch,
        packets: usize,
    ) -> Option<Admission> {
        let is_protecting = self.load.follow(batch.now, packets, scratch.states.len());
        if !is_protecting || !self.flows.table.is_crowded() {
            self.load.syns = 0;
            self.flows.table.allow_searches(u64::MAX);
            return None;
        }
        let budget = self.load.budget(packets);
        let has_flood = mem::take(&mut self.load.syns) > budget;
        let is_overloaded = self.load.full_packets >= FULL_PACKETS;
        self.flows.table.allow_searches(if is_overloaded { 0 } else { budget.into() });
        // Without a flood, all SYNs are admitted, because a test of each packet would cost time.
        let may_drop = is_overloaded && has_flood && !batch.snapshot.has_shared_entries;
        may_drop.then(|| Admission::new(budget))
    }

    /// Processes a batch while the thread is overloaded. Drops SYNs that are not admitted.
    #[inline(never)]
    pub(super) fn forward_admitted(
        &mut self,
        batch: &Batch<'_>,
        whole: Whole<'_, '_>,
        scratch: &mut Scratch,
        admission: Admission,
    ) {
        let Whole { packets, verdicts } = whole;
        let mut numbers = mem::take(&mut scratch.admitted);
        let read = scratch.fast.begin().read_admitted(packets, admission, &mut numbers);
        let (count, dropped) = (read.admitted, packets.len() - read.admitted);
        // The stages then overwrite the verdicts of the admitted packets.
        verdicts.fill(Verdict::Drop(DropReason::Overload));
        self.counters.dropped_many(DropReason::Overload, dropped as u64);
        self.load.syns = u32::try_from(dropped).unwrap_or(u32::MAX);
        let admitted = numbers.get(..count).unwrap_or_default();
        let mut part = Part { batch: Whole { packets, verdicts }, numbers: admitted };
        self.forward_read(batch, &mut part, scratch, read.has_unread);
        if self.tap.is_some() || self.has_marked() {
            self.restore_numbers(scratch, admitted, packets.len());
        }
        scratch.admitted = numbers;
    }

    /// Moves the states of the admitted packets to the indexes that these packets have in the
    /// batch, as packet captures and trace reports expect.
    #[cold]
    fn restore_numbers(&mut self, scratch: &mut Scratch, admitted: &[u16], packets: usize) {
        let states = &mut scratch.states;
        for (from, to) in admitted.iter().enumerate().rev() {
            states.swap(from, usize::from(*to));
        }
        let mut admitted_left = admitted.iter().copied().map(usize::from).peekable();
        for (number, state) in states.iter_mut().enumerate().take(packets) {
            if admitted_left.next_if_eq(&number).is_some() {
                state.place = number;
            } else {
                *state = PacketState::at(number);
            }
        }
        self.renumber_marked(admitted);
    }
}

/// The number of packets per new flow in the budget. A SYN that is admitted takes about the time of
/// three packets of established flows.
const PACKETS_PER_NEW_FLOW: usize = 64;
/// Packets of established flows are protected if they make up at least one in this number of
/// packets.
const LEAST_ESTABLISHED: usize = 16;
/// The number of packets in full batches after which the thread is considered overloaded. A NIC
/// that delivers packets in bursts can fill a few batches of a thread that is not overloaded.
const FULL_PACKETS: usize = 1_024;
/// The longest time per packet between the starts of two full batches without a pause. With the
/// default batch size of 64, this is one millisecond.
const MAX_NANOS_PER_PACKET: u64 = 15_625;
