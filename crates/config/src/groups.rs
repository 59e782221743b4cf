//! Checks prefix groups against each other, against the VIPs that use them, and against the size of
//! the XDP filter. Prefixes of different groups may overlap: the longest match takes precedence. A
//! prefix that occurs twice is an error. The module `consistency` checks services that have the
//! same suffix and ports.

use std::collections::{BTreeMap, BTreeSet, HashMap};
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
    let grouped = Grouped::new(sections);
    for address in sections.machines.iter().flat_map(|machine| &machine.addresses) {
        let Some((vip, suffix)) = grouped.vip_of(address.value) else { continue };
        let message = format!(
            "machine address {} is also an address of VIP \"{}\" through suffix {suffix}",
            address.value, vip.name
        );
        let help = "packets to this address go to the kernel, not to the VIP";
        sections.report.warning(&address.place, (message, help));
    }
}

/// The prefixes and suffixes of all groups.
struct Grouped<'s> {
    /// The group of each prefix, by its name. If several groups have a prefix, the last group.
    prefixes: HashMap<Prefix, &'s Arc<str>>,
    suffixes: HashMap<(&'s Arc<str>, Suffix), &'s VipDraft>,
}

impl<'s> Grouped<'s> {
    fn new(sections: &'s Sections<'_>) -> Self {
        let prefixes = sections
            .groups
            .iter()
            .flat_map(|(name, group)| group.prefixes.iter().map(move |at| (at.value, name)));
        let suffixes = sections.vips.iter().filter_map(|vip| Some((vip, &vip.group.as_ref()?.value)));
        let suffixes =
            suffixes.flat_map(|(vip, group)| vip.suffixes.iter().map(move |at| ((group, at.value), vip)));
        Self { prefixes: prefixes.collect(), suffixes: suffixes.collect() }
    }

    /// Returns the VIP of an address, and its suffix. The longest prefix and then the longest
    /// suffix that match the address decide.
    fn vip_of(&self, address: IpAddr) -> Option<(&'s VipDraft, Suffix)> {
        let group = (0..=128).rev().find_map(|length| self.prefixes.get(&Prefix::of(address, length)))?;
        (0..=128).rev().find_map(|length| {
            let suffix = Suffix::of(address, length);
            Some((*self.suffixes.get(&(*group, suffix))?, suffix))
        })
    }
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
/// wider prefixes, so packets to other addresses in these prefixes no longer reach the kernel. Only
/// the first shard is reported.
fn room(sections: &Sections<'_>) {
    let mut named: BTreeMap<Option<&Arc<str>>, BTreeSet<&Arc<str>>> = BTreeMap::new();
    for vip in &sections.vips {
        named.entry(vip.shard()).or_default().extend(vip.group.iter().map(|group| &group.value));
    }
    let shards: BTreeSet<_> = sections.machines.iter().map(|machine| machine.shard.as_ref()).collect();
    // Each group is aggregated once, because many shards may use the same group.
    let mut known: BTreeMap<&Arc<str>, Vec<Prefix>> = BTreeMap::new();
    let mut all = |names: BTreeSet<&'_ Arc<str>>| -> Vec<Prefix> {
        let groups = names.into_iter().filter_map(|name| sections.groups.get(name));
        let once = |group: &'_ GroupDraft| whole(&values(&group.prefixes));
        groups.flat_map(|group| known.entry(&group.name).or_insert_with(|| once(group)).clone()).collect()
    };
    let common = named.remove(&None).unwrap_or_default();
    let first = common.first().copied();
    let shared = whole(&all(common));
    if !room_for(sections, first, &shared, None) {
        return;
    }
    for (shard, names) in named.into_iter().filter(|(shard, _)| shards.contains(shard)) {
        let first = first.or(names.first().copied());
        if !room_for(sections, first, &[&shared[..], &all(names)].concat(), shard) {
            return;
        }
    }
}

fn whole(prefixes: &[Prefix]) -> Vec<Prefix> {
    aggregate(prefixes, usize::MAX).prefixes
}

/// Returns `true` if the prefixes fit into the XDP filter.
fn room_for(
    sections: &Sections<'_>,
    first: Option<&Arc<str>>,
    prefixes: &[Prefix],
    shard: Option<&Arc<str>>,
) -> bool {
    let widened = aggregate(prefixes, FILTER_PREFIXES).widened;
    let first = first.and_then(|name| sections.groups.get(name));
    let (Some(first), [_, ..]) = (first, widened.as_slice()) else { return true };
    let few: Vec<String> = widened.iter().take(NAMED).map(ToString::to_string).collect();
    let more = match widened.len().saturating_sub(NAMED) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    let on = shard.map_or_else(String::new, |shard| format!(" on machines of shard \"{shard}\""));
    let message = format!(
        "{} prefixes exceed the XDP filter size of {FILTER_PREFIXES}{on}, so the filter has wider prefixes ({}{more})",
        whole(prefixes).len(),
        few.join(", "),
    );
    let help = "use neighboring prefixes; packets to other addresses in the wider prefixes are dropped with the reason no_vip";
    let place = Place { offset: first.place.offset, field: Field::of("prefix_group") };
    sections.report.warning(&place, (message, help));
    false
}

/// The maximum number of widened prefixes that a warning lists.
const NAMED: usize = 8;
