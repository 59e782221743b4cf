//! Resolves next hops: the Ethernet address and the interface for packets to an IP address.
//!
//! The crate reads routes, neighbors and links of the kernel through rtnetlink, in the network
//! namespace of the thread that opens [`Resolver`] or [`Watch`]. The crate returns [`Table`]s of
//! [`Resolved`] next hops, and the known [`Gateway`]s for `io.next_hop = "reflect"`.
//!
//! A destination is reported as resolved only if the kernel itself would use the same next hop now.
//! `PERMANENT` neighbor entries are never changed.
//!
//! See rtnetlink(7) and Linux `include/uapi/linux/{rtnetlink,neighbour}.h`.
//!
//! ```
//! use std::net::Ipv4Addr;
//!
//! use next_hop::{NextHopError, Resolver, Unresolved};
//!
//! # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
//! let own = Ipv4Addr::LOCALHOST.into();
//! let ways = Resolver::open()?.resolve(&[own]).await?;
//! assert_eq!(ways[&own].first(), Err(Unresolved::Local));
//! # Ok::<_, NextHopError>(()) })?;
//! # Ok::<_, Box<dyn std::error::Error>>(())
//! ```

#![forbid(unsafe_code)]

mod facts;
mod hops;
#[cfg(test)]
mod linear;
mod resolver;
#[cfg(test)]
mod tests;
mod watch;

use std::collections::HashMap;
use std::io;
use std::net::IpAddr;
use std::time::Duration;

use packet::Tags;

pub use hops::{Hop, Hops, NeighbourKey};
pub use resolver::{Resolver, look_up};
pub use watch::Watch;

/// The next hop of one destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Resolved {
    /// The index of the interface that the route names.
    pub interface: u32,
    /// The index of the interface that sends the frames. This index differs from `interface` if
    /// `interface` is a VLAN device.
    pub leaves_by: u32,
    /// The VLAN tags that are added between `interface` and `leaves_by`.
    pub tags: Tags,
    /// The Ethernet address of the gateway, or of the destination itself if the destination is on
    /// the link.
    pub destination: [u8; 6],
    /// The Ethernet address of the sending interface.
    pub source: [u8; 6],
    /// The size of the longest IP packet that can be sent in one frame, in bytes. This size is the
    /// smaller of the link MTU and the route MTU. The route MTU takes into account the path MTU
    /// that the kernel has discovered.
    pub mtu_bytes: u32,
    /// The router to which frames are sent, or `None` if the destination is on the link.
    pub gateway: Option<IpAddr>,
    /// The source address that the kernel would choose for packets to the destination.
    pub preferred_source: Option<IpAddr>,
}

/// The next hops of each address, or the reason why there is none.
pub type NextHops = HashMap<IpAddr, Hops>;

/// The reason why packets to a destination cannot be sent now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Unresolved {
    /// There is no route to the destination.
    #[error("no route")]
    NoRoute,
    /// The route has type `blackhole`.
    #[error("the route is a blackhole")]
    Blackhole,
    /// The route has type `unreachable`.
    #[error("the route has type unreachable")]
    Unreachable,
    /// The route has type `prohibit`.
    #[error("the route has type prohibit")]
    Prohibited,
    /// The kernel refused the route lookup for another reason.
    #[error("the kernel refused the route lookup: {}", io::Error::from_raw_os_error(*errno))]
    Refused {
        /// The error number from the kernel.
        errno: i32,
    },
    /// The destination is an address of this machine.
    #[error("the address belongs to this machine")]
    Local,
    /// The destination is a broadcast or multicast address.
    #[error("the address is a broadcast or multicast address")]
    NotUnicast,
    /// The route adds another header (MPLS, SRv6 or a tunnel header), which only the kernel can
    /// write.
    #[error("the route uses an encapsulation that only the kernel can write")]
    Encapsulated,
    /// The interface no longer exists, is down or has no carrier.
    #[error("interface {interface} is down or has no carrier")]
    LinkDown {
        /// The index of the interface.
        interface: u32,
    },
    /// The interface has no Ethernet address, such as a loopback, TUN or point-to-point interface.
    #[error("interface {interface} has no Ethernet address")]
    NoMac {
        /// The index of the interface.
        interface: u32,
    },
    /// The interface adds three or more VLAN tags, but a frame can have only two.
    #[error("interface {interface} adds more than two VLAN tags")]
    TooManyTags {
        /// The index of the interface.
        interface: u32,
    },
    /// The load balancer has no socket on the interface that would send the frames.
    #[error("the route uses interface {interface}, which the load balancer does not use")]
    OtherInterface {
        /// The index of the interface.
        interface: u32,
    },
    /// The kernel does not know the Ethernet address of the neighbor yet.
    #[error("neighbour {neighbour} on interface {interface} is not resolved yet")]
    NeighbourPending {
        /// The index of the interface.
        interface: u32,
        /// The gateway, or the destination itself.
        neighbour: IpAddr,
    },
    /// The neighbor did not respond to the kernel.
    #[error("neighbour {neighbour} on interface {interface} does not respond")]
    NeighbourFailed {
        /// The index of the interface.
        interface: u32,
        /// The gateway, or the destination itself.
        neighbour: IpAddr,
    },
    /// Health checks of the destination fail through this hop of a multipath route, and pass
    /// through a different hop.
    #[error("health checks through {neighbour} on interface {interface} fail")]
    ChecksFail {
        /// The index of the interface.
        interface: u32,
        /// The gateway, or the destination itself.
        neighbour: IpAddr,
    },
}

/// A router that at least one route uses as its gateway, with the Ethernet address of the router.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Gateway {
    /// The index of the interface to the gateway.
    pub interface: u32,
    /// The IP address of the gateway. IPv6 gateways often have a link-local address.
    pub address: IpAddr,
    /// The Ethernet address of the gateway.
    pub mac: [u8; 6],
}

/// The next hops and gateways that a [`Watch`] should keep up to date.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Wanted {
    /// The addresses of backends and peers, whose next hops are needed.
    pub destinations: Vec<IpAddr>,
    /// The indices of the interfaces whose gateways are needed for `io.next_hop = "reflect"`,
    /// including gateways on their VLAN devices. The list is empty if `reflect` is not used.
    pub gateway_interfaces: Vec<u32>,
    /// The interfaces that can send frames. See [`Table::interfaces`].
    pub interfaces: Vec<u32>,
}

/// The next hops and gateways that a [`Watch`] has found for [`Wanted`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Table {
    /// The next hops of each destination, with one entry per destination.
    pub next_hops: NextHops,
    /// The gateways with a known Ethernet address, sorted.
    pub gateways: Vec<Gateway>,
    /// The indices of the interfaces that can send frames, in the order of the configuration. If
    /// the list is empty, every interface is accepted.
    pub interfaces: Vec<u32>,
}

impl Table {
    /// Replaces [`Table::interfaces`]. A next hop on another interface becomes
    /// [`Unresolved::OtherInterface`].
    #[must_use]
    pub fn by(mut self, interfaces: Vec<u32>) -> Self {
        self.interfaces = interfaces;
        let interfaces = &self.interfaces;
        let usable = |way: Resolved| match interfaces.contains(&way.leaves_by) {
            false if !interfaces.is_empty() => Err(Unresolved::OtherInterface { interface: way.leaves_by }),
            _ => Ok(way),
        };
        let all = self.next_hops.into_iter();
        self.next_hops = all.map(|(to, hops)| (to, hops.map(|_, way| way.and_then(usable)))).collect();
        self
    }
}

/// The reason why the kernel could not be queried.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NextHopError {
    /// A netlink socket cannot be opened.
    #[error("cannot open a netlink socket: {0}")]
    Open(#[source] io::Error),
    /// The netlink socket has failed, and a new [`Resolver`] is needed.
    #[error("the netlink socket is closed")]
    Closed,
    /// A request or its response was lost, for example because the socket buffer overflowed. The
    /// caller should try again.
    #[error("no response to a netlink request within {0:?}")]
    NoAnswer(Duration),
    /// The kernel returned an error.
    #[error("the kernel refused to {request}: {reason}")]
    Refused {
        /// The request.
        request: &'static str,
        /// The error of the kernel.
        #[source]
        reason: io::Error,
    },
}
