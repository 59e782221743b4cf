//! Which servers are emptied before they serve again, and where each is asked.
//!
//! In: the VIPs of a machine. Out: the memberships of keyed pools with `rejoin = "flush"`, and of the pools that have some of
//! their keys. Not here: when one is (`rejoin`).

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use config::{Member, Protocol, Rejoin, Vip};

use compile::{PoolView, SlotKey, Views, own_weight};

/// An interval and a time-out.
type Pace = (Duration, Duration);

/// A membership of keyed pools that empty their servers.
#[derive(Clone, Debug, Default)]
pub(super) struct Emptied {
    /// At which its server is asked.
    pub(super) ports: BTreeSet<u16>,
    /// The keyed pools that give it keys.
    pub(super) keyed: BTreeSet<Arc<str>>,
    /// What it weighs in the pools that hold it, and in the pool that lists it.
    pub(super) weights: BTreeSet<(u32, u32)>,
    /// Between two attempts to empty it, and of each: those of its quickest check.
    pace: Option<Pace>,
}

impl Emptied {
    /// Between two attempts to empty it, and of each.
    pub(super) fn pace(&self) -> Pace {
        self.pace.unwrap_or(UNCHECKED)
    }
}

/// The memberships that keyed pools of these VIPs empty.
pub(super) fn emptied<'a>(
    views: &Views<'_>,
    vips: impl Iterator<Item = &'a Vip>,
) -> HashMap<SlotKey, Emptied> {
    let mut emptied: HashMap<SlotKey, Emptied> = HashMap::new();
    for vip in vips {
        for service in vip.services.iter().filter(|service| service.protocol == Protocol::Udp) {
            let Some(kv) = service.pool.kv.as_ref().filter(|kv| kv.rejoin == Rejoin::Flush) else { continue };
            // The file was checked for few ports.
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

/// The members of a pool, each with its weight here and in the pool that lists it, and the pace of its quickest check.
fn members(views: &Views<'_>, view: &PoolView) -> Vec<(SlotKey, (u32, u32), Option<Pace>)> {
    let config = views.config();
    let Some(pool) = config.pool(&view.pool) else { return Vec::new() };
    let member = |member: &Member| {
        let pace = member.checks.iter().map(|check| (check.interval, check.timeout)).min();
        (view.key(member), (member.weight, own_weight(config, pool, member)), pace)
    };
    pool.members.iter().map(member).collect()
}

/// Of one that has no check: an interval and a time-out as checks have them by default.
const UNCHECKED: (Duration, Duration) = (Duration::from_secs(2), Duration::from_millis(500));
