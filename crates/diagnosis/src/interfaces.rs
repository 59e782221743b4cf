//! Findings about the XDP support, queues, RSS, reverse-path filter and forwarding of the
//! interfaces.
//!
//! Further findings about interfaces are in [`Interface::findings`], because the load balancer also
//! reports them at each start.
//!
//! References: Linux `Documentation/networking/ip-sysctl.rst`; `net/ipv4/fib_frontend.c`,
//! `net/ipv6/ip6_output.c`.

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
    Finding::error("interface", what, "the load balancer cannot receive packets on this interface")
        .hint("set machine.NAME.interfaces to an interface that `ip link` lists")
}

fn xdp(interface: &Interface, hardware: &Hardware) -> Option<Finding> {
    let Interface { name, driver, .. } = interface;
    let support = hardware.xdp;
    if support.native == Some(false) {
        let what = format!("driver {driver} of {name} has no native XDP");
        let why = "the XDP program runs in generic mode, after the kernel has allocated a packet buffer, which is much slower";
        return Some(
            Finding::warning("xdp-generic", what, why).hint("use a NIC whose driver has native XDP"),
        );
    }
    if support.native == Some(true) && support.redirect == Some(false) {
        let what = format!("driver {driver} of {name} supports XDP, but cannot redirect packets");
        let why = "packets cannot reach an AF_XDP socket";
        return Some(
            Finding::error("xdp-no-redirect", what, why).hint("install a newer kernel, or use another NIC"),
        );
    }
    (support.zero_copy == Some(false) && !VIRTUAL_DRIVERS.contains(&driver.as_str())).then(|| {
        let what = format!("driver {driver} of {name} has no zero-copy sockets");
        Finding::warning("no-zero-copy", what, "each packet is copied twice")
            .hint("install a newer kernel, or use a NIC whose driver supports zero-copy")
    })
}

fn merged_before_generic_xdp(interface: &Interface, hardware: &Hardware) -> Option<Finding> {
    let name = &interface.name;
    (hardware.gro && hardware.xdp.native == Some(false)).then(|| {
        let why = "the kernel merges packets before generic XDP, and merged packets are lost";
        Finding::error("coalescing", format!("{name} has GRO on, and its driver has no native XDP"), why)
            .command(format!("ethtool -K {name} gro off"))
    })
}

/// Reports queues that receive packets but have no socket. RSS distributes packets over the queues
/// in its indirection table. A device without such a table uses all active queues.
fn queue_without_socket(facts: &Facts, interface: &Interface, hardware: &Hardware) -> Option<Finding> {
    let sockets = facts.sockets_on(interface);
    let name = &interface.name;
    let all = || (0..interface.queues).collect();
    let used = hardware.rss_queues.clone().unwrap_or_else(all);
    let bare: std::collections::BTreeSet<u32> = used.into_iter().filter(|queue| *queue >= sockets).collect();
    (!bare.is_empty()).then(|| {
        let what = format!("{name} distributes packets to queues {}, which have no socket", ranges(&bare));
        let why =
            "packets for VIPs on these queues go to the kernel or are dropped, depending on io.no_socket";
        let command = match hardware.rss_queues {
            Some(_) => format!("ethtool -X {name} equal {sockets}"),
            None => format!("ethtool -L {name} {}", hardware.channels.arguments(sockets)),
        };
        Finding::error("queue-without-socket", what, why)
            .command(command)
            .hint("remove io.queues, so that each queue has a socket")
    })
}

/// Reports a reverse-path filter that drops replies to health checks. A strict filter drops a
/// packet if the route to the source address uses a different interface. A loose filter drops a
/// packet if there is no route to its source address. Replies to health checks through the tunnel
/// have the VIP as their source address.
fn rp_filter(facts: &Facts, nic: &Nic, interface: &Interface) -> Option<Finding> {
    let mode = nic.rp_filter?;
    let vips: Vec<&VipFact> = facts.vips.iter().filter(|vip| vip.address.is_ipv4()).collect();
    let astray = vips.iter().find(|vip| !vip.uses(interface.index));
    let nowhere = vips.iter().find(|vip| vip.leaves_by().is_none() && vip.route != Err(Unresolved::Local));
    let name = &interface.name;
    let finding = match (mode, astray, nowhere) {
        (STRICT, Some(vip), _) => {
            let what = format!(
                "rp_filter is strict on {name}, but the route of VIP {} uses another interface",
                vip.address
            );
            Finding::error("rp-filter", what, DROPPED_ANSWERS)
        }
        (LOOSE, _, Some(vip)) => {
            let what = format!("rp_filter is loose on {name}, but VIP {} has no route", vip.address);
            Finding::error("rp-filter", what, DROPPED_ANSWERS)
        }
        (STRICT, None, _) if !vips.is_empty() => {
            let why = "replies to health checks through the tunnel come from the VIP, and are dropped as soon as the route of \
                       the VIP uses another interface";
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

/// Reports that the kernel would forward packets for a VIP. Packets that XDP does not redirect, for
/// example during a restart, reach the kernel, which forwards them along its route to the VIP.
fn loop_of(facts: &Facts, interface: &Interface, ipv4: bool) -> Option<Finding> {
    let name = &interface.name;
    let mut routed =
        facts.vips.iter().filter(|vip| vip.address.is_ipv4() == ipv4 && vip.leaves_by().is_some());
    let back = routed.clone().find(|vip| vip.uses(interface.index));
    let vip = back.or_else(|| routed.next())?.address;
    // IPv6 forwarding applies to all interfaces.
    let (family, key) = if ipv4 {
        ("IPv4", format!("net/ipv4/conf/{name}/forwarding"))
    } else {
        ("IPv6", "net/ipv6/conf/all/forwarding".to_owned())
    };
    let what = format!("the kernel forwards {family} packets that arrive on {name}");
    let finding = if back.is_some() {
        let why = format!(
            "a packet for VIP {vip} that reaches the kernel, for example during a restart, is sent back to the router and \
             loops until its TTL expires"
        );
        Finding::error("forwarding-loop", what, why)
    } else {
        let why =
            format!("a packet for VIP {vip} that reaches the kernel is forwarded without load balancing");
        Finding::warning("forwarding-loop", what, why)
    };
    Some(finding.command(format!("sysctl -w {}", setting(&key, 0))))
}

/// Formats `key=value` for sysctl. The parts of the key are separated by dots, or by slashes if an
/// interface name contains a dot.
fn setting(key: &str, value: u8) -> String {
    let key = if key.contains('.') { key.to_owned() } else { key.replace('/', ".") };
    format!("{key}={value}")
}

impl VipFact {
    /// Returns `true` if the kernel route uses the interface with this index, for at least one hop.
    fn uses(&self, index: u32) -> bool {
        self.leaves_by() == Some(index) || self.several.contains(&index)
    }

    /// Returns the outgoing interface of the kernel route, even if the neighbor is unresolved.
    fn leaves_by(&self) -> Option<u32> {
        self.route.ok()
    }

    /// Returns the outgoing interface of a route, even if the neighbor or the link is unusable.
    pub(crate) fn route_of(found: Result<u32, Unresolved>) -> Result<u32, Unresolved> {
        match found {
            Err(
                Unresolved::NeighbourPending { interface, .. }
                | Unresolved::NeighbourFailed { interface, .. }
                | Unresolved::ChecksFail { interface, .. }
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
    "replies to health checks through the tunnel come from the VIP and are dropped, so backends appear down";
/// Drivers of virtual devices, which never support zero-copy.
const VIRTUAL_DRIVERS: [&str; 5] = ["veth", "tun", "bridge", "bonding", "team"];
