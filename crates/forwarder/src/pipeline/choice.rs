//! Implements stage 2 (backend selection) for packets that belong to a flow. The backend is looked
//! up in the connection table first, then in the pool's Maglev table, and then among other
//! clusters. Both the fast path and the slow path use this module. Fragments and ICMP packets have
//! their own modules (`fragments`, `icmp`).
//!
//! See the Maglev paper, §3.1 and §3.3.

use conntrack::{Hit, Id, Target};
use packet::protocol;

use super::state::{Batch, Choice, FlowPacket, PacketState};
use super::{Core, remote};
use crate::{DropReason, Flow, Packet, PairCounter, Selection, ServiceId, SlotId, Snapshot, Step};

impl Core {
    /// Chooses the backend of a flow from the connection table or by Maglev. The closure `flow` is
    /// called only if the hash of the flow is not sufficient.
    #[inline(always)]
    pub(super) fn choose_backend(
        &mut self,
        batch: &Batch<'_>,
        packet: &FlowPacket<'_>,
        flow: impl Fn() -> Flow,
        choice: &mut Choice,
    ) -> Result<(), DropReason> {
        let hit = self.flows.table.lookup(packet.key, packet.signal(), batch.tick);
        let hit = self.flows.or_previous(hit, packet.key, packet.signal(), batch.tick);
        self.choose_after(batch, packet, flow, hit, choice)
    }

    /// Chooses the backend of a flow. `hit` is the result of the lookup in the connection table.
    #[inline(always)]
    pub(super) fn choose_after(
        &mut self,
        batch: &Batch<'_>,
        packet: &FlowPacket<'_>,
        flow: impl Fn() -> Flow,
        hit: Option<Hit>,
        choice: &mut Choice,
    ) -> Result<(), DropReason> {
        match hit {
            Some(hit) if follows(packet, batch.snapshot, &hit) => {
                (choice.slot, choice.step) = (SlotId(hit.slot), Some(Step::FlowTable));
                self.load.established += u32::from(!packet.begins());
                Ok(())
            }
            Some(hit) => self.choose_again(batch, packet, &flow(), hit, choice),
            None => self.begin_flow(batch, packet, &flow(), choice),
        }
    }

    /// Chooses the backend of a new flow, and adds the flow to the connection table.
    #[inline]
    fn begin_flow(
        &mut self,
        batch: &Batch<'_>,
        packet: &FlowPacket<'_>,
        flow: &Flow,
        choice: &mut Choice,
    ) -> Result<(), DropReason> {
        choice.is_new_flow = true;
        self.admit_new(batch, packet, flow)?;
        self.choose_anew(batch, packet, flow, choice)?;
        let target = flow_target(choice.slot, packet.service.id);
        let previous = self.flows.insert_new(packet.key, target, packet.signal(), batch.tick);
        if let Some(slot) = previous
            && batch.snapshot.keeps(packet.service, slot, false)
            && !remote::is_barred(batch.snapshot, slot, packet.decapsulated_from)
        {
            (choice.slot, choice.step) = (slot, Some(Step::FlowTable));
        }
        Ok(())
    }

    /// Chooses a different backend for a flow that cannot stay on its current backend.
    #[cold]
    fn choose_again(
        &mut self,
        batch: &Batch<'_>,
        packet: &FlowPacket<'_>,
        flow: &Flow,
        hit: Hit,
        choice: &mut Choice,
    ) -> Result<(), DropReason> {
        self.choose_anew(batch, packet, flow, choice).inspect_err(|_| {
            if hit.renewed {
                // The entry is removed so that a retransmitted SYN begins a new flow. Otherwise,
                // the SYN would be treated as a packet of the existing flow and reach the draining
                // backend.
                self.flows.table.forget(packet.key, batch.tick);
            }
        })?;
        self.flows.table.reassign(packet.key, Id::truncated(choice.slot.0), batch.tick);
        Ok(())
    }

    /// Checks whether a new flow, which is not in the connection table, is permitted. The source
    /// must not be martian. Because such a flow never gets an entry, packets of known flows need no
    /// check. The source must not be a VIP, because two UDP services that reply to errors could
    /// reply to each other endlessly (CVE-2024-2169). The service's rate limits must permit another
    /// flow.
    #[inline]
    fn admit_new(
        &mut self,
        batch: &Batch<'_>,
        packet: &FlowPacket<'_>,
        flow: &Flow,
    ) -> Result<(), DropReason> {
        if flow.is_unroutable() {
            return Err(DropReason::Martian);
        }
        if batch.snapshot.vips.contains(&flow.source) {
            return Err(DropReason::FromVip);
        }
        let guard = packet.service.guard.as_deref();
        let Some(guard) = guard.filter(|guard| guard.is_limited()) else { return Ok(()) };
        // A full connection table may have evicted established flows. Packets of evicted flows must
        // not be counted as new flows.
        let goes_on = packet.protocol == protocol::TCP && !packet.begins();
        if goes_on && self.flows.table.is_crowded() {
            return Ok(());
        }
        self.limits.admit(guard, &batch.snapshot.hasher, flow, batch.now)
    }

    /// Chooses a backend from the pool for a flow. If no backend of the pool is serving, chooses
    /// another cluster. Also counts the flow. A flow that is not new is counted as reselected.
    // The result is written directly to `choice`. If the result were returned and copied, the CPU
    // would read it in words of a different size than it wrote, and the failed store-to-load
    // forwarding would stall the CPU.
    #[inline(always)]
    fn choose_anew(
        &self,
        batch: &Batch<'_>,
        packet: &FlowPacket<'_>,
        flow: &Flow,
        choice: &mut Choice,
    ) -> Result<(), DropReason> {
        let (snapshot, service, reselected) = (batch.snapshot, packet.service, !choice.is_new_flow);
        let local = snapshot.select(&service.pool, packet.hash);
        let selection = local.or_else(|| remote::select(snapshot, packet, &flow.destination));
        let Selection { slot, entry, rehashed } = selection.ok_or(DropReason::NoBackend)?;
        self.count_for(slot, service.id, |pair| pair.flows.add(1));
        // Each addition is an atomic store, which is skipped in the common case of a zero count.
        if rehashed > 0 {
            self.counters.rehashed.add(1);
        }
        if reselected {
            self.counters.reselected.add(1);
        }
        choice.slot = slot;
        if local.is_some() {
            choice.step = Some(Step::Maglev { entry, rehashed, reselected });
        } else {
            self.counters.remote_flows.add(1);
            choice.step = Some(Step::Remote);
        }
        Ok(())
    }

    /// Updates the counters of a slot and a service, if these counters exist.
    #[inline(always)]
    pub(super) fn count_for(&self, slot: SlotId, service: ServiceId, count: impl Fn(&PairCounter)) {
        if let Some(pair) = self.counters.backend(slot.0) {
            count(pair);
        }
        if let Some(pair) = self.counters.service(service.0) {
            count(pair);
        }
    }
}

/// Chooses a backend from the Maglev table for a packet that is not tracked in the connection
/// table.
pub(super) fn choose_by_table(
    batch: &Batch<'_>,
    packet: &Packet<'_>,
    state: &mut PacketState,
) -> Result<(), DropReason> {
    let flow_packet = state.flow_packet(batch);
    let local = batch.snapshot.select(&flow_packet.service.pool, state.hash);
    let destination = || state.parsed.addresses(packet.frame()).dst;
    let selection = local.or_else(|| remote::select(batch.snapshot, &flow_packet, &destination()));
    state.choice.slot = selection.ok_or(DropReason::NoBackend)?.slot;
    Ok(())
}

/// Returns the content of a new connection table entry. [`Snapshot::new`] has checked that both IDs
/// fit.
#[inline(always)]
pub(super) const fn flow_target(slot: SlotId, service: ServiceId) -> Target {
    Target { slot: Id::truncated(slot.0), vip: Id::truncated(service.0) }
}

/// Returns `true` if the packet may be sent to the backend in its connection table entry.
#[inline(always)]
fn follows(packet: &FlowPacket<'_>, snapshot: &Snapshot, hit: &Hit) -> bool {
    let slot = SlotId(hit.slot);
    snapshot.keeps(packet.service, slot, hit.renewed)
        && !remote::is_barred(snapshot, slot, packet.decapsulated_from)
}
