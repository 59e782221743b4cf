//! Checks remotes against the VIPs that refer to them, and against groups, machines and VIPs of
//! this cluster.
//!
//! A configuration is rejected if packets would be redirected to an address that does not belong to
//! the VIP of the other cluster, would return to this cluster, or would not be marked as
//! redirected. Loops cannot occur in any configuration, because a packet is redirected to another
//! cluster at most once (`forwarder`). Source: Eisenbud et al., *Maglev*, NSDI 2016, §4.2.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use config_text::{At, Place};
use forwarder::{Prefix, TooBig};

use super::prefix_group::GroupDraft;
use super::remote::RemoteDraft;
use super::sections::{Sections, is_flawed};
use super::vip::VipDraft;

/// Runs all checks on remotes.
pub(super) fn check(sections: &Sections<'_>) {
    if sources(sections) {
        return;
    }
    let own = Own {
        machines: Addresses::new(sections.machines.iter().flat_map(|machine| &machine.addresses)),
        vips: Addresses::new(sections.vips.iter().flat_map(|vip| &vip.addresses)),
    };
    for (name, remote) in &sections.remotes {
        itself(sections, &own, name, remote);
        encapsulation(sections, remote);
        prefixes(sections, remote);
        addresses(sections, remote);
    }
    sections.vips.iter().for_each(|vip| named(sections, vip));
}

/// The addresses of this cluster.
struct Own<'s> {
    machines: Addresses<'s>,
    vips: Addresses<'s>,
}

/// Addresses in sorted order, so that the addresses in a prefix are found without a search.
struct Addresses<'s>(BTreeMap<IpAddr, &'s Place>);

impl<'s> Addresses<'s> {
    fn new(all: impl DoubleEndedIterator<Item = &'s At<IpAddr>>) -> Self {
        // If an address occurs several times, the first position replaces the later ones.
        Self(all.rev().map(|at| (at.value, &at.place)).collect())
    }

    /// Returns the lowest address in the prefix.
    fn inside(&self, prefix: &Prefix) -> Option<(&IpAddr, &'s Place)> {
        let (address, place) = self.0.range(prefix.address()..).next()?;
        prefix.contains(*address).then_some((address, *place))
    }
}

/// Rejects a remote that has the name of this cluster.
fn itself(sections: &Sections<'_>, own: &Own<'_>, name: &Arc<str>, remote: &RemoteDraft) {
    let report = sections.report;
    if sections.cluster.value.as_ref().is_some_and(|cluster| cluster.name() == &**name) && !is_flawed(name) {
        report.error(
            &remote.place,
            (format!("remote \"{name}\" is this cluster itself"), "use the name of the other cluster"),
        );
    }
    for source in &remote.sources {
        if let Some((own, place)) = own.machines.inside(&source.value) {
            let place = report.name(place, &source.place);
            let message = format!("source {} contains {own}, a machine of this cluster", source.value);
            let help = format!("list addresses of the other cluster only; the machine is {place}");
            report.error(&source.place, (message, help));
        }
        if let Some((vip, place)) = own.vips.inside(&source.value) {
            let place = report.name(place, &source.place);
            let message = format!("source {} contains the VIP {vip} of this cluster", source.value);
            let help = format!("list addresses of the other cluster's machines only; the VIP is {place}");
            report.warning(&source.place, (message, help));
        }
    }
}

/// Rejects encapsulations that do not work between clusters. Only GRE carries the mark that
/// prevents loops, and load balancers do not reassemble outer packets.
fn encapsulation(sections: &Sections<'_>, remote: &RemoteDraft) {
    let Some(name) = &remote.encapsulation else { return };
    let Some(draft) = sections.encapsulations.get(&name.value) else {
        return sections.report.unknown(name, sections.encapsulations.keys(), "encapsulation");
    };
    let Some(value) = &draft.value else { return };
    if value.kind != packet::Encapsulation::Gre {
        let message =
            format!("a remote cannot use encapsulation \"{}\", because its kind is not \"gre\"", name.value);
        sections.report.error(&name.place, (message, "only GRE can carry the mark that prevents loops"));
    } else if value.too_big == TooBig::FragmentOuter {
        let message = format!("a remote cannot use \"{}\" with too_big = \"fragment-outer\"", name.value);
        let help = "use fragment-inner or drop; load balancers do not reassemble outer packets";
        sections.report.error(&name.place, (message, help));
    }
}

fn prefixes(sections: &Sections<'_>, remote: &RemoteDraft) {
    for (name, list) in remote.prefixes.values() {
        match sections.groups.get(&name.value) {
            None => sections.report.unknown(name, sections.groups.keys(), "prefix group"),
            Some(group) => list.iter().for_each(|prefix| in_group(sections, group, prefix)),
        }
    }
}

/// Checks a prefix of another cluster. The prefix must have the same length as the prefix of this
/// cluster, so that suffixes select the same VIP. The prefix must also be in the group, and must
/// not overlap a prefix of this cluster.
fn in_group(sections: &Sections<'_>, group: &GroupDraft, prefix: &At<Prefix>) {
    let family = if prefix.value.address().is_ipv4() { "IPv4" } else { "IPv6" };
    let same = |own: &&At<Prefix>| own.value.address().is_ipv4() == prefix.value.address().is_ipv4();
    let report = sections.report;
    let Some(own) = group.prefixes.iter().find(same) else {
        if group.is_whole {
            let message = format!(
                "prefix group \"{}\" has no {family} prefix, but this remote has {}",
                group.name, prefix.value
            );
            report.error(&prefix.place, (message, format!("add an {family} prefix to the group")));
        }
        return;
    };
    let elsewhere = report.name(&own.place, &prefix.place);
    if own.value.covers(&prefix.value) || prefix.value.covers(&own.value) {
        let message = format!("prefix {} overlaps {}, the prefix of this cluster", prefix.value, own.value);
        let help = format!("the first prefix of a group belongs to this cluster ({elsewhere})");
        report.error(&prefix.place, (message, help));
    } else if own.value.length() != prefix.value.length() {
        let message =
            format!("prefix {} must have {} bits, like {}", prefix.value, own.value.length(), own.value);
        let help = format!("clusters of a group have prefixes of the same length ({elsewhere})");
        report.error(&prefix.place, (message, help));
    } else if !group.has_around(&prefix.value) {
        let message = format!("prefix {} is not in prefix group \"{}\"", prefix.value, group.name);
        let help =
            "add the prefix to the group; otherwise, redirected packets of the other cluster match no VIP";
        report.warning(&prefix.place, (message, help));
    }
}

fn addresses(sections: &Sections<'_>, remote: &RemoteDraft) {
    let report = sections.report;
    for (name, list) in remote.addresses.values() {
        let Some(vip) = sections.vip_named(&name.value) else {
            report.unknown(name, sections.vips.iter().map(|vip| &vip.name), "VIP");
            continue;
        };
        for address in list {
            let ipv4 = address.value.is_ipv4();
            if !vip.addresses.iter().any(|own| own.value.is_ipv4() == ipv4) {
                let family = if ipv4 { "IPv4" } else { "IPv6" };
                let message = format!("VIP \"{}\" has no {family} address in this cluster", vip.name);
                report.error(&address.place, (message, format!("remove {}", address.value)));
            }
            if let Some(what) = own(sections, address.value) {
                let message = format!("{} is the address of {what}", address.value);
                report.error(&address.place, (message, "use the address of the VIP in the other cluster"));
            }
        }
    }
}

/// Describes the machine, VIP or backend of this cluster that uses an address.
fn own(sections: &Sections<'_>, address: IpAddr) -> Option<String> {
    let machine = sections.machine_at(address).and_then(|number| sections.machines.get(number));
    let machine = machine.map(|machine| ("machine", &machine.name));
    let vip = || sections.vip_at(address).map(|vip| ("VIP", &vip.name));
    let backend = || sections.backend_at(address).map(|name| ("backend", name));
    let (kind, name) = machine.or_else(vip).or_else(backend)?;
    Some(format!("{kind} \"{name}\" in this cluster"))
}

/// Limits the number of sources, because the sender of each tunneled packet is looked up among all
/// sources. Returns `true` if there are too many.
fn sources(sections: &Sections<'_>) -> bool {
    let mut all = sections.remotes.values().flat_map(|remote| &remote.sources);
    let Some(first) = all.nth(MOST_SOURCES) else { return false };
    let message = format!("all remotes together have more than {MOST_SOURCES} sources");
    sections.report.error(&first.place, (message, "use prefixes in place of addresses"));
    true
}

/// Reports remotes that a VIP refers to but that have no address for this VIP. A remote needs an
/// address for each address family of the VIP.
fn named(sections: &Sections<'_>, vip: &VipDraft) {
    for name in &vip.remotes {
        let Some(remote) = sections.remotes.get(&name.value) else {
            sections.report.unknown(name, sections.remotes.keys(), "remote");
            continue;
        };
        if !is_flawed(&name.value) {
            has(sections, vip, name, remote);
        }
    }
    source_addresses(sections, vip);
}

fn has(sections: &Sections<'_>, vip: &VipDraft, name: &At<Arc<str>>, remote: &RemoteDraft) {
    let mut lacking = Vec::new();
    let mut found = false;
    for (ipv4, family) in [(true, "IPv4"), (false, "IPv6")] {
        if vip.addresses.iter().any(|own| own.value.is_ipv4() == ipv4) {
            let there = remote.address(&vip.name, ipv4).is_some();
            found |= there;
            lacking.extend((!there).then(|| (family, format!("addresses.{}", vip.name))));
        }
        let mut suffixes = vip.suffixes.iter().filter(|at| at.value.address().is_ipv4() == ipv4);
        let (Some(group), Some(longest)) = (&vip.group, suffixes.next()) else { continue };
        let prefix = remote.prefix(&group.value, ipv4);
        found |= prefix.is_some();
        match prefix {
            None => lacking.push((family, format!("prefixes.{}", group.value))),
            Some(prefix) => {
                let longest =
                    suffixes.fold(longest, |a, b| if a.value.length() < b.value.length() { b } else { a });
                fits(sections, prefix, longest);
            }
        }
    }
    for (family, key) in lacking {
        let message = format!("remote \"{}\" has no {family} entry in {key}", name.value);
        let help = format!("add an entry to [remote.{}] for each address family of the VIP", name.value);
        if found {
            sections.report.warning(&name.place, (message, help));
        } else {
            sections.report.absent(&name.place, (message, help));
        }
    }
}

/// Reports a suffix that is too long for the prefix of the other cluster.
fn fits(sections: &Sections<'_>, prefix: &At<Prefix>, suffix: &At<forwarder::Suffix>) {
    let bits: u8 = if prefix.value.address().is_ipv4() { 32 } else { 128 };
    let left = bits - prefix.value.length();
    if suffix.value.length() > left {
        let place = sections.report.name(&suffix.place, &prefix.place);
        let message = format!("prefix {} leaves no room for suffix {}", prefix.value, suffix.value);
        let help = format!("the prefix leaves {left} bits for the suffix, which is {place}");
        sections.report.error(&prefix.place, (message, help));
    }
}

/// Reports machines without a source address for the outer header. Every machine that serves the
/// VIP needs such an address.
fn source_addresses(sections: &Sections<'_>, vip: &VipDraft) {
    for name in &vip.remotes {
        let Some(remote) = sections.remotes.get(&name.value) else { continue };
        let Some(encapsulation) = sections.encapsulation(remote.encapsulation.as_ref()) else { continue };
        let has = |ipv4: &bool| {
            let group = vip.group.as_ref().and_then(|group| remote.prefix(&group.value, *ipv4));
            group.is_some() || remote.address(&vip.name, *ipv4).is_some()
        };
        for ipv4 in [false, true].into_iter().filter(has) {
            let lacking = sections.without_source(vip.shard(), encapsulation, ipv4);
            let Some(machine) = lacking else { continue };
            let family = if ipv4 { "IPv4" } else { "IPv6" };
            let message = format!(
                "machine \"{}\" has no {family} source address for packets to remote \"{}\"",
                machine.name, name.value
            );
            let help = format!(
                "add an {family} address to the machine, or a prefix to source_prefixes of encapsulation \"{}\"",
                encapsulation.name
            );
            sections.report.absent(&name.place, (message, help));
        }
    }
}

/// The help line for a remote check that probes through the VIP.
pub(super) const DIRECT: &str =
    "use a check with via = \"backend\", which probes the VIP's address in the other cluster";
/// The maximum number of sources that all remotes together may have.
const MOST_SOURCES: usize = 1_024;
