//! The checked view of an IPv4 packet. Source: RFC 791.

use core::net::Ipv4Addr;

use crate::fragment::Fragment;
use crate::{Malformed, checksum};

/// A borrowed IPv4 packet. `parse` checks every length; after it no accessor can fail or panic.
#[derive(Clone, Copy, Debug)]
pub struct Ipv4<'a> {
    header: &'a [u8; 20],
    options: &'a [u8],
    payload: &'a [u8],
}

impl<'a> Ipv4<'a> {
    /// Takes the packet at the start of `bytes`; what lies behind its total length is ignored.
    ///
    /// # Errors
    /// [`Malformed`]: too short, version not 4, header length below 20, total length below the header or beyond
    /// the bytes.
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
        let payload = rest.get(..len).ok_or(Malformed::Truncated)?; // Ethernet padding is left outside
        Ok(Self { header, options, payload })
    }

    /// Bytes of the header with its options, 20 to 60.
    #[inline]
    #[must_use]
    pub const fn header_len(&self) -> usize {
        20 + self.options.len()
    }

    /// Bytes of the packet, header included.
    #[inline]
    #[must_use]
    pub const fn total_len(&self) -> u16 {
        u16::from_be_bytes([self.header[2], self.header[3]])
    }

    /// TOS: DSCP and ECN.
    #[inline]
    #[must_use]
    pub const fn tos(&self) -> u8 {
        self.header[1]
    }

    /// Identification.
    #[inline]
    #[must_use]
    pub const fn id(&self) -> u16 {
        u16::from_be_bytes([self.header[4], self.header[5]])
    }

    /// The DF flag.
    #[inline]
    #[must_use]
    pub const fn dont_fragment(&self) -> bool {
        self.header[6] & 0x40 != 0
    }

    /// Whether this is a piece of a packet.
    #[inline]
    #[must_use]
    pub fn fragment(&self) -> Fragment {
        let word = u16::from_be_bytes([self.header[6], self.header[7]]);
        Fragment::from_parts(u32::from(self.id()), (word & 0x1fff) * 8, word & 0x2000 != 0)
    }

    /// Time to live, in hops.
    #[inline]
    #[must_use]
    pub const fn ttl(&self) -> u8 {
        self.header[8]
    }

    /// Protocol number of the payload.
    #[inline]
    #[must_use]
    pub const fn protocol(&self) -> u8 {
        self.header[9]
    }

    /// Source address.
    #[inline]
    #[must_use]
    pub const fn source(&self) -> Ipv4Addr {
        let [.., a, b, c, d, _, _, _, _] = *self.header;
        Ipv4Addr::new(a, b, c, d)
    }

    /// Destination address.
    #[inline]
    #[must_use]
    pub const fn destination(&self) -> Ipv4Addr {
        let [.., a, b, c, d] = *self.header;
        Ipv4Addr::new(a, b, c, d)
    }

    /// The options, 0 to 40 bytes.
    #[inline]
    #[must_use]
    pub const fn options(&self) -> &'a [u8] {
        self.options
    }

    /// What follows the header, Ethernet padding excluded.
    #[inline]
    #[must_use]
    pub const fn payload(&self) -> &'a [u8] {
        self.payload
    }

    /// Whether the header checksum is right.
    ///
    /// # Cost
    /// A pass over 20 to 60 bytes.
    #[must_use]
    pub fn checksum_ok(&self) -> bool {
        checksum::Sum::new().add_bytes(self.header).add_bytes(self.options).finish() == 0
    }
}
