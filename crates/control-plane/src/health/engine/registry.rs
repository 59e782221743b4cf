//! Which targets there are, as the handle knows them.
//!
//! In: a whole new set. Out: what of it is new, gone, or otherwise grouped.
//! The difference is found on the caller's thread, so that a reload of 20,000 targets costs the health thread no hashing.
//! Invariant: numbers are below the largest set that ever was.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;

use super::exchange::Spec;
use super::target::{TargetKey, Watched};

/// Targets by key.
#[derive(Debug, Default)]
pub(super) struct Registry {
    known: HashMap<TargetKey, (u32, Arc<Spec>)>,
    free: Vec<u32>,
    numbers: u32,
    serial: u64,
}

/// What to do to the running set: under a number a target, or none any more.
pub(super) type Difference = Vec<(u32, Option<Arc<Spec>>)>;

impl Registry {
    /// Makes `wanted` the set: what changes by that, and how many targets are new.
    pub(super) fn replace(&mut self, wanted: Vec<Watched>) -> (Difference, usize) {
        let mut wanted = unique(wanted);
        let mut difference = Difference::new();
        self.known.retain(|key, (id, spec)| {
            let Some(again) = wanted.remove(key) else {
                difference.push((*id, None));
                self.free.push(*id);
                return false;
            };
            let old = &spec.watched;
            if again.slot != old.slot || again.backend != old.backend || again.pools != old.pools {
                *spec = Arc::new(Spec { watched: again, serial: spec.serial });
                difference.push((*id, Some(Arc::clone(spec))));
            }
            true
        });
        let added = wanted.len();
        for (key, watched) in wanted {
            let id = self.free.pop().unwrap_or_else(|| {
                self.numbers += 1;
                self.numbers - 1
            });
            self.serial += 1;
            let spec = Arc::new(Spec { watched, serial: self.serial });
            difference.push((id, Some(Arc::clone(&spec))));
            self.known.insert(key, (id, spec));
        }
        (difference, added)
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
