//! Reads the section `[bgp]`, and keeps the position of each value for later checks.
//!
//! The module also reads the files of MD5 keys. `sessions` and `announcement_checks` check the
//! values against other sections.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use ::bgp::{Family, Md5Key};
use config_text::{At, Expected, Node, Place, Section, values};

use super::super::address::AddressNode;
use super::super::announce::each_once;
use super::super::pem::Outside;
use super::{BfdTimes, Bgp, BgpPeer, NextHops};

/// The section `[bgp]`, with the positions of its values.
pub(in super::super) struct BgpDraft {
    bgp: Bgp,
    pub(in super::super) place: Place,
    pub(in super::super) listen: Vec<At<SocketAddr>>,
    pub(in super::super) peers: Vec<PeerDraft>,
    /// `true` if all peers could be read. If `false`, an unknown peer name may be the name of a
    /// peer that could not be read.
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
        let max_hold_down = section.or("max_hold_down", usual, |node| node.duration(hold_down..=most));
        let hold_down_half_life = section.or("hold_down_half_life", Duration::from_secs(120), |node| {
            node.duration(Duration::from_secs(1)..=most)
        });
        let max_stall = section.or("max_stall", Duration::from_secs(3), |node| {
            node.duration(Duration::ZERO..=Duration::from_secs(60))
        });
        let graceful_shutdown_prepend =
            section.or("graceful_shutdown_prepend", 0, |node| node.number(0..=16));
        let backup_med = section.or("backup_med", 1_000, |node| node.number(1..=u32::MAX));
        let nodes = section.required("peers", PEERS).and_then(|node| node.items(PEERS)).unwrap_or_default();
        let peers: Vec<PeerDraft> = nodes.iter().filter_map(|node| PeerDraft::read(node, outside)).collect();
        let place = section.place();
        section.finish();
        let bgp = Bgp {
            asn: asn?,
            listen: values(&listen),
            graceful_shutdown,
            graceful_shutdown_prepend,
            graceful_restart: Duration::from_secs(graceful_restart.as_secs()),
            hold_down,
            max_hold_down,
            hold_down_half_life,
            max_stall,
            backup_med,
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

/// A peer, with the positions of its values.
pub(in super::super) struct PeerDraft {
    pub(in super::super) place: Place,
    pub(in super::super) peer: BgpPeer,
    pub(in super::super) machines: Vec<At<Arc<str>>>,
    /// The position of `passive = true`.
    pub(in super::super) passive: Option<Place>,
    pub(in super::super) addressing: Addressing,
}

impl PeerDraft {
    fn read(node: &Node<'_>, outside: &Outside<'_>) -> Option<Self> {
        let mut section = node.section()?;
        let address = section.required("address", PEER_ADDRESS).and_then(|node| node.unicast("peer address"));
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
            max_retry: rest.max_retry,
            max_prefixes: rest.max_prefixes,
            bfd: rest.bfd,
        };
        Some(Self { place: node.place.clone(), peer, machines, passive, addressing })
    }
}

/// Returns the position of a boolean key if its value is `true`.
fn switch(section: &mut Section<'_>, key: &'static str) -> Option<Place> {
    let node = section.optional(key)?;
    node.boolean()?.then(|| node.place.clone())
}

/// The addresses, ports and next hops of a peer.
pub(in super::super) struct Addressing {
    port: u16,
    hops: Option<u8>,
    pub(in super::super) source: Option<At<IpAddr>>,
    families: Vec<Family>,
    pub(in super::super) next_hop4: Option<At<Ipv4Addr>>,
    pub(in super::super) next_hop6: Option<At<Ipv6Addr>>,
    /// The position of `extended_next_hop = true`.
    pub(in super::super) extended_next_hop: Option<Place>,
}

impl Addressing {
    fn read(section: &mut Section<'_>, peer: Option<IpAddr>) -> Self {
        let port = section.or("port", 179, |node| node.number(1..=u16::MAX));
        let hops = section.optional("hops").and_then(|node| node.number(1..=u8::MAX));
        let source = section.optional("source").and_then(|node| {
            let source = node.unicast("source address")?;
            let fits = peer.is_none_or(|peer| peer.is_ipv4() == source.is_ipv4());
            if fits {
                return Some(node.at(source));
            }
            node.wrong(format!("source address {source} and the peer have different address families"))
        });
        let families = section.or("families", Family::ALL.to_vec(), |node| read_families(&node));
        let next_hop4 = section.optional("next_hop4").and_then(|node| match node.unicast("next hop")? {
            IpAddr::V4(v4) => Some(node.at(v4)),
            IpAddr::V6(v6) => {
                node.wrong((format!("next_hop4 must be an IPv4 address, got {v6}"), "use next_hop6"))
            }
        });
        let next_hop6 = section.optional("next_hop6").and_then(|node| match node.unicast("next hop")? {
            IpAddr::V6(v6) => Some(node.at(v6)),
            IpAddr::V4(v4) => {
                node.wrong((format!("next_hop6 must be an IPv6 address, got {v4}"), "use next_hop4"))
            }
        });
        let extended_next_hop = switch(section, "extended_next_hop");
        Self { port, hops, source, families, next_hop4, next_hop6, extended_next_hop }
    }
}

/// The password, times and limits of a peer.
struct Rest {
    md5: Option<Md5Key>,
    hold_time: Duration,
    max_retry: Duration,
    max_prefixes: Option<u32>,
    bfd: Option<BfdTimes>,
}

impl Rest {
    fn read(section: &mut Section<'_>, outside: &Outside<'_>) -> Self {
        let md5 = section.optional("password_file").and_then(|node| {
            // Many editors add a line feed at the end, which is not part of the key.
            let key = |text: &str| {
                let line = text.trim_end_matches(['\r', '\n']);
                Md5Key::new(line).ok().filter(|_| !line.contains(['\r', '\n']))
            };
            outside.secret(&node, PASSWORD, None, |text| key(text).map(Some)).flatten()
        });
        let hold_time = section.or("hold_time", Duration::from_secs(90), |node| read_hold_time(&node));
        let max_retry = section.or("max_retry", Duration::from_secs(60), |node| {
            node.duration(Duration::from_secs(1)..=Duration::from_secs(3_600))
        });
        let max_prefixes = section.optional("max_prefixes").and_then(|node| node.number(0..=u32::MAX));
        let bfd = section.optional("bfd").and_then(|node| node.section()).map(read_bfd);
        Self { md5, hold_time, max_retry, max_prefixes, bfd }
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

/// RFC 4271 §4.2 allows a hold time of zero, or of at least three seconds.
fn read_hold_time(node: &Node<'_>) -> Option<Duration> {
    let time = node.duration(Duration::ZERO..=Duration::from_secs(u16::MAX.into()))?;
    if time.is_zero() || (time.subsec_nanos() == 0 && time.as_secs() >= 3) {
        return Some(time);
    }
    let message =
        format!("\"hold_time\" must be \"0s\", or whole seconds of at least \"3s\", got {}", node.shown());
    node.wrong(message)
}

/// AS numbers 0 and 23456 are reserved (RFC 7607, RFC 6793 §9).
fn read_asn(node: &Node<'_>) -> Option<u32> {
    let asn = node.number(1..=u32::MAX)?;
    if asn != RESERVED_ASN {
        return Some(asn);
    }
    node.wrong((format!("AS number {asn} is reserved"), "use the number of your AS"))
}

fn read_families(node: &Node<'_>) -> Option<Vec<Family>> {
    let words = [("ipv4", Family::Ipv4), ("ipv6", Family::Ipv6)];
    let mut families = Vec::new();
    for node in node.items(FAMILIES)? {
        let family = node.choice(&words)?;
        if families.contains(&family) {
            return node.wrong(node.twice());
        }
        families.push(family);
    }
    families.sort_unstable();
    Some(families)
}

const ASN: Expected = Expected::new("an AS number from 1 to 4294967295").example("65101");
/// AS_TRANS, the placeholder for 32-bit AS numbers.
const RESERVED_ASN: u32 = 23_456;
const PEERS: Expected =
    Expected::new("a list of routers").example("[{ address = \"192.0.2.0\", asn = 65000 }]");
const PEER_ADDRESS: Expected = Expected::new("the address of the router").example("\"192.0.2.0\"");
const MACHINES: Expected = Expected::new("a list of machine names").example("[\"lb1\"]");
const FAMILIES: Expected = Expected::new("a list of address families").example("[\"ipv4\", \"ipv6\"]");
const LISTEN: Expected =
    Expected::new("a list of addresses with ports").example("[\"192.0.2.1:179\", \"[2001:db8::1]:179\"]");
const LISTEN_AT: Expected = Expected::new("an IP address with a port").example("\"192.0.2.1:179\"");
const PASSWORD: &str = "the file must contain one line with a key of 1 to 80 bytes, and only its owner may have access (chmod 600)";
