//! Checks keyed pools. Rejects settings that would silently move keys to other backends: slow
//! starts, fallbacks, remote clusters and TCP services.
//!
//! A pool is keyed if it has a `kv` table and is used by a UDP service, or if the routes or the
//! failover of a keyed pool refer to it. This module also determines the names of backends on a
//! ketama ring. The module `kv` reads the table.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use super::check::CheckKind;
use super::kv::{KvHash, Rejoin};
use super::pool::{Member, Pool, PoolDraft};
use super::ports::{Ports, Protocol};
use super::sections::Sections;
use super::vip::{ServiceDraft, VipDraft};

/// Runs all checks of keyed pools.
pub(super) fn check(sections: &Sections<'_>, flattened: &[Arc<Pool>]) {
    let mut with_keys = BTreeSet::new();
    for (name, pool) in sections.pools.iter().filter(|(_, pool)| pool.kv.is_some()) {
        with_keys.insert(&**name);
        with_keys.extend(pool.kv_pools().map(|name| &*name.value));
    }
    for name in &with_keys {
        let Some(pool) = sections.pools.get(*name) else { continue };
        moves_keys(sections, pool);
    }
    let mut several: BTreeMap<&str, bool> = BTreeMap::new();
    for vip in &sections.vips {
        for service in &vip.services {
            by_key(sections, vip, service);
            let is_keyed = with_keys.contains(&*service.pool.value);
            if let (true, Some(on_drain)) = (is_keyed, &service.on_drain) {
                let message = "\"on_drain\" has no effect, because requests of keyed pools have no flows";
                sections.report.warning(&on_drain.place, (message, "remove \"on_drain\""));
            }
            let several_of =
                |name| *several.entry(name).or_insert_with(|| has_several_servers(sections, flattened, name));
            over_tcp(sections, service, is_keyed.then_some(&*service.pool.value).map(several_of));
        }
    }
}

/// Rejects a TCP service whose keyed pool has several servers, unless the service has `tcp =
/// "by-flow"`. The server is chosen for each connection, so two connections could store and read
/// the same key on different servers. Warns if `tcp` is set but the pool is not keyed.
/// `has_several_servers` is `None` if the pool is not keyed.
fn over_tcp(sections: &Sections<'_>, service: &ServiceDraft, has_several_servers: Option<bool>) {
    let pool = &service.pool.value;
    match (has_several_servers, &service.by_flow) {
        (None, Some(tcp)) => {
            let message = format!("tcp = \"by-flow\" has no effect, because pool \"{pool}\" is not keyed");
            sections.report.warning(&tcp.place, (message, "remove \"tcp\""));
        }
        (Some(true), None) if service.protocol == Protocol::Tcp => {
            let message =
                format!("a TCP service would scatter the keys of pool \"{pool}\" over several servers");
            let help = "the load balancer does not read keys over TCP: a key that one connection stores is missing on \
                        the server of another; remove the service, or accept this with tcp = \"by-flow\"";
            sections.report.error(&service.place, (message, help));
        }
        _ => {}
    }
}

/// Returns the flattened pool with this name. The pools are sorted by name.
pub(super) fn flat<'f>(flattened: &'f [Arc<Pool>], name: &str) -> Option<&'f Arc<Pool>> {
    flattened.get(flattened.binary_search_by(|pool| (*pool.name).cmp(name)).ok()?)
}

/// Returns `true` if more than one server stores the keys of a pool, including the pools of its
/// routes.
fn has_several_servers(sections: &Sections<'_>, flattened: &[Arc<Pool>], name: &str) -> bool {
    let kv = sections.pools.get(name).and_then(|pool| pool.kv.as_ref()?.value.as_ref());
    let routed = kv.into_iter().flat_map(|kv| &kv.routes).map(|route| &*route.pool);
    let named: BTreeSet<&str> = routed.chain([name]).collect();
    let pools = named.into_iter().filter_map(|name| flat(flattened, name));
    let mut servers = pools.flat_map(|pool| &pool.members).map(|member| &*member.backend.name);
    servers.next().is_some_and(|first| servers.any(|server| server != first))
}

/// Rejects agent checks, slow start and fallback, which would move keys to different backends.
fn moves_keys(sections: &Sections<'_>, pool: &PoolDraft) {
    let refuse = |place, key: &str| {
        let message = format!("a keyed pool cannot have {key}");
        sections.report.error(place, (message, "this setting would silently move keys to other backends"));
    };
    let is_agent = |name: &Arc<str>| {
        let check = sections.checks.get(name).and_then(|draft| draft.value.as_ref());
        check.is_some_and(|check| matches!(check.kind, CheckKind::Agent(_)))
    };
    for check in pool.checks.iter().filter(|check| is_agent(&check.value)) {
        refuse(&check.place, "an agent check");
    }
    if let Some(slow_start) = &pool.slow_start {
        refuse(&slow_start.place, "\"slow_start\"");
    }
    if let Some(fallback) = &pool.fallback {
        refuse(&fallback.place, "\"fallback\"");
    }
}

/// Rejects `hash` and `remotes` for services of keyed pools, because the key determines the
/// backend.
fn by_key(sections: &Sections<'_>, vip: &VipDraft, service: &ServiceDraft) {
    let is_keyed = sections.pools.get(&service.pool.value).is_some_and(|pool| pool.kv.is_some());
    if !is_keyed || service.protocol != Protocol::Udp {
        return;
    }
    if let Some(remote) = vip.remotes.first() {
        let message = format!("a VIP with keyed pool \"{}\" cannot have \"remotes\"", service.pool.value);
        sections.report.error(&remote.place, (message, "remotes would silently move keys to other clusters"));
    }
    if let Some(hash) = &service.hash {
        let message = format!("a service of keyed pool \"{}\" cannot have \"hash\"", service.pool.value);
        sections.report.error(&hash.place, (message, "the key chooses the backend"));
    }
    if let Some(kv) =
        sections.pools.get(&service.pool.value).and_then(|pool| pool.kv.as_ref()?.value.as_ref())
        && kv.rejoin == Rejoin::Flush
        && service.ports.each().is_none_or(|ports| ports.count() > MAX_FLUSHED_PORTS)
    {
        let message = format!(
            "pool \"{}\" with rejoin = \"flush\" can have at most {MAX_FLUSHED_PORTS} ports, got {}",
            service.pool.value, service.ports
        );
        let help = "each server is emptied once per port; list fewer ports, or set rejoin = \"serve\"";
        sections.report.error(&service.place, (message, help));
    }
}

/// The ports on which clients access the servers of a ring. `None` represents a range of ports.
pub(super) type RingPorts = BTreeSet<Option<u16>>;

/// Returns the pools with a ketama ring: the pools with a ketama `hash`, and the pools in their
/// routes and failover.
pub(super) fn rings<'s>(sections: &'s Sections<'_>) -> BTreeMap<&'s str, RingPorts> {
    let mut used: BTreeMap<&str, RingPorts> = BTreeMap::new();
    let services = sections.vips.iter().flat_map(|vip| &vip.services);
    for service in services.filter(|service| service.protocol == Protocol::Udp) {
        let used = used.entry(&service.pool.value).or_default();
        // Two different ports are enough to decide that a ring has no default port.
        used.extend(ports(&service.ports));
        while used.len() > 2 {
            used.pop_last();
        }
    }
    let mut rings: BTreeMap<&str, RingPorts> = BTreeMap::new();
    for (name, pool) in &sections.pools {
        let on_ring = pool.kv.as_ref().and_then(|kv| kv.value.as_ref()).map(|kv| kv.hash != KvHash::Maglev);
        if on_ring != Some(true) {
            continue;
        }
        let ports = used.remove(&**name).unwrap_or_default();
        for pool in [&**name].into_iter().chain(pool.kv_pools().map(|name| &*name.value)) {
            rings.entry(pool).or_default().extend(&ports);
        }
    }
    rings
}

fn ports(ports: &Ports) -> Vec<Option<u16>> {
    match ports {
        Ports::Any => vec![None],
        Ports::Listed(ranges) => {
            ranges.iter().map(|range| (range.start() == range.end()).then_some(*range.start())).collect()
        }
    }
}

/// Adds the ring names to the members of a pool. If the pool has no ring, existing ring names are
/// removed.
pub(super) fn name_on_ring(
    sections: &Sections<'_>,
    pool: &str,
    members: Vec<Member>,
    ring: Option<&RingPorts>,
) -> Vec<Member> {
    let Some(ports) = ring else {
        return members.into_iter().map(|member| Member { ring_name: None, ..member }).collect();
    };
    let only = only_port(ports);
    let wrong = |message: String, help: &str| {
        let draft = sections.pools.get(pool);
        draft.inspect(|draft| sections.report.error(&draft.place, (message, help)));
    };
    let mut seen: BTreeMap<Arc<str>, Arc<str>> = BTreeMap::new();
    let mut named = Vec::with_capacity(members.len());
    for member in members {
        let backend = &member.backend;
        let default = only.map(|port| default_name(backend.address, port));
        let Some(name) = member.ring_name.clone().or(default) else {
            let message = format!("backend \"{}\" needs a \"ring_name\"", backend.name);
            wrong(message, PORTS);
            return named;
        };
        if let Some(other) = seen.insert(Arc::clone(&name), Arc::clone(&backend.name)) {
            let message =
                format!("backends \"{other}\" and \"{}\" have the ring name \"{name}\"", backend.name);
            wrong(message, "set a different ring_name for each backend of a pool");
        }
        named.push(Member { ring_name: Some(name), ..member });
    }
    named
}

/// If all services of a ring use the same port, returns this port. If there are no services,
/// returns the memcached port.
fn only_port(ports: &RingPorts) -> Option<u16> {
    let mut ports = ports.iter();
    match (ports.next(), ports.next()) {
        (None, _) => Some(MEMCACHED_PORT),
        (Some(only), None) => *only,
        _ => None,
    }
}

/// Returns the default ring name of a server: its address, followed by the port unless it is the
/// memcached port.
fn default_name(address: IpAddr, port: u16) -> Arc<str> {
    let name = if port == MEMCACHED_PORT { address.to_string() } else { format!("{address}:{port}") };
    name.into()
}

const MEMCACHED_PORT: u16 = 11_211;
const PORTS: &str = "services at several ports use this ring; add ring_name to each backend, or use one port";
/// The maximum number of ports that can be flushed. Each port of a server is flushed separately.
const MAX_FLUSHED_PORTS: usize = 16;
