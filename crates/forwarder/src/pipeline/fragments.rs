//! Pieces of datagrams: all go where the first one goes.
//!
//! In: a packet that is a piece. Out: the thread that gathers its datagram; there, what was decided for the first piece, or a
//! hold until that comes.
//! Not here: the table (`fragment-table`), the choice for a first piece (stage 2, as for any packet).
//! Invariant: a first piece and a whole packet of one 5-tuple are given the same backend by one function.
//! Source: paper §4.3; RFC 791 §3.2, RFC 8200 §4.5, RFC 1858.

use fragment_table::{Extent, Fate, First, FragmentTable, Key, Later, Millis, Refusal};
use packet::{Family, Fragment, Parsed, protocol};

use super::state::{Batch, PacketState, Stage};
use super::threads::gatherer;
use super::{Core, PipelineConfig, choose_by_table};
use crate::{
    DropReason, Flow, FragmentTableCounters, HandoffReason, HashPolicy, HoldSlot, Now, Origin, Outlet,
    Packet, ServiceId, SlotId, SlotState, Snapshot, Step, ThreadId, TunnelSourceKind, Verdict,
};

/// What was decided for a first piece, and holds for the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Decided {
    /// They go to this backend.
    To { slot: SlotId, service: ServiceId, hash: u64 },
    /// It was dropped, and so are they.
    Not(DropReason),
}

/// One thread's pieces.
#[derive(Debug)]
pub(super) struct Fragments {
    table: FragmentTable<Decided>,
    /// Frames held, by the thread whose pool they are from.
    held: Box<[usize]>,
    held_of_a_pool: usize,
    /// Who had sent each held frame in a tunnel, by its hold slot.
    decapsulated_from: Box<[Option<TunnelSourceKind>]>,
}

/// A piece in the table's terms.
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
        to.succeeded.set(from.succeeded);
    }

    /// Holds a frame of `pool`, unless too many of it are held here: a pool that is held empty receives nothing. A number
    /// that is not used is given back with the others of its datagram.
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
    /// Stage 1 for a piece. `None`: its datagram is gathered here, and stage 2 asks the table.
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
        // Else the others, which show their extension header alone, would not know that service.
        let is_bare = parsed.share(packet.frame()) == parsed.l4;
        if let Some(index) = is_bare.then(|| portless(snapshot, flow)).flatten() {
            return self.enter_portless(batch, flow, index, state).err().map(Verdict::Drop);
        }
        let addresses = parsed.addresses(packet.frame());
        let three = snapshot.hasher.three_tuple(&addresses, datagram_protocol(packet.frame(), &parsed));
        if packet.origin() == Origin::Wire {
            if from.is_none_or(TunnelSourceKind::may_go_on)
                && let Some(slot) = snapshot.peer(three)
            {
                // To the machine whose turn it is by the three-tuple (paper §4.3).
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

    /// The same for a piece that is gathered by this thread.
    fn classify_gathered(
        &mut self,
        batch: &Batch<'_>,
        packet: &Packet<'_>,
        flow: &Flow,
        state: &mut PacketState,
    ) -> Option<Verdict> {
        if matches!(state.parsed.fragment, Fragment::Later { .. }) {
            (state.stage, state.choice.step) = (Stage::LaterPiece, Some(Step::FragmentTable));
            return None;
        }
        let entered = match batch.snapshot.vips.first(&flow.destination) {
            Some(index) if is_icmp(flow) => self.enter_portless(batch, flow, index, state),
            _ => self.enter(batch, packet, flow, state),
        };
        state.stage = Stage::FirstPiece;
        let reason = entered.err()?;
        // Recorded too, so that the others are not held for nothing.
        let decided = self.record(batch, packet, &state.parsed, Decided::Not(reason));
        Some(Verdict::Drop(decided.err().unwrap_or(reason)))
    }

    /// A piece whose ports do not matter, as [`portless`] has it.
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

    /// Stage 2 for a first piece that is gathered here.
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

    /// Stage 2 for a later piece.
    #[cold]
    pub(super) fn choose_for_later(
        &mut self,
        batch: &Batch<'_>,
        packet: &Packet<'_>,
        state: &mut PacketState,
    ) -> Option<Verdict> {
        let name = name(batch.snapshot, packet, &state.parsed);
        let source = batch.snapshot.hasher.source(&name.key.source);
        let piece = fragment_table::Fragment {
            key: &name.key,
            hash: name.hash,
            extent: extent(packet, &state.parsed),
        };
        match self.fragments.table.later(&piece, source, millis(batch.now)) {
            Later::Known(decided) => follow(batch.snapshot, decided, state).err().map(Verdict::Drop),
            Later::Hold(slot) => {
                let pool = home(packet, self.config.thread);
                Some(self.fragments.hold(pool, slot, state.decapsulated_from))
            }
            Later::Refused(refusal) => Some(Verdict::Drop(refused(refusal))),
        }
    }

    /// Enters a decision for a first piece; gives the one that holds.
    fn record(
        &mut self,
        batch: &Batch<'_>,
        packet: &Packet<'_>,
        parsed: &Parsed,
        decided: Decided,
    ) -> Result<Decided, DropReason> {
        let share = usize::from(parsed.share(packet.frame()));
        let bytes = packet.frame().get(share..usize::from(parsed.end)).unwrap_or_default();
        let digest = batch.snapshot.hasher.digest(bytes);
        let name = name(batch.snapshot, packet, parsed);
        let piece =
            fragment_table::Fragment { key: &name.key, hash: name.hash, extent: extent(packet, parsed) };
        match self.fragments.table.first(&piece, digest, decided, millis(batch.now)) {
            First::Recorded => Ok(decided),
            First::Duplicate(before) => Ok(before),
            First::Conflict => Err(DropReason::FragmentConflict),
        }
    }

    /// Sends the held pieces whose first has come, and drops those whose time is over; a batch at a time.
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

/// Sends a piece where the first one went. A backend that went down in between has lost the first piece, so the others are of
/// no use to another one.
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

/// Why a piece for this address goes no further, whatever it carries. All services of an address say the same of pieces.
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

/// The service of a piece whose ports do not matter: the one that takes every port of its protocol, when that is not hashed by
/// ports. ICMP that cannot be answered in place goes to the backends of the VIP's first service.
fn portless(snapshot: &Snapshot, flow: &Flow) -> Option<u32> {
    if is_icmp(flow) {
        return snapshot.vips.first(&flow.destination);
    }
    let index = snapshot.vips.whole(&flow.destination, flow.protocol)?;
    let service = snapshot.services.get(index as usize)?;
    (!matches!(service.policy, HashPolicy::FiveTuple | HashPolicy::Key)).then_some(index)
}

/// What chooses the backend of a packet whose ports do not matter, at a service of this policy.
pub(super) const fn without_ports(policy: HashPolicy) -> HashPolicy {
    match policy {
        HashPolicy::Source => HashPolicy::Source,
        HashPolicy::Addresses | HashPolicy::FiveTuple | HashPolicy::Key => HashPolicy::Addresses,
    }
}

/// The bytes of its datagram that a piece carries.
fn extent(packet: &Packet<'_>, parsed: &Parsed) -> Extent {
    let (offset, more) = match parsed.fragment {
        Fragment::Later { offset, more, .. } => (offset, more),
        Fragment::First { .. } | Fragment::None => (0, true),
    };
    Extent { offset, bytes: parsed.end.saturating_sub(parsed.share(packet.frame())), more }
}

/// What no honest host sends.
fn suspicious(parsed: &Parsed) -> Option<DropReason> {
    let carried = parsed.end.saturating_sub(parsed.l4);
    match (parsed.fragment, parsed.protocol) {
        //= RFC 1858 §4.2.2
        //# IF FO=1 and PROTOCOL=TCP THEN DROP PACKET.
        (Fragment::Later { offset: 8, .. }, protocol::TCP) => Some(DropReason::FragmentOverlap),
        //= RFC 1858 §3.1.2.1
        //# IF FO=0 and PROTOCOL=TCP and TRANSPORTLEN < tmin THEN DROP PACKET
        (Fragment::First { .. }, protocol::TCP) if carried < TCP_HEADER => Some(DropReason::FragmentTiny),
        (Fragment::First { .. }, protocol::UDP) if carried < UDP_HEADER => Some(DropReason::FragmentTiny),
        _ => None,
    }
}

fn name(snapshot: &Snapshot, packet: &Packet<'_>, parsed: &Parsed) -> Name {
    let addresses = parsed.addresses(packet.frame());
    let id = match parsed.fragment {
        Fragment::First { id } | Fragment::Later { id, .. } => id,
        Fragment::None => 0,
    };
    let protocol = datagram_protocol(packet.frame(), parsed);
    let key = Key { source: addresses.src, destination: addresses.dst, protocol, id };
    Name { key, hash: snapshot.hasher.datagram(&key) }
}

/// The protocol as far as it names a datagram: the IPv4 header's, whatever stands behind it. For IPv6 it is no part of the
/// name (RFC 8200 §4.5).
pub(super) fn datagram_protocol(frame: &[u8], parsed: &Parsed) -> u8 {
    match parsed.family {
        Family::V4 => frame.get(usize::from(parsed.l3) + 9).copied().unwrap_or(0),
        Family::V6 => protocol::FRAGMENT,
    }
}

/// The thread whose pool a frame is from.
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

/// RFC 1858 §3.1.1: tmin, up to the checksum.
const TCP_HEADER: u16 = 16;
const UDP_HEADER: u16 = 8;
