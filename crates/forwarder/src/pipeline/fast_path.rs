//! The fast path for TCP and UDP packets with headers at fixed positions. The fast path takes a
//! third of the time that the slow path takes. The fast path keeps header fields in registers or in
//! one cache line per packet, computes several hashes in parallel, and writes headers with wide
//! stores.
//!
//! This module implements stage 1 (classification), `backend` implements stage 2 (backend
//! selection), and `bytes` implements stage 3 (rewriting). If the fast path cannot handle a packet,
//! the packet moves to the slow path before any of its bytes are changed. Both paths produce the
//! same verdicts, packet bytes and counters (`tests/it/paths.rs`).

mod admission;
mod backend;
mod bytes;

use classifier::{BatchLookup, Ends};
use conntrack::{BucketProbe, Signal};
use packet::{Family, FastHeaders, protocol};
use trace_mark::has_magic;

pub(super) use self::admission::Admission;
use self::backend::KNOWN;
use super::admitted::Admitted;
use super::messages::{Hashed, Messages};
use super::state::{Batch, Choice, FlowPacket, NO_SERVICE, PacketState, Stage};
use super::{Core, Scratch};
use crate::selection::flow_key;
use crate::{
    DropReason, Flow, Guard, HandoffReason, HashPolicy, Origin, Packet, Service, ServiceId, Snapshot,
};
use sip_lanes::LaneHashers;

/// The state of all fast-path packets in a batch.
#[derive(Debug)]
pub(super) struct FastBatch {
    pub(super) places: Box<[FastPacket]>,
    v4: Messages<2>,
    v6: Messages<5>,
    hashers: LaneHashers,
    /// `true` if the batch contains IPv4 packets whose service has not been looked up yet.
    has_read: bool,
    /// `true` if the batch may contain packets that do not take the fast path.
    pub(super) has_others: bool,
    /// `true` if the batch contains fast-path packets without a backend.
    pub(super) is_pending: bool,
}

/// The state of one fast-path packet between two stages, in one cache line.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
pub(super) struct FastPacket {
    hash: u64,
    key: u64,
    marks: Marks,
    /// The result of the bucket probe. No bucket is probed for a SYN packet, in which case the
    /// field still contains the result for an earlier packet.
    bucket_probe: BucketProbe,
    /// The index of the service in the snapshot.
    service: u32,
    /// The service ID, which selects the counters of the service.
    counted: ServiceId,
    /// The backend choice that stage 2 (backend selection) made. If the disposition is
    /// [`Disposition::Known`], only the slot is set.
    choice: Choice,
    ip_len: u16,
    tos: u8,
    flags: u8,
    signal: Signal,
}

/// The fields that have the same values for most packets. They fill one word, so that the compiler
/// sets them with one store.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
struct Marks {
    l3: u16,
    family: Family,
    disposition: Disposition,
    /// The reason if the disposition is [`Disposition::Dropped`].
    reason: DropReason,
    /// `true` if the service has excluded slots. A flow on an excluded slot must move to another
    /// slot.
    excludes: bool,
    /// `true` if the key in the connection table differs from the hash.
    has_other_key: bool,
}

/// The result of stage 1 (classification) for one packet. The values are ordered, so that one
/// comparison finds out whether a packet takes the fast path, and whether it is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
enum Disposition {
    /// The packet takes the slow path. The other fields of its `FastPacket` are unused.
    General,
    /// The packet is a request to a keyed service. Stage 1 (classification) and stage 2 (backend
    /// selection) use its [`PacketState`]. In stage 3 (rewriting), the fast path may write the
    /// headers of this packet.
    Request,
    /// The headers have been read, but no service has been looked up yet. This value exists only
    /// during stage 1 (classification).
    Read,
    /// The packet is dropped.
    Dropped,
    /// The packet is sent to the backend of its flow. No other value follows until the backend is
    /// chosen.
    Flow,
    /// The packet is sent to the backend of its flow, which the connection table contains. The
    /// packet leaves the table unchanged.
    Known,
}

impl Marks {
    const NONE: Self = Self {
        l3: FastHeaders::UNTAGGED,
        family: Family::V4,
        disposition: Disposition::General,
        reason: DropReason::Malformed,
        excludes: false,
        has_other_key: false,
    };
}

impl FastPacket {
    const NONE: Self = Self {
        hash: 0,
        key: 0,
        marks: Marks::NONE,
        bucket_probe: BucketProbe::NONE,
        service: NO_SERVICE,
        counted: ServiceId(NO_SERVICE),
        choice: Choice::NONE,
        ip_len: 0,
        tos: 0,
        flags: 0,
        signal: Signal::Datagram,
    };

    /// Returns `true` if the packet takes the fast path.
    #[inline(always)]
    pub(super) fn is_fast(&self) -> bool {
        self.marks.disposition >= Disposition::Read
    }

    /// Returns `true` if the fast path must still choose the backend of the packet.
    #[inline(always)]
    pub(super) fn is_pending(&self) -> bool {
        self.marks.disposition == Disposition::Flow
    }

    /// Returns the drop reason if the packet is dropped.
    #[inline(always)]
    pub(super) fn refusal(&self) -> Option<DropReason> {
        (self.marks.disposition == Disposition::Dropped).then_some(self.marks.reason)
    }

    /// Stores the header fields of a packet. The signal is computed for the 5-tuple policy, which
    /// most services use.
    #[inline(always)]
    fn take(&mut self, headers: &FastHeaders, disposition: Disposition) {
        self.marks = Marks { l3: headers.l3, family: headers.family, disposition, ..Marks::NONE };
        (self.ip_len, self.tos, self.flags) = (headers.ip_len, headers.tos, headers.tcp_flags);
        self.signal = FlowPacket::signal_of(HashPolicy::FiveTuple, headers.protocol, headers.tcp_flags);
    }

    /// Stores the header fields of an IPv4 packet. Until the service is known, `hash` and `key`
    /// contain the hash input of the flow. The input is computed for the 5-tuple policy.
    #[inline(always)]
    fn note_v4(&mut self, headers: &FastHeaders) {
        self.take(headers, Disposition::Read);
        [self.hash, self.key] = Ends::fast_v4(headers, HashPolicy::FiveTuple);
    }

    /// Returns the headers of the IPv4 packet that `note_v4` stored.
    #[inline(always)]
    const fn noted_v4(&self) -> FastHeaders {
        let (v4, ports, protocol) = Ends::of_fast_v4([self.hash, self.key]);
        let (Self { ip_len, tos, flags: tcp_flags, .. }, l3) = (*self, self.marks.l3);
        let (source, destination) = (FastHeaders::mapped(v4[0]), FastHeaders::mapped(v4[1]));
        FastHeaders {
            family: Family::V4,
            l3,
            ip_len,
            protocol,
            tcp_flags,
            tos,
            ports,
            v4,
            source,
            destination,
        }
    }

    /// Finds the service of a packet and returns its hash policy. Returns `None` if the packet
    /// takes the slow path or is dropped.
    #[inline(always)]
    fn enter(&mut self, arrival: &Arrival<'_>, headers: &FastHeaders) -> Option<HashPolicy> {
        #[expect(clippy::cast_possible_truncation, reason = "the low 16 bits are the destination port")]
        let port = headers.ports as u16;
        let snapshot = arrival.snapshot;
        self.marks.disposition = Disposition::General;
        let is_tunnel = snapshot.opens && headers.protocol == protocol::UDP && port == protocol::GUE_PORT;
        if is_tunnel || snapshot.trace.is_some() && is_marked(arrival.packet, self, headers.protocol) {
            return None;
        }
        let index = if headers.family == Family::V6 && is_mapped(headers.destination) {
            None
        } else if snapshot.vips.is_exact() {
            snapshot.vips.find_exact(headers.destination, headers.protocol, port)
        } else {
            find_in_groups(snapshot, arrival.ahead, arrival.number, &Flow::of_fast(headers))
        };
        let Some(index) = index else {
            if snapshot.has_upstream_requests() && headers.protocol == protocol::UDP {
                return None; // The packet may be a reply to an upstream request.
            }
            self.refuse(DropReason::NoVip);
            return None;
        };
        let service = snapshot.service(index);
        if service.policy == HashPolicy::Key {
            (self.service, self.marks.disposition) = (index, Disposition::Request);
            return None;
        }
        if let Some(guard) = &service.guard
            && let Some(reason) = refusal(guard, &Flow::of_fast(headers))
        {
            self.refuse(reason);
            return None;
        }
        (self.service, self.counted) = (index, service.id);
        let excludes = !service.excluded_slots.is_empty();
        let has_other_key = service.policy != HashPolicy::FiveTuple;
        self.marks = Marks { disposition: Disposition::Flow, excludes, has_other_key, ..self.marks };
        if has_other_key {
            self.signal = Signal::Datagram;
        }
        Some(service.policy)
    }

    /// Returns `true` if the packet is a request to a keyed service.
    #[inline(always)]
    pub(super) fn is_request(&self) -> bool {
        self.marks.disposition == Disposition::Request
    }

    /// Returns the headers of a request to a keyed service, and the index of that service. `frame`
    /// is the frame of the request.
    #[inline(always)]
    pub(super) fn request(&self, frame: &[u8]) -> Option<(FastHeaders, u32)> {
        let headers = match self.marks.family {
            Family::V4 => self.noted_v4(),
            Family::V6 => FastHeaders::read(frame)?,
        };
        Some((headers, self.service))
    }

    /// Returns a keyed request to the fast path after stage 2 (backend selection) if only its
    /// packet headers must be changed.
    #[inline]
    pub(super) fn follow(&mut self, state: &PacketState) {
        let is_answered = state.cached.is_some_and(|cached| cached.copy.is_some());
        let leaves = state.verdict.is_none() && state.stage == Stage::Keyed && !state.is_away && !is_answered;
        if self.is_request() && leaves {
            (self.hash, self.counted, self.choice) = (state.hash, state.counted, state.choice);
            self.marks.disposition = Disposition::Flow;
        }
    }

    #[inline]
    fn refuse(&mut self, reason: DropReason) {
        (self.marks.disposition, self.marks.reason) = (Disposition::Dropped, reason);
        self.choice = Choice::NONE;
        (self.service, self.counted) = (NO_SERVICE, ServiceId(NO_SERVICE));
    }

    /// Returns the packet data that stage 2 (backend selection) of the slow path needs.
    #[inline(always)]
    fn flow_packet<'a>(&self, service: &'a Service, headers: &FastHeaders) -> FlowPacket<'a> {
        FlowPacket {
            service,
            hash: self.hash,
            key: self.key,
            protocol: headers.protocol,
            tcp_flags: headers.tcp_flags,
            decapsulated_from: None,
        }
    }

    /// Returns the state of the packet for the slow path and for packet captures. The result does
    /// not contain the parsed headers.
    fn chosen(&self, place: usize) -> PacketState {
        let Self { hash, key, service, counted, mut choice, marks, .. } = *self;
        if marks.disposition == Disposition::Known {
            choice = Choice { slot: choice.slot, ..KNOWN };
        }
        PacketState { hash, key, service, counted, choice, ..PacketState::at(place) }
    }
}

/// A packet that enters stage 1 (classification) of the fast path.
struct Arrival<'a> {
    snapshot: &'a Snapshot,
    ahead: &'a BatchLookup,
    /// The index of the packet in the batch.
    number: usize,
    packet: &'a Packet<'a>,
}

impl FastBatch {
    /// Creates the state for batches of at most `packets` packets.
    pub(super) fn new(packets: usize, hashers: LaneHashers) -> Self {
        Self {
            places: vec![FastPacket::NONE; packets].into(),
            v4: Messages::new(packets),
            v6: Messages::new(packets),
            hashers,
            has_read: false,
            has_others: false,
            is_pending: false,
        }
    }

    /// Clears the state of the previous batch.
    #[inline(always)]
    pub(super) fn begin(&mut self) -> &mut Self {
        self.v4.clear();
        self.v6.clear();
        (self.has_read, self.has_others) = (false, true);
        self
    }

    /// Reads the headers of untagged IPv4 packets that came from the wire. Returns `true` if the
    /// batch contains other packets that may take the fast path. Each step of stage 1
    /// (classification) is a separate function, so that the compiler has enough CPU registers for
    /// each step.
    #[inline(never)]
    pub(super) fn read_v4(&mut self, packets: &[Packet<'_>]) -> bool {
        let (mut read, mut has_unread) = (0, false);
        for (packet, place) in packets.iter().zip(self.places.iter_mut()) {
            if !may_be_fast(packet.origin()) {
                place.marks = Marks::NONE;
                continue;
            }
            match place.read_v4(packet.frame()) {
                Ok(()) => read += 1,
                Err(is_v4) => has_unread |= !is_v4,
            }
        }
        self.has_read = read > 0;
        self.has_others = read < packets.len();
        has_unread
    }
}

impl FastPacket {
    /// Reads the headers of an untagged IPv4 frame.
    ///
    /// # Errors
    /// Returns the error of [`FastHeaders::read_untagged_v4`].
    #[inline(always)]
    fn read_v4(&mut self, frame: &[u8]) -> Result<(), bool> {
        match FastHeaders::read_untagged_v4(frame) {
            Ok(headers) => {
                self.note_v4(&headers);
                Ok(())
            }
            Err(is_v4) => {
                self.marks = Marks::NONE;
                Err(is_v4)
            }
        }
    }

    /// Finds the service of an IPv4 packet that `note_v4` has read. Returns the hash input of the
    /// flow, or `None` if the packet takes the slow path or is dropped.
    #[inline(never)]
    fn enter_v4(&mut self, arrival: &Arrival<'_>) -> Option<[u64; 2]> {
        let (noted, headers) = ([self.hash, self.key], self.noted_v4());
        match self.enter(arrival, &headers)? {
            HashPolicy::FiveTuple => Some(noted),
            policy => Some(Ends::fast_v4(&headers, policy)),
        }
    }
}

impl Messages<5> {
    // This function is not inlined, because its caller has no CPU registers to spare.
    #[inline(never)]
    fn gather_tagged(&mut self, place: &mut FastPacket, arrival: &Arrival<'_>, l3: u16) {
        if let Some(read) = FastHeaders::read_v6(arrival.packet.frame(), l3) {
            self.gather(place, arrival, &read);
        }
    }

    #[inline(always)]
    fn gather(&mut self, place: &mut FastPacket, arrival: &Arrival<'_>, headers: &FastHeaders) {
        place.take(headers, Disposition::Read);
        if let Some(policy) = place.enter(arrival, headers) {
            let ends = Ends::of(headers);
            let message = match policy {
                // A separate match arm for the most common policy lets the compiler build the
                // message without a branch.
                HashPolicy::FiveTuple => ends.message_v6(HashPolicy::FiveTuple, headers.protocol),
                other => ends.message_v6(other, headers.protocol),
            };
            self.push(arrival.number, message);
        }
    }
}

impl Core {
    /// Runs the rest of stage 1 (classification) of the fast path: finds the services, hashes the
    /// flows and prefetches their buckets of the connection table. `has_unread` is `true` if
    /// packets other than untagged IPv4 packets may take the fast path.
    #[inline(never)]
    pub(super) fn classify_fast<'p>(
        &mut self,
        batch: &Batch<'_>,
        packets: &impl Admitted<'p>,
        scratch: &mut Scratch,
        has_unread: bool,
    ) {
        let fast = &mut scratch.fast;
        if has_unread {
            self.read_others(batch, packets, fast);
        }
        if fast.has_read {
            self.find_services(batch, packets, fast);
        }
        self.counters.fast_path.add((fast.v4.len() + fast.v6.len()) as u64);
        let key = batch.snapshot.hasher.key();
        self.ask_for_flows(batch, &mut fast.places, &fast.v4.hash(key, fast.hashers.two));
        self.ask_for_flows(batch, &mut fast.places, &fast.v6.hash(key, fast.hashers.five));
    }

    /// Reads the headers of IPv6 packets and of packets with VLAN tags.
    #[inline(never)]
    fn read_others<'p>(&self, batch: &Batch<'_>, packets: &impl Admitted<'p>, fast: &mut FastBatch) {
        for (number, (packet, place)) in packets.packets().zip(fast.places.iter_mut()).enumerate() {
            if !may_be_fast(packet.origin()) {
                continue;
            }
            let arrival = Arrival { snapshot: batch.snapshot, ahead: &self.ahead, number, packet };
            let frame = packet.frame();
            match FastHeaders::untagged(frame) {
                Some(Family::V6) if let Some(read) = FastHeaders::read_v6(frame, FastHeaders::UNTAGGED) => {
                    fast.v6.gather(place, &arrival, &read);
                }
                Some(_) => {}
                None => match FastHeaders::tagged(frame) {
                    Some((Family::V4, l3)) if let Some(read) = FastHeaders::read_v4(frame, l3) => {
                        place.note_v4(&read);
                        fast.has_read = true;
                    }
                    Some((Family::V6, l3)) => {
                        fast.v6.gather_tagged(place, &arrival, l3);
                    }
                    _ => {}
                },
            }
        }
    }

    /// Finds the services of the IPv4 packets whose headers were read.
    #[inline(never)]
    fn find_services<'p>(&self, batch: &Batch<'_>, packets: &impl Admitted<'p>, fast: &mut FastBatch) {
        let snapshot = batch.snapshot;
        let is_plain = snapshot.trace.is_none() && !snapshot.opens && snapshot.vips.is_exact();
        let FastBatch { places, v4, has_others, .. } = fast;
        let mut filler = v4.filler();
        for (number, place) in places.iter_mut().enumerate().take(packets.count()) {
            if place.marks.disposition != Disposition::Read {
                continue;
            }
            if is_plain && let Some((index, id)) = snapshot.find_plain([place.hash, place.key]) {
                (place.service, place.counted) = (index, id);
                place.marks.disposition = Disposition::Flow;
                filler.push(number, [place.hash, place.key]);
                continue;
            }
            let Some(packet) = packets.packet(number) else { break };
            let arrival = Arrival { snapshot, ahead: &self.ahead, number, packet };
            if let Some(message) = place.enter_v4(&arrival) {
                filler.push(number, message);
            }
            *has_others |= !place.is_fast();
        }
        let count = filler.count();
        v4.set_len(count);
    }

    #[inline(always)]
    fn ask_for_flows(&self, batch: &Batch<'_>, places: &mut [FastPacket], hashed: &Hashed<'_>) {
        for (number, hash) in hashed.places.iter().zip(hashed.hashes) {
            let Some(place) = places.get_mut(usize::from(*number)) else { continue };
            (place.hash, place.key) = (*hash, *hash);
            if place.signal == Signal::Syn {
                self.ask_for_newcomer(batch, place);
                continue;
            }
            if place.marks.has_other_key {
                place.key = flow_key(batch.snapshot.service(place.service), *hash);
            }
            self.flows.table.prefetch_first(place.key);
        }
    }

    /// Prefetches both buckets of a flow in the connection table and its entry in the Maglev table.
    /// The Maglev entry is prefetched because a SYN packet usually begins a new flow.
    #[inline(always)]
    fn ask_for_newcomer(&self, batch: &Batch<'_>, place: &FastPacket) {
        self.flows.table.prefetch(place.key);
        if let Some(table) = batch.snapshot.service(place.service).pool.table.as_deref() {
            match table.entry(table.slot_of(place.hash)) {
                maglev_hash::Entry::Narrow(rank) => conntrack::prefetch(rank),
                maglev_hash::Entry::Wide(rank) => conntrack::prefetch(rank),
            }
        }
    }
}

impl Scratch {
    /// Returns `true` if the packet with index `place` in the batch was decapsulated.
    pub(super) fn was_tunnelled(&self, place: usize) -> bool {
        let is_fast = self.fast.places.get(place).is_some_and(FastPacket::is_fast);
        !is_fast && self.states.get(place).is_some_and(|state| state.decapsulated_from.is_some())
    }

    /// Copies the state of fast-path packets to `states`, from which packet captures read it.
    #[cold]
    pub(super) fn show_plain(&mut self, packets: usize) {
        for (place, state) in self.fast.places.iter().zip(self.states.iter_mut()).take(packets) {
            if place.is_fast() {
                *state = place.chosen(state.place);
            }
        }
    }
}

// The next three functions are not inlined, because their caller has no CPU registers to spare.
#[inline(never)]
fn refusal(guard: &Guard, flow: &Flow) -> Option<DropReason> {
    guard.refusal(flow)
}

#[inline(never)]
fn find_in_groups(snapshot: &Snapshot, ahead: &BatchLookup, number: usize, flow: &Flow) -> Option<u32> {
    snapshot.vips.find_ahead(ahead, number, flow)
}

#[inline(never)]
fn is_marked(packet: &Packet<'_>, place: &FastPacket, protocol: u8) -> bool {
    let frame = packet.frame();
    has_magic(frame, FastHeaders::payload_in(frame, place.marks.family, place.marks.l3, protocol))
}

/// Returns `true` for an IPv4-mapped IPv6 address. Such an address is not valid on the wire (RFC
/// 4291 §2.5.5.2) and would match an IPv4 VIP.
#[inline(always)]
const fn is_mapped([first, second]: [u64; 2]) -> bool {
    first == 0 && second & 0xffff_ffff == 0xffff_0000
}

/// Returns `true` for packets from the wire and for packets that software steering passed to this
/// thread.
#[inline(always)]
fn may_be_fast(origin: Origin) -> bool {
    matches!(origin, Origin::Wire | Origin::Thread(_, HandoffReason::Steered { decapsulated_from: None }))
}
