//! Judgements of `[bgp]`: routes to peers, addresses and ports of this machine, signatures.
//!
//! In: [`Facts`]. Out: [`Finding`]s. Invariant: functions of the facts alone.
//! Not here: key files, which reading the configuration judges; sessions (`sluicegate bgp status`).
//! Source: RFC 5082 (GTSM), RFC 5881 (BFD over one hop), RFC 2385 (TCP MD5).

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
    let what = format!("no way to BGP peer {name} ({address}): {why}");
    let finding =
        Finding::error("bgp-no-route", what, "no session comes up, and nothing is announced to this router");
    match why {
        // Others take it, and the kernel asks again.
        Unresolved::NeighbourPending { .. } | Unresolved::NoMac { .. } | Unresolved::TooManyTags { .. } => {
            None
        }
        Unresolved::NeighbourFailed { neighbour, .. } => Some(
            finding.hint(format!("see to {neighbour}, which does not answer; ip neigh show {neighbour}")),
        ),
        Unresolved::LinkDown { .. } => Some(finding.hint("ip link shows which interface is down")),
        Unresolved::Local => Some(finding.hint("correct bgp.peers.address: it is this machine's own")),
        _ => Some(finding.hint(format!("give it a route; ip route get {address} shows what it has"))),
    }
}

/// The peer's packets come over more than one link.
fn behind_a_router(peer: &PeerFact) -> Option<Finding> {
    let PeerFact { name, address, gateway, .. } = peer;
    let gateway = (*gateway)?;
    let (key, why) = if peer.hops == Some(1) {
        ("hops = 1", "the kernel drops its packets, which have come over more than one hop (GTSM)")
    } else if peer.has_bfd {
        ("bfd", "packets of BFD are taken from the next link alone, and those of this peer are dropped")
    } else {
        return None;
    };
    let what = format!("BGP peer {name} ({address}) has {key}, and is routed by way of {gateway}");
    Some(Finding::error("bgp-not-direct", what, why).hint(format!(
        "name the router's address on a link of this machine, or leave {key} out; ip route get {address}"
    )))
}

fn absent_source(facts: &Facts, peer: &PeerFact) -> Option<Finding> {
    let source = peer.absent_source?;
    let what =
        format!("BGP peer {} is to be dialled from {source}, which is on no interface here", peer.name);
    let finding = Finding::error("bgp-source", what, "no session with it comes up")
        .hint("correct bgp.peers.source, or leave it out");
    Some(match facts.address_command(source) {
        Some(command) => finding.command(command),
        None => finding,
    })
}

fn deaf(facts: &Facts, at: SocketAddr, errno: Errno) -> Option<Finding> {
    let what = |words: &str| format!("bgp.listen has {at}, and {words}");
    let why = "the balancer does not start";
    Some(match errno {
        // A running balancer's own.
        Errno::EADDRINUSE if facts.is_running => return None,
        Errno::EADDRINUSE => Finding::error("bgp-listen", what("another program listens there"), why)
            .hint(format!("end it, unless it is this balancer; ss -ltnp 'sport = {}' names it", at.port())),
        Errno::EADDRNOTAVAIL => {
            let finding = Finding::error("bgp-listen", what("no interface here has that address"), why);
            match facts.address_command(at.ip()) {
                Some(command) => finding.command(command),
                None => finding.hint("correct bgp.listen"),
            }
        }
        Errno::EACCES => {
            Finding::error("bgp-listen", what("this process may not listen below port 1024"), why)
                .hint("AmbientCapabilities=CAP_NET_BIND_SERVICE in the systemd unit, or run doctor as root")
        }
        other => Finding::error("bgp-listen", what(&format!("the kernel refuses: {other}")), why)
            .hint("correct bgp.listen"),
    })
}

fn unsigned(routers: &Routers) -> Option<Finding> {
    let peer = routers.peers.iter().find(|peer| peer.is_signed)?;
    (routers.signs_tcp == Some(false)).then(|| {
        let what =
            format!("BGP peer {} has a password_file, and the kernel does not sign TCP with MD5", peer.name);
        Finding::error("bgp-md5", what, "no session with it comes up")
            .hint("install a kernel with CONFIG_TCP_MD5SIG=y")
    })
}

fn bfd_port(errno: Errno) -> Finding {
    let words = match errno {
        Errno::EADDRINUSE => "another program has it".to_owned(),
        other => format!("the kernel refuses: {other}"),
    };
    Finding::error(
        "bfd-port",
        format!("BFD is to hear at UDP port {BFD_PORT}, and {words}"),
        "no peer is watched by BFD",
    )
    .hint(format!("end that program, such as a BFD daemon; ss -lunp 'sport = {BFD_PORT}' names it"))
}

/// RFC 5881 §4.
pub(crate) const BFD_PORT: u16 = 3_784;
