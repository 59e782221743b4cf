//! Counts the tracked flows of each backend and service, over all packet threads.
//!
//! A flow is counted twice if two threads track it, for example because it was previously
//! tunneled to another thread.

use std::collections::{BTreeMap, HashMap};

use forwarder::{ServiceId, SlotId, Whose};

/// The number of tracked flows by slot and service.
#[derive(Debug, Default)]
pub struct FlowCounts {
    of: HashMap<SlotId, BTreeMap<ServiceId, Count>>,
}

/// The number of all tracked flows, and of those that sent a packet within [`forwarder::ACTIVE`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Count {
    /// All tracked flows.
    pub all: u64,
    /// The active flows.
    pub active: u64,
}

impl FlowCounts {
    pub(crate) fn add(&mut self, Whose { slot, service, is_active }: Whose) {
        let count = self.of.entry(slot).or_default().entry(service).or_default();
        count.all += 1;
        count.active += u64::from(is_active);
    }

    /// Returns a slot's flow count for each service.
    pub fn of_slot(&self, slot: SlotId) -> impl Iterator<Item = (ServiceId, Count)> {
        self.of.get(&slot).into_iter().flatten().map(|(service, count)| (*service, *count))
    }

    /// Returns the number of all tracked flows of each service.
    #[must_use]
    pub fn by_service(&self) -> HashMap<ServiceId, u64> {
        let mut all = HashMap::new();
        for (service, count) in self.of.values().flatten() {
            *all.entry(*service).or_default() += count.all;
        }
        all
    }
}
