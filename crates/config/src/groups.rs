//! Checks prefix groups against each other, against the VIPs that use them, and against the size of
//! the XDP filter. Prefixes of different groups may overlap: the longest match takes precedence. A
//! prefix that occurs twice is an error. The module `consistency` checks services that have the
//! same suffix and ports.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;

use config_text::{At, Field, Place, values};
use forwarder::{FILTER_PREFIXES, Prefix, Suffix, aggregate};

use super::prefix_group::GroupDraft;
use super::sections::{Sections, each_once, is_flawed};
use super::vip::VipDraft;

/// Runs all checks on prefix groups.
pub(super) fn check(sections: &Sections<'_>) {
    prefixes_once(sections);
    suffixes_fit(sections);
    own_addresses(sections);
    unused(sections);
    room(sections);
}

fn prefixes_once(sections: &Sections<'_>) {
    let all = sections.groups.values().flat_map(|group| &group.prefixes);
    each_once(sections, all, "prefix");
}

fn suffixes_fit(sections: &Sections<'_>) {
    for vip in &sections.vips {
        let Some(named) = &vip.group else { continue };
        let Some(group) = sections.groups.get(&named.value) else {
            sections.report.unknown(named, sections.groups.keys(), "prefix group");
            continue;
        };
        vip.suffixes.iter().for_each(|suffix| fits(sections, group, suffix));
    }
}

/// Reports a suffix that is too long. A VIP of the group combines its suffix with each prefix, so
/// even the longest prefix must leave enough bits.
fn fits(sections: &Sections<'_>, group: &GroupDraft, suffix: &At<Suffix>) {
    let address = suffix.value.address();
    let (family, bits) = if address.is_ipv4() { ("IPv4", 32) } else { ("IPv6", 128) };
    let Some(longest) = group.longest(address) else {
        if group.is_whole {
            let message =
                format!("prefix group \"{}\" has no {family} prefix for suffix {}", group.name, suffix.value);
            sections.report.error(&suffix.place, (message, format!("add an {family} prefix to the group")));
        }
        return;
    };
    let left = bits - longest.value.length();
    if suffix.value.length() > left {
        let message = format!("suffix {} is too long for prefix {}", suffix.value, longest.value);
        let place = sections.report.name(&longest.place, &suffix.place);
        let help = format!("the prefix leaves {left} bits for the suffix ({place})");
        sections.report.error(&suffix.place, (message, help));
    }
}

/// Warns about a VIP address that also belongs to a machine. Packets to machine addresses go to the
/// kernel, so the VIP does not work at that address.
fn own_addresses(sections: &Sections<'_>) {
    for address in sections.machines.iter().flat_map(|machine| &machine.addresses) {
        let Some((vip, suffix)) = vip_of(sections, address.value) else { continue };
        let message = format!(
            "machine address {} is also an address of VIP \"{}\" through suffix {suffix}",
            address.value, vip.name
        );
        let help = "packets to this address go to the kernel, not to the VIP";
        sections.report.warning(&address.place, (message, help));
    }
}

/// Returns the VIP that matches an address. The longest prefix takes precedence, followed by the
/// longest suffix, as in packet threads.
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
        let message = format!("prefix group \"{name}\" is not used by any VIP");
        sections.report.warning(&group.place, message);
    }
}

/// Warns if a machine has more prefixes than fit into its XDP filter. The filter then contains
/// wider prefixes, so packets to other addresses in these prefixes no longer reach the kernel.
fn room(sections: &Sections<'_>) {
    let shards: BTreeSet<Option<&Arc<str>>> =
        sections.machines.iter().map(|machine| machine.shard.as_ref()).collect();
    let mut reported = BTreeSet::new();
    for shard in shards {
        let served = sections.vips.iter().filter(|vip| vip.shard().is_none_or(|own| Some(own) == shard));
        let names: BTreeSet<&Arc<str>> =
            served.filter_map(|vip| vip.group.as_ref()).map(|named| &named.value).collect();
        let groups: Vec<&GroupDraft> = names.iter().filter_map(|name| sections.groups.get(*name)).collect();
        if reported.insert(names) {
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
    let message = format!(
        "{} prefixes exceed the XDP filter size of {FILTER_PREFIXES}{on}, so the filter has wider prefixes ({}{more})",
        aggregate(&prefixes, usize::MAX).prefixes.len(),
        few.join(", "),
    );
    let help = "use neighboring prefixes; packets to other addresses in the wider prefixes are dropped with the reason no_vip";
    let place = Place { offset: first.place.offset, field: Field::of("prefix_group") };
    sections.report.warning(&place, (message, help));
}

/// The maximum number of widened prefixes that a warning lists.
const NAMED: usize = 8;
