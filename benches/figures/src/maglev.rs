//! Builds Maglev tables for the figures, with Sluicegate's code and with the paper's pseudocode.

use maglev_hash::{Backend, Options, Seed, Table, build};
use siphasher::sip::SipHasher13;
use siphasher::sip128::SipHasher24;

/// Returns `count` backend names in sorted order.
#[must_use]
pub fn names(count: usize) -> Vec<Vec<u8>> {
    (0..count).map(|i| format!("backend-{i:05}.example").into_bytes()).collect()
}

/// Returns a backend of weight 1 for each name.
#[must_use]
pub fn equal(names: &[Vec<u8>]) -> Vec<Backend<'_>> {
    names.iter().map(|name| Backend { name, weight: 1 }).collect()
}

/// Builds the table with Sluicegate's code. The names are sorted, so a backend's number in the
/// table is its index in `names`.
pub(crate) fn table(backends: &[Backend<'_>], size: u32, seed: [u8; 16]) -> Table {
    let mut options = Options::new(Seed::new(seed));
    (options.size, options.allow_coarse) = (size, true);
    build(backends, &options).expect("the size is prime and the names differ")
}

/// Returns the hash seed for repetition `number`.
pub(crate) fn seed(number: u64) -> [u8; 16] {
    (0x5eed_0000_0000 | u128::from(number)).to_be_bytes()
}

/// Runs pseudocode 1 of the paper literally and returns, for each slot, the index of its backend in
/// `names`.
///
/// All backends have equal weight and are processed in the order of `names`. The two hash functions
/// for names are the only code that this function shares with Sluicegate's table builder.
///
/// # Panics
/// Panics if there are 65,535 names or more.
#[must_use]
pub fn pseudocode(names: &[Vec<u8>], size: u32, seed: &[u8; 16]) -> Vec<u16> {
    const FREE: u16 = u16::MAX;
    let (count, size) = (u16::try_from(names.len()).expect("fewer than 65,535 names"), u64::from(size));
    let derivation = SipHasher24::new_with_key(seed);
    let h1 = SipHasher13::new_with_key(&derivation.hash(b"sluicegate maglev offset").as_bytes());
    let h2 = SipHasher13::new_with_key(&derivation.hash(b"sluicegate maglev skip").as_bytes());
    let permutation: Vec<(u64, u64)> =
        names.iter().map(|name| (h1.hash(name) % size, h2.hash(name) % (size - 1) + 1)).collect();
    let mut next = vec![0u64; names.len()];
    let mut entry = vec![FREE; usize::try_from(size).expect("64 bits")];
    let mut n = 0;
    loop {
        for backend in 0..count {
            let i = usize::from(backend);
            let (offset, skip) = permutation[i];
            #[expect(clippy::cast_possible_truncation, reason = "size fits in 32 bits")]
            let slot = |next: u64| ((offset + next * skip) % size) as usize;
            let mut c = slot(next[i]);
            while entry[c] != FREE {
                next[i] += 1;
                c = slot(next[i]);
            }
            entry[c] = backend;
            next[i] += 1;
            n += 1;
            if n == size {
                return entry;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use maglev_hash::Rank;

    use super::*;

    #[test]
    fn product_table_equals_the_pseudocode() {
        for (count, size) in [(1, 2), (3, 7), (10, 1_009), (100, 65_537)] {
            let names = names(count);
            let table = table(&equal(&names), size, seed(3));
            let slow = pseudocode(&names, size, &seed(3)).into_iter().map(usize::from);
            assert!(table.iter().map(Rank::index_by_name).eq(slow), "{count} backends, {size} slots");
        }
    }
}
