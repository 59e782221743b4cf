//! Checks that the BGP peers of a VIP support the address families and attributes of its routes.
//!
//! If no route of a VIP can be sent to any peer, an error is reported. If only some of its routes
//! can be sent, a warning is reported.
//!
//! References: RFC 4760 (next hop of a route), RFC 8950 (IPv4 routes with IPv6 next hops), RFC 4271
//! §5.1.5 (LOCAL_PREF is sent to internal peers only).

use std::collections::BTreeSet;

use ::bgp::Family;
use forwarder::Prefix;

use super::announce::AnnounceDraft;
use super::bgp::{BgpDraft, BgpPeer, PeerDraft};
use super::machine::MachineDraft;
use super::sections::{Sections, announced, routes};
use super::vip::VipDraft;

/// Checks the announcements of all VIPs.
pub(super) fn check(sections: &Sections<'_>, bgp: &BgpDraft) {
    for (vip, announce) in announced(sections) {
        families(sections, bgp, vip, announce);
        local_pref(sections, bgp, announce);
    }
}

fn families(sections: &Sections<'_>, bgp: &BgpDraft, vip: &VipDraft, announce: &AnnounceDraft) {
    let machines: Vec<(&MachineDraft, Vec<&BgpPeer>)> = sections
        .machines_of(vip.shard())
        .map(|machine| (machine, receivers(bgp, announce, machine)))
        .filter(|(_, peers)| !peers.is_empty())
        .collect();
    if machines.is_empty() {
        return;
    }
    let all = routes(sections, vip, announce);
    let first = |family| all.iter().find(|route| is_of(route, family));
    let wanted: Vec<(Family, &Prefix)> =
        Family::ALL.iter().filter_map(|family| Some((*family, first(*family)?))).collect();
    let carries = |peers: &[&BgpPeer], family| peers.iter().any(|peer| carries(peer, family));
    let reaches = |family| machines.iter().any(|(_, peers)| carries(peers, family));
    let reaches_none = !wanted.iter().any(|(family, _)| reaches(*family));
    for (family, route) in wanted {
        let Some((machine, _)) = machines.iter().find(|(_, peers)| !carries(peers, family)) else { continue };
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
    let help = format!(
        "a peer needs \"{key}\" in families and an {name} next hop; use an {name} session, or set {hop}"
    );
    (message, help)
}

fn receivers<'b>(bgp: &'b BgpDraft, announce: &AnnounceDraft, machine: &MachineDraft) -> Vec<&'b BgpPeer> {
    let receives = |peer: &&BgpPeer| peer.is_of(&machine.name) && announce.announce.is_for(&peer.name);
    bgp.peers.iter().map(|draft| &draft.peer).filter(receives).collect()
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

fn local_pref(sections: &Sections<'_>, bgp: &BgpDraft, announce: &AnnounceDraft) {
    let Some(place) = &announce.local_pref else { return };
    let receives = |draft: &&PeerDraft| announce.announce.is_for(&draft.peer.name);
    let asns: BTreeSet<u32> = bgp.peers.iter().filter(receives).map(|draft| draft.peer.asn).collect();
    if !asns.is_empty() && !asns.contains(&bgp.asn()) {
        let message = format!("local_pref has no effect, because no peer of this VIP is in AS {}", bgp.asn());
        sections.report.warning(place, (message, "use med or prepend for external peers"));
    }
}
