//! A checked view of a GRE packet (RFC 2784, RFC 2890). The recursion control field is defined in
//! RFC 1701.

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
    /// Parses all of `bytes` as one GRE packet. The optional checksum is not verified.
    ///
    /// # Errors
    /// Returns [`Malformed::Truncated`] if the packet is too short. Returns [`Malformed::Gre`] if
    /// the version is not 0 or if the packet has source routes (RFC 1701).
    #[inline]
    pub fn parse(bytes: &'a [u8]) -> Result<Self, Malformed> {
        let (header, mut payload) = bytes.split_first_chunk::<4>().ok_or(Malformed::Truncated)?;
        //= RFC 2784 §2.3
        //# a receiver MUST discard a packet where any of bits 1-5 are non-zero, unless that
        //# receiver implements RFC 1701
        // Bits 2 and 3 mean that a key and a sequence number are present (RFC 2890), and bit 5
        // belongs to the recursion control. The parser accepts these bits, but rejects the routing
        // bit.
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

    /// Returns the recursion control field, from 0 to 7.
    #[inline]
    #[must_use]
    pub const fn recursion(&self) -> u8 {
        self.header[0] & 0x07
    }

    /// Returns the Ethernet type of the payload.
    #[inline]
    #[must_use]
    pub const fn protocol(&self) -> u16 {
        u16::from_be_bytes([self.header[2], self.header[3]])
    }

    /// Returns the checksum field, if present. The checksum covers the header and the payload.
    #[inline]
    #[must_use]
    pub const fn checksum(&self) -> Option<u16> {
        self.checksum
    }

    /// Returns `true` if the packet has no checksum or a correct checksum. `packet` must be the
    /// bytes that were parsed.
    ///
    /// # Cost
    /// One pass over the packet if it has a checksum.
    #[must_use]
    pub fn checksum_ok(&self, packet: &[u8]) -> bool {
        //= RFC 2784 §2.5
        //# The Checksum field contains the IP (one's complement) checksum sum of the all the 16 bit
        //# words in the GRE header and the payload packet.
        self.checksum.is_none() || checksum(packet) == 0
    }

    /// Returns the key, if present.
    #[inline]
    #[must_use]
    pub const fn key(&self) -> Option<u32> {
        self.key
    }

    /// Returns the sequence number, if present.
    #[inline]
    #[must_use]
    pub const fn sequence(&self) -> Option<u32> {
        self.sequence
    }

    /// Returns the bytes after the header and its optional fields.
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
    fn optional_fields_are_in_the_order_checksum_key_sequence() {
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
    fn optional_fields_are_independent() {
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
