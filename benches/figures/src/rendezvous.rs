//! Rendezvous hashing, for comparison with Maglev. Each slot belongs to the backend that has the
//! highest weight for this slot.
//!
//! The weight is a cheap combination of a slot hash and a name hash. A table with a million slots
//! and a thousand backends therefore takes only a second.
//!
//! Reference: Thaler, Ravishankar, *Using name-based mappings to increase hit rates*, IEEE/ACM ToN
//! 1998.

use siphasher::sip::SipHasher13;

/// Returns for each slot the index of its backend in `names`, which must not be empty. The cost is
/// `O(slots * names)`.
pub(crate) fn owners(names: &[Vec<u8>], slots: u32, seed: &[u8; 16]) -> Vec<u32> {
    let hasher = SipHasher13::new_with_key(seed);
    let hashes: Vec<u64> = names.iter().map(|name| hasher.hash(name)).collect();
    let owner = |slot: u32| {
        let slot = hasher.hash(&slot.to_be_bytes());
        let (mut owner, mut most) = (0, 0);
        for (backend, hash) in (0..).zip(&hashes) {
            let weight = mix(hash ^ slot);
            if weight > most {
                (owner, most) = (backend, weight);
            }
        }
        owner
    };
    (0..slots).map(owner).collect()
}

/// The finalizer of MurmurHash3 (Appleby, public domain). Flipping an input bit flips half of the
/// output bits on average.
fn mix(mut word: u64) -> u64 {
    word = (word ^ (word >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
    word = (word ^ (word >> 33)).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    word ^ (word >> 33)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::maglev::{names, seed};

    #[test]
    fn mix_equals_murmurhash3() {
        assert_eq!((mix(0), mix(1)), (0, 0xb456_bcfc_34c2_cb2c));
    }

    /// The expected owner is the first remaining backend in the slot's order of preference.
    #[test]
    fn slot_belongs_to_its_first_remaining_preference() {
        let (names, slots) = (names(6), 200);
        let hasher = SipHasher13::new_with_key(&seed(2));
        for gone in 0..6 {
            let left: Vec<Vec<u8>> =
                names.iter().enumerate().filter(|(i, _)| *i != gone).map(|(_, n)| n.clone()).collect();
            for (slot, owner) in (0..slots).zip(owners(&left, slots, &seed(2))) {
                let mut order = names.clone();
                order.sort_by_key(|name| {
                    std::cmp::Reverse(mix(hasher.hash(name) ^ hasher.hash(&slot.to_be_bytes())))
                });
                let first = order.iter().find(|name| **name != names[gone]);
                assert_eq!(first, Some(&left[owner as usize]), "slot {slot}");
            }
        }
    }

    /// Ten backends share 10,007 slots. By chance, chi-squared with 9 degrees of freedom exceeds 40
    /// in 1 of 100,000 cases.
    #[test]
    fn shares_are_consistent_with_chance() {
        let mut shares = [0.0; 10];
        owners(&names(10), 10_007, &seed(4)).into_iter().for_each(|owner| shares[owner as usize] += 1.0);
        let expected = 1_000.7;
        let chi: f64 = shares.iter().map(|share: &f64| (share - expected).powi(2) / expected).sum();
        assert!(chi < 40.0, "{chi}: {shares:?}");
    }
}
