//! One generation of the configuration as packet threads see it. Immutable.
//!
//! Built by the control plane, read by everyone through [`crate::Live`]. Big parts stand behind `Arc`, so that a change of
//! health or of a next hop copies little.
//! Invariant: every number inside (service, slot, rank) was checked by [`Snapshot::new`].

use std::collections::{BTreeMap, HashSet};
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use classifier::{Claim, VipKey, VipTable, mapped};
use kv_switch::Epochs;
use packet::{Family, LinkHeader, Prepared, Template};

use crate::filter::{Filter, MAX_ENCAP_OVERHEAD, filter};
use crate::keyed::{KeyPath, Keyed};
use crate::parts::{Binding, NextHopMode, Parts, Service, VipAddress};
use crate::slot::{Forwarding, Generation, PoolTable, Slot, SlotId, SlotState, THIS_MACHINE};
use crate::{FlowHasher, GuardId, InterfaceId, Prefix, Tagging, Trace, TunnelSource};

/// One generation. See the module's header.
#[derive(Clone)]
pub struct Snapshot {
    pub(crate) generation: Generation,
    pub(crate) hasher: FlowHasher,
    pub(crate) vips: Arc<VipTable>,
    pub(crate) services: Arc<[Service]>,
    pub(crate) slots: Arc<[Slot]>,
    /// What frames of each slot begin with, for IPv4 and then for IPv6 inside.
    headers: Arc<[Prepared<InterfaceId>]>,
    // Apart from the slots, so that a verdict on one of 100,000 copies as many bytes and no more.
    pub(crate) states: Arc<[SlotState]>,
    pub(crate) next_hop: NextHopMode,
    pub(crate) trace: Option<Arc<Trace>>,
    own: Arc<[IpAddr]>,
    pub(crate) tunnels: Arc<[TunnelSource]>,
    /// Whether there are any, in a place that is read anyway.
    pub(crate) opens: bool,
    /// Whether this machine asks backends itself, likewise.
    has_own_requests: bool,
    peers: Option<Arc<PoolTable>>,
    filter: Arc<Filter>,
}

impl Snapshot {
    /// Checks `parts` and puts the look-up tables together.
    ///
    /// # Errors
    /// [`SnapshotError`] when a number points nowhere or two bindings clash.
    /// # Cost
    /// Control plane only: linear in bindings and services.
    pub fn new(parts: Parts) -> Result<Self, SnapshotError> {
        check(&parts)?;
        let vips = vip_table(&parts)?;
        let (filter, has_own_requests) = (filter(&parts), has_own_requests(&parts.services));
        Ok(Self {
            generation: parts.generation,
            hasher: FlowHasher::new(&parts.hash_key),
            vips: Arc::new(vips),
            services: parts.services.into(),
            headers: prepared(&parts.slots, &parts.next_hop),
            slots: parts.slots.into(),
            states: parts.states.into(),
            next_hop: parts.next_hop,
            trace: None,
            own: parts.own.into(),
            opens: !parts.tunnels.is_empty(),
            tunnels: parts.tunnels.into(),
            has_own_requests,
            peers: parts.peers,
            filter: Arc::new(filter),
        })
    }

    /// Its number.
    #[must_use]
    pub fn generation(&self) -> Generation {
        self.generation
    }

    /// The service at an index that this very snapshot's VIP table gave.
    #[inline]
    pub(crate) fn service(&self, index: u32) -> &Service {
        &self.services[index as usize]
    }

    /// What frames for a slot begin with, for packets of `inner`'s family; `None`: no such slot.
    #[inline(always)]
    pub(crate) fn headers(&self, slot: SlotId, inner: Family) -> Option<&Prepared<InterfaceId>> {
        self.headers.get(slot.0 as usize * 2 + usize::from(inner == Family::V6))
    }

    /// All services.
    #[must_use]
    pub fn services(&self) -> &[Service] {
        &self.services
    }

    /// All slots, by [`SlotId`].
    #[must_use]
    pub fn slots(&self) -> &[Slot] {
        &self.slots
    }

    /// What a slot may be given; of a number that no slot has, [`SlotState::Free`].
    #[must_use]
    #[inline]
    pub fn state(&self, slot: SlotId) -> SlotState {
        self.states.get(slot.0 as usize).copied().unwrap_or_default()
    }

    /// The states of all slots, by [`SlotId`].
    #[must_use]
    pub fn states(&self) -> &[SlotState] {
        &self.states
    }

    /// The addresses that XDP hands over, each with the encapsulation overhead in bytes that most of its pools' weight needs.
    #[must_use]
    pub fn filter(&self) -> &[(IpAddr, u8)] {
        &self.filter.addresses
    }

    /// Who may send tunnelled packets to this machine.
    #[must_use]
    pub fn tunnels(&self) -> &[TunnelSource] {
        &self.tunnels
    }

    /// The machines of its shard, among which fragments are gathered; `None`: it is alone.
    #[must_use]
    pub fn peers(&self) -> Option<&Arc<PoolTable>> {
        self.peers.as_ref()
    }

    /// The machine that gathers what has this hash, if it is another one. A peer that does not serve is hashed around, the
    /// same on every machine.
    #[must_use]
    pub(crate) fn peer(&self, hash: u64) -> Option<SlotId> {
        let peers = self.peers.as_deref()?;
        let serves = |slot| slot == THIS_MACHINE || self.state(slot) == SlotState::Serving;
        let chosen = self.select_by(peers, hash, serves)?.slot;
        (chosen != THIS_MACHINE).then_some(chosen)
    }

    /// Whether backends of a service are asked from the machine's own addresses: to gather, for the cache, or because requests pass both
    /// ways.
    #[must_use]
    pub const fn has_own_requests(&self) -> bool {
        self.has_own_requests
    }

    /// What threads' caches are made of: bytes of all of them together, and when keys were written. `None`: no service has one.
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

    /// The machine's own addresses.
    #[must_use]
    pub fn own(&self) -> &[IpAddr] {
        &self.own
    }

    /// Whether an address is one of the machine's own.
    pub(crate) fn is_own(&self, address: IpAddr) -> bool {
        self.own.contains(&address)
    }

    /// The address that the machine itself speaks from in a family.
    #[must_use]
    pub fn own_address(&self, family: Family) -> Option<IpAddr> {
        self.own.iter().copied().find(|own| own.is_ipv4() == (family == Family::V4))
    }

    /// The prefixes that XDP hands over besides, disjoint and at most [`FILTER_PREFIXES`](crate::FILTER_PREFIXES), each with the
    /// encapsulation overhead in bytes that most weight of its groups' pools needs. They may cover more than the groups do.
    #[must_use]
    pub fn filter_prefixes(&self) -> &[(Prefix, u8)] {
        &self.filter.prefixes
    }

    /// Who frames are sent to.
    #[must_use]
    pub fn next_hop_mode(&self) -> &NextHopMode {
        &self.next_hop
    }

    /// The same generation, whose marked packets are reported as `trace` says; `None`: not reported.
    #[must_use]
    pub fn with_trace(self, trace: Option<Trace>) -> Self {
        Self { trace: trace.map(Arc::new), ..self }
    }

    /// How marked packets are reported; `None`: not at all.
    #[must_use]
    pub fn trace(&self) -> Option<&Trace> {
        self.trace.as_deref()
    }

    /// The same generation with other states. Tables are kept, and a slot that no longer serves is skipped by rehashing.
    ///
    /// # Errors
    /// [`SnapshotError::NoSuchSlot`] when there is not one state for each slot.
    /// # Cost
    /// A byte for each slot, whatever the number of pools.
    pub fn with_states(&self, states: Vec<SlotState>) -> Result<Self, SnapshotError> {
        if states.len() != self.slots.len() {
            return Err(SnapshotError::NoSuchSlot(states.len()));
        }
        Ok(Self { states: states.into(), ..self.clone() })
    }

    /// The same generation with other ways to the same slots.
    ///
    /// # Errors
    /// [`SnapshotError::NoSuchSlot`] when their number is another.
    pub fn with_slots(&self, slots: Vec<Slot>, next_hop: NextHopMode) -> Result<Self, SnapshotError> {
        if slots.len() != self.slots.len() {
            return Err(SnapshotError::NoSuchSlot(slots.len()));
        }
        let headers = prepared(&slots, &next_hop);
        Ok(Self { headers, slots: slots.into(), next_hop, ..self.clone() })
    }

    /// The same generation, its services led to other pools. Addresses, ports and the XDP filter stay.
    ///
    /// # Errors
    /// [`SnapshotError::NoSuchService`] when their number is another, and as [`Snapshot::new`] for their pools.
    pub fn with_services(&self, services: Vec<Service>) -> Result<Self, SnapshotError> {
        if services.len() != self.services.len() {
            return Err(SnapshotError::NoSuchService(services.len()));
        }
        let remotes = self.services.iter().filter_map(|service| service.remotes.as_deref()).flatten();
        let known = self.services.iter().map(|service| Arc::as_ptr(&service.pool));
        let known = known.chain(remotes.map(|remote| Arc::as_ptr(&remote.pool))).collect();
        check_pools(&services, self.slots.len(), known)?;
        let has_own_requests = has_own_requests(&services);
        Ok(Self { has_own_requests, services: services.into(), ..self.clone() })
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

/// Why parts don't fit together.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SnapshotError {
    /// A pool names a slot that is not there.
    #[error("no slot {0}")]
    NoSuchSlot(usize),
    /// A binding names a service that is not there.
    #[error("no service {0}")]
    NoSuchService(usize),
    /// A binding names a prefix group that is not there.
    #[error("no prefix group {0}")]
    NoSuchGroup(usize),
    /// Two groups, or one group twice, have the same prefix.
    #[error("prefix {0} is in groups {1} and {2}")]
    PrefixTwice(Prefix, String, String),
    /// A pool's table, slots and weights differ in length.
    #[error("pool {0}: table, slots and weights differ in length")]
    PoolShape(String),
    /// Two services claim the same ports of one address, equally precisely.
    #[error("{0} and {1} claim the same address, protocol and port")]
    Clash(String, String),
    /// A number reaches 2²⁴ - 1.
    #[error("more than {MAX_NUMBER} slots or services")]
    TooMany,
    /// A template's length differs between inner families, or is above 63 bytes.
    #[error("backend {0}: outer headers of unequal or too great length")]
    Growth(String),
    /// A guard's number reaches [`GuardId::LIMIT`].
    #[error("more than {} VIPs with limits", GuardId::LIMIT)]
    TooManyGuards,
}

/// What frames of slots begin with. Those that leave by way of their own next hop, with the tags that they came with, are laid out.
fn prepared(slots: &[Slot], mode: &NextHopMode) -> Arc<[Prepared<InterfaceId>]> {
    let of = |slot: &Slot, family: Family| {
        let hop = slot.next_hop.as_ref().filter(|hop| hop.tagging == Tagging::Keep);
        let by_router = matches!(mode, NextHopMode::Reflect { .. }) && slot.encap_overhead() > 0;
        let Some(hop) = hop.filter(|_| !by_router) else { return Prepared::none(InterfaceId(0)) };
        let template = slot.template(family);
        let ethertype = template.map_or(family.ethertype(), Template::ethertype);
        let link = LinkHeader { dst: hop.destination, src: hop.source, ethertype };
        Prepared::new(link, template, slot.mtu, hop.interface)
    };
    slots.iter().flat_map(|slot| [of(slot, Family::V4), of(slot, Family::V6)]).collect()
}

fn has_own_requests(services: &[Service]) -> bool {
    let asks = |keyed: &Arc<Keyed>| {
        let rules = &keyed.rules;
        rules.gather.is_some() || rules.cache.is_some() || rules.path != KeyPath::Direct
    };
    services.iter().any(|service| service.keyed.as_ref().is_some_and(asks))
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

/// A prefix leads to one group.
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

/// Each pool once, however many services share it; those that were `seen` before, never.
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
        // A table's ranks are below the number of its backends.
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

/// Numbers in flow-table entries have 24 bits, and all ones is left out.
const MAX_NUMBER: usize = (1 << 24) - 1;
