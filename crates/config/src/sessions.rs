//! Checks BGP peers against the machines: names, local addresses, listen addresses and next hops.
//!
//! Settings that can never work cause an error. Settings that are probably unintended cause a
//! warning. The module `announcement_checks` checks whether the peers can carry the routes of VIPs.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use ::bgp::Family;
use config_text::At;

use super::bgp::{BgpDraft, PeerDraft};
use super::machine::MachineDraft;
use super::sections::{Sections, known, machine_names};
use super::vip::VipDraft;

/// Checks all peers.
pub(super) fn check(sections: &Sections<'_>, bgp: &BgpDraft) {
    let machines = machine_names(sections);
    for draft in &bgp.peers {
        known(sections, &draft.machines, &machines, "machine");
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

/// Rejects a peer address that belongs to a VIP. Packets to a VIP are forwarded to its backends, so
/// no BGP session is possible.
fn vip(sections: &Sections<'_>, draft: &PeerDraft) {
    let address = draft.peer.address;
    let has = |vip: &&VipDraft| vip.addresses.iter().any(|own| own.value == address);
    if let Some(vip) = sections.vips.iter().find(has) {
        let message = format!("peer address {address} is an address of VIP \"{}\"", vip.name);
        sections.report.error(&draft.place, (message, "use the address of the router"));
    }
}

/// Rejects a source address that does not belong to the connecting machine.
fn source(sections: &Sections<'_>, draft: &PeerDraft) {
    let Some(At { value: source, place }) = &draft.addressing.source else { return };
    let Some(owner) = owner(sections, *source) else {
        let message = format!("source address {source} belongs to no machine");
        let help = "use an address of the machine that connects, or remove source";
        sections.report.warning(place, (message, help));
        return;
    };
    let mut others = sections.machines.iter().filter(|other| other.name != owner.name);
    if let Some(other) = others.find(|other| draft.peer.is_of(&other.name)) {
        let message = format!(
            "source address {source} belongs to machine \"{}\", but machine \"{}\" also has this peer",
            owner.name, other.name
        );
        let help = format!(
            "set machines = [\"{}\"] and add a peer for each other machine, or remove source",
            owner.name
        );
        sections.report.error(place, (message, help));
    }
}

/// Warns about next-hop keys that have no effect.
fn next_hops(sections: &Sections<'_>, draft: &PeerDraft) {
    let (peer, report) = (&draft.peer, sections.report);
    let has = |family| peer.families.contains(&family);
    // `extended_next_hop` has an effect only in IPv6 sessions without an explicit IPv4 next hop.
    let by_v6 =
        peer.next_hops.extended && has(Family::Ipv4) && peer.next_hops.v4.is_none() && peer.address.is_ipv6();
    if let Some(at) = draft.addressing.next_hop4.as_ref().filter(|_| !has(Family::Ipv4)) {
        let message = "next_hop4 has no effect, because families does not contain \"ipv4\"";
        report.warning(&at.place, (message, "add \"ipv4\" to families, or remove next_hop4"));
    }
    if let Some(at) = draft.addressing.next_hop6.as_ref().filter(|_| !has(Family::Ipv6) && !by_v6) {
        let message = "next_hop6 has no effect, because families does not contain \"ipv6\"";
        report.warning(&at.place, (message, "add \"ipv6\" to families, or remove next_hop6"));
    }
    let Some(place) = draft.addressing.extended_next_hop.as_ref().filter(|_| !by_v6) else { return };
    let why = match (has(Family::Ipv4), peer.next_hops.v4) {
        (false, _) => "families does not contain \"ipv4\"",
        (true, Some(_)) => "next_hop4 has precedence",
        (true, None) => "in an IPv4 session the local address is the next hop",
    };
    let message = format!("extended_next_hop has no effect, because {why}");
    let help = "use it for peers with an IPv6 address and without next_hop4; next_hop6 sets the next hop";
    report.warning(place, (message, help));
}

/// Rejects a passive peer if one of its machines has no listen address.
fn passive(sections: &Sections<'_>, bgp: &BgpDraft, draft: &PeerDraft) {
    let Some(place) = &draft.passive else { return };
    if bgp.listen.is_empty() {
        let message = "a passive peer needs addresses in bgp.listen";
        sections.report.error(place, (message, "add bgp.listen, or remove passive"));
        return;
    }
    let like = |at: SocketAddr| at.is_ipv4() == draft.peer.address.is_ipv4();
    let listens = |machine: &MachineDraft, at: SocketAddr| {
        like(at) && owner(sections, at.ip()).is_none_or(|owner| owner.name == machine.name)
    };
    let of_it = sections.machines.iter().filter(|machine| draft.peer.is_of(&machine.name));
    let silent = of_it.into_iter().find(|machine| !bgp.listen.iter().any(|at| listens(machine, at.value)));
    if let Some(machine) = silent {
        let family = if draft.peer.address.is_ipv4() { "IPv4" } else { "IPv6" };
        let message =
            format!("machine \"{}\" has no {family} listen address for this passive peer", machine.name);
        let help = format!("add an {family} address of the machine to bgp.listen, or remove passive");
        sections.report.error(place, (message, help));
    }
}

/// Checks that the peers of a machine have distinct names and addresses, and that the machine has a
/// BGP identifier.
fn one_machine(sections: &Sections<'_>, bgp: &BgpDraft, machine: &MachineDraft) {
    let of = || bgp.peers.iter().filter(|draft| draft.peer.is_of(&machine.name));
    let mut names: BTreeMap<&str, &PeerDraft> = BTreeMap::new();
    let mut addresses: BTreeMap<IpAddr, &PeerDraft> = BTreeMap::new();
    for draft in of() {
        if machine.addresses.iter().any(|own| own.value == draft.peer.address) {
            let message =
                format!("peer address {} belongs to machine \"{}\" itself", draft.peer.address, machine.name);
            let help = "use the address of the router, or list other machines in machines";
            sections.report.error(&draft.place, (message, help));
        }
        let twice = |what: String, first: &PeerDraft| {
            let message = format!("machine \"{}\" has two peers with {what}", machine.name);
            let first = sections.report.name(&first.place, &draft.place);
            sections.report.error(&draft.place, (message, format!("the first peer is {first}")));
        };
        if let Some(first) = addresses.insert(draft.peer.address, draft) {
            twice(format!("the address {}", draft.peer.address), first);
        } else if let Some(first) = names.insert(&draft.peer.name, draft) {
            twice(format!("the name \"{}\"", draft.peer.name), first);
        }
    }
    let identified = machine.router_id.is_some() || machine.addresses.iter().any(|at| at.value.is_ipv4());
    if of().next().is_some() && !identified {
        let place = machine.place.key("router_id");
        let message = format!("{} needs a \"router_id\" key", machine.place.field.table());
        let help = "a machine without an IPv4 address has no default BGP identifier";
        sections.report.absent(&place, (message, help));
    }
}

/// Rejects duplicate BGP identifiers, because an identifier must be unique within an AS (RFC 6286).
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
            let message =
                format!("machines \"{}\" and \"{}\" have the BGP identifier {id}", other.name, machine.name);
            sections.report.error(&place, (message, "set router_id on one machine"));
        }
    }
}

/// Reports listen addresses that occur twice or belong to no machine.
fn listening(sections: &Sections<'_>, bgp: &BgpDraft) {
    let mut seen = BTreeSet::new();
    for At { value: at, place } in &bgp.listen {
        if !seen.insert(at) {
            sections.report.error(place, format!("listen address {at} is used twice"));
        } else if !at.ip().is_unspecified() && owner(sections, at.ip()).is_none() {
            let any = if at.is_ipv4() { "0.0.0.0" } else { "::" };
            let message = format!("listen address {at} belongs to no machine, so each machine would use it");
            let help = format!("use an address of a section [machine.NAME], or {any}");
            sections.report.warning(place, (message, help));
        }
    }
}
