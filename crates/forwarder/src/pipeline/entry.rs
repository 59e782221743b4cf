//! The last step of stage 1 (classification) for packets with ports: finds the service and computes
//! the hashes for stage 2 (backend selection). The slow path uses this module for all packets with
//! ports. The fast path uses `classify_request` for requests to keyed services, whose headers the
//! fast path has already read.

use super::Core;
use super::fast_path::FastPacket;
use super::state::{Batch, PacketState, Stage};
use crate::selection::flow_key;
use crate::{DropReason, Flow, HashPolicy, Packet, Verdict};

/// A flow, and the index of its service in the snapshot.
struct Found<'a> {
    flow: &'a Flow,
    service: u32,
}

impl Core {
    /// Finds the service of a packet with ports, and computes the hash for stage 2 (backend
    /// selection).
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

    /// Runs stage 1 (classification) for a keyed request after the fast path has read its headers.
    /// Does the same as `classify`, but reuses the headers and the service that the fast path has
    /// found. The request cannot be a reply to an upstream request, because those replies arrive at
    /// addresses of this machine. The `config` crate warns about a VIP that is also an address of
    /// the machine.
    #[inline(never)]
    pub(super) fn classify_request(
        &mut self,
        batch: &Batch<'_>,
        packet: &Packet<'_>,
        place: &FastPacket,
        state: &mut PacketState,
    ) -> Option<Verdict> {
        let frame = packet.frame();
        let read = place
            .request(frame)
            .and_then(|(headers, service)| Some((headers, headers.parsed(frame)?, service)));
        let Some((headers, parsed, service)) = read else {
            return Some(Verdict::Drop(DropReason::Malformed));
        };
        *state = PacketState::of(state.place, parsed, None);
        let found = Found { flow: &Flow::of_fast(&headers), service };
        self.enter_service(batch, packet, &found, state).err().map(Verdict::Drop)
    }
}
