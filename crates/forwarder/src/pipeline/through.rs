//! Requests that pass through this machine both ways: their backends do not have the VIP, or no copy may be older than what they write.
//!
//! In: a request whose backend is chosen; what that answers. Out: the request at the backend's own address, or at the VIP by the pool's
//! encapsulation, from a port and under an id of our own; the answer at the client, as if the VIP had sent it.
//! Not here: exchanges (`kv-switch`), which backend has the key (`keyed`), link and MTU (`rewrite`).
//! Invariants: an answer is taken from the address that was asked alone, and goes back the way its request came. Only addresses, ports,
//! the id, TTL and checksums change; a payload's checksum is the ends' to judge. Under `strict` an answer to a write goes on only
//! once it is noted, so that on all threads whatever was fetched before that is let go; one that cannot be noted is dropped.
//! Source: AppSwitch §3 ("rewrite"); RFC 3022.

use std::net::SocketAddr;

use kv_switch::{ExchangeId, Plan};
use packet::{Parsed, decrement_ttl, readdress_udp};

use super::Core;
use super::gather::server;
use super::keyed::datagram;
use super::own_exchange::{OwnExchange, Passing, StrictWrite};
use super::state::{Batch, PacketState};
use super::way_back::{WayBack, socket};
use crate::keyed::{GATHER_TIMEOUTS_MS, KeyPath};
use crate::rewrite::{RewriteParams, Written, rewrite};
use crate::{DropReason, Flow, KeyRules, Packet, Slot, Verdict};

impl Core {
    /// Stage 3 for a request of a service whose requests pass both ways.
    #[inline(never)]
    pub(super) fn write_through(
        &mut self,
        batch: &Batch<'_>,
        packet: &mut Packet<'_>,
        state: &PacketState,
        slot: &Slot,
    ) -> Verdict {
        let bytes = packet.frame_len();
        let (passing, id) = match self.begin_passing(batch, packet, state, slot) {
            Ok(begun) => begun,
            Err(reason) => return Verdict::Drop(reason),
        };
        let params = self.rewrite_params(batch, slot, state);
        match readdress_and_rewrite(packet, &params, &passing, id) {
            Ok(written) => self.count_move(written.fit),
            Err(reason) => {
                if let Some(own) = self.keyed.own.as_deref_mut() {
                    own.table.end_other(batch.now.nanos(), id);
                }
                return self.refuse_whole(batch, packet, state, reason);
            }
        }
        self.counters.through_begun.add(1);
        self.count_forwarded(state, bytes);
        Verdict::Tx
    }

    fn begin_passing(
        &mut self,
        batch: &Batch<'_>,
        packet: &Packet<'_>,
        state: &PacketState,
        slot: &Slot,
    ) -> Result<(Passing, ExchangeId), DropReason> {
        let way = WayBack::of(batch, packet, state)?;
        let keyed = batch.snapshot.service(state.service).keyed.as_deref().ok_or(DropReason::NoBackend)?;
        let timeout = match keyed.rules.path {
            KeyPath::Direct => STRICT_TIMEOUT,
            KeyPath::Through { timeout } => timeout,
        };
        let datagram = datagram(packet, &state.parsed).ok_or(DropReason::Malformed)?;
        let id = *datagram.payload().first_chunk().ok_or(DropReason::Malformed)?;
        let server = server(keyed, slot, way.vip()).ok_or(DropReason::NoBackend)?;
        let strict = keyed.rules.strict().filter(|_| state.may_store);
        let passing = Passing {
            way,
            server,
            id: u16::from_be_bytes(id),
            has_one_answer: state.plan != Plan::Join,
            is_answered: false,
            come: 0,
            write: strict.map(|cache| StrictWrite { hash: state.key, fingerprint: cache.fingerprint() }),
        };
        let own = self.keyed.own.as_deref_mut().ok_or(DropReason::KvThroughFull)?;
        let begun = own.table.begin_other(batch.now.nanos(), timeout, OwnExchange::Passing(passing));
        begun.map(|id| (passing, id)).map_err(|_| DropReason::KvThroughFull)
    }

    /// Sends on what has come to one of this thread's ports under the id of such a request.
    pub(super) fn pass_answer(
        &mut self,
        batch: &Batch<'_>,
        packet: &mut Packet<'_>,
        parsed: &Parsed,
        id: ExchangeId,
    ) -> Result<Verdict, DropReason> {
        let own = self.keyed.own.as_deref_mut().ok_or(DropReason::KvAnswerLate)?;
        let Some(OwnExchange::Passing(passing)) = own.table.other_mut(id) else {
            return Err(DropReason::KvAnswerLate);
        };
        let flow = Flow::of(packet.frame(), parsed);
        let ends = (socket(flow.source, flow.source_port), socket(flow.destination, 0).ip());
        if ends != (passing.server, passing.way.own) {
            return Err(DropReason::KvAnswerSource);
        }
        // Of a service that a reload has taken it goes on until its time is over.
        let rules = passing.way.keyed(batch.snapshot).map(|(_, keyed)| &*keyed.rules);
        let frame = match rules {
            None => None,
            Some(rules) => {
                let payload = datagram(packet, parsed).map(|datagram| datagram.payload());
                let frame = payload.and_then(|payload| rules.application.answer_frame(payload));
                Some(frame.ok_or(DropReason::KvAnswerMalformed)?)
            }
        };
        if let Some(write) = passing.write {
            note_answered(batch, rules, write)?;
        }
        send_back(packet, parsed, passing)?;
        let is_over = frame.is_some_and(|frame| passing.is_over_by(frame));
        if is_over {
            own.table.end_other(batch.now.nanos(), id);
        }
        self.counters.through_answers.add(1);
        Ok(Verdict::Tx)
    }
}

/// A write's client is about to hear of it: no copy of its key that was fetched before is served after that.
///
/// # Errors
/// A reload has taken the rules by which its key was hashed: the answer goes to nobody.
#[cold]
fn note_answered(batch: &Batch<'_>, rules: Option<&KeyRules>, write: StrictWrite) -> Result<(), DropReason> {
    let cache = rules.and_then(KeyRules::strict);
    let cache = cache.filter(|cache| cache.fingerprint() == write.fingerprint);
    let cache = cache.ok_or(DropReason::KvAnswerLate)?;
    cache.epochs.key_written(batch.now.nanos(), write.hash);
    Ok(())
}

/// A request as it leaves; after an error with the ends and the id that it came with, so that its client may be answered.
fn readdress_and_rewrite(
    packet: &mut Packet<'_>,
    params: &RewriteParams<'_>,
    passing: &Passing,
    id: ExchangeId,
) -> Result<Written, DropReason> {
    let Passing { way, server, id: theirs, .. } = passing;
    // Before it is wrapped: outer headers may have a checksum over all of it.
    readdress(packet, params.parsed, [SocketAddr::new(way.own, id.port), *server], id.request)?;
    rewrite(packet, params).inspect_err(|_| {
        // Where that cannot be done any more it is only good for the pool.
        let _: Result<(), DropReason> = readdress(packet, params.parsed, [way.client(), way.vip()], *theirs);
    })
}

/// Gives a request other ends and another id.
fn readdress(
    packet: &mut Packet<'_>,
    parsed: &Parsed,
    [from, to]: [SocketAddr; 2],
    id: u16,
) -> Result<(), DropReason> {
    let ip = packet.frame_mut().get_mut(usize::from(parsed.l3)..).unwrap_or_default();
    let is_written = readdress_udp(ip, usize::from(parsed.l4 - parsed.l3), from, to, id);
    if is_written { Ok(()) } else { Err(DropReason::Malformed) }
}

/// Turns an answer into one to the client, at the front of its buffer. After an error it is only good for the pool.
fn send_back(packet: &mut Packet<'_>, parsed: &Parsed, passing: &Passing) -> Result<(), DropReason> {
    let Passing { way, id, .. } = passing;
    let (l3, link) = (usize::from(parsed.l3), way.link());
    let ip = packet.frame_mut().get_mut(l3..usize::from(parsed.end)).ok_or(DropReason::Malformed)?;
    if !decrement_ttl(ip, parsed.family) {
        return Err(DropReason::Ttl);
    }
    if !readdress_udp(ip, usize::from(parsed.l4 - parsed.l3), way.vip(), way.client(), *id) {
        return Err(DropReason::KvAnswerMalformed);
    }
    let (start, length) = (packet.start() + l3, usize::from(parsed.ip_len()));
    let end = link.len() + length;
    if end > packet.capacity() {
        return Err(DropReason::NoHeadRoom);
    }
    let buffer = packet.buffer_mut();
    buffer.copy_within(start..start + length, link.len());
    if let Some(front) = buffer.get_mut(..link.len()) {
        front.copy_from_slice(link);
    }
    packet.set_bounds(0, end);
    packet.set_interface(way.interface);
    Ok(())
}

/// Place of a second: what a write may take whose backend has the VIP.
const STRICT_TIMEOUT: usize = {
    assert!(GATHER_TIMEOUTS_MS[9] == 1_000, "as long as one can be waited for");
    9
};
