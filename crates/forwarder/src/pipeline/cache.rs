//! Answers reads of hot keys from cached values, and fetches these values from backends. If a
//! usable value is cached, the request frame is turned into the reply in place. Fetches are sent
//! between batches. `kv_switch::Cache` stores the values and leases and decides which values to
//! fetch. The module `upstream_requests` stores the pending fetches.
//!
//! For a write, stage 1 (classification) invalidates the cached values of the key. Values are
//! invalidated before the write is sent and before any read in the same batch is answered. Each
//! reply is sent to the source MAC address of the request. A byte limit per source address applies
//! to replies from the cache. A request without a usable cached value is forwarded unchanged.
//!
//! See §3 of the SmartSwitch paper ("Network-Caching") and `kv-switch/src/cache.rs`.

use std::ops::ControlFlow;

use kv_switch::{
    Ask, CacheCounts, Effect, FetchAnswer, Filled, Item, KeyRoom, MAX_KEY_BYTES, Plan, Read, Request,
};
use packet::checksum::Sum;
use packet::{Family, Fragment, Parsed, udp_checksum_ok, udp_headers_len, write_udp, write_udp_over};

use super::gather::{Question, no_answer, server};
use super::keyed::datagram;
use super::return_path::socket;
use super::state::{Batch, CachedRead, CachedService, PacketState};
use super::upstream_exchange::{Fetch, UpstreamExchange};
use super::upstream_requests::UpstreamTable;
use super::{Core, Scratch};
use crate::keyed::GATHER_TIMEOUTS_MS;
use crate::{
    AskedAt, CacheRules, DropReason, Flow, NextHopMode, Now, Outlet, Packet, SlotId, ValueCache, Verdict,
};

/// A request that can be answered from a cached value.
struct Hit<'a> {
    service: CachedService<'a>,
    flow: Flow,
    ask: Ask,
    /// The index of the cached value.
    copy: u32,
}

/// A memcached key and its hash for the cache.
#[derive(Clone, Copy)]
struct HashedKey<'a> {
    hash: u64,
    key: &'a [u8],
}

impl Core {
    /// Runs stage 1 (classification) for a request to a service with a cache. A write invalidates
    /// cached values. For a cacheable read, stores the data with which stage 2 (backend selection)
    /// looks up the cached value.
    #[inline]
    pub(super) fn note_for_cache(
        &mut self,
        now: Now,
        service: CachedService<'_>,
        request: &Request<'_>,
        state: &mut PacketState,
    ) {
        let (CachedService { keyed, rules }, &Request { payload, ask }) = (service, request);
        match ask.effect {
            Effect::Write | Effect::Conditional => {
                let hash = end_copies(now, service, request);
                if rules.strict {
                    state.key = hash;
                }
            }
            Effect::Read { cacheable: true } if ask.plan == Plan::One => {
                let is_fast = state.parsed.fragment == Fragment::None && state.decapsulated_from.is_none();
                if !is_fast || self.keyed.cache.is_none() {
                    return;
                }
                let mut room = KeyRoom::default();
                let key = match rules.is_own_hash {
                    true => &[][..],
                    false => keyed.rules.application.key(payload, &ask.first, &mut room),
                };
                let hash = rules.hash_of(key, state.hash);
                self.keyed.has_cached_reads = true;
                state.cached = Some(CachedRead { hash, key: ask.first, verb: ask.verb, copy: None });
            }
            _ => {}
        }
    }

    /// Prefetches the cache entries for all reads of the batch before stage 2 (backend selection),
    /// so that CPU cache misses overlap.
    #[inline]
    pub(super) fn load_copies(&mut self, scratch: &Scratch, packets: usize) {
        if !std::mem::take(&mut self.keyed.has_cached_reads) {
            return;
        }
        let Some(cache) = self.keyed.cache.as_deref() else { return };
        let all = scratch.fast.places.iter().zip(&scratch.states).take(packets);
        let mut reads = all
            .filter(|(place, state)| !place.is_fast() && state.verdict.is_none())
            .filter_map(|(_, state)| state.cached)
            .map(|cached| cached.hash)
            .peekable();
        while reads.peek().is_some() {
            cache.load(&mut reads);
        }
    }

    /// Looks for a cached value that answers the request. Stage 2 (backend selection) calls this
    /// function after it has chosen the backend for the key.
    #[inline(never)]
    pub(super) fn look_for_copy(&mut self, batch: &Batch<'_>, packet: &Packet<'_>, state: &mut PacketState) {
        let (Some(cache), Some(cached)) = (self.keyed.cache.as_deref_mut(), &mut state.cached) else {
            return;
        };
        let Some(service) = cached_service(batch, state.service) else { return };
        let Some(datagram) = datagram(packet, &state.parsed) else { return };
        let mut room = KeyRoom::default();
        let key = service.keyed.rules.application.key(datagram.payload(), &cached.key, &mut room);
        let flow = Flow::of(packet.frame(), &state.parsed);
        let read = read(batch, service.rules, HashedKey { hash: cached.hash, key }, state.choice.slot, &flow);
        cached.copy = cache.look_up(batch.now.nanos(), &read);
    }

    /// Turns a request into a reply with the cached value, in stage 3 (rewriting). Returns `false`
    /// if the packet is unchanged and must be forwarded.
    #[inline(never)]
    pub(super) fn answer_from_copy(
        &mut self,
        batch: &Batch<'_>,
        packet: &mut Packet<'_>,
        state: &PacketState,
        number: u32,
    ) -> bool {
        if !may_turn_round(batch, packet.frame(), &state.parsed) {
            return false;
        }
        let Some(hit) = self.hit(batch, packet, state, number) else { return false };
        if self.send_prepared(packet, state, &hit).is_none() && !self.send_written(packet, state, &hit) {
            return false;
        }
        let now = batch.now.nanos();
        if self.keyed.cache.as_deref_mut().is_some_and(|cache| cache.served(now, number)) {
            self.renew_copy(batch, state, &hit);
        }
        true
    }

    /// Returns the data for a reply from the cache, or `None` if the byte limit for the client is
    /// exceeded.
    #[inline]
    fn hit<'a>(
        &mut self,
        batch: &Batch<'a>,
        packet: &Packet<'_>,
        state: &PacketState,
        number: u32,
    ) -> Option<Hit<'a>> {
        let CachedRead { key, verb, .. } = state.cached?;
        let service = cached_service(batch, state.service)?;
        let flow = Flow::of(packet.frame(), &state.parsed);
        let copied = self.keyed.cache.as_deref()?.copy(number)?;
        let bytes = packet.frame_len() + copied.stored.bytes.len() + AROUND_A_VALUE;
        let source = batch.snapshot.hasher.source(&flow.source).rotate_left(16);
        if !self.limits.admit_bytes(source, service.rules.source_bytes, bytes as u64, batch.now) {
            self.counters.cache_over_budget.add(1);
            return None;
        }
        let ask = Ask::one(verb, Effect::Read { cacheable: true }, key);
        Some(Hit { service, flow, ask, copy: number })
    }

    /// Sends the prepared reply that is stored with the cached value. Returns `None` if this
    /// request needs a different reply format.
    #[inline]
    fn send_prepared(&self, packet: &mut Packet<'_>, state: &PacketState, hit: &Hit<'_>) -> Option<()> {
        let copied =
            self.keyed.cache.as_deref()?.copy(hit.copy).filter(|copied| !copied.prepared.is_empty())?;
        let request = Request { payload: payload(packet.frame(), &state.parsed)?, ask: &hit.ask };
        let mut room = [0; MOST_FRONT];
        let front = hit.service.keyed.rules.application.write_front(&request, &mut room)?;
        let front = room.get(..front).filter(|front| front.len() % 2 == 0)?;
        let saved = *packet.frame().first_chunk::<MOST_LINK>()?;
        let link = saved.get(..usize::from(state.parsed.l3))?;
        let headers = link.len() + udp_headers_len(state.parsed.family);
        let length = headers + front.len() + copied.prepared.len();
        let to = packet.buffer_mut().get_mut(headers..length)?;
        let (to_front, to_rest) = to.split_at_mut_checked(front.len())?;
        to_front.copy_from_slice(front);
        to_rest.copy_from_slice(copied.prepared);
        let sum = Sum::new().add_bytes(front).add_word(copied.sum);
        packet.set_bounds(0, length);
        turn_round(packet, link, &hit.flow, Some(sum))
    }

    /// Writes the reply from the cached value. Returns `false` if no reply can be written. In this
    /// case, the packet is unchanged.
    #[inline(never)]
    fn send_written(&self, packet: &mut Packet<'_>, state: &PacketState, hit: &Hit<'_>) -> bool {
        let (mut room, start) = ([0; MOST_SAVED], packet.start());
        let Some(saved) = room.get_mut(..packet.frame_len()) else { return false };
        saved.copy_from_slice(packet.frame());
        let is_written = self.write_reply(packet, state, saved, hit).is_some();
        if !is_written {
            packet.set_bounds(start, start + saved.len());
            packet.frame_mut().copy_from_slice(saved);
        }
        is_written
    }

    fn write_reply(
        &self,
        packet: &mut Packet<'_>,
        state: &PacketState,
        saved: &[u8],
        hit: &Hit<'_>,
    ) -> Option<()> {
        let copied = self.keyed.cache.as_deref()?.copy(hit.copy)?;
        let request = Request { payload: payload(saved, &state.parsed)?, ask: &hit.ask };
        let link = saved.get(..usize::from(state.parsed.l3))?;
        let from = link.len() + udp_headers_len(state.parsed.family);
        let out = packet.buffer_mut().get_mut(from..)?;
        let length = hit.service.keyed.rules.application.write_hit(&request, &copied, out)?;
        packet.set_bounds(0, from + length);
        turn_round(packet, link, &hit.flow, None)
    }

    #[cold]
    fn renew_copy(&mut self, batch: &Batch<'_>, state: &PacketState, hit: &Hit<'_>) -> Option<()> {
        let CachedRead { hash, .. } = state.cached?;
        let cache = self.keyed.cache.as_deref_mut()?;
        let (mut room, known) = ([0; MAX_KEY_BYTES], cache.copy(hit.copy)?.key);
        let key = room.get_mut(..known.len())?;
        key.copy_from_slice(known);
        let read = read(batch, hit.service.rules, HashedKey { hash, key }, state.choice.slot, &hit.flow);
        cache.renew(batch.now.nanos(), &read, hit.copy);
        Some(())
    }

    /// Sends the upstream requests for values that the cache wants to fetch.
    #[cold]
    pub(super) fn fetch_values(
        &mut self,
        own: &mut UpstreamTable,
        batch: &Batch<'_>,
        outlet: &mut dyn Outlet,
    ) {
        let Some(mut cache) = self.keyed.cache.take() else { return };
        let now = batch.now.nanos();
        while let Some(number) = cache.ask(now) {
            let begun = own.table.begin_other(now, FETCH_TIMEOUT, UpstreamExchange::Fetch(number));
            let Ok(id) = begun else {
                cache.give_up(number);
                continue;
            };
            let fetch = Fetch { id, number };
            let build =
                &mut |packet: &mut Packet<'_>| self.build_fetch(batch, packet, &cache, fetch).is_some();
            if outlet.originate(build).is_err() {
                own.table.end_other(now, id);
                cache.give_up(number);
            }
        }
        self.keyed.cache = Some(cache);
    }

    fn build_fetch(
        &mut self,
        batch: &Batch<'_>,
        packet: &mut Packet<'_>,
        cache: &ValueCache,
        fetch: Fetch,
    ) -> Option<()> {
        let Fetch { id, number } = fetch;
        let asked_at = cache.asked(number)?;
        let (service, keyed) = asked_at.keyed(batch.snapshot)?;
        let vip = asked_at.vip();
        let own = batch.snapshot.own_address(if vip.is_ipv4() { Family::V4 } else { Family::V6 })?;
        let slot = SlotId(cache.server(number)?);
        let question = Question { service, keyed, slot, own, vip };
        self.build_question(batch, packet, &question, &|out| {
            let application = &*keyed.rules.application;
            Some((id.port, cache.write_fetch(application, number, id.request, out)?))
        })
    }

    /// Processes a backend's reply to a fetch and updates the cache.
    pub(super) fn take_value(
        &mut self,
        batch: &Batch<'_>,
        packet: &Packet<'_>,
        parsed: &Parsed,
        fetch: Fetch,
    ) -> Result<Verdict, DropReason> {
        let Fetch { id, number } = fetch;
        let cache = self.keyed.cache.as_deref_mut().ok_or(DropReason::KvAnswerLate)?;
        let asked_at = cache.asked(number).ok_or(DropReason::KvAnswerLate)?;
        let (_, keyed) = asked_at.keyed(batch.snapshot).ok_or(DropReason::KvAnswerLate)?;
        let flow = Flow::of(packet.frame(), parsed);
        let asked = cache.server(number).and_then(|slot| batch.snapshot.slots().get(slot as usize));
        let asked = asked.and_then(|slot| server(keyed, slot, asked_at.vip()));
        if asked != Some(socket(flow.source, flow.source_port)) {
            return Err(DropReason::KvAnswerSource);
        }
        let payload = datagram(packet, parsed).map(|datagram| datagram.payload());
        let payload = payload.filter(|_| udp_checksum_ok(packet.frame(), parsed));
        let payload = payload.ok_or(DropReason::KvAnswerMalformed)?;
        let (now, application) = (batch.now.nanos(), &*keyed.rules.application);
        let answer = FetchAnswer { number, request: id.request, payload };
        let _: Filled = cache.answer(now, application, &answer).map_err(no_answer)?;
        if let Some(own) = self.keyed.own.as_deref_mut() {
            own.table.end_other(now, id);
        }
        Ok(Verdict::Taken)
    }

    /// Ends a fetch that timed out.
    pub(super) fn give_up_value(&mut self, number: u32) {
        self.counters.cache_unanswered.add(1);
        if let Some(cache) = self.keyed.cache.as_deref_mut() {
            cache.give_up(number);
        }
    }

    /// Updates the thread counters with the events that the cache has counted since the last call.
    /// The counts start at zero when the cache is replaced.
    pub(super) fn publish_cache_counters(&mut self) {
        let Some(cache) = self.keyed.cache.as_deref() else {
            self.keyed.counted = CacheCounts::default();
            self.counters.cache_bytes.set(0);
            return;
        };
        let (now, to) = (cache.counts(), &self.counters);
        let last = std::mem::replace(&mut self.keyed.counted, now);
        let since = |count: fn(&CacheCounts) -> u64| {
            count(&now).checked_sub(count(&last)).unwrap_or_else(|| count(&now))
        };
        to.cache_hits.add(since(|counts| counts.hits));
        to.cache_fetches.add(since(|counts| counts.asked));
        to.cache_fills.add(since(|counts| counts.fills));
        to.cache_renewals.add(since(|counts| counts.renewals));
        to.cache_stale_avoided.add(since(|counts| counts.stale_avoided));
        to.cache_evictions.add(since(|counts| counts.evictions));
        to.cache_bytes.set(now.bytes);
    }
}

/// Invalidates the cached values for all keys of a write, on all threads, before the write is sent.
/// Returns the cache hash of the last key in the request.
#[cold]
fn end_copies(now: Now, service: CachedService<'_>, request: &Request<'_>) -> u64 {
    let (CachedService { keyed, rules }, &Request { payload, ask }) = (service, request);
    let application = &*keyed.rules.application;
    let mut hash = 0;
    application.items(payload, ask, &mut |item: Item| {
        let mut room = KeyRoom::default();
        hash = rules.hash.hash(application.key(payload, &item, &mut room));
        rules.epochs.key_written(now.nanos(), hash);
        ControlFlow::Continue(())
    });
    hash
}

#[inline]
fn cached_service<'a>(batch: &Batch<'a>, service: u32) -> Option<CachedService<'a>> {
    let keyed = batch.snapshot.service(service).keyed.as_deref()?;
    Some(CachedService { keyed, rules: keyed.rules.cache.as_ref()? })
}

/// Writes the link, IP and UDP headers of a reply whose payload is already in place. Source and
/// destination of the request are swapped. `payload` is the checksum of the payload, if it is
/// known.
#[inline]
fn turn_round(packet: &mut Packet<'_>, link: &[u8], flow: &Flow, payload: Option<Sum>) -> Option<()> {
    let (front, ip) = packet.frame_mut().split_at_mut_checked(link.len())?;
    let (&[a, b, c, d, e, f, g, h, i, j, k, l], tags_and_type) = link.split_first_chunk::<STATIONS>()?;
    let (stations, behind) = front.split_first_chunk_mut::<STATIONS>()?;
    *stations = [g, h, i, j, k, l, a, b, c, d, e, f];
    behind.copy_from_slice(tags_and_type);
    let (from, to) = (socket(flow.destination, flow.destination_port), socket(flow.source, flow.source_port));
    let is_written = match payload {
        Some(payload) => write_udp_over(ip, from, to, payload),
        None => write_udp(ip, from, to),
    };
    is_written.then_some(())
}

fn read<'a>(
    batch: &Batch<'_>,
    rules: &CacheRules,
    asked: HashedKey<'a>,
    slot: SlotId,
    flow: &Flow,
) -> Read<'a, AskedAt> {
    Read {
        hash: asked.hash,
        server: slot.0,
        key: asked.key,
        lease: rules.lease,
        fills_per_server: rules.fills_per_server,
        // A new configuration invalidates all older cached values. A state change of a backend
        // invalidates only the values from that backend. Other code handles this case.
        generation: batch.snapshot.generation().0,
        asked: AskedAt::of(flow),
    }
}

/// Returns the UDP payload of an unfragmented packet.
fn payload<'a>(frame: &'a [u8], parsed: &Parsed) -> Option<&'a [u8]> {
    let udp = frame.get(usize::from(parsed.l4)..usize::from(parsed.end))?;
    let &[_, _, _, _, high, low, _, _] = udp.first_chunk::<UDP_HEADER>()?;
    udp.get(UDP_HEADER..usize::from(u16::from_be_bytes([high, low])))
}

/// Returns `true` if a reply may be sent back to the source of a request. Under
/// `NextHopMode::Reflect` the source must be a known gateway. Both MAC addresses must be unicast,
/// and the UDP checksum must be correct. The checksum is verified here because no backend receives
/// the request.
fn may_turn_round(batch: &Batch<'_>, frame: &[u8], parsed: &Parsed) -> bool {
    let Some(&[to, _, _, _, _, _, from @ ..]) = frame.first_chunk::<STATIONS>() else { return false };
    let [first, ..] = from;
    let is_known = match &batch.snapshot.next_hop {
        NextHopMode::Reflect { gateways, .. } => gateways.iter().any(|gateway| gateway.0 == from),
        NextHopMode::Resolve => true,
    };
    is_known && (to | first) & 1 == 0 && udp_checksum_ok(frame, parsed)
}

/// The length of two MAC addresses, in bytes.
const STATIONS: usize = 12;
const UDP_HEADER: usize = 8;
/// The maximum length of a request frame that is answered from the cache, in bytes. The longest
/// such frame has two VLAN tags and a memcached meta command with the longest key and all flags.
const MOST_SAVED: usize = 512;
/// The maximum length of the protocol header in front of a prepared reply, in bytes.
const MOST_FRONT: usize = 16;
/// The maximum length of a link header with two VLAN tags, in bytes. Every request frame is longer
/// than this maximum.
const MOST_LINK: usize = 22;
/// The maximum difference, in bytes, between the length of a reply frame and the total length of
/// the request frame and the value.
const AROUND_A_VALUE: usize = 40;
/// The index of 20 ms in `GATHER_TIMEOUTS_MS`.
const FETCH_TIMEOUT: usize = {
    assert!(GATHER_TIMEOUTS_MS[4] == 20, "the timeout of a fetch must be 20 ms");
    4
};
