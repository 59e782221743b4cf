//! The one pass over a frame: what the balancer needs to know, and where it stands.
//!
//! In: a frame from Ethernet on. Out: [`Parsed`], offsets and fields, no borrow.
//! Not here: IPv4 header and transport checksums (the NIC and the backend check them), payloads.
//! Invariant: `l3 < l4 <= end <= frame.len()`.
//! Source: RFC 791, 8200, 6946, 9293, 768. Agrees with etherparse (`tests.rs` lists the exceptions).

use crate::ipv6::{Ipv6, Upper};
use crate::{Family, Fragment, Malformed, ParseError, protocol};

/// What the balancer needs to know of a frame. Offsets are in bytes from the start of the frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parsed {
    /// IP version.
    pub family: Family,
    /// Where the IP header starts: 14, 18 or 22, so also the length of the link header.
    pub l3: u16,
    /// Where the upper layer starts, behind options and extension headers.
    pub l4: u16,
    /// Where the IP packet ends; Ethernet padding lies behind it.
    pub end: u16,
    /// IP protocol number of the upper layer. For a later IPv6 fragment: what its fragment header says, which may
    /// be an extension header.
    pub protocol: u8,
    /// Source port of TCP, UDP, SCTP, DCCP and UDP-Lite; 0 for other protocols and for later fragments.
    pub src_port: u16,
    /// Destination port, as `src_port`.
    pub dst_port: u16,
    /// TCP flags from CWR (0x80) to FIN (0x01); 0 where there are none, and in a first fragment too short for them.
    pub tcp_flags: u8,
    /// Whether this is a piece of a packet.
    pub fragment: Fragment,
    /// IPv4 TOS or IPv6 traffic class.
    pub tos: u8,
    /// IPv4 TTL or IPv6 hop limit.
    pub ttl: u8,
    /// The DF flag; true for IPv6, which routers never fragment.
    pub dont_fragment: bool,
}

/// Source and destination of a packet; IPv4 as IPv4-mapped (`::ffff:a.b.c.d`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Addresses {
    /// Source address.
    pub src: [u8; 16],
    /// Destination address.
    pub dst: [u8; 16],
}

impl Parsed {
    /// Source and destination of `frame`, the frame that was parsed.
    ///
    /// Total: a shorter frame gives zeros.
    #[inline]
    #[must_use]
    pub fn addresses(&self, frame: &[u8]) -> Addresses {
        let ip = frame.get(usize::from(self.l3)..).unwrap_or_default();
        match self.family {
            Family::V4 => match ip.first_chunk::<20>() {
                Some(&[_, _, _, _, _, _, _, _, _, _, _, _, s0, s1, s2, s3, d0, d1, d2, d3]) => {
                    Addresses { src: mapped([s0, s1, s2, s3]), dst: mapped([d0, d1, d2, d3]) }
                }
                None => Addresses { src: [0; 16], dst: [0; 16] },
            },
            Family::V6 => {
                let (src, rest) =
                    ip.get(8..).unwrap_or_default().split_first_chunk().unwrap_or((&[0; 16], &[]));
                Addresses { src: *src, dst: *rest.first_chunk().unwrap_or(&[0; 16]) }
            }
        }
    }

    /// Where a piece's share of its datagram starts in `frame`, the frame that was parsed: behind the IPv4 header, or behind the
    /// fragment header of IPv6. `l4`, unless it is a first piece with extension headers (AH, destination options) in its share.
    ///
    /// # Source
    /// RFC 791 §3.2; RFC 8200 §4.5: all behind the fragment header is cut, extension headers included.
    #[must_use]
    pub fn share(&self, frame: &[u8]) -> u16 {
        if !matches!(self.fragment, Fragment::First { .. }) {
            return self.l4;
        }
        let ip = frame.get(usize::from(self.l3)..usize::from(self.end)).unwrap_or_default();
        let behind = match self.family {
            Family::V4 => ip.first().map(|byte| u16::from(byte & 0x0f) * 4),
            Family::V6 => Ipv6::parse(ip).ok().and_then(|ip| ip.behind_fragment_header()),
        };
        behind.map_or(self.l4, |behind| (self.l3 + behind).min(self.l4))
    }

    /// Bytes of the IP packet, header included.
    #[inline]
    #[must_use]
    pub const fn ip_len(&self) -> u16 {
        self.end.saturating_sub(self.l3)
    }
}

/// Reads Ethernet, at most two VLAN tags (0x8100, 0x88a8), IPv4 with options or IPv6 with at most 8 extension
/// headers, and the ports. The IPv4 header checksum is not verified; [`crate::Ipv4::checksum_ok`] does.
///
/// # Errors
/// [`ParseError::NotIp`], or what is [`Malformed`].
///
/// # Cost
/// No allocation, no loop outside extension headers: `cargo xtask bench packet/parse`.
#[inline]
pub fn parse(frame: &[u8]) -> Result<Parsed, ParseError> {
    let (kind, rest, l3) = behind_link(frame)?;
    match kind {
        protocol::ETHERTYPE_IPV4 => ipv4(rest, l3),
        protocol::ETHERTYPE_IPV6 => ipv6(rest, l3),
        _ => Err(ParseError::NotIp), // a third tag too
    }
}

/// The same of an IP packet that stands alone, without a link header: `l3` is 0, and offsets count from the packet's first byte.
///
/// # Errors
/// [`ParseError::Malformed`].
#[inline]
pub fn parse_ip(packet: &[u8]) -> Result<Parsed, ParseError> {
    match packet.first().ok_or(Malformed::Truncated)? >> 4 {
        4 => ipv4(packet, 0),
        6 => ipv6(packet, 0),
        _ => Err(Malformed::Version.into()),
    }
}

/// The family that a frame's Ethernet type names, behind two tags at most, and what follows. Nothing of that is looked at: the
/// frame may be cut short anywhere.
#[inline]
#[must_use]
pub fn network(frame: &[u8]) -> Option<(Family, &[u8])> {
    match behind_link(frame).ok()? {
        (protocol::ETHERTYPE_IPV4, rest, _) => Some((Family::V4, rest)),
        (protocol::ETHERTYPE_IPV6, rest, _) => Some((Family::V6, rest)),
        _ => None,
    }
}

/// Ethernet type and bytes behind the link header, and where in the frame these start.
#[inline]
fn behind_link(frame: &[u8]) -> Result<(u16, &[u8], u16), Malformed> {
    let (link, rest) = frame.split_first_chunk::<14>().ok_or(Malformed::Truncated)?;
    match u16::from_be_bytes([link[12], link[13]]) {
        protocol::ETHERTYPE_VLAN | protocol::ETHERTYPE_QINQ => behind_tags(rest),
        kind => Ok((kind, rest, 14)),
    }
}

/// Ethernet type and bytes behind the tag at the start of `rest`, or behind two, and where in the frame these start.
#[inline]
fn behind_tags(rest: &[u8]) -> Result<(u16, &[u8], u16), Malformed> {
    let (tag, rest) = rest.split_first_chunk::<4>().ok_or(Malformed::Truncated)?;
    match u16::from_be_bytes([tag[2], tag[3]]) {
        protocol::ETHERTYPE_VLAN | protocol::ETHERTYPE_QINQ => {
            let (tag, rest) = rest.split_first_chunk::<4>().ok_or(Malformed::Truncated)?;
            Ok((u16::from_be_bytes([tag[2], tag[3]]), rest, 22))
        }
        kind => Ok((kind, rest, 18)),
    }
}

#[inline]
fn ipv4(packet: &[u8], l3: u16) -> Result<Parsed, ParseError> {
    let h = packet.first_chunk::<20>().ok_or(Malformed::Truncated)?;
    if h[0] >> 4 != 4 {
        return Err(Malformed::Version.into());
    }
    let header_len = u16::from(h[0] & 0x0f) * 4;
    if header_len < 20 {
        return Err(Malformed::HeaderLength.into());
    }
    let total = u16::from_be_bytes([h[2], h[3]]);
    if total < header_len {
        return Err(Malformed::TotalLength.into());
    }
    let segment = packet.get(usize::from(header_len)..usize::from(total)).ok_or(Malformed::Truncated)?;
    let end = l3.checked_add(total).ok_or(Malformed::TooLong)?;
    let fragment = ipv4_fragment(h);
    let upper = Upper { protocol: h[9], offset: 0, fragment, payload: segment };
    let upper = if h[9] == protocol::AH { upper.behind_authentication()? } else { upper };
    let ports = Ports::read(&upper)?;
    Ok(Parsed {
        family: Family::V4,
        l3,
        l4: l3 + header_len + upper.offset,
        end,
        protocol: upper.protocol,
        src_port: ports.src,
        dst_port: ports.dst,
        tcp_flags: ports.tcp_flags,
        fragment,
        tos: h[1],
        ttl: h[8],
        dont_fragment: h[6] & 0x40 != 0,
    })
}

#[inline]
pub(crate) fn ipv4_fragment(h: &[u8; 20]) -> Fragment {
    let word = u16::from_be_bytes([h[6], h[7]]);
    if word & 0x3fff == 0 {
        return Fragment::None;
    }
    Fragment::from_parts(u32::from(u16::from_be_bytes([h[4], h[5]])), word << 3, word & 0x2000 != 0)
}

#[inline]
fn ipv6(packet: &[u8], l3: u16) -> Result<Parsed, ParseError> {
    let ip = Ipv6::parse(packet)?;
    let upper = ip.upper()?;
    let ports = Ports::read(&upper)?;
    // `upper.offset` counts bytes of the payload: once `end` fits, so does `l4`.
    let end = (l3 + 40).checked_add(ip.payload_len()).ok_or(Malformed::TooLong)?;
    Ok(Parsed {
        family: Family::V6,
        l3,
        l4: l3 + 40 + upper.offset,
        end,
        protocol: upper.protocol,
        src_port: ports.src,
        dst_port: ports.dst,
        tcp_flags: ports.tcp_flags,
        fragment: upper.fragment,
        tos: ip.traffic_class(),
        ttl: ip.hop_limit(),
        dont_fragment: true,
    })
}

struct Ports {
    src: u16,
    dst: u16,
    tcp_flags: u8,
}

impl Ports {
    const NONE: Self = Self { src: 0, dst: 0, tcp_flags: 0 };

    #[inline]
    fn read(upper: &Upper<'_>) -> Result<Self, Malformed> {
        match upper.fragment {
            Fragment::None => Self::whole(upper.protocol, upper.payload),
            Fragment::First { .. } => Self::first_fragment(upper.protocol, upper.payload),
            Fragment::Later { .. } => Ok(Self::NONE),
        }
    }

    #[inline]
    fn whole(protocol: u8, segment: &[u8]) -> Result<Self, Malformed> {
        match protocol {
            protocol::TCP => {
                let h = segment.first_chunk::<20>().ok_or(Malformed::Truncated)?;
                let header_len = usize::from(h[12] >> 4) * 4;
                if header_len < 20 {
                    return Err(Malformed::HeaderLength);
                }
                if header_len > segment.len() {
                    return Err(Malformed::Truncated);
                }
                Ok(Self { tcp_flags: h[13], ..Self::from_words([h[0], h[1], h[2], h[3]]) })
            }
            protocol::UDP => {
                let h = segment.first_chunk::<8>().ok_or(Malformed::Truncated)?;
                let len = usize::from(u16::from_be_bytes([h[4], h[5]]));
                if len < 8 {
                    return Err(Malformed::UdpLength);
                }
                if len > segment.len() {
                    return Err(Malformed::Truncated);
                }
                Ok(Self::from_words([h[0], h[1], h[2], h[3]]))
            }
            protocol::SCTP | protocol::DCCP => {
                let h = segment.first_chunk::<12>().ok_or(Malformed::Truncated)?;
                Ok(Self::from_words([h[0], h[1], h[2], h[3]]))
            }
            protocol::UDP_LITE => {
                let h = segment.first_chunk::<8>().ok_or(Malformed::Truncated)?;
                Ok(Self::from_words([h[0], h[1], h[2], h[3]]))
            }
            _ => Ok(Self::NONE),
        }
    }

    /// Lengths in the header speak of the whole packet, so only presence is checked.
    #[cold]
    fn first_fragment(protocol: u8, segment: &[u8]) -> Result<Self, Malformed> {
        match protocol {
            protocol::TCP | protocol::UDP | protocol::SCTP | protocol::DCCP | protocol::UDP_LITE => {
                let words = segment.first_chunk::<4>().ok_or(Malformed::Truncated)?;
                let tcp_flags = if protocol == protocol::TCP { segment.get(13).copied() } else { None };
                Ok(Self { tcp_flags: tcp_flags.unwrap_or(0), ..Self::from_words(*words) })
            }
            _ => Ok(Self::NONE),
        }
    }

    #[inline]
    const fn from_words([s0, s1, d0, d1]: [u8; 4]) -> Self {
        Self { src: u16::from_be_bytes([s0, s1]), dst: u16::from_be_bytes([d0, d1]), tcp_flags: 0 }
    }
}

#[inline]
pub(crate) const fn mapped([a, b, c, d]: [u8; 4]) -> [u8; 16] {
    [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, a, b, c, d]
}

#[cfg(test)]
mod tests;
