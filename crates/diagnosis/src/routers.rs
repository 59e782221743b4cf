//! Findings about the configuration section `[bgp]`: routes to peers, addresses and ports of this
//! machine, and TCP MD5 signatures.
//!
//! Key files are checked when the configuration is read, and `sluicegate bgp status` shows the
//! sessions.
//!
//! References: RFC 5082 (GTSM), RFC 5881 (single-hop BFD), RFC 2385 (TCP MD5).

use std::net::SocketAddr;

use datapath::interface::Finding;
use next_hop::Unresolved;
use nix::errno::Errno;

use crate::facts::{Facts, PeerFact, Routers};

pub(crate) fn findings(facts: &Facts) -> Vec<Finding> {
    let Some(routers) = &facts.routers else { return Vec::new() };
    let mut found: Vec<Finding> = Vec::new();
    for peer in &routers.peers {
        found.extend(no_way(peer));
        found.extend(behind_a_router(peer));
        found.extend(absent_source(facts, peer));
    }
    for (at, answer) in &routers.listens {
        found.extend(answer.and_then(|errno| deaf(facts, *at, errno)));
    }
    found.extend(unsigned(routers));
    let taken = |errno: &Errno| !(facts.is_running && *errno == Errno::EADDRINUSE);
    found.extend(routers.bfd_port.filter(taken).map(bfd_port));
    found
}

fn no_way(peer: &PeerFact) -> Option<Finding> {
    let PeerFact { name, address, route, .. } = peer;
    let why = route.err()?;
    let what = format!("cannot send to BGP peer {name} ({address}): {why}");
    let finding = Finding::error(
        "bgp-no-route",
        what,
        "no BGP session can be established, so no route is announced to this peer",
    );
    match why {
        // The kernel keeps trying to resolve a pending neighbor. The other two errors affect only
        // frames from packet threads, not the kernel's TCP connections.
        Unresolved::NeighbourPending { .. } | Unresolved::NoMac { .. } | Unresolved::TooManyTags { .. } => {
            None
        }
        Unresolved::NeighbourFailed { neighbour, .. } => Some(
            finding.hint(format!("check why {neighbour} does not respond, see `ip neigh show {neighbour}`")),
        ),
        Unresolved::LinkDown { .. } => Some(finding.hint("find the interface that is down with `ip link`")),
        Unresolved::Local => {
            Some(finding.hint("set bgp.peers.address to the router's address, not to this machine's address"))
        }
        _ => Some(finding.hint(format!("add a route, see `ip route get {address}`"))),
    }
}

/// Reports a peer behind a gateway if its configuration requires a directly connected peer.
fn behind_a_router(peer: &PeerFact) -> Option<Finding> {
    let PeerFact { name, address, gateway, .. } = peer;
    let gateway = (*gateway)?;
    let (key, why) = if peer.hops == Some(1) {
        ("hops = 1", "packets from the peer pass more than one hop, so the kernel drops them (GTSM)")
    } else if peer.has_bfd {
        ("bfd", "BFD accepts only packets of directly connected peers and drops packets of this peer")
    } else {
        return None;
    };
    let what = format!("BGP peer {name} ({address}) has {key}, but its route uses the gateway {gateway}");
    Some(Finding::error("bgp-not-direct", what, why).hint(format!(
        "set the peer address to one on a link of this machine, or remove {key}, see `ip route get {address}`"
    )))
}

fn absent_source(facts: &Facts, peer: &PeerFact) -> Option<Finding> {
    let source = peer.absent_source?;
    let what = format!("no local interface has the source address {source} of BGP peer {}", peer.name);
    let finding = Finding::error("bgp-source", what, "no BGP session with this peer can be established")
        .hint("set bgp.peers.source to an address of this machine, or remove the key");
    Some(match facts.address_command(source) {
        Some(command) => finding.command(command),
        None => finding,
    })
}

fn deaf(facts: &Facts, at: SocketAddr, errno: Errno) -> Option<Finding> {
    let what = |words: &str| format!("cannot listen on bgp.listen address {at}, {words}");
    let why = "the load balancer does not start";
    Some(match errno {
        // The listening socket belongs to the running load balancer.
        Errno::EADDRINUSE if facts.is_running => return None,
        Errno::EADDRINUSE => Finding::error("bgp-listen", what("which another program uses"), why)
            .hint(format!("stop that program, `ss -ltnp 'sport = {}'` names it", at.port())),
        Errno::EADDRNOTAVAIL => {
            let finding = Finding::error("bgp-listen", what("which no local interface has"), why);
            match facts.address_command(at.ip()) {
                Some(command) => finding.command(command),
                None => finding.hint("set bgp.listen to an address of this machine"),
            }
        }
        Errno::EACCES => {
            Finding::error("bgp-listen", what("because ports below 1024 need a capability"), why).hint(
                "set AmbientCapabilities=CAP_NET_BIND_SERVICE in the systemd unit, or run doctor as root",
            )
        }
        other => Finding::error("bgp-listen", what(&format!("the kernel returns {other}")), why)
            .hint("set bgp.listen to an address of this machine"),
    })
}

fn unsigned(routers: &Routers) -> Option<Finding> {
    let peer = routers.peers.iter().find(|peer| peer.is_signed)?;
    (routers.signs_tcp == Some(false)).then(|| {
        let what =
            format!("BGP peer {} has a password_file, but the kernel does not support TCP MD5", peer.name);
        Finding::error("bgp-md5", what, "no BGP session with this peer can be established")
            .hint("install a kernel with CONFIG_TCP_MD5SIG=y")
    })
}

fn bfd_port(errno: Errno) -> Finding {
    let words = match errno {
        Errno::EADDRINUSE => "which another program uses".to_owned(),
        other => format!("the kernel returns {other}"),
    };
    Finding::error(
        "bfd-port",
        format!("cannot receive BFD packets on UDP port {BFD_PORT}, {words}"),
        "BFD does not monitor any peer",
    )
    .hint(format!("stop that program, such as a BFD daemon, `ss -lunp 'sport = {BFD_PORT}'` names it"))
}

/// The port for single-hop BFD (RFC 5881 §4).
pub(crate) const BFD_PORT: u16 = 3_784;
