//! SipHash-1-3 of whole words: one message, or eight side by side.
//!
//! In: a key, messages of a fixed number of little-endian words. Out: the hashes that the crate `siphasher` gives for their bytes.
//! Not here: what a message says (`forwarder`); lanes by vector instructions, which need `unsafe` ([`LaneHashers`] takes them in).
//! Source: Aumasson and Bernstein, *SipHash: a fast short-input PRF*, INDOCRYPT 2012, §2; 1-3 are its rounds.
//!
//! ```
//! use sip_lanes::{LANES, LaneHashers, SipKey};
//!
//! let key = SipKey::new(b"sixteen bytes ..");
//! // Word by word, eight messages next to each other: lane n says n and 7.
//! let messages = [[[0, 1, 2, 3, 4, 5, 6, 7], [7; LANES]]];
//! let mut hashes = [[0; LANES]];
//! (LaneHashers::PORTABLE.two)(key, &messages, &mut hashes);
//! assert_eq!(hashes[0][3], key.hash(&[3, 7]));
//! ```
#![forbid(unsafe_code)]

/// Messages that are hashed side by side.
pub const LANES: usize = 8;

/// Eight messages of `WORDS` words: word by word, the lanes of each next to each other.
pub type Lanes<const WORDS: usize> = [[u64; LANES]; WORDS];

/// A key of SipHash. Never printed.
#[derive(Clone, Copy)]
pub struct SipKey([u64; 2]);

impl SipKey {
    /// From its 16 bytes.
    #[must_use]
    pub fn new(bytes: &[u8; 16]) -> Self {
        let [first, second] = halves(bytes);
        Self([first, second])
    }

    /// The 16 bytes.
    #[must_use]
    pub fn bytes(self) -> [u8; 16] {
        (u128::from(self.0[0]) | u128::from(self.0[1]) << 64).to_le_bytes()
    }

    /// The state before the first word.
    #[must_use]
    #[inline(always)]
    pub fn start(self) -> [u64; 4] {
        let [k0, k1] = self.0;
        [
            k0 ^ 0x736f_6d65_7073_6575,
            k1 ^ 0x646f_7261_6e64_6f6d,
            k0 ^ 0x6c79_6765_6e65_7261,
            k1 ^ 0x7465_6462_7974_6573,
        ]
    }

    /// The hash of one message.
    #[must_use]
    #[inline(always)]
    pub fn hash<const WORDS: usize>(self, words: &[u64; WORDS]) -> u64 {
        let mut state = self.start();
        for word in words {
            state[3] ^= word;
            state = round(state);
            state[0] ^= word;
        }
        let last = last_word(WORDS);
        state[3] ^= last;
        state = round(state);
        state[0] ^= last;
        state[2] ^= 0xff;
        state = round(round(round(state)));
        state[0] ^ state[1] ^ state[2] ^ state[3]
    }
}

/// The word that ends a message of `words` words: its length in bytes, modulo 256, in the highest byte.
#[must_use]
#[inline(always)]
pub const fn last_word(words: usize) -> u64 {
    (words as u64 * 8) << 56
}

#[inline(always)]
const fn round([mut a, mut b, mut c, mut d]: [u64; 4]) -> [u64; 4] {
    a = a.wrapping_add(b);
    b = b.rotate_left(13) ^ a;
    a = a.rotate_left(32);
    c = c.wrapping_add(d);
    d = d.rotate_left(16) ^ c;
    a = a.wrapping_add(d);
    d = d.rotate_left(21) ^ a;
    c = c.wrapping_add(b);
    b = b.rotate_left(17) ^ c;
    c = c.rotate_left(32);
    [a, b, c, d]
}

/// Both halves of 16 bytes, as little-endian words.
#[must_use]
#[inline(always)]
pub fn halves(bytes: &[u8; 16]) -> [u64; 2] {
    let all = u128::from_le_bytes(*bytes);
    #[expect(clippy::cast_possible_truncation, reason = "both halves are wanted")]
    let halves = [all as u64, (all >> 64) as u64];
    halves
}

/// Hashes many messages of `WORDS` words: `hashes[n][lane]` is that of lane `lane` of `messages[n]`; the shorter slice sets the
/// number.
pub type HashMany<const WORDS: usize> = fn(SipKey, &[Lanes<WORDS>], &mut [[u64; LANES]]);

/// How the flows of a batch are hashed: the same hashes, by the instructions that this processor has.
#[derive(Clone, Copy, Debug)]
pub struct LaneHashers {
    /// Two words, for IPv4.
    pub two: HashMany<2>,
    /// Five words, for IPv6.
    pub five: HashMany<5>,
}

impl LaneHashers {
    /// By instructions that every processor has.
    pub const PORTABLE: Self = Self { two: hash_many, five: hash_many };
}

/// [`HashMany`] lane by lane. A compiler that may use vectors of 64-bit rotations makes vectors of it.
#[inline(always)]
pub fn hash_many<const WORDS: usize>(key: SipKey, messages: &[Lanes<WORDS>], hashes: &mut [[u64; LANES]]) {
    for (message, hashes) in messages.iter().zip(hashes) {
        for (lane, hash) in hashes.iter_mut().enumerate() {
            let words: [u64; WORDS] = std::array::from_fn(|word| message[word][lane]);
            *hash = key.hash(&words);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use siphasher::sip::SipHasher13;

    use super::*;

    fn oracle(key: &[u8; 16], words: &[u64]) -> u64 {
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        SipHasher13::new_with_key(key).hash(&bytes)
    }

    proptest! {
        #[test]
        fn words_are_hashed_as_their_bytes(key: [u8; 16], two: [u64; 2], three: [u64; 3], five: [u64; 5]) {
            let sip = SipKey::new(&key);
            prop_assert_eq!(sip.bytes(), key);
            prop_assert_eq!(sip.hash(&two), oracle(&key, &two));
            prop_assert_eq!(sip.hash(&three), oracle(&key, &three));
            prop_assert_eq!(sip.hash(&five), oracle(&key, &five));
        }

        #[test]
        fn each_lane_is_hashed_by_itself(key: [u8; 16], messages in prop::collection::vec(any::<Lanes<5>>(), 0..4)) {
            let mut hashes = vec![[0; LANES]; messages.len()];
            (LaneHashers::PORTABLE.five)(SipKey::new(&key), &messages, &mut hashes);
            for (message, hashes) in messages.iter().zip(hashes) {
                let alone: [u64; LANES] = std::array::from_fn(|lane| oracle(&key, &message.map(|word| word[lane])));
                prop_assert_eq!(hashes, alone);
            }
        }
    }
}
