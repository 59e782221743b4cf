//! Sends all IP fragments of a datagram to the backend of its first fragment. One thread collects
//! the fragments of a datagram, and the other threads pass fragments to that thread. The collecting
//! thread keeps the decision for the first fragment in its fragment table. A fragment that arrives
//! before the first fragment is held.
//!
//! The same function chooses the backend for a first fragment and for an unfragmented packet, so
//! both reach the same backend.
//!
//! See the Maglev paper (§4.3), RFC 791 (§3.2), RFC 8200 (§4.5) and RFC 1858.

use fragment_table::{Extent, Fate, First, FragmentTable, Key, Later, Millis, Refusal};
use packet::{Family, Fragment, Parsed, protocol};

use super::choice::choose_by_table;
use super::state::{Batch, PacketState, Stage};
use super::threads::gatherer;
use super::{Core, PipelineConfig};
use crate::{
    DropReason, Flow, FragmentTableCounters, HandoffReason, HashPolicy, HoldSlot, Now, Origin, Outlet,
    Packet, ServiceId, SlotId, SlotState, Snapshot, Step, ThreadId, TunnelSourceKind, Verdict,
};

/// The decision for a first fragment, which applies to all fragments of the datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Decided {
    /// All fragments go to this backend.
    To { slot: SlotId, service: ServiceId, hash: u64 },
    /// All fragments are dropped.
    Not(DropReason),
}

/// The fragment table of one packet thread, and data about the frames that it holds.
#[derive(Debug)]
pub(super) struct Fragments {
    table: FragmentTable<Decided>,
    /// The number of held frames per frame pool, indexed by the thread that owns the pool.
    held: Box<[usize]>,
    held_of_a_pool: usize,
    /// For each held frame, the kind of tunnel sender that the frame came from. The index is the
    /// hold slot, which is the frame's index in the driver's table of held frames.
    decapsulated_from: Box<[Option<TunnelSourceKind>]>,
}

/// The key of a datagram in the fragment table, and the hash of this key.
struct Name {
    key: Key,
    hash: u64,
}

impl Fragments {
    pub(super) fn new(config: &PipelineConfig) -> Result<Self, fragment_table::ConfigError> {
        let table = FragmentTable::new(&config.fragments)?;
        Ok(Self {
            decapsulated_from: vec![None; table.config().buffered].into_boxed_slice(),
            table,
            held: vec![0; usize::from(config.threads.max(1))].into_boxed_slice(),
            held_of_a_pool: config.held_of_a_pool,
        })
    }

    pub(super) fn hold_slots(&self) -> usize {
        self.table.config().buffered
    }

    pub(super) fn publish(&self, to: &FragmentTableCounters) {
        let from = self.table.counters();
        to.datagrams.set(self.table.known() as u64);
        to.held.set(self.table.held() as u64);
        to.recorded.set(from.recorded);
        to.duplicates.set(from.duplicates);
        to.followed.set(from.known);
        to.waited.set(from.held);
        to.released.set(from.released);
        to.evicted.set(from.evicted);
        to.replaced.set(from.replaced);
    }

    /// Returns the verdict for a fragment that must wait for its first fragment. The frame is
    /// dropped if this thread already holds too many frames of `pool`. This limit keeps enough
    /// frames in the pool for receiving packets. If the frame is dropped, its hold slot stays empty
    /// and is released together with the other hold slots of the same datagram.
    fn hold(
        &mut self,
        pool: ThreadId,
        slot: fragment_table::HoldSlot,
        decapsulated_from: Option<TunnelSourceKind>,
    ) -> Verdict {
        if let Some(at) = self.decapsulated_from.get_mut(slot.0 as usize) {
            *at = decapsulated_from;
        }
        match self.held.get_mut(usize::from(pool.0)) {
            Some(held) if *held < self.held_of_a_pool => {
                *held += 1;
                Verdict::Hold(HoldSlot(slot.0))
            }
            _ => Verdict::Drop(DropReason::FragmentBufferFull),
        }
    }

    fn released(&mut self, pool: ThreadId) {
        if let Some(held) = self.held.get_mut(usize::from(pool.0)) {
            *held = held.saturating_sub(1);
        }
    }
}

impl Core {
    /// Runs stage 1 (classification) for a fragment. Returns `None` if stage 2 (backend selection)
    /// must choose the backend.
    #[cold]
    pub(super) fn classify_piece(
        &mut self,
        batch: &Batch<'_>,
        packet: &Packet<'_>,
        flow: &Flow,
        state: &mut PacketState,
    ) -> Option<Verdict> {
        let (snapshot, parsed, from) = (batch.snapshot, state.parsed, state.decapsulated_from);
        if let Some(reason) = unwelcome(snapshot, &flow.destination).or_else(|| suspicious(&parsed)) {
            return Some(Verdict::Drop(reason));
        }
        if flow.is_unroutable() {
            return Some(Verdict::Drop(DropReason::Martian));
        }
        // If IPv6 extension headers follow, the transport protocol is known only from the first
        // fragment, so the later fragments could not be assigned to a service.
        let is_bare = parsed.fragment_start(packet.frame()) == parsed.l4;
        if let Some(index) = is_bare.then(|| portless(snapshot, flow)).flatten() {
            return self.enter_portless(batch, flow, index, state).err().map(Verdict::Drop);
        }
        let addresses = parsed.addresses(packet.frame());
        let three = snapshot.hasher.three_tuple(&addresses, datagram_protocol(packet.frame(), &parsed));
        if packet.origin() == Origin::Wire {
            if from.is_none_or(TunnelSourceKind::may_go_on)
                && let Some(slot) = snapshot.peer(three)
            {
                // The 3-tuple hash selects the machine of the cluster that collects the datagram
                // (Maglev paper §4.3).
                self.counters.redirected.add(1);
                (state.choice.slot, state.hash) = (slot, three);
                (state.stage, state.choice.step) = (Stage::Redirect, Some(Step::Redirect));
                return None;
            }
            let gatherer = gatherer(three, self.config.threads);
            if gatherer != self.config.thread {
                let reason = HandoffReason::Fragment { decapsulated_from: from };
                return Some(Verdict::ToThread(gatherer, reason));
            }
        }
        self.classify_gathered(batch, packet, flow, state)
    }

    /// Runs stage 1 (classification) for a fragment on the thread that collects its datagram.
    fn classify_gathered(
        &mut self,
        batch: &Batch<'_>,
        packet: &Packet<'_>,
        flow: &Flow,
        state: &mut PacketState,
    ) -> Option<Verdict> {
        if matches!(state.parsed.fragment, Fragment::Later { .. }) {
            (state.stage, state.choice.step) = (Stage::LaterFragment, Some(Step::FragmentTable));
            return None;
        }
        let entered = match batch.snapshot.vips.first(&flow.destination) {
            Some(index) if is_icmp(flow) => self.enter_portless(batch, flow, index, state),
            _ => self.enter(batch, packet, flow, state),
        };
        state.stage = Stage::FirstFragment;
        let reason = entered.err()?;
        // The drop reason is recorded in the fragment table, so that later fragments are dropped
        // instead of held.
        let decided = self.record(batch, packet, &state.parsed, Decided::Not(reason));
        Some(Verdict::Drop(decided.err().unwrap_or(reason)))
    }

    /// Finds the service and the hash for a fragment if the service does not depend on ports (see
    /// [`portless`]).
    fn enter_portless(
        &mut self,
        batch: &Batch<'_>,
        flow: &Flow,
        index: u32,
        state: &mut PacketState,
    ) -> Result<(), DropReason> {
        let service = batch.snapshot.service(index);
        if let Some(reason) = service.guard.as_ref().and_then(|guard| guard.refusal(flow)) {
            return Err(reason);
        }
        state.hash = batch.snapshot.hasher.hash(without_ports(service.policy), flow);
        (state.key, state.stage) = if is_icmp(flow) {
            (state.hash, Stage::Select)
        } else {
            (crate::selection::flow_key(service, state.hash), Stage::Flow)
        };
        (state.service, state.counted) = (index, service.id);
        Ok(())
    }

    /// Runs stage 2 (backend selection) for a first fragment, on the thread that collects its
    /// datagram.
    #[cold]
    pub(super) fn choose_for_first(
        &mut self,
        batch: &Batch<'_>,
        packet: &Packet<'_>,
        state: &mut PacketState,
    ) -> Result<(), DropReason> {
        let is_keyed = batch.snapshot.service(state.service).policy == HashPolicy::Key;
        let chosen = if is_icmp(&Flow::of(packet.frame(), &state.parsed)) {
            choose_by_table(batch, packet, state)
        } else if is_keyed {
            self.choose_by_key(batch, packet, state)
        } else {
            self.choose_for_flow(batch, packet, state)
        };
        let decided = match chosen {
            Ok(()) => Decided::To { slot: state.choice.slot, service: state.counted, hash: state.hash },
            Err(reason) => Decided::Not(reason),
        };
        let held = self.record(batch, packet, &state.parsed, decided)?;
        if held != decided {
            state.choice.step = Some(Step::FragmentTable);
        }
        follow(batch.snapshot, held, state)
    }

    /// Runs stage 2 (backend selection) for a later fragment, on the thread that collects its
    /// datagram.
    #[cold]
    pub(super) fn choose_for_later(
        &mut self,
        batch: &Batch<'_>,
        packet: &Packet<'_>,
        state: &mut PacketState,
    ) -> Option<Verdict> {
        let name = name(batch.snapshot, packet, &state.parsed);
        let source = batch.snapshot.hasher.source(&name.key.source);
        let fragment = fragment_table::Arrival {
            key: &name.key,
            hash: name.hash,
            extent: extent(packet, &state.parsed),
        };
        match self.fragments.table.later(&fragment, source, millis(batch.now)) {
            Later::Known(decided) => follow(batch.snapshot, decided, state).err().map(Verdict::Drop),
            Later::Hold(slot) => {
                let pool = home(packet, self.config.thread);
                Some(self.fragments.hold(pool, slot, state.decapsulated_from))
            }
            Later::Refused(refusal) => Some(Verdict::Drop(refused(refusal))),
        }
    }

    /// Records the decision for a first fragment. Returns the decision that applies to the
    /// datagram. For a duplicate of the first fragment, the earlier decision is returned.
    fn record(
        &mut self,
        batch: &Batch<'_>,
        packet: &Packet<'_>,
        parsed: &Parsed,
        decided: Decided,
    ) -> Result<Decided, DropReason> {
        let share = usize::from(parsed.fragment_start(packet.frame()));
        let bytes = packet.frame().get(share..usize::from(parsed.end)).unwrap_or_default();
        let digest = batch.snapshot.hasher.digest(bytes);
        let name = name(batch.snapshot, packet, parsed);
        let fragment =
            fragment_table::Arrival { key: &name.key, hash: name.hash, extent: extent(packet, parsed) };
        match self.fragments.table.first(&fragment, digest, decided, millis(batch.now)) {
            First::Recorded => Ok(decided),
            First::Duplicate(before) => Ok(before),
            First::Conflict => Err(DropReason::FragmentConflict),
        }
    }

    /// Sends held fragments after the first fragment of their datagram has arrived, and drops
    /// fragments that have waited too long. One call handles at most `max_batch` fragments.
    pub(super) fn release_pieces(&mut self, batch: &Batch<'_>, outlet: &mut dyn Outlet) {
        self.fragments.table.expire(millis(batch.now), self.config.max_batch);
        for _ in 0..self.config.max_batch {
            let Some(release) = self.fragments.table.release() else { return };
            let slot = HoldSlot(release.slot.0);
            let from = self.fragments.decapsulated_from.get(slot.0 as usize).copied().flatten();
            outlet.release(slot, &mut |packet| {
                self.fragments.released(home(packet, self.config.thread));
                self.tap_before(std::slice::from_ref(&*packet));
                let mut state = PacketState { decapsulated_from: from, ..PacketState::at(0) };
                self.look_at_held(batch, packet, slot);
                let decided = match release.fate {
                    Fate::Forward(decided) => self.forward_piece(batch, packet, decided, &mut state),
                    Fate::Expired => Err(DropReason::FragmentTimeout),
                };
                let verdict = decided.unwrap_or_else(Verdict::Drop);
                if let Verdict::Drop(reason) = verdict {
                    self.counters.dropped(reason);
                }
                self.tap_after(batch, std::slice::from_ref(&*packet), &[state], &[verdict]);
                self.report_marked(batch, &[state], &[verdict]);
                verdict
            });
        }
    }

    fn forward_piece(
        &mut self,
        batch: &Batch<'_>,
        packet: &mut Packet<'_>,
        decided: Decided,
        state: &mut PacketState,
    ) -> Result<Verdict, DropReason> {
        state.parsed = packet::parse(packet.frame()).map_err(|_| DropReason::Malformed)?;
        state.choice.step = Some(Step::FragmentTable);
        follow(batch.snapshot, decided, state)?;
        Ok(self.write(batch, packet, state))
    }
}

/// Applies the decision for the first fragment to another fragment. If the backend went down after
/// the first fragment, the fragment is dropped, because another backend could not reassemble the
/// datagram.
fn follow(snapshot: &Snapshot, decided: Decided, state: &mut PacketState) -> Result<(), DropReason> {
    let (slot, service, hash) = match decided {
        Decided::To { slot, service, hash } => (slot, service, hash),
        Decided::Not(reason) => return Err(reason),
    };
    if !matches!(snapshot.state(slot), SlotState::Serving | SlotState::Draining) {
        return Err(DropReason::NoBackend);
    }
    (state.choice.slot, state.counted, state.hash) = (slot, service, hash);
    Ok(())
}

/// Returns the drop reason if the destination is not a VIP or does not accept fragments. All
/// services of an address have the same setting for fragments.
fn unwelcome(snapshot: &Snapshot, destination: &[u8; 16]) -> Option<DropReason> {
    let service = snapshot.vips.first(destination).and_then(|index| snapshot.services.get(index as usize));
    match service {
        None => Some(DropReason::NoVip),
        Some(service) if !service.fragments => Some(DropReason::Fragment),
        Some(_) => None,
    }
}

fn is_icmp(flow: &Flow) -> bool {
    matches!(flow.protocol, protocol::ICMP | protocol::ICMPV6)
}

/// Returns the service of a fragment if the service does not depend on ports. Such a service covers
/// all ports of the protocol, and its hash policy ignores ports. ICMP fragments belong to the first
/// service of the VIP.
fn portless(snapshot: &Snapshot, flow: &Flow) -> Option<u32> {
    if is_icmp(flow) {
        return snapshot.vips.first(&flow.destination);
    }
    let index = snapshot.vips.whole(&flow.destination, flow.protocol)?;
    let service = snapshot.services.get(index as usize)?;
    (!matches!(service.policy, HashPolicy::FiveTuple | HashPolicy::Key)).then_some(index)
}

/// Returns the hash policy for packets without ports, given the policy of the service.
pub(super) const fn without_ports(policy: HashPolicy) -> HashPolicy {
    match policy {
        HashPolicy::Source => HashPolicy::Source,
        HashPolicy::Addresses | HashPolicy::FiveTuple | HashPolicy::Key => HashPolicy::Addresses,
    }
}

/// Returns the byte range of the datagram that a fragment contains.
fn extent(packet: &Packet<'_>, parsed: &Parsed) -> Extent {
    let Parsed { fragment, .. } = parsed;
    Extent { offset: fragment.offset(), bytes: parsed.fragment_len(packet.frame()), more: fragment.more() }
}

/// Returns a drop reason if no legitimate host would send this fragment.
fn suspicious(parsed: &Parsed) -> Option<DropReason> {
    let carried = parsed.payload_len();
    match (parsed.fragment, parsed.protocol) {
        //= RFC 1858 §4.2.2
        //# IF FO=1 and PROTOCOL=TCP THEN DROP PACKET.
        (Fragment::Later { offset: 8, .. }, protocol::TCP) => Some(DropReason::FragmentOverlap),
        //= RFC 1858 §3.1.2.1
        //# IF FO=0 and PROTOCOL=TCP and TRANSPORTLEN < tmin THEN DROP PACKET
        (Fragment::First { .. }, protocol::TCP) if carried < TCP_HEADER => Some(DropReason::FragmentTiny),
        (Fragment::First { .. }, protocol::UDP | protocol::UDP_LITE) if carried < UDP_HEADER => {
            Some(DropReason::FragmentTiny)
        }
        (Fragment::First { .. }, protocol::SCTP | protocol::DCCP) if carried < SCTP_HEADER => {
            Some(DropReason::FragmentTiny)
        }
        _ => None,
    }
}

fn name(snapshot: &Snapshot, packet: &Packet<'_>, parsed: &Parsed) -> Name {
    let addresses = parsed.addresses(packet.frame());
    let id = parsed.fragment.id().unwrap_or(0);
    let protocol = datagram_protocol(packet.frame(), parsed);
    let key = Key { source: addresses.src, destination: addresses.dst, protocol, id };
    Name { key, hash: snapshot.hasher.datagram(&key) }
}

/// Returns the protocol number that is part of a datagram's key. For IPv4, the result is the
/// protocol field of the IP header. For IPv6, the result is a constant, because the protocol does
/// not identify an IPv6 datagram (RFC 8200 §4.5).
pub(super) fn datagram_protocol(frame: &[u8], parsed: &Parsed) -> u8 {
    match parsed.family {
        Family::V4 => frame.get(usize::from(parsed.l3) + 9).copied().unwrap_or(0),
        Family::V6 => protocol::FRAGMENT,
    }
}

/// Returns the thread whose frame pool owns the packet's frame.
fn home(packet: &Packet<'_>, me: ThreadId) -> ThreadId {
    match packet.origin() {
        Origin::Wire => me,
        Origin::Thread(from, _) => from,
    }
}

fn refused(refusal: Refusal) -> DropReason {
    match refusal {
        Refusal::DatagramFull => DropReason::FragmentDatagramFull,
        Refusal::SourceFull => DropReason::FragmentSourceFull,
        Refusal::BufferFull => DropReason::FragmentBufferFull,
    }
}

fn millis(now: Now) -> Millis {
    Millis(now.nanos() / 1_000_000)
}

/// The minimum number of TCP header bytes in a first fragment, which include the checksum field
/// (`tmin` in RFC 1858 §3.1.1).
const TCP_HEADER: u16 = 16;
const UDP_HEADER: u16 = 8;
/// The length of the common header of SCTP, which is also the shortest header of DCCP.
const SCTP_HEADER: u16 = 12;
