//! Computes the flow hashes of a batch, eight at a time, with the vector instructions of this
//! processor. The results are identical to the scalar hashes on every processor. The crate
//! `sip-lanes` implements SipHash. The AVX2 code here computes the same rounds with intrinsics.
//!
//! Invariant: a function that needs an instruction set is returned only if the processor supports
//! that set.

use sip_lanes::LaneHashers;

/// Returns the fastest hash functions for this processor.
#[must_use]
pub fn lane_hashers() -> LaneHashers {
    #[cfg(target_arch = "x86_64")]
    if let Some(hashers) = x86::hashers() {
        return hashers;
    }
    LaneHashers::PORTABLE
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use core::arch::x86_64::{
        __m256i, _mm256_add_epi64, _mm256_loadu_si256, _mm256_or_si256, _mm256_set_epi8, _mm256_set1_epi64x,
        _mm256_shuffle_epi8, _mm256_shuffle_epi32, _mm256_slli_epi64, _mm256_srli_epi64, _mm256_storeu_si256,
        _mm256_xor_si256,
    };

    use sip_lanes::{LANES, LaneHashers, Lanes, SipKey, hash_many, last_word};

    /// Returns `None` if the processor has neither AVX-512 nor AVX2.
    pub(super) fn hashers() -> Option<LaneHashers> {
        if is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512vl") {
            return Some(LaneHashers { two: avx512_checked, five: avx512_checked });
        }
        is_x86_feature_detected!("avx2").then_some(LaneHashers { two: avx2_checked, five: avx2_checked })
    }

    fn avx512_checked<const W: usize>(key: SipKey, messages: &[Lanes<W>], hashes: &mut [[u64; LANES]]) {
        // SAFETY: `hashers` returns this function only if the processor supports AVX-512F and
        // AVX-512VL.
        unsafe { avx512(key, messages, hashes) }
    }

    pub(super) fn avx2_checked<const W: usize>(
        key: SipKey,
        messages: &[Lanes<W>],
        hashes: &mut [[u64; LANES]],
    ) {
        // SAFETY: `hashers` returns this function only if the processor supports AVX2.
        unsafe { avx2(key, messages, hashes) }
    }

    /// Computes the hashes with AVX-512. AVX-512 has 64-bit rotations, so the compiler can
    /// vectorize the portable loop.
    #[target_feature(enable = "avx512f,avx512vl")]
    fn avx512<const W: usize>(key: SipKey, messages: &[Lanes<W>], hashes: &mut [[u64; LANES]]) {
        hash_many(key, messages, hashes);
    }

    /// Computes the hashes with AVX2 intrinsics. The portable loop is not used here. AVX2 has no
    /// rotate instruction, so the compiler would generate scalar code for the loop.
    #[target_feature(enable = "avx2")]
    fn avx2<const W: usize>(key: SipKey, messages: &[Lanes<W>], hashes: &mut [[u64; LANES]]) {
        let [k0, k1, k2, k3] = key.start();
        let start = [splat(k0), splat(k1), splat(k2), splat(k3)];
        let last = splat(last_word(W));
        for (message, hashes) in messages.iter().zip(hashes) {
            // The instructions for one vector depend on each other. Interleaving two vectors of
            // four lanes keeps the processor's pipeline busy.
            let mut states = [start; 2];
            for word in message {
                states = compress(states, load(word));
            }
            states = compress(states, [last; 2]);
            for state in &mut states {
                state[2] = _mm256_xor_si256(state[2], splat(0xff));
            }
            states = round(round(round(states)));
            store([folded(states[0]), folded(states[1])], hashes);
        }
    }

    type States = [[__m256i; 4]; 2];

    #[inline]
    #[target_feature(enable = "avx2")]
    fn compress(states: States, words: [__m256i; 2]) -> States {
        let [x, y] = states;
        let [x, y] = round([
            [x[0], x[1], x[2], _mm256_xor_si256(x[3], words[0])],
            [y[0], y[1], y[2], _mm256_xor_si256(y[3], words[1])],
        ]);
        [
            [_mm256_xor_si256(x[0], words[0]), x[1], x[2], x[3]],
            [_mm256_xor_si256(y[0], words[1]), y[1], y[2], y[3]],
        ]
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    fn round([x, y]: States) -> States {
        [round_of(x), round_of(y)]
    }

    /// Computes one SipHash round.
    #[inline]
    #[target_feature(enable = "avx2")]
    fn round_of([mut a, mut b, mut c, mut d]: [__m256i; 4]) -> [__m256i; 4] {
        a = _mm256_add_epi64(a, b);
        b = _mm256_xor_si256(rotate::<13, 51>(b), a);
        a = _mm256_shuffle_epi32::<0b1011_0001>(a);
        c = _mm256_add_epi64(c, d);
        d = _mm256_xor_si256(rotate_16(d), c);
        a = _mm256_add_epi64(a, d);
        d = _mm256_xor_si256(rotate::<21, 43>(d), a);
        c = _mm256_add_epi64(c, b);
        b = _mm256_xor_si256(rotate::<17, 47>(b), c);
        c = _mm256_shuffle_epi32::<0b1011_0001>(c);
        [a, b, c, d]
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    fn rotate<const LEFT: i32, const RIGHT: i32>(lanes: __m256i) -> __m256i {
        _mm256_or_si256(_mm256_slli_epi64::<LEFT>(lanes), _mm256_srli_epi64::<RIGHT>(lanes))
    }

    /// Rotates each lane by 16 bits with a byte shuffle.
    #[inline]
    #[target_feature(enable = "avx2")]
    fn rotate_16(lanes: __m256i) -> __m256i {
        let order = _mm256_set_epi8(
            13, 12, 11, 10, 9, 8, 15, 14, 5, 4, 3, 2, 1, 0, 7, 6, 13, 12, 11, 10, 9, 8, 15, 14, 5, 4, 3, 2,
            1, 0, 7, 6,
        );
        _mm256_shuffle_epi8(lanes, order)
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    fn folded([a, b, c, d]: [__m256i; 4]) -> __m256i {
        _mm256_xor_si256(_mm256_xor_si256(a, b), _mm256_xor_si256(c, d))
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    fn splat(word: u64) -> __m256i {
        _mm256_set1_epi64x(word.cast_signed())
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    fn load(lanes: &[u64; LANES]) -> [__m256i; 2] {
        let [first, second] = [lanes.as_ptr().cast(), lanes[4..].as_ptr().cast()];
        // SAFETY: the load reads the first 32 bytes of a borrowed 64-byte chunk and requires no
        // alignment.
        let first = unsafe { _mm256_loadu_si256(first) };
        // SAFETY: the load reads the last 32 bytes of a borrowed 64-byte chunk and requires no
        // alignment.
        [first, unsafe { _mm256_loadu_si256(second) }]
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    fn store(vectors: [__m256i; 2], lanes: &mut [u64; LANES]) {
        let (four, _) = lanes.as_chunks_mut::<4>();
        for (four, vector) in four.iter_mut().zip(vectors) {
            // SAFETY: the store writes the 32 bytes of a mutably borrowed chunk and requires no
            // alignment.
            unsafe { _mm256_storeu_si256(four.as_mut_ptr().cast(), vector) };
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use forwarder::HashKey;
    use sip_lanes::{LANES, Lanes, SipKey};

    /// Returns the hash functions that [`lane_hashers`] selects. If the processor supports AVX2,
    /// also returns the AVX2 functions.
    fn all() -> Vec<LaneHashers> {
        let mut all = vec![lane_hashers()];
        #[cfg(target_arch = "x86_64")]
        if is_x86_feature_detected!("avx2") {
            all.push(LaneHashers { two: x86::avx2_checked, five: x86::avx2_checked });
        }
        all
    }

    proptest! {
        // Promise: fast-path-equality
        #[test]
        fn lanes_are_hashed_as_by_portable_code(
            key: [u8; 16],
            two in prop::collection::vec(any::<Lanes<2>>(), 0..9),
            five in prop::collection::vec(any::<Lanes<5>>(), 0..9),
        ) {
            let key = SipKey::from(&HashKey::new(key));
            let run = |hashers: LaneHashers| {
                let (mut a, mut b) = (vec![[0; LANES]; two.len()], vec![[0; LANES]; five.len()]);
                (hashers.two)(key, &two, &mut a);
                (hashers.five)(key, &five, &mut b);
                (a, b)
            };
            for hashers in all() {
                prop_assert_eq!(run(hashers), run(LaneHashers::PORTABLE));
            }
        }
    }
}
