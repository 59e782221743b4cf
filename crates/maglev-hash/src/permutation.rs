//! The order in which a backend prefers slots, stored as an offset and a skip.
//!
//! Offset and skip define the permutation `offset + j * skip mod M`, which is never stored.
//! [`Preference`] compares slots by their position in the permutation.

use alloc::vec::Vec;

use siphasher::sip::SipHasher13;
use siphasher::sip128::SipHasher24;

use crate::Seed;

/// The two keyed hash functions for names. Both functions are SipHash-1-3.
///
/// The key of each function is the 128-bit SipHash-2-4 of a label, with the seed as the key. The
/// labels are `sluicegate maglev offset` and `sluicegate maglev skip`. Each key consists of 16
/// little-endian bytes. The two functions are independent, although both keys are derived from one
/// secret.
pub(crate) struct Keys {
    offset: SipHasher13,
    skip: SipHasher13,
}

impl Keys {
    pub(crate) fn derive(seed: &Seed) -> Self {
        let derivation = SipHasher24::new_with_key(&seed.0);
        let function = |label: &[u8]| SipHasher13::new_with_key(&derivation.hash(label).as_bytes());
        Self { offset: function(b"sluicegate maglev offset"), skip: function(b"sluicegate maglev skip") }
    }

    /// Returns `h1(name) mod M` and `h2(name) mod (M - 1) + 1`. The size must be at least 2.
    pub(crate) fn offset_and_skip(&self, name: &[u8], size: u32) -> (u32, u32) {
        (remainder(self.offset.hash(name), size), remainder(self.skip.hash(name), size - 1) + 1)
    }
}

/// Compares slots by their position in one backend's preference list, with one multiplication per
/// slot.
///
/// The position of a slot among the preferences is `(slot - start) * skip^-1 mod M`. The code
/// represents the position as a 64-bit fraction of `M`, so that integer overflow replaces the
/// division. The factor `2^64 * skip^-1 / M` is rounded down to a multiple of 2^[`INDEX_BITS`]. The
/// error of the difference between two keys is therefore below `M * 2^16`. Two positions differ by
/// at least `2^64 / M`, which is more than this error for all sizes up to
/// [`MAX_SIZE`](crate::MAX_SIZE). The low bits of a key are not needed for the comparison, so they
/// store the index of the slot.
pub(crate) struct Preference {
    factor: u64,
    start: u64,
}

/// The number of low bits in a sort key that contain the index of its slot. With more than 16 bits,
/// keys for the largest table could be in the wrong order.
const INDEX_BITS: u32 = 16;

impl Preference {
    /// Creates the preferences that begin with slot `start`. `inverse` is `skip^-1 mod M` (see
    /// [`invert_all`]).
    pub(crate) fn new(start: u32, inverse: u32, size: u32) -> Self {
        #[expect(clippy::cast_possible_truncation, reason = "inverse < size, so the quotient is below 2^48")]
        let fraction = ((u128::from(inverse) << (64 - INDEX_BITS)) / u128::from(size)) as u64;
        let factor = fraction << INDEX_BITS;
        Self { factor, start: u64::from(start).wrapping_mul(factor) }
    }

    /// Returns the sort key of a slot. Slots that the backend prefers have smaller keys. `index`
    /// must be below 2^16, and [`Preference::index`] extracts it from the key.
    #[inline]
    pub(crate) fn key(&self, slot: u32, index: u64) -> u64 {
        u64::from(slot).wrapping_mul(self.factor).wrapping_sub(self.start).wrapping_add(index)
    }

    /// Returns the index that was passed to [`Preference::key`].
    pub(crate) fn index(key: u64) -> usize {
        (key % (1 << INDEX_BITS)) as usize
    }
}

/// Replaces every element of `values` with its inverse modulo `prime`. The values must be above 0
/// and below `prime`.
///
/// Uses Montgomery's trick, which takes one inversion in total and three multiplications per value.
pub(crate) fn invert_all(values: &mut [u32], prime: u32) {
    let product = |a: u32, b: u32| remainder(u64::from(a) * u64::from(b), prime);
    let mut before = Vec::with_capacity(values.len());
    let mut all = 1;
    for &value in values.iter() {
        before.push(all);
        all = product(all, value);
    }
    let mut rest = inverse(all, prime);
    for (value, before) in values.iter_mut().zip(before).rev() {
        let own = product(rest, before);
        rest = product(rest, *value);
        *value = own;
    }
}

#[expect(clippy::cast_possible_truncation, reason = "a remainder by a u32 is below it")]
fn remainder(hash: u64, divisor: u32) -> u32 {
    (hash % u64::from(divisor)) as u32
}

/// Returns `value^-1 mod prime` for `1 <= value < prime <= 2^24`, by Euclid's extended algorithm.
fn inverse(value: u32, prime: u32) -> u32 {
    let (mut high, mut low) = (prime, value);
    // The factors are numbers modulo 2^32. No absolute value of a factor exceeds `prime`.
    let (mut high_factor, mut low_factor) = (0u32, 1u32);
    while low != 0 {
        let quotient = high / low;
        (high, low) = (low, high - quotient * low);
        (high_factor, low_factor) = (low_factor, high_factor.wrapping_sub(quotient.wrapping_mul(low_factor)));
    }
    // A negative factor has its top bit set, because no factor reaches 2^31.
    if high_factor >> 31 == 0 { high_factor } else { high_factor.wrapping_add(prime) }
}
