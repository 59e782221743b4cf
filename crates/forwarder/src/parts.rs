//! What a snapshot is made of: services, their addresses and ports, and how frames leave.
//!
//! In: what the control plane compiled. Not here: whether it fits together ([`crate::Snapshot::new`] checks that).

use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::sync::Arc;

use packet::{Family, Mac};

use crate::slot::{Generation, PoolTable, ServiceId, Slot, SlotId, SlotState};
use crate::{Guard, HashKey, HashPolicy, Keyed, Prefix, Remote, Suffix, Tagging, TunnelSource};

/// What a VIP's ports lead to.
#[derive(Clone, Debug)]
pub struct Service {
    /// Its stable number.
    pub id: ServiceId,
    /// The VIP's name, with port and protocol.
    pub name: Arc<str>,
    /// The family of the addresses that lead here, where the other family's may lead to other backends: it then stands twice,
    /// under one number and name. `None`: both families.
    pub family: Option<Family>,
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
    /// How it chooses by the key of each request: with [`HashPolicy::Key`], and with that alone.
    pub keyed: Option<Arc<Keyed>>,
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

impl VipAddress {
    /// The family that it is of.
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
