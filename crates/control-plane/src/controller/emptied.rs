//! Finds the members of keyed pools whose servers must be flushed before they receive requests
//! again, and the ports to flush.
//!
//! The result contains the members of pools with `rejoin = "flush"`, and the members of pools that
//! receive memcached keys from such pools. `rejoin` decides when a server must be flushed.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use config::{Member, Protocol, Rejoin, Vip};

use compile::{PoolView, SlotKey, Views, own_weight};

/// The interval between flush attempts and the timeout of each attempt.
type Pace = (Duration, Duration);

/// The flush settings of a pool member.
#[derive(Clone, Debug, Default)]
pub(super) struct Emptied {
    /// The ports of the server to which `flush_all` is sent.
    pub(super) ports: BTreeSet<u16>,
    /// The keyed pools that send memcached keys to the pool member.
    pub(super) keyed: BTreeSet<Arc<str>>,
    /// One entry for each pool that contains the pool member, with its weight in that pool and its
    /// weight in the leaf pool.
    pub(super) weights: BTreeSet<(u32, u32)>,
    /// The interval and timeout of flush attempts, taken from the check with the shortest interval.
    pace: Option<Pace>,
}

impl Emptied {
    /// Returns the interval and timeout of flush attempts.
    pub(super) fn pace(&self) -> Pace {
        self.pace.unwrap_or(UNCHECKED)
    }
}

/// Returns the pool members that the keyed pools of `vips` flush, with their flush settings.
pub(super) fn emptied<'a>(
    views: &Views<'_>,
    vips: impl Iterator<Item = &'a Vip>,
) -> HashMap<SlotKey, Emptied> {
    let mut emptied: HashMap<SlotKey, Emptied> = HashMap::new();
    for vip in vips {
        for service in vip.services.iter().filter(|service| service.protocol == Protocol::Udp) {
            let Some(kv) = service.pool.kv.as_ref().filter(|kv| kv.rejoin == Rejoin::Flush) else { continue };
            // The configuration check limits the number of ports.
            let ports: BTreeSet<u16> = service.ports.each().into_iter().flatten().collect();
            for family in Views::families(vip) {
                let own = views.of(vip, family, &service.pool.name);
                let others = kv.pools.iter().map(|name| views.beside(&own, name));
                for (key, weights, pace) in others.chain([own.clone()]).flat_map(|view| members(views, &view))
                {
                    let one = emptied.entry(key).or_default();
                    one.ports.extend(&ports);
                    one.keyed.insert(Arc::clone(&service.pool.name));
                    one.weights.insert(weights);
                    one.pace = one.pace.or(pace);
                }
            }
        }
    }
    emptied
}

/// Returns the members of a pool with their weights. Each member also has the interval and timeout
/// of its most frequent check.
fn members(views: &Views<'_>, view: &PoolView) -> Vec<(SlotKey, (u32, u32), Option<Pace>)> {
    let config = views.config();
    let Some(pool) = config.pool(&view.pool) else { return Vec::new() };
    let member = |member: &Member| {
        let pace = member.checks.iter().map(|check| (check.interval, check.timeout)).min();
        (view.key(member), (member.weight, own_weight(config, pool, member)), pace)
    };
    pool.members.iter().map(member).collect()
}

/// The interval and timeout of flush attempts for a pool member without checks. The values are the
/// defaults of checks.
const UNCHECKED: (Duration, Duration) = (Duration::from_secs(2), Duration::from_millis(500));
