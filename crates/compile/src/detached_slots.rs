//! Drains the flows of a service on slots that the service no longer uses, but other services do.
//!
//! A reload can move a service to other backends. If no service uses a slot any longer, the module
//! `slots` drains it. If other services still use the slot, only the flows of the moved service
//! drain. When the drain time has passed, the moved service no longer uses the slot.
//!
//! Invariant: if a service's pool does not contain a slot, the service's flows on this slot end one
//! drain time after the reload that moved the service.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use forwarder::{Service, ServiceId, SlotId};
use packet::Family;

use crate::Index;
use crate::keys::PoolView;
use crate::slots::Ages;

/// The slots of each service: the slots that the service may choose, and the slots that the service
/// no longer chooses but that still have some of its flows.
#[derive(Clone, Debug, Default)]
pub(crate) struct DetachedSlots {
    within: HashMap<Entry, Arc<BTreeSet<SlotId>>>,
    left: HashMap<Entry, BTreeMap<SlotId, Detached>>,
}

/// A service and an address family. `None` means all addresses of the VIP.
type Entry = (ServiceId, Option<Family>);

#[derive(Clone, Copy, Debug)]
struct Detached {
    since: Duration,
    excluded: bool,
}

impl DetachedSlots {
    /// Returns the detached slots of the next generation. Each service in `services` must still
    /// refer to its configured pool, not to a fallback pool.
    pub(crate) fn after(&self, services: &[Service], index: &Index, now: Duration, ages: Ages) -> Self {
        let mut next = Self::default();
        let mut by_pool: HashMap<&PoolView, Arc<BTreeSet<SlotId>>> = HashMap::new();
        for (service, view) in services.iter().zip(index.configured()) {
            let within = by_pool.entry(view);
            let within = within.or_insert_with(|| Arc::new(index.slots_within(view).collect()));
            let mut left = BTreeMap::new();
            for entry in entries_before(service) {
                left.extend(self.left.get(&entry).into_iter().flatten().map(|(slot, since)| (*slot, *since)));
                for slot in self.within.get(&entry).into_iter().flat_map(|before| before.iter()) {
                    left.entry(*slot).or_insert(Detached { since: now, excluded: false });
                }
            }
            left.retain(|slot, _| !within.contains(slot));
            if !left.is_empty() {
                next.left.insert(entry(service), left);
            }
            next.within.insert(entry(service), Arc::clone(within));
        }
        next.advance(now, ages);
        next
    }

    /// Excludes slots when their drain time has passed, and removes slots when no flow can refer to
    /// them any longer. Returns `true` if anything changed.
    pub(crate) fn advance(&mut self, now: Duration, ages: Ages) -> bool {
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

    /// Returns the slots that each service must not use any longer. A service that moves its flows
    /// when backends drain stops using detached slots immediately.
    pub(crate) fn excluded(&self, services: &[Service], index: &Index) -> Vec<Arc<[SlotId]>> {
        let excluded = |(place, service): (usize, &Service)| {
            let left = self.left.get(&entry(service)).into_iter().flatten();
            let left = left.filter(|(_, detached)| detached.excluded || index.moves_flows(place));
            left.map(|(slot, _)| *slot).collect()
        };
        services.iter().enumerate().map(excluded).collect()
    }
}

fn entry(service: &Service) -> Entry {
    (service.id, service.family)
}

/// Returns the entries of the previous generation whose flows now belong to `service`. A reload may
/// split a service into one service for each address family, or merge two such services.
fn entries_before(service: &Service) -> impl Iterator<Item = Entry> {
    let families = match service.family {
        Some(family) => vec![Some(family), None],
        None => vec![None, Some(Family::V4), Some(Family::V6)],
    };
    let id = service.id;
    families.into_iter().map(move |family| (id, family))
}
