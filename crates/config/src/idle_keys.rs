//! Keys of pools that never act, because nothing asks the pool for them.
//!
//! In: the drafts. Out: warnings. A fallback and a bound of what may be down act for a pool that a VIP names, or that is itself a fallback; a slow start there
//! too, and for the backends that a pool lists itself, wherever it stands. A pool that no VIP reaches has its own warning.
//! Source: `compile::index::reach`, `Controller::start_slowly`.

use std::collections::{BTreeMap, BTreeSet};

use config_text::Place;

use super::sections::Sections;

/// Warns of each.
pub(super) fn check(sections: &Sections<'_>) {
    let named = sections.reached(|pool| {
        let fallback = pool.fallback.as_ref().map(|fallback| &*fallback.value.pool);
        pool.kv_pools().map(|name| &*name.value).chain(fallback)
    });
    let holders = holders(sections, &named);
    for (name, pool) in sections.pools.iter().filter(|(name, _)| !named.contains(&***name)) {
        let Some(holder) = holders.get(&**name) else { continue };
        let warn = |place: &Place, key: &str| {
            let found = format!("a {key} of a pool that is only inside others: it never acts");
            let allowed = format!("{key} in a pool that a VIP names, such as \"{holder}\"");
            sections.report.warning(place, found, allowed);
        };
        if let Some(fallback) = &pool.fallback {
            warn(&fallback.place, "fallback");
        }
        if let Some(max_down) = &pool.max_down {
            warn(&max_down.place, "max_down");
        }
        if let Some(kv) = &pool.kv {
            warn(&kv.place, "kv");
        }
        if let Some(slow_start) = pool.slow_start.as_ref().filter(|_| pool.backends.is_empty()) {
            warn(&slow_start.place, "slow_start");
        }
    }
}

/// Each pool inside another that is reached, with the pool of `named` by which it was reached first.
fn holders<'s>(sections: &'s Sections<'_>, named: &BTreeSet<&'s str>) -> BTreeMap<&'s str, &'s str> {
    let mut holders = BTreeMap::new();
    let mut next: Vec<(&str, &str)> = named.iter().rev().map(|name| (*name, *name)).collect();
    while let Some((name, holder)) = next.pop() {
        for reference in sections.pools.get(name).into_iter().flat_map(|pool| &pool.pools) {
            let inner = &*reference.pool.value;
            if !holders.contains_key(inner) {
                holders.insert(inner, holder);
                next.push((inner, holder));
            }
        }
    }
    holders
}
