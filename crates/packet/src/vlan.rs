//! The checked view of what follows an 802.1Q or 802.1ad Ethernet type. Source: IEEE 802.1Q.

use crate::Malformed;

/// A borrowed tag, from the tag control information on, and what it carries.
#[derive(Clone, Copy, Debug)]
pub struct Vlan<'a> {
    tag: &'a [u8; 4],
    payload: &'a [u8],
}

impl<'a> Vlan<'a> {
    /// Takes the tag at the start of `bytes`, which is behind the Ethernet type that announced it.
    ///
    /// # Errors
    /// [`Malformed::Truncated`] below 4 bytes.
    #[inline]
    pub fn parse(bytes: &'a [u8]) -> Result<Self, Malformed> {
        let (tag, payload) = bytes.split_first_chunk().ok_or(Malformed::Truncated)?;
        Ok(Self { tag, payload })
    }

    /// VLAN identifier, 0 to 4095.
    #[inline]
    #[must_use]
    pub const fn id(&self) -> u16 {
        u16::from_be_bytes([self.tag[0] & 0x0f, self.tag[1]])
    }

    /// Priority code point, 0 to 7.
    #[inline]
    #[must_use]
    pub const fn priority(&self) -> u8 {
        self.tag[0] >> 5
    }

    /// What follows the tag.
    #[inline]
    #[must_use]
    pub const fn ethertype(&self) -> u16 {
        u16::from_be_bytes([self.tag[2], self.tag[3]])
    }

    /// What follows the tag, padding included.
    #[inline]
    #[must_use]
    pub const fn payload(&self) -> &'a [u8] {
        self.payload
    }
}
