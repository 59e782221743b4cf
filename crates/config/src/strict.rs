//! Rejects a strict cache if several machines serve the VIP.
//!
//! With `strict = true`, a cached value is never older than an acknowledged write. The reply to a
//! write passes through a single machine, so the caches of the other machines would keep the old
//! value. The module `kv_cache` reads the key `strict`, and the module `replicas` rejects a cache
//! together with replicas.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::ports::Protocol;
use super::sections::Sections;
use super::vip::VipDraft;

/// Checks all keyed pools with a strict cache.
pub(super) fn check(sections: &Sections<'_>) {
    let shared = shared(sections);
    for (name, draft) in &sections.pools {
        let Some((place, kv)) = draft.kv.as_ref().and_then(|kv| Some((&kv.place, kv.value.as_ref()?))) else {
            continue;
        };
        let is_strict = kv.cache.is_some_and(|cache| cache.strict);
        if let Some((vip, machines)) = shared.get(&**name).filter(|_| is_strict) {
            let message = format!(
                "strict = true needs a VIP with one machine, but VIP \"{}\" has {machines} machines",
                vip.name
            );
            let help =
                "give the VIP a shard with one machine; other machines do not see the replies to writes";
            sections.report.error(&place.key("cache").key("strict"), (message, help));
        }
    }
}

/// Returns the first VIP with several machines of each pool that has a UDP service, and the number
/// of these machines.
fn shared<'s>(sections: &'s Sections<'_>) -> BTreeMap<&'s str, (&'s VipDraft, usize)> {
    let mut shards: BTreeMap<&Arc<str>, usize> = BTreeMap::new();
    for shard in sections.machines.iter().filter_map(|machine| machine.shard.as_ref()) {
        *shards.entry(shard).or_default() += 1;
    }
    let mut shared = BTreeMap::new();
    for vip in &sections.vips {
        let all = sections.machines.len();
        let machines = vip.shard().map_or(all, |shard| shards.get(shard).copied().unwrap_or(0));
        let udp = vip.services.iter().filter(|service| service.protocol == Protocol::Udp);
        for service in udp.filter(|_| machines > 1) {
            shared.entry(&*service.pool.value).or_insert((vip, machines));
        }
    }
    shared
}
