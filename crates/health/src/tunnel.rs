//! Sends checks in the same way as client packets: with the encapsulation of the pool and with the
//! VIP as destination. Checks of a backend with several next hops use the tunnel too, because only
//! the tunnel can send packets through a given hop.
//!
//! [`TunnelDialer`]s create sockets with a mark (`SO_MARK`). A routing rule directs marked packets
//! to a TUN device. The module `pump` reads the packet from the device, and finds the slot for the
//! packet's source port in `ports`. The module `pump` encapsulates the packet as packet threads do,
//! and sends it on a raw socket. The backend replies directly to this machine, as it would to a
//! client.
//!
//! A packet from a port that no check has claimed is dropped. A marked packet is never routed to a
//! device other than the TUN device. [`TunnelNumbers`] contains the mark, the rule priority and the
//! routing table of the tunnel.

mod dialer;
mod ports;
mod pump;
mod routes;
mod senders;

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex};

use forwarder::{Live, SlotId};
use rtnetlink::packet_route::AddressFamily;
use tokio::task::JoinHandle;

pub use dialer::TunnelDialer;
pub(crate) use dialer::report_icmp_errors;
use ports::Ports;
use pump::Pump;
use routes::Routes;
pub use routes::remove_leftovers;
use senders::Senders;

use crate::{CheckHop, lock};

/// The mark, rule priority and routing table that a tunnel uses in its network namespace. Other
/// software must not use these values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TunnelNumbers {
    /// The mark (`SO_MARK`) of the check sockets, compared without a mask. The default is 83.
    pub mark: u32,
    /// The priority of the two routing rules `fwmark MARK lookup TABLE`. The default is 83, which
    /// is before the usual rules of administrators and after the rule for local addresses (0).
    pub priority: u32,
    /// The routing table for both families. The default is 8300.
    pub table: u32,
}

impl Default for TunnelNumbers {
    fn default() -> Self {
        Self { mark: 83, priority: 83, table: 8300 }
    }
}

/// The parameters for opening a tunnel.
#[derive(Debug)]
pub struct TunnelSetup {
    /// The file of a TUN device, which must be non-blocking and have no packet information header
    /// (`IFF_NO_PI`). Closing the file removes the device.
    pub tun: OwnedFd,
    /// The name of the device.
    pub tun_name: String,
    /// The interfaces of the load balancer, in the order of their interface IDs. Frames to backends
    /// on the same link (L2) are sent on these interfaces.
    pub interfaces: Vec<String>,
    /// The addresses of this machine, to which backends reply. The first address of each family is
    /// used.
    pub own: Vec<IpAddr>,
    /// The packet mark, rule priority and routing table that the tunnel uses.
    pub numbers: TunnelNumbers,
}

/// A tunnel that sends checks to backends in the encapsulation of their pools.
///
/// # Requirements
/// - Replies have the VIP as source address. A strict `rp_filter` (1) accepts these replies only on
///   the interface of this machine's route to the VIP, which is usually the default route. If
///   replies arrive on another interface, set `rp_filter` to 2 or 0.
/// - No VIP may be configured on this machine, because checks of that VIP would not leave the
///   machine.
/// - A firewall must allow outgoing encapsulated packets, and incoming packets of established
///   connections. A stateful firewall sees the first packet of a check on the TUN device.
/// - `/dev/net/tun` must exist, and sockets of the families netlink, packet, IPv4 and IPv6 must be
///   allowed.
///
/// # Cleanup
/// [`Tunnel::close`] removes the tunnel. If the tunnel is dropped or the process is killed, the
/// device and its routes disappear. Two rules and the unreachable routes remain, but they affect
/// only marked packets. The next [`Tunnel::open`] replaces them, and [`remove_leftovers`] removes
/// them.
#[derive(Debug)]
pub struct Tunnel {
    shared: Arc<Shared>,
    routes: Routes,
    pump: JoinHandle<()>,
}

impl Tunnel {
    /// Brings the TUN device up, routes marked packets to it, and starts to send these packets. The
    /// device, the rules and the routes are created in the network namespace of the calling thread.
    /// Opening a tunnel and using its dialers needs `CAP_NET_ADMIN` and `CAP_NET_RAW`.
    ///
    /// # Errors
    /// Returns a [`TunnelError`].
    ///
    /// # Panics
    /// Panics if the caller runs outside a tokio runtime with I/O enabled.
    pub async fn open(setup: TunnelSetup, live: Live) -> Result<Self, TunnelError> {
        let own = Own::new(&setup.own);
        let senders = Senders::open(&setup.interfaces).map_err(TunnelError::Socket)?;
        let shared = Arc::new(Shared {
            own,
            mark: setup.numbers.mark,
            live,
            ports: Ports::default(),
            counts: Mutex::default(),
        });
        let pump = Pump::new(setup.tun, senders, Arc::clone(&shared)).map_err(TunnelError::Device)?;
        let routes = Routes::install(&setup.tun_name, setup.numbers, own).await?;
        Ok(Self { shared, routes, pump: tokio::spawn(pump.run()) })
    }

    /// Returns a dialer for `vip` on the backend of `slot`. The slot may have any state. Packets go
    /// through `hop`, or along the route that the kernel chooses.
    #[must_use]
    pub fn dialer(&self, slot: SlotId, vip: IpAddr, hop: Option<&CheckHop>) -> TunnelDialer {
        TunnelDialer::new(Arc::clone(&self.shared), CheckPath { slot: Some(slot), hop: hop.cloned() }, vip)
    }

    /// Returns a dialer that sends packets without encapsulation to `backend` through `hop`.
    /// Returns `None` if this machine has no address in the family of `backend`.
    #[must_use]
    pub fn direct(&self, backend: IpAddr, hop: &CheckHop) -> Option<TunnelDialer> {
        self.shared.own.beside(backend)?;
        let path = CheckPath { slot: None, hop: Some(hop.clone()) };
        Some(TunnelDialer::new(Arc::clone(&self.shared), path, backend))
    }

    /// Returns the packet counters.
    #[must_use]
    pub fn counts(&self) -> TunnelCounts {
        *lock(&self.shared.counts)
    }

    /// Returns `true` while the tunnel sends packets. Returns `false` after the device was removed.
    #[must_use]
    pub fn is_running(&self) -> bool {
        !self.pump.is_finished()
    }

    /// Restores rules and routes that were removed, and brings the TUN device up.
    ///
    /// # Errors
    /// Returns a [`TunnelError`] if the device is gone or the kernel refuses a request.
    ///
    /// # Cost
    /// Seven netlink messages.
    pub async fn repair(&self) -> Result<(), TunnelError> {
        self.routes.repair(self.shared.own).await
    }

    /// Removes the rules, the routes and the device. Remaining dialers cannot connect afterwards.
    ///
    /// # Errors
    /// Returns [`TunnelError::Refused`] if a rule could not be removed.
    pub async fn close(self) -> Result<(), TunnelError> {
        let removed = self.routes.remove().await;
        self.pump.abort();
        // The task is awaited because it closes the file of the device. The result of the task is
        // ignored, because it is always the cancellation.
        let _ = self.pump.await;
        removed
    }
}

/// The error when a tunnel cannot be opened or restored.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TunnelError {
    /// The file of the TUN device cannot be used.
    #[error("cannot use the TUN device: {0}")]
    Device(#[source] io::Error),
    /// Another device already has this name.
    #[error(
        "device `{0}` already exists, but checks with via = \"vip\" need this name; another balancer in this network \
         namespace uses it, or it was created by hand (`ip link show {0}`, and `ip link delete {0}` if it is unused)"
    )]
    NameTaken(String),
    /// A routing rule of other software conflicts with the rules of the tunnel.
    #[error(
        "{rule}: this routing rule belongs to other software and uses {uses}, which checks with via = \"vip\" need; \
         remove the rule, or change its number"
    )]
    RuleOfOthers {
        /// The rule as text for messages.
        rule: String,
        /// The mark or table that both rules use.
        uses: String,
    },
    /// A raw socket cannot be opened.
    #[error("cannot open raw sockets for checks: {0}")]
    Socket(#[source] io::Error),
    /// A netlink socket cannot be opened.
    #[error("cannot open a netlink socket: {0}")]
    Netlink(#[source] io::Error),
    /// The device does not exist.
    #[error("there is no device `{0}` in this network namespace")]
    NoDevice(String),
    /// The kernel returned an error.
    #[error("the kernel refused to {request}: {reason}")]
    Refused {
        /// The rejected request.
        request: &'static str,
        /// The error that the kernel returned.
        #[source]
        reason: io::Error,
    },
}

impl TunnelError {
    /// Returns the error for a TUN device `name` that cannot be created.
    #[must_use]
    pub fn of_device(name: &str, error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::ResourceBusy => Self::NameTaken(name.to_owned()),
            _ => Self::Device(error),
        }
    }
}

/// The counters of packets that were read from the TUN device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TunnelCounts {
    /// The number of packets that were encapsulated and sent.
    pub sent: u64,
    /// The number of packets dropped because no check has claimed their source port.
    pub no_port: u64,
    /// The number of packets dropped because the next hop of the backend is unknown.
    pub no_next_hop: u64,
    /// The number of packets dropped because they exceed the MTU toward the backend, including the
    /// outer header.
    pub too_big: u64,
    /// The number of packets dropped because their slot no longer exists, the raw socket refused
    /// them, or they could not be encapsulated.
    pub errors: u64,
}

/// The path of a check's packets.
#[derive(Clone, Debug)]
struct CheckPath {
    /// The slot with the encapsulation, or `None` if the packets are not encapsulated.
    slot: Option<SlotId>,
    /// The next hop, or `None` if the kernel chooses it.
    hop: Option<CheckHop>,
}

/// The state that dialers and the pump share.
#[derive(Debug)]
struct Shared {
    own: Own,
    mark: u32,
    live: Live,
    ports: Ports<CheckPath>,
    counts: Mutex<TunnelCounts>,
}

/// The address of this machine in each family.
#[derive(Clone, Copy, Debug)]
struct Own {
    v4: Option<Ipv4Addr>,
    v6: Option<Ipv6Addr>,
}

impl Own {
    fn new(addresses: &[IpAddr]) -> Self {
        let mut own = Self { v4: None, v6: None };
        for address in addresses {
            match address {
                IpAddr::V4(v4) => own.v4 = own.v4.or(Some(*v4)),
                IpAddr::V6(v6) => own.v6 = own.v6.or(Some(*v6)),
            }
        }
        own
    }

    /// Returns the families in which this machine has an address.
    fn families(self) -> impl Iterator<Item = AddressFamily> {
        let v4 = self.v4.map(|_| AddressFamily::Inet);
        v4.into_iter().chain(self.v6.map(|_| AddressFamily::Inet6))
    }

    /// Returns this machine's address in the same family as `other`.
    fn beside(&self, other: IpAddr) -> Option<IpAddr> {
        if other.is_ipv4() { self.v4.map(IpAddr::V4) } else { self.v6.map(IpAddr::V6) }
    }
}
