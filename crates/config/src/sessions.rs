//! Checks BGP peers against the machines: names, local addresses, listen addresses and next hops.
//!
//! Settings that can never work cause an error. Settings that are probably unintended cause a
//! warning. The module `announcement_checks` checks whether the peers can carry the routes of VIPs.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr};

use ::bgp::Family;
use config_text::At;

use super::bgp::{BgpDraft, PeerDraft};
use super::machine::MachineDraft;
use super::sections::{Sections, known, machine_names};

/// Checks all peers.
pub(super) fn check(sections: &Sections<'_>, bgp: &BgpDraft) {
    let machines = machine_names(sections);
    let listening = Listening::new(sections, bgp);
    for draft in &bgp.peers {
        known(sections, &draft.machines, &machines, "machine");
        vip(sections, draft);
        source(sections, draft);
        next_hops(sections, draft);
        passive(sections, bgp, draft, &listening);
    }
    peers_of_machines(sections, bgp);
    identifiers(sections);
    unowned(sections, bgp);
}

fn owner<'s>(sections: &'s Sections<'_>, address: IpAddr) -> Option<&'s MachineDraft> {
    sections.machines.get(sections.machine_at(address)?)
}

/// Returns the numbers of the machines that a peer lists, in ascending order.
fn listed(sections: &Sections<'_>, draft: &PeerDraft) -> BTreeSet<usize> {
    draft.machines.iter().filter_map(|name| sections.machine_named(&name.value)).collect()
}

/// Rejects a peer address that belongs to a VIP. Packets to a VIP are forwarded to its backends, so
/// no BGP session is possible.
fn vip(sections: &Sections<'_>, draft: &PeerDraft) {
    let address = draft.peer.address;
    if let Some(vip) = sections.vip_at(address) {
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
    let all = if draft.machines.is_empty() { 0..sections.machines.len() } else { 0..0 };
    let mut machines = all.chain(listed(sections, draft)).filter_map(|number| sections.machines.get(number));
    if let Some(other) = machines.find(|other| other.name != owner.name) {
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
fn passive(sections: &Sections<'_>, bgp: &BgpDraft, draft: &PeerDraft, listening: &Listening) {
    let Some(place) = &draft.passive else { return };
    if bgp.listen.is_empty() {
        let message = "a passive peer needs addresses in bgp.listen";
        sections.report.error(place, (message, "add bgp.listen, or remove passive"));
        return;
    }
    let silent = listening.silent(sections, draft);
    if let Some(machine) = silent {
        let family = if draft.peer.address.is_ipv4() { "IPv4" } else { "IPv6" };
        let message =
            format!("machine \"{}\" has no {family} listen address for this passive peer", machine.name);
        let help = format!("add an {family} address of the machine to bgp.listen, or remove passive");
        sections.report.error(place, (message, help));
    }
}

/// The machines that listen for passive peers, for IPv6 and for IPv4.
struct Listening([Ears; 2]);

#[derive(Default)]
struct Ears {
    /// `true` if all machines have a listen address.
    all: bool,
    owners: BTreeSet<usize>,
    /// The first machine that has no listen address.
    first_silent: Option<usize>,
}

impl Listening {
    fn new(sections: &Sections<'_>, bgp: &BgpDraft) -> Self {
        let mut both: [Ears; 2] = Default::default();
        for at in &bgp.listen {
            let ears = &mut both[usize::from(at.value.is_ipv4())];
            match sections.machine_at(at.value.ip()) {
                Some(owner) => _ = ears.owners.insert(owner),
                None => ears.all = true,
            }
        }
        for ears in &mut both {
            let mut all = 0..sections.machines.len();
            ears.first_silent = all.find(|machine| !ears.owners.contains(machine));
        }
        Self(both)
    }

    /// Returns the first machine of a peer that has no listen address of the peer's family.
    fn silent<'s>(&self, sections: &'s Sections<'_>, draft: &PeerDraft) -> Option<&'s MachineDraft> {
        let ears = &self.0[usize::from(draft.peer.address.is_ipv4())];
        let silent = match draft.machines.is_empty() {
            _ if ears.all => None,
            true => ears.first_silent,
            false => listed(sections, draft).into_iter().find(|machine| !ears.owners.contains(machine)),
        };
        sections.machines.get(silent?)
    }
}

/// The first peer with each name and each address.
#[derive(Clone, Default)]
struct Firsts<'d> {
    names: BTreeMap<&'d str, &'d PeerDraft>,
    addresses: BTreeMap<IpAddr, &'d PeerDraft>,
}

impl<'d> Firsts<'d> {
    /// Returns an earlier peer with the same address or name, and which of the two is the same.
    fn twin(&self, draft: &PeerDraft) -> Option<(String, &'d PeerDraft)> {
        let address = self.addresses.get(&draft.peer.address);
        let name = || self.names.get(&*draft.peer.name);
        let by_address = address.map(|first| (format!("the address {}", draft.peer.address), *first));
        by_address.or_else(|| name().map(|first| (format!("the name \"{}\"", draft.peer.name), *first)))
    }

    fn add(&mut self, draft: &'d PeerDraft) {
        self.names.entry(&draft.peer.name).or_insert(draft);
        self.addresses.entry(draft.peer.address).or_insert(draft);
    }
}

/// Checks that the peers of each machine have distinct names and addresses, and that each machine
/// with peers has a BGP identifier. Peers that all machines have are compared only once.
fn peers_of_machines(sections: &Sections<'_>, bgp: &BgpDraft) {
    let (mut shared, mut own) = (Vec::new(), BTreeMap::<usize, Vec<&PeerDraft>>::new());
    for draft in &bgp.peers {
        if draft.machines.is_empty() {
            shared.push(draft);
        }
        listed(sections, draft).into_iter().for_each(|number| own.entry(number).or_default().push(draft));
    }
    let mut firsts = Firsts::default();
    for draft in &shared {
        if let Some(machine) = owner(sections, draft.peer.address) {
            itself(sections, machine, draft);
        }
        let first = sections.machines.first();
        first.into_iter().for_each(|machine| twice(sections, machine, draft, &[&firsts]));
        firsts.add(draft);
    }
    for (number, machine) in sections.machines.iter().enumerate() {
        let mut others = Firsts::default();
        for draft in own.get(&number).into_iter().flatten() {
            if sections.machine_at(draft.peer.address) == Some(number) {
                itself(sections, machine, draft);
            }
            twice(sections, machine, draft, &[&firsts, &others]);
            others.add(draft);
        }
        let identified = machine.router_id.is_some() || machine.addresses.iter().any(|at| at.value.is_ipv4());
        let has_peers = !shared.is_empty() || !others.names.is_empty();
        if !identified && has_peers {
            let place = machine.place.key("router_id");
            let message = format!("{} needs a \"router_id\" key", machine.place.field.table());
            let help = "a machine without an IPv4 address has no default BGP identifier";
            sections.report.absent(&place, (message, help));
        }
    }
}

fn itself(sections: &Sections<'_>, machine: &MachineDraft, draft: &PeerDraft) {
    let message =
        format!("peer address {} belongs to machine \"{}\" itself", draft.peer.address, machine.name);
    let help = "use the address of the router, or list other machines in machines";
    sections.report.error(&draft.place, (message, help));
}

fn twice(sections: &Sections<'_>, machine: &MachineDraft, draft: &PeerDraft, earlier: &[&Firsts<'_>]) {
    let Some((what, first)) = earlier.iter().find_map(|firsts| firsts.twin(draft)) else { return };
    let message = format!("machine \"{}\" has two peers with {what}", machine.name);
    // Peers of all machines are compared first, even if they come later in the file.
    let (first, second) =
        if first.place.offset < draft.place.offset { (first, draft) } else { (draft, first) };
    let first = sections.report.name(&first.place, &second.place);
    sections.report.error(&second.place, (message, format!("the first peer is {first}")));
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
fn unowned(sections: &Sections<'_>, bgp: &BgpDraft) {
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
