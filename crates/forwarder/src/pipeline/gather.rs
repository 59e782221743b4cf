//! Requests whose keys are of several backends: each is asked for its own, and the client gets one reply.
//!
//! In: such a request, and what comes to our own ports. Out, between batches: what backends are asked, then the reply.
//! Not here: bytes of a protocol, exchanges, what answers are believed (`kv-switch`), where a key is (`crate::keyed`).
//! Invariants: a backend is asked as clients ask it, at the VIP by its pool's encapsulation; an answer is taken from the address
//! that was asked alone; the reply goes back the way the request came. Frames are copied: none is held.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use kv_switch::{
    Datagram, ExchangeError, ExchangeId, GatherConfig, GatherTable, NewGather, NoAnswer, NotBegun, NotTaken,
    Progress, Request, Target,
};
use packet::{Family, Fragment, Parsed, protocol, udp_checksum_ok, udp_headers_len, write_udp};

use super::Core;
use super::keyed::datagram;
use super::state::{Batch, PacketState};
use crate::keyed::{GATHER_TIMEOUTS_MS, refused};
use crate::{
    DropReason, Flow, GatherRules, HandoffReason, InterfaceId, Keyed, NextHopMode, Origin, Outlet, OwnPorts,
    Packet, Service, Slot, SlotId, Snapshot, ThreadId, Verdict,
};

/// What a packet thread asks backends with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OwnRequests {
    /// The ports of all threads.
    pub ports: OwnPorts,
    /// Clients' requests that are gathered at once.
    pub requests: usize,
    /// A secret of this thread and this start of the process alone.
    pub seed: [u64; 2],
}

/// One thread's requests that are gathered.
#[derive(Debug)]
pub(super) struct Gathers {
    ports: OwnPorts,
    table: GatherTable<WayBack>,
    /// Begun in this turn: backends are asked before it ends.
    begun: Vec<u32>,
    /// All is there: the reply is sent before this turn ends.
    whole: Vec<u32>,
    /// Free frames when the last turn ended, less those that requests begun since will take.
    frames: usize,
}

/// Where a request came from.
#[derive(Clone, Copy, Debug)]
struct WayBack {
    flow: Flow,
    family: Family,
    /// The address that backends answer to.
    own: IpAddr,
    /// Its link header, turned round.
    link: [u8; LONGEST_LINK],
    link_len: usize,
    interface: InterfaceId,
}

impl Gathers {
    /// A thread's; `None`: it asks nothing.
    pub(super) fn new(
        own: Option<&OwnRequests>,
        thread: ThreadId,
    ) -> Result<Option<Box<Self>>, ExchangeError> {
        let Some(OwnRequests { ports, requests, seed }) = own.copied() else { return Ok(None) };
        let timeouts = GATHER_TIMEOUTS_MS.map(|millis| u64::from(millis) * 1_000_000);
        let config = GatherConfig { ports: ports.of(thread), requests, timeouts: &timeouts, seed };
        let (begun, whole) = (Vec::with_capacity(requests), Vec::with_capacity(requests));
        let table = GatherTable::new(&config)?;
        Ok(Some(Box::new(Self { ports, table, begun, whole, frames: usize::MAX })))
    }

    pub(super) fn next_due(&self) -> Option<u64> {
        self.table.next_due()
    }
}

/// A request that has ended because a value does not fit into a datagram.
#[derive(PartialEq, Eq)]
struct TooLong;

impl Gathers {
    /// Begins a request, or changes nothing.
    fn begin(
        &mut self,
        batch: &Batch<'_>,
        service: &Service,
        payload: &[u8],
        way: WayBack,
    ) -> Result<(), DropReason> {
        let keyed = service.keyed.as_deref().ok_or(DropReason::NoBackend)?;
        let GatherRules { timeout, late } = keyed.rules.gather.ok_or(DropReason::KvSplit)?;
        let application = &*keyed.rules.application;
        let ask = application.read(Datagram::whole(payload)).map_err(refused)?;
        let new = NewGather { request: Request { payload, ask: &ask }, timeout, late, context: way };
        let mut target = |key: &[u8]| {
            let slot = batch.snapshot.select_key(service, keyed, keyed.rules.place(key))?.slot;
            let room = room(batch.snapshot.slots().get(slot.0 as usize)?, way.family)?;
            Some(Target { server: slot.0, room })
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

    /// Takes what came to one of this thread's ports; `Some`: its request has ended by it.
    #[cold]
    fn take_answer(
        &mut self,
        batch: &Batch<'_>,
        packet: &Packet<'_>,
        flow: &Flow,
        parsed: &Parsed,
    ) -> Result<Option<TooLong>, DropReason> {
        let payload = datagram(packet, parsed).map(|datagram| datagram.payload());
        let payload = payload.filter(|_| udp_checksum_ok(packet.frame(), parsed));
        let payload = payload.ok_or(DropReason::KvAnswerMalformed)?;
        // It comes from where requests go, or from nowhere that was asked.
        let (_, keyed) =
            keyed_at(batch.snapshot, &flow.source, flow.source_port).ok_or(DropReason::KvAnswerSource)?;
        let application = &*keyed.rules.application;
        let request = application.answer_id(payload).ok_or(DropReason::KvAnswerMalformed)?;
        let id = ExchangeId { port: flow.destination_port, request };
        let asked = self.table.find(id).and_then(|number| self.table.context(number));
        let asked = asked.ok_or(DropReason::KvAnswerLate)?;
        let ends = (socket(flow.source, flow.source_port), socket(flow.destination, 0).ip());
        if ends != (asked.vip(), asked.own) {
            return Err(DropReason::KvAnswerSource);
        }
        let now = batch.now.nanos();
        let (number, progress) = self.table.answer(now, application, id, payload).map_err(not_taken)?;
        match progress {
            Progress::Complete => self.whole.push(number),
            Progress::Failed => {
                self.table.end(now, number);
                return Ok(Some(TooLong));
            }
            Progress::Waiting | Progress::Unchanged => {}
        }
        Ok(None)
    }
}

/// What a backend is asked.
struct Asking<'a> {
    table: &'a GatherTable<WayBack>,
    number: u32,
    part: u8,
}

impl WayBack {
    /// `None`: this machine has no address of the family, so that nobody could answer it; or the frame came from no single station.
    fn of(batch: &Batch<'_>, packet: &Packet<'_>, parsed: &Parsed) -> Option<Self> {
        let frame = packet.frame();
        let link_len = usize::from(parsed.l3);
        let mut link = [0; LONGEST_LINK];
        link.get_mut(..link_len)?.copy_from_slice(frame.get(..link_len)?);
        let (ends, _) = link.split_first_chunk_mut::<12>()?;
        ends.rotate_left(6);
        Some(Self {
            flow: Flow::of(frame, parsed),
            family: parsed.family,
            own: batch.snapshot.own_address(parsed.family).filter(|_| (ends[0] | ends[6]) & 1 == 0)?,
            link,
            link_len,
            interface: packet.interface(),
        })
    }

    /// The service that it came for, as it is now.
    fn keyed<'a>(&self, snapshot: &'a Snapshot) -> Option<(&'a Service, &'a Keyed)> {
        keyed_at(snapshot, &self.flow.destination, self.flow.destination_port)
    }

    fn client(&self) -> SocketAddr {
        socket(self.flow.source, self.flow.source_port)
    }

    fn vip(&self) -> SocketAddr {
        socket(self.flow.destination, self.flow.destination_port)
    }
}

impl Core {
    /// Whether requests for several backends are gathered here, that came as this one did. Those that came in a tunnel have no way
    /// back, as their router is not known.
    pub(super) fn may_gather(&self, keyed: &Keyed, state: &PacketState) -> bool {
        self.gathers.is_some()
            && keyed.rules.gather.is_some()
            && state.decapsulated_from.is_none()
            && state.parsed.fragment == Fragment::None
    }

    /// Stage 2 for a request whose keys are of several backends.
    #[cold]
    pub(super) fn begin_gather(
        &mut self,
        batch: &Batch<'_>,
        packet: &Packet<'_>,
        state: &PacketState,
    ) -> Result<Verdict, DropReason> {
        self.admit_request(batch, packet, state)?;
        let way = way_back(batch, packet, state)?;
        let payload = datagram(packet, &state.parsed).map(|datagram| datagram.payload());
        let payload = payload.ok_or(DropReason::Malformed)?;
        let gathers = self.gathers.as_deref_mut().ok_or(DropReason::KvSplit)?;
        gathers.begin(batch, batch.snapshot.service(state.service), payload, way)?;
        self.counters.gathers_begun.add(1);
        Ok(Verdict::Taken)
    }

    /// Stage 1 for a datagram to a port that a thread of this machine asks from; `None`: it is for none.
    #[inline]
    pub(super) fn classify_answer(
        &mut self,
        batch: &Batch<'_>,
        packet: &Packet<'_>,
        flow: &Flow,
        state: &PacketState,
    ) -> Option<Verdict> {
        let gathers = self.gathers.as_deref_mut().filter(|_| flow.protocol == protocol::UDP)?;
        let asker = gathers.ports.thread_of(flow.destination_port)?;
        let own = Ipv6Addr::from(flow.destination).to_canonical();
        if state.decapsulated_from.is_some() || !batch.snapshot.is_own(own) {
            return None;
        }
        if asker != self.config.thread {
            return Some(match packet.origin() {
                Origin::Wire => Verdict::ToThread(asker, HandoffReason::Answer),
                // Nobody hands it on twice.
                Origin::Thread(..) => Verdict::Drop(DropReason::KvAnswerLate),
            });
        }
        Some(match gathers.take_answer(batch, packet, flow, &state.parsed) {
            Ok(ended) => {
                self.counters.gathers_too_long.add(u64::from(ended == Some(TooLong)));
                Verdict::Taken
            }
            Err(reason) => Verdict::Drop(reason),
        })
    }

    /// Asks backends for what was begun, ends what has waited too long, and replies where all is there.
    #[inline]
    pub(super) fn run_gathers(&mut self, batch: &Batch<'_>, outlet: &mut dyn Outlet) {
        let Some(gathers) = self.gathers.as_deref_mut() else { return };
        gathers.frames = outlet.free_frames();
        if !gathers.table.is_empty()
            && let Some(mut gathers) = self.gathers.take()
        {
            self.ask_backends(&mut gathers, batch, outlet);
            self.expire_gathers(&mut gathers, batch);
            self.send_replies(&mut gathers, batch, outlet);
            gathers.frames = outlet.free_frames();
            self.gathers = Some(gathers);
        }
    }

    #[cold]
    fn ask_backends(&mut self, gathers: &mut Gathers, batch: &Batch<'_>, outlet: &mut dyn Outlet) {
        let now = batch.now.nanos();
        for at in 0..gathers.begun.len() {
            let Some(number) = gathers.begun.get(at).copied() else { break };
            for part in 0..gathers.table.parts(number) {
                let asking = Asking { table: &gathers.table, number, part };
                let sent = outlet.originate(&mut |packet| self.build_part(batch, packet, &asking).is_some());
                if sent.is_err() && gathers.table.give_up(now, number, part) == Progress::Failed {
                    gathers.table.end(now, number);
                    self.counters.gathers_unsent.add(1);
                    break;
                }
            }
            // No backend can be asked, or has a key, and such keys are missing.
            if gathers.table.is_complete(number) {
                gathers.whole.push(number);
            }
        }
        gathers.begun.clear();
    }

    /// What a backend is asked, as it leaves.
    fn build_part(&mut self, batch: &Batch<'_>, packet: &mut Packet<'_>, asking: &Asking<'_>) -> Option<()> {
        let Asking { table, number, part } = *asking;
        let way = table.context(number)?;
        let (service, keyed) = way.keyed(batch.snapshot)?;
        let slot = SlotId(table.server(number, part)?);
        let backend = batch.snapshot.slots().get(slot.0 as usize)?;
        let l3 = backend.encap_overhead() + PLAIN_LINK;
        let payload = l3 + udp_headers_len(way.family);
        let out = packet.buffer_mut().get_mut(payload..)?;
        let room = out.len().min(room(backend, way.family)?.into());
        let application = &*keyed.rules.application;
        let (port, length) = table.write_part(application, number, part, out.get_mut(..room)?)?;
        let ethertype = packet.buffer_mut().get_mut(l3 - 2..l3)?;
        ethertype.copy_from_slice(&way.family.ethertype().to_be_bytes());
        packet.set_bounds(backend.encap_overhead(), payload + length);
        let ip = packet.frame_mut().get_mut(PLAIN_LINK..)?;
        if !write_udp(ip, SocketAddr::new(way.own, port), way.vip()) {
            return None;
        }
        let bytes = packet.frame_len() as u64;
        batch.snapshot.originate(slot, packet, self.identifications.next()).ok()?;
        self.count_for(slot, service.id, |pair| {
            pair.packets.add(1);
            pair.bytes.add(bytes);
        });
        Some(())
    }

    fn expire_gathers(&mut self, gathers: &mut Gathers, batch: &Batch<'_>) {
        while let Some((number, progress)) = gathers.table.expire(batch.now.nanos()) {
            match progress {
                Progress::Complete => gathers.whole.push(number),
                Progress::Failed => {
                    gathers.table.end(batch.now.nanos(), number);
                    self.counters.gathers_timed_out.add(1);
                }
                Progress::Waiting | Progress::Unchanged => {}
            }
        }
    }

    fn send_replies(&mut self, gathers: &mut Gathers, batch: &Batch<'_>, outlet: &mut dyn Outlet) {
        for at in 0..gathers.whole.len() {
            let Some(number) = gathers.whole.get(at).copied() else { break };
            let counters = &self.counters;
            let ended = match send_reply(&gathers.table, batch, outlet, number) {
                None => &counters.gathers_unsent,
                Some(()) if gathers.table.is_incomplete(number) => &counters.gathers_incomplete,
                Some(()) => &counters.gathers_answered,
            };
            ended.add(1);
            gathers.table.end(batch.now.nanos(), number);
        }
        gathers.whole.clear();
    }
}

/// The way back of a request that this machine answers, so that it judges what else is left to backends.
fn way_back(batch: &Batch<'_>, packet: &Packet<'_>, state: &PacketState) -> Result<WayBack, DropReason> {
    if !udp_checksum_ok(packet.frame(), &state.parsed) {
        return Err(DropReason::Malformed);
    }
    if let NextHopMode::Reflect { gateways, .. } = &batch.snapshot.next_hop {
        let from = packet.frame().get(6..12);
        if !gateways.iter().any(|gateway| Some(&gateway.0[..]) == from) {
            return Err(DropReason::UnknownGateway);
        }
    }
    WayBack::of(batch, packet, &state.parsed).ok_or(DropReason::KvSplit)
}

/// Sends all datagrams of a reply. Where there are too few frames it sends none; `None`: not all could be sent.
fn send_reply(
    table: &GatherTable<WayBack>,
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
    for datagram in 0..datagrams {
        let build = |packet: &mut Packet<'_>| {
            let payload = way.link_len + udp_headers_len(way.family);
            let out = packet.buffer_mut().get_mut(payload..)?;
            let length = table.write_reply(application, number, datagram, out)?;
            let link = packet.buffer_mut().get_mut(..way.link_len)?;
            link.copy_from_slice(way.link.get(..way.link_len)?);
            packet.set_bounds(0, payload + length);
            packet.set_interface(way.interface);
            let ip = packet.frame_mut().get_mut(way.link_len..)?;
            write_udp(ip, way.vip(), way.client()).then_some(())
        };
        outlet.originate(&mut |packet| build(packet).is_some()).ok()?;
    }
    Some(())
}

/// The keyed service at a VIP's address and UDP port.
fn keyed_at<'a>(snapshot: &'a Snapshot, vip: &[u8; 16], port: u16) -> Option<(&'a Service, &'a Keyed)> {
    let service = snapshot.service(snapshot.vips.find(vip, protocol::UDP, port)?);
    Some((service, service.keyed.as_deref()?))
}

fn socket(address: [u8; 16], port: u16) -> SocketAddr {
    SocketAddr::new(Ipv6Addr::from(address).to_canonical(), port)
}

/// Bytes of payload that one datagram to a backend may have.
fn room(slot: &Slot, family: Family) -> Option<u16> {
    let room = usize::from(slot.mtu).checked_sub(slot.encap_overhead() + udp_headers_len(family))?;
    u16::try_from(room.min(MOST_ASKED)).ok()
}

fn not_begun(why: NotBegun) -> DropReason {
    match why {
        NotBegun::Unaskable => DropReason::KvSplit,
        NotBegun::NoServer => DropReason::NoBackend,
        NotBegun::Full => DropReason::KvGatherFull,
    }
}

fn not_taken(why: NotTaken) -> DropReason {
    match why {
        NotTaken::Late => DropReason::KvAnswerLate,
        NotTaken::Unasked => DropReason::KvAnswerUnasked,
        NotTaken::NoAnswer(NoAnswer::OtherNonce) => DropReason::KvAnswerNonce,
        NotTaken::NoAnswer(NoAnswer::Continuation) => DropReason::KvAnswerContinuation,
        NotTaken::NoAnswer(_) => DropReason::KvAnswerMalformed,
    }
}

/// With two tags.
const LONGEST_LINK: usize = 22;
const PLAIN_LINK: usize = 14;
/// Bytes of what one backend is asked at once: what servers themselves send.
const MOST_ASKED: usize = 1_400;
