//! The checked view of an ICMP message. Source: RFC 792, RFC 1191.

use crate::Malformed;
use crate::checksum::checksum;

/// A borrowed ICMP message.
#[derive(Clone, Copy, Debug)]
pub struct Icmp<'a> {
    bytes: &'a [u8],
    header: &'a [u8; 8],
    body: &'a [u8],
}

impl<'a> Icmp<'a> {
    /// Takes the message, all of `bytes`.
    ///
    /// # Errors
    /// [`Malformed::Truncated`] below 8 bytes.
    #[inline]
    pub fn parse(bytes: &'a [u8]) -> Result<Self, Malformed> {
        let (header, body) = bytes.split_first_chunk().ok_or(Malformed::Truncated)?;
        Ok(Self { bytes, header, body })
    }

    /// Type.
    #[inline]
    #[must_use]
    pub const fn kind(&self) -> u8 {
        self.header[0]
    }

    /// Code.
    #[inline]
    #[must_use]
    pub const fn code(&self) -> u8 {
        self.header[1]
    }

    /// Whether this is an echo request.
    #[inline]
    #[must_use]
    pub const fn is_echo_request(&self) -> bool {
        self.header[0] == 8 && self.header[1] == 0
    }

    /// The start of the packet that an error speaks of, from its IP header on; `None` when this is no error.
    #[inline]
    #[must_use]
    pub const fn quoted(&self) -> Option<&'a [u8]> {
        match self.header[0] {
            3 | 4 | 5 | 11 | 12 => Some(self.body),
            _ => None,
        }
    }

    /// MTU in bytes of the next hop, from a fragmentation-needed error; routers before RFC 1191 say 0.
    #[inline]
    #[must_use]
    pub const fn mtu(&self) -> Option<u16> {
        match self.header {
            [3, 4, _, _, _, _, hi, lo] => Some(u16::from_be_bytes([*hi, *lo])),
            _ => None,
        }
    }

    /// Whether the checksum is right.
    ///
    /// # Cost
    /// A pass over the message.
    #[must_use]
    pub fn checksum_ok(&self) -> bool {
        checksum(self.bytes) == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fragmentation_needed_has_an_mtu_and_a_quoted_packet() {
        let icmp = Icmp::parse(&[3, 4, 0xf7, 0x23, 0, 0, 0x05, 0xd4, 0x45]).unwrap();
        assert_eq!(
            (icmp.kind(), icmp.code(), icmp.mtu(), icmp.quoted()),
            (3, 4, Some(1492), Some(&[0x45][..]))
        );
    }

    #[test]
    fn an_echo_request_quotes_nothing_and_its_checksum_is_checked() {
        let mut bytes = [8, 0, 0xf7, 0xfc, 0, 1, 0, 2];
        let icmp = Icmp::parse(&bytes).unwrap();
        assert!(icmp.is_echo_request() && icmp.checksum_ok());
        assert_eq!((icmp.quoted(), icmp.mtu()), (None, None));
        bytes[7] ^= 1;
        assert!(!Icmp::parse(&bytes).unwrap().checksum_ok());
        assert_eq!(Icmp::parse(&bytes[..7]).unwrap_err(), Malformed::Truncated);
    }
}
