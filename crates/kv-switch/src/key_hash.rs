//! Hash functions for memcached keys.
//!
//! A [`KeyHash`] hashes a key as the server stores it. The hash selects an entry of a Maglev table
//! or a point on a ketama ring. The ketama hash functions give the same results as those in
//! libmemcached and nutcracker.
//!
//! SipHash is described in Aumasson and Bernstein, *SipHash*, 2012. The ketama hash functions are
//! in libmemcached 1.1 (`libhashkit/{md5,fnv_64}.cc`) and in nutcracker 0.5
//! (`hashkit/{nc_md5,nc_fnv}.c`).

use std::fmt;

use md5::{Digest, Md5};
use siphasher::sip::SipHasher13;

/// A hash function for keys.
#[derive(Clone, Copy)]
pub struct KeyHash(Kind);

#[derive(Clone, Copy)]
enum Kind {
    Sip { first: u64, second: u64 },
    Md5,
    Fnv1a64,
}

impl KeyHash {
    /// Returns SipHash-1-3 with a secret of two 64-bit words, for use with a Maglev table. Clients
    /// that do not know the secret cannot choose keys that all belong to one server.
    #[must_use]
    pub const fn sip(first: u64, second: u64) -> Self {
        Self(Kind::Sip { first, second })
    }

    /// Returns the hash function [`md5_ketama`], for use with a [`crate::Ring`].
    #[must_use]
    pub const fn md5() -> Self {
        Self(Kind::Md5)
    }

    /// Returns the hash function [`fnv1a_64`], for use with a [`crate::Ring`].
    #[must_use]
    pub const fn fnv1a_64() -> Self {
        Self(Kind::Fnv1a64)
    }

    /// Returns the name of the hash function.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self.0 {
            Kind::Sip { .. } => "sip",
            Kind::Md5 => "md5",
            Kind::Fnv1a64 => "fnv1a_64",
        }
    }

    /// Returns the hash of a key. SipHash produces 64 bits, and the other functions produce 32
    /// bits.
    ///
    /// # Cost
    /// SipHash runs one round for each 8 bytes. MD5 processes one block for each 64 bytes,
    /// including 9 bytes of padding. FNV runs one multiplication for each byte.
    #[inline]
    #[must_use]
    pub fn hash(&self, key: &[u8]) -> u64 {
        match self.0 {
            Kind::Sip { first, second } => SipHasher13::new_with_keys(first, second).hash(key),
            Kind::Md5 => u64::from(md5_ketama(key)),
            Kind::Fnv1a64 => u64::from(fnv1a_64(key)),
        }
    }
}

impl fmt::Debug for KeyHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "KeyHash({})", self.name())
    }
}

/// Returns the ketama hash of libmemcached and nutcracker, which is the first four bytes of the MD5
/// digest of the key in little-endian order.
#[must_use]
pub fn md5_ketama(key: &[u8]) -> u32 {
    let [point, ..] = md5_points(key);
    point
}

/// Returns the MD5 digest as four little-endian words. Each word is a point of a server on the
/// ring.
pub(crate) fn md5_points(text: &[u8]) -> [u32; 4] {
    let digest: [u8; 16] = Md5::digest(text).into();
    let (words, _) = digest.as_chunks::<4>();
    std::array::from_fn(|index| words.get(index).map_or(0, |&word| u32::from_le_bytes(word)))
}

/// Returns the hash that libmemcached and nutcracker call `fnv1a_64`. This hash is the default of
/// nutcracker. The function is FNV-1a with the offset and the prime of the 64-bit variant truncated
/// to 32 bits. The bytes of the key are treated as signed, because `char` is signed on x86-64. The
/// hash distributes keys unevenly. Use this function only to find keys that other clients have
/// stored.
#[inline]
#[must_use]
pub fn fnv1a_64(key: &[u8]) -> u32 {
    key.iter().fold(OFFSET, |hash, &byte| {
        (hash ^ i32::from(byte.cast_signed()).cast_unsigned()).wrapping_mul(PRIME)
    })
}

/// The lower 32 bits of the 64-bit FNV constants 0xcbf2_9ce4_8422_2325 and 0x100_0000_01b3.
const OFFSET: u32 = 0x8422_2325;
const PRIME: u32 = 0x1b3;

#[cfg(test)]
mod tests {
    use std::hash::{DefaultHasher, Hasher};

    use super::*;

    /// The expected values come from `memcached_generate_hash_value` of libmemcached 1.1.4 with
    /// `MEMCACHED_HASH_MD5` and `MEMCACHED_HASH_FNV1A_64`.
    #[test]
    fn keys_hash_as_libmemcached_hashes_them() {
        let long = [b'x'; 250];
        for (key, md5, fnv) in [
            (b"".as_slice(), 0xd98c_1dd4, 0x8422_2325),
            (b"a", 0xb975_c10c, 0x8601_ec8c),
            (b"foo", 0xdb18_bdac, 0xfed9_d577),
            (b"user:17", 0x05e8_e214, 0xdcc9_09d4),
            (b"k\x80\xff", 0x4595_2d61, 0x366e_ccb3), // bytes above 0x7f are negative
            (&long, 0x4b51_c179, 0x1603_5bad),
        ] {
            assert_eq!((md5_ketama(key), fnv1a_64(key)), (md5, fnv), "{}", key.escape_ascii());
            assert_eq!(KeyHash::md5().hash(key), u64::from(md5));
            assert_eq!(KeyHash::fnv1a_64().hash(key), u64::from(fnv));
        }
    }

    /// `DefaultHasher` of the standard library is SipHash-1-3 with a zero key.
    #[test]
    fn sip_is_siphash_1_3_and_depends_on_both_words_of_its_key() {
        for len in 0..300 {
            let key: Vec<u8> = (0..=u8::MAX).cycle().take(len).collect();
            let mut hasher = DefaultHasher::new();
            hasher.write(&key);
            assert_eq!(KeyHash::sip(0, 0).hash(&key), hasher.finish(), "{len}");
        }
        let [zero, first, second] = [(0, 0), (1, 0), (0, 1)].map(|(a, b)| KeyHash::sip(a, b).hash(b"key"));
        assert!(zero != first && zero != second && first != second);
    }

    #[test]
    fn a_secret_is_not_printed() {
        assert_eq!(format!("{:?}", KeyHash::sip(0xdead, 0xbeef)), "KeyHash(sip)");
    }
}
