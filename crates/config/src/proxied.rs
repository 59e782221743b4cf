//! Checks keyed pools with `path = "proxied"`. Rejects settings that need the VIP address on the
//! backends.
//!
//! The checks also apply to the pools in the routes and the failover of such a pool. The module
//! `kv` reads the key `path`.

use std::collections::BTreeSet;
use std::sync::Arc;

use config_text::Place;
use packet::Encapsulation;

use super::check::Via;
use super::kv::KvPath;
use super::pool::{Pool, PoolDraft};
use super::ports::Protocol;
use super::sections::Sections;

/// Checks all keyed pools with `path = "proxied"`.
pub(super) fn check(sections: &Sections<'_>, flattened: &[Arc<Pool>]) {
    for (name, draft) in sections.pools.iter().filter(|(_, pool)| is_proxied(pool)) {
        let named: BTreeSet<&str> =
            [&**name].into_iter().chain(draft.kv_pools().map(|name| &*name.value)).collect();
        for pool in flattened.iter().filter(|pool| named.contains(&*pool.name)) {
            let place = sections.pools.get(&pool.name).map_or(&draft.place, |draft| &draft.place);
            members(sections, place, pool);
            families(sections, name, pool);
        }
    }
}

fn is_proxied(pool: &PoolDraft) -> bool {
    let kv = pool.kv.as_ref().and_then(|kv| kv.value.as_ref());
    kv.is_some_and(|kv| matches!(kv.path, KvPath::Proxied { .. }))
}

/// Rejects encapsulations, and health checks that probe through the VIP. Proxied requests are sent
/// to the backends' own addresses without encapsulation.
fn members(sections: &Sections<'_>, place: &Place, pool: &Pool) {
    if let Some(member) = pool.members.iter().find(|member| member.encapsulation.kind != Encapsulation::L2) {
        let (backend, encapsulation) = (&member.backend.name, &member.encapsulation.name);
        let message = format!(
            "path = \"proxied\" needs encapsulation = \"l2\", but backend \"{backend}\" has \"{encapsulation}\""
        );
        let help = "requests are sent to the backend's own address without encapsulation";
        sections.report.error(place, (message, help));
    }
    let checks = pool.members.iter().flat_map(|member| &*member.checks);
    if let Some(check) = checks.into_iter().find(|check| check.via == Via::Vip) {
        let message = format!(
            "path = \"proxied\" does not support check \"{}\", which probes through the VIP",
            check.name
        );
        let help = "use checks with via = \"backend\"; backends need not have the VIP";
        sections.report.error(place, (message, help));
    }
}

/// Rejects backends whose address family differs from that of the VIP, because a proxied request
/// keeps its address family.
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
            let message = format!(
                "VIP address {} and backend address {} have different families, which path = \"proxied\" does not support",
                address.value, member.backend.address
            );
            let family = if address.value.is_ipv4() { "IPv6" } else { "IPv4" };
            let help =
                format!("use {family} addresses for the VIP, or backends with addresses of the VIP's family");
            sections.report.error(&address.place, (message, help));
        }
    }
}
