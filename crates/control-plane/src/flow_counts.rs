//! How many tracked flows each backend has, by service.
//!
//! In: whose each flow is, as packet threads say it. Out: sums over all threads. A flow that two threads know, as one that was
//! tunnelled to another thread before, counts on each.
//! Not here: when it is counted (`sluicegate`), rows (`rows`).

use std::collections::{BTreeMap, HashMap};

use forwarder::{ServiceId, SlotId, Whose};

/// Flows by slot and service.
#[derive(Debug, Default)]
pub struct FlowCounts {
    of: HashMap<SlotId, BTreeMap<ServiceId, u64>>,
}

impl FlowCounts {
    pub(crate) fn add(&mut self, Whose { slot, service }: Whose) {
        *self.of.entry(slot).or_default().entry(service).or_default() += 1;
    }

    /// The flows of a slot, by service.
    pub fn of_slot(&self, slot: SlotId) -> impl Iterator<Item = (ServiceId, u64)> {
        self.of.get(&slot).into_iter().flatten().map(|(service, count)| (*service, *count))
    }

    /// The flows of each service.
    #[must_use]
    pub fn by_service(&self) -> HashMap<ServiceId, u64> {
        let mut all = HashMap::new();
        for (service, count) in self.of.values().flatten() {
            *all.entry(*service).or_default() += count;
        }
        all
    }
}
