//! `[bgp]`: the routers, and how to speak with them.
//!
//! In: the section, and the keys that it names. Out: [`Bgp`], or problems.
//! The file is the whole cluster's: a peer says which machines have it.
//! Not here: reading it (`draft`), what is announced of a VIP (`announce`), peers against machines (`sessions`) and VIPs (`announcement_checks`).

mod draft;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;

use ::bgp::{Family, Md5Key};

use super::canonical;

pub(super) use self::draft::{BgpDraft, PeerDraft};

/// Who is told of VIPs, by BGP.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Bgp {
    asn: u32,
    listen: Vec<SocketAddr>,
    #[serde(serialize_with = "canonical::span")]
    graceful_shutdown: Duration,
    #[serde(serialize_with = "canonical::span")]
    hold_down: Duration,
    #[serde(serialize_with = "canonical::span")]
    longest_hold_down: Duration,
    anchor_med: u32,
    #[serde(skip)]
    peers: Vec<BgpPeer>,
}

impl Bgp {
    /// Our AS number.
    pub fn asn(&self) -> u32 {
        self.asn
    }

    /// Where peers may dial us, of all machines together. Default: nowhere.
    pub fn listen(&self) -> &[SocketAddr] {
        &self.listen
    }

    /// How long a machine that drains announces its routes as about to go: up to 10 min. Default 5 s.
    pub fn graceful_shutdown(&self) -> Duration {
        self.graceful_shutdown
    }

    /// How long a VIP that was withdrawn must qualify without a break: up to 1 h. Default 10 s.
    pub fn hold_down(&self) -> Duration {
        self.hold_down
    }

    /// What that time grows to, doubled at each withdrawal: from [`hold_down`](Self::hold_down) to 24 h. Default 5 min.
    pub fn longest_hold_down(&self) -> Duration {
        self.longest_hold_down
    }

    /// What the MED of a VIP is raised by where the machine is its anchor. Default 1,000.
    pub fn anchor_med(&self) -> u32 {
        self.anchor_med
    }

    /// All peers, in the order of the file.
    pub fn peers(&self) -> &[BgpPeer] {
        &self.peers
    }

    pub(super) fn renamed(&self, name: impl Fn(&Arc<str>) -> Arc<str>) -> Self {
        let mut bgp = self.clone();
        bgp.peers.iter_mut().flat_map(|peer| &mut peer.machines).for_each(|machine| *machine = name(machine));
        bgp
    }

    /// The peers of a machine.
    pub fn peers_of(&self, machine: &str) -> impl Iterator<Item = &BgpPeer> {
        self.peers.iter().filter(move |peer| peer.is_of(machine))
    }
}

/// A router.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct BgpPeer {
    #[serde(skip)]
    name: Arc<str>,
    #[serde(skip)]
    address: IpAddr,
    asn: u32,
    /// Empty: all.
    #[serde(skip)]
    machines: Vec<Arc<str>>,
    port: u16,
    #[serde(skip)]
    md5: Option<Md5Key>,
    hops: Option<u8>,
    passive: bool,
    source: Option<IpAddr>,
    #[serde(serialize_with = "canonical::set")]
    families: Vec<Family>,
    next_hop4: Option<Ipv4Addr>,
    next_hop6: Option<Ipv6Addr>,
    extended_next_hop: bool,
    #[serde(serialize_with = "canonical::span")]
    hold_time: Duration,
    #[serde(serialize_with = "canonical::span")]
    longest_retry: Duration,
    max_prefixes: Option<u32>,
    bfd: Option<BfdTimes>,
}

/// How fast BFD sees that a peer is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct BfdTimes {
    /// Between two packets: 10 ms to 10 s. Default 100 ms.
    #[serde(serialize_with = "canonical::span")]
    pub interval: Duration,
    /// So many lost in a row: 1 to 255. Default 3.
    pub multiplier: u8,
}

impl BgpPeer {
    /// Its name, unique on a machine. Default: its address.
    pub fn name(&self) -> &Arc<str> {
        &self.name
    }

    /// Its address.
    pub fn address(&self) -> IpAddr {
        self.address
    }

    /// Its AS number; the same as ours for an internal peer.
    pub fn asn(&self) -> u32 {
        self.asn
    }

    /// Whether a machine has a session with it. Default: every machine.
    pub fn is_of(&self, machine: &str) -> bool {
        self.machines.is_empty() || self.machines.iter().any(|name| &**name == machine)
    }

    /// Its TCP port. Default 179.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The key of TCP MD5. Default: none.
    pub fn md5(&self) -> Option<&Md5Key> {
        self.md5.as_ref()
    }

    /// How many hops away it may be (GTSM). Default: any number.
    pub fn hops(&self) -> Option<u8> {
        self.hops
    }

    /// Whether it dials, and we wait. Default `false`.
    pub fn passive(&self) -> bool {
        self.passive
    }

    /// The address that we dial from. Default: what the kernel chooses.
    pub fn source(&self) -> Option<IpAddr> {
        self.source
    }

    /// The families to exchange. Default: both.
    pub fn families(&self) -> &[Family] {
        &self.families
    }

    /// The next hops of IPv4 and IPv6 routes. Default: our address in the session.
    pub fn next_hops(&self) -> (Option<Ipv4Addr>, Option<Ipv6Addr>) {
        (self.next_hop4, self.next_hop6)
    }

    /// Whether IPv4 routes may have an IPv6 next hop. Default `false`.
    pub fn extended_next_hop(&self) -> bool {
        self.extended_next_hop
    }

    /// Silence that ends the session. Default 90 s.
    pub fn hold_time(&self) -> Duration {
        self.hold_time
    }

    /// The longest wait between two attempts. Default 60 s.
    pub fn longest_retry(&self) -> Duration {
        self.longest_retry
    }

    /// More prefixes of it than these end the session. Default: any number, as none is kept.
    pub fn max_prefixes(&self) -> Option<u32> {
        self.max_prefixes
    }

    /// BFD beside the session. Default: none.
    pub fn bfd(&self) -> Option<BfdTimes> {
        self.bfd
    }
}
