//! The table that assigns the flows of a slot to its next hops, if there are several next hops.
//!
//! If a hop leaves the set, only the flows of this hop move. If a hop joins the set, flows move
//! only to the new hop. The flow hash selects a table entry, as in a Maglev table. For each entry,
//! every hop gets a score from a hash of the entry and the hop, and the hop with the highest score
//! is used (rendezvous hashing). A Maglev table would not be suitable, because rebuilding it for a
//! smaller set also moves a few flows between the remaining hops.
//!
//! References: Thaler and Ravishankar, *Using name-based mappings to increase hit rates*, 1998.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

/// Assigns flow hashes to the hops of a set. Slots with the same set of next hops share one table.
#[derive(Clone, Debug)]
pub struct HopTable(Arc<[u8; ENTRIES]>);

impl HopTable {
    /// Builds the table for a set of hops. Each hop has an ID, which is unique in the set, and a
    /// weight. Weight 0 is treated as weight 1.
    ///
    /// # Panics
    /// Panics if the set is empty or has more than 256 hops.
    /// # Cost
    /// Two hashes and two logarithms per hop for each entry.
    #[must_use]
    pub fn new(hops: &[(u64, u16)]) -> Self {
        assert!((1..=256).contains(&hops.len()), "a table has 1 to 256 hops");
        let place = |entry| {
            let score = |place: &usize| score(entry, hops[*place]);
            let best = (0..hops.len()).max_by(|a, b| score(a).total_cmp(&score(b)));
            best.and_then(|place| u8::try_from(place).ok()).unwrap_or(0)
        };
        Self(Arc::new(std::array::from_fn(place)))
    }

    /// Returns the index of a flow's hop in the set.
    #[must_use]
    #[inline]
    pub fn place(&self, flow_hash: u64) -> usize {
        // Maglev tables use the highest bits of the hash and GUE source ports use the lowest bits,
        // so this table uses bits in between.
        let entry = (flow_hash >> 20) as usize % ENTRIES;
        usize::from(self.0[entry])
    }
}

/// Returns the score of a hop for an entry. The score of a hop does not depend on other hops. The
/// hop with the highest score gets the entry. A hop's probability of getting an entry is
/// proportional to its weight.
fn score(entry: usize, (id, weight): (u64, u16)) -> f64 {
    let mut hasher = DefaultHasher::new();
    (entry, id).hash(&mut hasher);
    let uniform = (hasher.finish() as f64 + 1.0) / (u64::MAX as f64 + 2.0);
    -f64::from(weight.max(1)) / uniform.ln()
}

/// The number of entries. If two hops have the same weight, each gets 50 % ± 3 % of the entries.
const ENTRIES: usize = 2048;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Returns the ID of the selected hop for each entry.
    fn chosen(hops: &[(u64, u16)]) -> Vec<u64> {
        let table = HopTable::new(hops);
        (0..ENTRIES as u64).map(|entry| hops[table.place(entry << 20)].0).collect()
    }

    #[test]
    fn shares_follow_weights() {
        for (hops, expected) in [
            (vec![(7, 1)], vec![1.0]),
            (vec![(7, 1), (8, 1)], vec![0.5, 0.5]),
            (vec![(7, 256), (8, 256), (9, 256)], vec![0.33, 0.33, 0.33]),
            (vec![(7, 0), (8, 3)], vec![0.25, 0.75]),
        ] {
            let all = chosen(&hops);
            for ((id, _), expected) in hops.iter().zip(expected) {
                let share = all.iter().filter(|one| *one == id).count() as f64 / ENTRIES as f64;
                assert!((share - expected).abs() < 0.04, "{hops:?}: {id} has {share}");
            }
        }
    }

    proptest! {
        #[test]
        fn flow_keeps_its_hop_while_the_hop_is_in_the_set(
            ids in prop::collection::btree_map(any::<u64>(), 1u16..300, 2..7),
            keep in any::<[bool; 1]>(),
        ) {
            let all: Vec<(u64, u16)> = ids.into_iter().collect();
            let kept = all.iter().zip(keep).filter(|(_, keep)| *keep).map(|(hop, _)| *hop);
            let some: Vec<_> = kept.chain(all.last().copied()).collect();
            for (before, after) in chosen(&all).into_iter().zip(chosen(&some)) {
                let stays = some.iter().any(|(id, _)| *id == before);
                prop_assert!(!stays || before == after, "{before} became {after}");
            }
        }
    }
}
