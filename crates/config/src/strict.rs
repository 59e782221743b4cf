//! Keyed pools whose copies are never older than an acknowledged write, against several machines that have their VIP.
//!
//! In: drafts. Out: problems. An answer passes one machine, and no other one hears of it: its copies would be served on.
//! Not here: the key `strict` (`kv_cache`), replicas, which no cache stands beside (`replicas`).

use super::ports::Protocol;
use super::sections::Sections;
use super::vip::VipDraft;

/// Checks all of them.
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
            let found =
                format!("strict = true beside {} machines that have VIP \"{}\"", machines(vip), vip.name);
            let allowed =
                "one machine, alone in the VIP's shard: no other one hears of an answer that passes it";
            sections.report.error(&place.key("cache").key("strict"), found, allowed);
        }
    }
}
