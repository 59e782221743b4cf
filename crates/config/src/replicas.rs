//! Checks keyed pools with replicas. Rejects settings that cannot be combined with replicas.
//!
//! Keys that are routed to a different pool have the same number of replicas in that pool, so that
//! pool also needs enough backends. The module `kv_replicas` reads the key `replicas`.

use std::collections::BTreeSet;
use std::sync::Arc;

use config_text::Place;
use config_text::words::count_of;

use super::keyed::flat;
use super::kv::{Failover, Kv, KvPath, KvProtocol};
use super::pool::Pool;
use super::sections::Sections;

/// Checks all keyed pools with replicas.
pub(super) fn check(sections: &Sections<'_>, flattened: &[Arc<Pool>]) {
    for (name, draft) in &sections.pools {
        let Some((place, kv)) = draft.kv.as_ref().and_then(|kv| Some((&kv.place, kv.value.as_ref()?))) else {
            continue;
        };
        let Some(replicas) = kv.replicas else { continue };
        beside(sections, &place.key("replicas"), kv);
        let named: BTreeSet<&str> =
            [&**name].into_iter().chain(draft.kv_pools().map(|name| &*name.value)).collect();
        for pool in named.into_iter().filter_map(|name| flat(flattened, name)) {
            enough(sections, place, pool, replicas.count);
        }
    }
}

/// Reports settings that cannot be combined with replicas.
fn beside(sections: &Sections<'_>, place: &Place, kv: &Kv) {
    let refuse = |is_wrong: bool, other: &str, help: &str| {
        if is_wrong {
            sections.report.error(place, (format!("replicas cannot be combined with {other}"), help));
        }
    };
    refuse(kv.cache.is_some(), "cache", "remove one of them; cached values come from one backend");
    let is_proxied = matches!(kv.path, KvPath::Proxied { .. });
    refuse(is_proxied, "path = \"proxied\"", "use path = \"direct\"");
    let is_off = kv.gather.is_none() && kv.protocol == KvProtocol::Memcached;
    refuse(is_off, "gather = false", "writes to several replicas use the timeout of gather");
    let is_next = kv.failover == Failover::Next;
    let help =
        "use failover = { to = \"next\" }; the next backend of the hash replaces a replica that is down";
    refuse(!is_next, "this failover", help);
}

/// Reports a pool that has fewer backends than replicas.
fn enough(sections: &Sections<'_>, place: &Place, pool: &Pool, count: u8) {
    let members = pool.members.len();
    if members < count.into() {
        let backends = count_of(members, "backend");
        let message =
            format!("{count} replicas need {count} backends, but pool \"{}\" has {backends}", pool.name);
        sections.report.error(place, (message, "add backends, or reduce replicas.count"));
    }
}
