//! Judgements of VIPs and of the ways to backends: local VIPs, next hops, MTU, reachability with full-size packets.
//!
//! In: [`Facts`]. Out: [`Finding`]s, one for all backends with the same fault.
//! Invariant: functions of the facts alone.

use std::collections::BTreeMap;
use std::net::IpAddr;

use control_plane::next_hop::Unresolved;
use datapath::interface::Finding;

use super::facts::{Facts, OwnAddress, Reach, VipFact, Way};
use super::interfaces::host_prefix;

/// All of them.
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
    match facts.nic() {
        Some(nic) => finding.command(format!("ip address add {} dev {}", host_prefix(address), nic.name)),
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
    let mut groups: BTreeMap<String, (Vec<&Way>, Unresolved)> = BTreeMap::new();
    for way in &facts.ways {
        if let Err(why) = way.next_hop {
            groups.entry(why.to_string()).or_insert_with(|| (Vec::new(), why)).0.push(way);
        }
    }
    let finding = |(words, (ways, why)): (String, (Vec<&Way>, Unresolved))| {
        let what = format!("no way to {}: {words}", named(&ways));
        let finding = Finding::error("no-next-hop", what, "packets for these backends are dropped");
        let first = ways.first().map_or_else(String::new, |way| way.address.to_string());
        match why {
            Unresolved::LinkDown { .. } => match ways.iter().find_map(|way| way.link.as_ref()) {
                Some((link, _)) => finding.command(format!("ip link set dev {link} up")),
                None => finding.hint("ip link shows which interface is down"),
            },
            Unresolved::NeighbourFailed { neighbour, .. }
            | Unresolved::NeighbourPending { neighbour, .. } => {
                finding.hint(format!("see to {neighbour}, which does not answer; ip neigh show {neighbour}"))
            }
            Unresolved::NoRoute => {
                finding.hint(format!("give it a route; ip route get {first} shows what it has"))
            }
            _ => finding
                .hint(format!("give it a route to another host; ip route get {first} shows what it has")),
        }
    };
    groups.into_iter().map(finding).collect()
}

/// Frames leave by the interface whose socket took the packet in.
fn elsewhere(facts: &Facts) -> Vec<Finding> {
    let Some(nic) = facts.nic() else { return Vec::new() };
    // By a VLAN device on it, frames leave by the interface.
    let is_elsewhere = |way: &&Way| way.next_hop.is_ok_and(|hop| hop.leaves_by != nic.index);
    let by_link = group(facts.ways.iter().filter(is_elsewhere), |way| {
        way.link.as_ref().map_or_else(|| "another interface".to_owned(), |(link, _)| link.clone())
    });
    let finding = |(link, ways): (String, Vec<&Way>)| {
        let what =
            format!("{} is routed out of {link}, and the balancer sends out of {}", named(&ways), nic.name);
        let why = "frames are addressed to a neighbour that is not on that link, and are lost";
        let first = ways.first().map_or_else(String::new, |way| host_prefix(way.address));
        Finding::error("other-interface", what, why)
            .hint(format!("route {first} and its like by a gateway on {}: ip route replace", nic.name))
    };
    by_link.into_iter().map(finding).collect()
}

fn behind_a_router(facts: &Facts) -> Option<Finding> {
    let routed = |way: &&Way| way.kind == "l2" && way.next_hop.is_ok_and(|hop| hop.gateway.is_some());
    let ways: Vec<&Way> = facts.ways.iter().filter(routed).collect();
    (!ways.is_empty()).then(|| {
        let what = format!("{} is behind a router, and its packets have no outer header (l2)", named(&ways));
        let why = "the router sees the VIP alone, and sends the packet back to a balancer";
        Finding::error("l2-routed", what, why).hint("use gre, ipip or gue for this pool, or join the link")
    })
}

fn link_mtu(facts: &Facts) -> Vec<Finding> {
    let tight = |way: &&Way| way.link.as_ref().is_some_and(|(_, mtu)| *mtu < way.needed());
    let by_link = group(facts.ways.iter().filter(tight), |way| way.link.clone().unwrap_or_default());
    let finding = |((link, mtu), ways): ((String, u32), Vec<&Way>)| {
        let needed = ways.iter().map(|way| way.needed()).max().unwrap_or(mtu);
        let clients = ways.first().map_or(0, |way| way.clients);
        let what = format!(
            "{link} carries packets of {mtu} bytes, and {} needs {needed}: {clients} of a client and the outer header",
            named(&ways)
        );
        Finding::warning("mtu-link", what, FULL_SIZE)
            .command(format!("ip link set dev {link} mtu {needed}"))
            .hint("have backends announce a smaller MSS")
    };
    by_link.into_iter().map(finding).collect()
}

/// Pinged and found too narrow, where this machine's own link is not what limits it.
fn path_mtu(facts: &Facts) -> Vec<Finding> {
    let narrow = |way: &&Way| matches!(way.reach, Some(Reach::Longest(longest)) if longest < way.asked());
    let by_length = group(facts.ways.iter().filter(narrow), |way| (way.longest(), way.asked()));
    let finding = |((longest, asked), ways): ((u32, u32), Vec<&Way>)| {
        let what = format!(
            "packets of more than {longest} bytes do not reach {}, of {asked} that it needs",
            named(&ways)
        );
        let first = ways.first().map_or_else(String::new, |way| way.address.to_string());
        Finding::error("mtu-path", what, "clients' full-size packets are lost on the way").hint(format!(
            "raise the MTU of the routers' and the backend's links to {asked}; tracepath -n {first} shows where it shrinks"
        ))
    };
    by_length.into_iter().map(finding).collect()
}

/// The kernel believes less of the path than the link has, and no ping says that it is right.
fn learned_mtu(facts: &Facts) -> Vec<Finding> {
    let believed = |way: &&Way| {
        let is_measured = matches!(way.reach, Some(Reach::Longest(longest)) if longest < way.asked());
        !is_measured && way.next_hop.is_ok_and(|hop| hop.mtu_bytes < way.asked())
    };
    let by_mtu = group(facts.ways.iter().filter(believed), |way| {
        (way.address.is_ipv4(), way.next_hop.map_or(0, |hop| hop.mtu_bytes))
    });
    let finding = |((ipv4, mtu), ways): ((bool, u32), Vec<&Way>)| {
        let first = ways.first().map_or_else(String::new, |way| way.address.to_string());
        let what = format!(
            "the kernel's route to {} takes packets of {mtu} bytes, less than its link",
            named(&ways)
        );
        Finding::warning("mtu-route", what, FULL_SIZE)
            .command(format!("ip {}route flush cache", if ipv4 { "" } else { "-6 " }))
            .hint(format!("that forgets what was learned of the path; a route's own mtu is shown by: ip route get {first}"))
    };
    by_mtu.into_iter().map(finding).collect()
}

fn silent(facts: &Facts) -> Option<Finding> {
    let is_silent = |way: &&Way| way.reach == Some(Reach::Silent) && way.next_hop.is_ok();
    let ways: Vec<&Way> = facts.ways.iter().filter(is_silent).collect();
    (!ways.is_empty()).then(|| {
        let what = format!("{} does not answer a ping, not even a small one", named(&ways));
        let why = "it is down, or it does not answer pings, and then a way too narrow is not found";
        let first = ways.first().map_or_else(String::new, |way| way.address.to_string());
        Finding::warning("no-answer", what, why)
            .hint(format!("allow ICMP echo on the way; ping -M do -s 1400 {first}"))
    })
}

impl Way {
    /// What pings asked for: what is needed, where the link carries that.
    pub(crate) fn asked(&self) -> u32 {
        self.link.as_ref().map_or(self.needed(), |(_, mtu)| self.needed().min(*mtu))
    }

    fn longest(&self) -> u32 {
        match self.reach {
            Some(Reach::Longest(longest)) => longest,
            _ => 0,
        }
    }
}

fn group<'a, K: Ord>(
    ways: impl Iterator<Item = &'a Way>,
    key: impl Fn(&Way) -> K,
) -> BTreeMap<K, Vec<&'a Way>> {
    let mut groups: BTreeMap<K, Vec<&Way>> = BTreeMap::new();
    ways.for_each(|way| groups.entry(key(way)).or_default().push(way));
    groups
}

/// `backend b1 (198.18.1.1) and 3 more`.
fn named(ways: &[&Way]) -> String {
    let first = ways
        .first()
        .map_or_else(String::new, |way| format!("{} {} ({})", way.noun, way.backend, way.address));
    match ways.len() {
        0 | 1 => first,
        count => format!("{first} and {} more", count - 1),
    }
}

const FULL_SIZE: &str = "clients are told to send smaller packets, or theirs are cut, which costs time";
