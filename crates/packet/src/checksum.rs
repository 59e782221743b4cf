//! The Internet checksum: full computation (RFC 1071) and incremental update (RFC 1624).

use core::net::{Ipv4Addr, Ipv6Addr};

/// A ones' complement sum, to which bytes and words are added.
///
/// Each added slice must have an even length, except the last slice.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sum(u64);

impl Sum {
    /// Creates an empty sum.
    #[inline]
    #[must_use]
    pub const fn new() -> Self {
        Self(0)
    }

    /// Adds `bytes` to the sum. If the length is odd, the last byte is the upper half of a 16-bit
    /// word.
    ///
    /// # Cost
    /// One addition per 4 bytes. A slice of 64 bytes or more is summed in native byte order, and
    /// its sum is byte-swapped once at the end (RFC 1071 §2(B)).
    #[inline]
    #[must_use]
    pub fn add_bytes(self, bytes: &[u8]) -> Self {
        if bytes.len() >= LONG {
            return self.add_long(bytes);
        }
        let (blocks, rest) = bytes.as_chunks::<4>();
        // The 64-bit sum cannot overflow, because that would need 16 GiB of input.
        let mut sum = self.0 + blocks.iter().map(|block| u64::from(u32::from_be_bytes(*block))).sum::<u64>();
        let (words, odd) = rest.as_chunks::<2>();
        for word in words {
            sum += u64::from(u16::from_be_bytes(*word));
        }
        if let [last] = odd {
            sum += u64::from(*last) << 8;
        }
        Self(sum)
    }

    fn add_long(self, bytes: &[u8]) -> Self {
        let (blocks, rest) = bytes.as_chunks::<4>();
        let sum = blocks.iter().map(|block| u64::from(u32::from_ne_bytes(*block))).sum::<u64>();
        self.add_word(u16::from_be(Self(sum).fold())).add_bytes(rest)
    }

    /// Adds one 16-bit word.
    #[inline]
    #[must_use]
    pub const fn add_word(self, word: u16) -> Self {
        Self(self.0 + word as u64)
    }

    /// Adds the IPv4 pseudo-header, which TCP and UDP checksums cover (RFC 9293 §3.1). `len` is the
    /// length of the TCP segment or UDP datagram in bytes.
    #[must_use]
    pub fn add_pseudo_v4(self, source: Ipv4Addr, destination: Ipv4Addr, protocol: u8, len: u16) -> Self {
        self.add_bytes(&source.octets())
            .add_bytes(&destination.octets())
            .add_word(u16::from(protocol))
            .add_word(len)
    }

    /// Adds the IPv6 pseudo-header, which upper-layer checksums cover (RFC 8200 §8.1). `len` is the
    /// length of the upper-layer packet in bytes.
    #[must_use]
    pub fn add_pseudo_v6(self, source: Ipv6Addr, destination: Ipv6Addr, protocol: u8, len: u16) -> Self {
        self.add_bytes(&source.octets())
            .add_bytes(&destination.octets())
            .add_word(u16::from(protocol))
            .add_word(len)
    }

    /// Returns the sum folded to 16 bits. The result is not complemented.
    #[inline]
    #[must_use]
    pub const fn fold(self) -> u16 {
        let sum = (self.0 >> 32) + (self.0 & 0xffff_ffff); // at most 33 bits
        let sum = (sum >> 16) + (sum & 0xffff); // at most 18 bits
        let sum = (sum >> 16) + (sum & 0xffff); // at most 17 bits
        let [.., hi, lo] = ((sum >> 16) + (sum & 0xffff)).to_be_bytes();
        u16::from_be_bytes([hi, lo])
    }

    /// Returns the checksum, which is the complement of the folded sum. If the summed bytes contain
    /// a correct checksum, the result is 0.
    #[inline]
    #[must_use]
    pub const fn finish(self) -> u16 {
        !self.fold()
    }
}

/// Returns the sum of `bytes`, folded to 16 bits and not complemented. If `bytes` begins at an even
/// offset of a larger message, pass this value to [`Sum::add_word`] instead of adding the bytes.
#[must_use]
pub fn folded_sum(bytes: &[u8]) -> u16 {
    Sum::new().add_bytes(bytes).fold()
}

/// Returns the checksum of `bytes`.
///
/// To compute a new checksum, set the checksum field in `bytes` to zero first. To verify a received
/// checksum, leave the field unchanged: the result is 0 if the checksum is correct.
#[inline]
#[must_use]
pub fn checksum(bytes: &[u8]) -> u16 {
    Sum::new().add_bytes(bytes).finish()
}

/// Returns the new checksum after one of the summed 16-bit words has changed from `old` to `new`.
///
/// # References
/// RFC 1624 §3, equation 3.
#[inline]
#[must_use]
pub const fn update(checksum: u16, old: u16, new: u16) -> u16 {
    //= RFC 1624 §3
    //# HC' = ~(~HC + ~m + m')
    Sum::new().add_word(!checksum).add_word(!old).add_word(new).finish()
}

/// The minimum slice length in bytes for which a sum in native byte order is faster.
const LONG: usize = 64;

#[cfg(test)]
mod tests;
