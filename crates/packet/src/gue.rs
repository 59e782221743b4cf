//! The checked view of a GUE packet, the payload of UDP port 6080. Source: draft-ietf-intarea-gue-09 §3.

use crate::Malformed;

/// A borrowed GUE packet of variant 0.
#[derive(Clone, Copy, Debug)]
pub struct Gue<'a> {
    header: &'a [u8; 4],
    fields: &'a [u8],
    payload: &'a [u8],
}

impl<'a> Gue<'a> {
    /// Takes the packet, all of `bytes`.
    ///
    /// # Errors
    /// [`Malformed::Truncated`], or [`Malformed::Gue`] for another variant.
    #[inline]
    pub fn parse(bytes: &'a [u8]) -> Result<Self, Malformed> {
        let (header, rest) = bytes.split_first_chunk::<4>().ok_or(Malformed::Truncated)?;
        if header[0] >> 6 != 0 {
            return Err(Malformed::Gue);
        }
        let words = usize::from(header[0] & 0x1f);
        let (fields, payload) = rest.split_at_checked(words * 4).ok_or(Malformed::Truncated)?;
        Ok(Self { header, fields, payload })
    }

    /// Whether this is a control message, whose payload is no packet.
    #[inline]
    #[must_use]
    pub const fn is_control(&self) -> bool {
        self.header[0] & 0x20 != 0
    }

    /// IP protocol number of the payload, or the type of the control message.
    #[inline]
    #[must_use]
    pub const fn protocol(&self) -> u8 {
        self.header[1]
    }

    /// Flags.
    #[inline]
    #[must_use]
    pub const fn flags(&self) -> u16 {
        u16::from_be_bytes([self.header[2], self.header[3]])
    }

    /// Extension fields and private data, 0 to 124 bytes.
    #[inline]
    #[must_use]
    pub const fn fields(&self) -> &'a [u8] {
        self.fields
    }

    /// What follows the header.
    #[inline]
    #[must_use]
    pub const fn payload(&self) -> &'a [u8] {
        self.payload
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_header_length_counts_words_of_extension_fields() {
        let gue = [0x02, 41, 0x12, 0x34, 1, 2, 3, 4, 5, 6, 7, 8, 0x60];
        let view = Gue::parse(&gue).unwrap();
        assert_eq!((view.is_control(), view.protocol(), view.flags()), (false, 41, 0x1234));
        assert_eq!((view.fields(), view.payload()), (&gue[4..12], &[0x60][..]));
        for len in 0..12 {
            assert_eq!(Gue::parse(&gue[..len]).unwrap_err(), Malformed::Truncated);
        }
    }

    #[test]
    fn the_longest_header_has_31_words_of_fields() {
        let mut gue = [0x45; 129];
        [gue[0], gue[1]] = [0x1f, 4];
        let view = Gue::parse(&gue).unwrap();
        assert_eq!((view.fields().len(), view.payload().len()), (124, 1));
    }

    #[test]
    fn control_messages_are_told_apart_and_other_variants_refused() {
        assert!(Gue::parse(&[0x20, 0, 0, 0]).unwrap().is_control());
        for variant in [0x40, 0x80, 0xc0] {
            assert_eq!(Gue::parse(&[variant, 4, 0, 0]).unwrap_err(), Malformed::Gue);
        }
    }
}
