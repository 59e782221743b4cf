//! Findings about VIPs and about paths to backends: local VIPs, next hops, multipath routes, MTU,
//! and pings with full-size packets. Paths with the same problem share one finding.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::IpAddr;

use datapath::interface::Finding;
use next_hop::{Hop, Unresolved};

use crate::facts::{Facts, Nic, OwnAddress, PathFact, Reach, VipFact, host_prefix};

pub(crate) fn findings(facts: &Facts) -> Vec<Finding> {
    let mut found: Vec<Finding> = facts.vips.iter().filter_map(local_vip).collect();
    found.extend(facts.vips.iter().filter_map(|vip| vip_in_subnet(facts, vip)));
    found.extend(facts.absent_addresses.iter().map(|address| absent_address(facts, *address)));
    found.extend(facts.unasked.iter().map(|why| unasked(why)));
    found.extend(unresolved(facts));
    found.extend(elsewhere(facts));
    found.extend(skipped_hops(facts));
    found.extend(multipath_settings(facts));
    found.extend(behind_a_router(facts));
    found.extend(link_mtu(facts));
    found.extend(path_mtu(facts));
    found.extend(learned_mtu(facts));
    found.extend(silent(facts));
    found
}

fn local_vip(vip: &VipFact) -> Option<Finding> {
    let VipFact { name, address, route, local, .. } = vip;
    let why = "the kernel resets connections to the VIP while the load balancer is not running, and drops replies to health \
               checks through the tunnel";
    if let Some(OwnAddress { address: own, prefix_length, interface }) = local {
        let what =
            format!("VIP {name} {address} is a local address, because {interface} has {own}/{prefix_length}");
        let command = format!("ip address del {own}/{prefix_length} dev {interface}");
        return Some(Finding::error("local-vip", what, why).command(command));
    }
    (*route == Err(Unresolved::Local)).then(|| {
        let what = format!("VIP {name} {address} is local because of a route");
        Finding::error("local-vip", what, why).hint(format!(
            "delete the local route that covers it, see `ip route show table local` and `ip route get {address}`"
        ))
    })
}

/// Reports a VIP in a subnet of this machine. Other hosts of the subnet look for the VIP by ARP or
/// neighbor discovery, to which the load balancer does not reply. A router with a BGP route to the
/// VIP does not look for the VIP on the link.
fn vip_in_subnet(facts: &Facts, vip: &VipFact) -> Option<Finding> {
    if vip.local.is_some() {
        return None; // a separate finding reports a local VIP, which must be fixed first
    }
    let OwnAddress { address: own, prefix_length, interface } = vip.subnet.as_ref()?;
    let VipFact { name, address, .. } = vip;
    let protocol = if address.is_ipv4() { "ARP" } else { "neighbor discovery" };
    let what =
        format!("VIP {name} {address} is in the subnet of {interface}, which has {own}/{prefix_length}");
    let why = format!("no host replies to {protocol} for the VIP, so hosts of this subnet cannot reach it");
    let finding = match facts.routers {
        Some(_) => Finding::warning("vip-in-subnet", what, why),
        None => Finding::error("vip-in-subnet", what, why),
    };
    let hint = "use a VIP outside all subnets, and route it to this machine by BGP or by a static route";
    Some(finding.hint(hint))
}

fn absent_address(facts: &Facts, address: IpAddr) -> Finding {
    let what = format!("no local interface has the machine address {address}");
    let why = "the address is the source of outer headers, so ICMP errors do not arrive, and health checks cannot use the address";
    let finding = Finding::warning("own-address", what, why);
    match facts.address_command(address) {
        Some(command) => finding.command(command),
        None => finding.hint("remove the address from machine.NAME.addresses, or add it to an interface"),
    }
}

fn unasked(why: &str) -> Finding {
    let what = format!("backends were not pinged with full-size packets: {why}");
    Finding::warning("not-pinged", what, "paths with a small MTU are not detected")
        .command("sysctl -w net.ipv4.ping_group_range=\"0 2147483647\"")
        .hint("run doctor as root")
}

fn unresolved(facts: &Facts) -> Vec<Finding> {
    let key = |path: &PathFact| path.next_hop.err().map(|why| why.to_string());
    grouped(facts, key, |words, group| {
        let what = format!("cannot send to {group}: {words}");
        let finding = Finding::error("no-next-hop", what, "packets for these backends are dropped");
        let first = group.first.address;
        match group.first.next_hop {
            Err(Unresolved::LinkDown { .. }) => match group.all.iter().find_map(|path| path.link.as_ref()) {
                Some((link, _)) => finding.command(format!("ip link set dev {link} up")),
                None => finding.hint("find the interface that is down with `ip link`"),
            },
            Err(
                Unresolved::NeighbourFailed { neighbour, .. }
                | Unresolved::NeighbourPending { neighbour, .. },
            ) => finding
                .hint(format!("check why {neighbour} does not respond, see `ip neigh show {neighbour}`")),
            Err(Unresolved::NoRoute) => finding.hint(format!("add a route, see `ip route get {first}`")),
            _ => finding.hint(format!("change the route to another host, see `ip route get {first}`")),
        }
    })
}

/// Reports routes that use no interface of the load balancer.
fn elsewhere(facts: &Facts) -> Vec<Finding> {
    let ours: Vec<&str> = facts.usable().map(|(interface, _)| interface.name.as_str()).collect();
    if ours.is_empty() {
        return Vec::new();
    }
    let ours = ours.join(", ");
    let key = |path: &PathFact| {
        // Frames to a VLAN device leave through its parent interface.
        path.next_hop.ok().filter(|hop| !facts.sends_on(hop.leaves_by))?;
        let serves = |hop: &Hop| hop.found.is_ok_and(|hop| facts.sends_on(hop.leaves_by));
        (!path.several.iter().any(serves)).then_some(())?;
        Some(path.link.as_ref().map_or_else(|| "another interface".to_owned(), |(link, _)| link.clone()))
    };
    grouped(facts, key, |link, group| {
        let what = format!("the route of {group} uses {link}, but the load balancer sends on {ours}");
        let why = "the load balancer has no socket on this interface, and drops packets for these backends";
        let first = host_prefix(group.first.address);
        Finding::error("other-interface", what, why).hint(format!(
            "add {link} to machine.NAME.interfaces, or route {first} to a gateway on {ours} with `ip route replace`"
        ))
    })
}

/// Reports hops of multipath routes that are not used, while another hop of the route is used.
fn skipped_hops(facts: &Facts) -> Vec<Finding> {
    let why = |hop: &Hop| match hop.found {
        Ok(way) if facts.sends_on(way.leaves_by) => None,
        Ok(way) => Some(Unresolved::OtherInterface { interface: way.leaves_by }),
        Err(why) => Some(why),
    };
    let mut skipped: Vec<_> = facts
        .paths
        .iter()
        .flat_map(|path| &path.several)
        .filter_map(|hop| Some((hop.neighbour, why(hop)?)))
        .collect();
    skipped.sort_unstable_by_key(|(neighbour, _)| *neighbour);
    skipped.dedup_by_key(|(neighbour, _)| *neighbour);
    let of = |(neighbour, why): (_, Unresolved)| {
        let key = |path: &PathFact| {
            let is_used = |hop: &Hop| hop.found.is_ok_and(|way| facts.sends_on(way.leaves_by));
            let has_it = path.several.iter().any(|hop| hop.neighbour == neighbour);
            (has_it && path.several.iter().any(is_used)).then_some(path.several.len())
        };
        grouped(facts, key, |count, group| {
            let what = format!("one of {count} next hops of {group} is not used: {why}");
            let finding = Finding::warning("next-hop-down", what, "the other next hops carry its flows");
            let (_, address) = neighbour;
            finding
                .hint(format!("check the link and the neighbor, see `ip neigh show {address}` and `ip link`"))
        })
    };
    skipped.into_iter().flat_map(of).collect()
}

/// Reports kernel settings that keep failed next hops in use, or that hide the hops of nexthop
/// objects. Packets to backends are not affected, because the load balancer chooses their next
/// hops.
fn multipath_settings(facts: &Facts) -> Vec<Finding> {
    let mut found = Vec::new();
    if facts.host.reports_nexthop_objects == Some(false) {
        let what = "net.ipv4.nexthop_compat_mode is 0, so the kernel does not report the next hops of nexthop objects";
        let why = "the load balancer uses only one next hop of a route with nexthop objects";
        let finding = Finding::warning("nexthop-objects", what.to_owned(), why);
        found.push(finding.command("sysctl -w net.ipv4.nexthop_compat_mode=1"));
    }
    for (place, family) in ["IPv4", "IPv6"].into_iter().enumerate() {
        let of_family = facts.paths.iter().filter(|path| path.address.is_ipv4() == (place == 0));
        let hops: BTreeSet<u32> =
            of_family.flat_map(|path| &path.several).map(|hop| hop.neighbour.0).collect();
        let keeps = |nic: &&Nic| {
            let is_hop = nic.found.as_ref().is_ok_and(|(interface, _)| hops.contains(&interface.index));
            is_hop && nic.skips_linkdown[place] == Some(false)
        };
        let names: Vec<&str> = facts.interfaces.iter().filter(keeps).map(|nic| nic.name.as_str()).collect();
        if !names.is_empty() {
            let what = format!(
                "the kernel keeps {family} next hops on {} when the link has no carrier",
                names.join(", ")
            );
            let why = "packets of the kernel, such as BGP sessions and API responses, are lost on a link that is down";
            let folder = family.to_lowercase();
            let set = |name: &&str| format!("net.{folder}.conf.{name}.ignore_routes_with_linkdown=1");
            let settings: Vec<String> = names.iter().map(set).collect();
            let finding = Finding::warning("linkdown-routes", what, why);
            found.push(finding.command(format!("sysctl -w {}", settings.join(" "))));
        }
    }
    found
}

fn behind_a_router(facts: &Facts) -> Vec<Finding> {
    let key = |path: &PathFact| {
        let is_lost = path.kind == "l2" && !path.is_readdressed;
        path.next_hop.ok().filter(|hop| is_lost && hop.gateway.is_some()).map(|_| ())
    };
    grouped(facts, key, |(), group| {
        let what = format!("packets to {group} have no outer header (l2), but pass a router");
        let why = "the router forwards packets by their VIP address, and sends them back to a load balancer";
        Finding::error("l2-routed", what, why)
            .hint("use gre, ipip or gue for this pool, or connect the backend to the same link")
    })
}

fn link_mtu(facts: &Facts) -> Vec<Finding> {
    let key = |path: &PathFact| path.link.clone().filter(|(_, mtu)| *mtu < path.needed());
    grouped(facts, key, |(link, mtu), group| {
        let needed = group.all.iter().map(|path| path.needed()).max().unwrap_or(mtu);
        let clients = group.first.clients;
        let what = format!(
            "the MTU of {link} is {mtu} bytes, but packets to {group} need {needed} bytes ({clients} for a client packet, the rest for outer headers)"
        );
        Finding::warning("mtu-link", what, FULL_SIZE)
            .command(format!("ip link set dev {link} mtu {needed}"))
            .hint("configure backends to announce a smaller MSS")
    })
}

/// Reports paths for which a ping found an MTU below the MTU of the local link.
fn path_mtu(facts: &Facts) -> Vec<Finding> {
    let key = |path: &PathFact| path.narrow().map(|longest| (longest, path.asked()));
    grouped(facts, key, |(longest, asked), group| {
        let what =
            format!("packets larger than {longest} bytes do not reach {group}, but {asked} bytes are needed");
        let first = group.first.address;
        Finding::error("mtu-path", what, "full-size packets from clients are lost on the path").hint(format!(
            "raise the MTU on the path to {asked} bytes, `tracepath -n {first}` shows where it is smaller"
        ))
    })
}

/// Reports paths for which the kernel has learned an MTU below the MTU of the link, unless
/// [`path_mtu`] has already reported them.
fn learned_mtu(facts: &Facts) -> Vec<Finding> {
    let key = |path: &PathFact| {
        let believed = path.next_hop.ok()?.mtu_bytes;
        (path.narrow().is_none() && believed < path.asked()).then(|| (path.address.is_ipv4(), believed))
    };
    grouped(facts, key, |(ipv4, mtu), group| {
        let first = group.first.address;
        let what = format!("the kernel route to {group} has an MTU of {mtu} bytes, less than its link");
        Finding::warning("mtu-route", what, FULL_SIZE)
            .command(format!("ip {}route flush cache", if ipv4 { "" } else { "-6 " }))
            .hint(format!("change the mtu of the route itself, see `ip route get {first}`"))
    })
}

fn silent(facts: &Facts) -> Vec<Finding> {
    let key = |path: &PathFact| (path.reach == Some(Reach::Silent) && path.next_hop.is_ok()).then_some(());
    grouped(facts, key, |(), group| {
        let what = format!("no answer to pings from {group}");
        let why = "the backend is down, or it ignores pings, so that a small MTU on the path is not detected";
        Finding::warning("no-answer", what, why).hint(format!(
            "allow ICMP echo on the path, and test with `ping -M do -s 1400 {}`",
            group.first.address
        ))
    })
}

impl PathFact {
    /// Returns the size of the ping packets: the size of the largest client packet after
    /// encapsulation, limited by the MTU of the local link.
    pub(crate) fn asked(&self) -> u32 {
        self.link.as_ref().map_or(self.needed(), |(_, mtu)| self.needed().min(*mtu))
    }

    /// Returns the size of the largest answered ping if it is less than the requested size.
    fn narrow(&self) -> Option<u32> {
        match self.reach {
            Some(Reach::Longest(longest)) if longest < self.asked() => Some(longest),
            _ => None,
        }
    }
}

/// Paths with the same problem, which are formatted as `backend b1 (198.18.1.1) and 3 more`.
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

/// Groups the paths by a key, and returns one finding per group. `key` returns `None` for paths
/// without the problem.
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
    "clients receive packet-too-big errors, or their packets are fragmented, which is slower";
