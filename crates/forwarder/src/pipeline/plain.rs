//! The plain path: packets that have nothing to them but headers in fixed places, and flows.
//!
//! In: a batch. Out: for each plain packet what the general path would say, in a third of its time: fields stay in registers or
//! in one cache line a packet, hashes are made side by side, headers are written by wide stores.
//! Here: stage 1. Stage 2 is `backend`, stage 3 `bytes`.
//! Not here: what is not plain, and whatever is rare: the general path takes such a packet before a byte of it has changed.
//! Invariant: verdicts, bytes and counters are those of the general path (`tests/it/paths.rs`).

mod backend;
mod bytes;

use classifier::{BatchLookup, Ends};
use conntrack::{Glance, Signal};
use packet::{Family, Plain, protocol};
use trace_mark::has_magic;

use super::messages::{Hashed, Messages};
use super::state::{Batch, Choice, FlowPacket, NO_SERVICE, PacketState, Stage};
use super::{Core, Scratch};
use crate::selection::flow_key;
use crate::{
    DropReason, Flow, Guard, HandoffReason, HashPolicy, Origin, Packet, Service, ServiceId, Snapshot,
};
use sip_lanes::LaneHashers;

/// What is known of the plain packets of a batch.
#[derive(Debug)]
pub(super) struct PlainBatch {
    pub(super) places: Box<[PlainPacket]>,
    v4: Messages<2>,
    v6: Messages<5>,
    hashers: LaneHashers,
    /// Some packets of IPv4 are read, and their services not yet known.
    has_read: bool,
}

/// What is known of one of them between two stages: a cache line.
#[derive(Clone, Copy, Debug)]
#[repr(align(64))]
pub(super) struct PlainPacket {
    hash: u64,
    key: u64,
    /// Where the connection table was looked at; of a SYN, of an earlier packet.
    glance: Glance,
    /// Index among the snapshot's services.
    service: u32,
    /// The number by which the service is counted.
    counted: ServiceId,
    l3: u16,
    ip_len: u16,
    family: Family,
    tos: u8,
    disposition: Disposition,
    /// Its flow may not follow every slot: the service has left some.
    excludes: bool,
    /// Of TCP.
    flags: u8,
    signal: Signal,
    /// Of stage 2, which every plain packet passes.
    choice: Choice,
}

/// What becomes of a packet after stage 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Disposition {
    /// It is not plain, and nothing else here is of it.
    General,
    /// It asks a keyed service: its state says all else, until it is known to leave as a plain packet does.
    Request,
    /// Within stage 1 alone: it is read, and its service is not yet known.
    Read,
    /// To the backend of its flow.
    Flow,
    /// Nowhere.
    Dropped(DropReason),
}

impl PlainPacket {
    const NONE: Self = Self {
        hash: 0,
        key: 0,
        glance: Glance::NONE,
        service: NO_SERVICE,
        counted: ServiceId(NO_SERVICE),
        l3: 0,
        ip_len: 0,
        family: Family::V4,
        tos: 0,
        disposition: Disposition::General,
        excludes: false,
        flags: 0,
        signal: Signal::Datagram,
        choice: Choice::NONE,
    };

    /// Whether it takes this path.
    #[inline(always)]
    pub(super) fn is_plain(&self) -> bool {
        !matches!(self.disposition, Disposition::General | Disposition::Request)
    }

    /// Whether it goes to a backend by this path.
    #[inline(always)]
    pub(super) fn is_sent(&self) -> bool {
        self.disposition == Disposition::Flow
    }

    /// Takes in the headers of a packet that was read.
    #[inline(always)]
    fn take(&mut self, plain: &Plain) {
        (self.family, self.l3, self.ip_len, self.tos) = (plain.family, plain.l3, plain.ip_len, plain.tos);
    }

    /// The same of IPv4, and what finds its service, as the words of its flow's message under the policy of most services.
    #[inline(always)]
    fn note_v4(&mut self, plain: &Plain) {
        self.take(plain);
        let [hash, key] = Ends::plain_v4(plain, HashPolicy::FiveTuple);
        (self.flags, self.hash, self.key) = (plain.tcp_flags, hash, key);
        self.disposition = Disposition::Read;
    }

    /// The packet of IPv4 that was noted.
    #[inline(always)]
    const fn noted_v4(&self) -> Plain {
        let (v4, ports, protocol) = Ends::of_plain_v4([self.hash, self.key]);
        let Self { l3, ip_len, tos, flags: tcp_flags, .. } = *self;
        let (source, destination) = (Plain::mapped(v4[0]), Plain::mapped(v4[1]));
        Plain { family: Family::V4, l3, ip_len, protocol, tcp_flags, tos, ports, v4, source, destination }
    }

    /// Finds a packet's service; by which policy to hash its flow. `None`: it is for the general path, or refused.
    #[inline(always)]
    fn enter(&mut self, arrival: &Arrival<'_>, plain: &Plain) -> Option<HashPolicy> {
        #[expect(clippy::cast_possible_truncation, reason = "the destination port is the lower half")]
        let port = plain.ports as u16;
        let snapshot = arrival.snapshot;
        self.disposition = Disposition::General;
        let is_tunnel = snapshot.opens && plain.protocol == protocol::UDP && port == protocol::GUE_PORT;
        if is_tunnel || snapshot.trace.is_some() && is_marked(arrival.packet, self, plain.protocol) {
            return None;
        }
        let index = if plain.family == Family::V6 && is_mapped(plain.destination) {
            None
        } else if snapshot.vips.is_exact() {
            snapshot.vips.find_exact(plain.destination, plain.protocol, port)
        } else {
            find_in_groups(snapshot, arrival.ahead, arrival.number, &Flow::of_plain(plain))
        };
        let Some(index) = index else {
            if snapshot.has_own_requests() && plain.protocol == protocol::UDP {
                return None; // an answer to a request of our own, or nothing
            }
            self.refuse(DropReason::NoVip);
            return None;
        };
        let service = snapshot.service(index);
        if service.policy == HashPolicy::Key {
            (self.service, self.disposition) = (index, Disposition::Request);
            return None;
        }
        if let Some(guard) = &service.guard
            && let Some(reason) = refusal(guard, &Flow::of_plain(plain))
        {
            self.refuse(reason);
            return None;
        }
        self.disposition = Disposition::Flow;
        (self.service, self.counted) = (index, service.id);
        self.excludes = !service.excluded_slots.is_empty();
        self.signal = FlowPacket::signal_of(service.policy, plain.protocol, plain.tcp_flags);
        Some(service.policy)
    }

    /// Whether it asks a keyed service.
    #[inline(always)]
    pub(super) fn is_request(&self) -> bool {
        self.disposition == Disposition::Request
    }

    /// What was read of such a packet, which is `frame`, and its service, an index among the snapshot's.
    #[inline(always)]
    pub(super) fn request(&self, frame: &[u8]) -> Option<(Plain, u32)> {
        let plain = match self.family {
            Family::V4 => self.noted_v4(),
            Family::V6 => Plain::read(frame)?,
        };
        Some((plain, self.service))
    }

    /// After stage 2 of such a request: one that leaves as it came, but for its headers, is written as plain packets are.
    #[inline]
    pub(super) fn follow(&mut self, state: &PacketState) {
        let is_answered = state.cached.is_some_and(|cached| cached.copy.is_some());
        let leaves = state.verdict.is_none() && state.stage == Stage::Keyed && !state.is_away && !is_answered;
        if self.disposition == Disposition::Request && leaves {
            (self.hash, self.counted, self.choice) = (state.hash, state.counted, state.choice);
            self.disposition = Disposition::Flow;
        }
    }

    #[inline]
    fn refuse(&mut self, reason: DropReason) {
        self.disposition = Disposition::Dropped(reason);
        self.choice = Choice::NONE;
        (self.service, self.counted) = (NO_SERVICE, ServiceId(NO_SERVICE));
    }

    /// What stage 2 of the general path looks at.
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

    /// What a capture shows of it: all but the parsed fields.
    fn chosen(&self, place: usize) -> PacketState {
        let Self { hash, key, service, counted, choice, .. } = *self;
        PacketState { hash, key, service, counted, choice, ..PacketState::at(place) }
    }
}

/// A packet as stage 1 finds it.
struct Arrival<'a> {
    snapshot: &'a Snapshot,
    ahead: &'a BatchLookup,
    /// Its place in the batch.
    number: usize,
    packet: &'a Packet<'a>,
}

impl PlainBatch {
    /// For batches of at most `packets`.
    pub(super) fn new(packets: usize, hashers: LaneHashers) -> Self {
        let places = vec![PlainPacket::NONE; packets].into_boxed_slice();
        Self { places, v4: Messages::new(packets), v6: Messages::new(packets), hashers, has_read: false }
    }

    /// Reads the untagged packets of IPv4 among those off the wire; whether there are others. Each step of stage 1 is a function of
    /// its own, so that it has the registers that it needs.
    #[inline(never)]
    fn read_v4(&mut self, packets: &[Packet<'_>]) -> bool {
        let (mut has_read, mut has_others) = (false, false);
        for (packet, place) in packets.iter().zip(self.places.iter_mut()) {
            place.disposition = Disposition::General;
            if !may_be_plain(packet.origin()) {
                continue;
            }
            let frame = packet.frame();
            if Plain::untagged(frame) != Some(Family::V4) {
                has_others = true;
            } else if let Some(read) = Plain::read_v4(frame, Plain::UNTAGGED) {
                place.note_v4(&read);
                has_read = true;
            }
        }
        self.has_read = has_read;
        has_others
    }
}

impl Messages<2> {
    #[inline(always)]
    fn gather(&mut self, place: &mut PlainPacket, arrival: &Arrival<'_>) {
        let plain = place.noted_v4();
        if let Some(policy) = place.enter(arrival, &plain) {
            let is_noted = policy == HashPolicy::FiveTuple;
            let message = if is_noted { [place.hash, place.key] } else { Ends::plain_v4(&plain, policy) };
            self.push(arrival.number, message);
        }
    }
}

impl Messages<5> {
    // Apart from its caller, which has no registers to spare.
    #[inline(never)]
    fn gather_tagged(&mut self, place: &mut PlainPacket, arrival: &Arrival<'_>, l3: u16) {
        if let Some(read) = Plain::read_v6(arrival.packet.frame(), l3) {
            self.gather(place, arrival, &read);
        }
    }

    #[inline(always)]
    fn gather(&mut self, place: &mut PlainPacket, arrival: &Arrival<'_>, plain: &Plain) {
        place.take(plain);
        if let Some(policy) = place.enter(arrival, plain) {
            let ends = Ends::of(plain);
            let message = match policy {
                // Told apart, so that the common message is made without a choice.
                HashPolicy::FiveTuple => ends.message_v6(HashPolicy::FiveTuple, plain.protocol),
                other => ends.message_v6(other, plain.protocol),
            };
            self.push(arrival.number, message);
        }
    }
}

impl Core {
    /// Stage 1: reads what is plain, and asks memory for the buckets of its flows.
    #[inline(never)]
    pub(super) fn read_plain(&mut self, batch: &Batch<'_>, packets: &[Packet<'_>], scratch: &mut Scratch) {
        let plain = &mut scratch.plain;
        plain.v4.clear();
        plain.v6.clear();
        plain.has_read = false;
        if scratch.has_plain_path && plain.read_v4(packets) {
            self.read_others(batch, packets, plain);
        }
        if plain.has_read {
            self.find_services(batch, packets, plain);
        }
        self.counters.plain.add((plain.v4.len() + plain.v6.len()) as u64);
        let key = batch.snapshot.hasher.key();
        self.ask_for_flows(batch, &mut plain.places, &plain.v4.hash(key, plain.hashers.two));
        self.ask_for_flows(batch, &mut plain.places, &plain.v6.hash(key, plain.hashers.five));
    }

    /// Of IPv6 and of frames with tags.
    #[inline(never)]
    fn read_others(&self, batch: &Batch<'_>, packets: &[Packet<'_>], plain: &mut PlainBatch) {
        for (number, (packet, place)) in packets.iter().zip(plain.places.iter_mut()).enumerate() {
            if !may_be_plain(packet.origin()) {
                continue;
            }
            let arrival = Arrival { snapshot: batch.snapshot, ahead: &self.ahead, number, packet };
            let frame = packet.frame();
            match Plain::untagged(frame) {
                Some(Family::V6) if let Some(read) = Plain::read_v6(frame, Plain::UNTAGGED) => {
                    plain.v6.gather(place, &arrival, &read);
                }
                Some(_) => {}
                None => match Plain::tagged(frame) {
                    Some((Family::V4, l3)) if let Some(read) = Plain::read_v4(frame, l3) => {
                        place.note_v4(&read);
                        plain.has_read = true;
                    }
                    Some((Family::V6, l3)) => plain.v6.gather_tagged(place, &arrival, l3),
                    _ => {}
                },
            }
        }
    }

    /// Of packets of IPv4.
    #[inline(never)]
    fn find_services(&self, batch: &Batch<'_>, packets: &[Packet<'_>], plain: &mut PlainBatch) {
        for (number, (packet, place)) in packets.iter().zip(plain.places.iter_mut()).enumerate() {
            if place.disposition == Disposition::Read {
                let arrival = Arrival { snapshot: batch.snapshot, ahead: &self.ahead, number, packet };
                plain.v4.gather(place, &arrival);
            }
        }
    }

    #[inline(always)]
    fn ask_for_flows(&self, batch: &Batch<'_>, places: &mut [PlainPacket], hashed: &Hashed<'_>) {
        for (number, hash) in hashed.places.iter().zip(hashed.hashes) {
            let Some(place) = places.get_mut(usize::from(*number)) else { continue };
            // Signals but one are of five-tuples, whose key is the hash.
            (place.hash, place.key) = (*hash, *hash);
            match place.signal {
                Signal::Data | Signal::FinOrRst => self.flows.table.prefetch_first(*hash),
                Signal::Syn => self.ask_for_newcomer(batch, place),
                Signal::Datagram => {
                    place.key = flow_key(batch.snapshot.service(place.service), *hash);
                    self.flows.table.prefetch_first(place.key);
                }
            }
        }
    }

    /// Mostly of a new flow: both buckets are looked at, and Maglev's entry.
    #[inline(always)]
    fn ask_for_newcomer(&self, batch: &Batch<'_>, place: &PlainPacket) {
        self.flows.table.prefetch(place.key);
        if let Some(table) = batch.snapshot.service(place.service).pool.table.as_deref() {
            match table.entry(table.slot_of(place.hash)) {
                maglev_hash::Entry::Narrow(rank) => conntrack::prefetch(rank),
                maglev_hash::Entry::Wide(rank) => conntrack::prefetch(rank),
            }
        }
    }

    /// Between stage 1 and stage 2, when the buckets have come: asks memory for the other bucket of flows that are not in their first.
    #[inline(never)]
    pub(super) fn glance_at_flows(&self, places: &mut [PlainPacket]) {
        for place in places {
            if place.disposition == Disposition::Flow && place.signal != Signal::Syn {
                place.glance = self.flows.table.glance(place.key);
            }
        }
    }
}

impl Scratch {
    /// Whether the packet at `place` came in a tunnel, which has been taken off.
    pub(super) fn was_tunnelled(&self, place: usize) -> bool {
        let is_plain = self.plain.places.get(place).is_some_and(PlainPacket::is_plain);
        !is_plain && self.states.get(place).is_some_and(|state| state.decapsulated_from.is_some())
    }

    /// Makes the states of plain packets say what those of others do.
    #[cold]
    pub(super) fn show_plain(&mut self, packets: usize) {
        for (place, state) in self.plain.places.iter().zip(self.states.iter_mut()).take(packets) {
            if place.is_plain() {
                *state = place.chosen(state.place);
            }
        }
    }
}

// Apart from their caller, which has no registers to spare.
#[inline(never)]
fn refusal(guard: &Guard, flow: &Flow) -> Option<DropReason> {
    guard.refusal(flow)
}

#[inline(never)]
fn find_in_groups(snapshot: &Snapshot, ahead: &BatchLookup, number: usize, flow: &Flow) -> Option<u32> {
    snapshot.vips.find_ahead(ahead, number, flow)
}

#[inline(never)]
fn is_marked(packet: &Packet<'_>, place: &PlainPacket, protocol: u8) -> bool {
    let frame = packet.frame();
    has_magic(frame, Plain::payload_in(frame, place.family, place.l3, protocol))
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
