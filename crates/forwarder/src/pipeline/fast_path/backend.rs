//! Implements stage 2 (backend selection) of the fast path, for packets of known flows and for most
//! new flows. The module `choice` handles rare cases, for example flows that cannot stay on their
//! backend, services with limits, and flows whose first Maglev choice is not serving.

use conntrack::{Hit, Signal};
use packet::FastHeaders;

use super::{Disposition, FastPacket};
use crate::pipeline::Core;
use crate::pipeline::choice::flow_target;
use crate::pipeline::state::{Batch, Choice};
use crate::{Flow, Guard, Packet, SlotId, SlotState, Snapshot, Step};

impl Core {
    /// Chooses the backend for a fast-path packet. This function handles data packets of busy flows
    /// and passes all other packets to `choose_further`.
    #[inline(always)]
    pub(in crate::pipeline) fn choose_fast(
        &mut self,
        batch: &Batch<'_>,
        packet: &Packet<'_>,
        place: &mut FastPacket,
    ) {
        if place.signal == Signal::Data
            && !place.excludes
            && let Some(slot) = self.flows.table.busy_slot(place.bucket_probe, place.key, batch.tick)
            && goes_on(batch.snapshot, SlotId(slot))
        {
            self.flows.table.count_hit();
            place.choice = Choice { slot: SlotId(slot), ..KNOWN };
            return;
        }
        self.choose_further(batch, packet, place);
    }

    /// Chooses the backend for a packet that `choose_fast` does not handle.
    #[inline(never)]
    fn choose_further(&mut self, batch: &Batch<'_>, packet: &Packet<'_>, place: &mut FastPacket) {
        let hit = match place.signal {
            Signal::Syn => self.flows.table.lookup(place.key, place.signal, batch.tick),
            signal => self.flows.table.lookup_again(place.bucket_probe, place.key, signal, batch.tick),
        };
        let hit = self.flows.or_previous(hit, place.key, place.signal, batch.tick);
        match hit {
            Some(Hit { slot, renewed: false, .. })
                if !place.excludes && goes_on(batch.snapshot, SlotId(slot)) =>
            {
                place.choice = Choice { slot: SlotId(slot), ..KNOWN };
            }
            None if self.begin_fast(batch, packet, place) => {}
            hit => self.choose_otherwise(batch, packet, place, hit),
        }
    }

    /// Begins a new flow in the common case: the service has no limits, the source is neither
    /// martian nor a VIP, and the first Maglev choice is serving. Otherwise returns `false` and
    /// changes no state.
    #[inline(always)]
    fn begin_fast(&mut self, batch: &Batch<'_>, packet: &Packet<'_>, place: &mut FastPacket) -> bool {
        let (snapshot, service) = (batch.snapshot, batch.snapshot.service(place.service));
        if service.guard.as_deref().is_some_and(Guard::is_limited) {
            return false;
        }
        let source = FastHeaders::flow_source_in(packet.frame(), place.family, place.l3);
        if source.is_none_or(|source| snapshot.vips.has(source)) {
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
        let previous = self.flows.insert_new(place.key, target, place.signal, batch.tick);
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
            place.disposition = Disposition::Dropped(reason);
        }
    }
}

/// A variant of `Snapshot::keeps` for the common case: the service has no excluded slots, and the
/// packet does not start a new connection.
#[inline(always)]
fn goes_on(snapshot: &Snapshot, slot: SlotId) -> bool {
    matches!(snapshot.state(slot), SlotState::Serving | SlotState::Draining)
}

/// The choice for a flow that has an entry in the connection table. The caller sets the slot.
const KNOWN: Choice = Choice { step: Some(Step::FlowTable), ..Choice::NONE };
