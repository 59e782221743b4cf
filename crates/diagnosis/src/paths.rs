//! Judgements of VIPs and of the paths to backends: local VIPs, next hops, MTU, reachability with full-size packets.
//!
//! In: [`Facts`]. Out: [`Finding`]s, one for all backends with the same fault.
//! Invariant: functions of the facts alone.

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;

use datapath::interface::Finding;
use next_hop::Unresolved;

use crate::facts::{Facts, OwnAddress, PathFact, Reach, VipFact, host_prefix};

pub(crate) fn findings(facts: &Facts) -> Vec<Finding> {
    let mut found: Vec<Finding> = facts.vips.iter().filter_map(local_vip).collect();
    found.extend(facts.absent_addresses.iter().map(|address| absent_address(facts, *address)));
    found.extend(facts.unasked.iter().map(|why| unasked(why)));
    found.extend(unresolved(facts));
    found.extend(elsewhere(facts));
    found.extend(behind_a_router(facts));
    found.extend(link_mtu(facts));
    found.extend(path_mtu(facts));
    found.extend(learned_mtu(facts));
    found.extend(silent(facts));
    found
}

fn local_vip(vip: &VipFact) -> Option<Finding> {
    let VipFact { name, address, route, local } = vip;
    let why = "the kernel answers for it, with resets, whenever the balancer does not, as during a restart, and refuses \
               answers to checks through the tunnel";
    if let Some(OwnAddress { address: own, prefix_length, interface }) = local {
        let what = format!(
            "VIP {name} {address} is an address of this machine, by {own}/{prefix_length} on {interface}"
        );
        let command = format!("ip address del {own}/{prefix_length} dev {interface}");
        return Some(Finding::error("local-vip", what, why).command(command));
    }
    (*route == Err(Unresolved::Local)).then(|| {
        let what = format!("VIP {name} {address} is local to this machine by a route");
        Finding::error("local-vip", what, why).hint(format!(
            "delete the route that covers it, one of: ip route show table local; ip route get {address}"
        ))
    })
}

fn absent_address(facts: &Facts, address: IpAddr) -> Finding {
    let what = format!("the machine's address {address} is on no interface here");
    let why = "outer headers carry it as their source: errors from the way come back to nobody, and checks cannot bind it";
    let finding = Finding::warning("own-address", what, why);
    match facts.address_command(address) {
        Some(command) => finding.command(command),
        None => finding.hint("correct machine.NAME.addresses"),
    }
}

fn unasked(why: &str) -> Finding {
    let what = format!("backends were not asked whether full-size packets reach them: {why}");
    Finding::warning("not-pinged", what, "a way that loses them is not found")
        .command("sysctl -w net.ipv4.ping_group_range=\"0 2147483647\"")
        .hint("run doctor as root")
}

fn unresolved(facts: &Facts) -> Vec<Finding> {
    let key = |path: &PathFact| path.next_hop.err().map(|why| why.to_string());
    grouped(facts, key, |words, group| {
        let what = format!("no way to {group}: {words}");
        let finding = Finding::error("no-next-hop", what, "packets for these backends are dropped");
        let first = group.first.address;
        match group.first.next_hop {
            Err(Unresolved::LinkDown { .. }) => match group.all.iter().find_map(|path| path.link.as_ref()) {
                Some((link, _)) => finding.command(format!("ip link set dev {link} up")),
                None => finding.hint("ip link shows which interface is down"),
            },
            Err(
                Unresolved::NeighbourFailed { neighbour, .. }
                | Unresolved::NeighbourPending { neighbour, .. },
            ) => {
                finding.hint(format!("see to {neighbour}, which does not answer; ip neigh show {neighbour}"))
            }
            Err(Unresolved::NoRoute) => {
                finding.hint(format!("give it a route; ip route get {first} shows what it has"))
            }
            _ => finding
                .hint(format!("give it a route to another host; ip route get {first} shows what it has")),
        }
    })
}

/// Frames leave by the interface whose socket took the packet in.
fn elsewhere(facts: &Facts) -> Vec<Finding> {
    let Some((nic, _)) = facts.usable().next() else { return Vec::new() };
    let key = |path: &PathFact| {
        // By a VLAN device on it, frames leave by the interface.
        path.next_hop.ok().filter(|hop| hop.leaves_by != nic.index)?;
        Some(path.link.as_ref().map_or_else(|| "another interface".to_owned(), |(link, _)| link.clone()))
    };
    grouped(facts, key, |link, group| {
        let what = format!("{group} is routed out of {link}, and the balancer sends out of {}", nic.name);
        let why = "frames are addressed to a neighbour that is not on that link, and are lost";
        let first = host_prefix(group.first.address);
        Finding::error("other-interface", what, why)
            .hint(format!("route {first} and its like by a gateway on {}: ip route replace", nic.name))
    })
}

fn behind_a_router(facts: &Facts) -> Vec<Finding> {
    let key = |path: &PathFact| {
        let is_lost = path.kind == "l2" && !path.is_readdressed;
        path.next_hop.ok().filter(|hop| is_lost && hop.gateway.is_some()).map(|_| ())
    };
    grouped(facts, key, |(), group| {
        let what = format!("{group} is behind a router, and its packets have no outer header (l2)");
        let why = "the router sees the VIP alone, and sends the packet back to a balancer";
        Finding::error("l2-routed", what, why).hint("use gre, ipip or gue for this pool, or join the link")
    })
}

fn link_mtu(facts: &Facts) -> Vec<Finding> {
    let key = |path: &PathFact| path.link.clone().filter(|(_, mtu)| *mtu < path.needed());
    grouped(facts, key, |(link, mtu), group| {
        let needed = group.all.iter().map(|path| path.needed()).max().unwrap_or(mtu);
        let clients = group.first.clients;
        let what = format!(
            "{link} carries packets of {mtu} bytes, and {group} needs {needed}: {clients} of a client and the outer header"
        );
        Finding::warning("mtu-link", what, FULL_SIZE)
            .command(format!("ip link set dev {link} mtu {needed}"))
            .hint("have backends announce a smaller MSS")
    })
}

/// Pinged and found too narrow, where this machine's own link is not what limits it.
fn path_mtu(facts: &Facts) -> Vec<Finding> {
    let key = |path: &PathFact| path.narrow().map(|longest| (longest, path.asked()));
    grouped(facts, key, |(longest, asked), group| {
        let what =
            format!("packets of more than {longest} bytes do not reach {group}, of {asked} that it needs");
        let first = group.first.address;
        Finding::error("mtu-path", what, "clients' full-size packets are lost on the way").hint(format!(
            "raise the MTU of the routers' and the backend's links to {asked}; tracepath -n {first} shows where it shrinks"
        ))
    })
}

/// The kernel believes less of the path than the link has, and no ping says that it is right.
fn learned_mtu(facts: &Facts) -> Vec<Finding> {
    let key = |path: &PathFact| {
        let believed = path.next_hop.ok()?.mtu_bytes;
        (path.narrow().is_none() && believed < path.asked()).then(|| (path.address.is_ipv4(), believed))
    };
    grouped(facts, key, |(ipv4, mtu), group| {
        let first = group.first.address;
        let what = format!("the kernel's route to {group} takes packets of {mtu} bytes, less than its link");
        Finding::warning("mtu-route", what, FULL_SIZE)
            .command(format!("ip {}route flush cache", if ipv4 { "" } else { "-6 " }))
            .hint(format!("that forgets what was learned of the path; a route's own mtu is shown by: ip route get {first}"))
    })
}

fn silent(facts: &Facts) -> Vec<Finding> {
    let key = |path: &PathFact| (path.reach == Some(Reach::Silent) && path.next_hop.is_ok()).then_some(());
    grouped(facts, key, |(), group| {
        let what = format!("{group} does not answer a ping, not even a small one");
        let why = "it is down, or it does not answer pings, and then a way too narrow is not found";
        Finding::warning("no-answer", what, why)
            .hint(format!("allow ICMP echo on the way; ping -M do -s 1400 {}", group.first.address))
    })
}

impl PathFact {
    /// The length that pings asked for: what is needed, where the link carries that.
    pub(crate) fn asked(&self) -> u32 {
        self.link.as_ref().map_or(self.needed(), |(_, mtu)| self.needed().min(*mtu))
    }

    /// The longest packet that pings found to arrive, where that is less than they asked for.
    fn narrow(&self) -> Option<u32> {
        match self.reach {
            Some(Reach::Longest(longest)) if longest < self.asked() => Some(longest),
            _ => None,
        }
    }
}

/// Paths with the same fault, at least one; shown as `backend b1 (198.18.1.1) and 3 more`.
struct Group<'a> {
    first: &'a PathFact,
    all: Vec<&'a PathFact>,
}

impl fmt::Display for Group<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let PathFact { noun, backend, address, .. } = self.first;
        write!(f, "{noun} {backend} ({address})")?;
        match self.all.len() - 1 {
            0 => Ok(()),
            more => write!(f, " and {more} more"),
        }
    }
}

/// A finding for all paths of one key; a path without a key has no such fault.
fn grouped<K: Ord>(
    facts: &Facts,
    key: impl Fn(&PathFact) -> Option<K>,
    finding: impl Fn(K, &Group<'_>) -> Finding,
) -> Vec<Finding> {
    let mut groups: BTreeMap<K, Group<'_>> = BTreeMap::new();
    for path in &facts.paths {
        if let Some(key) = key(path) {
            groups.entry(key).or_insert_with(|| Group { first: path, all: Vec::new() }).all.push(path);
        }
    }
    groups.into_iter().map(|(key, group)| finding(key, &group)).collect()
}

const FULL_SIZE: &str =
    "clients get packet-too-big errors, or their packets are fragmented, which costs time";
