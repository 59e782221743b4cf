//! Assigns IDs to targets, and computes the difference between the old and the new set of targets.
//!
//! A target keeps its ID if only its interval, `rise` or `fall` changes. The difference is computed
//! on the calling thread, so that the health thread needs no hashing for a reload of 20,000
//! targets.
//!
//! Every ID is smaller than the number of targets in the largest set so far.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use super::target::{Difference, Spec, TargetKey, Watched};
use crate::{FailingHops, HopNeighbour};

#[derive(Debug, Default)]
pub(super) struct Registry {
    known: HashMap<TargetKey, (u32, Arc<Spec>)>,
    free: Vec<u32>,
    numbers: u32,
    serial: u64,
    /// The failing hops of the previous process, by target.
    handed_hops: HashMap<TargetKey, Vec<HopNeighbour>>,
}

impl Registry {
    /// Sets the failing hops of the previous process, with which new targets start.
    pub(super) fn know_failing_hops(&mut self, known: impl Iterator<Item = FailingHops>) {
        self.handed_hops = known.map(|FailingHops { key, hops }| (key, hops)).collect();
    }

    /// Replaces the set of targets and returns the difference.
    pub(super) fn replace(&mut self, wanted: Vec<Watched>) -> Difference {
        let mut wanted = unique(wanted);
        let mut difference = Difference::new();
        let mut gone = self.keep(&mut wanted, &mut difference);
        let (heirs, new): (Vec<_>, Vec<_>) = wanted
            .into_iter()
            .map(|(key, watched)| (gone.remove(&Question(key.clone())), key, watched))
            .partition(|(heritage, ..)| heritage.is_some());
        for (id, _) in gone.into_values() {
            difference.push((id, None));
            self.free.push(id);
        }
        for (heritage, key, watched) in heirs.into_iter().chain(new) {
            self.serial += 1;
            let serial = self.serial;
            let (id, lineage) = heritage.unwrap_or_else(|| (self.number(), serial));
            let failing_hops = self.handed_hops.remove(&key).unwrap_or_default();
            let spec = Arc::new(Spec { watched, serial, lineage, failing_hops });
            difference.push((id, Some(Arc::clone(&spec))));
            self.known.insert(key, (id, spec));
        }
        difference
    }

    /// Removes targets that continue unchanged from `wanted`. Returns the targets that are no
    /// longer wanted, each with its ID and lineage (the serial of the first target in the series).
    /// A new target with the same probe can take over the ID and the lineage.
    fn keep(
        &mut self,
        wanted: &mut HashMap<TargetKey, Watched>,
        difference: &mut Difference,
    ) -> HashMap<Question, (u32, u64)> {
        let mut gone = HashMap::new();
        self.known.retain(|key, (id, spec)| {
            let Some(again) = wanted.remove(key) else {
                if let Some((id, _)) = gone.insert(Question(key.clone()), (*id, spec.lineage)) {
                    difference.push((id, None));
                    self.free.push(id);
                }
                return false;
            };
            let old = &spec.watched;
            if again.slot != old.slot || again.backend != old.backend || again.pools != old.pools {
                *spec = Arc::new(Spec { watched: again, failing_hops: Vec::new(), ..**spec });
                difference.push((*id, Some(Arc::clone(spec))));
            }
            true
        });
        gone
    }

    /// Returns an unused ID.
    fn number(&mut self) -> u32 {
        self.free.pop().unwrap_or_else(|| {
            self.numbers += 1;
            self.numbers - 1
        })
    }
}

/// A target key that is compared only by the fields that determine the probe. The interval and the
/// thresholds `rise` and `fall` are ignored.
#[derive(Debug)]
struct Question(TargetKey);

impl PartialEq for Question {
    fn eq(&self, Self(other): &Self) -> bool {
        let (a, b) = (&self.0.check, &other.check);
        self.0.address == other.address
            && self.0.through == other.through
            && a.kind == b.kind
            && a.via == b.via
    }
}

impl Eq for Question {}

impl Hash for Question {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.address.hash(state);
        self.0.through.hash(state);
        self.0.check.kind.hash(state);
    }
}

/// Merges targets with identical keys. The merged target belongs to all pools of the original
/// targets. Pools are sorted, so that the order in `wanted` does not matter.
fn unique(wanted: Vec<Watched>) -> HashMap<TargetKey, Watched> {
    let mut unique: HashMap<TargetKey, Watched> = HashMap::with_capacity(wanted.len());
    for mut watched in wanted {
        match unique.entry(watched.key.clone()) {
            Entry::Occupied(mut entry) => entry.get_mut().pools.append(&mut watched.pools),
            Entry::Vacant(entry) => {
                entry.insert(watched);
            }
        }
    }
    for watched in unique.values_mut() {
        watched.pools.sort_unstable();
        watched.pools.dedup();
    }
    unique
}
