//! `[bgp]`: the routers, and how to speak with them.
//!
//! In: the section, and the keys that it names. Out: [`Bgp`], or problems.
//! The file is the whole cluster's: a peer says which machines have it.
//! Not here: what is announced of a VIP (`announce`), peers against machines and VIPs (`announcements`).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use ::bgp::{Family, Md5Key};

use super::pem::Outside;
use super::reader::{Node, Section};
use super::report::{At, Place};

/// Who is told of VIPs, by BGP.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bgp {
    asn: u32,
    listen: Vec<SocketAddr>,
    graceful_shutdown: Duration,
    hold_down: Duration,
    longest_hold_down: Duration,
    anchor_med: u32,
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

    /// The peers of a machine.
    pub fn peers_of(&self, machine: &str) -> impl Iterator<Item = &BgpPeer> {
        self.peers.iter().filter(move |peer| peer.is_of(machine))
    }

    pub(super) fn read(mut section: Section<'_>, outside: &Outside<'_>) -> Option<BgpDraft> {
        let asn = section.required("asn", ASN).and_then(|node| read_asn(&node));
        let listen = section.optional("listen");
        let listen_place = listen.as_ref().map(|node| node.place.clone());
        let listen = listen.and_then(|node| node.list(LISTEN)).unwrap_or_default();
        let listen = listen.iter().filter_map(read_listen).collect();
        let mut time = |key, default, most| {
            section.or(key, default, |node: Node<'_>| node.duration(Duration::ZERO..=most))
        };
        let graceful_shutdown = time("graceful_shutdown", Duration::from_secs(5), Duration::from_secs(600));
        let hold_down = time("hold_down", Duration::from_secs(10), Duration::from_secs(3_600));
        let usual = hold_down.max(Duration::from_secs(300));
        let most = Duration::from_secs(24 * 3_600);
        let longest_hold_down =
            section.or("longest_hold_down", usual, |node| node.duration(hold_down..=most));
        let anchor_med = section.or("anchor_med", 1_000, |node| node.number(1..=u32::MAX));
        let peers = section.required("peers", PEERS).and_then(|node| node.items(PEERS)).unwrap_or_default();
        let peers: Vec<PeerDraft> = peers.iter().filter_map(|node| PeerDraft::read(node, outside)).collect();
        let place = section.place.clone();
        section.finish(&[]);
        let bgp = Self {
            asn: asn?,
            listen,
            graceful_shutdown,
            hold_down,
            longest_hold_down,
            anchor_med,
            peers: Vec::new(),
        };
        Some(BgpDraft { bgp, place, listen_place, peers })
    }
}

/// A router.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BgpPeer {
    name: Arc<str>,
    address: IpAddr,
    asn: u32,
    /// Empty: all.
    machines: Vec<Arc<str>>,
    port: u16,
    md5: Option<Md5Key>,
    hops: Option<u8>,
    passive: bool,
    source: Option<IpAddr>,
    families: Vec<Family>,
    next_hops: (Option<Ipv4Addr>, Option<Ipv6Addr>),
    extended_next_hop: bool,
    hold_time: Duration,
    longest_retry: Duration,
    max_prefixes: Option<u32>,
    bfd: Option<BfdTimes>,
}

/// How fast BFD sees that a peer is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BfdTimes {
    /// Between two packets: 10 ms to 10 s. Default 100 ms.
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
        self.next_hops
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

/// The section as written.
pub(super) struct BgpDraft {
    bgp: Bgp,
    pub(super) place: Place,
    pub(super) listen_place: Option<Place>,
    pub(super) peers: Vec<PeerDraft>,
}

impl BgpDraft {
    pub(super) fn listen(&self) -> &[SocketAddr] {
        &self.bgp.listen
    }

    pub(super) fn build(self) -> Bgp {
        Bgp { peers: self.peers.into_iter().map(|draft| draft.peer).collect(), ..self.bgp }
    }
}

/// A peer as written.
pub(super) struct PeerDraft {
    pub(super) place: Place,
    pub(super) peer: BgpPeer,
    pub(super) machines: Vec<At<Arc<str>>>,
    /// Where `passive = true` stands.
    pub(super) passive: Option<Place>,
}

impl PeerDraft {
    fn read(node: &Node<'_>, outside: &Outside<'_>) -> Option<Self> {
        let mut section = node.section()?;
        let address = section.required("address", "the router's address").and_then(|node| node.unicast());
        let asn = section.required("asn", ASN).and_then(|node| read_asn(&node));
        let name = section.optional("name").and_then(|node| node.name());
        let machines = section.optional("machines").and_then(|node| node.items(MACHINES)).unwrap_or_default();
        let machines: Vec<At<Arc<str>>> =
            machines.iter().filter_map(|node| Some(node.at(node.name()?))).collect();
        let passive = section.optional("passive");
        let is_passive = passive.as_ref().and_then(|node| node.boolean()).unwrap_or(false);
        let passive = passive.map(|node| node.place).filter(|_| is_passive);
        let way = Way::read(&mut section, address);
        let rest = Rest::read(&mut section, outside);
        section.finish(&[]);
        let address = address?;
        let peer = BgpPeer {
            name: name.unwrap_or_else(|| address.to_string().into()),
            address,
            asn: asn?,
            machines: machines.iter().map(|name| Arc::clone(&name.value)).collect(),
            port: way.port,
            md5: rest.md5,
            hops: way.hops,
            passive: is_passive,
            source: way.source,
            families: way.families,
            next_hops: way.next_hops,
            extended_next_hop: way.extended_next_hop,
            hold_time: rest.hold_time,
            longest_retry: rest.longest_retry,
            max_prefixes: rest.max_prefixes,
            bfd: rest.bfd,
        };
        Some(Self { place: node.place.clone(), peer, machines, passive })
    }
}

/// Where packets and routes go.
struct Way {
    port: u16,
    hops: Option<u8>,
    source: Option<IpAddr>,
    families: Vec<Family>,
    next_hops: (Option<Ipv4Addr>, Option<Ipv6Addr>),
    extended_next_hop: bool,
}

impl Way {
    fn read(section: &mut Section<'_>, peer: Option<IpAddr>) -> Self {
        let port = section.or("port", 179, |node| node.number(1..=u16::MAX));
        let hops = section.optional("hops").and_then(|node| node.number(1..=u8::MAX));
        let source = section.optional("source").and_then(|node| {
            let source = node.unicast()?;
            let fits = peer.is_none_or(|peer| peer.is_ipv4() == source.is_ipv4());
            if fits { Some(source) } else { node.wrong("an address of the peer's family") }
        });
        let families = section.or("families", Family::ALL.to_vec(), |node| read_families(&node));
        let next_hop4 = section.optional("next_hop4").and_then(|node| match node.unicast()? {
            IpAddr::V4(v4) => Some(v4),
            IpAddr::V6(_) => node.wrong("an IPv4 address"),
        });
        let next_hop6 = section.optional("next_hop6").and_then(|node| match node.unicast()? {
            IpAddr::V6(v6) => Some(v6),
            IpAddr::V4(_) => node.wrong("an IPv6 address"),
        });
        let extended_next_hop = section.or("extended_next_hop", false, |node| node.boolean());
        Self { port, hops, source, families, next_hops: (next_hop4, next_hop6), extended_next_hop }
    }
}

/// Secrets, times, limits.
struct Rest {
    md5: Option<Md5Key>,
    hold_time: Duration,
    longest_retry: Duration,
    max_prefixes: Option<u32>,
    bfd: Option<BfdTimes>,
}

impl Rest {
    fn read(section: &mut Section<'_>, outside: &Outside<'_>) -> Self {
        let md5 = section.optional("password_file").and_then(|node| {
            // The line's end that editors leave is no part of it.
            let key = |text: &str| Md5Key::new(text.trim_end_matches(['\r', '\n'])).ok();
            outside.secret(&node, PASSWORD, None, |text| key(text).map(Some)).flatten()
        });
        let hold_time = section.or("hold_time", Duration::from_secs(90), |node| read_hold_time(&node));
        let longest_retry = section.or("longest_retry", Duration::from_secs(60), |node| {
            node.duration(Duration::from_secs(1)..=Duration::from_secs(3_600))
        });
        let max_prefixes = section.optional("max_prefixes").and_then(|node| node.number(0..=u32::MAX));
        let bfd = section.optional("bfd").and_then(|node| node.section()).map(read_bfd);
        Self { md5, hold_time, longest_retry, max_prefixes, bfd }
    }
}

fn read_bfd(mut section: Section<'_>) -> BfdTimes {
    let interval = section.or("interval", Duration::from_millis(100), |node| {
        node.duration(Duration::from_millis(10)..=Duration::from_secs(10))
    });
    let multiplier = section.or("multiplier", 3, |node| node.number(1..=u8::MAX));
    section.finish(&[]);
    BfdTimes { interval, multiplier }
}

/// RFC 4271 §4.2: zero, or at least three seconds.
fn read_hold_time(node: &Node<'_>) -> Option<Duration> {
    let time = node.duration(Duration::ZERO..=Duration::from_secs(u16::MAX.into()))?;
    let good = time.is_zero() || (time.subsec_nanos() == 0 && time.as_secs() >= 3);
    if good { Some(time) } else { node.wrong("\"0s\", or whole seconds from \"3s\" to \"65535s\"") }
}

/// RFC 7607, RFC 6793 §9: these two stand for nobody.
fn read_asn(node: &Node<'_>) -> Option<u32> {
    let asn = node.as_integer().and_then(|asn| u32::try_from(asn).ok());
    asn.filter(|asn| ![0, 23_456].contains(asn)).or_else(|| node.wrong(ASN))
}

fn read_families(node: &Node<'_>) -> Option<Vec<Family>> {
    let words = [("ipv4", Family::Ipv4), ("ipv6", Family::Ipv6)];
    let mut families = Vec::new();
    for node in node.items("a list of \"ipv4\" and \"ipv6\", at least one")? {
        let family = node.choice(&words, &[])?;
        if families.contains(&family) {
            return node.wrong("each family once");
        }
        families.push(family);
    }
    families.sort_unstable();
    Some(families)
}

fn read_listen(node: &Node<'_>) -> Option<SocketAddr> {
    let good = |address: &SocketAddr| address.port() > 0 && !address.ip().is_multicast();
    node.parse(LISTEN_AT, |text| text.parse::<SocketAddr>().ok().filter(good))
}

const ASN: &str = "an AS number from 1 to 4294967295, not 23456";
const PEERS: &str = "a list of { address = \"192.0.2.0\", asn = 65000 }, at least one";
const MACHINES: &str = "a list of names of machines, at least one";
const LISTEN: &str = "a list of addresses with ports, such as [\"192.0.2.1:179\", \"[2001:db8::1]:179\"]";
const LISTEN_AT: &str = "an address with a port, such as \"192.0.2.1:179\" or \"[2001:db8::1]:179\"";
const PASSWORD: &str = "a file with a key of 1 to 80 bytes, of its owner alone (chmod 600)";
