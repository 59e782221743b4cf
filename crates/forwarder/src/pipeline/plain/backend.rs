//! Stage 2 of plain packets: the backend of a flow that goes on, and of most that begin.
//!
//! Not here: what is rarer (`choice`): a flow whose backend takes it no more, limits, a first backend that does not serve.

use conntrack::{Hit, Inserted, Signal, Target};
use packet::Plain;

use super::{Disposition, PlainPacket};
use crate::pipeline::Core;
use crate::pipeline::state::{Batch, Choice};
use crate::{Flow, Guard, Packet, SlotId, SlotState, Snapshot, Step};

impl Core {
    /// The backend of a plain packet's flow, of one that is sent.
    #[inline(always)]
    pub(in crate::pipeline) fn choose_plain(
        &mut self,
        batch: &Batch<'_>,
        packet: &Packet<'_>,
        place: &mut PlainPacket,
    ) {
        if place.signal == Signal::Data
            && !place.excludes
            && let Some(slot) = self.flows.table.busy_slot(place.glance, place.key, batch.tick)
            && goes_on(batch.snapshot, SlotId(slot))
        {
            self.flows.table.count_hit();
            place.choice = Choice { slot: SlotId(slot), ..KNOWN };
            return;
        }
        self.choose_further(batch, packet, place);
    }

    /// The same for what is not in the midst of a busy flow.
    #[inline(never)]
    fn choose_further(&mut self, batch: &Batch<'_>, packet: &Packet<'_>, place: &mut PlainPacket) {
        let hit = match place.signal {
            Signal::Syn => self.flows.table.lookup(place.key, place.signal, batch.tick),
            signal => self.flows.table.lookup_again(place.glance, place.key, signal, batch.tick),
        };
        let hit = self.flows.or_former(hit, place.key, place.signal, batch.tick);
        match hit {
            Some(Hit { slot, renewed: false, .. })
                if !place.excludes && goes_on(batch.snapshot, SlotId(slot)) =>
            {
                place.choice = Choice { slot: SlotId(slot), ..KNOWN };
            }
            None if self.begin_plain(batch, packet, place) => {}
            hit => self.choose_otherwise(batch, packet, place, hit),
        }
    }

    /// For a flow that the connection table does not know, of a service without limits, if its source is no VIP and its first backend
    /// serves: most that begin. `false`, with nothing changed: it is another.
    #[inline(always)]
    fn begin_plain(&mut self, batch: &Batch<'_>, packet: &Packet<'_>, place: &mut PlainPacket) -> bool {
        let (snapshot, service) = (batch.snapshot, batch.snapshot.service(place.service));
        if service.guard.as_deref().is_some_and(Guard::is_limited) {
            return false;
        }
        let source = Plain::source_in(packet.frame(), place.family, place.l3);
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
        // A full table forwards by Maglev alone; the table counts it.
        let target = Target { slot: slot.0, vip: place.counted.0 };
        let (Inserted::Tracked | Inserted::Untracked) =
            self.flows.table.insert_new(place.key, target, place.signal, batch.tick);
        true
    }

    #[inline(never)]
    fn choose_otherwise(
        &mut self,
        batch: &Batch<'_>,
        packet: &Packet<'_>,
        place: &mut PlainPacket,
        hit: Option<Hit>,
    ) {
        place.choice = Choice::NONE;
        // Read again, which is rare or dwarfed by what follows.
        let Some(plain) = Plain::read(packet.frame()) else { return };
        let flow_packet = place.flow_packet(batch.snapshot.service(place.service), &plain);
        let flow = || Flow::of_plain(&plain);
        if let Err(reason) = self.choose_after(batch, &flow_packet, flow, hit, &mut place.choice) {
            place.disposition = Disposition::Dropped(reason);
        }
    }
}

/// `Snapshot::keeps`, of a service that has left no slot and a flow that is not renewed.
#[inline(always)]
fn goes_on(snapshot: &Snapshot, slot: SlotId) -> bool {
    matches!(snapshot.state(slot), SlotState::Serving | SlotState::Draining)
}

/// What the connection table has found, at a slot to be named.
const KNOWN: Choice = Choice { step: Some(Step::FlowTable), ..Choice::NONE };
