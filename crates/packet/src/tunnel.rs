//! What an outer packet carries: the reader for what [`crate::Template`] writes.
//!
//! In: an IP packet, from its header on. Out: where the inner IP packet starts and who sent it.
//! Not here: whether that sender may (`forwarder`), taking the outer headers off (`open`).
//! Source: as `template`.

use core::net::IpAddr;

use crate::{Encapsulation, Family, Fragment, Gre, Gue, Ipv4, Ipv6, Udp, protocol};

/// An IP packet inside another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tunnelled {
    /// How it is carried; never [`Encapsulation::L2`].
    pub kind: Encapsulation,
    /// Outer source address.
    pub source: IpAddr,
    /// Outer destination address.
    pub destination: IpAddr,
    /// Where the inner IP header starts, in bytes from the outer one.
    pub inner: usize,
    /// Where the carried bytes end, in bytes from the outer IP header.
    pub end: usize,
    /// Family of the inner packet.
    pub family: Family,
    /// Outer TOS or traffic class.
    pub tos: u8,
    /// GRE's recursion control, 0 to 7; 0 for other encapsulations.
    pub recursion: u8,
}

/// Reads the outer headers of an IP packet.
///
/// `None`: malformed, a fragment, not GRE, IP-in-IP or GUE, or not carrying IPv4 or IPv6. Of the inner packet only
/// the version is looked at. Optional fields of GRE are stepped over.
///
/// A GRE checksum, where present, is verified: who sends one asks for it, and nobody behind us sees it. Other outer
/// checksums are not: the NIC does that, and ours carry none beside IPv4's.
///
/// # Cost
/// A pass over the packet where it carries a GRE checksum; else that of the headers.
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

/// The inner packet and what the headers in front of it said.
struct Carried<'a> {
    kind: Encapsulation,
    family: Family,
    recursion: u8,
    bytes: &'a [u8],
    /// Bytes of the outer packet behind `bytes`.
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
