//! Implements stage 2 (backend selection) of the fast path, for packets of known flows and for most
//! new flows. The module `choice` handles rare cases, for example flows that cannot stay on their
//! backend, services with limits, and flows whose first Maglev choice is not serving.

use conntrack::{BucketProbe, BusyClocks, Hit, Newcomer, Signal};
use packet::{Family, FastHeaders};

use super::{Disposition, FastBatch, FastPacket};
use crate::pipeline::Core;
use crate::pipeline::choice::flow_target;
use crate::pipeline::state::{Batch, Choice};
use crate::{Flow, Guard, Packet, SlotId, SlotState, Snapshot, Step};

impl Core {
    /// Chooses the backend of the packets that change at most the tick of their flow, which most
    /// packets do. Probes the first bucket of all other flows. If the first bucket does not contain
    /// the flow, the probe prefetches the second bucket.
    ///
    /// No other packet of the batch can change the result for these packets, so they are processed
    /// before `choose_all` changes the table.
    #[inline(never)]
    pub(in crate::pipeline) fn choose_busy(
        &mut self,
        batch: &Batch<'_>,
        fast: &mut FastBatch,
        packets: usize,
    ) {
        let table = &mut self.flows.table;
        let (busy, snapshot) = (BusyClocks::at(batch.tick), batch.snapshot);
        let (mut known, mut is_pending) = (0_u32, false);
        for place in fast.places.get_mut(..packets).unwrap_or_default() {
            if place.marks.disposition != Disposition::Flow {
                continue;
            }
            if place.signal != Signal::Syn {
                match table.probe(place.key, place.signal, &busy) {
                    Ok(hit) if !place.marks.excludes && is_settled(snapshot, SlotId(hit.slot)) => {
                        known += 1;
                        place.choice.slot = SlotId(hit.slot);
                        place.marks.disposition = Disposition::Known;
                        continue;
                    }
                    Ok(_) => place.bucket_probe = BucketProbe::NONE,
                    Err(hint) => place.bucket_probe = hint,
                }
            }
            is_pending = true;
        }
        fast.is_pending = is_pending;
        self.load.established += known;
        self.flows.table.count_hits(known.into());
    }

    /// Chooses the backend for a fast-path packet that `choose_busy` does not handle.
    #[inline(always)]
    pub(in crate::pipeline) fn choose_fast(
        &mut self,
        batch: &Batch<'_>,
        packet: &Packet<'_>,
        place: &mut FastPacket,
    ) {
        match place.signal {
            Signal::Syn => self.choose_for_syn(batch, packet, place),
            _ => self.choose_further(batch, packet, place),
        }
    }

    #[inline(never)]
    fn choose_further(&mut self, batch: &Batch<'_>, packet: &Packet<'_>, place: &mut FastPacket) {
        let hit = self.flows.table.lookup_again(place.bucket_probe, place.key, place.signal, batch.tick);
        match self.flows.or_previous(hit, place.key, place.signal, batch.tick) {
            Some(Hit { slot, renewed: false, .. })
                if !place.marks.excludes && goes_on(batch.snapshot, SlotId(slot)) =>
            {
                place.choice = Choice { slot: SlotId(slot), ..KNOWN };
                self.load.established += 1;
            }
            None => {
                let at = self.flows.table.newcomer(place.key);
                self.begin_or_refuse(batch, packet, place, at);
            }
            hit => self.choose_otherwise(batch, packet, place, hit),
        }
    }

    /// Chooses the backend for a SYN, which usually begins a flow.
    #[inline(never)]
    fn choose_for_syn(&mut self, batch: &Batch<'_>, packet: &Packet<'_>, place: &mut FastPacket) {
        self.load.syns += 1;
        let (hit, at) = match self.flows.table.lookup_newcomer(place.key, place.signal, batch.tick) {
            Ok(hit) => (Some(hit), None),
            Err(at) => (None, Some(at)),
        };
        match (self.flows.or_previous(hit, place.key, place.signal, batch.tick), at) {
            (None, Some(at)) => self.begin_or_refuse(batch, packet, place, at),
            (Some(Hit { slot, renewed: false, .. }), _)
                if !place.marks.excludes && goes_on(batch.snapshot, SlotId(slot)) =>
            {
                place.choice = Choice { slot: SlotId(slot), ..KNOWN };
            }
            (hit, _) => self.choose_otherwise(batch, packet, place, hit),
        }
    }

    #[inline(always)]
    fn begin_or_refuse(
        &mut self,
        batch: &Batch<'_>,
        packet: &Packet<'_>,
        place: &mut FastPacket,
        at: Newcomer,
    ) {
        if !self.begin_fast(batch, packet, place, at) {
            self.choose_otherwise(batch, packet, place, None);
        }
    }

    /// Begins a new flow in the common case: the service has no limits, the source is neither
    /// martian nor a VIP, and the first Maglev choice is serving. Otherwise returns `false` and
    /// changes no state.
    #[inline(always)]
    fn begin_fast(
        &mut self,
        batch: &Batch<'_>,
        packet: &Packet<'_>,
        place: &mut FastPacket,
        at: Newcomer,
    ) -> bool {
        let (snapshot, service) = (batch.snapshot, batch.snapshot.service(place.service));
        if service.guard.as_deref().is_some_and(Guard::is_limited) {
            return false;
        }
        let is_source = match place.marks.family {
            Family::V4 => FastHeaders::flow_source_v4(packet.frame(), place.marks.l3)
                .is_some_and(|source| !snapshot.vips.has_v4(source)),
            Family::V6 => is_source_v6(snapshot, packet, place.marks.l3),
        };
        if !is_source {
            return false;
        }
        let Some((slot, entry)) = snapshot.select_first(&service.pool, place.hash) else { return false };
        self.count_for(slot, place.counted, |pair| pair.flows.add(1));
        place.choice = Choice {
            slot,
            step: Some(Step::Maglev { entry, rehashed: 0, reselected: false }),
            is_new_flow: true,
        };
        let target = flow_target(slot, place.counted);
        let previous = self.flows.insert_newcomer(at, place.key, target, place.signal, batch.tick);
        if let Some(slot) = previous.filter(|slot| snapshot.keeps(service, *slot, false)) {
            place.choice = Choice { slot, ..KNOWN };
        }
        true
    }

    #[inline(never)]
    fn choose_otherwise(
        &mut self,
        batch: &Batch<'_>,
        packet: &Packet<'_>,
        place: &mut FastPacket,
        hit: Option<Hit>,
    ) {
        place.choice = Choice::NONE;
        // The headers are read a second time here. This second read costs little compared with the
        // next steps, and most packets do not reach this code.
        let Some(headers) = FastHeaders::read(packet.frame()) else { return };
        let flow_packet = place.flow_packet(batch.snapshot.service(place.service), &headers);
        let flow = || Flow::of_fast(&headers);
        if let Err(reason) = self.choose_after(batch, &flow_packet, flow, hit, &mut place.choice) {
            (place.marks.disposition, place.marks.reason) = (Disposition::Dropped, reason);
        }
    }
}

#[inline(never)]
fn is_source_v6(snapshot: &Snapshot, packet: &Packet<'_>, l3: u16) -> bool {
    let source = FastHeaders::flow_source_v6(packet.frame(), l3);
    source.is_some_and(|source| !snapshot.vips.has(source))
}

/// A variant of `Snapshot::keeps` for the common case: the service has no excluded slots, and the
/// packet does not start a new connection.
#[inline(always)]
pub(super) fn goes_on(snapshot: &Snapshot, slot: SlotId) -> bool {
    matches!(snapshot.state(slot), SlotState::Serving | SlotState::Draining)
}

/// Returns `true` if a flow stays on the slot even if earlier packets of the batch end its
/// connection and open a new one with the same 5-tuple. `Snapshot::keeps` returns the same for
/// both values of `renewed`.
#[inline(always)]
fn is_settled(snapshot: &Snapshot, slot: SlotId) -> bool {
    snapshot.state(slot) == SlotState::Serving && !(snapshot.has_redirects && snapshot.is_redirect(slot))
}

/// The choice for a flow that has an entry in the connection table. The caller sets the slot.
pub(super) const KNOWN: Choice = Choice { step: Some(Step::FlowTable), ..Choice::NONE };
