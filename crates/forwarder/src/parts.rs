//! The parts of a snapshot, such as services, their addresses and ports, and the next-hop mode. The
//! control plane compiles the parts from the configuration. [`crate::Snapshot::new`] checks that
//! the parts are consistent.

use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::sync::Arc;

use packet::{Family, Mac};

use crate::slot::{Generation, PoolTable, ServiceId, Slot, SlotId, SlotState};
use crate::{Guard, HashKey, HashPolicy, Keyed, Prefix, Remote, Suffix, Tagging, TunnelSource};

/// A service, which receives the packets for some ports of a VIP.
#[derive(Clone, Debug)]
pub struct Service {
    /// The service ID, which stays the same in all generations.
    pub id: ServiceId,
    /// The name of the VIP, followed by the protocol and the port.
    pub name: Arc<str>,
    /// The address family of this entry. A service that selects backends separately for IPv4 and
    /// IPv6 has two entries with the same ID and name. `None` means that the entry is for both
    /// families.
    pub family: Option<Family>,
    /// The packet fields that are hashed to select the backend.
    pub policy: HashPolicy,
    /// The pool of the service, with its Maglev table.
    pub pool: Arc<PoolTable>,
    /// Slots that this service must not use, although their state allows it: slots that only other
    /// services still use, and draining slots of a service that moves its flows. The list is in
    /// ascending order. Flows of this service on these slots move to another backend.
    pub excluded_slots: Arc<[SlotId]>,
    /// The source lists and rate limits of the VIP, or `None` if the VIP is not restricted.
    pub guard: Option<Arc<Guard>>,
    /// Other clusters that serve the same VIP. Flows of this service are sent to these clusters
    /// while no local backend is serving. `None` disables this fallback.
    pub remotes: Option<Arc<Vec<Remote>>>,
    /// The rules for selection by request key. This field is `Some` if and only if the policy is
    /// [`HashPolicy::Key`].
    pub keyed: Option<Arc<Keyed>>,
    /// `true` if the VIP accepts IP fragments. All services at one address have the same value.
    pub fragments: bool,
    /// The packets to the VIP that are rejected. All services at one address have the same value of
    /// [`Rejects::unserved_port`].
    pub rejects: Rejects,
}

/// The packets to a VIP that are rejected with a reply to their sender, instead of being dropped
/// silently.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rejects {
    /// `true` if packets are rejected for which no backend is serving
    /// ([`DropReason::NoBackend`](crate::DropReason::NoBackend)).
    pub no_backend: bool,
    /// `true` if packets are rejected whose protocol or port has no service
    /// ([`DropReason::NoVip`](crate::DropReason::NoVip)).
    pub unserved_port: bool,
}

/// A prefix group, which contains prefixes of several clusters that serve the same VIPs.
#[derive(Clone, Debug)]
pub struct PrefixGroup {
    /// The name of the prefix group.
    pub name: Arc<str>,
    /// The prefixes of both address families, in any order. Prefixes of different groups may
    /// overlap, and an address belongs to the group with the longest matching prefix.
    pub prefixes: Vec<Prefix>,
}

/// The address or addresses of a VIP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VipAddress {
    /// A single address, which takes precedence over all prefix groups.
    Exact(IpAddr),
    /// All addresses that end with this suffix and whose longest matching prefix belongs to the
    /// group. If several suffixes match an address, the address belongs to the VIP with the longest
    /// suffix.
    Suffix {
        /// The index of the group in [`Parts::groups`].
        group: usize,
        /// The last bits of the addresses.
        suffix: Suffix,
    },
}

impl VipAddress {
    /// Returns the address family of the VIP.
    #[must_use]
    pub fn family(&self) -> Family {
        Family::of(match self {
            Self::Exact(address) => *address,
            Self::Suffix { suffix, .. } => suffix.address(),
        })
    }
}

impl From<IpAddr> for VipAddress {
    fn from(address: IpAddr) -> Self {
        Self::Exact(address)
    }
}

/// Assigns a port range of a VIP to a service.
#[derive(Clone, Debug)]
pub struct Binding {
    /// The address or addresses of the VIP. A packet to a port without a binding is dropped, even
    /// if a less specific VIP has a binding for the port.
    pub address: VipAddress,
    /// The IP protocol number.
    pub protocol: u8,
    /// The port range. For a protocol without ports, the range contains all ports. If two bindings
    /// contain the same port, the binding with fewer ports takes precedence.
    pub ports: RangeInclusive<u16>,
    /// The index of the service in [`Parts::services`].
    pub service: usize,
}

/// The method by which the destination MAC address of outgoing frames is selected.
#[derive(Clone, Debug, Default)]
pub enum NextHopMode {
    /// Frames are sent to the next hop of their slot, which the control plane resolves.
    #[default]
    Resolve,
    /// Frames are sent back to the router that they came from. `gateways` must contain the MAC
    /// address of this router.
    Reflect {
        /// The MAC addresses of the known gateways.
        gateways: Box<[Mac]>,
        /// The VLAN tagging rules, indexed by interface. On an interface without a rule, frames
        /// keep their tags.
        tagging: Box<[Tagging]>,
    },
}

/// All parts of a snapshot.
#[derive(Clone, Debug)]
pub struct Parts {
    /// The generation number of the snapshot.
    pub generation: Generation,
    /// The cluster's hash key.
    pub hash_key: HashKey,
    /// The services, in any order.
    pub services: Vec<Service>,
    /// The assignments of addresses and ports to services.
    pub bindings: Vec<Binding>,
    /// The prefix groups. An address belongs only to the group with the longest matching prefix,
    /// even if that group has no bindings.
    pub groups: Vec<PrefixGroup>,
    /// The slots, indexed by [`SlotId`].
    pub slots: Vec<Slot>,
    /// The state of each slot, indexed by [`SlotId`].
    pub states: Vec<SlotState>,
    /// The method by which the destination MAC address of outgoing frames is selected.
    pub next_hop: NextHopMode,
    /// The machine's own addresses. The first address of each family is the source address of ICMP
    /// errors that this machine sends.
    pub own: Vec<IpAddr>,
    /// The sources that may send tunneled packets to this machine.
    pub tunnels: Vec<TunnelSource>,
    /// The machines of the cluster, among which the collection of fragments is distributed. `None`
    /// if this machine has no peers.
    pub peers: Option<Arc<PoolTable>>,
}
