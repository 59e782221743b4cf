//! Keyed pools whose keys have replicas, against what may not stand beside these.
//!
//! In: drafts, and the pools as they are flattened. Out: problems. Pools that routes name have as many replicas.
//! Not here: the key `replicas` (`kv_replicas`).

use std::collections::BTreeSet;
use std::sync::Arc;

use config_text::Place;

use super::kv::{Failover, Kv, KvPath, KvProtocol};
use super::pool::Pool;
use super::sections::Sections;

/// Checks all of them.
pub(super) fn check(sections: &Sections<'_>, flattened: &[Arc<Pool>]) {
    for (name, draft) in &sections.pools {
        let Some((place, kv)) = draft.kv.as_ref().and_then(|kv| Some((&kv.place, kv.value.as_ref()?))) else {
            continue;
        };
        let Some(replicas) = kv.replicas else { continue };
        beside(sections, &place.key("replicas"), kv);
        let named: BTreeSet<&str> =
            [&**name].into_iter().chain(draft.kv_pools().map(|name| &*name.value)).collect();
        for pool in flattened.iter().filter(|pool| named.contains(&*pool.name)) {
            enough(sections, place, pool, replicas.count);
        }
    }
}

/// What a pool has besides.
fn beside(sections: &Sections<'_>, place: &Place, kv: &Kv) {
    let refuse = |is_wrong: bool, beside: &str, allowed: &str| {
        if is_wrong {
            sections.report.error(place, format!("replicas beside {beside}"), allowed);
        }
    };
    refuse(kv.cache.is_some(), "cache", "one of them: copies are of one backend's value");
    let is_through = matches!(kv.path, KvPath::Through { .. });
    refuse(is_through, "path = \"through\"", "path = \"direct\"");
    let is_off = kv.gather.is_none() && kv.protocol == KvProtocol::Memcached;
    refuse(is_off, "gather = false", "gather, whose timeout is that of writes too");
    let is_next = kv.failover == Failover::Next;
    let allowed = "failover = { to = \"next\" }: the next choice stands in for a replica";
    refuse(!is_next, "another failover", allowed);
}

/// Each key has as many backends as it is said to have.
fn enough(sections: &Sections<'_>, place: &Place, pool: &Pool, count: u8) {
    let members = pool.members.len();
    if members < count.into() {
        let backends = if members == 1 { "backend" } else { "backends" };
        let found = format!("{count} replicas beside {members} {backends} of the pool \"{}\"", pool.name);
        sections.report.error(place, found, "at least as many backends as replicas");
    }
}
