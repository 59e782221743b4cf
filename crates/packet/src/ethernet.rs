//! The checked view of an Ethernet frame. Source: IEEE 802.3.

use crate::{Mac, Malformed};

/// A borrowed Ethernet frame, without the frame check sequence.
#[derive(Clone, Copy, Debug)]
pub struct Ethernet<'a> {
    header: &'a [u8; 14],
    payload: &'a [u8],
}

impl<'a> Ethernet<'a> {
    /// Takes the frame.
    ///
    /// # Errors
    /// [`Malformed::Truncated`] below 14 bytes.
    #[inline]
    pub fn parse(bytes: &'a [u8]) -> Result<Self, Malformed> {
        let (header, payload) = bytes.split_first_chunk().ok_or(Malformed::Truncated)?;
        Ok(Self { header, payload })
    }

    /// Destination address.
    #[inline]
    #[must_use]
    pub const fn destination(&self) -> Mac {
        let [a, b, c, d, e, f, ..] = *self.header;
        Mac([a, b, c, d, e, f])
    }

    /// Source address.
    #[inline]
    #[must_use]
    pub const fn source(&self) -> Mac {
        let [_, _, _, _, _, _, a, b, c, d, e, f, ..] = *self.header;
        Mac([a, b, c, d, e, f])
    }

    /// What follows: an Ethernet type, or a length below 1,536.
    #[inline]
    #[must_use]
    pub const fn ethertype(&self) -> u16 {
        u16::from_be_bytes([self.header[12], self.header[13]])
    }

    /// What follows the header, padding included.
    #[inline]
    #[must_use]
    pub const fn payload(&self) -> &'a [u8] {
        self.payload
    }
}
