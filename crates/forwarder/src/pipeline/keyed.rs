//! Requests of keyed services: read, and given to the backend of their key.
//!
//! In: a datagram, or its first piece, for a service with [`Keyed`]. Out: where its key is looked for, in stage 1; its slot, in stage 2.
//! Not here: where a key is (`crate::keyed`), bytes of a protocol (`kv-switch`).
//! Invariant: a request is decided under one snapshot, and enters no connection table.
//! Source: AppSwitch §3; SmartSwitch §3.

use std::ops::ControlFlow;

use kv_switch::{Ask, Datagram, Effect, HotKeys, KeyRoom, Plan};
use packet::{Fragment, Parsed};

use super::Core;
use super::state::{Batch, CachedService, PacketState, Stage};
use crate::keyed::{KeyPath, refused};
use crate::selection::Selection;
use crate::{DropReason, Flow, KeyPlace, Keyed, Packet, Service, Snapshot, Step};

impl Core {
    /// Stage 1: where the key of a request is looked for. `state` has its service. A request without a key goes by its flow.
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
        if let Some(rules) = &keyed.rules.cache {
            let asked = kv_switch::Request { payload: datagram.payload(), ask: &ask };
            self.note_for_cache(batch.now, CachedService { keyed, rules }, &asked, state);
        }
        self.count_request(&ask);
        if let Some(hot_keys) = &mut self.keyed.hot_keys {
            request.count_keys(&ask, hot_keys);
        }
        Ok(())
    }

    /// Where the keys of a request are, and what stage 2 does with it.
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
        match request.place(ask) {
            Placed::At(KeyPlace { hash, route }) => (state.hash, state.route) = (hash, route),
            Placed::Anywhere => state.hash = snapshot.hasher.hash(service.policy, flow),
            // Of those with replicas no write is for several keys.
            Placed::Apart if state.stage == Stage::Refuse => {}
            Placed::Apart => state.stage = Stage::Gather,
        }
        if state.stage == Stage::Gather && !self.may_gather(keyed) {
            return Err(DropReason::KvSplit);
        }
        // What this machine answers, or passes both ways, has to be whole; pieces follow their first.
        if state.parsed.fragment != Fragment::None && state.stage != Stage::Keyed {
            return Err(DropReason::KvNoWayBack);
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

    /// Each counts as a new flow for the limits of its VIP.
    #[inline]
    pub(super) fn admit_request(
        &mut self,
        batch: &Batch<'_>,
        packet: &Packet<'_>,
        state: &PacketState,
    ) -> Result<(), DropReason> {
        let guard = batch.snapshot.service(state.service).guard.as_deref();
        let Some(guard) = guard.filter(|guard| guard.is_limited()) else { return Ok(()) };
        let flow = Flow::of(packet.frame(), &state.parsed);
        self.limits.admit(guard, &batch.snapshot.hasher, &flow, batch.now)
    }

    /// Stage 2: the backend that has the key; for a request without one any that serves, as for a flow.
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

/// What stage 2 does with a request whose keys are of one backend.
fn stage(keyed: &Keyed) -> Stage {
    match keyed.rules.path {
        KeyPath::Direct => Stage::Keyed,
        KeyPath::Through { .. } => Stage::Through,
    }
}

/// What stage 2 does with a request that stores something, where its answer matters here: all backends of its key have to carry it out,
/// or no copy may be older than it.
#[cold]
fn stage_of_write(keyed: &Keyed, payload: &[u8], ask: &Ask) -> Stage {
    let (application, request) = (&keyed.rules.application, kv_switch::Request { payload, ask });
    if keyed.rules.replicas.is_some() {
        let replicated = application.replicated(&request);
        return if replicated.is_some() { Stage::Replicate } else { Stage::Refuse };
    }
    match ask.plan {
        _ if !application.is_acknowledged(&request) => stage(keyed),
        // Of several keys this machine answers itself, once all are there: what passes names one.
        Plan::Join => Stage::Gather,
        _ => Stage::Through,
    }
}

/// A request, and what it is read by.
struct Request<'a> {
    snapshot: &'a Snapshot,
    service: &'a Service,
    keyed: &'a Keyed,
    payload: &'a [u8],
    /// The hash of its flow, where keys have replicas.
    flow: u64,
}

/// Where a request's keys are looked for.
enum Placed {
    At(KeyPlace),
    /// It has none.
    Anywhere,
    /// Several backends have them.
    Apart,
}

impl Request<'_> {
    #[inline]
    fn place(&self, ask: &Ask) -> Placed {
        match ask.plan {
            Plan::Keyless => Placed::Anywhere,
            Plan::One => Placed::At(self.place_of(&ask.first)),
            // What is asked of one server at once must be all on it.
            _ => self.common_place(ask),
        }
    }

    #[inline]
    fn place_of(&self, item: &kv_switch::Item) -> KeyPlace {
        let mut room = KeyRoom::default();
        self.keyed.rules.place(self.keyed.rules.application.key(self.payload, item, &mut room))
    }

    /// Counts each of its keys, for who asks which are hot.
    #[cold]
    fn count_keys(&self, ask: &Ask, hot_keys: &mut HotKeys) {
        let application = &self.keyed.rules.application;
        application.items(self.payload, ask, &mut |item| {
            let mut room = KeyRoom::default();
            hot_keys.count(self.service.id.0, application.key(self.payload, &item, &mut room));
            ControlFlow::Continue(())
        });
    }

    /// Where the first of several keys is looked for, if the backend there has all of them.
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

/// What a packet carries: all of a datagram, or as much of it as its first piece has. `None`: its UDP header is cut short, or
/// has a length that the packet does not have.
pub(super) fn datagram<'a>(packet: &'a Packet<'_>, parsed: &Parsed) -> Option<Datagram<'a>> {
    let bytes = packet.frame().get(usize::from(parsed.l4)..usize::from(parsed.end))?;
    let (&[_, _, _, _, high, low, _, _], payload) = bytes.split_first_chunk::<8>()?;
    let datagram = Datagram::first_piece(payload, u16::from_be_bytes([high, low]).checked_sub(8)?);
    (datagram.is_whole() || parsed.fragment != Fragment::None).then_some(datagram)
}
