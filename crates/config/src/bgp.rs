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

/// The routers that VIPs are announced to, and how.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Bgp {
    /// Our AS number.
    pub asn: u32,
    /// Where we accept connections of peers, of all machines together. Default: nowhere.
    pub listen: Vec<SocketAddr>,
    /// How long a machine that drains announces its routes as about to go: up to 10 min. Default 5 s.
    #[serde(serialize_with = "canonical::span")]
    pub graceful_shutdown: Duration,
    /// How long routers keep the routes of a process that has gone without a word, in whole seconds up to 10 min. Default 0: not at all.
    #[serde(serialize_with = "canonical::span")]
    pub graceful_restart: Duration,
    /// How long a VIP that was withdrawn must qualify without a break: up to 1 h. Default 10 s.
    #[serde(serialize_with = "canonical::span")]
    pub hold_down: Duration,
    /// What that time grows to, doubled at each withdrawal: from [`hold_down`](Self::hold_down) to 24 h. Default 5 min.
    #[serde(serialize_with = "canonical::span")]
    pub longest_hold_down: Duration,
    /// What the MED of a VIP is raised by where the machine is its anchor. Default 1,000.
    pub anchor_med: u32,
    /// All peers, in the order of the file.
    #[serde(skip)]
    pub peers: Vec<BgpPeer>,
}

impl Bgp {
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
    /// Its name, unique on a machine. Default: its address.
    #[serde(skip)]
    pub name: Arc<str>,
    /// Its address.
    #[serde(skip)]
    pub address: IpAddr,
    /// Its AS number; the same as ours for an internal peer.
    pub asn: u32,
    /// Empty: all.
    #[serde(skip)]
    machines: Vec<Arc<str>>,
    /// Its TCP port. Default 179.
    pub port: u16,
    /// The key of TCP MD5. Default: none.
    #[serde(skip)]
    pub md5: Option<Md5Key>,
    /// How many hops away it may be (GTSM). Default: any number.
    pub hops: Option<u8>,
    /// Whether it opens the connection, and we accept it. Default `false`.
    pub passive: bool,
    /// The address that we connect from. Default: what the kernel chooses.
    pub source: Option<IpAddr>,
    /// The families to exchange. Default: both.
    #[serde(serialize_with = "canonical::set")]
    pub families: Vec<Family>,
    /// What routes name as their next hop.
    #[serde(flatten)]
    pub next_hops: NextHops,
    /// Silence that ends the session. Default 90 s.
    #[serde(serialize_with = "canonical::span")]
    pub hold_time: Duration,
    /// The longest wait between two attempts. Default 60 s.
    #[serde(serialize_with = "canonical::span")]
    pub longest_retry: Duration,
    /// More prefixes of it than these end the session. Default: any number, as none is kept.
    pub max_prefixes: Option<u32>,
    /// BFD beside the session. Default: none.
    pub bfd: Option<BfdTimes>,
}

/// What routes to a peer name as their next hop.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct NextHops {
    /// Of IPv4 routes. Default: our address in the session.
    #[serde(rename = "next_hop4")]
    pub v4: Option<Ipv4Addr>,
    /// Of IPv6 routes. Default: our address in the session.
    #[serde(rename = "next_hop6")]
    pub v6: Option<Ipv6Addr>,
    /// Whether IPv4 routes may have an IPv6 next hop. Default `false`.
    #[serde(rename = "extended_next_hop")]
    pub extended: bool,
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
    /// Whether a machine has a session with it. Default: every machine.
    pub fn is_of(&self, machine: &str) -> bool {
        self.machines.is_empty() || self.machines.iter().any(|name| &**name == machine)
    }
}
