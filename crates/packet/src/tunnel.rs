//! Reads the outer headers of tunneled packets. [`decapsulate`] finds the inner IP packet of a GRE,
//! IP-in-IP or GUE packet.
//!
//! [`crate::Template`] writes the headers that this module reads. [`crate::decapsulate_in_place`]
//! removes these headers. The caller must check that the outer source address is allowed to send
//! tunneled packets.

use core::net::IpAddr;

use crate::{Encapsulation, Family, Fragment, Gre, Gue, Ipv4, Ipv6, Udp, protocol};

/// The position of an encapsulated IP packet in the outer packet, and some fields of the outer
/// headers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tunnelled {
    /// The encapsulation, which is never [`Encapsulation::L2`].
    pub kind: Encapsulation,
    /// The outer source address.
    pub source: IpAddr,
    /// The outer destination address.
    pub destination: IpAddr,
    /// The offset of the inner IP header, in bytes from the outer IP header.
    pub inner: usize,
    /// The end of the inner packet, in bytes from the outer IP header.
    pub end: usize,
    /// The family of the inner packet.
    pub family: Family,
    /// The outer TOS or traffic class.
    pub tos: u8,
    /// The recursion control field of GRE, 0 to 7. The value is 0 for other encapsulations.
    pub recursion: u8,
}

/// Reads the outer headers of the IP packet in `ip`.
///
/// Returns `None` if the packet is malformed or a fragment, is not GRE, IP-in-IP or GUE, or does
/// not carry IPv4 or IPv6. Only the version field of the inner packet is checked. Optional fields
/// of GRE are skipped.
///
/// If a GRE checksum is present, it is verified, because no later device checks it. The checksums
/// of the outer IP and UDP headers are not verified, because the NIC verifies them.
///
/// # Cost
/// Reads only the headers, or the whole packet if it has a GRE checksum.
#[must_use]
pub fn decapsulate(ip: &[u8]) -> Option<Tunnelled> {
    match ip.first()? >> 4 {
        4 => {
            let outer = Ipv4::parse(ip).ok()?;
            let whole = outer.fragment() == Fragment::None;
            let carried = whole.then(|| Carried::read(outer.protocol(), outer.payload()))??;
            let ends = [outer.source().into(), outer.destination().into()];
            carried.at(ends, outer.tos(), usize::from(outer.total_len()))
        }
        6 => {
            let outer = Ipv6::parse(ip).ok()?;
            let upper = outer.upper().ok()?;
            let whole = upper.fragment == Fragment::None;
            let carried = whole.then(|| Carried::read(upper.protocol, upper.payload))??;
            let len = 40 + usize::from(outer.payload_len());
            carried.at([outer.source().into(), outer.destination().into()], outer.traffic_class(), len)
        }
        _ => None,
    }
}

/// The inner packet and fields of the outer headers.
struct Carried<'a> {
    kind: Encapsulation,
    family: Family,
    recursion: u8,
    bytes: &'a [u8],
    /// The number of bytes that follow `bytes` in the outer packet.
    slack: usize,
}

impl<'a> Carried<'a> {
    fn read(protocol: u8, payload: &'a [u8]) -> Option<Self> {
        let plain = |kind, family, bytes| Some(Self { kind, family, recursion: 0, bytes, slack: 0 });
        match protocol {
            protocol::IPIP => plain(Encapsulation::Ipip, Family::V4, payload),
            protocol::IPV6 => plain(Encapsulation::Ipip, Family::V6, payload),
            protocol::GRE => {
                let gre = Gre::parse(payload).ok().filter(|gre| gre.checksum_ok(payload))?;
                let family = match gre.protocol() {
                    protocol::ETHERTYPE_IPV4 => Family::V4,
                    protocol::ETHERTYPE_IPV6 => Family::V6,
                    _ => return None,
                };
                let recursion = gre.recursion();
                Some(Self { recursion, ..plain(Encapsulation::Gre, family, gre.payload())? })
            }
            protocol::UDP => Self::gue(payload),
            _ => None,
        }
    }

    fn gue(payload: &'a [u8]) -> Option<Self> {
        let udp = Udp::parse(payload).ok().filter(|udp| udp.dst_port() == protocol::GUE_PORT)?;
        let gue = Gue::parse(udp.payload()).ok().filter(|gue| !gue.is_control())?;
        let family = match gue.protocol() {
            protocol::IPIP => Family::V4,
            protocol::IPV6 => Family::V6,
            _ => return None,
        };
        let kind = Encapsulation::Gue { udp_checksum: udp.checksum() != 0 };
        let slack = payload.len() - 8 - udp.payload().len();
        Some(Self { kind, family, recursion: 0, bytes: gue.payload(), slack })
    }

    fn at(self, [source, destination]: [IpAddr; 2], tos: u8, len: usize) -> Option<Tunnelled> {
        let version = self.bytes.first()? >> 4;
        let claimed = match self.family {
            Family::V4 => 4,
            Family::V6 => 6,
        };
        if version != claimed {
            return None;
        }
        let end = len.checked_sub(self.slack)?;
        let inner = end.checked_sub(self.bytes.len())?;
        let Self { kind, family, recursion, .. } = self;
        Some(Tunnelled { kind, source, destination, inner, end, family, tos, recursion })
    }
}

#[cfg(test)]
mod tests;
