//! Stage 2 for the packets of flows: the backend that the connection table knows, else Maglev's, else another cluster.
//!
//! In: what a packet says of its flow ([`FlowPacket`]). Out: [`Choice`]. Both paths through the pipeline come here.
//! Not here: pieces, ICMP (`fragments`, `icmp`).
//! Source: paper §3.1, §3.3.

use conntrack::{Hit, Inserted, Target};
use packet::protocol;

use super::state::{Batch, Choice, FlowPacket};
use super::{Core, remote};
use crate::{DropReason, Flow, PairCounter, Selection, ServiceId, SlotId, Snapshot, Step};

impl Core {
    /// The flow's backend, from the connection table or from Maglev. `flow` is asked for where the hash does not do.
    #[inline(always)]
    pub(super) fn choose_backend(
        &mut self,
        batch: &Batch<'_>,
        packet: &FlowPacket<'_>,
        flow: impl Fn() -> Flow,
        choice: &mut Choice,
    ) -> Result<(), DropReason> {
        let hit = self.flows.table.lookup(packet.key, packet.signal(), batch.tick);
        let hit = self.flows.or_former(hit, packet.key, packet.signal(), batch.tick);
        self.choose_after(batch, packet, flow, hit, choice)
    }

    /// The same after the look-up.
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
                Ok(())
            }
            Some(hit) => self.choose_again(batch, packet, &flow(), hit, choice),
            None => self.begin_flow(batch, packet, &flow(), choice),
        }
    }

    /// For a flow that the connection table does not know.
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
        // A full table forwards by Maglev alone; the table counts it.
        let target = Target { slot: choice.slot.0, vip: packet.service.id.0 };
        let (Inserted::Tracked | Inserted::Untracked) =
            self.flows.table.insert_new(packet.key, target, packet.signal(), batch.tick);
        Ok(())
    }

    /// For a flow whose backend takes it no more.
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
                // Else the SYN's repetition would be taken for a flow that the draining backend has.
                self.flows.table.forget(packet.key, batch.tick);
            }
        })?;
        self.flows.table.reassign(packet.key, choice.slot.0, batch.tick);
        Ok(())
    }

    /// Whether a flow that the connection table does not know may begin: its source is no VIP (two UDP services that answer errors
    /// would answer each other for ever, CVE-2024-2169), and the service's limits have room.
    #[inline]
    fn admit_new(
        &mut self,
        batch: &Batch<'_>,
        packet: &FlowPacket<'_>,
        flow: &Flow,
    ) -> Result<(), DropReason> {
        if batch.snapshot.vips.contains(&flow.source) {
            return Err(DropReason::FromVip);
        }
        let guard = packet.service.guard.as_deref();
        let Some(guard) = guard.filter(|guard| guard.is_limited()) else { return Ok(()) };
        // A crowded table does not know flows that began long ago: each of their packets would count as a new one.
        let goes_on = packet.protocol == protocol::TCP && !packet.begins();
        if goes_on && self.flows.table.is_crowded() {
            return Ok(());
        }
        self.limits.admit(guard, &batch.snapshot.hasher, flow, batch.now)
    }

    /// A flow's backend by the tables, and counts it: the pool's, else another cluster's. One that is no new flow is reselected.
    // Written where it stays: what is returned in memory and copied by other words than it was stored waits for the stores.
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
        // An atomic store each, which seldom is needed.
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

    /// Counts for a slot and a service, as far as these have counters.
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

/// Whether a packet may follow its flow to where the connection table has it.
#[inline(always)]
fn follows(packet: &FlowPacket<'_>, snapshot: &Snapshot, hit: &Hit) -> bool {
    let slot = SlotId(hit.slot);
    snapshot.keeps(packet.service, slot, hit.renewed)
        && !remote::is_barred(snapshot, slot, packet.decapsulated_from)
}
