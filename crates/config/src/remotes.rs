//! Remotes against the VIPs that name them, against groups, machines and this cluster itself.
//!
//! In: the drafts of remotes, VIPs, groups and machines. Out: problems.
//! What is refused would send a packet to where its VIP is not, back to this cluster, or without a mark.
//! Not here: loops as such: no packet is redirected to a cluster twice, whatever the files say (`forwarder`).
//! Source: Eisenbud et al., *Maglev*, NSDI 2016, §4.2.

use std::net::IpAddr;
use std::sync::Arc;

use config_text::At;
use forwarder::{Prefix, TooBig};

use super::prefix_group::GroupDraft;
use super::remote::RemoteDraft;
use super::sections::{Sections, is_flawed};
use super::vip::VipDraft;

/// Checks everything that has to do with remotes.
pub(super) fn check(sections: &Sections<'_>) {
    for (name, remote) in &sections.remotes {
        itself(sections, name, remote);
        encapsulation(sections, remote);
        prefixes(sections, remote);
        addresses(sections, remote);
    }
    sources(sections);
    sections.vips.iter().for_each(|vip| named(sections, vip));
}

/// A remote that is this cluster would send packets round.
fn itself(sections: &Sections<'_>, name: &Arc<str>, remote: &RemoteDraft) {
    let report = sections.report;
    if sections.cluster.value.as_ref().is_some_and(|own| own.name() == &**name) && !is_flawed(name) {
        report.error(&remote.place, format!("\"{name}\", which is this cluster"), "another cluster");
    }
    for source in &remote.sources {
        let machines = sections.machines.iter().flat_map(|machine| &machine.addresses);
        if let Some(own) = machines.into_iter().find(|own| source.value.contains(own.value)) {
            let found = format!(
                "{}, which holds {} ({})",
                source.value,
                own.value,
                report.name(&own.place, &source.place)
            );
            report.error(&source.place, found, "addresses of the other cluster's machines alone");
        }
        let vips = sections.vips.iter().flat_map(|vip| &vip.addresses);
        if let Some(vip) = vips.into_iter().find(|vip| source.value.contains(vip.value)) {
            let found = format!(
                "{}, which holds the VIP {} ({})",
                source.value,
                vip.value,
                report.name(&vip.place, &source.place)
            );
            let allowed = "addresses of the other cluster's machines alone, and no packet comes from a VIP";
            report.warning(&source.place, found, allowed);
        }
    }
}

/// Only GRE has a mark, and balancers reassemble no outer packets.
fn encapsulation(sections: &Sections<'_>, remote: &RemoteDraft) {
    let Some(name) = &remote.encapsulation else { return };
    let Some(draft) = sections.encapsulations.get(&name.value) else {
        let known = sections.encapsulations.keys();
        return sections.report.unknown(name, known, "a section [encapsulation.NAME] or gre");
    };
    let Some(value) = &draft.value else { return };
    let found = format!("\"{}\"", name.value);
    if value.kind != packet::Encapsulation::Gre {
        let allowed = "an encapsulation with kind = \"gre\": only GRE has a mark against loops";
        sections.report.error(&name.place, found, allowed);
    } else if value.too_big == TooBig::FragmentOuter {
        let found = format!("{found} with too_big = \"fragment-outer\"");
        let allowed = "fragment-inner or drop: balancers do not put outer packets together";
        sections.report.error(&name.place, found, allowed);
    }
}

fn prefixes(sections: &Sections<'_>, remote: &RemoteDraft) {
    for (name, list) in &remote.prefixes {
        match sections.groups.get(&name.value) {
            None => sections.report.unknown(name, sections.groups.keys(), "a section [prefix_group.NAME]"),
            Some(group) => list.iter().for_each(|prefix| in_group(sections, group, prefix)),
        }
    }
}

/// The same last bits are to be the same service there, and the front is not to be this cluster's own.
fn in_group(sections: &Sections<'_>, group: &GroupDraft, prefix: &At<Prefix>) {
    let family = if prefix.value.address().is_ipv4() { "IPv4" } else { "IPv6" };
    let same = |own: &&At<Prefix>| own.value.address().is_ipv4() == prefix.value.address().is_ipv4();
    let report = sections.report;
    let Some(own) = group.prefixes.iter().find(same) else {
        if group.is_whole {
            let found = format!("{}, and group \"{}\" has no {family} prefix", prefix.value, group.name);
            report.error(&prefix.place, found, "a prefix of a family that the group has");
        }
        return;
    };
    let elsewhere = report.name(&own.place, &prefix.place);
    if own.value.covers(&prefix.value) || prefix.value.covers(&own.value) {
        let found = format!("{}, which shares addresses with {} ({elsewhere})", prefix.value, own.value);
        let allowed = "a prefix of the other cluster; the group's first prefix is this cluster's own";
        report.error(&prefix.place, found, allowed);
    } else if own.value.length() != prefix.value.length() {
        let found = format!("{}, and this cluster's own is {} ({elsewhere})", prefix.value, own.value);
        let allowed = format!("a prefix of {} bits: clusters of a group have equal ones", own.value.length());
        report.error(&prefix.place, found, allowed);
    } else if !group.prefixes.iter().any(|known| known.value.covers(&prefix.value)) {
        let found = format!("{}, which no prefix of group \"{}\" covers", prefix.value, group.name);
        let allowed = "a prefix within the group's: else what that cluster redirects to here is no VIP";
        report.warning(&prefix.place, found, allowed);
    }
}

fn addresses(sections: &Sections<'_>, remote: &RemoteDraft) {
    let report = sections.report;
    for (name, list) in &remote.addresses {
        let Some(vip) = sections.vips.iter().find(|vip| vip.name == name.value) else {
            report.unknown(name, sections.vips.iter().map(|vip| &vip.name), "a section [vip.NAME]");
            continue;
        };
        for address in list {
            let ipv4 = address.value.is_ipv4();
            if !vip.addresses.iter().any(|own| own.value.is_ipv4() == ipv4) {
                let found = format!("{}, and VIP \"{}\" has no such family here", address.value, vip.name);
                report.error(&address.place, found, "an address of a family that the VIP has");
            }
            if let Some(what) = own(sections, address.value) {
                let found = format!("{}, which is {what}", address.value);
                report.error(&address.place, found, "the address that the VIP has in the other cluster");
            }
        }
    }
}

/// What of this cluster an address is.
fn own(sections: &Sections<'_>, address: IpAddr) -> Option<String> {
    let has = |list: &[At<IpAddr>]| list.iter().any(|own| own.value == address);
    let machine = sections.machines.iter().find(|machine| has(&machine.addresses));
    let vip = sections.vips.iter().find(|vip| has(&vip.addresses));
    let mut backends = sections.pools.values().flat_map(|pool| &pool.backends);
    let backend = backends.find(|backend| backend.address.value == address);
    let machine = machine.map(|machine| format!("machine \"{}\"", machine.name));
    let vip = vip.map(|vip| format!("VIP \"{}\" of this cluster", vip.name));
    machine
        .or(vip)
        .or_else(|| backend.map(|backend| format!("backend \"{}\" of this cluster", backend.name.value)))
}

/// Each tunnelled packet's sender is looked for among all.
fn sources(sections: &Sections<'_>) {
    let mut all = sections.remotes.values().flat_map(|remote| &remote.sources);
    if let Some(first) = all.nth(MOST_SOURCES) {
        let found = format!("more than {MOST_SOURCES} sources of all remotes together");
        sections.report.error(&first.place, found, format!("at most {MOST_SOURCES}, or prefixes"));
    }
}

/// A remote that a VIP names has it: by its group's prefix or by an address, in each of its families.
fn named(sections: &Sections<'_>, vip: &VipDraft) {
    for name in &vip.remotes {
        let Some(remote) = sections.remotes.get(&name.value) else {
            sections.report.unknown(name, sections.remotes.keys(), "a section [remote.NAME]");
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
        let words = format!("\"{}\", which has no {family} in {key}", name.value);
        let allowed = format!("[remote.{}] with {key} of each family of the VIP", name.value);
        if found {
            sections.report.warning(&name.place, words, allowed);
        } else {
            sections.report.absent(&name.place, words, allowed);
        }
    }
}

/// The suffix has room behind the prefix that takes the place of ours.
fn fits(sections: &Sections<'_>, prefix: &At<Prefix>, suffix: &At<forwarder::Suffix>) {
    let bits: u8 = if prefix.value.address().is_ipv4() { 32 } else { 128 };
    let left = bits - prefix.value.length();
    if suffix.value.length() > left {
        let found = format!(
            "{}, which leaves {left} bits for {} ({})",
            prefix.value,
            suffix.value,
            sections.report.name(&suffix.place, &prefix.place)
        );
        sections.report.error(&prefix.place, found, "a prefix that leaves room for the VIP's suffix");
    }
}

/// The outer header needs a source of its family on every machine that serves the VIP.
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
            let found = format!(
                "\"{}\" by {family}, and machine \"{}\" has no address of it",
                name.value, machine.name
            );
            let of = &encapsulation.name;
            let allowed = format!("an {family} address, or encapsulation \"{of}\" with a source prefix");
            sections.report.absent(&name.place, found, allowed);
        }
    }
}

/// What checks of VIPs in other clusters may be.
pub(super) const DIRECT: &str =
    "a check with via = \"backend\": it asks the VIP at its address in the other cluster";
/// Of all remotes together.
const MOST_SOURCES: usize = 1_024;
