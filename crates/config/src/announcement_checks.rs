//! Checks that the BGP peers of a VIP support the address families and attributes of its routes.
//!
//! If no route of a VIP can be sent to any peer, an error is reported. If only some of its routes
//! can be sent, a warning is reported.
//!
//! References: RFC 4760 (next hop of a route), RFC 8950 (IPv4 routes with IPv6 next hops), RFC 4271
//! §5.1.5 (LOCAL_PREF is sent to internal peers only).

use std::collections::BTreeMap;
use std::sync::Arc;

use ::bgp::Family;
use forwarder::Prefix;

use super::announce::AnnounceDraft;
use super::bgp::{BgpDraft, BgpPeer, PeerDraft};
use super::sections::{Sections, announced, routes};
use super::vip::VipDraft;

/// Checks the announcements of all VIPs.
pub(super) fn check(sections: &Sections<'_>, bgp: &BgpDraft) {
    let receivers = Receivers::new(sections, bgp);
    for (vip, announce) in announced(sections) {
        let peers = receivers.of(&announce.announce.peers);
        families(sections, &peers, vip, announce);
        local_pref(sections, bgp, &peers, announce);
    }
}

/// The kinds of routes that a set of peers can carry. Machines are identified by their numbers.
#[derive(Clone, Default)]
struct Carried {
    /// The peers that all machines have.
    everywhere: Flags,
    machines: BTreeMap<usize, Flags>,
    has_internal: bool,
    has_external: bool,
}

/// The properties of one machine's peers.
#[derive(Clone, Copy, Default)]
struct Flags {
    has_peer: bool,
    /// Two flags: whether any peer can carry IPv4 routes, and whether any peer can carry IPv6
    /// routes.
    families: [bool; 2],
}

impl Flags {
    fn of(peer: &BgpPeer) -> Self {
        Self { has_peer: true, families: Family::ALL.map(|family| carries(peer, family)) }
    }

    fn or(self, other: Self) -> Self {
        let [(a4, b4), (a6, b6)] = [0, 1].map(|at| (self.families[at], other.families[at]));
        Self { has_peer: self.has_peer | other.has_peer, families: [a4 | b4, a6 | b6] }
    }

    fn carry(self, family: Family) -> bool {
        Family::ALL.into_iter().zip(self.families).any(|(own, carries)| own == family && carries)
    }
}

impl Carried {
    fn add(&mut self, other: &Self) {
        self.everywhere = self.everywhere.or(other.everywhere);
        self.has_internal |= other.has_internal;
        self.has_external |= other.has_external;
        for (machine, flags) in &other.machines {
            let own = self.machines.entry(*machine).or_default();
            *own = own.or(*flags);
        }
    }
}

/// The peers by their names.
struct Receivers<'b> {
    by_name: BTreeMap<&'b str, Carried>,
    all: Carried,
}

impl<'b> Receivers<'b> {
    fn new(sections: &Sections<'_>, bgp: &'b BgpDraft) -> Self {
        let (mut by_name, mut all) = (BTreeMap::<&str, Carried>::new(), Carried::default());
        for PeerDraft { peer, machines, .. } in &bgp.peers {
            let (flags, is_internal) = (Flags::of(peer), peer.asn == bgp.asn());
            let listed = machines.iter().filter_map(|name| sections.machine_named(&name.value));
            let one = Carried {
                everywhere: if machines.is_empty() { flags } else { Flags::default() },
                machines: listed.map(|machine| (machine, flags)).collect(),
                has_internal: is_internal,
                has_external: !is_internal,
            };
            by_name.entry(&peer.name).or_default().add(&one);
            all.add(&one);
        }
        Self { by_name, all }
    }

    /// Returns the properties of the peers with these names, or of all peers if `names` is empty.
    fn of(&self, names: &[Arc<str>]) -> Carried {
        if names.is_empty() {
            return self.all.clone();
        }
        let mut found = Carried::default();
        names.iter().filter_map(|name| self.by_name.get(&**name)).for_each(|peers| found.add(peers));
        found
    }
}

fn families(sections: &Sections<'_>, peers: &Carried, vip: &VipDraft, announce: &AnnounceDraft) {
    let of = |number| peers.everywhere.or(peers.machines.get(&number).copied().unwrap_or_default());
    let numbered = sections.machines.iter().enumerate();
    let served =
        numbered.filter(|(_, machine)| vip.shard().is_none() || machine.shard.as_ref() == vip.shard());
    let machines: Vec<_> =
        served.map(|(number, machine)| (machine, of(number))).filter(|(_, flags)| flags.has_peer).collect();
    if machines.is_empty() {
        return;
    }
    let all = routes(sections, vip, announce);
    let first = |family| all.iter().find(|route| is_of(route, family));
    let wanted: Vec<(Family, &Prefix)> =
        Family::ALL.iter().filter_map(|family| Some((*family, first(*family)?))).collect();
    let reaches = |family| machines.iter().any(|(_, flags)| flags.carry(family));
    let reaches_none = !wanted.iter().any(|(family, _)| reaches(*family));
    for (family, route) in wanted {
        let Some((machine, _)) = machines.iter().find(|(_, flags)| !flags.carry(family)) else { continue };
        let whose = if reaches(family) { format!(" of machine \"{}\"", machine.name) } else { String::new() };
        let message = not_carried(vip, family, route, &whose);
        if reaches_none {
            sections.report.error(&announce.place, message);
        } else {
            sections.report.warning(&announce.place, message);
        }
    }
}

/// Returns the message and the help text for a route that no peer can carry. `whose` is empty, or
/// restricts the message to the peers of one machine.
fn not_carried(vip: &VipDraft, family: Family, route: &Prefix, whose: &str) -> (String, String) {
    let (name, key, hop) = match family {
        Family::Ipv4 => ("IPv4", "ipv4", "next_hop4"),
        Family::Ipv6 => ("IPv6", "ipv6", "next_hop6"),
    };
    let message = format!("no BGP peer{whose} can carry the {name} route {route} of VIP \"{}\"", vip.name);
    let help =
        format!("add \"{key}\" to the families of a peer; a peer without an {name} session also needs {hop}");
    (message, help)
}

fn is_of(route: &Prefix, family: Family) -> bool {
    route.address().is_ipv4() == (family == Family::Ipv4)
}

/// Returns `true` if routes of an address family can be sent to a peer. The family must be enabled,
/// and there must be a next hop.
fn carries(peer: &BgpPeer, family: Family) -> bool {
    let has_v6 = peer.next_hops.v6.is_some() || peer.address.is_ipv6();
    let has_hop = match family {
        Family::Ipv4 => {
            peer.next_hops.v4.is_some() || peer.address.is_ipv4() || (peer.next_hops.extended && has_v6)
        }
        Family::Ipv6 => has_v6,
    };
    peer.families.contains(&family) && has_hop
}

fn local_pref(sections: &Sections<'_>, bgp: &BgpDraft, peers: &Carried, announce: &AnnounceDraft) {
    let Some(place) = &announce.local_pref else { return };
    if peers.has_external && !peers.has_internal {
        let message = format!("local_pref has no effect, because no peer of this VIP is in AS {}", bgp.asn());
        sections.report.warning(place, (message, "use med or prepend for external peers"));
    }
}
