//! The keys that are asked for most: counters for packet threads, and what they have come to.
//!
//! In: an order of the admin API; counters as they come back. Out: a counter for each thread; rows, with the backends that have
//! each key now.
//! Not here: how keys are counted (`kv-switch`), how counters reach the threads (`questions`), when they are fetched (`sluicegate`).

use std::collections::{BTreeMap, HashSet};
use std::hash::{BuildHasher, Hasher, RandomState};

use admin::view::{HotKeyRow, HotKeysView, HotServiceRow};
use admin::{FlowQuery, HotKeysOrder};
use forwarder::{Service, ServiceId, Snapshot};
use kv_switch::{HotKey, HotKeys, KeyHash, hottest};

use crate::questions::{Counters, Filters};
use crate::refused::Refused;

/// Counters for so many threads.
///
/// # Errors
/// There is no such VIP, or no service of it chooses by key.
/// # Cost
/// [`ROOM`] keys a thread, some 300 KB.
pub fn counters(order: &HotKeysOrder, threads: usize, snapshot: &Snapshot) -> Result<Counters, Refused> {
    let vip =
        order.vip.as_ref().map(|name| Filters::of(&FlowQuery::Vip(name.clone()), snapshot)).transpose()?;
    let is_meant = |service: &Service| match &vip {
        Some(Filters::Services(services)) => services.contains(&service.id),
        _ => true,
    };
    let keyed = snapshot.services().iter().filter(|service| service.keyed.is_some() && is_meant(service));
    let services: HashSet<u32> = keyed.map(|service| service.id.0).collect();
    if services.is_empty() {
        let of = order.vip.as_ref().map(|name| format!(" of VIP \"{name}\"")).unwrap_or_default();
        return Err(Refused::NotFound(format!("no service{of} chooses by key")));
    }
    // Clients choose the keys: who knew the hash would choose those that share a place.
    let [first, second] = [(); 2].map(|()| RandomState::new().build_hasher().finish());
    let counter = |_| Box::new(HotKeys::new(ROOM, services.iter().copied(), KeyHash::sip(first, second)));
    Ok((0..threads).map(counter).collect())
}

/// What counters have come to in so many seconds.
#[must_use]
pub fn view(counters: &Counters, seconds: f64, limit: usize, snapshot: &Snapshot) -> HotKeysView {
    let per_second = |count: u64| count as f64 / seconds.max(LEAST_SECONDS);
    let services: BTreeMap<u32, &str> =
        snapshot.services().iter().map(|service| (service.id.0, &*service.name)).collect();
    let asked = |service: u32| counters.iter().map(|counter| counter.asked(service)).sum::<u64>();
    let service_row = |(id, name): (&u32, &&str)| HotServiceRow {
        service: (*name).to_owned(),
        requests_per_second: per_second(asked(*id)),
    };
    let key_row = |hot: &HotKey| HotKeyRow {
        // One that a reload has taken out meanwhile has no name.
        service: services.get(&hot.service).copied().unwrap_or("-").to_owned(),
        key: hot.key.escape_ascii().to_string(),
        requests_per_second: per_second(hot.at_least),
        requests_per_second_at_most: per_second(hot.at_most),
        share: hot.at_least as f64 / asked(hot.service).max(1) as f64,
        backends: backends(hot, snapshot),
    };
    HotKeysView {
        seconds,
        services: services.iter().filter(|(id, _)| asked(**id) > 0).map(service_row).collect(),
        keys: hottest(counters.iter().map(|counter| &**counter), limit).iter().map(key_row).collect(),
    }
}

fn backends(hot: &HotKey, snapshot: &Snapshot) -> Vec<String> {
    let slots = snapshot.owners_of_key(ServiceId(hot.service), &hot.key);
    let names = slots.filter_map(|slot| snapshot.slots().get(slot.0 as usize));
    let mut names: Vec<String> = names.map(|slot| slot.backend.to_string()).collect();
    names.sort();
    names.dedup();
    names
}

/// Keys that a thread knows at once: one with a thousandth of a thread's requests is not missed.
const ROOM: usize = 1_024;
/// Of a count that was ended as it began.
const LEAST_SECONDS: f64 = 0.001;

#[cfg(test)]
mod tests;
