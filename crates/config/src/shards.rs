//! Shards: which machines serve which VIPs, and that a VIP finds all its pools there.
//!
//! In: the drafts of machines, pools and VIPs. Out: problems, for all shards at once, whichever machine checks.
//! What has no shard is everywhere; what has one is on the machines of that shard. So a thing of a shard may use things
//! of that shard and things of none, and a thing of none may use things of none alone.
//! Source: Eisenbud et al., *Maglev*, NSDI 2016, §2.2.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use config_text::{At, Field, Place, hint};

use super::sections::Sections;

type Shard<'d> = Option<&'d Arc<str>>;

/// Checks everything that has to do with shards.
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
    let own = shard.map_or_else(|| "no shard".to_owned(), |shard| format!("shard \"{shard}\""));
    let found = format!("pool \"{}\" of shard \"{theirs}\" in {kind} \"{name}\" of {own}", pool.value);
    let allowed = match shard {
        Some(shard) => format!("a pool of shard \"{shard}\" or of none"),
        None => "a pool of no shard: every machine serves this".to_owned(),
    };
    sections.report.error(&pool.place, found, allowed);
}

/// A shard without machines serves nothing.
fn machines(sections: &Sections<'_>) {
    let known: BTreeSet<&str> =
        sections.machines.iter().filter_map(|machine| machine.shard.as_deref()).collect();
    let pools = sections.pools.values().filter_map(|draft| draft.shard.as_ref());
    let vips = sections.vips.iter().filter_map(|vip| vip.shard.as_ref());
    for At { value: shard, place } in pools.chain(vips).filter(|shard| !known.contains(&*shard.value)) {
        let allowed = format!("the shard of a machine{}", hint(shard, known.iter().copied()));
        sections.report.warning(place, format!("\"{shard}\", which no machine has"), allowed);
    }
}

/// The filter of each machine has room for the addresses that it serves.
fn addresses(sections: &Sections<'_>) {
    let mut by_shard: BTreeMap<Shard<'_>, BTreeSet<_>> = BTreeMap::new();
    for vip in &sections.vips {
        by_shard.entry(vip.shard()).or_default().extend(vip.addresses.iter().map(|address| address.value));
    }
    let everywhere = by_shard.remove(&None).unwrap_or_default();
    let most = usize::try_from(sections.io.max_vips).unwrap_or(usize::MAX);
    let Some(first) = sections.vips.first() else { return };
    let place = Place { offset: first.place.offset, field: Field::of("vip") };
    let shards = by_shard.iter().map(|(shard, own)| (*shard, own.union(&everywhere).count()));
    for (shard, count) in shards.chain([(None, everywhere.len())]).filter(|(_, count)| *count > most) {
        let of = shard.map_or_else(String::new, |shard| format!(" on machines of shard \"{shard}\""));
        let found = format!("{count} addresses of VIPs{of}");
        sections.report.error(&place, found, format!("at most io.max_vips = {most}"));
    }
}
