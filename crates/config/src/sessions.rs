//! The peers of `[bgp]` against machines: which has them, where it connects from and listens, which next hops are of use.
//!
//! In: the drafts. Out: problems, nothing else. What can never work is an error, what probably is not meant a warning.
//! Not here: what VIPs want of peers (`announcement_checks`).

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use ::bgp::Family;
use config_text::At;

use super::bgp::{BgpDraft, PeerDraft};
use super::machine::MachineDraft;
use super::sections::{Sections, known, machine_names};
use super::vip::VipDraft;

/// Checks all of them.
pub(super) fn check(sections: &Sections<'_>, bgp: &BgpDraft) {
    let machines = machine_names(sections);
    for draft in &bgp.peers {
        known(sections, &draft.machines, &machines, "a section [machine.NAME]");
        vip(sections, draft);
        source(sections, draft);
        next_hops(sections, draft);
        passive(sections, bgp, draft);
    }
    for machine in &sections.machines {
        one_machine(sections, bgp, machine);
    }
    identifiers(sections);
    listening(sections, bgp);
}

fn owner<'s>(sections: &'s Sections<'_>, address: IpAddr) -> Option<&'s MachineDraft> {
    let has = |machine: &&MachineDraft| machine.addresses.iter().any(|own| own.value == address);
    sections.machines.iter().find(has)
}

/// What goes to a VIP goes to its backends.
fn vip(sections: &Sections<'_>, draft: &PeerDraft) {
    let address = draft.peer.address;
    let has = |vip: &&VipDraft| vip.addresses.iter().any(|own| own.value == address);
    if let Some(vip) = sections.vips.iter().find(has) {
        let found = format!("{address}, which is an address of VIP \"{}\"", vip.name);
        sections.report.error(&draft.place, found, "a router's address");
    }
}

/// A machine connects from an address of its own alone.
fn source(sections: &Sections<'_>, draft: &PeerDraft) {
    let Some(At { value: source, place }) = &draft.addressing.source else { return };
    let Some(owner) = owner(sections, *source) else {
        let found = format!("{source}, which is the address of no machine");
        sections.report.warning(place, found, "an address of the machine that dials, or no source");
        return;
    };
    let mut others = sections.machines.iter().filter(|other| other.name != owner.name);
    if let Some(other) = others.find(|other| draft.peer.is_of(&other.name)) {
        let found = format!(
            "{source}, the address of machine \"{}\", for machine \"{}\" too",
            owner.name, other.name
        );
        let allowed =
            format!("machines = [\"{}\"] and a peer for each other machine, or no source", owner.name);
        sections.report.error(place, found, allowed);
    }
}

/// Keys of next hops that never act.
fn next_hops(sections: &Sections<'_>, draft: &PeerDraft) {
    let (peer, report) = (&draft.peer, sections.report);
    let has = |family| peer.families.contains(&family);
    // An IPv4 next hop goes first, and in a session by IPv4 our own address is one.
    let by_v6 =
        peer.next_hops.extended && has(Family::Ipv4) && peer.next_hops.v4.is_none() && peer.address.is_ipv6();
    if let Some(at) = draft.addressing.next_hop4.as_ref().filter(|_| !has(Family::Ipv4)) {
        let found = "a next hop of IPv4 routes, and families without ipv4";
        report.warning(&at.place, found, "\"ipv4\" in families, or no next_hop4");
    }
    if let Some(at) = draft.addressing.next_hop6.as_ref().filter(|_| !has(Family::Ipv6) && !by_v6) {
        let found = "a next hop of IPv6 routes, and families without ipv6";
        report.warning(&at.place, found, "\"ipv6\" in families, or no next_hop6");
    }
    let Some(place) = draft.addressing.extended_next_hop.as_ref().filter(|_| !by_v6) else { return };
    let found = match (has(Family::Ipv4), peer.next_hops.v4) {
        (false, _) => "true, and families without ipv4: it never acts".to_owned(),
        (true, Some(hop)) => format!("true, and next_hop4 = \"{hop}\", which goes first: it never acts"),
        (true, None) => {
            "true in a session by IPv4, where our own address goes first: it never acts".to_owned()
        }
    };
    let allowed = "true for a peer with an IPv6 address and without next_hop4 (next_hop6 then says which next hop), or false";
    report.warning(place, found, allowed);
}

/// A peer that connects needs an address where the machine listens.
fn passive(sections: &Sections<'_>, bgp: &BgpDraft, draft: &PeerDraft) {
    let Some(place) = &draft.passive else { return };
    if bgp.listen.is_empty() {
        let found = "a peer that dials, and no address where we listen";
        sections.report.error(place, found, "false, or addresses in bgp.listen");
        return;
    }
    let like = |at: SocketAddr| at.is_ipv4() == draft.peer.address.is_ipv4();
    let hears = |machine: &MachineDraft, at: SocketAddr| {
        like(at) && owner(sections, at.ip()).is_none_or(|owner| owner.name == machine.name)
    };
    let of_it = sections.machines.iter().filter(|machine| draft.peer.is_of(&machine.name));
    let deaf = of_it.into_iter().find(|machine| !bgp.listen.iter().any(|at| hears(machine, at.value)));
    if let Some(machine) = deaf {
        let family = if draft.peer.address.is_ipv4() { "IPv4" } else { "IPv6" };
        let found = format!(
            "a peer that dials by {family}, and machine \"{}\" listens at no such address",
            machine.name
        );
        let allowed = format!("false, or an {family} address of the machine in bgp.listen");
        sections.report.error(place, found, allowed);
    }
}

/// A machine's peers have different names and addresses, and it has an identifier for them.
fn one_machine(sections: &Sections<'_>, bgp: &BgpDraft, machine: &MachineDraft) {
    let of = || bgp.peers.iter().filter(|draft| draft.peer.is_of(&machine.name));
    let mut names: BTreeMap<&str, &PeerDraft> = BTreeMap::new();
    let mut addresses: BTreeMap<IpAddr, &PeerDraft> = BTreeMap::new();
    for draft in of() {
        if machine.addresses.iter().any(|own| own.value == draft.peer.address) {
            let found = format!("{}, which is machine \"{}\" itself", draft.peer.address, machine.name);
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
        if let Some(first) = addresses.insert(draft.peer.address, draft) {
            twice(draft.peer.address.to_string(), first);
        } else if let Some(first) = names.insert(&draft.peer.name, draft) {
            twice(format!("\"{}\"", draft.peer.name), first);
        }
    }
    let identified = machine.router_id.is_some() || machine.addresses.iter().any(|at| at.value.is_ipv4());
    if of().next().is_some() && !identified {
        let place = machine.place.key("router_id");
        sections.report.absent(&place, "nothing", "a BGP identifier, as the machine has no IPv4 address");
    }
}

/// RFC 6286: within an AS each speaker has another.
fn identifiers(sections: &Sections<'_>) {
    let mut first: BTreeMap<Ipv4Addr, &MachineDraft> = BTreeMap::new();
    for machine in &sections.machines {
        let own = machine.addresses.iter().find_map(|own| match own.value {
            IpAddr::V4(own) => Some(own),
            IpAddr::V6(_) => None,
        });
        let Some(id) = machine.router_id.or(own) else { continue };
        if let Some(other) = first.insert(id, machine) {
            let place = machine.place.key("router_id");
            let found = format!("{id}, as machine \"{}\" has", other.name);
            sections.report.error(&place, found, "a BGP identifier that no other machine has");
        }
    }
}

/// Each address once, and each of some machine.
fn listening(sections: &Sections<'_>, bgp: &BgpDraft) {
    let mut seen = BTreeSet::new();
    for At { value: at, place } in &bgp.listen {
        if !seen.insert(at) {
            sections.report.error(place, format!("{at} a second time"), "each address and port once");
        } else if !at.ip().is_unspecified() && owner(sections, at.ip()).is_none() {
            let found = format!("{at}, an address of no machine: each machine would listen there");
            let any = if at.is_ipv4() { "0.0.0.0" } else { "::" };
            sections.report.warning(
                place,
                found,
                format!("an address of a section [machine.NAME], or {any}"),
            );
        }
    }
}
