//! Checks that the machines of a shard serve every pool that the VIPs of the shard use.
//!
//! All machines serve the VIPs and pools without a shard. Only the machines of a shard serve its
//! VIPs and pools. A VIP or pool may therefore use only pools of its own shard and pools without a
//! shard. The checks cover all shards, and do not depend on the machine on which they run. Source:
//! Eisenbud et al., *Maglev*, NSDI 2016, §2.2.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use config_text::{At, Field, Place};

use super::sections::Sections;

type Shard<'d> = Option<&'d Arc<str>>;

/// Runs all checks on shards.
pub(super) fn check(sections: &Sections<'_>) {
    uses(sections);
    machines(sections);
    addresses(sections);
}

fn uses(sections: &Sections<'_>) {
    for vip in &sections.vips {
        for pool in &vip.pools {
            reference(sections, "VIP", &vip.name, vip.shard(), pool);
        }
    }
    for (name, draft) in &sections.pools {
        let shard = draft.shard();
        for inner in &draft.pools {
            reference(sections, "pool", name, shard, &inner.pool);
        }
        for pool in draft.fallback_pool().iter().chain(draft.kv_pools()) {
            reference(sections, "pool", name, shard, pool);
        }
    }
}

fn reference(sections: &Sections<'_>, kind: &str, name: &str, shard: Shard<'_>, pool: &At<Arc<str>>) {
    let Some(theirs) = sections.pools.get(&pool.value).and_then(|draft| draft.shard()) else { return };
    if shard == Some(theirs) {
        return;
    }
    let own = shard.map_or_else(|| "without a shard".to_owned(), |shard| format!("of shard \"{shard}\""));
    let message = format!("{kind} \"{name}\" {own} cannot use pool \"{}\" of shard \"{theirs}\"", pool.value);
    let help = match shard {
        Some(shard) => format!("use a pool of shard \"{shard}\", or a pool without a shard"),
        None => format!("use a pool without a shard, because every machine serves this {kind}"),
    };
    sections.report.error(&pool.place, (message, help));
}

/// Warns about shards without machines.
fn machines(sections: &Sections<'_>) {
    let known: BTreeSet<&str> =
        sections.machines.iter().filter_map(|machine| machine.shard.as_deref()).collect();
    let pools = sections.pools.values().filter_map(|draft| draft.shard.as_ref());
    let vips = sections.vips.iter().filter_map(|vip| vip.shard.as_ref());
    for At { value: shard, place } in pools.chain(vips).filter(|shard| !known.contains(&*shard.value)) {
        let help = sections
            .report
            .hint(shard, known.iter().copied())
            .unwrap_or_else(|| format!("add shard = \"{shard}\" to a section [machine.NAME]"));
        sections.report.warning(place, (format!("no machine has shard \"{shard}\""), help));
    }
}

/// Reports shards with more VIP addresses than fit into the XDP filter of a machine.
fn addresses(sections: &Sections<'_>) {
    let mut by_shard: BTreeMap<Shard<'_>, BTreeSet<_>> = BTreeMap::new();
    for vip in &sections.vips {
        by_shard.entry(vip.shard()).or_default().extend(vip.addresses.iter().map(|address| address.value));
    }
    let everywhere = by_shard.remove(&None).unwrap_or_default();
    let most = usize::try_from(sections.io.max_vips).unwrap_or(usize::MAX);
    let Some(first) = sections.vips.first() else { return };
    let place = Place { offset: first.place.offset, field: Field::of("vip") };
    let more = |own: &BTreeSet<_>| own.iter().filter(|address| !everywhere.contains(address)).count();
    let shards = by_shard.iter().map(|(shard, own)| (*shard, everywhere.len() + more(own)));
    for (shard, count) in shards.chain([(None, everywhere.len())]).filter(|(_, count)| *count > most) {
        let of = shard.map_or_else(String::new, |shard| format!(" on machines of shard \"{shard}\""));
        let message = format!("{count} VIP addresses{of} exceed io.max_vips = {most}");
        sections.report.error(&place, (message, "raise io.max_vips"));
    }
}
