//! The checked view of a UDP datagram. Source: RFC 768.

use crate::Malformed;

/// A borrowed UDP datagram.
#[derive(Clone, Copy, Debug)]
pub struct Udp<'a> {
    header: &'a [u8; 8],
    payload: &'a [u8],
}

impl<'a> Udp<'a> {
    /// Takes the datagram at the start of `bytes`; what lies behind its length is ignored.
    ///
    /// # Errors
    /// [`Malformed`]: below 8 bytes, length below 8 or beyond the bytes.
    #[inline]
    pub fn parse(bytes: &'a [u8]) -> Result<Self, Malformed> {
        let (header, rest) = bytes.split_first_chunk::<8>().ok_or(Malformed::Truncated)?;
        let len = usize::from(u16::from_be_bytes([header[4], header[5]]));
        let len = len.checked_sub(8).ok_or(Malformed::UdpLength)?;
        let payload = rest.get(..len).ok_or(Malformed::Truncated)?;
        Ok(Self { header, payload })
    }

    /// Source port.
    #[inline]
    #[must_use]
    pub const fn src_port(&self) -> u16 {
        u16::from_be_bytes([self.header[0], self.header[1]])
    }

    /// Destination port.
    #[inline]
    #[must_use]
    pub const fn dst_port(&self) -> u16 {
        u16::from_be_bytes([self.header[2], self.header[3]])
    }

    /// Checksum; 0 means none.
    #[inline]
    #[must_use]
    pub const fn checksum(&self) -> u16 {
        u16::from_be_bytes([self.header[6], self.header[7]])
    }

    /// The data.
    #[inline]
    #[must_use]
    pub const fn payload(&self) -> &'a [u8] {
        self.payload
    }
}
