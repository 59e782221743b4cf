//! Prefix groups against each other, against the VIPs that name them, and against the room that the filter has.
//!
//! In: the drafts of groups, VIPs and machines. Out: problems.
//! Prefixes of groups may lie in each other: the longest one decides. The same one twice is an error.
//! Not here: two services with the same ports of one suffix (`consistency`).

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;

use config_text::{At, Field, Place, values};
use forwarder::{FILTER_PREFIXES, Prefix, Suffix, aggregate};

use super::prefix_group::GroupDraft;
use super::sections::{Sections, each_once, is_flawed};
use super::vip::VipDraft;

/// Checks everything that has to do with prefix groups.
pub(super) fn check(sections: &Sections<'_>) {
    prefixes_once(sections);
    suffixes_fit(sections);
    own_addresses(sections);
    unused(sections);
    room(sections);
}

fn prefixes_once(sections: &Sections<'_>) {
    let all = sections.groups.values().flat_map(|group| &group.prefixes);
    each_once(sections, all, "already in", "each prefix once in all groups");
}

fn suffixes_fit(sections: &Sections<'_>) {
    for vip in &sections.vips {
        let Some(named) = &vip.group else { continue };
        let Some(group) = sections.groups.get(&named.value) else {
            sections.report.unknown(named, sections.groups.keys(), "a section [prefix_group.NAME]");
            continue;
        };
        vip.suffixes.iter().for_each(|suffix| fits(sections, group, suffix));
    }
}

/// A VIP has its suffix in every cluster of the group, so the longest prefix must leave room for it.
fn fits(sections: &Sections<'_>, group: &GroupDraft, suffix: &At<Suffix>) {
    let address = suffix.value.address();
    let (family, bits) = if address.is_ipv4() { ("IPv4", 32) } else { ("IPv6", 128) };
    let Some(longest) = group.longest(address) else {
        if group.is_whole {
            let found = format!("{}, and group \"{}\" has no {family} prefix", suffix.value, group.name);
            sections.report.error(&suffix.place, found, "a suffix of a family that the group has");
        }
        return;
    };
    let left = bits - longest.value.length();
    if suffix.value.length() > left {
        let found = format!(
            "{} of more bits than {} ({}) leaves",
            suffix.value,
            longest.value,
            sections.report.name(&longest.place, &suffix.place)
        );
        let allowed = format!("at most {left} bits of {family} in group \"{}\"", group.name);
        sections.report.error(&suffix.place, found, allowed);
    }
}

/// The kernel keeps what is sent to the machine itself, so a VIP there is dead on that machine.
fn own_addresses(sections: &Sections<'_>) {
    for address in sections.machines.iter().flat_map(|machine| &machine.addresses) {
        let Some((vip, suffix)) = vip_of(sections, address.value) else { continue };
        let found =
            format!("{}, which is also an address of VIP \"{}\" by {suffix}", address.value, vip.name);
        let allowed = "an address that no VIP has: packets for it stay with the kernel";
        sections.report.warning(&address.place, found, allowed);
    }
}

/// Longest prefix, then longest suffix, as the packet threads have it.
fn vip_of<'s>(sections: &'s Sections<'_>, address: IpAddr) -> Option<(&'s VipDraft, Suffix)> {
    let prefixes = sections.groups.iter().flat_map(|(name, group)| {
        group.prefixes.iter().filter(|at| at.value.contains(address)).map(move |at| (at.value.length(), name))
    });
    let (_, group) = prefixes.max()?;
    let of_group = |vip: &&VipDraft| vip.group.as_ref().is_some_and(|named| named.value == *group);
    let suffixes = sections.vips.iter().filter(of_group).flat_map(|vip| {
        vip.suffixes.iter().filter(|at| at.value.matches(address)).map(move |at| (vip, at.value))
    });
    suffixes.max_by_key(|(_, suffix)| suffix.length())
}

fn unused(sections: &Sections<'_>) {
    let used: BTreeSet<&Arc<str>> =
        sections.vips.iter().filter_map(|vip| vip.group.as_ref()).map(|named| &named.value).collect();
    for (name, group) in sections.groups.iter().filter(|(name, _)| !used.contains(name) && !is_flawed(name)) {
        let found = format!("a prefix group that no VIP uses, so that nothing in \"{name}\" is served");
        sections.report.warning(&group.place, found, "a use, or no such section");
    }
}

/// What the filter of each machine cannot distinguish is taken from the kernel without being a VIP's.
fn room(sections: &Sections<'_>) {
    let shards: BTreeSet<Option<&Arc<str>>> =
        sections.machines.iter().map(|machine| machine.shard.as_ref()).collect();
    let mut said = BTreeSet::new();
    for shard in shards {
        let served = sections.vips.iter().filter(|vip| vip.shard().is_none_or(|own| Some(own) == shard));
        let names: BTreeSet<&Arc<str>> =
            served.filter_map(|vip| vip.group.as_ref()).map(|named| &named.value).collect();
        let groups: Vec<&GroupDraft> = names.iter().filter_map(|name| sections.groups.get(*name)).collect();
        if said.insert(names) {
            room_for(sections, &groups, shard);
        }
    }
}

fn room_for(sections: &Sections<'_>, groups: &[&GroupDraft], shard: Option<&Arc<str>>) {
    let prefixes: Vec<Prefix> = groups.iter().flat_map(|group| values(&group.prefixes)).collect();
    let widened = aggregate(&prefixes, FILTER_PREFIXES).widened;
    let (Some(first), [_, ..]) = (groups.first(), widened.as_slice()) else { return };
    let few: Vec<String> = widened.iter().take(NAMED).map(ToString::to_string).collect();
    let more = match widened.len().saturating_sub(NAMED) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    let on = shard.map_or_else(String::new, |shard| format!(" on machines of shard \"{shard}\""));
    let found = format!(
        "{} prefixes for a filter of {FILTER_PREFIXES}{on}: {}{more} are taken from the kernel whole",
        aggregate(&prefixes, usize::MAX).prefixes.len(),
        few.join(", "),
    );
    let allowed =
        "neighbouring prefixes, or nothing routed here in between: what is no VIP there is dropped as no_vip";
    let place = Place { offset: first.place.offset, field: Field::of("prefix_group") };
    sections.report.warning(&place, found, allowed);
}

/// How many widened prefixes a warning names.
const NAMED: usize = 8;
