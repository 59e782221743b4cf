//! The keys that are asked for most: counters for packet threads.
//!
//! In: an order of the admin API. Out: a counter for each thread.
//! Not here: how keys are counted (`kv-switch`), what they have come to (`rows`), how counters reach the threads (`questions`), when they are fetched (`sluicegate`).

use std::collections::HashSet;
use std::hash::{BuildHasher, Hasher, RandomState};

use admin::{FlowQuery, HotKeysOrder};
use forwarder::{Service, Snapshot};
use kv_switch::{HotKeys, KeyHash};

use crate::questions::{Counters, Filters};
use crate::refused::Refused;

/// Counters for so many threads.
///
/// # Errors
/// There is no such VIP, or no service of it chooses by key.
/// # Cost
/// 1,024 keys a thread, some 300 KB.
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

/// Keys that a thread knows at once: one with a thousandth of a thread's requests is not missed.
const ROOM: usize = 1_024;

#[cfg(test)]
mod tests;
