//! Warns about pools without health checks.
//!
//! A backend without checks receives traffic even if it is down. `checks = []` in the pool, or in a
//! pool that contains it, states that this is intended.

use std::collections::BTreeSet;

use config_text::words::few;

use super::sections::{Sections, in_order};

/// Warns once about all pools that VIPs use and whose backends have no check.
pub(super) fn check(sections: &Sections<'_>) {
    let mut decided: BTreeSet<&str> = BTreeSet::new();
    let with_key = sections.pools.iter().filter(|(_, pool)| pool.has_checks);
    let mut open: Vec<&str> = with_key.map(|(name, _)| &**name).collect();
    while let Some(name) = open.pop() {
        if let Some(pool) = sections.pools.get(name).filter(|_| decided.insert(name)) {
            open.extend(pool.pools.iter().map(|inner| &*inner.pool.value));
        }
    }
    let reached = sections.reached(|pool| {
        let fallback = pool.fallback.as_ref().map(|fallback| &*fallback.value.pool);
        let nested = pool.pools.iter().map(|inner| &*inner.pool.value);
        pool.kv_pools().map(|name| &*name.value).chain(fallback).chain(nested)
    });
    let unchecked = sections.pools.iter().filter(|(name, pool)| {
        !pool.backends.is_empty() && reached.contains(&***name) && !decided.contains(&***name)
    });
    let places = unchecked.clone().map(|(_, pool)| &pool.place);
    let Some(first) = in_order(places, |place| place).first().copied() else { return };
    let names = few(unchecked.clone().map(|(name, _)| format!("\"{name}\"")));
    let message = match unchecked.count() {
        1 => format!("pool {names} has no health checks, so its backends get traffic even if they are down"),
        _ => format!(
            "pools {names} have no health checks, so their backends get traffic even if they are down"
        ),
    };
    let help = "add a check, such as checks = [\"NAME\"], or set checks = [] if this is intended";
    sections.report.warning(first, (message, help));
}
