//! Handles proxied requests, whose replies return through this machine. A request is proxied if the
//! backends do not have the VIP address, or if the request is a write and the cache is strict. This
//! machine sends the request with its own source port and request ID, and the client receives the
//! reply from the VIP. The crate `kv-switch` stores the pending requests, and the module `keyed`
//! chooses the backend.
//!
//! A reply is accepted only if it comes from the destination address of the request. The reply to
//! the client goes to the source MAC address of its request. Only addresses, ports, the request ID,
//! the TTL and checksums are changed. Checksums are updated incrementally, so the endpoints still
//! detect corrupted payloads. With a strict cache, the reply to a write is forwarded only after the
//! write has been recorded, which invalidates older cached values on all threads. If recording
//! fails, the reply is dropped.
//!
//! See the AppSwitch paper (§3, "rewrite") and RFC 3022.

use std::net::SocketAddr;

use kv_switch::{ExchangeId, Plan};
use packet::{Parsed, decrement_ttl, readdress_udp};

use super::Core;
use super::gather::server;
use super::keyed::datagram;
use super::return_path::{ReturnPath, socket};
use super::state::{Batch, PacketState};
use super::upstream_exchange::{Passing, StrictWrite, UpstreamExchange};
use crate::keyed::{GATHER_TIMEOUTS_MS, KeyPath};
use crate::rewrite::{RewriteParams, Written, rewrite};
use crate::{DropReason, Flow, KeyRules, Packet, Slot, Verdict};

impl Core {
    /// Runs stage 3 (rewriting) for a proxied request.
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
                    own.end_passing(batch.now, id);
                }
                return self.refuse_whole(batch, packet, state, reason);
            }
        }
        self.counters.proxied_begun.add(1);
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
        let way = ReturnPath::of(batch, packet, state)?;
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
            service: state.counted.0,
            write: strict.map(|cache| StrictWrite { hash: state.key, fingerprint: cache.fingerprint() }),
        };
        let own = self.keyed.own.as_deref_mut().ok_or(DropReason::KvProxiedFull)?;
        if state.is_unanswered {
            return Ok((passing, own.table.spare_id()));
        }
        let begun = own.begin_passing(batch.now, timeout, passing).ok_or(DropReason::KvProxiedFull)?;
        Ok((passing, begun))
    }

    /// Forwards a backend's reply to the client of a proxied request.
    pub(super) fn pass_answer(
        &mut self,
        batch: &Batch<'_>,
        packet: &mut Packet<'_>,
        parsed: &Parsed,
        id: ExchangeId,
    ) -> Result<Verdict, DropReason> {
        let own = self.keyed.own.as_deref_mut().ok_or(DropReason::KvAnswerLate)?;
        let Some(UpstreamExchange::Passing(passing)) = own.table.other_mut(id) else {
            return Err(DropReason::KvAnswerLate);
        };
        let flow = Flow::of(packet.frame(), parsed);
        let ends = (socket(flow.source, flow.source_port), socket(flow.destination, 0).ip());
        if ends != (passing.server, passing.way.own) {
            return Err(DropReason::KvAnswerSource);
        }
        // If a reload removed the service, this pending request stays in the table until its
        // timeout.
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
            own.end_passing(batch.now, id);
        }
        self.counters.proxied_answers.add(1);
        Ok(Verdict::Tx)
    }
}

/// Records a write before the client receives the reply. Values of the key that were cached before
/// this time are not used afterwards.
///
/// # Errors
/// Returns [`DropReason::KvAnswerLate`] if the cache rules that hashed the key were removed by a
/// reload.
#[cold]
fn note_answered(batch: &Batch<'_>, rules: Option<&KeyRules>, write: StrictWrite) -> Result<(), DropReason> {
    let cache = rules.and_then(KeyRules::strict);
    let cache = cache.filter(|cache| cache.fingerprint() == write.fingerprint);
    let cache = cache.ok_or(DropReason::KvAnswerLate)?;
    cache.epochs.key_written(batch.now.nanos(), write.hash);
    Ok(())
}

/// Replaces the addresses of a request and encapsulates it. If encapsulation fails, the original
/// addresses, ports and request ID are restored, so that an ICMP error to the client quotes them.
fn readdress_and_rewrite(
    packet: &mut Packet<'_>,
    params: &RewriteParams<'_>,
    passing: &Passing,
    id: ExchangeId,
) -> Result<Written, DropReason> {
    let Passing { way, server, id: theirs, .. } = passing;
    // The addresses must be replaced before encapsulation, because the outer headers may include a
    // checksum over the whole packet.
    readdress(packet, params.parsed, [SocketAddr::new(way.own, id.port), *server], id.request)?;
    rewrite(packet, params).inspect_err(|_| {
        // An error from this second call can be ignored, because the packet is dropped in any case.
        let _: Result<(), DropReason> = readdress(packet, params.parsed, [way.client(), way.vip()], *theirs);
    })
}

/// Replaces the addresses, ports and request ID of a request, and updates the checksums.
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

/// Turns a backend's reply into the reply to the client, at the front of the buffer. After an
/// error, the caller must drop the packet.
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

/// The index of 1 s in `GATHER_TIMEOUTS_MS`. This timeout applies to writes with a strict cache if
/// the backends have the VIP address.
const STRICT_TIMEOUT: usize = {
    assert!(GATHER_TIMEOUTS_MS[9] == 1_000, "the timeout of a strict write must be 1 s");
    9
};
