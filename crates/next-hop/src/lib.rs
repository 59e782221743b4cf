//! Next hops: to which Ethernet address, and out of which interface, a packet for an address leaves.
//!
//! In: the kernel's routes, neighbours and links, by rtnetlink, of the network namespace of the thread that opens
//! [`Resolver`] or [`Watch`]. Out: [`Table`]s of [`Resolved`] next hops, and the known [`Gateway`]s for `reflect`.
//! Not here: packets of our own (the kernel does the asking), snapshots, the choice between `resolve` and `reflect`.
//! Invariant: nothing is said resolved but what the kernel itself would use now; `PERMANENT` entries are never touched.
//! Source: rtnetlink(7); Linux `include/uapi/linux/{rtnetlink,neighbour}.h`, `net/core/neighbour.c`.
//!
//! ```
//! use std::net::Ipv4Addr;
//!
//! use next_hop::{NextHopError, Resolver, Unresolved};
//!
//! # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
//! let own = Ipv4Addr::LOCALHOST.into();
//! let ways = Resolver::open()?.resolve(&[own]).await?;
//! assert_eq!(ways[&own], Err(Unresolved::Local));
//! # Ok::<_, NextHopError>(()) })?;
//! # Ok::<_, Box<dyn std::error::Error>>(())
//! ```

#![forbid(unsafe_code)]

mod facts;
mod resolver;
#[cfg(test)]
mod tests;
mod watch;

use std::collections::HashMap;
use std::io;
use std::net::IpAddr;
use std::time::Duration;

use packet::Tags;

pub use resolver::{Resolver, look_up};
pub use watch::Watch;

/// Where packets for one destination go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Resolved {
    /// Index of the interface that the route names.
    pub interface: u32,
    /// Index of the one that frames leave by: the same, or what the VLAN device that the route names stands on.
    pub leaves_by: u32,
    /// The tags of the VLAN devices in between.
    pub tags: Tags,
    /// Ethernet address of the gateway, or of the destination itself when it is on the link.
    pub destination: [u8; 6],
    /// Ethernet address of the interface.
    pub source: [u8; 6],
    /// The longest IP packet that fits, in bytes: the smaller of the link's MTU and the route's. The route's
    /// takes in what the kernel learned by path MTU discovery.
    pub mtu_bytes: u32,
    /// The router in between; none when the destination is on the link.
    pub gateway: Option<IpAddr>,
    /// The source address that the kernel would choose.
    pub preferred_source: Option<IpAddr>,
}

/// A next hop for each address, or why there is none.
pub type NextHops = HashMap<IpAddr, Result<Resolved, Unresolved>>;

/// Why packets for a destination cannot leave now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Unresolved {
    /// No route covers it.
    #[error("no route")]
    NoRoute,
    /// A route says: drop silently.
    #[error("its route is a blackhole")]
    Blackhole,
    /// A route says: unreachable.
    #[error("its route says unreachable")]
    Unreachable,
    /// A route says: prohibited.
    #[error("its route says prohibited")]
    Prohibited,
    /// The kernel refused to look it up, for another reason.
    #[error("the kernel refused the route lookup: {}", io::Error::from_raw_os_error(*errno))]
    Refused {
        /// The kernel's error number.
        errno: i32,
    },
    /// It is one of the machine's own addresses.
    #[error("it is an address of this machine")]
    Local,
    /// It is a broadcast or multicast address.
    #[error("it is a broadcast or multicast address")]
    NotUnicast,
    /// The route puts another header in front (MPLS, SRv6, a tunnel's), which only the kernel can write.
    #[error("its route adds a header that only the kernel writes")]
    Encapsulated,
    /// The interface is gone, switched off, or without carrier.
    #[error("interface {interface} is down or has no carrier")]
    LinkDown {
        /// Its index.
        interface: u32,
    },
    /// The interface has no Ethernet address: loopback, TUN, point-to-point.
    #[error("interface {interface} has no Ethernet address")]
    NoMac {
        /// Its index.
        interface: u32,
    },
    /// The interface is a VLAN device on VLAN devices: three tags, of which two can be written.
    #[error("interface {interface} adds more than two VLAN tags")]
    TooManyTags {
        /// Its index.
        interface: u32,
    },
    /// Frames would leave by an interface that packet threads have no socket on.
    #[error("its route leaves by interface {interface}, which is not one of the balancer's")]
    OtherInterface {
        /// Its index.
        interface: u32,
    },
    /// The kernel does not know the neighbour's Ethernet address yet.
    #[error("neighbour {neighbour} on interface {interface} is not resolved yet")]
    NeighbourPending {
        /// Index of the interface.
        interface: u32,
        /// The gateway, or the destination itself.
        neighbour: IpAddr,
    },
    /// The neighbour did not answer the kernel.
    #[error("neighbour {neighbour} on interface {interface} does not answer")]
    NeighbourFailed {
        /// Index of the interface.
        interface: u32,
        /// The gateway, or the destination itself.
        neighbour: IpAddr,
    },
}

/// A router that some route goes through, and its Ethernet address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Gateway {
    /// Index of the interface that it is reached by.
    pub interface: u32,
    /// Its address, often link-local for IPv6.
    pub address: IpAddr,
    /// Its Ethernet address.
    pub mac: [u8; 6],
}

/// What a [`Watch`] is to keep fresh.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Wanted {
    /// Addresses that packets are sent to: backends and peers.
    pub destinations: Vec<IpAddr>,
    /// Indices of the interfaces whose gateways `reflect` may answer, by VLAN devices on them too; empty when it is not in
    /// use.
    pub gateway_interfaces: Vec<u32>,
    /// [`Table::interfaces`].
    pub interfaces: Vec<u32>,
}

/// All that was [`Wanted`], as it is now.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Table {
    /// One entry for each destination.
    pub next_hops: NextHops,
    /// The gateways whose Ethernet address is known, sorted.
    pub gateways: Vec<Gateway>,
    /// Indices of the interfaces that frames can leave by, in the order of the configuration; empty: by whichever it is, as
    /// nothing is sent.
    pub interfaces: Vec<u32>,
}

impl Table {
    /// With `interfaces` as those that frames can leave by: a way by another one is none.
    #[must_use]
    pub fn by(mut self, interfaces: Vec<u32>) -> Self {
        self.interfaces = interfaces;
        for way in self.next_hops.values_mut() {
            *way = way.and_then(|way| match self.interfaces.contains(&way.leaves_by) {
                false if !self.interfaces.is_empty() => {
                    Err(Unresolved::OtherInterface { interface: way.leaves_by })
                }
                _ => Ok(way),
            });
        }
        self
    }
}

/// Why the kernel could not be asked.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NextHopError {
    /// No netlink socket.
    #[error("cannot open a netlink socket: {0}")]
    Open(#[source] io::Error),
    /// The socket has failed, and a new [`Resolver`] is needed.
    #[error("the netlink socket is closed")]
    Closed,
    /// A request was lost, as when the socket's buffer ran over. Trying again is right.
    #[error("the kernel did not answer a netlink request within {0:?}")]
    NoAnswer(Duration),
    /// The kernel answered with an error.
    #[error("the kernel refused to {request}: {reason}")]
    Refused {
        /// What was asked.
        request: &'static str,
        /// The kernel's answer.
        #[source]
        reason: io::Error,
    },
}
