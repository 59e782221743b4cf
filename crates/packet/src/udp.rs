//! A checked view of a UDP datagram (RFC 768).

use crate::Malformed;

/// A borrowed UDP datagram.
#[derive(Clone, Copy, Debug)]
pub struct Udp<'a> {
    header: &'a [u8; 8],
    payload: &'a [u8],
}

impl<'a> Udp<'a> {
    /// Parses the datagram at the start of `bytes`. Bytes after its length are ignored.
    ///
    /// # Errors
    /// Returns [`Malformed`] if `bytes` is shorter than 8, or if the length field is below 8 or
    /// exceeds `bytes`.
    #[inline]
    pub fn parse(bytes: &'a [u8]) -> Result<Self, Malformed> {
        let (header, rest) = bytes.split_first_chunk::<8>().ok_or(Malformed::Truncated)?;
        let len = usize::from(u16::from_be_bytes([header[4], header[5]]));
        let len = len.checked_sub(8).ok_or(Malformed::UdpLength)?;
        let payload = rest.get(..len).ok_or(Malformed::Truncated)?;
        Ok(Self { header, payload })
    }

    /// Returns the source port.
    #[inline]
    #[must_use]
    pub const fn src_port(&self) -> u16 {
        u16::from_be_bytes([self.header[0], self.header[1]])
    }

    /// Returns the destination port.
    #[inline]
    #[must_use]
    pub const fn dst_port(&self) -> u16 {
        u16::from_be_bytes([self.header[2], self.header[3]])
    }

    /// Returns the checksum. The value 0 means that the sender did not compute a checksum.
    #[inline]
    #[must_use]
    pub const fn checksum(&self) -> u16 {
        u16::from_be_bytes([self.header[6], self.header[7]])
    }

    /// Returns the payload.
    #[inline]
    #[must_use]
    pub const fn payload(&self) -> &'a [u8] {
        self.payload
    }
}
