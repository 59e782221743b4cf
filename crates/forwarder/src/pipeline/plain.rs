//! The plain path: packets that have nothing to them but headers in fixed places, and flows.
//!
//! In: a batch. Out: for each plain packet what the general path would say, in a third of its time: fields stay in registers or
//! in one cache line a packet, hashes are made side by side, headers are written by wide stores.
//! Not here: what is not plain, and whatever is rare: the general path takes such a packet before a byte of it has changed.
//! Invariant: verdicts, bytes and counters are those of the general path (`tests/it/paths.rs`).

use conntrack::{Hit, Signal};
use packet::{Family, Inner, Parsed, Plain, decrement_ttl, parse, protocol};

use super::messages::Messages;
use super::state::{Batch, Choice, FlowPacket, NO_SERVICE, PacketState};
use super::{Core, Scratch};
use crate::flow::Ends;
use crate::selection::flow_key;
use crate::sip::LaneHashers;
use crate::trace::has_magic;
use crate::vip_table::BatchLookup;
use crate::{
    DropReason, Flow, HandoffReason, Origin, Packet, Service, ServiceId, SlotId, SlotState, Snapshot, Step,
    Verdict,
};

/// What is known of the plain packets of a batch.
#[derive(Debug)]
pub(super) struct PlainBatch {
    pub(super) places: Box<[PlainPacket]>,
    v4: Messages<2>,
    v6: Messages<5>,
    hashers: LaneHashers,
}

/// What is known of one of them between two stages: a cache line, and a half.
#[derive(Clone, Copy, Debug)]
#[repr(align(32))]
pub(super) struct PlainPacket {
    hash: u64,
    key: u64,
    /// Index among the snapshot's services.
    service: u32,
    l3: u16,
    ip_len: u16,
    family: Family,
    tos: u8,
    ttl: u8,
    /// It is plain; else nothing here is of it.
    pub(super) is_plain: bool,
    /// Its flow may not follow every slot: the service has left some.
    excludes: bool,
    signal: Signal,
    /// The number by which the service is counted.
    counted: ServiceId,
    dropped: Option<DropReason>,
    choice: Choice,
}

impl PlainPacket {
    const NONE: Self = Self {
        hash: 0,
        key: 0,
        service: NO_SERVICE,
        l3: 0,
        ip_len: 0,
        family: Family::V4,
        tos: 0,
        ttl: 0,
        is_plain: false,
        excludes: false,
        signal: Signal::Datagram,
        counted: ServiceId(NO_SERVICE),
        dropped: None,
        choice: Choice::NONE,
    };

    /// Takes in a packet that was read, and finds its service. `false`: it is for the general path.
    #[inline(always)]
    fn enter(&mut self, arrival: &Arrival<'_>, plain: &Plain) -> bool {
        #[expect(clippy::cast_possible_truncation, reason = "the destination port is the lower half")]
        let port = plain.ports as u16;
        let Arrival { snapshot, frame, .. } = *arrival;
        let is_tunnel = snapshot.opens && plain.protocol == protocol::UDP && port == protocol::GUE_PORT;
        if is_tunnel || snapshot.trace.is_some() && has_magic(frame, plain.payload(frame)) {
            return false;
        }
        (self.is_plain, self.family, self.l3, self.ip_len) = (true, plain.family, plain.l3, plain.ip_len);
        (self.tos, self.ttl) = (plain.tos, plain.ttl);
        self.choice = Choice::NONE;
        let index = if plain.family == Family::V6 && is_mapped(plain.destination) {
            None
        } else if snapshot.vips.is_exact() {
            snapshot.vips.find_exact(plain.destination, plain.protocol, port)
        } else {
            snapshot.vips.find_ahead(arrival.ahead, arrival.number, &Flow::of_plain(plain))
        };
        let refusal = match index {
            None => Some(DropReason::NoVip),
            Some(index) => {
                let guard = snapshot.service(index).guard.as_ref();
                guard.and_then(|guard| guard.refusal(&Flow::of_plain(plain)))
            }
        };
        self.dropped = refusal;
        match index {
            Some(index) if refusal.is_none() => self.serve(index, snapshot.service(index), plain),
            _ => (self.service, self.counted) = (NO_SERVICE, ServiceId(NO_SERVICE)),
        }
        true
    }

    /// It is for this service.
    #[inline(always)]
    fn serve(&mut self, index: u32, service: &Service, plain: &Plain) {
        (self.service, self.counted) = (index, service.id);
        self.excludes = !service.excluded_slots.is_empty();
        self.signal = self.flow_packet(service, plain).signal();
    }
}

/// A packet as stage 1 finds it.
struct Arrival<'a> {
    snapshot: &'a Snapshot,
    ahead: &'a BatchLookup,
    /// Its place in the batch.
    number: usize,
    frame: &'a [u8],
}

impl PlainBatch {
    /// For batches of at most `packets`.
    pub(super) fn new(packets: usize, hashers: LaneHashers) -> Self {
        let places = vec![PlainPacket::NONE; packets].into_boxed_slice();
        Self { places, v4: Messages::new(packets), v6: Messages::new(packets), hashers }
    }
}

impl Core {
    /// Stage 1: reads what is plain, and asks memory for the buckets of its flows.
    #[inline(never)]
    pub(super) fn read_plain(&mut self, batch: &Batch<'_>, packets: &[Packet<'_>], scratch: &mut Scratch) {
        let PlainBatch { places, v4, v6, hashers } = &mut scratch.plain;
        v4.clear();
        v6.clear();
        for (number, (packet, place)) in packets.iter().zip(places.iter_mut()).enumerate() {
            place.is_plain = false;
            if !scratch.has_plain_path || !may_be_plain(packet.origin()) {
                continue;
            }
            let Some(read) = Plain::read(packet.frame()) else { continue };
            let arrival =
                Arrival { snapshot: batch.snapshot, ahead: &self.ahead, number, frame: packet.frame() };
            if !place.enter(&arrival, &read) || place.dropped.is_some() {
                continue;
            }
            let policy = batch.snapshot.service(place.service).policy;
            let ends = Ends { source: read.source, destination: read.destination, ports: read.ports };
            match read.family {
                Family::V4 => v4.push(number, ends.message_v4(policy, read.protocol)),
                Family::V6 => v6.push(number, ends.message_v6(policy, read.protocol)),
            }
        }
        self.counters.plain.add((v4.len() + v6.len()) as u64);
        let key = batch.snapshot.hasher.key();
        for (number, hash) in v4.hash(key, hashers.two) {
            self.ask_for_flow(batch, places, number, hash);
        }
        for (number, hash) in v6.hash(key, hashers.five) {
            self.ask_for_flow(batch, places, number, hash);
        }
    }

    #[inline(always)]
    fn ask_for_flow(&self, batch: &Batch<'_>, places: &mut [PlainPacket], number: usize, hash: u64) {
        let Some(place) = places.get_mut(number) else { return };
        place.hash = hash;
        // Signals but this one are of five-tuples, whose key is the hash.
        place.key = match place.signal {
            Signal::Datagram => flow_key(batch.snapshot.service(place.service), hash),
            _ => hash,
        };
        self.flows.prefetch(place.key);
    }

    /// Stage 2: the backend of a plain packet's flow.
    #[inline(always)]
    pub(super) fn choose_plain(&mut self, batch: &Batch<'_>, packet: &Packet<'_>, place: &mut PlainPacket) {
        if place.dropped.is_some() {
            return;
        }
        let hit = self.flows.lookup(place.key, place.signal, batch.tick);
        // `Snapshot::keeps`, of a service that has left no slot and a flow that goes on.
        if let Some(Hit { slot, renewed: false, .. }) = hit
            && !place.excludes
            && matches!(batch.snapshot.state(SlotId(slot)), SlotState::Serving | SlotState::Draining)
        {
            (place.choice.slot, place.choice.step) = (SlotId(slot), Some(Step::FlowTable));
            return;
        }
        self.choose_otherwise(batch, packet, place, hit);
    }

    #[inline(never)]
    fn choose_otherwise(
        &mut self,
        batch: &Batch<'_>,
        packet: &Packet<'_>,
        place: &mut PlainPacket,
        hit: Option<Hit>,
    ) {
        // Read again, which is rare or dwarfed by what follows.
        let Some(plain) = Plain::read(packet.frame()) else { return };
        let flow_packet = place.flow_packet(batch.snapshot.service(place.service), &plain);
        let flow = || Flow::of_plain(&plain);
        place.dropped = self.choose_after(batch, &flow_packet, flow, hit, &mut place.choice).err();
    }

    /// Stage 3: the bytes. What is rare goes to the general path, unchanged.
    #[inline(always)]
    pub(super) fn write_plain(
        &mut self,
        batch: &Batch<'_>,
        packet: &mut Packet<'_>,
        place: &PlainPacket,
        state: &mut PacketState,
    ) -> Verdict {
        if let Some(reason) = place.dropped {
            return Verdict::Drop(reason);
        }
        match self.write_prepared(batch, packet, place) {
            Some(()) => Verdict::Tx,
            None => self.write_otherwise(batch, packet, place, state),
        }
    }

    /// `None`, with nothing changed: it takes more than laid out headers.
    #[inline(always)]
    fn write_prepared(
        &mut self,
        batch: &Batch<'_>,
        packet: &mut Packet<'_>,
        place: &PlainPacket,
    ) -> Option<()> {
        let headers = batch.snapshot.headers(place.choice.slot, place.family)?;
        let overhead = headers.overhead(place.ip_len)?;
        if packet.start() != overhead || place.ttl <= 1 {
            return None;
        }
        let (bytes, end) = (packet.frame().len(), overhead + usize::from(place.l3 + place.ip_len));
        let inner = Inner {
            len: place.ip_len,
            tos: place.tos,
            flow_hash: place.hash,
            identification: self.identifications.next(),
        };
        let buffer = packet.buffer_mut();
        let written = match place.l3 {
            14 => headers.write(buffer, &inner),
            _ => headers.write_tagged(buffer, overhead, place.l3, &inner),
        };
        let ip = buffer.get_mut(overhead + usize::from(place.l3)..);
        // Both hold of what was read as plain, and has its head room.
        let lowered = ip.is_some_and(|ip| decrement_ttl(ip, place.family));
        debug_assert!(written && lowered, "a plain packet has room for its headers");
        packet.set_bounds(0, end);
        packet.set_interface(headers.beside);
        self.count_for(place.choice.slot, place.counted, |pair| {
            pair.packets.add(1);
            pair.bytes.add(bytes as u64);
        });
        Some(())
    }

    #[cold]
    #[inline(never)]
    fn write_otherwise(
        &mut self,
        batch: &Batch<'_>,
        packet: &mut Packet<'_>,
        place: &PlainPacket,
        state: &mut PacketState,
    ) -> Verdict {
        let Ok(parsed) = parse(packet.frame()) else { return Verdict::Drop(DropReason::Malformed) };
        *state = place.general(state.place, parsed);
        self.write(batch, packet, state)
    }
}

impl PlainPacket {
    /// What stage 2 looks at.
    #[inline(always)]
    fn flow_packet<'a>(&self, service: &'a Service, plain: &Plain) -> FlowPacket<'a> {
        FlowPacket {
            service,
            hash: self.hash,
            key: self.key,
            protocol: plain.protocol,
            tcp_flags: plain.tcp_flags,
            decapsulated_from: None,
        }
    }

    /// The same for the general path, of a packet that was parsed.
    fn general(&self, place: usize, parsed: Parsed) -> PacketState {
        PacketState { parsed, ..self.chosen(place) }
    }

    /// What a capture shows of it: all but the parsed fields.
    fn chosen(&self, place: usize) -> PacketState {
        let Self { hash, key, service, counted, choice, .. } = *self;
        PacketState { hash, key, service, counted, choice, ..PacketState::at(place) }
    }
}

impl Scratch {
    /// Whether the packet at `place` came in a tunnel, which has been taken off.
    pub(super) fn was_tunnelled(&self, place: usize) -> bool {
        let is_plain = self.plain.places.get(place).is_some_and(|place| place.is_plain);
        !is_plain && self.states.get(place).is_some_and(|state| state.decapsulated_from.is_some())
    }

    /// Makes the states of plain packets say what those of others do.
    #[cold]
    pub(super) fn show_plain(&mut self, packets: usize) {
        for (place, state) in self.plain.places.iter().zip(self.states.iter_mut()).take(packets) {
            if place.is_plain {
                *state = place.chosen(state.place);
            }
        }
    }
}

/// Whether an address of IPv6 stands for one of IPv4, which is on no wire (RFC 4291 §2.5.5.2): it would match an IPv4 VIP.
#[inline(always)]
const fn is_mapped([first, second]: [u64; 2]) -> bool {
    first == 0 && second & 0xffff_ffff == 0xffff_0000
}

/// Packets off the wire, and those that were steered here as if they were.
#[inline(always)]
fn may_be_plain(origin: Origin) -> bool {
    matches!(origin, Origin::Wire | Origin::Thread(_, HandoffReason::Steered { decapsulated_from: None }))
}
