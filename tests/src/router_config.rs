//! Writes the configuration of routers with BGP sessions to the balancers.
//!
//! A router accepts routes for the VIPs and their aggregates, and exports no routes. The router
//! installs equal-cost paths as one multipath route in the kernel. Routes with the
//! GRACEFUL_SHUTDOWN community have the lowest preference. The module `router` starts the daemons.
//!
//! References: RFC 8326 for GRACEFUL_SHUTDOWN; RFC 5082 for [`RouterSession::near`]; RFC 8950 for
//! IPv4 over IPv6.

use std::fmt::Write;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::RouterKind;

/// The default AS number of the routers.
pub const ROUTER_ASN: u32 = 65_000;
/// The default AS number of the balancers.
pub const CLUSTER_ASN: u32 = 65_101;
/// The default TCP MD5 key of the sessions.
pub const ROUTER_KEY: &str = "s3cret";

/// A BGP session with a balancer, as the router configures it.
#[derive(Clone, Copy, Debug)]
pub struct RouterSession {
    /// The balancer's number. The first balancer has number 1.
    pub machine: u8,
    /// `true` if the session runs over IPv4, `false` for IPv6.
    pub ipv4: bool,
    /// The TCP MD5 key, or an empty string for no key.
    pub key: &'static str,
    /// The AS number that the router expects from the balancer.
    pub asn: u32,
    /// The AS number of the router. FRR and gobgpd use the AS number of the first session for all
    /// sessions.
    pub own_asn: u32,
    /// `true` if the session carries IPv4 and IPv6 routes, `false` if it carries only routes of the
    /// address family over which it runs.
    pub both: bool,
    /// `true` if the router opens the TCP connection, `false` if it only accepts connections. Only
    /// BIRD supports this.
    pub dials: bool,
    /// `true` if the router accepts packets only from directly connected peers (GTSM). Only BIRD
    /// supports this.
    pub near: bool,
}

impl RouterSession {
    /// Returns a session with default values: routes of one address family, the default MD5 key,
    /// and a router that waits for connections.
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

    /// Returns sessions with the first two balancers, each over IPv4 and over IPv6.
    #[must_use]
    pub fn all() -> Vec<Self> {
        [1, 2].into_iter().flat_map(|machine| [Self::new(machine, true), Self::new(machine, false)]).collect()
    }

    /// Returns the name of the session in BIRD, such as `r4lb1` for IPv4 and the first balancer.
    #[must_use]
    pub fn name(&self) -> String {
        format!("r{}lb{}", if self.ipv4 { 4 } else { 6 }, self.machine)
    }

    /// Returns the address of the router and the address of the balancer.
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

    /// Returns the address families of the routes that the session carries.
    fn families(&self) -> impl Iterator<Item = &'static str> {
        let carried = [("ipv4", self.ipv4 || self.both), ("ipv6", !self.ipv4 || self.both)];
        carried.into_iter().filter_map(|(family, is_carried)| is_carried.then_some(family))
    }
}

/// Returns the configuration of a router with these sessions. Tests can add lines and pass the text
/// to [`Router::start_with`](crate::Router::start_with).
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

/// Each router advertises a BFD multiplier of 10, so a balancer declares a session down after one
/// second without BFD packets. A shorter time would cause false failures, because tests share the
/// machine with builds. The time in which the router detects a failed balancer is not affected: it
/// depends on the multiplier that the balancer advertises.
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

/// The configuration of FRR's bfdd, with the BFD profile that the sessions use. The profile has the
/// same timers as BIRD.
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
