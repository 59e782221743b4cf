//! A checked view of an IPv4 packet (RFC 791).

use core::net::Ipv4Addr;

use crate::fragment::Fragment;
use crate::{Malformed, checksum};

/// A borrowed IPv4 packet. [`Ipv4::parse`] checks every length, so the accessors cannot fail or
/// panic.
#[derive(Clone, Copy, Debug)]
pub struct Ipv4<'a> {
    header: &'a [u8; 20],
    options: &'a [u8],
    payload: &'a [u8],
}

impl<'a> Ipv4<'a> {
    /// Parses the packet at the start of `bytes`. Bytes after its total length are ignored.
    ///
    /// # Errors
    /// Returns [`Malformed`] if the packet is too short, its version is not 4, its header length is
    /// below 20, or its total length is below the header length or exceeds `bytes`.
    #[inline]
    pub fn parse(bytes: &'a [u8]) -> Result<Self, Malformed> {
        let (header, rest) = bytes.split_first_chunk::<20>().ok_or(Malformed::Truncated)?;
        if header[0] >> 4 != 4 {
            return Err(Malformed::Version);
        }
        let words = (header[0] & 0x0f).checked_sub(5).ok_or(Malformed::HeaderLength)?;
        let options_len = usize::from(words) * 4;
        let total = usize::from(u16::from_be_bytes([header[2], header[3]]));
        let len = total.checked_sub(20 + options_len).ok_or(Malformed::TotalLength)?;
        let (options, rest) = rest.split_at_checked(options_len).ok_or(Malformed::Truncated)?;
        // The range excludes Ethernet padding.
        let payload = rest.get(..len).ok_or(Malformed::Truncated)?;
        Ok(Self { header, options, payload })
    }

    /// Returns the length of the header with its options, 20 to 60 bytes.
    #[inline]
    #[must_use]
    pub const fn header_len(&self) -> usize {
        20 + self.options.len()
    }

    /// Returns the length of the packet in bytes, including the header.
    #[inline]
    #[must_use]
    pub const fn total_len(&self) -> u16 {
        u16::from_be_bytes([self.header[2], self.header[3]])
    }

    /// Returns the TOS byte, which contains DSCP and ECN.
    #[inline]
    #[must_use]
    pub const fn tos(&self) -> u8 {
        self.header[1]
    }

    /// Returns the identification.
    #[inline]
    #[must_use]
    pub const fn id(&self) -> u16 {
        u16::from_be_bytes([self.header[4], self.header[5]])
    }

    /// Returns `true` if the DF flag is set.
    #[inline]
    #[must_use]
    pub const fn dont_fragment(&self) -> bool {
        self.header[6] & 0x40 != 0
    }

    /// Returns the fragment information of the packet.
    #[inline]
    #[must_use]
    pub fn fragment(&self) -> Fragment {
        let word = u16::from_be_bytes([self.header[6], self.header[7]]);
        Fragment::from_parts(u32::from(self.id()), (word & 0x1fff) * 8, word & 0x2000 != 0)
    }

    /// Returns the time to live, in hops.
    #[inline]
    #[must_use]
    pub const fn ttl(&self) -> u8 {
        self.header[8]
    }

    /// Returns the protocol number of the payload.
    #[inline]
    #[must_use]
    pub const fn protocol(&self) -> u8 {
        self.header[9]
    }

    /// Returns the source address.
    #[inline]
    #[must_use]
    pub const fn source(&self) -> Ipv4Addr {
        let [.., a, b, c, d, _, _, _, _] = *self.header;
        Ipv4Addr::new(a, b, c, d)
    }

    /// Returns the destination address.
    #[inline]
    #[must_use]
    pub const fn destination(&self) -> Ipv4Addr {
        let [.., a, b, c, d] = *self.header;
        Ipv4Addr::new(a, b, c, d)
    }

    /// Returns the options, 0 to 40 bytes.
    #[inline]
    #[must_use]
    pub const fn options(&self) -> &'a [u8] {
        self.options
    }

    /// Returns the bytes after the header, without Ethernet padding.
    #[inline]
    #[must_use]
    pub const fn payload(&self) -> &'a [u8] {
        self.payload
    }

    /// Returns `true` if the header checksum is correct.
    ///
    /// # Cost
    /// One pass over 20 to 60 bytes.
    #[must_use]
    pub fn checksum_ok(&self) -> bool {
        checksum::Sum::new().add_bytes(self.header).add_bytes(self.options).finish() == 0
    }
}
