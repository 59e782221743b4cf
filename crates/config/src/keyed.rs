//! Keyed pools against what would move keys unseen: slow starts, fallbacks, other clusters.
//!
//! In: the drafts of pools and VIPs. Out: problems. A pool is keyed where it has `kv` and a UDP service names it; the pools that its
//! routes and its failover name have keys too.
//! Not here: the table `kv` itself (`kv`).

use std::collections::BTreeSet;

use super::pool::PoolDraft;
use super::ports::Protocol;
use super::sections::Sections;
use super::vip::{ServiceDraft, VipDraft};

/// Checks everything that has to do with keys.
pub(super) fn check(sections: &Sections<'_>) {
    let mut with_keys = BTreeSet::new();
    for (name, pool) in sections.pools.iter().filter(|(_, pool)| pool.kv.is_some()) {
        with_keys.insert(&**name);
        with_keys.extend(pool.kv_pools().map(|name| &*name.value));
    }
    for name in &with_keys {
        let Some(pool) = sections.pools.get(*name) else { continue };
        moves_keys(sections, pool);
    }
    for vip in &sections.vips {
        vip.services.iter().for_each(|service| by_key(sections, vip, service));
    }
}

/// A key would be at one backend at first, and at another without a word.
fn moves_keys(sections: &Sections<'_>, pool: &PoolDraft) {
    let refuse =
        |place, found: &str| sections.report.error(place, found, "no such key: it would move keys unseen");
    if let Some(slow_start) = &pool.slow_start {
        refuse(&slow_start.place, "a slow_start of a pool that has keys");
    }
    if let Some(fallback) = &pool.fallback {
        refuse(&fallback.place, "a fallback of a pool that has keys");
    }
}

/// A service that chooses by key has no other hash, and no other cluster.
fn by_key(sections: &Sections<'_>, vip: &VipDraft, service: &ServiceDraft) {
    let is_keyed = sections.pools.get(&service.pool.value).is_some_and(|pool| pool.kv.is_some());
    if !is_keyed || service.protocol != Protocol::Udp {
        return;
    }
    if let Some(remote) = vip.remotes.first() {
        let found = format!("remotes beside the keyed pool \"{}\"", service.pool.value);
        sections.report.error(&remote.place, found, "no remotes: they would move keys unseen");
    }
    if let Some(hash) = &service.hash {
        let found = format!("a hash beside the keyed pool \"{}\"", service.pool.value);
        sections.report.error(&hash.place, found, "nothing here: the key chooses");
    }
}
