//! A backend's preferences, as two numbers.
//!
//! In: the seed, a name, a size. Out: (offset, skip), which stand for the permutation `offset + j * skip mod M`, and
//! [`Preference`], which says which of two slots comes first in it.
//! Not here: the permutation itself; nobody ever holds one.
//! Invariant: `offset < M`, `1 <= skip < M`.
//! Source: Maglev §3.4.

use alloc::vec::Vec;

use siphasher::sip::SipHasher13;
use siphasher::sip128::SipHasher24;

use crate::Seed;

/// The two keyed hash functions of a name, SipHash-1-3 each.
///
/// Their keys are SipHash-2-4 with 128 bits of output, under the seed, of `sluicegate maglev offset` and of
/// `sluicegate maglev skip`; 16 bytes, little-endian. So the functions are independent, and one secret serves a cluster.
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

    /// `h1(name) mod M` and `h2(name) mod (M - 1) + 1`, for a size of 2 or more.
    pub(crate) fn offset_and_skip(&self, name: &[u8], size: u32) -> (u32, u32) {
        (remainder(self.offset.hash(name), size), remainder(self.skip.hash(name), size - 1) + 1)
    }
}

/// Orders slots as one backend prefers them, by one multiplication a slot.
///
/// A slot's place among the preferences is `(slot - start) * skip^-1 mod M`. As a fraction of `M`, in 64 bits, it needs no
/// division: overflow is the modulus. The factor, `2^64 * skip^-1 / M`, is rounded down to a multiple of 2^[`INDEX_BITS`].
/// So two keys are off by less than `M * 2^16` against each other, and places are `2^64 / M` apart, which is more
/// up to [`MAX_SIZE`](crate::MAX_SIZE); and the low bits of a key are free to say which slot it belongs to.
pub(crate) struct Preference {
    factor: u64,
    start: u64,
}

/// Low bits of a key that hold the index of its slot. 16 is the most for which keys of the largest table are in order.
const INDEX_BITS: u32 = 16;

impl Preference {
    /// For the preferences that begin at slot `start`; `inverse` is `skip^-1 mod M` (see [`invert_all`]).
    pub(crate) fn new(start: u32, inverse: u32, size: u32) -> Self {
        #[expect(clippy::cast_possible_truncation, reason = "inverse < size, so the quotient is below 2^48")]
        let fraction = ((u128::from(inverse) << (64 - INDEX_BITS)) / u128::from(size)) as u64;
        let factor = fraction << INDEX_BITS;
        Self { factor, start: u64::from(start).wrapping_mul(factor) }
    }

    /// The earlier a slot comes, the less its key. `index`, below 2^16, comes back from [`Preference::index`].
    #[inline]
    pub(crate) fn key(&self, slot: u32, index: u64) -> u64 {
        u64::from(slot).wrapping_mul(self.factor).wrapping_sub(self.start).wrapping_add(index)
    }

    /// The index that was given for a key.
    pub(crate) fn index(key: u64) -> usize {
        (key % (1 << INDEX_BITS)) as usize
    }
}

/// Replaces each of `values` by its inverse modulo a prime above all of them; none is 0.
///
/// Montgomery's trick: one inversion, and three multiplications for each.
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

/// `value^-1 mod prime` for `1 <= value < prime <= 2^24`, by Euclid's extended algorithm.
fn inverse(value: u32, prime: u32) -> u32 {
    let (mut high, mut low) = (prime, value);
    let (mut high_factor, mut low_factor) = (0u32, 1u32); // modulo 2^32; |factor| <= prime throughout
    while low != 0 {
        let quotient = high / low;
        (high, low) = (low, high - quotient * low);
        (high_factor, low_factor) = (low_factor, high_factor.wrapping_sub(quotient.wrapping_mul(low_factor)));
    }
    // A negative factor has its top bit set: no factor reaches 2^31.
    if high_factor >> 31 == 0 { high_factor } else { high_factor.wrapping_add(prime) }
}
