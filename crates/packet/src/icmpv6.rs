//! The checked view of an ICMPv6 message. Source: RFC 4443.

use core::net::Ipv6Addr;

use crate::checksum::Sum;
use crate::{Malformed, protocol};

/// A borrowed ICMPv6 message.
#[derive(Clone, Copy, Debug)]
pub struct Icmpv6<'a> {
    bytes: &'a [u8],
    header: &'a [u8; 8],
    body: &'a [u8],
}

impl<'a> Icmpv6<'a> {
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
        self.header[0] == 128 && self.header[1] == 0
    }

    /// The start of the packet that an error speaks of, from its IP header on; `None` when this is no error.
    #[inline]
    #[must_use]
    pub const fn quoted(&self) -> Option<&'a [u8]> {
        match self.header[0] {
            1..=4 => Some(self.body),
            _ => None,
        }
    }

    /// MTU in bytes of the next hop, from a packet-too-big error.
    #[inline]
    #[must_use]
    pub const fn mtu(&self) -> Option<u32> {
        match self.header {
            [2, _, _, _, a, b, c, d] => Some(u32::from_be_bytes([*a, *b, *c, *d])),
            _ => None,
        }
    }

    /// Whether the checksum is right for a packet between these addresses.
    ///
    /// # Cost
    /// A pass over the message.
    #[must_use]
    pub fn checksum_ok(&self, source: Ipv6Addr, destination: Ipv6Addr) -> bool {
        let Ok(len) = u16::try_from(self.bytes.len()) else { return false };
        let pseudo = Sum::new().add_pseudo_v6(source, destination, protocol::ICMPV6, len);
        pseudo.add_bytes(self.bytes).finish() == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packet_too_big_has_an_mtu_and_a_quoted_packet() {
        let icmp = Icmpv6::parse(&[2, 0, 0, 0, 0, 0, 0x05, 0x00, 0x60]).unwrap();
        assert_eq!(
            (icmp.kind(), icmp.code(), icmp.mtu(), icmp.quoted()),
            (2, 0, Some(1280), Some(&[0x60][..]))
        );
    }

    #[test]
    fn an_echo_request_quotes_nothing_and_its_checksum_covers_the_addresses() {
        let addresses: [Ipv6Addr; 2] = ["2001:db8::1".parse().unwrap(), "2001:db8::2".parse().unwrap()];
        let mut bytes = [128, 0, 0, 0, 0, 1, 0, 2];
        let [hi, lo] = etherparse::Icmpv6Type::EchoRequest(etherparse::IcmpEchoHeader { id: 1, seq: 2 })
            .calc_checksum(addresses[0].octets(), addresses[1].octets(), &[])
            .unwrap()
            .to_be_bytes();
        [bytes[2], bytes[3]] = [hi, lo];
        let icmp = Icmpv6::parse(&bytes).unwrap();
        assert!(icmp.is_echo_request() && icmp.checksum_ok(addresses[0], addresses[1]));
        assert!(!icmp.checksum_ok(addresses[0], "2001:db8::3".parse().unwrap()));
        assert_eq!((icmp.quoted(), icmp.mtu()), (None, None));
        assert_eq!(Icmpv6::parse(&bytes[..7]).unwrap_err(), Malformed::Truncated);
    }
}
