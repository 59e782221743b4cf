//! Which targets there are, as the handle knows them.
//!
//! In: a whole new set. Out: what of it is new, gone, or otherwise grouped.
//! A target that is asked the same, and only at another pace or with another `rise` or `fall`, keeps its number.
//! The difference is found on the caller's thread, so that a reload of 20,000 targets costs the health thread no hashing.
//! Invariant: numbers are below the largest set that ever was.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use super::target::{Difference, Spec, TargetKey, Watched};

#[derive(Debug, Default)]
pub(super) struct Registry {
    known: HashMap<TargetKey, (u32, Arc<Spec>)>,
    free: Vec<u32>,
    numbers: u32,
    serial: u64,
}

impl Registry {
    /// Makes `wanted` the set: what changes by that.
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
            let spec = Arc::new(Spec { watched, serial, lineage });
            difference.push((id, Some(Arc::clone(&spec))));
            self.known.insert(key, (id, spec));
        }
        difference
    }

    /// Takes out of `wanted` what is known already. Those that are not wanted any more come back, each with its number and
    /// lineage: a new target may ask the same of them.
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
                *spec = Arc::new(Spec { watched: again, ..**spec });
                difference.push((*id, Some(Arc::clone(spec))));
            }
            true
        });
        gone
    }

    /// One that no target has.
    fn number(&mut self) -> u32 {
        self.free.pop().unwrap_or_else(|| {
            self.numbers += 1;
            self.numbers - 1
        })
    }
}

/// A target's key as far as its answer goes: how often it is asked, and how many answers make a verdict, is left out.
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

/// One for each key: what is there twice counts for the pools of both. Pools are in order, so that the order of the set makes
/// no difference.
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
