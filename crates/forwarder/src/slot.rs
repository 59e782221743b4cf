//! Data structures that describe backends to packet threads: slots, slot states, outer headers, and
//! the Maglev tables of pools. Services, which refer to pools, are in `parts`.

use std::net::IpAddr;
use std::sync::Arc;

use maglev_hash::Table;
use packet::{Family, Mac, Template};

use crate::{HopTable, InterfaceId, Tagging};

/// The number of a configuration generation. A process starts with generation 1, and each new
/// generation has the next higher number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Generation(pub u64);

/// The ID of a service, used in connection table entries and counters. The ID stays the same in all
/// generations and is less than 2²⁴ - 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ServiceId(pub u32);

/// The ID of a slot, which is one backend in one leaf pool. The ID stays the same in all
/// generations and is less than 2²⁴ - 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SlotId(pub u32);

/// The ID that represents this machine in [`Parts::peers`](crate::Parts::peers). This machine has
/// no slot, and is always treated as serving.
pub const THIS_MACHINE: SlotId = SlotId(u32::MAX);

/// The state of a slot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SlotState {
    /// The backend receives new flows and existing flows.
    Serving,
    /// The backend receives packets of existing flows only.
    Draining,
    /// The backend receives no packets. Each existing flow moves to another backend when its next
    /// packet arrives.
    Down,
    /// The slot is not assigned to a backend.
    #[default]
    Free,
}

/// The destination MAC address, interface and VLAN tagging of frames for a slot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NextHop {
    /// The MAC address of the gateway, or of the backend itself if it is on the same link.
    pub destination: Mac,
    /// The MAC address of the outgoing interface, which is the source address of the frames.
    pub source: Mac,
    /// The outgoing interface.
    pub interface: InterfaceId,
    /// The VLAN tagging rule for outgoing frames.
    pub tagging: Tagging,
}

impl NextHop {
    /// Returns a next hop on the first interface. Frames keep the VLAN tags with which they were
    /// received.
    #[must_use]
    pub const fn plain(destination: Mac, source: Mac) -> Self {
        Self { destination, source, interface: InterfaceId(0), tagging: Tagging::Keep }
    }
}

/// The next hops of a slot that has several. Each flow uses one of these hops.
#[derive(Clone, Debug)]
pub struct Spread {
    hops: Box<[NextHop]>,
    table: HopTable,
}

impl Spread {
    /// Creates the structure from the hops of a set and the hop table for this set.
    #[must_use]
    pub fn new(hops: Vec<NextHop>, table: HopTable) -> Self {
        Self { hops: hops.into(), table }
    }

    /// Returns all next hops.
    #[must_use]
    pub fn hops(&self) -> &[NextHop] {
        &self.hops
    }

    /// Returns the index in [`Self::hops`] of a flow's next hop.
    #[inline]
    pub(crate) fn place(&self, flow_hash: u64) -> usize {
        self.table.place(flow_hash)
    }
}

/// The action for an IPv4 packet without the DF flag that exceeds the path MTU. In all other cases,
/// the sender receives an ICMP error that reports the maximum packet size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TooBig {
    /// The packet is dropped and counted.
    Drop,
    /// The inner packet is fragmented, and each fragment is encapsulated. The backend reassembles
    /// the inner packet after decapsulation.
    FragmentInner,
    /// The encapsulated packet is fragmented. The backend reassembles the outer packet before
    /// decapsulation.
    FragmentOuter,
}

/// The method by which packets are forwarded to a slot.
#[derive(Clone, Debug)]
pub enum Forwarding {
    /// Only the MAC addresses are changed.
    L2,
    /// Outer headers are added. The headers for IPv4 and for IPv6 inner packets have the same
    /// length.
    Tunnel {
        /// The outer headers for IPv4 inner packets.
        v4: Template,
        /// The outer headers for IPv6 inner packets.
        v6: Template,
    },
}

/// A backend in a leaf pool.
#[derive(Clone, Debug)]
pub struct Slot {
    /// The name of the backend, which is unique in the cluster.
    pub backend: Arc<str>,
    /// The address of the backend. Encapsulated packets are sent to this address.
    pub address: IpAddr,
    /// The method by which packets are forwarded to the backend.
    pub forwarding: Forwarding,
    /// The next hop toward the backend, or `None` while it is not resolved. If `spread` is set,
    /// this is one of the hops in `spread`.
    pub next_hop: Option<NextHop>,
    /// The next hops toward the backend if there are several, or `None` if there is at most one
    /// next hop.
    pub spread: Option<Spread>,
    /// The path MTU to the backend: the maximum size of the outer IP packet, in bytes. If there are
    /// several next hops, this is the smallest of their MTUs.
    pub mtu: u16,
    /// The action for packets that exceed the path MTU.
    pub too_big: TooBig,
}

impl Slot {
    /// Returns the length of the outer headers, in bytes.
    #[must_use]
    #[inline]
    pub fn encap_overhead(&self) -> usize {
        match &self.forwarding {
            Forwarding::L2 => 0,
            Forwarding::Tunnel { v4, .. } => v4.len(),
        }
    }

    /// Returns the next hop of a flow.
    #[must_use]
    #[inline]
    pub fn hop(&self, flow_hash: u64) -> Option<&NextHop> {
        match &self.spread {
            None => self.next_hop.as_ref(),
            Some(spread) => spread.hops().get(spread.place(flow_hash)),
        }
    }

    /// Returns the outer headers for an inner packet of this address family. Returns `None` for L2
    /// forwarding.
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

/// A pool with its Maglev table. All services that use the pool share this structure. The rank of a
/// backend is its index in the lists of this structure.
#[derive(Debug)]
pub struct PoolTable {
    /// The name of the pool.
    pub name: Arc<str>,
    /// The Maglev table, which maps a flow hash to a rank. `None` if all weights are 0.
    pub table: Option<Arc<Table>>,
    /// The slots of the backends, indexed by rank.
    pub slots: Box<[SlotId]>,
    /// The weights of the backends, indexed by rank.
    pub weights: Box<[u32]>,
}
