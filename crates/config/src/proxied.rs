//! Checks keyed pools with `path = "proxied"`. Rejects settings that need the VIP address on the
//! backends.
//!
//! The checks also apply to the pools in the routes and the failover of such a pool. The module
//! `kv` reads the key `path`.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use config_text::{At, Place};
use packet::Encapsulation;

use super::check::Via;
use super::keyed::flat;
use super::kv::KvPath;
use super::pool::{Member, Pool, PoolDraft};
use super::ports::Protocol;
use super::sections::Sections;

/// Checks all keyed pools with `path = "proxied"`.
pub(super) fn check(sections: &Sections<'_>, flattened: &[Arc<Pool>]) {
    let vips = vips(sections);
    let mut checked: BTreeMap<&str, [Option<&Member>; 2]> = BTreeMap::new();
    for (name, draft) in sections.pools.iter().filter(|(_, pool)| is_proxied(pool)) {
        let named: BTreeSet<&str> =
            [&**name].into_iter().chain(draft.kv_pools().map(|name| &*name.value)).collect();
        let mut firsts_of_all = [None; 2];
        for pool in named.into_iter().filter_map(|name| flat(flattened, name)) {
            let firsts = *checked.entry(&pool.name).or_insert_with(|| {
                let place = sections.pools.get(&pool.name).map_or(&draft.place, |draft| &draft.place);
                members(sections, place, pool);
                [false, true]
                    .map(|ipv4| pool.members.iter().find(|member| member.backend.address.is_ipv4() == ipv4))
            });
            firsts_of_all = [0, 1].map(|family| firsts_of_all[family].or(firsts[family]));
        }
        vips.get(&**name).into_iter().flatten().for_each(|vip| families(sections, vip, firsts_of_all));
    }
}

/// The first IPv6 address and the first IPv4 address of a VIP.
type Firsts<'s> = [Option<&'s At<IpAddr>>; 2];

/// Returns the VIPs of each pool that have a UDP service for the pool.
fn vips<'s>(sections: &'s Sections<'_>) -> BTreeMap<&'s str, Vec<Firsts<'s>>> {
    let mut vips: BTreeMap<&str, Vec<Firsts<'s>>> = BTreeMap::new();
    for vip in &sections.vips {
        let firsts = [false, true].map(|ipv4| vip.addresses.iter().find(|at| at.value.is_ipv4() == ipv4));
        let udp = vip.services.iter().filter(|service| service.protocol == Protocol::Udp);
        let pools: BTreeSet<&str> = udp.map(|service| &*service.pool.value).collect();
        pools.into_iter().for_each(|pool| vips.entry(pool).or_default().push(firsts));
    }
    vips
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
fn families(sections: &Sections<'_>, vip: &Firsts<'_>, members: [Option<&Member>; 2]) {
    let [v6, v4] = members;
    for (address, member) in vip.iter().zip([v4, v6]) {
        let (Some(address), Some(member)) = (address, member) else { continue };
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
