//! The parser of received frames. [`parse`] reads all headers in one pass and returns a [`Parsed`],
//! which contains offsets and header fields and borrows no data.
//!
//! The IPv4 header checksum and the transport checksums are not verified, because the NIC and the
//! backend check them. The offsets in a `Parsed` satisfy `l3 < l4 <= end <= frame.len()`. The tests
//! compare the result with the `etherparse` crate and list the differences.
//!
//! The header formats are defined in RFC 791, 8200, 6946, 9293 and 768.

use core::net::{IpAddr, Ipv6Addr};

use crate::ipv6::{Ipv6, Upper};
use crate::{Family, Fragment, Malformed, ParseError, protocol};

/// The header fields of a frame that a load balancer needs. Offsets are in bytes from the start of
/// the frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parsed {
    /// The IP version.
    pub family: Family,
    /// The offset of the IP header, which is also the length of the link header: 14, 18 or 22.
    pub l3: u16,
    /// The offset of the upper-layer header, after IP options and extension headers.
    pub l4: u16,
    /// The end of the IP packet, after which Ethernet padding may follow.
    pub end: u16,
    /// The IP protocol number of the upper layer. For a later IPv6 fragment, this is the
    /// next-header value of the fragment header, which may identify an extension header.
    pub protocol: u8,
    /// The source port of TCP, UDP, SCTP, DCCP and UDP-Lite, or 0 for other protocols and for later
    /// fragments.
    pub src_port: u16,
    /// The destination port. The port is set for the same protocols as `src_port`.
    pub dst_port: u16,
    /// The TCP flags from CWR (0x80) to FIN (0x01). The value is 0 for other protocols and for a
    /// first fragment that ends before the flags.
    pub tcp_flags: u8,
    /// The fragment information of the packet.
    pub fragment: Fragment,
    /// The IPv4 TOS or the IPv6 traffic class.
    pub tos: u8,
    /// The IPv4 TTL or the IPv6 hop limit.
    pub ttl: u8,
    /// The DF flag. Always `true` for IPv6, which routers never fragment.
    pub dont_fragment: bool,
}

/// The source and destination addresses of a packet. IPv4 addresses are IPv4-mapped
/// (`::ffff:a.b.c.d`). Methods and conversions return these addresses as [`IpAddr`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Addresses {
    /// The source address.
    pub src: [u8; 16],
    /// The destination address.
    pub dst: [u8; 16],
}

impl Addresses {
    /// Returns the source address.
    #[must_use]
    pub fn source(&self) -> IpAddr {
        canonical(self.src)
    }

    /// Returns the destination address.
    #[must_use]
    pub fn destination(&self) -> IpAddr {
        canonical(self.dst)
    }
}

/// Returns the source and the destination.
impl From<Addresses> for (IpAddr, IpAddr) {
    fn from(addresses: Addresses) -> Self {
        (addresses.source(), addresses.destination())
    }
}

/// Converts a source and a destination.
impl From<(IpAddr, IpAddr)> for Addresses {
    fn from((source, destination): (IpAddr, IpAddr)) -> Self {
        let bytes = |address| match address {
            IpAddr::V4(address) => mapped(address.octets()),
            IpAddr::V6(address) => address.octets(),
        };
        Self { src: bytes(source), dst: bytes(destination) }
    }
}

impl Parsed {
    /// Returns the source and destination addresses in `frame`, which must be the frame that was
    /// parsed. The addresses are zero if `frame` is too short.
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

    /// Returns the offset in `frame` at which the fragment payload starts. `frame` must be the
    /// frame that was parsed.
    ///
    /// The payload of an IPv4 fragment starts after the IPv4 header. The payload of an IPv6
    /// fragment starts after the fragment header. The result is the same as `l4`, except for a
    /// first fragment that contains extension headers (AH or destination options). The sender
    /// splits everything after the fragment header, including extension headers (RFC 791 §3.2, RFC
    /// 8200 §4.5).
    #[must_use]
    pub fn fragment_start(&self, frame: &[u8]) -> u16 {
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

    /// Returns the number of bytes of the datagram that this fragment carries, starting at
    /// [`Self::fragment_start`]. `frame` must be the frame that was parsed. The next fragment of
    /// the datagram starts this many bytes after [`Fragment::offset`].
    ///
    /// For an unfragmented packet, the result is [`Self::payload_len`].
    #[must_use]
    pub fn fragment_len(&self, frame: &[u8]) -> u16 {
        self.end.saturating_sub(self.fragment_start(frame))
    }

    /// Returns the length of the upper layer in bytes: its header and payload, without Ethernet
    /// padding. Extension headers are not included. [`Self::fragment_len`] includes extension
    /// headers that the sender has fragmented together with the payload.
    #[inline]
    #[must_use]
    pub const fn payload_len(&self) -> u16 {
        self.end.saturating_sub(self.l4)
    }

    /// Returns the length of the IP packet in bytes, including the header.
    #[inline]
    #[must_use]
    pub const fn ip_len(&self) -> u16 {
        self.end.saturating_sub(self.l3)
    }
}

/// Parses an Ethernet frame with at most two VLAN tags (0x8100, 0x88a8). The packet may be IPv4
/// with options or IPv6 with at most 8 extension headers. The ports are read if the upper layer has
/// ports. The IPv4 header checksum is not verified; see [`crate::Ipv4::checksum_ok`].
///
/// # Errors
/// Returns [`ParseError::NotIp`] for frames without IPv4 or IPv6, and [`Malformed`] for invalid
/// headers.
///
/// # Cost
/// No allocation, and no loop except over extension headers (`cargo xtask bench packet/parse`).
#[inline]
pub fn parse(frame: &[u8]) -> Result<Parsed, ParseError> {
    let (kind, rest, l3) = behind_link(frame)?;
    match kind {
        protocol::ETHERTYPE_IPV4 => ipv4(rest, l3),
        protocol::ETHERTYPE_IPV6 => ipv6(rest, l3),
        _ => Err(ParseError::NotIp), // A third VLAN tag is not supported.
    }
}

/// Parses an IP packet that has no link header. In the result `l3` is 0, and offsets count from the
/// first byte of the packet.
///
/// # Errors
/// Returns [`ParseError::Malformed`] if a header is invalid.
#[inline]
pub fn parse_ip(packet: &[u8]) -> Result<Parsed, ParseError> {
    match packet.first().ok_or(Malformed::Truncated)? >> 4 {
        4 => ipv4(packet, 0),
        6 => ipv6(packet, 0),
        _ => Err(Malformed::Version.into()),
    }
}

/// Returns the IP version of a frame, together with the bytes after the link header. The IP version
/// is read from the Ethernet type, which may follow one or two VLAN tags. The bytes after the link
/// header are not checked, so the packet may be truncated. Returns `None` if the Ethernet type is
/// neither IPv4 nor IPv6.
#[inline]
#[must_use]
pub fn network(frame: &[u8]) -> Option<(Family, &[u8])> {
    match behind_link(frame).ok()? {
        (protocol::ETHERTYPE_IPV4, rest, _) => Some((Family::V4, rest)),
        (protocol::ETHERTYPE_IPV6, rest, _) => Some((Family::V6, rest)),
        _ => None,
    }
}

/// Returns the Ethernet type, the bytes after the link header, and the offset of these bytes in the
/// frame.
#[inline]
fn behind_link(frame: &[u8]) -> Result<(u16, &[u8], u16), Malformed> {
    let (link, rest) = frame.split_first_chunk::<14>().ok_or(Malformed::Truncated)?;
    match u16::from_be_bytes([link[12], link[13]]) {
        protocol::ETHERTYPE_VLAN | protocol::ETHERTYPE_QINQ => behind_tags(rest),
        kind => Ok((kind, rest, 14)),
    }
}

/// Reads the one or two VLAN tags at the start of `rest`. Returns the Ethernet type after the tags,
/// the bytes that follow, and the offset of these bytes in the frame.
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
    // `upper.offset` is at most the payload length, so `l4` fits into 16 bits if `end` does.
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

    /// Reads the ports of a first fragment. Length fields in the transport header count the whole
    /// datagram, so they are not checked here.
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

/// Returns the address in 16 bytes. An IPv4-mapped address becomes an IPv4 address.
pub(crate) fn canonical(address: [u8; 16]) -> IpAddr {
    Ipv6Addr::from(address).to_canonical()
}

#[cfg(test)]
mod tests;
