//! The configuration of routers: their sessions with the bed's balancers.
//!
//! In: sessions. Out: the configuration of bird, of FRR's bgpd, or of gobgpd. VIPs and their aggregates are taken in, nothing is
//! given out, paths of equal worth go into the kernel side by side, and a machine that says that it leaves is the last choice.
//! Not here: the daemons (`router`).
//! Source: RFC 8326 for the last choice; RFC 5082 for [`RouterSession::near`]; RFC 8950 for IPv4 over IPv6.

use std::fmt::Write;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::RouterKind;

/// The routers' AS number, unless a session says another.
pub const ROUTER_ASN: u32 = 65_000;
/// The balancers' AS number, unless a session says another.
pub const CLUSTER_ASN: u32 = 65_101;
/// The key of all sessions, unless one says another.
pub const ROUTER_KEY: &str = "s3cret";

/// A session with a balancer of the bed, as the router has it.
#[derive(Clone, Copy, Debug)]
pub struct RouterSession {
    /// The balancer, from 1.
    pub machine: u8,
    /// Whether it is over IPv4, or over IPv6.
    pub ipv4: bool,
    /// Its key (TCP MD5); empty: none.
    pub key: &'static str,
    /// The AS number that the router believes the balancer to have.
    pub asn: u32,
    /// The router's own; FRR and gobgpd have that of their first session for all.
    pub own_asn: u32,
    /// It carries routes of both families; else those of its own.
    pub both: bool,
    /// The router dials; else it waits to be dialled. Of bird alone.
    pub dials: bool,
    /// It takes packets from the next hop alone (GTSM). Of bird alone.
    pub near: bool,
}

impl RouterSession {
    /// As most are: one family, with the key, and the router waits.
    #[must_use]
    pub fn new(machine: u8, ipv4: bool) -> Self {
        Self {
            machine,
            ipv4,
            key: ROUTER_KEY,
            asn: CLUSTER_ASN,
            own_asn: ROUTER_ASN,
            both: false,
            dials: false,
            near: false,
        }
    }

    /// Two balancers over both families.
    #[must_use]
    pub fn all() -> Vec<Self> {
        [1, 2].into_iter().flat_map(|machine| [Self::new(machine, true), Self::new(machine, false)]).collect()
    }

    /// What bird calls it: `r4lb1` is with the first balancer over IPv4.
    #[must_use]
    pub fn name(&self) -> String {
        format!("r{}lb{}", if self.ipv4 { 4 } else { 6 }, self.machine)
    }

    /// The router's address and the balancer's, as the bed has them.
    #[must_use]
    pub fn ends(&self) -> (IpAddr, IpAddr) {
        if self.ipv4 {
            let end = |last| Ipv4Addr::new(192, 0, 2, last).into();
            (end(2 * self.machine - 2), end(2 * self.machine - 1))
        } else {
            let net = self.machine.into();
            let end = |last| Ipv6Addr::new(0x2001, 0xdb8, 0, net, 0, 0, 0, last).into();
            (end(0xff), end(1))
        }
    }

    /// Whose routes it carries: IPv4, IPv6.
    fn families(&self) -> impl Iterator<Item = &'static str> {
        let carried = [("ipv4", self.ipv4 || self.both), ("ipv6", !self.ipv4 || self.both)];
        carried.into_iter().filter_map(|(family, is_carried)| is_carried.then_some(family))
    }
}

/// The configuration of a router with these sessions, for [`Router::start_with`](crate::Router::start_with) where a test has more
/// to say than they do.
#[must_use]
pub fn config(kind: RouterKind, sessions: &[RouterSession]) -> String {
    match kind {
        RouterKind::Bird => sessions.iter().fold(BIRD.to_owned(), |text, session| text + &bird(session)),
        RouterKind::Frr => frr(sessions),
        RouterKind::Gobgp => gobgpd(sessions),
    }
}

fn bird(session: &RouterSession) -> String {
    let RouterSession { key, asn, own_asn, .. } = session;
    let ((here, there), name) = (session.ends(), session.name());
    let mut text = format!(
        "protocol bgp {name} {{ local {here} as {own_asn}; neighbor {there} as {asn};\n  \
         hold time 9; error wait time 1, 3; bfd on;"
    );
    if !key.is_empty() {
        let _ = write!(text, " password \"{key}\";");
    }
    text += if session.dials { " connect delay time 1; connect retry time 1;" } else { " passive on;" };
    if session.near {
        text += " ttl security on;";
    }
    for family in session.families() {
        let next_hop = if family == "ipv4" && !session.ipv4 { " extended next hop on;" } else { "" };
        let _ = write!(text, "\n  {family} {{ import filter vips; export none;{next_hop} }};");
    }
    text + " }\n"
}

fn frr(sessions: &[RouterSession]) -> String {
    let asn = sessions.first().map_or(ROUTER_ASN, |session| session.own_asn);
    let mut text = FRR_LISTS.to_owned();
    let _ = writeln!(
        text,
        "router bgp {asn}\n bgp router-id 192.0.2.0\n no bgp default ipv4-unicast\n \
         bgp bestpath as-path multipath-relax"
    );
    for session in sessions {
        let (_, there) = session.ends();
        let _ = writeln!(
            text,
            " neighbor {there} remote-as {}\n neighbor {there} timers 3 9\n neighbor {there} passive\n \
             neighbor {there} bfd profile fast",
            session.asn
        );
        if !session.key.is_empty() {
            let _ = writeln!(text, " neighbor {there} password {}", session.key);
        }
    }
    for family in ["ipv4", "ipv6"] {
        let _ = writeln!(text, " address-family {family} unicast\n  maximum-paths 16");
        for session in sessions.iter().filter(|session| session.families().any(|one| one == family)) {
            let (_, there) = session.ends();
            let _ = writeln!(
                text,
                "  neighbor {there} activate\n  neighbor {there} route-map {family} in\n  \
                 neighbor {there} route-map none out"
            );
        }
        text.push_str(" exit-address-family\n");
    }
    text + FRR_MAPS
}

fn gobgpd(sessions: &[RouterSession]) -> String {
    let asn = sessions.first().map_or(ROUTER_ASN, |session| session.own_asn);
    let mut text = format!("[global.config]\nas = {asn}\nrouter-id = \"192.0.2.0\"\n");
    for session in sessions {
        let (_, there) = session.ends();
        let RouterSession { key, asn, .. } = session;
        let _ = writeln!(
            text,
            "[[neighbors]]\n[neighbors.config]\nneighbor-address = \"{there}\"\npeer-as = {asn}\n\
             auth-password = \"{key}\"\n[neighbors.transport.config]\npassive-mode = true"
        );
        for family in session.families() {
            let _ = writeln!(
                text,
                "[[neighbors.afi-safis]]\n[neighbors.afi-safis.config]\nafi-safi-name = \"{family}-unicast\""
            );
        }
    }
    text
}

/// A second of silence is a loss: tests share a machine with builds. How soon a router misses a balancer is by the balancer's
/// multiplier, not by this one.
const BIRD: &str = "log stderr all;
router id 192.0.2.0;
protocol device { scan time 1; }
protocol direct { ipv4; ipv6; }
protocol kernel { ipv4 { import none; export where source = RTS_BGP; }; merge paths on limit 16; }
protocol kernel { ipv6 { import none; export where source = RTS_BGP; }; merge paths on limit 16; }
protocol bfd { interface \"*\" { min rx interval 100 ms; min tx interval 100 ms; multiplier 10; }; }
filter vips {
  if net.type = NET_IP4 && net !~ [ 203.0.113.0/24+ ] then reject;
  if net.type = NET_IP6 && net !~ [ 2001:db8:f::/48+ ] then reject;
  if (65535, 0) ~ bgp_community then bgp_local_pref = 0;
  accept;
}
";

/// The configuration of FRR's bfdd, with the profile that sessions name: as slow as bird's.
pub const FRR_BFDD: &str = "bfd
 profile fast
  detect-multiplier 10
  receive-interval 100
  transmit-interval 100
";

const FRR_LISTS: &str = "ip prefix-list VIPS4 seq 5 permit 203.0.113.0/24 le 32
ipv6 prefix-list VIPS6 seq 5 permit 2001:db8:f::/48 le 128
bgp community-list standard GSHUT seq 5 permit graceful-shutdown
";

const FRR_MAPS: &str = "route-map ipv4 permit 5
 match community GSHUT
 match ip address prefix-list VIPS4
 set local-preference 0
route-map ipv4 permit 10
 match ip address prefix-list VIPS4
route-map ipv6 permit 5
 match community GSHUT
 match ipv6 address prefix-list VIPS6
 set local-preference 0
 set ipv6 next-hop prefer-global
route-map ipv6 permit 10
 match ipv6 address prefix-list VIPS6
 set ipv6 next-hop prefer-global
route-map none deny 10
";
