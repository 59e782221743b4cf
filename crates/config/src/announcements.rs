//! Checks the `announce` tables of all VIPs against machines, pools and BGP peers.
//!
//! The modules `bgp` and `announce` read the sections. `sessions` checks the peers, and
//! `announcement_checks` checks which routes can be sent to them.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use forwarder::Prefix;

use super::announce::AnnounceDraft;
use super::bgp::BgpDraft;
use super::pool::Pool;
use super::sections::{Sections, announced, known, machine_names, routes};
use super::vip::VipDraft;
use super::{announcement_checks, sessions};

/// Checks the announcements of all VIPs. `bgp` is `None` if there is no section `[bgp]`, and
/// `Some(None)` if the section is invalid.
pub(super) fn check(sections: &Sections<'_>, bgp: Option<Option<&BgpDraft>>, pools: &[Arc<Pool>]) {
    let machines = machine_names(sections);
    for (vip, announce) in announced(sections) {
        known(sections, &announce.backups, &machines, "machine");
        serving(sections, vip, announce, pools);
        aggregates(sections, vip, announce);
    }
    shared_routes(sections);
    let Some(bgp) = bgp else {
        for (_, announce) in announced(sections).take(1) {
            let message = "no BGP peer can receive this announcement";
            let help = "add a section [bgp] with peers, or remove announce";
            sections.report.warning(&announce.place, (message, help));
        }
        return;
    };
    let Some(bgp) = bgp else { return };
    sessions::check(sections, bgp);
    announcement_checks::check(sections, bgp);
    let names: BTreeSet<&str> = bgp.peers.iter().map(|draft| &*draft.peer.name).collect();
    // Unknown peer names are not reported if a peer could not be read, because its name may be
    // missing from the list of peers.
    for (_, announce) in announced(sections).filter(|_| bgp.is_whole) {
        known(sections, &announce.peers, &names, "peer");
    }
    if !sections.vips.iter().any(|vip| vip.is_announced) {
        let help = "add announce = {} to a VIP, or remove the section [bgp]";
        sections.report.warning(&bgp.place, ("no VIP is announced to these peers", help));
    }
}

/// Reports a `min_serving` that exceeds the number of backends in one of the VIP's pools, because
/// the VIP would never be announced.
fn serving(sections: &Sections<'_>, vip: &VipDraft, announce: &AnnounceDraft, pools: &[Arc<Pool>]) {
    let wanted = announce.min_serving.value as usize;
    for service in &vip.services {
        let at = pools.binary_search_by(|pool| pool.name.cmp(&service.pool.value));
        let Some(pool) = at.ok().and_then(|at| pools.get(at)) else { continue };
        let count = pool.members.len();
        if count < wanted {
            let message = format!(
                "VIP \"{}\" needs {wanted} serving backends, but pool \"{}\" has {count}",
                vip.name, pool.name
            );
            let help = format!("reduce the number to {count} or less, or add backends to the pool");
            sections.report.error(&announce.min_serving.place, (message, help));
            return;
        }
    }
}

fn aggregates(sections: &Sections<'_>, vip: &VipDraft, announce: &AnnounceDraft) {
    let group = vip.group.as_ref().and_then(|named| sections.groups.get(&named.value));
    let addresses: BTreeSet<IpAddr> = vip.addresses.iter().map(|at| at.value).collect();
    for aggregate in &announce.aggregates {
        let first = addresses.range(aggregate.value.address()..).next();
        let address = first.is_some_and(|address| aggregate.value.contains(*address));
        if !address && !group.is_some_and(|group| group.has_inside(&aggregate.value)) {
            let message =
                format!("aggregate {} contains no address of VIP \"{}\"", aggregate.value, vip.name);
            sections.report.error(&aggregate.place, message);
        }
    }
}

/// Reports VIPs that share a route but have different settings for it.
fn shared_routes(sections: &Sections<'_>) {
    let mut first: BTreeMap<Prefix, (&VipDraft, usize)> = BTreeMap::new();
    // Equal settings get the same number, so that the lists of names in the settings are compared
    // once per VIP and not once per route.
    let mut numbers = BTreeMap::new();
    for (vip, announce) in announced(sections) {
        let next = numbers.len();
        let number = *numbers.entry(announce.announce.of_routes()).or_insert(next);
        for prefix in routes(sections, vip, announce) {
            let (other, before) = first.entry(prefix).or_insert((vip, number));
            if *before != number {
                let message = format!("VIP \"{}\" announces {prefix} with different settings", other.name);
                let help = "VIPs that share a route need the same communities, med, local_pref, prepend, peers and backups";
                sections.report.error(&announce.place, (message, help));
                break;
            }
        }
    }
}
