//! `[bgp]`: the routers that receive routes, and the BGP sessions with these routers.
//!
//! The section is the same on all machines of the cluster. Each peer lists the machines that
//! connect to it. The module `draft` reads the section. `sessions` and `announcement_checks` check
//! peers against machines and VIPs.

mod draft;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;

use ::bgp::{Family, Md5Key};

use super::canonical;

pub(super) use self::draft::{BgpDraft, PeerDraft};

/// The BGP settings of the cluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Bgp {
    /// The AS number of this cluster.
    pub asn: u32,
    /// The addresses on which machines accept connections from peers. The list contains the listen
    /// addresses of all machines. Default: none.
    pub listen: Vec<SocketAddr>,
    /// The time for which a draining machine announces its routes with the GRACEFUL_SHUTDOWN
    /// community before it withdraws them: up to 10 min. Default: 5 s.
    #[serde(serialize_with = "canonical::span")]
    pub graceful_shutdown: Duration,
    /// The number of times that the AS number is prepended to routes with the GRACEFUL_SHUTDOWN
    /// community, at most 16. Default: 0.
    pub graceful_shutdown_prepend: u8,
    /// The time for which routers keep the routes after the process has terminated unexpectedly, in
    /// whole seconds up to 10 min. Default: 0, which disables graceful restart.
    #[serde(serialize_with = "canonical::span")]
    pub graceful_restart: Duration,
    /// The minimum time that a withdrawn VIP must have enough serving backends before it is
    /// announced again, up to 1 h. Default: 10 s.
    #[serde(serialize_with = "canonical::span")]
    pub hold_down: Duration,
    /// The upper limit of the hold-down time, which doubles with each withdrawal. The allowed range
    /// is from [`hold_down`](Self::hold_down) to 24 h. Default: 5 min.
    #[serde(serialize_with = "canonical::span")]
    pub max_hold_down: Duration,
    /// The half-life of a withdrawal: the time after which the effect of earlier withdrawals on the
    /// hold-down time has halved, 1 s to 24 h. Default: 2 min.
    #[serde(serialize_with = "canonical::span")]
    pub hold_down_half_life: Duration,
    /// The duration of a forwarder stall after which routes are withdrawn, up to 1 min. During
    /// shorter stalls, routes are announced with the GRACEFUL_SHUTDOWN community. Default: 3 s.
    #[serde(serialize_with = "canonical::span")]
    pub max_stall: Duration,
    /// The amount that a backup machine adds to the MED of a VIP. Default: 1,000.
    pub backup_med: u32,
    /// All peers, in configuration order.
    #[serde(skip)]
    pub peers: Vec<BgpPeer>,
}

impl Bgp {
    pub(super) fn renamed(&self, name: impl Fn(&Arc<str>) -> Arc<str>) -> Self {
        let mut bgp = self.clone();
        bgp.peers.iter_mut().flat_map(|peer| &mut peer.machines).for_each(|machine| *machine = name(machine));
        bgp
    }

    /// Returns the peers with which a machine has a session.
    pub fn peers_of(&self, machine: &str) -> impl Iterator<Item = &BgpPeer> {
        self.peers.iter().filter(move |peer| peer.is_of(machine))
    }
}

/// A router that the machines peer with.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct BgpPeer {
    /// The name, which is unique on each machine. Default: the address.
    #[serde(skip)]
    pub name: Arc<str>,
    /// The address of the router.
    #[serde(skip)]
    pub address: IpAddr,
    /// The AS number of the router. For an internal peer, this is the AS number of the cluster.
    pub asn: u32,
    /// The machines that have a session with the router. An empty list means all machines.
    #[serde(skip)]
    machines: Vec<Arc<str>>,
    /// The TCP port of the router. Default: 179.
    pub port: u16,
    /// The TCP MD5 key. Default: none.
    #[serde(skip)]
    pub md5: Option<Md5Key>,
    /// The maximum distance to the router in hops (GTSM). Default: no limit.
    pub hops: Option<u8>,
    /// `true` if only the router opens connections. Default: `false`.
    pub passive: bool,
    /// The local address of the connection. Default: chosen by the kernel.
    pub source: Option<IpAddr>,
    /// The address families whose routes are exchanged. Default: both.
    #[serde(serialize_with = "canonical::set")]
    pub families: Vec<Family>,
    /// The next hops of routes sent to the router.
    #[serde(flatten)]
    pub next_hops: NextHops,
    /// The hold time, after which the session ends if no message arrives. Default: 90 s.
    #[serde(serialize_with = "canonical::span")]
    pub hold_time: Duration,
    /// The maximum time between two attempts to connect. Default: 60 s.
    #[serde(serialize_with = "canonical::span")]
    pub max_retry: Duration,
    /// The number of prefixes from the router above which the session is closed. Default: no limit,
    /// because received prefixes are not stored.
    pub max_prefixes: Option<u32>,
    /// The BFD settings. Default: no BFD.
    pub bfd: Option<BfdTimes>,
}

/// The next hops of routes sent to a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct NextHops {
    /// The next hop of IPv4 routes. Default: the local address of the session.
    #[serde(rename = "next_hop4")]
    pub v4: Option<Ipv4Addr>,
    /// The next hop of IPv6 routes. Default: the local address of the session.
    #[serde(rename = "next_hop6")]
    pub v6: Option<Ipv6Addr>,
    /// `true` if IPv4 routes may have an IPv6 next hop. Default: `false`.
    #[serde(rename = "extended_next_hop")]
    pub extended: bool,
}

/// The BFD settings of a peer, which determine how fast a failure is detected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct BfdTimes {
    /// The interval between two BFD packets: 10 ms to 10 s. Default: 100 ms.
    #[serde(serialize_with = "canonical::span")]
    pub interval: Duration,
    /// The number of lost BFD packets after which the peer considers this machine down: 1 to
    /// 255. Default: 3.
    pub multiplier: u8,
}

impl BgpPeer {
    /// Returns `true` if a machine has a session with this peer.
    pub fn is_of(&self, machine: &str) -> bool {
        self.machines.is_empty() || self.machines.iter().any(|name| &**name == machine)
    }
}
