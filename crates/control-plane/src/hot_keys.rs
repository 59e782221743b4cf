//! Creates the counters with which packet threads find the most requested memcached keys.
//!
//! `kv-switch` implements the counters, `questions` sends the counters to the packet threads, and
//! `rows` converts the counts to an API response.

use std::collections::HashSet;
use std::hash::{BuildHasher, Hasher, RandomState};

use admin::{FlowQuery, HotKeysCommand};
use forwarder::{Service, Snapshot};
use kv_switch::{HotKeys, KeyHash};

use crate::questions::{Counters, Filters};
use crate::refused::Refused;

/// Creates one counter for each packet thread.
///
/// # Errors
/// Returns [`Refused::NotFound`] if the VIP is unknown, or if no service of the VIP has a keyed
/// pool.
/// # Cost
/// Each counter has room for 1,024 keys and uses about 300 KB.
pub fn counters(order: &HotKeysCommand, threads: usize, snapshot: &Snapshot) -> Result<Counters, Refused> {
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
        return Err(Refused::NotFound(format!("no service{of} has a keyed pool")));
    }
    // The hash seeds are random. With a known seed, clients could request keys whose hashes
    // collide.
    let [first, second] = [(); 2].map(|()| RandomState::new().build_hasher().finish());
    let counter = |_| Box::new(HotKeys::new(ROOM, services.iter().copied(), KeyHash::sip(first, second)));
    Ok((0..threads).map(counter).collect())
}

/// The number of keys per counter. A key is always found if it receives at least 1/1,024 of a
/// thread's requests.
const ROOM: usize = 1_024;

#[cfg(test)]
mod tests;
