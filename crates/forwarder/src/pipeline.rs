//! The road of a packet: parse, match, hash, look up or choose, rewrite.
//!
//! In: a batch of packets. Out: a verdict each. Each stage runs over the whole batch, so that the cache misses of its
//! packets overlap: the first prefetches the flow buckets that the second reads.
//! Not here: rings, threads, the clock. Nothing is allocated after [`Pipeline::new`]. Source: paper §3.1 to §3.3.

mod cache;
mod choice;
mod config;
mod decapsulation;
mod entry;
mod error;
mod expiry;
mod fragments;
mod gather;
mod icmp;
mod keyed;
mod keyed_state;
mod messages;
mod outer_error;
mod own_exchange;
mod own_requests;
mod partial;
mod plain;
mod refusal;
mod remote;
mod replicas;
mod state;
mod steering;
mod tap;
mod threads;
mod through;
mod tracing;
mod way_back;

use std::sync::Arc;

use classifier::{BatchLookup, Limits, Meter, is_v4};
use conntrack::{FlowTable, Former};
use packet::{Family, Fragment, Identifications, ParseError, Parsed, parse, protocol};

pub use self::config::{IcmpRates, PipelineConfig};
pub use self::error::PipelineError;
pub use self::own_requests::OwnRequests;
pub use self::steering::{SoftwareSteering, SteeringConfig};

use self::expiry::ShortLived;
use self::fragments::Fragments;
use self::keyed_state::KeyedState;
use self::own_requests::OwnTable;
use self::partial::Looks;
use self::plain::PlainBatch;
use self::refusal::Cut;
use self::state::{Batch, CachedRead, PacketState, Stage};
use self::tracing::Tracing;
use crate::capture::Tap;
use crate::flows::Flows;
use crate::rewrite::{Fit, RewriteParams, rewrite};
use crate::{
    DropReason, Flow, Forward, HandoffReason, Live, NoticeSink, Now, Origin, Outlet, Packet, Reader,
    RequestServer, Slot, ThreadCounters, ThreadId, TunnelSourceKind, ValueCache, Verdict, request,
};

/// One packet thread's forwarder.
#[derive(Debug)]
pub struct Pipeline {
    // Apart from `core`, so that the snapshot is borrowed from the reader while the stages change the core.
    reader: Reader,
    requests: Option<RequestServer>,
    scratch: Scratch,
    core: Core,
}

/// What is known of a batch's packets between stages.
#[derive(Debug)]
struct Scratch {
    /// As many as a batch has packets at most.
    states: Box<[PacketState]>,
    plain: PlainBatch,
    /// Whether plain packets have a path of their own.
    has_plain_path: bool,
}

impl Scratch {
    fn new(config: &PipelineConfig) -> Self {
        let states = (0..config.max_batch).map(PacketState::at).collect();
        Self { states, plain: PlainBatch::new(config.max_batch, config.hashers), has_plain_path: true }
    }
}

#[derive(Debug)]
struct Core {
    config: PipelineConfig,
    flows: Flows,
    fragments: Fragments,
    counters: Arc<ThreadCounters>,
    meters: Meters,
    notices: Option<NoticeSink>,
    /// Packets held to be cut, each in the hold slot of its place behind those of the fragment table.
    cuts: Vec<Cut>,
    limits: Limits,
    tap: Option<Box<Tap>>,
    keyed: KeyedState,
    tracing: Tracing,
    identifications: Identifications,
    looks: Looks,
    ahead: BatchLookup,
}

/// What `IcmpRates` bounds.
#[derive(Debug, Default)]
struct Meters {
    replies: Meter,
    too_big_errors: Meter,
    errors: Meter,
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
        let table = conntrack::Config { capacity: config.flows, timeouts: config.timeouts };
        let flows = FlowTable::new_advised(&table, config.advise)?;
        let limits = Limits::new(config.threads, config.limit_sources);
        let ahead = BatchLookup::new(config.max_batch);
        let scratch = Scratch::new(&config);
        let identifications = Identifications::of(config.thread.0, config.threads);
        let fragments = Fragments::new(&config)?;
        // A batch, and as many held pieces that were released.
        let cuts = Vec::with_capacity(config.max_batch * 2);
        let tracing = Tracing::new(live.clock().clone(), config.max_batch, fragments.hold_slots());
        let own = OwnTable::new(config.own_requests.as_ref(), config.thread)?;
        let keyed = KeyedState::new(own, ShortLived::new(live.clock().clone()));
        let core = Core {
            config,
            flows: Flows::new(flows),
            fragments,
            counters,
            meters: Meters::default(),
            notices: None,
            cuts,
            limits,
            tap: None,
            keyed,
            tracing,
            identifications,
            looks: Looks::default(),
            ahead,
        };
        Ok(Self { reader: live.reader(), requests, scratch, core })
    }

    /// The connection table, for what another pipeline knew: before the first packet.
    pub fn flows_mut(&mut self) -> &mut FlowTable {
        &mut self.core.flows.table
    }

    /// Has it ask for flows that its connection table does not know, before Maglev, up to `until`: the longest time-out after their
    /// last packet. Before the first packet.
    pub fn ask_former(&mut self, flows: Arc<Former>, until: Now) {
        let is_first = self.core.config.thread == ThreadId(0);
        self.core.flows.ask_former(flows, until, is_first);
    }

    /// Sends notices to the control plane through `sink`.
    #[must_use]
    pub fn with_notices(mut self, sink: NoticeSink) -> Self {
        self.core.notices = Some(sink);
        self
    }

    /// Answers reads from this cache, until another is put in its place.
    #[must_use]
    pub fn with_cache(mut self, cache: Box<ValueCache>) -> Self {
        self.core.keyed.cache = Some(cache);
        self
    }

    /// Sends every packet by the general path: what comes of them is the same, later.
    #[must_use]
    pub fn without_plain_path(mut self) -> Self {
        self.scratch.has_plain_path = false;
        self
    }

    /// The connection table, for tests and `replay`.
    #[must_use]
    pub fn flows(&self) -> &FlowTable {
        &self.core.flows.table
    }

    /// The counters that this pipeline writes.
    #[must_use]
    pub fn counters(&self) -> &Arc<ThreadCounters> {
        &self.core.counters
    }
}

impl Core {
    /// Stage 1: parse, match the VIP, hash, ask memory for the flow's buckets.
    #[inline(never)]
    fn classify(
        &mut self,
        batch: &Batch<'_>,
        packet: &mut Packet<'_>,
        state: &mut PacketState,
    ) -> Option<Verdict> {
        let (parsed, from) = match self.read(batch, packet) {
            Ok(read) => read,
            Err(verdict) => {
                *state = PacketState::at(state.place);
                return Some(verdict);
            }
        };
        *state = PacketState::of(state.place, parsed, from);
        self.look_for_mark(batch, packet.frame(), state);
        let flow = Flow::of(packet.frame(), &parsed);
        // Such an address stands for one of IPv4 inside a host, and on no wire (RFC 4291 §2.5.5.2): it would match an IPv4 VIP.
        if parsed.family == Family::V6 && is_v4(&flow.destination) {
            return Some(Verdict::Drop(DropReason::NoVip));
        }
        if parsed.fragment != Fragment::None {
            return self.classify_piece(batch, packet, &flow, state);
        }
        if let Some(verdict) = self.classify_answer(batch, packet, &flow, state) {
            return Some(verdict);
        }
        if matches!(parsed.protocol, protocol::ICMP | protocol::ICMPV6) {
            return self.classify_icmp(batch, packet, &flow, state);
        }
        self.enter(batch, packet, &flow, state).err().map(Verdict::Drop)
    }

    /// Parses a packet, or what is in it if it came in a tunnel of `TunnelSourceKind`; the verdict of one that ends here.
    #[inline(always)]
    fn read(
        &mut self,
        batch: &Batch<'_>,
        packet: &mut Packet<'_>,
    ) -> Result<(Parsed, Option<TunnelSourceKind>), Verdict> {
        let parsed = parse(packet.frame()).map_err(|error| Verdict::Drop(unreadable(error)))?;
        if batch.snapshot.opens
            && decapsulation::may_carry(&parsed)
            && packet.origin() == Origin::Wire
            && let Some(inner) = self.decapsulate(batch, packet, &parsed).map_err(Verdict::Drop)?
        {
            let from = Some(inner.from);
            return match self.thread_of_inner(batch, packet, &inner) {
                None => Ok((inner.parsed, from)),
                Some(thread) => {
                    Err(Verdict::ToThread(thread, HandoffReason::Steered { decapsulated_from: from }))
                }
            };
        }
        Ok((parsed, decapsulated_before(packet.origin())))
    }

    /// Stage 2: the slot. `None`: it goes there.
    #[inline(never)]
    fn choose(&mut self, batch: &Batch<'_>, packet: &Packet<'_>, state: &mut PacketState) -> Option<Verdict> {
        match state.stage {
            Stage::Flow => self.choose_for_flow(batch, packet, state).err().map(Verdict::Drop),
            Stage::Keyed | Stage::Through => {
                self.choose_by_key(batch, packet, state).err().map(Verdict::Drop)
            }
            Stage::Gather => Some(self.begin_gather(batch, packet, state).unwrap_or_else(Verdict::Drop)),
            Stage::Replicate => Some(self.begin_write(batch, packet, state).unwrap_or_else(Verdict::Drop)),
            Stage::Refuse => self.admit_request(batch, packet, state).err().map(Verdict::Drop),
            Stage::Select => choose_by_table(batch, packet, state).err().map(Verdict::Drop),
            Stage::FirstPiece => self.choose_for_first(batch, packet, state).err().map(Verdict::Drop),
            Stage::LaterPiece => self.choose_for_later(batch, packet, state),
            Stage::IcmpError => self.choose_for_error(batch, packet, state),
            Stage::OuterError => self.look_for_quoted(batch, packet, state),
            Stage::Redirect => None,
        }
    }

    /// The flow's backend.
    #[inline]
    fn choose_for_flow(
        &mut self,
        batch: &Batch<'_>,
        packet: &Packet<'_>,
        state: &mut PacketState,
    ) -> Result<(), DropReason> {
        let flow_packet = state.flow_packet(batch);
        let PacketState { parsed, choice, .. } = state;
        self.choose_backend(batch, &flow_packet, || Flow::of(packet.frame(), parsed), choice)
    }

    /// Stage 3: the bytes.
    #[inline(never)]
    fn write(&mut self, batch: &Batch<'_>, packet: &mut Packet<'_>, state: &PacketState) -> Verdict {
        if let Some(CachedRead { copy: Some(number), .. }) = state.cached
            && self.answer_from_copy(batch, packet, state, number)
        {
            return Verdict::Reply;
        }
        // A slot of the connection table may be of an earlier snapshot.
        let Some(slot) = batch.snapshot.slots.get(state.choice.slot.0 as usize) else {
            return self.write_without_slot(batch, packet, state);
        };
        if state.decapsulated_from == Some(TunnelSourceKind::Cluster) && slot.is_redirect() {
            return Verdict::Drop(DropReason::NoBackend);
        }
        if state.is_away {
            return self.write_short_lived(batch, packet, state);
        }
        if state.stage == Stage::Through {
            return self.write_through(batch, packet, state, slot);
        }
        let bytes = packet.frame().len();
        let params = self.rewrite_params(batch, slot, state);
        match rewrite(packet, &params) {
            Ok(written) => self.count_move(written.fit),
            Err(reason) => return self.refuse(batch, packet, state, reason),
        }
        self.count_forwarded(state, bytes);
        Verdict::Tx
    }

    /// How a packet leaves for a slot, within its MTU.
    #[inline]
    fn rewrite_params<'a>(
        &mut self,
        batch: &Batch<'a>,
        slot: &'a Slot,
        state: &'a PacketState,
    ) -> RewriteParams<'a> {
        RewriteParams {
            parsed: &state.parsed,
            slot,
            mode: &batch.snapshot.next_hop,
            hash: state.hash,
            identification: self.identifications.next_v4(),
            limit: slot.mtu.into(),
            lower_ttl: state.stage != Stage::Redirect,
            redirected: remote::redirected(state.decapsulated_from),
        }
    }

    /// Counts a packet that had to be moved to make room for its headers.
    #[inline]
    fn count_move(&self, fit: Fit) {
        if fit == Fit::Moved {
            self.counters.head_room_mismatch.add(1);
        }
    }

    /// Counts a packet for its backend and its service, as it came.
    #[inline]
    fn count_forwarded(&self, state: &PacketState, bytes: usize) {
        self.count_for(state.choice.slot, state.counted, |pair| {
            pair.packets.add(1);
            pair.bytes.add(bytes as u64);
        });
    }

    /// The stages, one after the other over the whole batch. There are as many verdicts as packets.
    fn forward(
        &mut self,
        batch: &Batch<'_>,
        packets: &mut [Packet<'_>],
        scratch: &mut Scratch,
        verdicts: &mut [Verdict],
    ) {
        ask_for_headers(packets);
        self.tap_before(packets);
        self.ahead.look_up(&batch.snapshot.vips, packets.iter().map(|packet| packet.frame()));
        self.read_plain(batch, packets, scratch);
        self.classify_others(batch, packets, scratch);
        self.glance_at_flows(scratch.plain.places.get_mut(..packets.len()).unwrap_or_default());
        self.look_for_partial(batch, packets, scratch);
        self.choose_all(batch, packets, scratch);
        self.write_all(batch, packets, scratch, verdicts);
        if self.tap.is_some() {
            scratch.show_plain(packets.len());
        }
        let states = scratch.states.get(..packets.len()).unwrap_or_default();
        self.tap_after(batch, packets, states, verdicts);
        self.report_marked(batch, states, verdicts);
    }

    /// Stage 1 for what is not plain.
    #[inline(never)]
    fn classify_others(&mut self, batch: &Batch<'_>, packets: &mut [Packet<'_>], scratch: &mut Scratch) {
        let places = scratch.plain.places.iter().zip(scratch.states.iter_mut());
        for (packet, (place, state)) in packets.iter_mut().zip(places) {
            if place.is_plain() {
                continue;
            }
            state.verdict = match place.is_request() {
                true => self.classify_request(batch, packet, place, state),
                false => self.classify(batch, packet, state),
            };
        }
    }

    /// Stage 2, in the order of the packets.
    #[inline(never)]
    fn choose_all(&mut self, batch: &Batch<'_>, packets: &[Packet<'_>], scratch: &mut Scratch) {
        self.load_copies(scratch, packets.len());
        let places = scratch.plain.places.iter_mut().zip(scratch.states.iter_mut());
        for (packet, (place, state)) in packets.iter().zip(places) {
            if place.is_sent() {
                self.choose_plain(batch, packet, place);
            } else if !place.is_plain() && state.verdict.is_none() {
                state.verdict = self.choose(batch, packet, state);
                place.follow(state);
            }
        }
    }

    /// Stage 3, likewise.
    #[inline(never)]
    fn write_all(
        &mut self,
        batch: &Batch<'_>,
        packets: &mut [Packet<'_>],
        scratch: &mut Scratch,
        verdicts: &mut [Verdict],
    ) {
        let places = scratch.plain.places.iter().zip(scratch.states.iter_mut());
        for ((packet, verdict), (place, state)) in packets.iter_mut().zip(verdicts.iter_mut()).zip(places) {
            if self.write_plain(batch, packet, place).is_some() {
                *verdict = Verdict::Tx;
                continue;
            }
            *verdict = if place.is_plain() {
                self.write_otherwise(batch, packet, place, state)
            } else {
                match state.verdict {
                    Some(verdict) => verdict,
                    None => self.write(batch, packet, state),
                }
            };
            if let Verdict::Drop(reason) = *verdict {
                self.counters.dropped(reason);
            }
        }
    }

    fn publish_table_counters(&self) {
        self.fragments.publish(&self.counters.fragment_table);
        self.flows.publish(self.config.flows, &self.counters.flow_table);
    }
}

impl Forward for Pipeline {
    #[inline]
    fn process(&mut self, now: Now, packets: &mut [Packet<'_>], verdicts: &mut [Verdict]) {
        assert_eq!(packets.len(), verdicts.len(), "one verdict a packet");
        assert!(packets.len() <= self.max_batch(), "at most max_batch packets");
        self.core.forward(&Batch::new(self.reader.load(), now), packets, &mut self.scratch, verdicts);
    }

    fn poll(&mut self, now: Now, outlet: &mut dyn Outlet) {
        let core = &mut self.core;
        core.release_pieces(&Batch::new(self.reader.load(), now), outlet);
        core.send_cuts(&Batch::new(self.reader.load(), now), outlet);
        core.run_own_requests(&Batch::new(self.reader.load(), now), outlet);
        core.flows.sweep(now);
        core.flows.look_at_former(now);
        core.publish_table_counters();
        core.publish_cache_counters();
        if let Some(server) = &mut self.requests {
            let (thread, snapshot) = (core.config.thread, self.reader.load());
            let Core { flows, tap, keyed, .. } = core;
            let KeyedState { hot_keys, cache, .. } = keyed;
            let now = now.tick();
            server.serve(&mut request::Context { thread, snapshot, flows, tap, hot_keys, cache, now });
        }
    }

    fn is_asked(&self) -> bool {
        self.requests.as_ref().is_some_and(RequestServer::is_asked)
    }

    fn next_due(&self) -> Option<Now> {
        self.core.keyed.own.as_ref()?.next_due().map(Now::from_nanos)
    }

    fn failed(&mut self, reason: DropReason) {
        self.core.counters.dropped(reason);
    }

    fn max_batch(&self) -> usize {
        self.scratch.states.len()
    }

    fn hold_slots(&self) -> usize {
        self.core.fragments.hold_slots() + self.core.cuts.capacity()
    }

    fn into_flows(self) -> Option<FlowTable> {
        Some(self.core.flows.table)
    }
}

/// Asks memory for the first bytes of the frames: a NIC has just written them.
#[inline(always)]
fn ask_for_headers(packets: &[Packet<'_>]) {
    for packet in packets {
        let frame = packet.frame();
        for line in [0, CACHE_LINE] {
            if let Some(byte) = frame.get(line) {
                conntrack::prefetch(byte);
            }
        }
    }
}

/// Why a frame that the parser refuses is dropped.
fn unreadable(error: ParseError) -> DropReason {
    match error {
        ParseError::NotIp => DropReason::NotIp,
        ParseError::Malformed(_) => DropReason::Malformed,
    }
}

/// Who sent a packet in a tunnel that another thread took off.
#[inline]
fn decapsulated_before(origin: Origin) -> Option<TunnelSourceKind> {
    match origin {
        Origin::Thread(_, reason) => reason.decapsulated_from(),
        Origin::Wire => None,
    }
}

/// Maglev's backend for what is no flow.
fn choose_by_table(
    batch: &Batch<'_>,
    packet: &Packet<'_>,
    state: &mut PacketState,
) -> Result<(), DropReason> {
    let flow_packet = state.flow_packet(batch);
    let local = batch.snapshot.select(&flow_packet.service.pool, state.hash);
    let destination = || state.parsed.addresses(packet.frame()).dst;
    let selection = local.or_else(|| remote::select(batch.snapshot, &flow_packet, &destination()));
    state.choice.slot = selection.ok_or(DropReason::NoBackend)?.slot;
    Ok(())
}

const CACHE_LINE: usize = 64;
