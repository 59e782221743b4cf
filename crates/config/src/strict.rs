//! Rejects a strict cache if several machines serve the VIP.
//!
//! With `strict = true`, a cached value is never older than an acknowledged write. The reply to a
//! write passes through a single machine, so the caches of the other machines would keep the old
//! value. The module `kv_cache` reads the key `strict`, and `replicas` rejects the combination of a
//! cache with replicas.

use super::ports::Protocol;
use super::sections::Sections;
use super::vip::VipDraft;

/// Checks all keyed pools with a strict cache.
pub(super) fn check(sections: &Sections<'_>) {
    for (name, draft) in &sections.pools {
        let Some((place, kv)) = draft.kv.as_ref().and_then(|kv| Some((&kv.place, kv.value.as_ref()?))) else {
            continue;
        };
        if !kv.cache.is_some_and(|cache| cache.strict) {
            continue;
        }
        let is_keyed = |vip: &&VipDraft| {
            vip.services
                .iter()
                .any(|service| service.protocol == Protocol::Udp && service.pool.value == *name)
        };
        let machines = |vip: &VipDraft| sections.machines_of(vip.shard()).count();
        let shared = sections.vips.iter().filter(is_keyed).find(|vip| machines(vip) > 1);
        if let Some(vip) = shared {
            let message = format!(
                "strict = true needs a VIP with one machine, but VIP \"{}\" has {} machines",
                vip.name,
                machines(vip)
            );
            let help =
                "give the VIP a shard with one machine; other machines do not see the replies to writes";
            sections.report.error(&place.key("cache").key("strict"), (message, help));
        }
    }
}
