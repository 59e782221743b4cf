//! Computes SipHash-1-3 over messages that consist of complete 64-bit words, one message or eight
//! messages at a time.
//!
//! The results are the same as those of the crate `siphasher` for the words in little-endian byte
//! order. Implementations with vector instructions need `unsafe`, so they are in other crates.
//! [`LaneHashers`] contains function pointers to them.
//!
//! See §2 of Aumasson and Bernstein, *SipHash: a fast short-input PRF*, INDOCRYPT 2012.
//!
//! ```
//! use sip_lanes::{LANES, LaneHashers, SipKey};
//!
//! let key = SipKey::new(b"sixteen bytes ..");
//! // The message of lane n consists of the words n and 7.
//! let messages = [[[0, 1, 2, 3, 4, 5, 6, 7], [7; LANES]]];
//! let mut hashes = [[0; LANES]];
//! (LaneHashers::PORTABLE.two)(key, &messages, &mut hashes);
//! assert_eq!(hashes[0][3], key.hash(&[3, 7]));
//! ```
#![forbid(unsafe_code)]

/// The number of messages that are hashed in parallel.
pub const LANES: usize = 8;

/// Eight messages of `WORDS` words each. Element `n` holds word `n` of all eight messages.
pub type Lanes<const WORDS: usize> = [[u64; LANES]; WORDS];

/// A SipHash key. The type does not implement `Debug`, which keeps keys out of logs.
#[derive(Clone, Copy)]
pub struct SipKey([u64; 2]);

impl SipKey {
    /// Creates a key from its 16 bytes.
    #[must_use]
    pub fn new(bytes: &[u8; 16]) -> Self {
        let [first, second] = halves(bytes);
        Self([first, second])
    }

    /// Returns the 16 bytes of the key.
    #[must_use]
    pub fn bytes(self) -> [u8; 16] {
        (u128::from(self.0[0]) | u128::from(self.0[1]) << 64).to_le_bytes()
    }

    /// Returns the initial SipHash state for this key.
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

    /// Returns the hash of a single message.
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

/// Returns the final word that SipHash appends to a message of `words` words. The highest byte of
/// this word contains the message length in bytes, modulo 256.
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

/// Splits 16 bytes into two little-endian words.
#[must_use]
#[inline(always)]
pub fn halves(bytes: &[u8; 16]) -> [u64; 2] {
    let all = u128::from_le_bytes(*bytes);
    #[expect(clippy::cast_possible_truncation, reason = "each half is taken separately")]
    let halves = [all as u64, (all >> 64) as u64];
    halves
}

/// A function that hashes many messages of `WORDS` words. The function writes the hash of lane
/// `lane` in `messages[n]` to `hashes[n][lane]`. If the slices differ in length, the shorter length
/// is used.
pub type HashMany<const WORDS: usize> = fn(SipKey, &[Lanes<WORDS>], &mut [[u64; LANES]]);

/// The functions that hash the flows of a batch. All implementations return the same hashes, but
/// use different CPU instructions.
#[derive(Clone, Copy, Debug)]
pub struct LaneHashers {
    /// Hashes messages of two words, for IPv4.
    pub two: HashMany<2>,
    /// Hashes messages of five words, for IPv6.
    pub five: HashMany<5>,
}

impl LaneHashers {
    /// The implementation that runs on any CPU.
    pub const PORTABLE: Self = Self { two: hash_many, five: hash_many };
}

/// Implements [`HashMany`] one lane at a time. Compilers can vectorize this function if the target
/// has vector rotations of 64-bit words.
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
