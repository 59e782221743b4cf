//! The checked view of a GRE packet. Source: RFC 2784, RFC 2890; the recursion-control bits are RFC 1701's.

use crate::Malformed;
use crate::checksum::checksum;

/// A borrowed GRE packet of version 0.
#[derive(Clone, Copy, Debug)]
pub struct Gre<'a> {
    header: &'a [u8; 4],
    checksum: Option<u16>,
    key: Option<u32>,
    sequence: Option<u32>,
    payload: &'a [u8],
}

impl<'a> Gre<'a> {
    /// Takes the packet, all of `bytes`. The optional checksum is not verified.
    ///
    /// # Errors
    /// [`Malformed::Truncated`], or [`Malformed::Gre`] for another version and for source routes (RFC 1701).
    #[inline]
    pub fn parse(bytes: &'a [u8]) -> Result<Self, Malformed> {
        let (header, mut payload) = bytes.split_first_chunk::<4>().ok_or(Malformed::Truncated)?;
        //= RFC 2784 §2.3
        //# a receiver MUST discard a packet where any of bits 1-5 are non-zero, unless that receiver implements
        //# RFC 1701
        // We do for the recursion bits (one of which is bit 5), RFC 2890 takes bits 2 and 3; routing is refused.
        if header[0] & ROUTING != 0 || header[1] & VERSION != 0 {
            return Err(Malformed::Gre);
        }
        let mut field = |flag: u8| -> Result<Option<[u8; 4]>, Malformed> {
            if header[0] & flag == 0 {
                return Ok(None);
            }
            let (field, rest) = payload.split_first_chunk::<4>().ok_or(Malformed::Truncated)?;
            payload = rest;
            Ok(Some(*field))
        };
        let checksum = field(CHECKSUM)?.map(|[hi, lo, _, _]| u16::from_be_bytes([hi, lo]));
        let key = field(KEY)?.map(u32::from_be_bytes);
        let sequence = field(SEQUENCE)?.map(u32::from_be_bytes);
        Ok(Self { header, checksum, key, sequence, payload })
    }

    /// Recursion control, 0 to 7.
    #[inline]
    #[must_use]
    pub const fn recursion(&self) -> u8 {
        self.header[0] & 0x07
    }

    /// Ethernet type of the payload.
    #[inline]
    #[must_use]
    pub const fn protocol(&self) -> u16 {
        u16::from_be_bytes([self.header[2], self.header[3]])
    }

    /// The checksum over header and payload, where present.
    #[inline]
    #[must_use]
    pub const fn checksum(&self) -> Option<u16> {
        self.checksum
    }

    /// Whether the checksum, where present, is right; `packet` is what was parsed.
    ///
    /// # Cost
    /// A pass over the packet where there is one.
    #[must_use]
    pub fn checksum_ok(&self, packet: &[u8]) -> bool {
        //= RFC 2784 §2.5
        //# The Checksum field contains the IP (one's complement) checksum sum of the all the 16 bit words in the GRE
        //# header and the payload packet.
        self.checksum.is_none() || checksum(packet) == 0
    }

    /// The key, where present.
    #[inline]
    #[must_use]
    pub const fn key(&self) -> Option<u32> {
        self.key
    }

    /// The sequence number, where present.
    #[inline]
    #[must_use]
    pub const fn sequence(&self) -> Option<u32> {
        self.sequence
    }

    /// What follows the header and its optional fields.
    #[inline]
    #[must_use]
    pub const fn payload(&self) -> &'a [u8] {
        self.payload
    }
}

const CHECKSUM: u8 = 0x80;
const ROUTING: u8 = 0x40;
const KEY: u8 = 0x20;
const SEQUENCE: u8 = 0x10;
const VERSION: u8 = 0x07;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn optional_fields_stand_in_the_order_checksum_key_sequence() {
        let gre = [0xb1, 0, 0x86, 0xdd, 1, 2, 9, 9, 3, 4, 5, 6, 7, 8, 9, 10, 0x60];
        let view = Gre::parse(&gre).unwrap();
        assert_eq!(
            (view.checksum(), view.key(), view.sequence()),
            (Some(0x0102), Some(0x0304_0506), Some(0x0708_090a))
        );
        assert_eq!((view.recursion(), view.protocol(), view.payload()), (1, 0x86dd, &[0x60][..]));
        for len in 0..16 {
            assert_eq!(Gre::parse(&gre[..len]).unwrap_err(), Malformed::Truncated);
        }
    }

    #[test]
    fn each_optional_field_may_come_alone() {
        let read = |flags| {
            let bytes = [flags, 0, 8, 0, 0, 0, 0, 5];
            let view = Gre::parse(&bytes).unwrap();
            (view.checksum(), view.key(), view.sequence(), view.payload().len())
        };
        assert_eq!(read(0), (None, None, None, 4));
        assert_eq!(read(CHECKSUM), (Some(0), None, None, 0));
        assert_eq!(read(KEY), (None, Some(5), None, 0));
        assert_eq!(read(SEQUENCE), (None, None, Some(5), 0));
    }

    #[test]
    fn other_versions_and_source_routes_are_refused() {
        assert_eq!(Gre::parse(&[0x20, 1, 0x88, 0x0b, 0, 0, 0, 0]).unwrap_err(), Malformed::Gre);
        assert_eq!(Gre::parse(&[0x40, 0, 8, 0, 0, 0, 0, 0]).unwrap_err(), Malformed::Gre);
    }
}
