//! A checked view of a GUE packet, the payload of UDP port 6080 (draft-ietf-intarea-gue-09 §3).

use crate::Malformed;

/// A borrowed GUE packet of variant 0.
#[derive(Clone, Copy, Debug)]
pub struct Gue<'a> {
    header: &'a [u8; 4],
    fields: &'a [u8],
    payload: &'a [u8],
}

impl<'a> Gue<'a> {
    /// Parses all of `bytes` as one GUE packet.
    ///
    /// # Errors
    /// Returns [`Malformed::Truncated`] if the packet is too short, or [`Malformed::Gue`] if the
    /// variant is not 0.
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

    /// Returns `true` if this is a control message. The payload of a control message is not an IP
    /// packet.
    #[inline]
    #[must_use]
    pub const fn is_control(&self) -> bool {
        self.header[0] & 0x20 != 0
    }

    /// Returns the IP protocol number of the payload. For a control message, returns the message
    /// type.
    #[inline]
    #[must_use]
    pub const fn protocol(&self) -> u8 {
        self.header[1]
    }

    /// Returns the 16-bit flags field.
    #[inline]
    #[must_use]
    pub const fn flags(&self) -> u16 {
        u16::from_be_bytes([self.header[2], self.header[3]])
    }

    /// Returns the extension fields and private data, 0 to 124 bytes.
    #[inline]
    #[must_use]
    pub const fn fields(&self) -> &'a [u8] {
        self.fields
    }

    /// Returns the bytes after the header.
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
    fn parse_recognizes_control_messages_and_rejects_other_variants() {
        assert!(Gue::parse(&[0x20, 0, 0, 0]).unwrap().is_control());
        for variant in [0x40, 0x80, 0xc0] {
            assert_eq!(Gue::parse(&[variant, 4, 0, 0]).unwrap_err(), Malformed::Gue);
        }
    }
}
