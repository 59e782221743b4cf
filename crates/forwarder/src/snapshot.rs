//! One generation of the configuration as packet threads see it. Immutable.
//!
//! Built by the control plane, read by everyone through [`crate::Live`]. Big parts stand behind `Arc`, so that a change of
//! health or of a next hop copies little.
//! Invariant: every number inside (service, slot, rank) was checked by [`Snapshot::new`].

use std::collections::{BTreeMap, HashSet};
use std::fmt;
use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::sync::Arc;

use maglev_hash::Table;
use packet::{Family, Mac, Template};

use crate::filter::filter;
use crate::flow::mapped;
use crate::vip_table::{Claim, Key, VipTable};
use crate::{
    FlowHasher, Guard, GuardId, HashKey, HashPolicy, InterfaceId, Prefix, Remote, Suffix, Tagging, Trace,
    TunnelSource,
};

/// The number of a configuration; counts up from 1 while the process lives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Generation(pub u64);

/// A service's number in flow tables and counters. Stable over generations; below 2²⁴ - 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ServiceId(pub u32);

/// A slot's number: a backend in a leaf pool. Stable over generations; below 2²⁴ - 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SlotId(pub u32);

/// The place of this machine itself in [`Parts::peers`]: it has no slot, and always serves.
pub const THIS_MACHINE: SlotId = SlotId(u32::MAX);

/// What a slot may be given.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SlotState {
    /// New flows and old ones.
    Serving,
    /// Old flows only.
    Draining,
    /// Nothing: its flows are reselected at their next packet.
    Down,
    /// Not in use.
    #[default]
    Free,
}

/// Where the frames for a slot go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NextHop {
    /// The gateway's or the backend's own MAC address.
    pub destination: Mac,
    /// The MAC address of our interface.
    pub source: Mac,
    /// The interface that they leave by.
    pub interface: InterfaceId,
    /// What becomes of their VLAN tags.
    pub tagging: Tagging,
}

impl NextHop {
    /// By the first interface, with the tags that frames came with.
    #[must_use]
    pub const fn plain(destination: Mac, source: Mac) -> Self {
        Self { destination, source, interface: InterfaceId(0), tagging: Tagging::Keep }
    }
}

/// What becomes of a packet that is larger than the way takes, when its DF flag is clear. With DF, and for IPv6, its sender is
/// told which size fits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TooBig {
    /// Dropped.
    #[default]
    Drop,
    /// Cut, then each piece is wrapped: the backend's IP layer puts it together.
    FragmentInner,
    /// Wrapped, then what came of it is cut: the backend puts it together before it takes the outer headers off.
    FragmentOuter,
}

/// How a slot's packets are wrapped.
#[derive(Clone, Debug)]
pub enum Forwarding {
    /// Only the MAC addresses change.
    L2,
    /// Outer headers for IPv4 and for IPv6 packets inside; both of one length.
    Tunnel {
        /// For IPv4 inside.
        v4: Template,
        /// For IPv6 inside.
        v6: Template,
    },
}

/// A backend in a leaf pool.
#[derive(Clone, Debug)]
pub struct Slot {
    /// The backend's name, unique in the cluster.
    pub backend: Arc<str>,
    /// The address that packets are sent to.
    pub address: IpAddr,
    /// How its packets are wrapped.
    pub forwarding: Forwarding,
    /// Where they go; `None` while unresolved.
    pub next_hop: Option<NextHop>,
    /// The largest outer IP packet that the way to it takes, in bytes.
    pub mtu: u16,
    /// What becomes of larger ones.
    pub too_big: TooBig,
}

impl Slot {
    /// Bytes that the outer headers add in front of the inner packet.
    #[must_use]
    #[inline]
    pub fn encap_overhead(&self) -> usize {
        match &self.forwarding {
            Forwarding::L2 => 0,
            Forwarding::Tunnel { v4, .. } => v4.len(),
        }
    }

    /// The headers for a packet of `inner`'s family; `None` for L2.
    #[must_use]
    #[inline]
    pub fn template(&self, inner: Family) -> Option<&Template> {
        match (&self.forwarding, inner) {
            (Forwarding::L2, _) => None,
            (Forwarding::Tunnel { v4, .. }, Family::V4) => Some(v4),
            (Forwarding::Tunnel { v6, .. }, Family::V6) => Some(v6),
        }
    }
}

/// A pool's table, shared by all services that use the pool.
#[derive(Debug)]
pub struct PoolTable {
    /// The pool's name.
    pub name: Arc<str>,
    /// From flow hash to rank. `None`: no backend has a weight.
    pub table: Option<Arc<Table>>,
    /// From rank to slot.
    pub slots: Box<[SlotId]>,
    /// The backends' weights, by rank.
    pub weights: Box<[u32]>,
}

/// What a VIP's ports lead to.
#[derive(Clone, Debug)]
pub struct Service {
    /// Its stable number.
    pub id: ServiceId,
    /// The VIP's name, with port and protocol.
    pub name: Arc<str>,
    /// What chooses the backend.
    pub policy: HashPolicy,
    /// Its backends.
    pub pool: Arc<PoolTable>,
    /// Slots that it has left behind, sorted: they serve others, but flows of this service on them are reselected.
    pub excluded_slots: Arc<[SlotId]>,
    /// Who may use it, and how fast; `None`: everyone.
    pub guard: Option<Arc<Guard>>,
    /// Other clusters that have it too: its flows go there while no backend of its pool serves. `None`: nowhere.
    pub remotes: Option<Arc<Vec<Remote>>>,
    /// Whether its VIP takes fragments; the same for all services of an address.
    pub fragments: bool,
}

/// Prefixes of clusters that serve the same VIPs.
#[derive(Clone, Debug)]
pub struct PrefixGroup {
    /// Its name.
    pub name: Arc<str>,
    /// Of both families, in any order. They may lie in those of other groups: the longest one decides.
    pub prefixes: Vec<Prefix>,
}

/// Which addresses a VIP has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VipAddress {
    /// This one. It goes before all groups.
    Exact(IpAddr),
    /// All with this suffix whose longest prefix is one of the group's; of several suffixes the longest decides.
    Suffix {
        /// Index into [`Parts::groups`].
        group: usize,
        /// The addresses' last bits.
        suffix: Suffix,
    },
}

impl From<IpAddr> for VipAddress {
    fn from(address: IpAddr) -> Self {
        Self::Exact(address)
    }
}

/// Gives a VIP's ports to a service.
#[derive(Clone, Debug)]
pub struct Binding {
    /// The VIP's address or addresses. A port that it lacks belongs to no other VIP instead.
    pub address: VipAddress,
    /// IP protocol number.
    pub protocol: u8,
    /// Ports; all of them for protocols without ports. The narrower binding wins where two hold a port.
    pub ports: RangeInclusive<u16>,
    /// Index into [`Parts::services`].
    pub service: usize,
}

/// Who a frame is sent to.
#[derive(Clone, Debug, Default)]
pub enum NextHopMode {
    /// Each slot's own next hop.
    #[default]
    Resolve,
    /// Back to the router that it came from, if that is one of these.
    Reflect {
        /// MAC addresses of the known gateways.
        gateways: Box<[Mac]>,
        /// What becomes of VLAN tags on each interface; kept where there is nothing for it.
        tagging: Box<[Tagging]>,
    },
}

/// All that makes a snapshot.
#[derive(Clone, Debug)]
pub struct Parts {
    /// Its number.
    pub generation: Generation,
    /// The cluster's key.
    pub hash_key: HashKey,
    /// Services, in any order.
    pub services: Vec<Service>,
    /// Their addresses and ports.
    pub bindings: Vec<Binding>,
    /// Prefix groups; one without bindings takes its addresses from groups with shorter prefixes all the same.
    pub groups: Vec<PrefixGroup>,
    /// Slots, indexed by [`SlotId`].
    pub slots: Vec<Slot>,
    /// What each slot may be given.
    pub states: Vec<SlotState>,
    /// Who frames are sent to.
    pub next_hop: NextHopMode,
    /// The machine's own addresses; the first of a family is the source of its ICMP errors.
    pub own: Vec<IpAddr>,
    /// Who may send tunnelled packets to it.
    pub tunnels: Vec<TunnelSource>,
    /// The machines of the cluster that gather fragments; `None`: this one alone.
    pub peers: Option<Arc<PoolTable>>,
}

/// One generation. See the room's header.
#[derive(Clone)]
pub struct Snapshot {
    pub(crate) generation: Generation,
    pub(crate) hasher: FlowHasher,
    pub(crate) vips: Arc<VipTable>,
    pub(crate) services: Arc<[Service]>,
    pub(crate) slots: Arc<[Slot]>,
    // Apart from the slots, so that a verdict on one of 100,000 copies as many bytes and no more.
    pub(crate) states: Arc<[SlotState]>,
    pub(crate) next_hop: NextHopMode,
    pub(crate) trace: Option<Arc<Trace>>,
    own: Arc<[IpAddr]>,
    pub(crate) tunnels: Arc<[TunnelSource]>,
    /// Whether there are any, in a place that is read anyway.
    pub(crate) opens: bool,
    peers: Option<Arc<PoolTable>>,
    filter: Arc<[(IpAddr, u8)]>,
    filter_prefixes: Arc<[(Prefix, u8)]>,
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
        let mut claims = Vec::with_capacity(parts.bindings.len());
        for binding in &parts.bindings {
            let vip = match binding.address {
                VipAddress::Exact(address) => Key::Exact(mapped(address)),
                VipAddress::Suffix { group, suffix } => {
                    Key::Suffix(u32::try_from(group).map_err(|_| SnapshotError::TooMany)?, suffix)
                }
            };
            claims.push(Claim {
                vip,
                protocol: binding.protocol,
                ports: binding.ports.clone(),
                service: u32::try_from(binding.service).map_err(|_| SnapshotError::TooMany)?,
            });
        }
        let name = |index: u32| parts.services[index as usize].name.to_string();
        let groups = parts.groups.iter().map(|group| &*group.prefixes);
        let vips =
            VipTable::build(&claims, groups).map_err(|(a, b)| SnapshotError::Clash(name(a), name(b)))?;
        let filter = filter(&parts);
        Ok(Self {
            generation: parts.generation,
            hasher: FlowHasher::new(&parts.hash_key),
            vips: Arc::new(vips),
            services: parts.services.into(),
            slots: parts.slots.into(),
            states: parts.states.into(),
            next_hop: parts.next_hop,
            trace: None,
            own: parts.own.into(),
            opens: !parts.tunnels.is_empty(),
            tunnels: parts.tunnels.into(),
            peers: parts.peers,
            filter: filter.addresses.into(),
            filter_prefixes: filter.prefixes.into(),
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
        &self.filter
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

    /// The address that the machine itself speaks from in a family.
    #[must_use]
    pub fn own_address(&self, family: Family) -> Option<IpAddr> {
        self.own.iter().copied().find(|own| own.is_ipv4() == (family == Family::V4))
    }

    /// The prefixes that XDP hands over besides, disjoint and at most [`FILTER_PREFIXES`](crate::FILTER_PREFIXES), each with the
    /// encapsulation overhead in bytes that most weight of its groups' pools needs. They may cover more than the groups do.
    #[must_use]
    pub fn filter_prefixes(&self) -> &[(Prefix, u8)] {
        &self.filter_prefixes
    }

    /// Who frames are sent to.
    #[must_use]
    pub fn next_hop_mode(&self) -> &NextHopMode {
        &self.next_hop
    }

    /// The same generation, whose marked packets are told of as `trace` says; `None`: nobody is told.
    #[must_use]
    pub fn with_trace(self, trace: Option<Trace>) -> Self {
        Self { trace: trace.map(Arc::new), ..self }
    }

    /// Whom it tells of marked packets.
    #[must_use]
    pub fn trace(&self) -> Option<&Trace> {
        self.trace.as_deref()
    }

    /// The same generation with other states. Tables stay, and a slot that no longer serves is skipped by rehashing.
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
        Ok(Self { slots: slots.into(), next_hop, ..self.clone() })
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
        Ok(Self { services: services.into(), ..self.clone() })
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
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SnapshotError {
    /// A pool names a slot that is not there.
    NoSuchSlot(usize),
    /// A binding names a service that is not there.
    NoSuchService(usize),
    /// A binding names a prefix group that is not there.
    NoSuchGroup(usize),
    /// Two groups, or one group twice, have the same prefix.
    PrefixTwice(Prefix, String, String),
    /// A pool's table, slots and weights differ in length.
    PoolShape(String),
    /// Two services claim the same ports of one address, equally precisely.
    Clash(String, String),
    /// A number reaches 2²⁴ - 1.
    TooMany,
    /// A template's length differs between inner families, or is above 63 bytes.
    Growth(String),
    /// A guard's number reaches [`GuardId::LIMIT`].
    TooManyGuards,
}

impl fmt::Display for SnapshotError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoSuchSlot(slot) => write!(f, "no slot {slot}"),
            Self::NoSuchService(service) => write!(f, "no service {service}"),
            Self::NoSuchGroup(group) => write!(f, "no prefix group {group}"),
            Self::PrefixTwice(prefix, a, b) => write!(f, "prefix {prefix} is in groups {a} and {b}"),
            Self::PoolShape(pool) => write!(f, "pool {pool}: table, slots and weights differ in length"),
            Self::Clash(a, b) => write!(f, "{a} and {b} claim the same address, protocol and port"),
            Self::TooMany => write!(f, "more than {MAX_NUMBER} slots or services"),
            Self::Growth(backend) => {
                write!(f, "backend {backend}: outer headers of unequal or too great length")
            }
            Self::TooManyGuards => write!(f, "more than {} VIPs with limits", GuardId::LIMIT),
        }
    }
}

impl std::error::Error for SnapshotError {}

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
/// What the XDP program can open.
pub(crate) const MAX_ENCAP_OVERHEAD: usize = 63;
