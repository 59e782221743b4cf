//! Slots that a service has left behind while they serve others.
//!
//! A reload may lead a service to other backends. Those that nobody uses any more drain and go (`slots`); those that other
//! services still use stay, and the flows that this service has on them are given a drain time like any others, then excluded.
//! Invariant: a service's flows on a slot outside its pool end a drain time after the reload that led it away.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use forwarder::{Service, ServiceId, SlotId};

use super::Index;
use crate::slots::Ages;

/// By service: what it may choose, and what it has left behind since when.
#[derive(Clone, Debug, Default)]
pub(super) struct DetachedSlots {
    within: HashMap<ServiceId, Arc<BTreeSet<SlotId>>>,
    left: HashMap<ServiceId, BTreeMap<SlotId, Detached>>,
}

#[derive(Clone, Copy, Debug)]
struct Detached {
    since: Duration,
    excluded: bool,
}

impl DetachedSlots {
    /// As of the next generation, whose services are still led where the configuration has them.
    pub(super) fn after(&self, services: &[Service], index: &Index, now: Duration, ages: Ages) -> Self {
        let mut next = Self::default();
        let mut by_pool: HashMap<&str, Arc<BTreeSet<SlotId>>> = HashMap::new();
        for Service { id, pool, .. } in services {
            let within = by_pool.entry(&pool.name);
            let within = within.or_insert_with(|| Arc::new(index.slots_within(&pool.name).collect()));
            let mut left = self.left.get(id).cloned().unwrap_or_default();
            let before = self.within.get(id).map(|before| &**before);
            for slot in before.into_iter().flatten().filter(|slot| !within.contains(slot)) {
                left.entry(*slot).or_insert(Detached { since: now, excluded: false });
            }
            left.retain(|slot, _| !within.contains(slot));
            if !left.is_empty() {
                next.left.insert(*id, left);
            }
            next.within.insert(*id, Arc::clone(within));
        }
        next.advance(now, ages);
        next
    }

    /// Excludes what was left a drain time ago, and forgets what no flow can name any more. Gives whether anything changed.
    pub(super) fn advance(&mut self, now: Duration, ages: Ages) -> bool {
        let mut changed = false;
        for left in self.left.values_mut() {
            left.retain(|_, detached| {
                let age = now.saturating_sub(detached.since);
                let excluded = age >= ages.drain;
                changed |= excluded != detached.excluded;
                detached.excluded = excluded;
                let kept = age < ages.drain + ages.keep;
                changed |= !kept;
                kept
            });
        }
        self.left.retain(|_, left| !left.is_empty());
        changed
    }

    /// Sets the excluded slots of each service.
    pub(super) fn exclude(&self, services: &mut [Service]) {
        for service in services {
            let left = self.left.get(&service.id).into_iter().flatten();
            service.excluded_slots =
                left.filter(|(_, detached)| detached.excluded).map(|(slot, _)| *slot).collect();
        }
    }
}
