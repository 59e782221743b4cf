//! Judgements of the interfaces: XDP, queues and RSS, reverse-path filter, forwarding.
//!
//! In: [`Facts`]. Out: [`Finding`]s. Not here: what [`Interface::findings`] says by itself and every start repeats.
//! Invariant: functions of the facts alone.
//! Source: Linux `Documentation/networking/ip-sysctl.rst`; `net/ipv4/fib_frontend.c`, `net/ipv6/ip6_output.c`.

use datapath::interface::{Finding, Hardware, Interface};
use next_hop::Unresolved;

use crate::facts::{Facts, Nic, VipFact};
use crate::machine::ranges;

pub(crate) fn findings(facts: &Facts) -> Vec<Finding> {
    let mut found = Vec::new();
    for nic in &facts.interfaces {
        match &nic.found {
            Ok((interface, hardware)) => {
                if !facts.has_packet_sockets {
                    found.extend(xdp(interface, hardware));
                    found.extend(merged_before_generic_xdp(interface, hardware));
                    found.extend(queue_without_socket(facts, interface, hardware));
                }
                found.extend(rp_filter(facts, nic, interface));
                found.extend(forwarding(facts, nic, interface));
            }
            Err(why) => found.push(unreadable(nic, why)),
        }
    }
    found
}

fn unreadable(nic: &Nic, why: &str) -> Finding {
    let what = format!("interface {} cannot be used: {why}", nic.name);
    Finding::error("interface", what, "packets for VIPs are to arrive on it")
        .hint("name in machine.NAME.interfaces one that `ip link` lists")
}

fn xdp(interface: &Interface, hardware: &Hardware) -> Option<Finding> {
    let Interface { name, driver, .. } = interface;
    let support = hardware.xdp;
    if support.native == Some(false) {
        let what = format!("the driver of {name}, {driver}, has no XDP of its own");
        let why = "the program runs in generic mode, after the kernel has made a packet buffer: much slower";
        return Some(
            Finding::warning("xdp-generic", what, why).hint("use a NIC whose driver has native XDP"),
        );
    }
    if support.native == Some(true) && support.redirect == Some(false) {
        let what = format!("the driver of {name}, {driver}, runs XDP but hands no packets on from it");
        let why = "no packet reaches an AF_XDP socket";
        return Some(
            Finding::error("xdp-no-redirect", what, why).hint("install a newer kernel, or use another NIC"),
        );
    }
    (support.zero_copy == Some(false) && !VIRTUAL_DRIVERS.contains(&driver.as_str())).then(|| {
        let what = format!("the driver of {name}, {driver}, has no zero-copy sockets");
        Finding::warning("no-zero-copy", what, "each packet is copied twice")
            .hint("install a newer kernel, or use a NIC whose driver has them")
    })
}

fn merged_before_generic_xdp(interface: &Interface, hardware: &Hardware) -> Option<Finding> {
    let name = &interface.name;
    (hardware.gro && hardware.xdp.native == Some(false)).then(|| {
        let why = "it merges packets before XDP's generic mode sees them, and merged ones are lost";
        Finding::error("coalescing", format!("{name} has GRO on, and its driver has no XDP of its own"), why)
            .command(format!("ethtool -K {name} gro off"))
    })
}

/// RSS spreads over a table of queues; a device without one spreads over all that are on.
fn queue_without_socket(facts: &Facts, interface: &Interface, hardware: &Hardware) -> Option<Finding> {
    let sockets = facts.sockets_on(interface);
    let name = &interface.name;
    let all = || (0..interface.queues).collect();
    let used = hardware.rss_queues.clone().unwrap_or_else(all);
    let bare: std::collections::BTreeSet<u32> = used.into_iter().filter(|queue| *queue >= sockets).collect();
    (!bare.is_empty()).then(|| {
        let what = format!("{name} spreads packets to queues {}, which get no socket", ranges(&bare));
        let why = "packets for VIPs on them go to the kernel or are dropped, as io.no_socket says";
        let command = match hardware.rss_queues {
            Some(_) => format!("ethtool -X {name} equal {sockets}"),
            None => format!("ethtool -L {name} {}", hardware.channels.arguments(sockets)),
        };
        Finding::error("queue-without-socket", what, why)
            .command(command)
            .hint("leave io.queues out: then each queue gets a socket")
    })
}

/// The kernel drops a packet whose source it would not send to by the same interface (strict), or by any (loose).
/// Checks through the tunnel are answered from the VIP.
fn rp_filter(facts: &Facts, nic: &Nic, interface: &Interface) -> Option<Finding> {
    let mode = nic.rp_filter?;
    let vips: Vec<&VipFact> = facts.vips.iter().filter(|vip| vip.address.is_ipv4()).collect();
    let astray = vips.iter().find(|vip| vip.leaves_by() != Some(interface.index));
    let nowhere = vips.iter().find(|vip| vip.leaves_by().is_none() && vip.route != Err(Unresolved::Local));
    let name = &interface.name;
    let finding = match (mode, astray, nowhere) {
        (STRICT, Some(vip), _) => {
            let what =
                format!("rp_filter is strict on {name}, and VIP {} is not routed out of it", vip.address);
            Finding::error("rp-filter", what, DROPPED_ANSWERS)
        }
        (LOOSE, _, Some(vip)) => {
            let what = format!("rp_filter is loose on {name}, and VIP {} has no route", vip.address);
            Finding::error("rp-filter", what, DROPPED_ANSWERS)
        }
        (STRICT, None, _) if !vips.is_empty() => {
            let why = "what comes back another way than it went is dropped: answers to checks through the tunnel, whose \
                       source is the VIP, live only as long as the route to the VIP leaves by this interface";
            Finding::warning("rp-filter", format!("rp_filter is strict on {name}"), why)
        }
        _ => return None,
    };
    let loose = setting(&format!("net/ipv4/conf/{name}/rp_filter"), LOOSE);
    let off = format!(
        "{} {}",
        setting("net/ipv4/conf/all/rp_filter", 0),
        setting(&format!("net/ipv4/conf/{name}/rp_filter"), 0)
    );
    Some(finding.command(format!("sysctl -w {}", if nowhere.is_some() { off } else { loose })))
}

fn forwarding(facts: &Facts, nic: &Nic, interface: &Interface) -> Vec<Finding> {
    let v4 = nic.forwards_v4.then(|| loop_of(facts, interface, true)).flatten();
    let v6 = nic.forwards_v6.then(|| loop_of(facts, interface, false)).flatten();
    v4.into_iter().chain(v6).collect()
}

/// What XDP does not take, as during a restart, is the kernel's, which sends it where its route leads.
fn loop_of(facts: &Facts, interface: &Interface, ipv4: bool) -> Option<Finding> {
    let name = &interface.name;
    let mut routed =
        facts.vips.iter().filter(|vip| vip.address.is_ipv4() == ipv4 && vip.leaves_by().is_some());
    let back = routed.clone().find(|vip| vip.leaves_by() == Some(interface.index));
    let vip = back.or_else(|| routed.next())?.address;
    // IPv6 forwards on all interfaces or on none.
    let (family, key) = if ipv4 {
        ("IPv4", format!("net/ipv4/conf/{name}/forwarding"))
    } else {
        ("IPv6", "net/ipv6/conf/all/forwarding".to_owned())
    };
    let what = format!("the kernel forwards {family} that arrives on {name}");
    let finding = if back.is_some() {
        let why = format!(
            "a packet for VIP {vip} that XDP does not take, as during a restart, goes back to the router, and round until \
             its TTL ends"
        );
        Finding::error("forwarding-loop", what, why)
    } else {
        let why = format!("a packet for VIP {vip} that XDP does not take is sent on past the balancer");
        Finding::warning("forwarding-loop", what, why)
    };
    Some(finding.command(format!("sysctl -w {}", setting(&key, 0))))
}

/// `key=value` for sysctl, in dots unless an interface's name has one.
fn setting(key: &str, value: u8) -> String {
    let key = if key.contains('.') { key.to_owned() } else { key.replace('/', ".") };
    format!("{key}={value}")
}

impl VipFact {
    /// The interface that the kernel sends it to, whether or not the neighbour there is known.
    fn leaves_by(&self) -> Option<u32> {
        self.route.ok()
    }

    /// From what the resolver says: an unresolved neighbour is a route all the same.
    pub(crate) fn route_of(found: Result<u32, Unresolved>) -> Result<u32, Unresolved> {
        match found {
            Err(
                Unresolved::NeighbourPending { interface, .. }
                | Unresolved::NeighbourFailed { interface, .. }
                | Unresolved::LinkDown { interface }
                | Unresolved::TooManyTags { interface }
                | Unresolved::OtherInterface { interface }
                | Unresolved::NoMac { interface },
            ) => Ok(interface),
            other => other,
        }
    }
}

const STRICT: u8 = 1;
const LOOSE: u8 = 2;
const DROPPED_ANSWERS: &str =
    "answers to checks through the tunnel, whose source is the VIP, are dropped, and its backends look down";
/// Drivers that never have zero-copy.
const VIRTUAL_DRIVERS: [&str; 5] = ["veth", "tun", "bridge", "bonding", "team"];
