//! Checks that take the way of clients' packets: inside the pool's encapsulation, with the VIP as their destination.
//!
//! In: the TUN device's file, the live snapshot, the machine's own addresses. Out: [`TunnelDialer`]s, whose sockets are marked;
//! the mark's routing table leads into the TUN device; there `pump` asks `ports` which slot a packet's source port was
//! claimed for, has it wrapped as the packet path would, and sends it by a raw socket. The backend answers the machine
//! itself: the answer comes by the interface, as it would to a client.
//! Not here: what is asked and what the answer must be; when a check runs.
//! Invariant: a packet whose port nobody claimed goes nowhere. A marked packet never takes another route than the TUN
//! device's. Taken numbers: [`TunnelNumbers`].

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
use ports::Ports;
use pump::Pump;
use routes::Routes;
pub use routes::remove_leftovers;
use senders::Senders;

use crate::lock;

/// The numbers that a tunnel takes in its network namespace. Other software must not use them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TunnelNumbers {
    /// Mark (`SO_MARK`) of the checks' sockets, compared as a whole. Default 83.
    pub mark: u32,
    /// Priority of the two routing rules `fwmark MARK lookup TABLE`. Default 83: before what administrators add, behind
    /// the machine's own addresses (0).
    pub priority: u32,
    /// The routing table, for both families. Default 8300.
    pub table: u32,
}

impl Default for TunnelNumbers {
    fn default() -> Self {
        Self { mark: 83, priority: 83, table: 8300 }
    }
}

/// What a tunnel is made of.
#[derive(Debug)]
pub struct TunnelSetup {
    /// The file of a TUN device without extra header, not blocking; the device goes when it is closed.
    pub tun: OwnedFd,
    /// The device's name.
    pub tun_name: String,
    /// The interfaces of the packet path, in their order, by which frames for backends on the same link (L2) leave.
    pub interfaces: Vec<String>,
    /// The machine's own addresses, to which backends answer; the first of each family is taken.
    pub own: Vec<IpAddr>,
    /// What it takes.
    pub numbers: TunnelNumbers,
}

/// The way to backends through their encapsulation.
///
/// What the machine needs: answers carry the VIP as their source and arrive by the interface, so a strict `rp_filter` (1)
/// lets them pass only where the machine's own route to the VIP leaves by that interface, as a default route does; 2 or 0
/// otherwise. No VIP may stand on the machine itself: its checks would end there. A firewall must let the encapsulation
/// out and established connections in; where it drops by state, it sees a check's first packet leave by the TUN device.
/// `/dev/net/tun` must be there, and sockets of the families netlink, packet, IPv4 and IPv6 be allowed.
///
/// It ends with [`Tunnel::close`]; when it is dropped instead, or its
/// process killed, device and routes go, and what stays (two rules, and the routes that refuse) concerns packets with the
/// mark alone, until the next [`Tunnel::open`] replaces it or [`remove_leftovers`] takes it away.
#[derive(Debug)]
pub struct Tunnel {
    shared: Arc<Shared>,
    routes: Routes,
    pump: JoinHandle<()>,
}

impl Tunnel {
    /// Switches the device on, has marked packets routed into it, and starts to carry them. All of it happens in the
    /// network namespace of the calling thread. Needs `CAP_NET_ADMIN` and `CAP_NET_RAW`, as dialers do.
    ///
    /// # Errors
    /// [`TunnelError`].
    /// # Panics
    /// Outside a tokio runtime with I/O enabled.
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

    /// A way to `vip` on the backend of `slot`, in whatever state the slot is.
    #[must_use]
    pub fn dialer(&self, slot: SlotId, vip: IpAddr) -> TunnelDialer {
        TunnelDialer::new(Arc::clone(&self.shared), slot, vip)
    }

    /// What became of the packets up to now.
    #[must_use]
    pub fn counts(&self) -> TunnelCounts {
        *lock(&self.shared.counts)
    }

    /// Whether packets are still carried: not when somebody has taken the device away.
    #[must_use]
    pub fn is_running(&self) -> bool {
        !self.pump.is_finished()
    }

    /// Puts rules and routes back that somebody took away, and switches the device on.
    ///
    /// # Errors
    /// [`TunnelError`]: the device is gone, or the kernel refuses.
    /// # Cost
    /// Seven netlink messages.
    pub async fn mend(&self) -> Result<(), TunnelError> {
        self.routes.mend(self.shared.own).await
    }

    /// Takes rules and routes away, and the device with them. Dialers that are left cannot connect any more.
    ///
    /// # Errors
    /// [`TunnelError::Refused`] for a rule that stayed.
    pub async fn close(self) -> Result<(), TunnelError> {
        let removed = self.routes.remove().await;
        self.pump.abort();
        // Ended by the abort, which is no news; its file is closed then.
        let _ = self.pump.await;
        removed
    }
}

/// Why there is no tunnel.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TunnelError {
    /// The TUN device's file can't be read.
    #[error("the TUN device is of no use: {0}")]
    Device(#[source] io::Error),
    /// The name is taken.
    #[error(
        "there is a device `{0}` already, and checks with via = \"vip\" need that name: another balancer in this network \
         namespace has it, or somebody made it (`ip link show {0}`; if nobody needs it, `ip link delete {0}`)"
    )]
    NameTaken(String),
    /// Other software's routing rule meets the checks' own.
    #[error(
        "{rule}: this routing rule is not the balancer's and uses {uses}, which checks with via = \"vip\" need for themselves: \
         remove it, or have the other software use another number"
    )]
    RuleOfOthers {
        /// The rule.
        rule: String,
        /// What both use.
        uses: String,
    },
    /// No raw socket.
    #[error("cannot open the checks' raw sockets: {0}")]
    Socket(#[source] io::Error),
    /// No netlink socket.
    #[error("cannot open a netlink socket: {0}")]
    Netlink(#[source] io::Error),
    /// There is no such device.
    #[error("there is no device `{0}` in this network namespace")]
    NoDevice(String),
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

impl TunnelError {
    /// Why there is no TUN device `name`.
    #[must_use]
    pub fn of_device(name: &str, error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::ResourceBusy => Self::NameTaken(name.to_owned()),
            _ => Self::Device(error),
        }
    }
}

/// What became of packets that came out of the TUN device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TunnelCounts {
    /// Wrapped, and taken by a raw socket.
    pub sent: u64,
    /// Dropped: no check has claimed their source port.
    pub no_port: u64,
    /// Dropped: no next hop is known for the backend.
    pub no_next_hop: u64,
    /// Dropped: too long for the way to the backend, with the outer header.
    pub too_big: u64,
    /// Dropped: the slot is gone, a raw socket refused them, or they could not be wrapped.
    pub errors: u64,
}

/// What dialers and the pump have in common.
#[derive(Debug)]
struct Shared {
    own: Own,
    mark: u32,
    live: Live,
    ports: Ports,
    /// Written by the pump.
    counts: Mutex<TunnelCounts>,
}

/// The machine's address of each family.
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

    /// Those that the machine has.
    fn families(self) -> impl Iterator<Item = AddressFamily> {
        let v4 = self.v4.map(|_| AddressFamily::Inet);
        v4.into_iter().chain(self.v6.map(|_| AddressFamily::Inet6))
    }

    /// The one of `other`'s family.
    fn beside(&self, other: IpAddr) -> Option<IpAddr> {
        if other.is_ipv4() { self.v4.map(IpAddr::V4) } else { self.v6.map(IpAddr::V6) }
    }
}
