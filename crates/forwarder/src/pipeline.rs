//! Processes the packets of one packet thread. The pipeline parses the headers of each packet,
//! finds the service, hashes the flow, chooses a backend and writes the outer headers.
//!
//! Each stage processes the whole batch before the next stage starts, so that cache misses of
//! different packets overlap. Stage 1 (classification) prefetches the connection table buckets that
//! stage 2 (backend selection) reads. The pipeline allocates memory only in [`Pipeline::new`]. The
//! caller provides the packets and the time.
//!
//! See the Maglev paper, §3.1 to §3.3.

mod admitted;
mod cache;
mod choice;
mod config;
mod decapsulation;
mod entry;
mod error;
mod expiry;
mod fast_path;
mod fragments;
mod gather;
mod icmp;
mod keyed;
mod keyed_state;
mod messages;
mod outer_error;
mod overload;
mod partial;
mod proxied;
mod refusal;
mod reject;
mod remote;
mod replicas;
mod return_path;
mod state;
mod steering;
mod tap;
mod threads;
mod tracing;
mod upstream_exchange;
mod upstream_requests;

use std::sync::Arc;

use classifier::{BatchLookup, Limits, Meter, is_v4};
use conntrack::{FlowTable, PreviousTables};
use packet::{Family, Fragment, Identifications, ParseError, Parsed, Template, parse, protocol};

pub use self::config::{IcmpRates, PipelineConfig};
pub use self::error::PipelineError;
pub use self::steering::{SoftwareSteering, SteeringConfig};
pub use self::upstream_requests::UpstreamRequests;

use self::admitted::{Admitted, Whole};
use self::choice::choose_by_table;
use self::expiry::ShortLived;
use self::fast_path::FastBatch;
use self::fragments::Fragments;
use self::keyed_state::KeyedState;
use self::overload::Load;
use self::partial::Looks;
use self::refusal::Cut;
use self::state::{Batch, CachedRead, PacketState, Stage};
use self::tracing::Tracing;
use self::upstream_requests::UpstreamTable;
use crate::capture::Tap;
use crate::flows::Flows;
use crate::rewrite::{Fit, RewriteParams, rewrite};
use crate::{
    DropReason, Flow, Forward, HandoffReason, Live, NoticeSink, Now, Origin, Outlet, Packet, Reader,
    RequestServer, Slot, ThreadCounters, ThreadId, TunnelSourceKind, ValueCache, Verdict, request,
};

/// The forwarder of one packet thread.
#[derive(Debug)]
pub struct Pipeline {
    // The reader is outside `core`, so that the stages can change `core` while they borrow the
    // snapshot from the reader.
    reader: Reader,
    requests: Option<RequestServer>,
    scratch: Scratch,
    core: Core,
}

/// Scratch memory for the packets of one batch, used between the stages.
#[derive(Debug)]
struct Scratch {
    /// The state of each packet in a batch, as used by the slow path.
    states: Box<[PacketState]>,
    fast: FastBatch,
    /// `true` unless the fast path is disabled.
    has_fast_path: bool,
    /// The indexes of the packets that are admitted while the thread is overloaded.
    admitted: Box<[u16]>,
}

impl Scratch {
    /// Allocates the memory for the largest batch.
    fn new(config: &PipelineConfig) -> Self {
        let states = (0..config.max_batch).map(PacketState::at).collect();
        let fast = FastBatch::new(config.max_batch, config.hashers);
        Self { states, fast, has_fast_path: true, admitted: vec![0; config.max_batch].into() }
    }
}

#[derive(Debug)]
struct Core {
    config: PipelineConfig,
    flows: Flows,
    load: Load,
    fragments: Fragments,
    counters: Arc<ThreadCounters>,
    meters: Meters,
    notices: Option<NoticeSink>,
    /// Held packets that are waiting to be split into fragments. A hold slot is an index in the
    /// driver's table of held frames. The fragment table uses the first hold slots, and entry `n`
    /// of this list uses the hold slot at offset `n` after them.
    cuts: Vec<Cut>,
    limits: Limits,
    tap: Option<Box<Tap>>,
    keyed: KeyedState,
    tracing: Tracing,
    identifications: Identifications,
    looks: Looks,
    ahead: BatchLookup,
}

/// The rate meters that enforce the limits in [`IcmpRates`].
#[derive(Debug, Default)]
struct Meters {
    replies: Meter,
    too_big_errors: Meter,
    rejections: Meter,
    errors: Meter,
}

impl Pipeline {
    /// Creates a pipeline and allocates all its memory.
    ///
    /// # Errors
    /// Returns a [`PipelineError`] if the size or a timeout of a table is invalid, or if there is
    /// not enough memory.
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
        // The capacity is enough for all packets of one batch and for `max_batch` fragments that
        // are released between batches.
        let cuts = Vec::with_capacity(config.max_batch * 2);
        let tracing = Tracing::new(live.clock().clone(), config.max_batch, fragments.hold_slots());
        let own = UpstreamTable::new(config.upstream_requests.as_ref(), config.thread)?;
        let keyed = KeyedState::new(own, ShortLived::new(live.clock().clone()));
        let core = Core {
            config,
            flows: Flows::new(flows),
            load: Load::default(),
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

    /// Returns the connection table, so that the caller can change it before the first packet, for
    /// example to import flows from another pipeline.
    pub fn flows_mut(&mut self) -> &mut FlowTable {
        &mut self.core.flows.table
    }

    /// Adds the previous process's connection tables. Flows that are missing in this thread's table
    /// are looked up in `flows` before Maglev chooses a backend. The tables of the previous process
    /// are used until the time `until`, which is the time of the previous process's last packet
    /// plus the longest timeout. Call this method before the first packet.
    pub fn use_previous_tables(&mut self, flows: Arc<PreviousTables>, until: Now) {
        let is_first = self.core.config.thread == ThreadId(0);
        self.core.flows.use_previous_tables(flows, until, is_first);
    }

    /// Sets the ring for notices to the control plane.
    #[must_use]
    pub fn with_notices(mut self, sink: NoticeSink) -> Self {
        self.core.notices = Some(sink);
        self
    }

    /// Sets the cache for values of hot keys. The control plane can replace the cache later.
    #[must_use]
    pub fn with_cache(mut self, cache: Box<ValueCache>) -> Self {
        self.core.keyed.cache = Some(cache);
        self
    }

    /// Disables the fast path. All packets then take the slow path, with the same results at a
    /// higher cost.
    #[must_use]
    pub fn without_fast_path(mut self) -> Self {
        self.scratch.has_fast_path = false;
        self
    }

    /// Returns the connection table, for tests and `replay`.
    #[must_use]
    pub fn flows(&self) -> &FlowTable {
        &self.core.flows.table
    }

    /// Returns the counters that this pipeline writes.
    #[must_use]
    pub fn counters(&self) -> &Arc<ThreadCounters> {
        &self.core.counters
    }
}

impl Core {
    /// Runs stage 1 (classification) for one packet: parses the headers, finds the VIP, hashes the
    /// flow and prefetches the flow's buckets in the connection table. Returns a verdict if the
    /// packet needs no further stage.
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
        // An IPv4-mapped IPv6 address is not valid on the wire (RFC 4291 §2.5.5.2) and would match
        // an IPv4 VIP.
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

    /// Parses the headers of a packet. If the packet arrived in a tunnel, this function
    /// decapsulates it and parses the inner packet. Returns the parsed headers and the kind of
    /// tunnel sender. If the packet needs no further stage, returns its verdict as the error.
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

    /// Runs stage 2 (backend selection) for one packet: chooses the slot of the backend. Returns a
    /// verdict if the packet is not sent to a backend.
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
            Stage::FirstFragment => self.choose_for_first(batch, packet, state).err().map(Verdict::Drop),
            Stage::LaterFragment => self.choose_for_later(batch, packet, state),
            Stage::IcmpError => self.choose_for_error(batch, packet, state),
            Stage::OuterError => self.look_for_quoted(batch, packet, state),
            Stage::Redirect => None,
        }
    }

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

    /// Runs stage 3 (rewriting) for one packet: writes the outer headers.
    #[inline(never)]
    fn write(&mut self, batch: &Batch<'_>, packet: &mut Packet<'_>, state: &PacketState) -> Verdict {
        if let Some(CachedRead { copy: Some(number), .. }) = state.cached
            && self.answer_from_copy(batch, packet, state, number)
        {
            return Verdict::Reply;
        }
        // A connection table entry can contain a slot from an earlier snapshot that no longer
        // exists.
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

    /// Returns the parameters for encapsulating a packet for `slot`. The MTU of the slot limits the
    /// packet size.
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
            identification: self.identification_for(slot, state.parsed.family),
            limit: slot.mtu.into(),
            lower_ttl: state.stage != Stage::Redirect,
            redirected: remote::redirected(state.decapsulated_from),
        }
    }

    /// Returns the identification for a packet to `slot`, or 0 if its outer header needs none.
    #[inline]
    fn identification_for(&mut self, slot: &Slot, inner: Family) -> u16 {
        let is_identified = slot.template(inner).is_some_and(Template::is_identified);
        if is_identified { self.identifications.next_v4() } else { 0 }
    }

    /// Counts packets that had to be moved in the buffer to make room for the outer headers.
    #[inline]
    fn count_move(&self, fit: Fit) {
        if fit == Fit::Moved {
            self.counters.head_room_mismatch.add(1);
        }
    }

    /// Adds a packet to the counters of its backend and service. `bytes` is the length of the frame
    /// before encapsulation.
    #[inline]
    fn count_forwarded(&self, state: &PacketState, bytes: usize) {
        self.count_for(state.choice.slot, state.counted, |pair| {
            pair.packets.add(1);
            pair.bytes.add(bytes as u64);
        });
    }

    /// Runs the stages one after the other, each over the whole batch. `verdicts` has one entry per
    /// packet.
    fn forward(
        &mut self,
        batch: &Batch<'_>,
        packets: &mut [Packet<'_>],
        scratch: &mut Scratch,
        verdicts: &mut [Verdict],
    ) {
        ask_for_headers(packets);
        self.tap_before(packets);
        let admission = self.begin_batch(batch, scratch, packets.len());
        let mut whole = Whole { packets: &mut *packets, verdicts: &mut *verdicts };
        match admission {
            None => {
                let fast = scratch.fast.begin();
                let has_unread = scratch.has_fast_path && fast.read_v4(whole.packets);
                self.forward_read(batch, &mut whole, scratch, has_unread);
            }
            Some(admission) => self.forward_admitted(batch, whole, scratch, admission),
        }
        let states = scratch.states.get(..packets.len()).unwrap_or_default();
        self.tap_after(batch, packets, states, verdicts);
        self.report_marked(batch, states, verdicts);
    }

    /// Runs the stages after the fast path has read the headers of untagged IPv4 packets.
    /// `has_unread` is `true` if other packets may take the fast path.
    #[inline(always)]
    fn forward_read<'p>(
        &mut self,
        batch: &Batch<'_>,
        packets: &mut impl Admitted<'p>,
        scratch: &mut Scratch,
        has_unread: bool,
    ) {
        self.ahead.look_up(&batch.snapshot.vips, packets.packets().map(|packet| packet.frame()));
        self.classify_fast(batch, packets, scratch, has_unread);
        if scratch.fast.has_others {
            self.classify_others(batch, packets, scratch);
        }
        self.choose_busy(batch, &mut scratch.fast, packets.count());
        self.look_for_partial(batch, packets, scratch);
        if scratch.fast.has_others || scratch.fast.is_pending {
            self.choose_all(batch, packets, scratch);
        }
        packets.write_all(self, batch, scratch);
        if self.tap.is_some() {
            scratch.show_plain(packets.count());
        }
    }

    /// Runs stage 1 (classification) for packets that the fast path does not handle.
    #[inline(never)]
    fn classify_others<'p>(
        &mut self,
        batch: &Batch<'_>,
        packets: &mut impl Admitted<'p>,
        scratch: &mut Scratch,
    ) {
        let places = scratch.fast.places.iter().zip(scratch.states.iter_mut());
        for (number, (place, state)) in places.enumerate().take(packets.count()) {
            if place.is_fast() {
                continue;
            }
            let Some(packet) = packets.packet_mut(number) else { break };
            state.verdict = match place.is_request() {
                true => self.classify_request(batch, packet, place, state),
                false => self.classify(batch, packet, state),
            };
        }
    }

    /// Runs stage 2 (backend selection) for all packets in batch order.
    #[inline(never)]
    fn choose_all<'p>(&mut self, batch: &Batch<'_>, packets: &impl Admitted<'p>, scratch: &mut Scratch) {
        self.load_copies(scratch, packets.count());
        let places = scratch.fast.places.iter_mut().zip(scratch.states.iter_mut());
        for (number, (place, state)) in places.enumerate().take(packets.count()) {
            let is_pending = place.is_pending();
            if !is_pending && (place.is_fast() || state.verdict.is_some()) {
                continue;
            }
            let Some(packet) = packets.packet(number) else { break };
            if is_pending {
                self.choose_fast(batch, packet, place);
            } else {
                state.verdict = self.choose(batch, packet, state);
                place.follow(state);
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
        assert_eq!(packets.len(), verdicts.len(), "a batch needs one verdict per packet");
        assert!(packets.len() <= self.max_batch(), "a batch has at most max_batch packets");
        self.core.forward(&Batch::new(self.reader.load(), now), packets, &mut self.scratch, verdicts);
    }

    fn poll(&mut self, now: Now, outlet: &mut dyn Outlet) {
        let core = &mut self.core;
        core.release_pieces(&Batch::new(self.reader.load(), now), outlet);
        core.send_cuts(&Batch::new(self.reader.load(), now), outlet);
        core.run_upstream_requests(&Batch::new(self.reader.load(), now), outlet);
        core.flows.sweep(now);
        core.flows.look_at_previous(now);
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

/// Prefetches the headers of each frame. The NIC has just written the frames, so the headers may
/// not be in the CPU cache.
#[inline(always)]
fn ask_for_headers(packets: &[Packet<'_>]) {
    for packet in packets {
        if let Some([first, last]) = packet.header_ends() {
            conntrack::prefetch(first);
            conntrack::prefetch(last);
        }
    }
}

fn unreadable(error: ParseError) -> DropReason {
    match error {
        ParseError::NotIp => DropReason::NotIp,
        ParseError::Malformed(_) => DropReason::Malformed,
    }
}

/// Returns the kind of tunnel sender that a packet came from, if another thread decapsulated the
/// packet.
#[inline]
fn decapsulated_before(origin: Origin) -> Option<TunnelSourceKind> {
    match origin {
        Origin::Thread(_, reason) => reason.decapsulated_from(),
        Origin::Wire => None,
    }
}
