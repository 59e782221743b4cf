//! The end of stage 1 for packets with ports: the service, and what stage 2 asks by.
//!
//! In: a packet that was parsed, or a request of a keyed service that was read as plain. Out: its state, or the reason to drop it.
//! Not here: plain packets of flows (`plain`), the bytes of a request (`keyed`).

use super::Core;
use super::plain::PlainPacket;
use super::state::{Batch, PacketState, Stage};
use crate::selection::flow_key;
use crate::{DropReason, Flow, HashPolicy, Packet, Verdict};

/// A flow and its service, an index among the snapshot's.
struct Found<'a> {
    flow: &'a Flow,
    service: u32,
}

impl Core {
    /// Finds the service of a packet with ports, and hashes it for stage 2.
    #[inline]
    pub(super) fn enter(
        &mut self,
        batch: &Batch<'_>,
        packet: &Packet<'_>,
        flow: &Flow,
        state: &mut PacketState,
    ) -> Result<(), DropReason> {
        let service = batch.snapshot.vips.find_ahead(&self.ahead, state.place, flow);
        let found = Found { flow, service: service.ok_or(DropReason::NoVip)? };
        self.enter_service(batch, packet, &found, state)
    }

    #[inline]
    fn enter_service(
        &mut self,
        batch: &Batch<'_>,
        packet: &Packet<'_>,
        found: &Found<'_>,
        state: &mut PacketState,
    ) -> Result<(), DropReason> {
        let (snapshot, flow) = (batch.snapshot, found.flow);
        let service = snapshot.service(found.service);
        if let Some(reason) = service.guard.as_ref().and_then(|guard| guard.refusal(flow)) {
            return Err(reason);
        }
        (state.service, state.counted) = (found.service, service.id);
        if service.policy == HashPolicy::Key {
            state.stage = Stage::Keyed;
            return self.read_request(batch, packet, flow, state);
        }
        state.hash = snapshot.hasher.hash(service.policy, flow);
        state.key = flow_key(service, state.hash);
        self.flows.table.prefetch(state.key);
        Ok(())
    }

    /// Stage 1 of a plain request: what `classify` does, without reading headers and looking for the service once more. It is no answer
    /// to a request of our own: those come to addresses of the machine, and `config` warns of a VIP that is one.
    #[inline(never)]
    pub(super) fn classify_request(
        &mut self,
        batch: &Batch<'_>,
        packet: &Packet<'_>,
        place: &PlainPacket,
        state: &mut PacketState,
    ) -> Option<Verdict> {
        let frame = packet.frame();
        let read =
            place.request(frame).and_then(|(plain, service)| Some((plain, plain.parsed(frame)?, service)));
        let Some((plain, parsed, service)) = read else {
            return Some(Verdict::Drop(DropReason::Malformed));
        };
        *state = PacketState::of(state.place, parsed, None);
        let found = Found { flow: &Flow::of_plain(&plain), service };
        self.enter_service(batch, packet, &found, state).err().map(Verdict::Drop)
    }
}
