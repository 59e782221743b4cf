//! Karger's consistent hashing, for comparison with Maglev. Each backend has many points (views) on
//! a ring. A table slot belongs to the backend whose point comes next on the ring.
//!
//! The position of a slot is the lowest hash value that maps to it, as in Sluicegate's Maglev
//! table.
//!
//! Reference: Karger et al., *Consistent hashing and random trees*, STOC 1997.

use siphasher::sip::SipHasher13;

/// The points of all backends on a ring of 2^64 positions, sorted by position.
pub(crate) struct Ring(Vec<(u64, u32)>);

impl Ring {
    /// Creates a ring with `views` points for each name.
    pub(crate) fn new(names: &[Vec<u8>], views: u32, seed: &[u8; 16]) -> Self {
        let hasher = SipHasher13::new_with_key(seed);
        let points = (0..).zip(names).flat_map(|(backend, name)| {
            (0..views).map(move |view| {
                let bytes = [name.as_slice(), &view.to_be_bytes()].concat();
                (hasher.hash(&bytes), backend)
            })
        });
        Self::of(points.collect())
    }

    fn of(mut points: Vec<(u64, u32)>) -> Self {
        points.sort_unstable();
        Self(points)
    }

    /// Returns the backend of each slot. A slot belongs to the backend of the first point at or
    /// after the slot's position. The ring wraps around.
    pub(crate) fn owners(&self, slots: u32) -> Vec<u32> {
        let mut next = 0;
        let owner = |slot| {
            let at = place(slot, slots);
            next += self.0[next..].iter().take_while(|(point, _)| *point < at).count();
            self.0[next % self.0.len()].1
        };
        (0..slots).map(owner).collect()
    }
}

/// Returns the lowest hash value that maps to a slot.
#[expect(clippy::cast_possible_truncation, reason = "slot / slots is below 1, so it is below 2^64")]
fn place(slot: u32, slots: u32) -> u64 {
    (u128::from(slot) << 64).div_ceil(u128::from(slots)) as u64
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::maglev::{equal, names, seed, table};

    proptest! {
        /// The test finds the expected backend of each slot by a linear search over all points.
        #[test]
        fn slot_belongs_to_the_next_point_on_the_ring(
            points in prop::collection::vec((any::<u64>(), 0..9u32), 1..40), slots in 1..60u32
        ) {
            let owners = Ring::of(points.clone()).owners(slots);
            for (slot, owner) in (0..slots).zip(owners) {
                let at = place(slot, slots);
                let next = points.iter().min_by_key(|(point, backend)| (point.wrapping_sub(at), *backend));
                prop_assert_eq!(owner, next.unwrap().1, "slot {}", slot);
            }
        }
    }

    #[test]
    fn place_of_a_slot_is_its_first_hash() {
        let table = table(&equal(&names(3)), 1_009, seed(1));
        for slot in 0..1_009 {
            let at = place(slot, 1_009);
            assert_eq!(table.slot_of(at), slot);
            assert!(slot == 0 || table.slot_of(at - 1) == slot - 1);
        }
    }

    #[test]
    fn removed_backend_does_not_change_slots_of_others() {
        let names = names(8);
        let ring = Ring::new(&names, 50, &seed(1));
        for backend in 0..8 {
            assert_eq!(ring.0.iter().filter(|(_, owner)| *owner == backend).count(), 50);
        }
        let (before, after) = (ring.owners(1_009), Ring::new(&names[..7], 50, &seed(1)).owners(1_009));
        for (was, is) in before.into_iter().zip(after) {
            assert!(is < 7 && (was == 7 || was == is));
        }
    }
}
