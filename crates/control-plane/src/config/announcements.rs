//! `[bgp]` and the VIPs' `announce` against each other, and against machines and pools.
//!
//! In: the drafts. Out: problems, nothing else.
//! Not here: one section by itself (`bgp`, `announce`).

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use forwarder::Prefix;

use super::announce::AnnounceDraft;
use super::bgp::{BgpDraft, PeerDraft};
use super::consistency::Sections;
use super::machine::MachineDraft;
use super::near_miss::hint;
use super::pool::Pool;
use super::report::{At, Place};
use super::vip::VipDraft;

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
            sections.report.warning(&announce.place, "an announcement, and nobody to be told", allowed);
        }
        return;
    };
    let Some(bgp) = bgp else { return };
    peers(sections, bgp);
    let names: BTreeSet<&str> = bgp.peers.iter().map(|draft| &**draft.peer.name()).collect();
    for (_, announce) in announced(sections) {
        known(sections, &announce.peers, &names, "the name of a peer of [bgp], or its address");
    }
    if announced(sections).next().is_none() {
        let allowed = "announce = {} in a VIP, or no section [bgp]";
        sections.report.warning(&bgp.place, "peers, and no VIP that is announced to them", allowed);
    }
}

fn announced<'s>(sections: &'s Sections<'_>) -> impl Iterator<Item = (&'s VipDraft, &'s AnnounceDraft)> {
    sections.vips.iter().filter_map(|vip| Some((vip, vip.announce.as_ref()?)))
}

fn machine_names<'s>(sections: &'s Sections<'_>) -> BTreeSet<&'s str> {
    sections.machines.iter().map(|machine| &*machine.name).collect()
}

fn known(sections: &Sections<'_>, names: &[At<Arc<str>>], known: &BTreeSet<&str>, allowed: &str) {
    for name in names.iter().filter(|name| !known.contains(&*name.value)) {
        let hint = hint(&name.value, known.iter().copied());
        sections.report.absent(&name.place, format!("\"{}\"", name.value), format!("{allowed}{hint}"));
    }
}

fn peers(sections: &Sections<'_>, bgp: &BgpDraft) {
    let machines = machine_names(sections);
    for draft in &bgp.peers {
        known(sections, &draft.machines, &machines, "a section [machine.NAME]");
        if let Some(place) = draft.passive.as_ref().filter(|_| bgp.listen().is_empty()) {
            let found = "a peer that dials, and no address where we listen";
            sections.report.error(place, found, "false, or addresses in bgp.listen");
        }
    }
    for machine in sections.machines {
        one_machine(sections, bgp, machine);
    }
    identifiers(sections);
    listening(sections, bgp);
}

/// A machine's peers have different names and addresses, and it has an identifier for them.
fn one_machine(sections: &Sections<'_>, bgp: &BgpDraft, machine: &MachineDraft) {
    let of = || bgp.peers.iter().filter(|draft| draft.peer.is_of(&machine.name));
    let mut names: BTreeMap<&str, &PeerDraft> = BTreeMap::new();
    let mut addresses: BTreeMap<IpAddr, &PeerDraft> = BTreeMap::new();
    for draft in of() {
        if machine.addresses.iter().any(|own| own.value == draft.peer.address()) {
            let found = format!("{}, which is machine \"{}\" itself", draft.peer.address(), machine.name);
            sections.report.error(&draft.place, found, "a router's address, or machines without that one");
        }
        let twice = |what: String, first: &PeerDraft| {
            let found = format!(
                "{what} a second time for machine \"{}\", after {}",
                machine.name,
                sections.report.name(&first.place, &draft.place)
            );
            sections.report.error(
                &draft.place,
                found,
                "names and addresses that a machine's peers have once",
            );
        };
        if let Some(first) = addresses.insert(draft.peer.address(), draft) {
            twice(draft.peer.address().to_string(), first);
        } else if let Some(first) = names.insert(draft.peer.name(), draft) {
            twice(format!("\"{}\"", draft.peer.name()), first);
        }
    }
    let identified = machine.router_id.is_some() || machine.addresses.iter().any(|at| at.value.is_ipv4());
    if of().next().is_some() && !identified {
        let place =
            Place { offset: machine.place.offset, field: format!("{}.router_id", machine.place.field) };
        sections.report.absent(&place, "nothing", "a BGP identifier, as the machine has no IPv4 address");
    }
}

/// RFC 6286: within an AS each speaker has another.
fn identifiers(sections: &Sections<'_>) {
    let mut first: BTreeMap<Ipv4Addr, &MachineDraft> = BTreeMap::new();
    for machine in sections.machines {
        let own = machine.addresses.iter().find_map(|own| match own.value {
            IpAddr::V4(own) => Some(own),
            IpAddr::V6(_) => None,
        });
        let Some(id) = machine.router_id.or(own) else { continue };
        if let Some(other) = first.insert(id, machine) {
            let place =
                Place { offset: machine.place.offset, field: format!("{}.router_id", machine.place.field) };
            let found = format!("{id}, as machine \"{}\" has", other.name);
            sections.report.error(&place, found, "a BGP identifier that no other machine has");
        }
    }
}

fn listening(sections: &Sections<'_>, bgp: &BgpDraft) {
    let Some(place) = &bgp.listen_place else { return };
    let mut seen = BTreeSet::new();
    for address in bgp.listen() {
        if !seen.insert(address) {
            sections.report.error(place, format!("{address} a second time"), "each address and port once");
        }
    }
}

/// A mark that no pool can reach would keep the VIP away for ever.
fn serving(sections: &Sections<'_>, vip: &VipDraft, announce: &AnnounceDraft, pools: &[Arc<Pool>]) {
    let wanted = announce.min_serving.value as usize;
    for service in &vip.services {
        let at = pools.binary_search_by(|pool| pool.name().cmp(&service.pool.value));
        let Some(pool) = at.ok().and_then(|at| pools.get(at)) else { continue };
        let backends: BTreeSet<&Arc<str>> =
            pool.members().iter().map(|member| member.backend().name()).collect();
        if backends.len() < wanted {
            let found = format!("{wanted}, but pool \"{}\" has {} backends", pool.name(), backends.len());
            sections.report.error(&announce.min_serving.place, found, format!("1 to {}", backends.len()));
            return;
        }
    }
}

fn aggregates(sections: &Sections<'_>, vip: &VipDraft, announce: &AnnounceDraft) {
    let group = vip.group.as_ref().and_then(|named| sections.groups.get(&named.value));
    let prefixes: Vec<Prefix> =
        group.into_iter().flat_map(|group| &group.prefixes).map(|at| at.value).collect();
    for aggregate in &announce.aggregates {
        let address = vip.addresses.iter().any(|at| aggregate.value.contains(at.value));
        let prefix = prefixes.iter().any(|inner| aggregate.value.covers(inner));
        if !address && !prefix {
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
            let (other, told) = first.entry(prefix).or_insert((vip, announce));
            if !told.announce.agrees(&announce.announce) {
                let found = format!("{prefix} announced otherwise than by VIP \"{}\"", other.name);
                let allowed = "the same communities, med, local_pref, prepend, peers and anchors for a route that VIPs share";
                sections.report.error(&announce.place, found, allowed);
                break;
            }
        }
    }
}

fn routes(sections: &Sections<'_>, vip: &VipDraft, announce: &AnnounceDraft) -> BTreeSet<Prefix> {
    let group = vip.group.as_ref().and_then(|named| sections.groups.get(&named.value));
    let prefixes: Vec<Prefix> =
        group.into_iter().flat_map(|group| &group.prefixes).map(|at| at.value).collect();
    let addresses: Vec<IpAddr> = vip.addresses.iter().map(|at| at.value).collect();
    super::vip::routes(&addresses, &prefixes, announce.announce.aggregates())
}
