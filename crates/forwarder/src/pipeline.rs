//! The road of a packet: parse, match, hash, look up or choose, rewrite.
//!
//! In: a batch of packets. Out: a verdict each. Each stage runs over the whole batch, so that the cache misses of its
//! packets overlap: the first prefetches the flow buckets that the second reads.
//! Not here: rings, threads, the clock. Nothing is allocated after [`Pipeline::new`].
//! Source: paper §3.1 to §3.3.

mod decapsulation;
mod fragments;
mod icmp;
mod identifications;
mod refusal;
mod remote;
mod tap;
mod tracing;

use std::fmt;
use std::sync::Arc;

use conntrack::{FlowTable, Inserted, Signal, Target, Tick};
use packet::{Fragment, ParseError, Parsed, parse, protocol};

pub use self::icmp::IcmpRates;

use self::fragments::Fragments;
use self::identifications::Identifications;
use self::refusal::Cut;
use self::tracing::Tracing;
use crate::capture::Tap;
use crate::guard::{Limits, Meter};
use crate::rewrite::{Fit, RewriteParams, Written, rewrite};
use crate::selection::flow_key;
use crate::snapshot::{Service, SlotId, Snapshot};
use crate::vip_table::BatchLookup;
use crate::{
    DropReason, Flow, Forward, HashPolicy, Live, NoticeSink, Now, Origin, Outlet, Packet, PairCounter,
    Reader, RequestServer, ServiceId, Step, ThreadCounters, ThreadId, Timeouts, TunnelSourceKind, Verdict,
    request,
};

/// What one packet thread's pipeline is made of.
#[derive(Clone, Debug)]
pub struct PipelineConfig {
    /// This thread.
    pub thread: ThreadId,
    /// How many packet threads there are.
    pub threads: u16,
    /// Flows in the connection table, 16 bytes each.
    pub flows: usize,
    /// When flows are forgotten.
    pub timeouts: Timeouts,
    /// The most packets in a batch.
    pub max_batch: usize,
    /// How much ICMP is handled.
    pub icmp: IcmpRates,
    /// Source prefixes whose rates are known at once, 16 bytes each; 0: no source is limited.
    pub limit_sources: usize,
    /// The table of fragmented datagrams.
    pub fragments: fragment_table::Config,
    /// The most frames of one thread's pool that this thread may hold.
    pub held_of_a_pool: usize,
}

/// Why a pipeline's memory could not be taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PipelineError {
    /// The connection table.
    Flows(conntrack::ConfigError),
    /// The table of fragmented datagrams.
    Fragments(fragment_table::ConfigError),
}

impl fmt::Display for PipelineError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Flows(error) => write!(f, "connection table: {error}"),
            Self::Fragments(error) => write!(f, "fragment table: {error}"),
        }
    }
}

impl std::error::Error for PipelineError {}

impl From<conntrack::ConfigError> for PipelineError {
    fn from(error: conntrack::ConfigError) -> Self {
        Self::Flows(error)
    }
}

impl From<fragment_table::ConfigError> for PipelineError {
    fn from(error: fragment_table::ConfigError) -> Self {
        Self::Fragments(error)
    }
}

/// One packet thread's forwarder.
#[derive(Debug)]
pub struct Pipeline {
    // Apart from `core`, so that the snapshot is borrowed from the reader while the stages change the core.
    reader: Reader,
    requests: Option<RequestServer>,
    core: Core,
}

#[derive(Debug)]
struct Core {
    config: PipelineConfig,
    flows: FlowTable,
    fragments: Fragments,
    counters: Arc<ThreadCounters>,
    replies: Meter,
    errors: Meter,
    notices: Option<NoticeSink>,
    /// Packets held to be cut, each in the hold slot of its place behind those of the fragment table.
    cuts: Vec<Cut>,
    limits: Limits,
    tap: Option<Box<Tap>>,
    tracing: Tracing,
    work: Box<[PacketState]>,
    identifications: Identifications,
    swept: Now,
    ahead: BatchLookup,
}

/// What is known of a packet between two stages.
#[derive(Clone, Copy, Debug)]
struct PacketState {
    parsed: Parsed,
    hash: u64,
    key: u64,
    /// Index among the snapshot's services; of a piece without ports, [`NO_SERVICE`].
    service: u32,
    /// The number by which it is counted.
    counted: ServiceId,
    slot: SlotId,
    /// What found the slot.
    step: Option<Step>,
    road: Stage,
    /// Who had sent it in a tunnel.
    decapsulated_from: Option<TunnelSourceKind>,
}

/// What stage 2 has to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// Ask the connection table, then Maglev.
    Flow,
    /// Ask Maglev alone: the ICMP packets of a VIP are no flow.
    Select,
    /// As `Flow`, and record it for the pieces that follow.
    FirstPiece,
    /// Ask the fragment table.
    LaterPiece,
    /// Ask the connection tables of all threads, then Maglev.
    IcmpError,
    /// Nothing: it goes to the machine that gathers its datagram.
    Redirect,
    /// Nothing more: the connection table was asked, and did not know it.
    NewFlow,
}

impl Pipeline {
    /// Takes its memory: the connection table and a batch of scratch space.
    ///
    /// # Errors
    /// [`PipelineError`]: what the tables say of their sizes and time-outs.
    pub fn new(
        config: PipelineConfig,
        live: &Live,
        counters: Arc<ThreadCounters>,
        requests: Option<RequestServer>,
    ) -> Result<Self, PipelineError> {
        let flows = FlowTable::new(&conntrack::Config { capacity: config.flows, timeouts: config.timeouts })?;
        let limits = Limits::new(config.threads, config.limit_sources);
        let ahead = BatchLookup::new(config.max_batch);
        let work = vec![NO_STATE; config.max_batch].into_boxed_slice();
        let identifications = Identifications::of(config.thread, config.threads);
        let fragments = Fragments::new(&config)?;
        // A batch, and as many held pieces that were released.
        let cuts = Vec::with_capacity(config.max_batch * 2);
        let tracing = Tracing::new(live.clock().clone(), config.max_batch, fragments.hold_slots());
        let core = Core {
            config,
            flows,
            fragments,
            counters,
            replies: Meter::default(),
            errors: Meter::default(),
            notices: None,
            cuts,
            limits,
            tap: None,
            tracing,
            work,
            identifications,
            swept: Now::default(),
            ahead,
        };
        Ok(Self { reader: live.reader(), requests, core })
    }

    /// Tells the control plane what happens through `sink`.
    #[must_use]
    pub fn with_notices(mut self, sink: NoticeSink) -> Self {
        self.core.notices = Some(sink);
        self
    }

    /// The connection table, for tests and `replay`.
    #[must_use]
    pub fn flows(&self) -> &FlowTable {
        &self.core.flows
    }

    /// The counters that this pipeline writes.
    #[must_use]
    pub fn counters(&self) -> &Arc<ThreadCounters> {
        &self.core.counters
    }
}

impl Core {
    /// Stage 1: parse, match the VIP, hash, ask memory for the flow's buckets.
    fn classify(
        &mut self,
        snapshot: &Snapshot,
        now: Now,
        packet: &mut Packet<'_>,
        place: usize,
    ) -> Option<Verdict> {
        let frame = packet.frame();
        let parsed = match parse(frame) {
            Ok(parsed) => parsed,
            Err(error) => return Some(Verdict::Drop(unreadable(error))),
        };
        if snapshot.opens && decapsulation::may_carry(&parsed) && packet.origin() == Origin::Wire {
            let decapsulated_from = self.open(snapshot, now, packet, place, &parsed);
            if let Some(verdict) = decapsulated_from {
                return verdict;
            }
        }
        self.classify_parsed(snapshot, now, packet, place, parsed, decapsulated_before(packet.origin()))
    }

    /// Stage 1 behind the parser, for packets that came plain and for those that were opened.
    #[inline]
    fn classify_parsed(
        &mut self,
        snapshot: &Snapshot,
        now: Now,
        packet: &mut Packet<'_>,
        place: usize,
        parsed: Parsed,
        decapsulated_from: Option<TunnelSourceKind>,
    ) -> Option<Verdict> {
        self.look_for_mark(snapshot, packet.frame(), &parsed, (place, decapsulated_from));
        let flow = flow_of(packet.frame(), &parsed);
        if parsed.fragment != Fragment::None {
            return self.classify_piece(snapshot, now, packet, place, parsed, (&flow, decapsulated_from));
        }
        if matches!(parsed.protocol, protocol::ICMP | protocol::ICMPV6) {
            return self.classify_icmp(snapshot, now, packet, place, &parsed, (&flow, decapsulated_from));
        }
        self.enter(snapshot, place, parsed, &flow, (Stage::Flow, decapsulated_from)).err().map(Verdict::Drop)
    }

    /// Finds the service of a packet with ports, and hashes it for stage 2.
    #[inline]
    fn enter(
        &mut self,
        snapshot: &Snapshot,
        place: usize,
        parsed: Parsed,
        flow: &Flow,
        (road, decapsulated_from): (Stage, Option<TunnelSourceKind>),
    ) -> Result<(), DropReason> {
        let (to, port) = (&flow.destination, flow.destination_port);
        let index = snapshot.vips.find_ahead(&self.ahead, place, (to, flow.protocol, port));
        let index = index.ok_or(DropReason::NoVip)?;
        let service = snapshot.services.get(index as usize).ok_or(DropReason::NoVip)?;
        if let Some(reason) = service.guard.as_ref().and_then(|guard| guard.refusal(flow)) {
            return Err(reason);
        }
        let hash = snapshot.hasher.hash(service.policy, flow);
        let key = flow_key(service, hash);
        self.flows.prefetch(key);
        if let Some(work) = self.work.get_mut(place) {
            let counted = service.id;
            *work = PacketState {
                parsed,
                hash,
                key,
                service: index,
                counted,
                road,
                decapsulated_from,
                ..NO_STATE
            };
        }
        Ok(())
    }

    /// Stage 2: the flow's backend, from the connection table or from Maglev.
    #[inline]
    fn choose(
        &mut self,
        snapshot: &Snapshot,
        (now, tick): (Now, Tick),
        packet: &Packet<'_>,
        place: usize,
    ) -> Result<(), DropReason> {
        let Some(work) = self.work.get_mut(place) else { return Err(DropReason::NoVip) };
        let Some(service) = snapshot.services.get(work.service as usize) else {
            return Err(DropReason::NoVip);
        };
        if work.road == Stage::Select {
            let selection = snapshot.select(&service.pool, work.hash);
            let selection = selection.or_else(|| remote::select(snapshot, service, packet, work));
            work.slot = selection.ok_or(DropReason::NoBackend)?.slot;
            return Ok(());
        }
        let signal = signal(service, &work.parsed);
        let hit = self.flows.lookup(work.key, signal, tick);
        if let Some(hit) = hit {
            let slot = SlotId(hit.slot);
            if snapshot.keeps(service, slot, hit.renewed)
                && !remote::stays(snapshot, slot, work.decapsulated_from)
            {
                (work.slot, work.step) = (slot, Some(Step::FlowTable));
                return Ok(());
            }
        } else {
            work.road = Stage::NewFlow;
            if let Some(guard) = service.guard.as_deref().filter(|guard| guard.is_limited()) {
                self.limits.admit(guard, &snapshot.hasher, &flow_of(packet.frame(), &work.parsed), now)?;
            }
        }
        let local = snapshot.select(&service.pool, work.hash);
        let Some(selection) = local.or_else(|| remote::select(snapshot, service, packet, work)) else {
            if hit.is_some_and(|hit| hit.renewed) {
                // Else the SYN's repetition would be taken for a flow that the draining backend has.
                self.flows.forget(work.key, tick);
            }
            return Err(DropReason::NoBackend);
        };
        let (key, slot) = (work.key, selection.slot);
        let (entry, rehashed) = (selection.entry, selection.rehashed);
        let maglev = Step::Maglev { entry, rehashed, reselected: hit.is_some() };
        (work.slot, work.step) = (slot, Some(if local.is_some() { maglev } else { Step::Remote }));
        for pair in self.pairs(slot, Some(service.id.0)) {
            pair.flows.add(1);
        }
        if selection.rehashed > 0 {
            self.counters.rehashed.add(1);
        }
        if local.is_none() {
            self.counters.remote_flows.add(1);
        }
        if hit.is_some() {
            self.counters.reselected.add(1);
            self.flows.reassign(key, slot.0, tick);
        } else {
            // A full table forwards by Maglev alone; the table counts it.
            let (Inserted::Tracked | Inserted::Untracked) =
                self.flows.insert(key, Target { slot: slot.0, vip: service.id.0 }, signal, tick);
        }
        Ok(())
    }

    /// The counters of a slot and of a service, as far as these have any.
    #[inline]
    fn pairs(&self, slot: SlotId, service: Option<u32>) -> impl Iterator<Item = &PairCounter> {
        let service = service.and_then(|id| self.counters.service(id));
        [self.counters.backend(slot.0), service].into_iter().flatten()
    }

    /// Stage 3: the bytes.
    #[inline]
    fn write(&mut self, snapshot: &Snapshot, now: Now, packet: &mut Packet<'_>, place: usize) -> Verdict {
        let Some(work) = self.work.get(place) else { return Verdict::Drop(DropReason::NoVip) };
        let Some(slot) = snapshot.slots.get(work.slot.0 as usize) else {
            return Verdict::Drop(DropReason::NoBackend);
        };
        if work.decapsulated_from == Some(TunnelSourceKind::Cluster) && slot.is_redirect() {
            return Verdict::Drop(DropReason::NoBackend);
        }
        let bytes = packet.frame().len();
        let identification = self.identifications.next();
        let mode = &snapshot.next_hop;
        let order = RewriteParams {
            parsed: &work.parsed,
            slot,
            mode,
            hash: work.hash,
            identification,
            limit: slot.mtu.into(),
            lower_ttl: work.road != Stage::Redirect,
            redirected: remote::redirected(work.decapsulated_from),
        };
        match rewrite(packet, &order) {
            Ok(Written { fit: Fit::Exact, .. }) => {}
            Ok(Written { fit: Fit::Moved, .. }) => self.counters.head_room_mismatch.add(1),
            Err(reason) => return self.refuse(snapshot, now, packet, place, reason),
        }
        self.count_forwarded(work, bytes);
        Verdict::Tx
    }

    /// Counts a packet for its backend and its service, as it came.
    #[inline]
    fn count_forwarded(&self, work: &PacketState, bytes: usize) {
        for pair in self.pairs(work.slot, Some(work.counted.0)) {
            pair.packets.add(1);
            pair.bytes.add(bytes as u64);
        }
    }

    /// The stages, one after the other over the whole batch.
    fn forward(
        &mut self,
        snapshot: &Snapshot,
        now: Now,
        packets: &mut [Packet<'_>],
        verdicts: &mut [Verdict],
    ) {
        self.tap_before(packets);
        self.ahead.look_up(&snapshot.vips, packets.iter().map(|packet| packet.frame()));
        for (place, (packet, verdict)) in packets.iter_mut().zip(verdicts.iter_mut()).enumerate() {
            // Tx stands for "still on the road" until the last stage has confirmed it.
            *verdict = self.classify(snapshot, now, packet, place).unwrap_or(Verdict::Tx);
        }
        let tick = now.tick();
        for (place, (packet, verdict)) in packets.iter().zip(verdicts.iter_mut()).enumerate() {
            if *verdict != Verdict::Tx {
                continue;
            }
            let road = self.work.get(place).map_or(Stage::Flow, |work| work.road);
            if road == Stage::Redirect {
                continue; // to the machine that was chosen
            }
            if matches!(road, Stage::FirstPiece | Stage::LaterPiece) {
                *verdict = self.choose_piece(snapshot, now, packet, place);
            } else if road == Stage::IcmpError {
                *verdict = self.choose_for_error(snapshot, tick, packet, place);
            } else if let Err(reason) = self.choose(snapshot, (now, tick), packet, place) {
                *verdict = Verdict::Drop(reason);
            }
        }
        for (place, (packet, verdict)) in packets.iter_mut().zip(verdicts.iter_mut()).enumerate() {
            if *verdict == Verdict::Tx {
                *verdict = self.write(snapshot, now, packet, place);
            }
            if let Verdict::Drop(reason) = *verdict {
                self.counters.dropped(reason);
            }
        }
        self.tap_after(snapshot, now, packets, verdicts);
        self.tell_of_marked(snapshot, now, verdicts);
    }

    /// Frees expired entries, one round an hour however often it is called: long before the 24-bit tick comes round to
    /// them again, and in steps that no packet notices.
    fn sweep(&mut self, now: Now) {
        let passed = u128::from(now.nanos().saturating_sub(self.swept.nanos()));
        let due = self.flows.buckets() as u128 * passed / SWEEP_ROUND_NANOS;
        if due > 0 {
            self.flows.sweep(usize::try_from(due).unwrap_or(SWEEP_BUCKETS).min(SWEEP_BUCKETS), now.tick());
            self.swept = now;
        }
    }

    fn publish_table_counters(&self) {
        self.fragments.publish(&self.counters.fragment_table);
        let (from, to) = (self.flows.counters(), &self.counters.flow_table);
        to.entries.set(self.flows.len() as u64);
        to.capacity.set(self.config.flows as u64);
        to.hits.set(from.hit);
        to.misses.set(from.miss);
        to.inserts.set(from.insert);
        to.refreshes.set(from.refresh);
        to.expired.set(from.expired);
        to.evicted.set(from.evicted_from_probation);
        to.untracked.set(from.untracked);
    }
}

impl Forward for Pipeline {
    #[inline]
    fn process(&mut self, now: Now, packets: &mut [Packet<'_>], verdicts: &mut [Verdict]) {
        assert_eq!(packets.len(), verdicts.len(), "one verdict a packet");
        assert!(packets.len() <= self.core.work.len(), "at most max_batch packets");
        self.core.forward(self.reader.load(), now, packets, verdicts);
    }

    fn poll(&mut self, now: Now, outlet: &mut dyn Outlet) {
        let core = &mut self.core;
        core.release_pieces(self.reader.load(), now, outlet);
        core.send_cuts(self.reader.load(), outlet);
        core.sweep(now);
        core.publish_table_counters();
        if let Some(server) = &mut self.requests {
            let (thread, snapshot) = (core.config.thread, self.reader.load());
            let (flows, tap) = (&mut core.flows, &mut core.tap);
            server.serve(&mut request::Context { thread, snapshot, flows, tap, now: now.tick() });
        }
    }

    fn is_asked(&self) -> bool {
        self.requests.as_ref().is_some_and(RequestServer::is_asked)
    }

    fn failed(&mut self, reason: DropReason) {
        self.core.counters.dropped(reason);
    }

    fn max_batch(&self) -> usize {
        self.core.work.len()
    }

    fn hold_slots(&self) -> usize {
        self.core.fragments.hold_slots() + self.core.cuts.capacity()
    }
}

/// Why a frame that the parser refuses is dropped.
fn unreadable(error: ParseError) -> DropReason {
    match error {
        ParseError::NotIp => DropReason::NotIp,
        ParseError::Malformed(_) => DropReason::Malformed,
    }
}

/// Who had sent a packet in a tunnel that another thread opened.
#[inline]
fn decapsulated_before(origin: Origin) -> Option<TunnelSourceKind> {
    match origin {
        Origin::Thread(_, reason) => reason.decapsulated_from(),
        Origin::Wire => None,
    }
}

/// The 5-tuple of a parsed frame.
#[inline]
fn flow_of(frame: &[u8], parsed: &Parsed) -> Flow {
    let addresses = parsed.addresses(frame);
    Flow {
        source: addresses.src,
        destination: addresses.dst,
        source_port: parsed.src_port,
        destination_port: parsed.dst_port,
        protocol: parsed.protocol,
    }
}

/// What a packet tells the connection table. Flows of address policies have no TCP state: many connections share one.
#[inline]
fn signal(service: &Service, parsed: &Parsed) -> Signal {
    if parsed.protocol != protocol::TCP || service.policy != HashPolicy::FiveTuple {
        return Signal::Datagram;
    }
    match parsed.tcp_flags {
        flags if flags & (TCP_FIN | TCP_RST) != 0 => Signal::FinOrRst,
        flags if flags & (TCP_SYN | TCP_ACK) == TCP_SYN => Signal::Syn,
        _ => Signal::Data,
    }
}

const NO_STATE: PacketState = PacketState {
    parsed: Parsed {
        family: packet::Family::V4,
        l3: 0,
        l4: 0,
        end: 0,
        protocol: 0,
        src_port: 0,
        dst_port: 0,
        tcp_flags: 0,
        fragment: Fragment::None,
        tos: 0,
        ttl: 0,
        dont_fragment: false,
    },
    hash: 0,
    key: 0,
    service: NO_SERVICE,
    counted: ServiceId(NO_SERVICE),
    slot: SlotId(u32::MAX),
    step: None,
    road: Stage::Flow,
    decapsulated_from: None,
};
/// No service has this index, and none is counted under this number.
const NO_SERVICE: u32 = u32::MAX;
const TCP_FIN: u8 = 0x01;
const TCP_SYN: u8 = 0x02;
const TCP_RST: u8 = 0x04;
const TCP_ACK: u8 = 0x10;
/// An hour.
const SWEEP_ROUND_NANOS: u128 = 3_600_000_000_000;
/// At ten polls a second, as a sleeping thread has them, this is more than the largest table needs.
const SWEEP_BUCKETS: usize = 4096;
