//! `[bgp]` as written: values with the places where they stand.
//!
//! In: the section, and the keys that it names. Out: [`BgpDraft`], or problems.
//! Not here: one part against another (`sessions`, `announcement_checks`).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use ::bgp::{Family, Md5Key};
use config_text::{At, Node, Place, Section, values};

use super::super::address::AddressNode;
use super::super::announce::each_once;
use super::super::pem::Outside;
use super::{BfdTimes, Bgp, BgpPeer, NextHops};

/// The section as written.
pub(in super::super) struct BgpDraft {
    bgp: Bgp,
    pub(in super::super) place: Place,
    pub(in super::super) listen: Vec<At<SocketAddr>>,
    pub(in super::super) peers: Vec<PeerDraft>,
    /// All peers could be read: no name is missing for a fault that was reported.
    pub(in super::super) is_whole: bool,
}

impl BgpDraft {
    pub(in super::super) fn read(mut section: Section<'_>, outside: &Outside<'_>) -> Option<Self> {
        let asn = section.required("asn", ASN).and_then(|node| read_asn(&node));
        let listen = section.optional("listen").and_then(|node| node.list(LISTEN)).unwrap_or_default();
        let listen: Vec<At<SocketAddr>> =
            listen.iter().filter_map(|node| Some(node.at(node.listen(LISTEN_AT)?))).collect();
        let mut time = |key, default, most| {
            section.or(key, default, |node: Node<'_>| node.duration(Duration::ZERO..=most))
        };
        let graceful_shutdown = time("graceful_shutdown", Duration::from_secs(5), Duration::from_secs(600));
        let graceful_restart = time("graceful_restart", Duration::ZERO, Duration::from_secs(600));
        let hold_down = time("hold_down", Duration::from_secs(10), Duration::from_secs(3_600));
        let usual = hold_down.max(Duration::from_secs(300));
        let most = Duration::from_secs(24 * 3_600);
        let longest_hold_down =
            section.or("longest_hold_down", usual, |node| node.duration(hold_down..=most));
        let anchor_med = section.or("anchor_med", 1_000, |node| node.number(1..=u32::MAX));
        let nodes = section.required("peers", PEERS).and_then(|node| node.items(PEERS)).unwrap_or_default();
        let peers: Vec<PeerDraft> = nodes.iter().filter_map(|node| PeerDraft::read(node, outside)).collect();
        let place = section.place();
        section.finish();
        let bgp = Bgp {
            asn: asn?,
            listen: values(&listen),
            graceful_shutdown,
            graceful_restart: Duration::from_secs(graceful_restart.as_secs()),
            hold_down,
            longest_hold_down,
            anchor_med,
            peers: Vec::new(),
        };
        let is_whole = !nodes.is_empty() && peers.len() == nodes.len();
        Some(Self { bgp, place, listen, peers, is_whole })
    }

    pub(in super::super) fn asn(&self) -> u32 {
        self.bgp.asn
    }

    pub(in super::super) fn build(self) -> Bgp {
        Bgp { peers: self.peers.into_iter().map(|draft| draft.peer).collect(), ..self.bgp }
    }
}

/// A peer as written.
pub(in super::super) struct PeerDraft {
    pub(in super::super) place: Place,
    pub(in super::super) peer: BgpPeer,
    pub(in super::super) machines: Vec<At<Arc<str>>>,
    /// Where `passive = true` stands.
    pub(in super::super) passive: Option<Place>,
    pub(in super::super) addressing: Addressing,
}

impl PeerDraft {
    fn read(node: &Node<'_>, outside: &Outside<'_>) -> Option<Self> {
        let mut section = node.section()?;
        let address = section.required("address", "the router's address").and_then(|node| node.unicast());
        let asn = section.required("asn", ASN).and_then(|node| read_asn(&node));
        let name = section.optional("name").and_then(|node| node.name());
        let machines = section.optional("machines").and_then(|node| node.items(MACHINES)).unwrap_or_default();
        let machines = each_once(&machines, |node| node.name());
        let passive = switch(&mut section, "passive");
        let addressing = Addressing::read(&mut section, address);
        let rest = Rest::read(&mut section, outside);
        section.finish();
        let address = address?;
        let peer = BgpPeer {
            name: name.unwrap_or_else(|| address.to_string().into()),
            address,
            asn: asn?,
            machines: values(&machines),
            port: addressing.port,
            md5: rest.md5,
            hops: addressing.hops,
            passive: passive.is_some(),
            source: addressing.source.as_ref().map(|at| at.value),
            families: addressing.families.clone(),
            next_hops: NextHops {
                v4: addressing.next_hop4.as_ref().map(|at| at.value),
                v6: addressing.next_hop6.as_ref().map(|at| at.value),
                extended: addressing.extended_next_hop.is_some(),
            },
            hold_time: rest.hold_time,
            longest_retry: rest.longest_retry,
            max_prefixes: rest.max_prefixes,
            bfd: rest.bfd,
        };
        Some(Self { place: node.place.clone(), peer, machines, passive, addressing })
    }
}

/// Where a switch that is on stands. Default: it is off.
fn switch(section: &mut Section<'_>, key: &'static str) -> Option<Place> {
    let node = section.optional(key)?;
    node.boolean()?.then(|| node.place.clone())
}

/// Where packets and routes go.
pub(in super::super) struct Addressing {
    port: u16,
    hops: Option<u8>,
    pub(in super::super) source: Option<At<IpAddr>>,
    families: Vec<Family>,
    pub(in super::super) next_hop4: Option<At<Ipv4Addr>>,
    pub(in super::super) next_hop6: Option<At<Ipv6Addr>>,
    /// Where `extended_next_hop = true` stands.
    pub(in super::super) extended_next_hop: Option<Place>,
}

impl Addressing {
    fn read(section: &mut Section<'_>, peer: Option<IpAddr>) -> Self {
        let port = section.or("port", 179, |node| node.number(1..=u16::MAX));
        let hops = section.optional("hops").and_then(|node| node.number(1..=u8::MAX));
        let source = section.optional("source").and_then(|node| {
            let source = node.unicast()?;
            let fits = peer.is_none_or(|peer| peer.is_ipv4() == source.is_ipv4());
            if fits { Some(node.at(source)) } else { node.wrong("an address of the peer's family") }
        });
        let families = section.or("families", Family::ALL.to_vec(), |node| read_families(&node));
        let next_hop4 = section.optional("next_hop4").and_then(|node| match node.unicast()? {
            IpAddr::V4(v4) => Some(node.at(v4)),
            IpAddr::V6(_) => node.wrong("an IPv4 address"),
        });
        let next_hop6 = section.optional("next_hop6").and_then(|node| match node.unicast()? {
            IpAddr::V6(v6) => Some(node.at(v6)),
            IpAddr::V4(_) => node.wrong("an IPv6 address"),
        });
        let extended_next_hop = switch(section, "extended_next_hop");
        Self { port, hops, source, families, next_hop4, next_hop6, extended_next_hop }
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
            let key = |text: &str| {
                let line = text.trim_end_matches(['\r', '\n']);
                Md5Key::new(line).ok().filter(|_| !line.contains(['\r', '\n']))
            };
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
    section.finish();
    BfdTimes { interval, multiplier }
}

/// RFC 4271 §4.2: zero, or at least three seconds.
fn read_hold_time(node: &Node<'_>) -> Option<Duration> {
    let time = node.duration(Duration::ZERO..=Duration::from_secs(u16::MAX.into()))?;
    let good = time.is_zero() || (time.subsec_nanos() == 0 && time.as_secs() >= 3);
    if good { Some(time) } else { node.wrong("\"0s\", or whole seconds from \"3s\" to \"65535s\"") }
}

/// RFC 7607, RFC 6793 §9: these two are reserved.
fn read_asn(node: &Node<'_>) -> Option<u32> {
    let asn = node.as_integer().and_then(|asn| u32::try_from(asn).ok());
    asn.filter(|asn| ![0, 23_456].contains(asn)).or_else(|| node.wrong(ASN))
}

fn read_families(node: &Node<'_>) -> Option<Vec<Family>> {
    let words = [("ipv4", Family::Ipv4), ("ipv6", Family::Ipv6)];
    let mut families = Vec::new();
    for node in node.items("a list of \"ipv4\" and \"ipv6\", at least one")? {
        let family = node.choice(&words)?;
        if families.contains(&family) {
            return node.wrong("each family once");
        }
        families.push(family);
    }
    families.sort_unstable();
    Some(families)
}

const ASN: &str = "an AS number from 1 to 4294967295, not 23456";
const PEERS: &str = "a list of { address = \"192.0.2.0\", asn = 65000 }, at least one";
const MACHINES: &str = "a list of names of machines, at least one";
const LISTEN: &str = "a list of addresses with ports, such as [\"192.0.2.1:179\", \"[2001:db8::1]:179\"]";
const LISTEN_AT: &str = "an address with a port, such as \"192.0.2.1:179\" or \"[2001:db8::1]:179\"";
const PASSWORD: &str = "a file with a key of 1 to 80 bytes in one line, of its owner alone (chmod 600)";
