//! A backend's preferences, as two numbers.
//!
//! In: the seed, a name, a size. Out: (offset, skip), which stand for the permutation `offset + j * skip mod M`, and
//! [`Inverse`], which says where in it a slot comes.
//! Not here: the permutation itself; nobody ever holds one.
//! Invariant: `offset < M`, `1 <= skip < M`.
//! Source: Maglev §3.4.

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

/// Turns a slot into its place in one backend's preferences, by multiplying with `skip^-1 mod M`.
///
/// The multiplier is constant, so the modulus needs no division (Shoup's trick): the quotient of `x * multiplier / M`
/// is estimated from `multiplier * 2^32 / M` and is at most one too small for `x < 2^32`.
pub(crate) struct Inverse {
    size: u32,
    multiplier: u32,
    estimate: u32,
    start: u32,
}

impl Inverse {
    /// For the preferences that begin at slot `start` and go on by `skip`.
    pub(crate) fn new(start: u32, skip: u32, size: u32) -> Self {
        let multiplier = inverse(skip, size);
        #[expect(
            clippy::cast_possible_truncation,
            reason = "multiplier < size, so the quotient is below 2^32"
        )]
        let estimate = ((u64::from(multiplier) << 32) / u64::from(size)) as u32;
        Self { size, multiplier, estimate, start }
    }

    /// How many preferences come before `slot`, counted from `start`.
    #[inline]
    pub(crate) fn place_of(&self, slot: u32) -> u32 {
        let ahead = if slot >= self.start { slot - self.start } else { slot + self.size - self.start };
        let quotient = ((u64::from(ahead) * u64::from(self.estimate)) >> 32) as u32;
        // Both products may wrap; their difference is below 2 M, so it is exact.
        let place = ahead.wrapping_mul(self.multiplier).wrapping_sub(quotient.wrapping_mul(self.size));
        if place >= self.size { place - self.size } else { place }
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
