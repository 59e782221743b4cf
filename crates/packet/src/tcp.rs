//! The checked view of a TCP segment. Source: RFC 9293 §3.1.

use crate::Malformed;

/// A borrowed TCP segment.
#[derive(Clone, Copy, Debug)]
pub struct Tcp<'a> {
    header: &'a [u8; 20],
    options: &'a [u8],
    payload: &'a [u8],
}

impl<'a> Tcp<'a> {
    /// Takes the segment, all of `bytes`.
    ///
    /// # Errors
    /// [`Malformed`]: below 20 bytes, data offset below 5 words or beyond the bytes.
    #[inline]
    pub fn parse(bytes: &'a [u8]) -> Result<Self, Malformed> {
        let (header, rest) = bytes.split_first_chunk::<20>().ok_or(Malformed::Truncated)?;
        let words = (header[12] >> 4).checked_sub(5).ok_or(Malformed::HeaderLength)?;
        let (options, payload) = rest.split_at_checked(usize::from(words) * 4).ok_or(Malformed::Truncated)?;
        Ok(Self { header, options, payload })
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

    /// Sequence number.
    #[inline]
    #[must_use]
    pub const fn sequence(&self) -> u32 {
        u32::from_be_bytes([self.header[4], self.header[5], self.header[6], self.header[7]])
    }

    /// Acknowledgment number.
    #[inline]
    #[must_use]
    pub const fn acknowledgment(&self) -> u32 {
        u32::from_be_bytes([self.header[8], self.header[9], self.header[10], self.header[11]])
    }

    /// Flags from CWR (0x80) to FIN (0x01): [`crate::protocol::TCP_FIN`] and its neighbours.
    #[inline]
    #[must_use]
    pub const fn flags(&self) -> u8 {
        self.header[13]
    }

    /// Receive window, not scaled.
    #[inline]
    #[must_use]
    pub const fn window(&self) -> u16 {
        u16::from_be_bytes([self.header[14], self.header[15]])
    }

    /// Checksum.
    #[inline]
    #[must_use]
    pub const fn checksum(&self) -> u16 {
        u16::from_be_bytes([self.header[16], self.header[17]])
    }

    /// The options, 0 to 40 bytes.
    #[inline]
    #[must_use]
    pub const fn options(&self) -> &'a [u8] {
        self.options
    }

    /// The data.
    #[inline]
    #[must_use]
    pub const fn payload(&self) -> &'a [u8] {
        self.payload
    }
}
