//! Builds the API response with the most requested keys and the backends that own each key.

use std::collections::BTreeMap;

use admin::view::{HotKeyRow, HotKeysView, HotServiceRow};
use forwarder::{ServiceId, Snapshot};
use kv_switch::{HotKey, hottest};

use crate::questions::Counters;

/// Converts the key counts to at most `limit` rows. Requests were counted for `seconds` seconds.
#[must_use]
pub fn hot_keys_view(counters: &Counters, seconds: f64, limit: usize, snapshot: &Snapshot) -> HotKeysView {
    let per_second = |count: u64| count as f64 / seconds.max(LEAST_SECONDS);
    let services: BTreeMap<u32, &str> =
        snapshot.services().iter().map(|service| (service.id.0, &*service.name)).collect();
    let asked = |service: u32| counters.iter().map(|counter| counter.asked(service)).sum::<u64>();
    let service_row = |(id, name): (&u32, &&str)| HotServiceRow {
        service: (*name).to_owned(),
        keys_per_second: per_second(asked(*id)),
    };
    let key_row = |hot: &HotKey| HotKeyRow {
        // A service that a reload has removed is shown as `-`.
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

/// The minimum duration in seconds, which avoids a division by zero if counting ended immediately.
const LEAST_SECONDS: f64 = 0.001;
