//! Keyed pools against what would move keys unseen: slow starts, fallbacks, other clusters.
//!
//! In: the drafts of pools and VIPs. Out: problems. A pool is keyed where it has `kv` and a UDP service names it; the pools that its
//! routes and its failover name have keys too.
//! Here too: the names of backends on the rings of pools whose `hash` is that of clients, and which pools these are.
//! Not here: the table `kv` itself (`kv`).

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use super::kv::{KvHash, Rejoin};
use super::pool::{Member, PoolDraft};
use super::ports::{Ports, Protocol};
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
    if let Some(kv) =
        sections.pools.get(&service.pool.value).and_then(|pool| pool.kv.as_ref()?.value.as_ref())
        && kv.rejoin == Rejoin::Flush
        && service.ports.each().is_none_or(|ports| ports.count() > MAX_FLUSHED_PORTS)
    {
        let found = format!(
            "ports {} beside rejoin = \"flush\" of the pool \"{}\"",
            service.ports, service.pool.value
        );
        let allowed = format!(
            "at most {MAX_FLUSHED_PORTS} ports, at each of which a server is emptied, or rejoin = \"serve\""
        );
        sections.report.error(&service.place, found, allowed);
    }
}

/// The ports at which clients have the servers of a ring; `None` among them: a range of ports.
pub(super) type RingPorts = BTreeSet<Option<u16>>;

/// The pools whose keys are on rings: those with such a `hash`, and those to which their routes and failover lead.
pub(super) fn rings<'s>(sections: &'s Sections<'_>) -> BTreeMap<&'s str, RingPorts> {
    let mut rings: BTreeMap<&str, RingPorts> = BTreeMap::new();
    for (name, pool) in &sections.pools {
        let on_ring = pool.kv.as_ref().and_then(|kv| kv.value.as_ref()).map(|kv| kv.hash != KvHash::Maglev);
        if on_ring != Some(true) {
            continue;
        }
        let services = sections.vips.iter().flat_map(|vip| &vip.services);
        let keyed =
            services.filter(|service| service.protocol == Protocol::Udp && service.pool.value == *name);
        let ports: RingPorts = keyed.flat_map(|service| ports(&service.ports)).collect();
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

/// The members of a pool under their names on its ring; without one where it has none.
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
    let wrong = |found: String, allowed: &str| {
        sections.pools.get(pool).inspect(|draft| sections.report.error(&draft.place, found, allowed));
    };
    let mut seen: BTreeMap<Arc<str>, Arc<str>> = BTreeMap::new();
    let mut named = Vec::with_capacity(members.len());
    for member in members {
        let backend = &member.backend;
        let default = only.map(|port| default_name(backend.address, port));
        let Some(name) = member.ring_name.clone().or(default) else {
            wrong(
                format!("no ring_name of backend \"{}\" beside services at several ports", backend.name),
                PORTS,
            );
            return named;
        };
        if let Some(other) = seen.insert(Arc::clone(&name), Arc::clone(&backend.name)) {
            let found = format!("backends \"{other}\" and \"{}\" as \"{name}\" on one ring", backend.name);
            wrong(found, "each ring_name once in a pool");
        }
        named.push(Member { ring_name: Some(name), ..member });
    }
    named
}

/// The port that all services of a ring have; memcached's own where there is no service.
fn only_port(ports: &RingPorts) -> Option<u16> {
    let mut ports = ports.iter();
    match (ports.next(), ports.next()) {
        (None, _) => Some(MEMCACHED_PORT),
        (Some(only), None) => *only,
        _ => None,
    }
}

/// A server's name where its file gives it none: its address, with the port where that is not memcached's own.
fn default_name(address: IpAddr, port: u16) -> Arc<str> {
    let name = if port == MEMCACHED_PORT { address.to_string() } else { format!("{address}:{port}") };
    name.into()
}

const MEMCACHED_PORT: u16 = 11_211;
const PORTS: &str = "a ring_name for each backend, or one port for all UDP services of the pool";
/// A server is asked at each of them by itself.
const MAX_FLUSHED_PORTS: usize = 16;
