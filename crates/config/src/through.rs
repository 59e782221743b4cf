//! Keyed pools whose requests pass both ways, against what needs a VIP on the backends.
//!
//! In: drafts, and the pools as they are flattened. Out: problems. The pools that their routes and failover name are asked the same way.
//! Not here: the key `path` (`kv`).

use std::collections::BTreeSet;
use std::sync::Arc;

use config_text::Place;
use packet::Encapsulation;

use super::check::Via;
use super::kv::KvPath;
use super::pool::{Pool, PoolDraft};
use super::ports::Protocol;
use super::sections::Sections;

/// Checks all of them.
pub(super) fn check(sections: &Sections<'_>, flattened: &[Arc<Pool>]) {
    for (name, draft) in sections.pools.iter().filter(|(_, pool)| is_through(pool)) {
        let named: BTreeSet<&str> =
            [&**name].into_iter().chain(draft.kv_pools().map(|name| &*name.value)).collect();
        for pool in flattened.iter().filter(|pool| named.contains(&*pool.name)) {
            let place = sections.pools.get(&pool.name).map_or(&draft.place, |draft| &draft.place);
            members(sections, place, pool);
            families(sections, name, pool);
        }
    }
}

fn is_through(pool: &PoolDraft) -> bool {
    let kv = pool.kv.as_ref().and_then(|kv| kv.value.as_ref());
    kv.is_some_and(|kv| matches!(kv.path, KvPath::Through { .. }))
}

/// Nothing is wrapped, and nothing is asked at the VIP.
fn members(sections: &Sections<'_>, place: &Place, pool: &Pool) {
    if let Some(member) = pool.members.iter().find(|member| member.encapsulation.kind != Encapsulation::L2) {
        let (backend, encapsulation) = (&member.backend.name, &member.encapsulation.name);
        let found = format!("backend \"{backend}\" by {encapsulation} beside path = \"through\"");
        sections.report.error(
            place,
            found,
            "encapsulation = \"l2\": it is asked at its own address, by its route",
        );
    }
    let checks = pool.members.iter().flat_map(|member| &*member.checks);
    if let Some(check) = checks.into_iter().find(|check| check.via == Via::Vip) {
        let found = format!("\"{}\", a check via a VIP, beside path = \"through\"", check.name);
        sections.report.error(place, found, "checks with via = \"backend\": backends need not have the VIP");
    }
}

/// A request and its answer are of one family from end to end.
fn families(sections: &Sections<'_>, keyed: &str, pool: &Pool) {
    for vip in &sections.vips {
        let is_keyed = |service: &super::vip::ServiceDraft| {
            service.protocol == Protocol::Udp && &*service.pool.value == keyed
        };
        if !vip.services.iter().any(is_keyed) {
            continue;
        }
        for address in &vip.addresses {
            let other = pool
                .members
                .iter()
                .find(|member| member.backend.address.is_ipv4() != address.value.is_ipv4());
            let Some(member) = other else { continue };
            let found =
                format!("{} beside path = \"through\" to backend {}", address.value, member.backend.address);
            let family = if address.value.is_ipv4() { "IPv6" } else { "IPv4" };
            let allowed = format!("addresses of {family} alone, the family of the pool's backends");
            sections.report.error(&address.place, found, allowed);
        }
    }
}
