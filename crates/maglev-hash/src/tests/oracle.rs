//! A slow model of the table, which stores complete permutations and sorts all turns. The model and
//! the tested code have only the hash crate in common.

use alloc::vec;
use alloc::vec::Vec;
use std::collections::BTreeMap;

use siphasher::sip::SipHasher13;
use siphasher::sip128::SipHasher24;

pub(super) type Set = BTreeMap<Vec<u8>, u32>;

/// Returns the name in each slot.
pub(super) fn table(set: &Set, size: u32, seed: [u8; 16]) -> Vec<Vec<u8>> {
    let names: Vec<&Vec<u8>> = set.keys().collect();
    let weights: Vec<u128> = set.values().map(|&weight| u128::from(weight)).collect();
    let permutations: Vec<Vec<usize>> =
        names.iter().map(|name| permutation(name, size.into(), seed)).collect();
    let mut entry: Vec<Option<usize>> = vec![None; size as usize];
    for backend in turns(&weights, size.into()) {
        let slot = permutations[backend].iter().find(|&&slot| entry[slot].is_none());
        entry[*slot.unwrap()] = Some(backend);
    }
    entry.into_iter().map(|backend| names[backend.unwrap()].clone()).collect()
}

pub(super) fn permutation(name: &[u8], size: u64, seed: [u8; 16]) -> Vec<usize> {
    let keyed = |label: &str| {
        let key = SipHasher24::new_with_key(&seed).hash(label.as_bytes()).as_u128().to_le_bytes();
        SipHasher13::new_with_key(&key).hash(name)
    };
    let offset = keyed("sluicegate maglev offset") % size;
    let skip = keyed("sluicegate maglev skip") % (size - 1) + 1;
    (0..size).map(|j| usize::try_from((offset + j * skip) % size).unwrap()).collect()
}

/// Returns the backend of each turn. Turn `k` of a backend with weight `w` is at time `(k + 1/2) /
/// w`. Turns at the same time are sorted by decreasing weight, then by name.
fn turns(weights: &[u128], size: u128) -> Vec<usize> {
    let mut all = Vec::new();
    for (backend, share) in shares(weights, size).into_iter().enumerate() {
        all.extend((0..share).map(|k| (2 * k + 1, weights[backend], backend)));
    }
    all.sort_by(|a, b| (a.0 * b.1).cmp(&(b.0 * a.1)).then(b.1.cmp(&a.1)).then(a.2.cmp(&b.2)));
    all.into_iter().map(|(_, _, backend)| backend).collect()
}

/// Gives each backend the integer part of its share, and then gives the remaining slots one by one
/// to the backends with the largest fractional parts.
fn shares(weights: &[u128], size: u128) -> Vec<u128> {
    let total: u128 = weights.iter().sum();
    let mut shares: Vec<u128> = weights.iter().map(|weight| weight * size / total).collect();
    while shares.iter().sum::<u128>() < size {
        let lack = |i: usize| (weights[i] * size) as i128 - (shares[i] * total) as i128;
        let neediest = (0..weights.len()).rev().max_by_key(|&i| (lack(i), weights[i])).unwrap();
        shares[neediest] += 1;
    }
    shares
}
