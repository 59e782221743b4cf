//! Handles requests for several keys that are stored on different backends. The packet thread sends
//! one upstream request per backend and combines the replies into one reply to the client. Upstream
//! requests and replies are sent between batches. The protocol formats, the pending requests and
//! the validation of replies are in `kv-switch`. The placement of keys is in `crate::keyed`.
//!
//! Upstream requests are encapsulated like requests from clients. A backend's reply is accepted
//! only if it comes from the destination address of the upstream request. The reply to the client
//! is sent to the source MAC address of the request. The request is copied, so that its frame need
//! not be held.

use std::net::{IpAddr, SocketAddr};

use kv_switch::{Datagram, GatherTable, NewGather, NoAnswer, NotBegun, NotTaken, Progress, Request, Target};
use packet::{Family, Parsed, udp_checksum_ok, udp_headers_len, write_udp};

use super::Core;
use super::keyed::datagram;
use super::return_path::{ReturnPath, socket};
use super::state::{Batch, PacketState};
use super::upstream_exchange::{PartOf, UpstreamExchange};
use super::upstream_requests::UpstreamTable;
use crate::keyed::{KeyPath, refused};
use crate::{DropReason, Flow, GatherRules, Keyed, Outlet, Packet, Service, Slot, SlotId, Verdict};

impl UpstreamTable {
    /// Begins a client request for keys on several backends. After an error, the table is
    /// unchanged.
    fn begin(
        &mut self,
        batch: &Batch<'_>,
        service: &Service,
        payload: &[u8],
        way: ReturnPath,
    ) -> Result<(), DropReason> {
        let keyed = service.keyed.as_deref().ok_or(DropReason::NoBackend)?;
        let GatherRules { timeout, late } = keyed.rules.gather.ok_or(DropReason::KvSplit)?;
        let application = &*keyed.rules.application;
        let ask = application.read(Datagram::whole(payload)).map_err(refused)?;
        let (request, pool) = (Request { payload, ask: &ask }, service.id.0);
        let new = NewGather { request, timeout, late, pool, context: way };
        let flow = way.flow_hash(batch.snapshot, service);
        let mut target = |key: &[u8]| {
            let chosen = batch.snapshot.select_read(service, keyed, keyed.rules.place(key), flow)?;
            let target = target_of(batch, keyed, chosen.slot, &way)?;
            Some(Target { room: target.room.min(MOST_ASKED), ..target })
        };
        let now = batch.now.nanos();
        let number = self.table.begin(now, application, new, &mut target).map_err(not_begun)?;
        let Some(left) = self.frames.checked_sub(self.table.parts(number).into()) else {
            self.table.end(now, number);
            return Err(DropReason::KvGatherNoFrame);
        };
        self.frames = left;
        self.begun.push(number);
        Ok(())
    }
}

/// The parameters of one upstream request.
pub(super) struct Question<'a> {
    pub(super) service: &'a Service,
    pub(super) keyed: &'a Keyed,
    pub(super) slot: SlotId,
    /// The address of this machine to which the backend sends its reply.
    pub(super) own: IpAddr,
    /// The VIP address and port to which the client sent its request.
    pub(super) vip: SocketAddr,
}

/// A function that writes the payload of an upstream request, and returns the source port and the
/// payload length in bytes.
pub(super) type WriteQuestion<'a> = dyn Fn(&mut [u8]) -> Option<(u16, usize)> + 'a;

/// A part of a client request: the keys that one backend stores.
struct Asking<'a> {
    table: &'a GatherTable<ReturnPath, UpstreamExchange>,
    number: u32,
    part: u8,
}

impl Core {
    /// Returns `true` if this thread may split a request among several backends and combine their
    /// replies.
    pub(super) fn may_gather(&self, keyed: &Keyed) -> bool {
        self.keyed.own.is_some() && keyed.rules.gather.is_some()
    }

    /// Runs stage 2 (backend selection) for a request whose keys are stored on different backends.
    #[cold]
    pub(super) fn begin_gather(
        &mut self,
        batch: &Batch<'_>,
        packet: &Packet<'_>,
        state: &PacketState,
    ) -> Result<Verdict, DropReason> {
        self.admit_request(batch, packet, state)?;
        // The checksum is verified here, because this machine sends the reply and no backend
        // receives the request.
        if !udp_checksum_ok(packet.frame(), &state.parsed) {
            return Err(DropReason::Malformed);
        }
        let way = ReturnPath::of(batch, packet, state)?;
        let payload = datagram(packet, &state.parsed).map(|datagram| datagram.payload());
        let payload = payload.ok_or(DropReason::Malformed)?;
        let service = batch.snapshot.service(state.service);
        let shortened = match state.may_store {
            true => self.keyed.short_lived.of_several(batch, service, payload)?,
            false => None,
        };
        let payload = shortened.unwrap_or(payload);
        let own = self.keyed.own.as_deref_mut().ok_or(DropReason::KvSplit)?;
        own.begin(batch, service, payload, way)?;
        self.counters.gathers_begun.add(1);
        Ok(Verdict::Taken)
    }

    /// Processes a backend's reply to one part of a client request.
    pub(super) fn take_part(
        &mut self,
        batch: &Batch<'_>,
        packet: &Packet<'_>,
        parsed: &Parsed,
        part: PartOf,
    ) -> Result<Verdict, DropReason> {
        let PartOf { id, number } = part;
        let own = self.keyed.own.as_deref_mut().ok_or(DropReason::KvAnswerLate)?;
        let way = own.table.context(number).ok_or(DropReason::KvAnswerLate)?;
        let (_, keyed) = way.keyed(batch.snapshot).ok_or(DropReason::KvAnswerLate)?;
        let flow = Flow::of(packet.frame(), parsed);
        let from = socket(flow.source, flow.source_port);
        let asked = own.table.part_of(id).and_then(|part| own.table.server(number, part));
        let asked = asked.and_then(|slot| batch.snapshot.slots().get(slot as usize));
        let asked = asked.and_then(|slot| server(keyed, slot, way.vip()));
        if asked != Some(from) || socket(flow.destination, 0).ip() != way.own {
            return Err(DropReason::KvAnswerSource);
        }
        let payload = datagram(packet, parsed).map(|datagram| datagram.payload());
        let payload = payload.filter(|_| udp_checksum_ok(packet.frame(), parsed));
        let payload = payload.ok_or(DropReason::KvAnswerMalformed)?;
        let (now, application) = (batch.now.nanos(), &*keyed.rules.application);
        match own.table.answer(now, application, id, payload).map_err(not_taken)? {
            (number, Progress::Complete) => own.whole.push(number),
            (number, Progress::Failed) => {
                own.table.end(now, number);
                self.counters.gathers_too_long.add(1);
            }
            (_, Progress::Waiting | Progress::Unchanged) => {}
        }
        Ok(Verdict::Taken)
    }

    #[cold]
    pub(super) fn ask_backends(
        &mut self,
        own: &mut UpstreamTable,
        batch: &Batch<'_>,
        outlet: &mut dyn Outlet,
    ) {
        let now = batch.now.nanos();
        for at in 0..own.begun.len() {
            let Some(number) = own.begun.get(at).copied() else { break };
            for part in 0..own.table.parts(number) {
                let asking = Asking { table: &own.table, number, part };
                let sent = outlet.originate(&mut |packet| self.build_part(batch, packet, &asking).is_some());
                if sent.is_err() && own.table.give_up(now, number, part) == Progress::Failed {
                    own.table.end(now, number);
                    self.counters.gathers_unsent.add(1);
                    break;
                }
            }
            // If no upstream request could be sent for a client request, the client request is
            // already complete. The reply to the client then reports the keys of unreachable
            // backends as missing.
            if own.table.is_complete(number) {
                own.whole.push(number);
            }
        }
        own.begun.clear();
    }

    fn build_part(&mut self, batch: &Batch<'_>, packet: &mut Packet<'_>, asking: &Asking<'_>) -> Option<()> {
        let Asking { table, number, part } = *asking;
        let way = table.context(number)?;
        let (service, keyed) = way.keyed(batch.snapshot)?;
        let slot = SlotId(table.server(number, part)?);
        let question = Question { service, keyed, slot, own: way.own, vip: way.vip() };
        self.build_question(batch, packet, &question, &|out| {
            table.write_part(&*keyed.rules.application, number, part, out)
        })
    }

    /// Builds the frame of an upstream request. `write` writes the payload and returns the source
    /// port and the payload length.
    pub(super) fn build_question(
        &mut self,
        batch: &Batch<'_>,
        packet: &mut Packet<'_>,
        question: &Question<'_>,
        write: &WriteQuestion<'_>,
    ) -> Option<()> {
        let &Question { service, keyed, slot, own, vip } = question;
        let backend = batch.snapshot.slots().get(slot.0 as usize)?;
        let family = if vip.is_ipv4() { Family::V4 } else { Family::V6 };
        let l3 = backend.encap_overhead() + PLAIN_LINK;
        let payload = l3 + udp_headers_len(family);
        let out = packet.buffer_mut().get_mut(payload..)?;
        let room = out.len().min(room(backend, family)?.into());
        let (port, length) = write(out.get_mut(..room)?)?;
        let ethertype = packet.buffer_mut().get_mut(l3 - 2..l3)?;
        ethertype.copy_from_slice(&family.ethertype().to_be_bytes());
        packet.set_bounds(backend.encap_overhead(), payload + length);
        let ip = packet.frame_mut().get_mut(PLAIN_LINK..)?;
        if !write_udp(ip, SocketAddr::new(own, port), server(keyed, backend, vip)?) {
            return None;
        }
        let bytes = packet.frame_len() as u64;
        batch.snapshot.originate(slot, packet, self.identifications.next_v4()).ok()?;
        self.count_for(slot, service.id, |pair| {
            pair.packets.add(1);
            pair.bytes.add(bytes);
        });
        Some(())
    }

    pub(super) fn send_replies(
        &mut self,
        own: &mut UpstreamTable,
        batch: &Batch<'_>,
        outlet: &mut dyn Outlet,
    ) {
        for at in 0..own.whole.len() {
            let Some(number) = own.whole.get(at).copied() else { break };
            let counters = &self.counters;
            let ended = match send_reply(&own.table, batch, outlet, number) {
                None => &counters.gathers_unsent,
                Some(()) if own.table.is_incomplete(number) => &counters.gathers_incomplete,
                Some(()) => &counters.gathers_answered,
            };
            ended.add(1);
            own.table.end(batch.now.nanos(), number);
        }
        own.whole.clear();
    }
}

/// Sends all datagrams of the reply to a client. Sends nothing if there are too few free frames.
/// Returns `None` if a datagram could not be sent.
fn send_reply(
    table: &GatherTable<ReturnPath, UpstreamExchange>,
    batch: &Batch<'_>,
    outlet: &mut dyn Outlet,
    number: u32,
) -> Option<()> {
    let way = table.context(number)?;
    let (_, keyed) = way.keyed(batch.snapshot)?;
    let application = &*keyed.rules.application;
    let datagrams = table.reply_datagrams(application, number)?;
    if usize::from(datagrams) > outlet.free_frames() {
        return None;
    }
    if let Some(cache) = keyed.rules.strict() {
        // The reply acknowledges a write. Cached values that were fetched before this time are
        // therefore invalidated.
        table.written_keys(application, number, &mut |key| {
            cache.epochs.key_written(batch.now.nanos(), cache.hash.hash(key));
        });
    }
    for datagram in 0..datagrams {
        let build = |packet: &mut Packet<'_>| {
            let link = way.link();
            let payload = link.len() + udp_headers_len(way.family);
            let out = packet.buffer_mut().get_mut(payload..)?;
            let length = table.write_reply(application, number, datagram, out)?;
            packet.buffer_mut().get_mut(..link.len())?.copy_from_slice(link);
            packet.set_bounds(0, payload + length);
            packet.set_interface(way.interface);
            let ip = packet.frame_mut().get_mut(link.len()..)?;
            write_udp(ip, way.vip(), way.client()).then_some(())
        };
        outlet.originate(&mut |packet| build(packet).is_some()).ok()?;
    }
    Some(())
}

/// Returns the destination address and port of an upstream request: the VIP if backends have the
/// VIP address, otherwise the backend's own address. Returns `None` if the backend's own address
/// and the VIP have different IP versions.
pub(super) fn server(keyed: &Keyed, backend: &Slot, vip: SocketAddr) -> Option<SocketAddr> {
    match keyed.rules.path {
        KeyPath::Direct => Some(vip),
        KeyPath::Through { .. } => Some(SocketAddr::new(backend.address, vip.port()))
            .filter(|server| server.is_ipv4() == vip.is_ipv4()),
    }
}

/// Returns the destination for upstream requests to a backend, or `None` if this backend cannot
/// receive upstream requests.
pub(super) fn target_of(batch: &Batch<'_>, keyed: &Keyed, slot: SlotId, way: &ReturnPath) -> Option<Target> {
    let backend = batch.snapshot.slots().get(slot.0 as usize)?;
    let room = server(keyed, backend, way.vip()).and_then(|_| room(backend, way.family))?;
    Some(Target { server: slot.0, room })
}

/// Returns the maximum UDP payload to a backend, in bytes, within the path MTU.
fn room(slot: &Slot, family: Family) -> Option<u16> {
    let room = usize::from(slot.mtu).checked_sub(slot.encap_overhead() + udp_headers_len(family))?;
    u16::try_from(room).ok()
}

fn not_begun(why: NotBegun) -> DropReason {
    match why {
        NotBegun::Unaskable => DropReason::KvSplit,
        NotBegun::NoServer => DropReason::NoBackend,
        NotBegun::Full => DropReason::KvGatherFull,
    }
}

pub(super) fn not_taken(why: NotTaken) -> DropReason {
    match why {
        NotTaken::Late => DropReason::KvAnswerLate,
        NotTaken::Unasked => DropReason::KvAnswerUnexpected,
        NotTaken::NoAnswer(why) => no_answer(why),
    }
}

pub(super) fn no_answer(why: NoAnswer) -> DropReason {
    match why {
        NoAnswer::OtherNonce => DropReason::KvAnswerNonce,
        NoAnswer::OtherKey => DropReason::KvAnswerUnexpected,
        NoAnswer::Continuation => DropReason::KvAnswerContinuation,
        _ => DropReason::KvAnswerMalformed,
    }
}

const PLAIN_LINK: usize = 14;
/// The maximum payload of an upstream request, in bytes. Memcached servers use the same limit for
/// datagrams.
const MOST_ASKED: u16 = 1_400;
