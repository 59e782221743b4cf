//! Backends as packet threads see them: slots, their states and headers, and the pools' tables over them.
//!
//! Not here: what leads to a pool (`parts`), which generation a slot is of (`snapshot`).

use std::net::IpAddr;
use std::sync::Arc;

use maglev_hash::Table;
use packet::{Family, Mac, Template};

use crate::{InterfaceId, Tagging};

/// The number of a configuration; counts up from 1 while the process lives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Generation(pub u64);

/// A service's number in flow tables and counters. Stable over generations; below 2²⁴ - 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ServiceId(pub u32);

/// A slot's number: a backend in a leaf pool. Stable over generations; below 2²⁴ - 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SlotId(pub u32);

/// The place of this machine itself in [`Parts::peers`](crate::Parts::peers): it has no slot, and always serves.
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
/// answered with the size that fits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TooBig {
    /// Dropped and counted.
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
