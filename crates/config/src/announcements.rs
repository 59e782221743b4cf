//! The VIPs' `announce` against machines and pools, and names that it refers to.
//!
//! In: the drafts. Out: problems, nothing else.
//! Not here: one section by itself (`bgp`, `announce`), peers (`sessions`), what reaches them (`announcement_checks`).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use config_text::At;
use forwarder::Prefix;

use super::announce::AnnounceDraft;
use super::bgp::BgpDraft;
use super::pool::Pool;
use super::sections::{Sections, announced, known, machine_names, routes};
use super::vip::VipDraft;
use super::{announcement_checks, sessions};

/// Checks everything that has to do with announcements.
/// `bgp`: `None` without the section, `Some(None)` when it is wrong.
pub(super) fn check(sections: &Sections<'_>, bgp: Option<Option<&BgpDraft>>, pools: &[Arc<Pool>]) {
    for (vip, announce) in announced(sections) {
        known(sections, &announce.anchors, &machine_names(sections), "a section [machine.NAME]");
        serving(sections, vip, announce, pools);
        aggregates(sections, vip, announce);
    }
    shared_routes(sections);
    let Some(bgp) = bgp else {
        for (_, announce) in announced(sections).take(1) {
            let allowed = "a section [bgp] with peers, or no announce";
            sections.report.warning(&announce.place, "an announcement, and no peer to receive it", allowed);
        }
        return;
    };
    let Some(bgp) = bgp else { return };
    sessions::check(sections, bgp);
    announcement_checks::check(sections, bgp);
    let names: BTreeSet<&str> = bgp.peers.iter().map(|draft| &*draft.peer.name).collect();
    // A peer with a fault, which was reported, has a name all the same.
    for (_, announce) in announced(sections).filter(|_| bgp.is_whole) {
        known(sections, &announce.peers, &names, "the name of a peer of [bgp], or its address without one");
    }
    if !sections.vips.iter().any(|vip| vip.is_announced) {
        let allowed = "announce = {} in a VIP, or no section [bgp]";
        sections.report.warning(&bgp.place, "peers, and no VIP that is announced to them", allowed);
    }
}

/// A mark that no pool can reach would keep the VIP away for ever.
fn serving(sections: &Sections<'_>, vip: &VipDraft, announce: &AnnounceDraft, pools: &[Arc<Pool>]) {
    let wanted = announce.min_serving.value as usize;
    for service in &vip.services {
        let at = pools.binary_search_by(|pool| pool.name.cmp(&service.pool.value));
        let Some(pool) = at.ok().and_then(|at| pools.get(at)) else { continue };
        let backends: BTreeSet<&Arc<str>> = pool.members.iter().map(|member| &member.backend.name).collect();
        if backends.len() < wanted {
            let found = format!("{wanted}, but pool \"{}\" has {} backends", pool.name, backends.len());
            sections.report.error(&announce.min_serving.place, found, format!("1 to {}", backends.len()));
            return;
        }
    }
}

fn aggregates(sections: &Sections<'_>, vip: &VipDraft, announce: &AnnounceDraft) {
    let group = vip.group.as_ref().and_then(|named| sections.groups.get(&named.value));
    for aggregate in &announce.aggregates {
        let address = vip.addresses.iter().any(|at| aggregate.value.contains(at.value));
        let covers = |inner: &At<Prefix>| aggregate.value.covers(&inner.value);
        if !address && !group.is_some_and(|group| group.prefixes.iter().any(covers)) {
            let found = format!("{}, in which the VIP has no address", aggregate.value);
            sections.report.error(
                &aggregate.place,
                found,
                "a prefix that holds an address, or a prefix of its group",
            );
        }
    }
}

/// A route of several VIPs is one route: it can't say two things.
fn shared_routes(sections: &Sections<'_>) {
    let mut first: BTreeMap<Prefix, (&VipDraft, &AnnounceDraft)> = BTreeMap::new();
    for (vip, announce) in announced(sections) {
        for prefix in routes(sections, vip, announce) {
            let (other, before) = first.entry(prefix).or_insert((vip, announce));
            if !before.announce.agrees(&announce.announce) {
                let found = format!("{prefix} announced otherwise than by VIP \"{}\"", other.name);
                let allowed = "the same communities, med, local_pref, prepend, peers and anchors for a route that VIPs share";
                sections.report.error(&announce.place, found, allowed);
                break;
            }
        }
    }
}
