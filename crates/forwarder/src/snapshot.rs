//! The snapshot: one generation of the configuration in the form that packet threads use. A
//! snapshot is immutable. The control plane builds a snapshot and publishes it through
//! [`crate::Live`]. Snapshots share large parts through `Arc`, so that a change of a health state
//! or next hop copies little data.
//!
//! [`Snapshot::new`] checks that all references to services, slots and ranks in a snapshot are
//! valid.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use classifier::{Claim, VipKey, VipTable, mapped};
use kv_switch::Epochs;
use packet::{Family, LinkHeader, Prepared, Template, protocol};

use crate::filter::{Filter, MAX_ENCAP_OVERHEAD, filter};
use crate::keyed::{KeyPath, Keyed};
use crate::parts::{Binding, NextHopMode, Parts, Rejects, Service, VipAddress};
use crate::slot::{
    Forwarding, Generation, NextHop, PoolTable, ServiceId, Slot, SlotId, SlotState, THIS_MACHINE,
};
use crate::{FlowHasher, GuardId, HashPolicy, InterfaceId, Prefix, Spread, Tagging, Trace, TunnelSource};

/// One generation of the configuration, in the form that packet threads use.
#[derive(Clone)]
pub struct Snapshot {
    pub(crate) generation: Generation,
    pub(crate) hasher: FlowHasher,
    pub(crate) vips: Arc<VipTable>,
    pub(crate) services: Arc<[Service]>,
    plain_services: Arc<[PlainService]>,
    /// The indexes of the services that have TCP ports.
    tcp_services: Arc<[usize]>,
    /// `true` if several TCP connections can share a connection table entry, because a service
    /// hashes only addresses. A SYN then does not necessarily begin a flow.
    pub(crate) has_shared_entries: bool,
    pub(crate) slots: Arc<[Slot]>,
    /// `true` if packets for a slot are sent to another Sluicegate machine.
    pub(crate) has_redirects: bool,
    /// The prepared headers, two entries per slot: first for IPv4 and then for IPv6 inner packets.
    /// The headers of a slot with several next hops are in `spread_headers` instead.
    headers: Arc<[Prepared<InterfaceId>]>,
    /// The prepared headers of slots with several next hops, indexed by slot, with two entries per
    /// hop. The list is empty if no slot has several next hops.
    spread_headers: Arc<[Box<[Prepared<InterfaceId>]>]>,
    // The states are stored separately from the slots, so that a health state change copies only
    // one byte per slot.
    pub(crate) states: Arc<[SlotState]>,
    pub(crate) next_hop: NextHopMode,
    pub(crate) trace: Option<Arc<Trace>>,
    own: Arc<[IpAddr]>,
    pub(crate) tunnels: Arc<[TunnelSource]>,
    /// `true` if `tunnels` is not empty. This flag is stored next to fields that the packet path
    /// reads for each packet.
    pub(crate) opens: bool,
    /// `true` if this machine sends upstream requests to backends.
    has_upstream_requests: bool,
    /// `true` if at least one service rejects packets.
    pub(crate) has_rejects: bool,
    /// The addresses of backends that reply from their own address, in ascending order.
    proxied: Arc<[[u8; 16]]>,
    peers: Option<Arc<PoolTable>>,
    filter: Arc<Filter>,
}

impl Snapshot {
    /// Checks the parts and builds the lookup tables.
    ///
    /// # Errors
    /// Returns a [`SnapshotError`] if an index or ID refers to a missing entry, or if two bindings
    /// conflict.
    /// # Cost
    /// Linear in the number of bindings and services. Only the control plane calls this function.
    pub fn new(parts: Parts) -> Result<Self, SnapshotError> {
        check(&parts)?;
        let vips = vip_table(&parts)?;
        let (filter, has_upstream_requests) = (filter(&parts), has_upstream_requests(&parts.services));
        let proxied = proxied(&parts.services, &parts.slots);
        let has_rejects = has_rejects(&parts.services);
        let tcp_services = tcp_services(&parts.bindings);
        Ok(Self {
            generation: parts.generation,
            hasher: FlowHasher::new(&parts.hash_key),
            vips: Arc::new(vips),
            plain_services: plain_services(&parts.services),
            has_shared_entries: has_shared_entries(&parts.services, &tcp_services),
            tcp_services,
            services: parts.services.into(),
            headers: prepared(&parts.slots, &parts.next_hop),
            spread_headers: spread_headers(&parts.slots, &parts.next_hop),
            has_redirects: parts.slots.iter().any(Slot::is_redirect),
            slots: parts.slots.into(),
            states: parts.states.into(),
            next_hop: parts.next_hop,
            trace: None,
            own: parts.own.into(),
            opens: !parts.tunnels.is_empty(),
            tunnels: parts.tunnels.into(),
            has_upstream_requests,
            has_rejects,
            proxied,
            peers: parts.peers,
            filter: Arc::new(filter),
        })
    }

    /// Returns the generation number of this snapshot.
    #[must_use]
    pub fn generation(&self) -> Generation {
        self.generation
    }

    /// Returns the service at an index that the VIP table of this snapshot returned.
    #[inline]
    pub(crate) fn service(&self, index: u32) -> &Service {
        &self.services[index as usize]
    }

    /// Returns the index and the ID of the service for an IPv4 packet, given its hash input for
    /// [`HashPolicy::FiveTuple`]. Returns `None` if there is no such service, and for some packets
    /// to a service that is not plain ([`PlainService`]) or has several ports.
    #[inline(always)]
    pub(crate) fn find_plain(&self, message: [u64; 2]) -> Option<(u32, ServiceId)> {
        let index = self.vips.find_single_port(message)?;
        let service = self.plain_services.get(index as usize)?;
        service.is_plain.then_some((index, service.id))
    }

    /// Returns the prepared headers of a slot, for inner packets of the address family `inner`.
    /// Returns `None` if the slot does not exist.
    #[inline(always)]
    pub(crate) fn headers(&self, slot: SlotId, inner: Family) -> Option<&Prepared<InterfaceId>> {
        self.headers.get(slot.0 as usize * 2 + usize::from(inner == Family::V6))
    }

    /// Returns `true` if a slot has several next hops.
    #[inline(always)]
    pub(crate) fn has_spread_slots(&self) -> bool {
        !self.spread_headers.is_empty()
    }

    /// Returns the prepared headers for one flow if the slot has several next hops, and the length
    /// of the outer headers. Returns `None` for other slots, and for an inner packet that is too
    /// long.
    #[inline(never)]
    pub(crate) fn headers_of_flow(
        &self,
        slot: SlotId,
        inner: Family,
        flow_hash: u64,
        inner_len: u16,
    ) -> Option<(&Prepared<InterfaceId>, usize)> {
        let of_slot = self.spread_headers.get(slot.0 as usize)?;
        let place = self.slots.get(slot.0 as usize)?.spread.as_ref()?.place(flow_hash);
        let headers = of_slot.get(place * 2 + usize::from(inner == Family::V6))?;
        Some((headers, headers.overhead(inner_len)?))
    }

    /// Returns all services.
    #[must_use]
    pub fn services(&self) -> &[Service] {
        &self.services
    }

    /// Returns all slots, indexed by [`SlotId`].
    #[must_use]
    pub fn slots(&self) -> &[Slot] {
        &self.slots
    }

    /// Returns the state of a slot, or [`SlotState::Free`] if the slot does not exist.
    #[must_use]
    #[inline]
    pub fn state(&self, slot: SlotId) -> SlotState {
        self.states.get(slot.0 as usize).copied().unwrap_or_default()
    }

    /// Returns the states of all slots, indexed by [`SlotId`].
    #[must_use]
    pub fn states(&self) -> &[SlotState] {
        &self.states
    }

    /// Returns the addresses whose packets XDP redirects to packet threads.
    #[must_use]
    pub fn filter(&self) -> &[IpAddr] {
        &self.filter.addresses
    }

    /// Returns the sources that may send tunneled packets to this machine.
    #[must_use]
    pub fn tunnels(&self) -> &[TunnelSource] {
        &self.tunnels
    }

    /// Returns the machines of the cluster, which share the work of collecting fragments. Returns
    /// `None` if this machine has no peers.
    #[must_use]
    pub fn peers(&self) -> Option<&Arc<PoolTable>> {
        self.peers.as_ref()
    }

    /// Returns the peer that collects the fragments with this hash, or `None` if this machine
    /// collects them. Peers that are not serving are skipped by rehashing, which gives the same
    /// result on every machine.
    #[must_use]
    pub(crate) fn peer(&self, hash: u64) -> Option<SlotId> {
        let peers = self.peers.as_deref()?;
        let serves = |slot| slot == THIS_MACHINE || self.state(slot) == SlotState::Serving;
        let chosen = self.select_by(peers, hash, serves)?.slot;
        (chosen != THIS_MACHINE).then_some(chosen)
    }

    /// Returns `true` if this machine sends upstream requests from its own addresses. Upstream
    /// requests are needed for client requests with several keys, for cache fetches and for proxied
    /// requests.
    #[must_use]
    pub const fn has_upstream_requests(&self) -> bool {
        self.has_upstream_requests
    }

    /// Returns the cache memory in bytes, summed over all threads, and the table of recent write
    /// times. Returns `None` if no service has a cache.
    #[must_use]
    pub fn caches(&self) -> Option<(usize, Arc<Epochs>)> {
        let keyed = self.services.iter().filter_map(|service| service.keyed.as_deref());
        let mut rules: Vec<_> =
            keyed.map(|keyed| &keyed.rules).filter(|rules| rules.cache.is_some()).collect();
        rules.sort_by_key(|rules| Arc::as_ptr(rules));
        rules.dedup_by_key(|rules| Arc::as_ptr(rules));
        let caches = || rules.iter().filter_map(|rules| rules.cache.as_ref());
        let memory = caches().map(|cache| cache.memory).fold(0, usize::saturating_add);
        caches().next().map(|cache| (memory, Arc::clone(&cache.epochs)))
    }

    /// Returns the machine's own addresses.
    #[must_use]
    pub fn own(&self) -> &[IpAddr] {
        &self.own
    }

    /// Returns `true` if `address` is an address of this machine.
    pub(crate) fn is_own(&self, address: IpAddr) -> bool {
        self.own.contains(&address)
    }

    /// Returns the source address for packets of an address family that this machine originates.
    /// Returns `None` if the machine has no address of that family.
    #[must_use]
    pub fn own_address(&self, family: Family) -> Option<IpAddr> {
        self.own.iter().copied().find(|own| own.is_ipv4() == (family == Family::V4))
    }

    /// Returns the prefixes that XDP redirects in addition to the addresses of [`Self::filter`].
    /// The prefixes are disjoint, and their number is at most
    /// [`FILTER_PREFIXES`](crate::FILTER_PREFIXES). Aggregated prefixes can cover addresses that
    /// are not in any prefix group.
    #[must_use]
    pub fn filter_prefixes(&self) -> &[Prefix] {
        &self.filter.prefixes
    }

    /// Returns how the destination MAC address of outgoing frames is selected.
    #[must_use]
    pub fn next_hop_mode(&self) -> &NextHopMode {
        &self.next_hop
    }

    /// Returns this snapshot with a different configuration for trace reports and the same
    /// generation. `None` disables trace reports.
    #[must_use]
    pub fn with_trace(self, trace: Option<Trace>) -> Self {
        Self { trace: trace.map(Arc::new), ..self }
    }

    /// Returns the configuration for trace reports, or `None` if trace reports are disabled.
    #[must_use]
    pub fn trace(&self) -> Option<&Trace> {
        self.trace.as_deref()
    }

    /// Returns `true` if a backend of a keyed pool may send replies to upstream requests from this
    /// address and port. The packet thread that sent the request compares the address and the port
    /// with its request.
    #[cold]
    pub(crate) fn may_answer(&self, source: &[u8; 16], port: u16) -> bool {
        let at_vip = self.vips.find(source, protocol::UDP, port);
        at_vip.is_some_and(|index| self.service(index).keyed.is_some())
            || self.proxied.binary_search(source).is_ok()
    }

    /// Returns a copy of this snapshot with new slot states and the same generation. The Maglev
    /// tables stay the same, and rehashing skips slots that are not serving.
    ///
    /// # Errors
    /// Returns [`SnapshotError::NoSuchSlot`] if the number of states differs from the number of
    /// slots.
    /// # Cost
    /// Copies one byte per slot, regardless of the number of pools.
    pub fn with_states(&self, states: Vec<SlotState>) -> Result<Self, SnapshotError> {
        if states.len() != self.slots.len() {
            return Err(SnapshotError::NoSuchSlot(states.len()));
        }
        Ok(Self { states: states.into(), ..self.clone() })
    }

    /// Returns a copy of this snapshot with new slots, a new next-hop mode, and the same
    /// generation.
    ///
    /// # Errors
    /// Returns [`SnapshotError::NoSuchSlot`] if the number of slots changes.
    pub fn with_slots(&self, slots: Vec<Slot>, next_hop: NextHopMode) -> Result<Self, SnapshotError> {
        if slots.len() != self.slots.len() {
            return Err(SnapshotError::NoSuchSlot(slots.len()));
        }
        let headers = prepared(&slots, &next_hop);
        let spread_headers = spread_headers(&slots, &next_hop);
        let has_redirects = slots.iter().any(Slot::is_redirect);
        Ok(Self { headers, spread_headers, has_redirects, slots: slots.into(), next_hop, ..self.clone() })
    }

    /// Returns a copy of this snapshot with new services and the same generation. Addresses, ports
    /// and the XDP filter stay the same.
    ///
    /// # Errors
    /// Returns [`SnapshotError::NoSuchService`] if the number of services changes. If a pool is
    /// invalid, returns the same error as [`Snapshot::new`].
    pub fn with_services(&self, services: Vec<Service>) -> Result<Self, SnapshotError> {
        if services.len() != self.services.len() {
            return Err(SnapshotError::NoSuchService(services.len()));
        }
        let remotes = self.services.iter().filter_map(|service| service.remotes.as_deref()).flatten();
        let known = self.services.iter().map(|service| Arc::as_ptr(&service.pool));
        let known = known.chain(remotes.map(|remote| Arc::as_ptr(&remote.pool))).collect();
        check_pools(&services, self.slots.len(), known)?;
        let has_upstream_requests = has_upstream_requests(&services);
        let proxied = proxied(&services, &self.slots);
        let (has_rejects, plain_services) = (has_rejects(&services), plain_services(&services));
        Ok(Self {
            has_upstream_requests,
            has_rejects,
            proxied,
            plain_services,
            has_shared_entries: has_shared_entries(&services, &self.tcp_services),
            services: services.into(),
            ..self.clone()
        })
    }
}

impl fmt::Debug for Snapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Snapshot")
            .field("generation", &self.generation)
            .field("services", &self.services.len())
            .field("slots", &self.slots.len())
            .finish_non_exhaustive()
    }
}

/// The reason why the given parts do not form a valid snapshot.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SnapshotError {
    /// A pool refers to a slot that does not exist, or the number of slots or states is wrong.
    #[error("slot {0} is not defined")]
    NoSuchSlot(usize),
    /// A binding refers to a service that does not exist, or the number of services is wrong.
    #[error("service {0} is not defined")]
    NoSuchService(usize),
    /// A binding refers to a prefix group that does not exist.
    #[error("prefix group {0} is not defined")]
    NoSuchGroup(usize),
    /// A prefix is in two groups, or twice in one group.
    #[error("prefix {0} is in groups {1} and {2}")]
    PrefixTwice(Prefix, String, String),
    /// The Maglev table, slots and weights of a pool have different lengths.
    #[error("pool {0} has a table, slots and weights of different lengths")]
    PoolShape(String),
    /// Two services have overlapping bindings for the same address and protocol, and neither
    /// binding is more specific than the other.
    #[error("{0} and {1} claim the same address, protocol and port")]
    Clash(String, String),
    /// The number of slots or a service ID exceeds the limit of 2²⁴ - 1.
    #[error("too many slots or services (the limit is {MAX_NUMBER})")]
    TooMany,
    /// The outer headers of a backend differ in length between IPv4 and IPv6 inner packets, or they
    /// exceed 63 bytes.
    #[error(
        "outer headers of backend {0} exceed {MAX_ENCAP_OVERHEAD} bytes, or differ between IPv4 and IPv6"
    )]
    Growth(String),
    /// The ID of a guard is not below [`GuardId::LIMIT`].
    #[error("too many VIPs have limits (the maximum is {})", GuardId::LIMIT)]
    TooManyGuards,
}

/// The properties of a service that the fast path reads for each packet.
#[derive(Clone, Copy)]
struct PlainService {
    id: ServiceId,
    /// `true` if the service hashes 5-tuples, and has neither source lists nor excluded slots. The
    /// fast path then needs no other property to classify a packet.
    is_plain: bool,
}

fn plain_services(services: &[Service]) -> Arc<[PlainService]> {
    let is_plain = |service: &Service| {
        let has_lists =
            service.guard.as_ref().is_some_and(|guard| guard.allow.is_some() || guard.deny.is_some());
        service.policy == HashPolicy::FiveTuple && !has_lists && service.excluded_slots.is_empty()
    };
    services.iter().map(|service| PlainService { id: service.id, is_plain: is_plain(service) }).collect()
}

/// Returns the prepared headers of all slots with one next hop.
fn prepared(slots: &[Slot], mode: &NextHopMode) -> Arc<[Prepared<InterfaceId>]> {
    let only = |slot: &Slot| slot.next_hop.clone().filter(|_| slot.spread.is_none());
    slots.iter().flat_map(|slot| headers_by(slot, only(slot).as_ref(), mode)).collect()
}

/// Returns the prepared headers of all slots with several next hops.
fn spread_headers(slots: &[Slot], mode: &NextHopMode) -> Arc<[Box<[Prepared<InterfaceId>]>]> {
    if slots.iter().all(|slot| slot.spread.is_none()) {
        return Arc::default();
    }
    let of = |slot: &Slot| {
        let hops = slot.spread.iter().flat_map(Spread::hops);
        hops.flat_map(|hop| headers_by(slot, Some(hop), mode)).collect()
    };
    slots.iter().map(of).collect()
}

/// Returns the prepared headers of a slot for one next hop. Headers are prepared only if packets go
/// to the slot's own next hop and keep their VLAN tags.
fn headers_by(slot: &Slot, hop: Option<&NextHop>, mode: &NextHopMode) -> [Prepared<InterfaceId>; 2] {
    let by_router = matches!(mode, NextHopMode::Reflect { .. }) && slot.encap_overhead() > 0;
    let hop = hop.filter(|hop| hop.tagging == Tagging::Keep && !by_router);
    [Family::V4, Family::V6].map(|family| {
        let Some(hop) = hop else { return Prepared::none(InterfaceId(0)) };
        let template = slot.template(family);
        let ethertype = template.map_or(family.ethertype(), Template::ethertype);
        let link = LinkHeader { dst: hop.destination, src: hop.source, ethertype };
        Prepared::new(link, template, slot.mtu, hop.interface)
    })
}

fn has_upstream_requests(services: &[Service]) -> bool {
    let asks = |keyed: &Arc<Keyed>| {
        let rules = &keyed.rules;
        rules.gather.is_some() || rules.cache.is_some() || rules.path != KeyPath::Direct
    };
    services.iter().any(|service| service.keyed.as_ref().is_some_and(asks))
}

fn tcp_services(bindings: &[Binding]) -> Arc<[usize]> {
    let tcp = bindings.iter().filter(|binding| binding.protocol == protocol::TCP);
    let services: BTreeSet<usize> = tcp.map(|binding| binding.service).collect();
    services.into_iter().collect()
}

fn has_shared_entries(services: &[Service], tcp_services: &[usize]) -> bool {
    let policies = tcp_services.iter().filter_map(|index| services.get(*index)).map(|service| service.policy);
    { policies }.any(|policy| matches!(policy, HashPolicy::Addresses | HashPolicy::Source))
}

fn has_rejects(services: &[Service]) -> bool {
    services.iter().any(|service| service.rejects != Rejects::default())
}

/// Returns the addresses of all backends of proxied pools, in ascending order.
fn proxied(services: &[Service], slots: &[Slot]) -> Arc<[[u8; 16]]> {
    let keyed = services.iter().filter_map(|service| Some((service, service.keyed.as_deref()?)));
    let keyed = keyed.filter(|(_, keyed)| keyed.rules.path != KeyPath::Direct);
    let pools = keyed.flat_map(|(service, keyed)| [&service.pool].into_iter().chain(keyed.pools.iter()));
    let backends = pools.flat_map(|pool| &pool.slots).filter_map(|slot| slots.get(slot.0 as usize));
    let addresses: BTreeSet<[u8; 16]> = backends.map(|backend| mapped(backend.address)).collect();
    addresses.into_iter().collect()
}

fn vip_table(parts: &Parts) -> Result<VipTable, SnapshotError> {
    let number = |index: usize| u32::try_from(index).map_err(|_| SnapshotError::TooMany);
    let claim = |binding: &Binding| {
        let vip = match binding.address {
            VipAddress::Exact(address) => VipKey::Exact(mapped(address)),
            VipAddress::Suffix { group, suffix } => VipKey::Suffix(number(group)?, suffix),
        };
        let (protocol, ports) = (binding.protocol, binding.ports.clone());
        Ok(Claim { vip, protocol, ports, service: number(binding.service)? })
    };
    let claims = parts.bindings.iter().map(claim).collect::<Result<Vec<_>, _>>()?;
    let name = |index: u32| parts.services[index as usize].name.to_string();
    let groups = parts.groups.iter().map(|group| &*group.prefixes);
    VipTable::build(&claims, groups).map_err(|(a, b)| SnapshotError::Clash(name(a), name(b)))
}

fn check(parts: &Parts) -> Result<(), SnapshotError> {
    if parts.slots.len() > MAX_NUMBER || parts.services.iter().any(|s| s.id.0 as usize >= MAX_NUMBER) {
        return Err(SnapshotError::TooMany);
    }
    if parts.states.len() != parts.slots.len() {
        return Err(SnapshotError::NoSuchSlot(parts.states.len()));
    }
    let mut guards = parts.services.iter().filter_map(|service| service.guard.as_ref());
    if guards.any(|guard| guard.id.0 >= GuardId::LIMIT) {
        return Err(SnapshotError::TooManyGuards);
    }
    check_pools(&parts.services, parts.slots.len(), HashSet::new())?;
    if let Some(binding) = parts.bindings.iter().find(|binding| binding.service >= parts.services.len()) {
        return Err(SnapshotError::NoSuchService(binding.service));
    }
    check_groups(parts)?;
    for slot in &parts.slots {
        if let Forwarding::Tunnel { v4, v6 } = &slot.forwarding
            && (v4.len() != v6.len() || v4.len() > MAX_ENCAP_OVERHEAD)
        {
            return Err(SnapshotError::Growth(slot.backend.to_string()));
        }
    }
    Ok(())
}

/// Checks that the bindings refer to existing groups, and that no prefix occurs twice.
fn check_groups(parts: &Parts) -> Result<(), SnapshotError> {
    for binding in &parts.bindings {
        if let VipAddress::Suffix { group, .. } = binding.address
            && group >= parts.groups.len()
        {
            return Err(SnapshotError::NoSuchGroup(group));
        }
    }
    let mut seen: BTreeMap<Prefix, &str> = BTreeMap::new();
    for group in &parts.groups {
        for prefix in &group.prefixes {
            if let Some(other) = seen.insert(*prefix, &group.name) {
                return Err(SnapshotError::PrefixTwice(*prefix, other.to_owned(), group.name.to_string()));
            }
        }
    }
    Ok(())
}

/// Checks the pools of all services. Skips pools in `seen`, so that a pool of several services is
/// checked only once.
fn check_pools(
    services: &[Service],
    slots: usize,
    mut seen: HashSet<*const PoolTable>,
) -> Result<(), SnapshotError> {
    let remotes = services.iter().filter_map(|service| service.remotes.as_deref()).flatten();
    let pools = services.iter().map(|service| &service.pool).chain(remotes.map(|remote| &remote.pool));
    for pool in pools {
        if !seen.insert(Arc::as_ptr(pool)) {
            continue;
        }
        // All ranks in a Maglev table are less than its number of backends.
        let ranks = pool.table.as_ref().map_or(0, |table| table.backends().len());
        if pool.weights.len() != pool.slots.len() || ranks > pool.slots.len() {
            return Err(SnapshotError::PoolShape(pool.name.to_string()));
        }
        if let Some(slot) = pool.slots.iter().find(|slot| slot.0 as usize >= slots) {
            return Err(SnapshotError::NoSuchSlot(slot.0 as usize));
        }
    }
    Ok(())
}

/// Slot and service IDs in connection table entries have 24 bits. The value with all bits set is
/// reserved.
const MAX_NUMBER: usize = conntrack::ID_LIMIT as usize;
