//! Handles requests to keyed services. Stage 1 (classification) parses a request and hashes its
//! key, and stage 2 (backend selection) chooses the backend that stores the key. The placement of
//! keys is in `crate::keyed`, and the protocol formats are in `kv-switch`.
//!
//! A request is processed under one snapshot and is not added to the connection table.
//!
//! See the papers AppSwitch (§3) and SmartSwitch (§3).

use std::ops::ControlFlow;

use kv_switch::{Ask, Datagram, Effect, HotKeys, KeyRoom, Plan};
use packet::{Fragment, Parsed, udp_checksum_ok};

use super::Core;
use super::state::{Batch, CachedService, PacketState, Stage};
use crate::keyed::{KeyPath, refused};
use crate::selection::Selection;
use crate::{DropReason, Flow, KeyPlace, Keyed, Packet, Service, Snapshot, Step};

impl Core {
    /// Runs stage 1 (classification) for a request to a keyed service: parses the request, and
    /// finds the hash and the pool of its key. `state` must contain the service. A request without
    /// a key is assigned to a backend by its flow hash.
    #[inline(never)]
    pub(super) fn read_request(
        &mut self,
        batch: &Batch<'_>,
        packet: &Packet<'_>,
        flow: &Flow,
        state: &mut PacketState,
    ) -> Result<(), DropReason> {
        let snapshot = batch.snapshot;
        let service = snapshot.service(state.service);
        let keyed = service.keyed.as_deref().ok_or(DropReason::NoBackend)?;
        if flow.is_unroutable() {
            return Err(DropReason::Martian);
        }
        if snapshot.vips.contains(&flow.source) {
            return Err(DropReason::FromVip);
        }
        if let Some(reason) = keyed.rules.refusal(flow) {
            return Err(reason);
        }
        let datagram = datagram(packet, &state.parsed).ok_or(DropReason::Malformed)?;
        let ask = keyed.rules.application.read(datagram).map_err(refused)?;
        if keyed.rules.replicas.is_some() {
            state.key = snapshot.hasher.hash(service.policy, flow);
        }
        let request = Request { snapshot, service, keyed, payload: datagram.payload(), flow: state.key };
        self.look_for_keys(&request, &ask, flow, state)?;
        self.count_request(&ask);
        if let Some(hot_keys) = &mut self.keyed.hot_keys {
            request.count_keys(&ask, hot_keys);
        }
        if let Some(rules) = &keyed.rules.cache {
            if state.may_store {
                self.admit_write(batch, packet, state)?;
            }
            let asked = kv_switch::Request { payload: datagram.payload(), ask: &ask };
            self.note_for_cache(batch.now, CachedService { keyed, rules }, &asked, state);
        }
        Ok(())
    }

    /// Finds the hash and the pool of each key in a request, and selects the action for stage 2
    /// (backend selection).
    #[inline]
    fn look_for_keys(
        &self,
        request: &Request<'_>,
        ask: &Ask,
        flow: &Flow,
        state: &mut PacketState,
    ) -> Result<(), DropReason> {
        let &Request { snapshot, service, keyed, payload, .. } = request;
        (state.plan, state.stage) = (ask.plan, stage(keyed));
        state.may_store = matches!(ask.effect, Effect::Write | Effect::Conditional);
        if state.may_store && (keyed.rules.replicas.is_some() || keyed.rules.strict().is_some()) {
            state.stage = stage_of_write(keyed, payload, ask);
        }
        if state.may_store && state.stage == Stage::Through {
            let asked = kv_switch::Request { payload, ask };
            state.is_unanswered = !keyed.rules.application.has_answer(&asked);
        }
        match request.place(ask) {
            Placed::At(KeyPlace { hash, route }) => (state.hash, state.route) = (hash, route),
            Placed::Anywhere => state.hash = snapshot.hasher.hash(service.policy, flow),
            // Stage 2 (backend selection) refuses a write to several replicated keys.
            Placed::Apart if state.stage == Stage::Refuse => {}
            Placed::Apart => state.stage = Stage::Gather,
        }
        if state.stage == Stage::Gather && !self.may_gather(keyed) {
            return Err(DropReason::KvSplit);
        }
        // A request must be unfragmented if this machine generates or forwards the reply.
        // Otherwise, later fragments are sent to the backend of the first fragment.
        if state.parsed.fragment != Fragment::None && state.stage != Stage::Keyed {
            return Err(DropReason::KvNoReturnPath);
        }
        Ok(())
    }

    #[inline]
    fn count_request(&self, ask: &Ask) {
        let counters = &self.counters;
        counters.request(ask.verb);
        let counter = match ask.effect {
            Effect::Read { .. } => &counters.keyed_reads,
            Effect::Write => &counters.keyed_writes,
            Effect::Conditional => &counters.keyed_changes,
            _ => &counters.keyed_others,
        };
        counter.add(1);
    }

    /// Checks the limits of the VIP and the checksum of a write before the write invalidates cached
    /// values. A server would ignore a damaged write. Only the server can verify the checksum of a
    /// fragmented write.
    #[inline(never)]
    fn admit_write(
        &mut self,
        batch: &Batch<'_>,
        packet: &Packet<'_>,
        state: &mut PacketState,
    ) -> Result<(), DropReason> {
        let is_whole = state.parsed.fragment == Fragment::None;
        if is_whole && !udp_checksum_ok(packet.frame(), &state.parsed) {
            return Err(DropReason::Malformed);
        }
        self.admit_request(batch, packet, state)?;
        state.is_admitted = true;
        Ok(())
    }

    /// Applies the limits of the VIP, which treat each request as a new flow.
    #[inline]
    pub(super) fn admit_request(
        &mut self,
        batch: &Batch<'_>,
        packet: &Packet<'_>,
        state: &PacketState,
    ) -> Result<(), DropReason> {
        let guard = batch.snapshot.service(state.service).guard.as_deref().filter(|_| !state.is_admitted);
        let Some(guard) = guard.filter(|guard| guard.is_limited()) else { return Ok(()) };
        let flow = Flow::of(packet.frame(), &state.parsed);
        self.limits.admit(guard, &batch.snapshot.hasher, &flow, batch.now)
    }

    /// Runs stage 2 (backend selection) for a request to a keyed service: chooses the backend that
    /// stores the key. For a request without a key, the flow hash selects one of the serving
    /// backends.
    pub(super) fn choose_by_key(
        &mut self,
        batch: &Batch<'_>,
        packet: &Packet<'_>,
        state: &mut PacketState,
    ) -> Result<(), DropReason> {
        let service = batch.snapshot.service(state.service);
        self.admit_request(batch, packet, state)?;
        let place = KeyPlace { hash: state.hash, route: state.route };
        let keyed = service.keyed.as_deref().filter(|_| state.plan != Plan::Keyless);
        let chosen = match keyed {
            Some(keyed) => batch.snapshot.select_read(service, keyed, place, state.key),
            None => batch.snapshot.select(&service.pool, state.hash),
        };
        let chosen = chosen.ok_or(DropReason::NoBackend)?;
        if chosen.rehashed > 0 {
            self.counters.rehashed.add(1);
        }
        state.choice.slot = chosen.slot;
        state.is_away = state.may_store
            && keyed.is_some_and(|keyed| {
                keyed.rules.failover_ttl.is_some()
                    && batch.snapshot.is_away(service, keyed, place, chosen.slot)
            });
        if state.cached.is_some() {
            self.look_for_copy(batch, packet, state);
        }
        let Selection { entry, rehashed, .. } = chosen;
        let by_flow = Step::Maglev { entry, rehashed, reselected: false };
        state.choice.step = Some(keyed.map_or(by_flow, |keyed| keyed.step(&chosen)));
        Ok(())
    }
}

/// Returns the action that stage 2 (backend selection) takes for a request whose keys are stored on
/// one backend.
fn stage(keyed: &Keyed) -> Stage {
    match keyed.rules.path {
        KeyPath::Direct => Stage::Keyed,
        KeyPath::Through { .. } => Stage::Through,
    }
}

/// Returns the action that stage 2 (backend selection) takes for a write to a pool with replicas or
/// with a strict cache. With replicas, all backends of the key must execute the write. With a
/// strict cache, the reply must pass through this machine.
#[cold]
fn stage_of_write(keyed: &Keyed, payload: &[u8], ask: &Ask) -> Stage {
    let (application, request) = (&keyed.rules.application, kv_switch::Request { payload, ask });
    if keyed.rules.replicas.is_some() {
        let replicated = application.replicated(&request);
        return if replicated.is_some() { Stage::Replicate } else { Stage::Refuse };
    }
    match ask.plan {
        _ if !application.is_acknowledged(&request) => stage(keyed),
        // For a proxied request, the table of pending upstream requests can store only one written
        // key. This machine therefore splits a write to several keys and combines the replies
        // itself.
        Plan::Join => Stage::Gather,
        _ => Stage::Through,
    }
}

/// A request, with the snapshot and the service that determine its backend.
struct Request<'a> {
    snapshot: &'a Snapshot,
    service: &'a Service,
    keyed: &'a Keyed,
    payload: &'a [u8],
    /// The flow hash. This field is set only if keys have replicas.
    flow: u64,
}

/// The assignment of a request's keys to backends.
enum Placed {
    At(KeyPlace),
    /// The request has no key.
    Anywhere,
    /// The keys are stored on different backends.
    Apart,
}

impl Request<'_> {
    #[inline]
    fn place(&self, ask: &Ask) -> Placed {
        match ask.plan {
            Plan::Keyless => Placed::Anywhere,
            Plan::One => Placed::At(self.place_of(&ask.first)),
            // A request for several keys can be sent to one backend only if that backend stores all
            // these keys.
            _ => self.common_place(ask),
        }
    }

    #[inline]
    fn place_of(&self, item: &kv_switch::Item) -> KeyPlace {
        let mut room = KeyRoom::default();
        self.keyed.rules.place(self.keyed.rules.application.key(self.payload, item, &mut room))
    }

    /// Adds each key of the request to the hot-key counts.
    #[cold]
    fn count_keys(&self, ask: &Ask, hot_keys: &mut HotKeys) {
        let application = &self.keyed.rules.application;
        application.items(self.payload, ask, &mut |item| {
            let mut room = KeyRoom::default();
            hot_keys.count(self.service.id.0, application.key(self.payload, &item, &mut room));
            ControlFlow::Continue(())
        });
    }

    /// If the backend of the first key stores all keys in the request, returns the hash and the
    /// pool of the first key. Otherwise returns [`Placed::Apart`].
    #[inline(never)]
    fn common_place(&self, ask: &Ask) -> Placed {
        let first = self.place_of(&ask.first);
        let backend = |place| {
            let chosen = self.snapshot.select_read(self.service, self.keyed, place, self.flow);
            chosen.map(|chosen| chosen.slot)
        };
        let (wanted, mut is_split) = (backend(first), false);
        self.keyed.rules.application.items(self.payload, ask, &mut |item| {
            is_split = backend(self.place_of(&item)) != wanted;
            if is_split { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        if is_split { Placed::Apart } else { Placed::At(first) }
    }
}

/// Returns the UDP payload of a packet. For a first fragment, the result is only the beginning of
/// the payload. Returns `None` if the UDP header is truncated, or if the UDP length exceeds the
/// length of an unfragmented packet.
pub(super) fn datagram<'a>(packet: &'a Packet<'_>, parsed: &Parsed) -> Option<Datagram<'a>> {
    let bytes = packet.frame().get(usize::from(parsed.l4)..usize::from(parsed.end))?;
    let (&[_, _, _, _, high, low, _, _], payload) = bytes.split_first_chunk::<8>()?;
    let datagram = Datagram::first_piece(payload, u16::from_be_bytes([high, low]).checked_sub(8)?);
    (datagram.is_whole() || parsed.fragment != Fragment::None).then_some(datagram)
}
