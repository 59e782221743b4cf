//! What VIPs announce against the peers that receive it: families and attributes that reach no peer.
//!
//! In: the drafts. Out: problems, nothing else. A VIP of which no route can ever be said is an error, one of which some can a
//! warning.
//! Source: RFC 4760 (a route has a next hop of some family), RFC 8950; RFC 4271 §5.1.5 (LOCAL_PREF stays within an AS).

use std::collections::BTreeSet;

use ::bgp::Family;
use forwarder::Prefix;

use super::announce::AnnounceDraft;
use super::bgp::{BgpDraft, BgpPeer, PeerDraft};
use super::machine::MachineDraft;
use super::sections::{Sections, announced, routes};
use super::vip::VipDraft;

/// Checks all of them.
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
        let (found, allowed) = not_carried(family, route, &whose);
        if reaches_none {
            sections.report.error(&announce.place, found, allowed);
        } else {
            sections.report.warning(&announce.place, found, allowed);
        }
    }
}

/// What to say of a family's routes, such as `route`, that no peer carries, or none `whose` words follow.
fn not_carried(family: Family, route: &Prefix, whose: &str) -> (String, String) {
    let (name, key, hop) = match family {
        Family::Ipv4 => ("IPv4", "ipv4", "next_hop4"),
        Family::Ipv6 => ("IPv6", "ipv6", "next_hop6"),
    };
    let found = format!("{name} routes such as {route}, and no peer{whose} among its receivers carries them");
    let allowed = format!(
        "a peer with \"{key}\" in its families and an {name} next hop: a session by {name}, or {hop}"
    );
    (found, allowed)
}

fn receivers<'b>(bgp: &'b BgpDraft, announce: &AnnounceDraft, machine: &MachineDraft) -> Vec<&'b BgpPeer> {
    let receives = |peer: &&BgpPeer| peer.is_of(&machine.name) && announce.announce.is_for(&peer.name);
    bgp.peers.iter().map(|draft| &draft.peer).filter(receives).collect()
}

fn is_of(route: &Prefix, family: Family) -> bool {
    route.address().is_ipv4() == (family == Family::Ipv4)
}

/// Whether routes of a family can be said to a peer: it takes them, and there is a next hop.
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
        let found = format!(
            "a local_pref, and no peer among its receivers is of our AS {}: it reaches none",
            bgp.asn()
        );
        sections.report.warning(
            place,
            found,
            "a peer of our own AS, med or prepend for others, or no local_pref",
        );
    }
}
