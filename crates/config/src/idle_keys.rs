//! Warns about pool keys that have no effect.
//!
//! The keys `fallback`, `max_down` and `kv` have an effect only in pools that a VIP or a fallback
//! refers to. The key `slow_start` also has an effect in pools that list backends directly. A
//! separate warning is reported for pools that no VIP uses. The keys take effect in
//! `compile::index::reach` and `Controller::start_slowly`.

use std::collections::{BTreeMap, BTreeSet};

use config_text::Place;

use super::sections::Sections;

/// Warns about each key that has no effect.
pub(super) fn check(sections: &Sections<'_>) {
    let named = sections.reached(|pool| {
        let fallback = pool.fallback.as_ref().map(|fallback| &*fallback.value.pool);
        pool.kv_pools().map(|name| &*name.value).chain(fallback)
    });
    let holders = holders(sections, &named);
    for (name, pool) in sections.pools.iter().filter(|(name, _)| !named.contains(&***name)) {
        let Some(holder) = holders.get(&**name) else { continue };
        let warn = |place: &Place, key: &str| {
            let message =
                format!("{key} has no effect, because pool \"{name}\" is only used inside other pools");
            let help = format!("set {key} in a pool that a VIP names, such as \"{holder}\"");
            sections.report.warning(place, (message, help));
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

/// Maps each nested pool to the outermost of the pools `named` that contains it.
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
