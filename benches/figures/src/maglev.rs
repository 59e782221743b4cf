//! The product's tables for figures, and the paper's pseudocode beside them.

use maglev_hash::{Backend, Options, Seed, Table, build};
use siphasher::sip::SipHasher13;
use siphasher::sip128::SipHasher24;

/// Names of backends, in order.
#[must_use]
pub fn names(count: usize) -> Vec<Vec<u8>> {
    (0..count).map(|i| format!("backend-{i:05}.example").into_bytes()).collect()
}

/// Backends of equal weight.
#[must_use]
pub fn equal(names: &[Vec<u8>]) -> Vec<Backend<'_>> {
    names.iter().map(|name| Backend { name, weight: 1 }).collect()
}

/// The product's table over sorted names: a rank is a place in `names`.
pub(crate) fn table(backends: &[Backend<'_>], size: u32, seed: [u8; 16]) -> Table {
    let mut options = Options::new(Seed::new(seed));
    (options.size, options.allow_coarse) = (size, true);
    build(backends, &options).expect("a prime size and different names")
}

/// The seed of a repetition.
pub(crate) fn seed(number: u64) -> [u8; 16] {
    (0x5eed_0000_0000 | u128::from(number)).to_be_bytes()
}

/// The paper's pseudocode 1 as it stands, for fewer than 65,535 backends of equal weight in the order of their names: places in
/// `names` by slot.
///
/// It shares no code with the product's table but the two hash functions of a name.
///
/// # Panics
/// When there are 65,535 names or more.
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
            #[expect(clippy::cast_possible_truncation, reason = "below size, which fits 32 bits")]
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
    use super::*;

    #[test]
    fn the_products_table_is_the_pseudocodes() {
        for (count, size) in [(1, 2), (3, 7), (10, 1_009), (100, 65_537)] {
            let names = names(count);
            let product: Vec<u32> = table(&equal(&names), size, seed(3)).iter().collect();
            let slow: Vec<u32> = pseudocode(&names, size, &seed(3)).into_iter().map(u32::from).collect();
            assert_eq!(product, slow, "{count} backends, {size} slots");
        }
    }
}
