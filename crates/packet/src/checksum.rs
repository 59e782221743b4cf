//! The Internet checksum: whole (RFC 1071) and incremental (RFC 1624).

use core::net::{Ipv4Addr, Ipv6Addr};

/// A ones' complement sum under way.
///
/// Each piece but the last must have an even length.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sum(u64);

impl Sum {
    /// The empty sum.
    #[inline]
    #[must_use]
    pub const fn new() -> Self {
        Self(0)
    }

    /// Adds bytes; an odd last byte counts as the high half of a word.
    ///
    /// # Cost
    /// One addition for each 4 bytes; of 64 bytes and more without turning each round (RFC 1071 §2(B)).
    #[inline]
    #[must_use]
    pub fn add_bytes(self, bytes: &[u8]) -> Self {
        if bytes.len() >= LONG {
            return self.add_long(bytes);
        }
        let (blocks, rest) = bytes.as_chunks::<4>();
        // 32-bit words into 64 bits: a carry would take 16 GiB.
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

    /// Adds the IPv4 pseudo-header of TCP and UDP (RFC 9293 §3.1). `len` is that of the segment in bytes.
    #[must_use]
    pub fn add_pseudo_v4(self, source: Ipv4Addr, destination: Ipv4Addr, protocol: u8, len: u16) -> Self {
        self.add_bytes(&source.octets())
            .add_bytes(&destination.octets())
            .add_word(u16::from(protocol))
            .add_word(len)
    }

    /// Adds the IPv6 pseudo-header (RFC 8200 §8.1). `len` is that of the upper layer in bytes.
    #[must_use]
    pub fn add_pseudo_v6(self, source: Ipv6Addr, destination: Ipv6Addr, protocol: u8, len: u16) -> Self {
        self.add_bytes(&source.octets())
            .add_bytes(&destination.octets())
            .add_word(u16::from(protocol))
            .add_word(len)
    }

    /// The sum folded to 16 bits, not complemented.
    #[inline]
    #[must_use]
    pub const fn fold(self) -> u16 {
        let sum = (self.0 >> 32) + (self.0 & 0xffff_ffff); // at most 33 bits
        let sum = (sum >> 16) + (sum & 0xffff); // at most 18 bits
        let sum = (sum >> 16) + (sum & 0xffff); // at most 17 bits
        let [.., hi, lo] = ((sum >> 16) + (sum & 0xffff)).to_be_bytes();
        u16::from_be_bytes([hi, lo])
    }

    /// The checksum of a sum that 32 bits hold, as that of a header.
    #[inline(always)]
    #[must_use]
    pub(crate) const fn finish_short(self) -> u16 {
        let sum = (self.0 >> 16) + (self.0 & 0xffff); // at most 17 bits
        #[expect(clippy::cast_possible_truncation, reason = "one carry is left, and then none")]
        let sum = ((sum >> 16) + sum) as u16;
        !sum
    }

    /// The checksum: the complement of the folded sum. 0 over a header that carries a right one.
    #[inline]
    #[must_use]
    pub const fn finish(self) -> u16 {
        !self.fold()
    }
}

/// The folded sum of `bytes`, not complemented: what [`Sum::add_word`] takes for them, where they begin at an even offset.
#[must_use]
pub fn folded_sum(bytes: &[u8]) -> u16 {
    Sum::new().add_bytes(bytes).fold()
}

/// The checksum of `bytes`; their own checksum field must be zero, or the result says 0 for a right one.
#[inline]
#[must_use]
pub fn checksum(bytes: &[u8]) -> u16 {
    Sum::new().add_bytes(bytes).finish()
}

/// The checksum after one word of what it covers changed from `old` to `new`.
///
/// # Source
/// RFC 1624 §3, equation 3.
#[inline]
#[must_use]
pub const fn update(checksum: u16, old: u16, new: u16) -> u16 {
    //= RFC 1624 §3
    //# HC' = ~(~HC + ~m + m')
    Sum::new().add_word(!checksum).add_word(!old).add_word(new).finish()
}

/// Bytes from which on a sum in the machine's own order is cheaper.
const LONG: usize = 64;

#[cfg(test)]
mod tests;
