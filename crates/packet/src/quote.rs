//! Reads ICMP errors and the packets that they quote.
//!
//! [`icmp_error`] returns the kind of error, and the addresses, protocol and ports of the quoted
//! packet. [`quoted_tunnel`] finds the inner packet if the quoted packet was tunneled. A quoted
//! packet may be forged, so the caller must check that this machine sent it. The offsets of a
//! quoted packet satisfy `at < l4 <= end <= frame.len()`.
//!
//! The formats are defined in RFC 792, RFC 1122 §3.2.2, RFC 1812 §4.3.2.3, RFC 4443 §2.4 and RFC
//! 4884.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::checksum::Sum;
use crate::ipv6::{Upper, quoted_upper};
use crate::parse::{ipv4_fragment, mapped};
use crate::{
    Addresses, Encapsulation, Family, Fragment, Gre, Gue, IcmpErrorKind, Malformed, Parsed, protocol,
};

/// An ICMP error and the packet that it quotes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IcmpError {
    /// The kind of ICMP error that was received.
    pub kind: IcmpErrorKind,
    /// The packet that caused the error.
    pub quoted: Quoted,
}

/// A packet that an ICMP error quotes, usually only its start. Offsets are in bytes from the start
/// of the frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quoted {
    /// The IP version.
    pub family: Family,
    /// The offset of the IP header.
    pub at: u16,
    /// The offset of the upper layer. The value is the same as `end` if the quote ends before the
    /// upper layer.
    pub l4: u16,
    /// The end of the quoted bytes. If an extension structure (RFC 4884) follows the quoted packet,
    /// the structure is included. At least 128 bytes precede that structure, so it is never parsed
    /// as a header.
    pub end: u16,
    /// The length of the original packet in bytes, including the header. The value is read from the
    /// length field, because the quote is usually shorter than the packet.
    pub total_len: u32,
    /// The source and destination addresses of the quoted packet.
    pub addresses: Addresses,
    /// The IP protocol number of the upper layer. If the quote ends in an extension header, this is
    /// the number of that extension header.
    pub protocol: u8,
    /// The source and destination ports of TCP, UDP, SCTP, DCCP and UDP-Lite. `None` for other
    /// protocols, for later fragments, and if the quote ends before the ports.
    pub ports: Option<(u16, u16)>,
    /// The fragment information of the quoted packet.
    pub fragment: Fragment,
}

/// Reads the ICMP error in a frame. `parsed` is the result of [`crate::parse`] for `frame`.
///
/// Returns `None` if the packet is not ICMP, is a fragment, or is not an error. Source quench and
/// redirect messages also return `None`. The checksum is not verified; see [`icmp_checksum_ok`].
///
/// # Errors
/// Returns [`Malformed`] if the ICMP message is shorter than 8 bytes. Also returns [`Malformed`] if
/// the quote is shorter than an IP header, has the wrong version, or has invalid lengths or
/// extension headers. A truncated quote is not an error.
#[must_use]
pub fn icmp_error(frame: &[u8], parsed: &Parsed) -> Option<Result<IcmpError, Malformed>> {
    if parsed.fragment != Fragment::None || parsed.protocol != icmp_of(parsed.family) {
        return None;
    }
    let message = frame.get(usize::from(parsed.l4)..usize::from(parsed.end)).unwrap_or_default();
    let Some(header) = message.first_chunk::<8>() else { return Some(Err(Malformed::Truncated)) };
    let kind = IcmpErrorKind::read(parsed.family, *header)?;
    // There are at least eight bytes between `l4` and `end`.
    let quoted = Quoted::read(frame, parsed.family, parsed.l4.saturating_add(8), parsed.end);
    Some(quoted.map(|quoted| IcmpError { kind, quoted }))
}

/// Returns `true` if `frame` contains an unfragmented ICMP or ICMPv6 message with a correct
/// checksum. Call this function before acting on a message. The call is not needed for messages
/// that are only forwarded.
///
/// # Cost
/// One pass over the message.
#[must_use]
pub fn icmp_checksum_ok(frame: &[u8], parsed: &Parsed) -> bool {
    if parsed.fragment != Fragment::None || parsed.protocol != icmp_of(parsed.family) {
        return false;
    }
    let message = frame.get(usize::from(parsed.l4)..usize::from(parsed.end)).unwrap_or_default();
    let pseudo_header = match parsed.family {
        Family::V4 => Sum::new(),
        Family::V6 => {
            let (Addresses { src, dst }, len) =
                (parsed.addresses(frame), parsed.end.saturating_sub(parsed.l4));
            Sum::new().add_pseudo_v6(src.into(), dst.into(), protocol::ICMPV6, len)
        }
    };
    message.len() >= 8 && pseudo_header.add_bytes(message).finish() == 0
}

impl Quoted {
    /// Parses the packet between `at` and `end` of `frame`.
    fn read(frame: &[u8], family: Family, at: u16, end: u16) -> Result<Self, Malformed> {
        let ip = frame.get(usize::from(at)..usize::from(end)).ok_or(Malformed::Truncated)?;
        match family {
            Family::V4 => Self::v4(ip, at),
            Family::V6 => Self::v6(ip, at),
        }
    }

    fn v4(ip: &[u8], at: u16) -> Result<Self, Malformed> {
        let h = ip.first_chunk::<20>().ok_or(Malformed::Truncated)?;
        if h[0] >> 4 != 4 {
            return Err(Malformed::Version);
        }
        let header_len = usize::from(h[0] & 0x0f) * 4;
        if header_len < 20 {
            return Err(Malformed::HeaderLength);
        }
        let total = u16::from_be_bytes([h[2], h[3]]);
        if usize::from(total) < header_len {
            return Err(Malformed::TotalLength);
        }
        let ip = ip.get(..usize::from(total)).unwrap_or(ip);
        // The payload is empty if the quote ends in the options.
        let payload = ip.get(header_len..).unwrap_or_default();
        let plain = Upper { protocol: h[9], offset: 0, fragment: ipv4_fragment(h), payload };
        let upper = match (h[9] == protocol::AH).then(|| plain.behind_authentication()) {
            None | Some(Err(Malformed::Truncated)) => plain,
            Some(upper) => upper?,
        };
        let &[.., s0, s1, s2, s3, d0, d1, d2, d3] = h;
        let addresses = Addresses { src: mapped([s0, s1, s2, s3]), dst: mapped([d0, d1, d2, d3]) };
        Header { family: Family::V4, addresses, total_len: total.into() }.quoted(at, ip, &upper)
    }

    fn v6(ip: &[u8], at: u16) -> Result<Self, Malformed> {
        let (h, payload) = ip.split_first_chunk::<40>().ok_or(Malformed::Truncated)?;
        if h[0] >> 4 != 6 {
            return Err(Malformed::Version);
        }
        let len = u16::from_be_bytes([h[4], h[5]]);
        let payload = payload.get(..usize::from(len)).unwrap_or(payload);
        let upper = quoted_upper(h[6], payload)?;
        let (src, dst) =
            h.last_chunk::<32>().and_then(|both| both.split_first_chunk()).ok_or(Malformed::Truncated)?;
        let addresses = Addresses { src: *src, dst: *dst.first_chunk().ok_or(Malformed::Truncated)? };
        let ip = ip.get(..40 + payload.len()).ok_or(Malformed::Truncated)?;
        Header { family: Family::V6, addresses, total_len: u32::from(len) + 40 }.quoted(at, ip, &upper)
    }

    fn ip(&self, address: [u8; 16]) -> IpAddr {
        match self.family {
            Family::V4 => {
                let [.., a, b, c, d] = address;
                Ipv4Addr::new(a, b, c, d).into()
            }
            Family::V6 => Ipv6Addr::from(address).into(),
        }
    }
}

/// The fields of the quoted IP header.
struct Header {
    family: Family,
    addresses: Addresses,
    total_len: u32,
}

impl Header {
    /// Builds the result. `ip` contains the quoted bytes, and `upper.payload` extends to the end of
    /// `ip`.
    fn quoted(self, at: u16, ip: &[u8], upper: &Upper<'_>) -> Result<Quoted, Malformed> {
        let below = |len: usize| u16::try_from(usize::from(at) + len).map_err(|_| Malformed::TooLong);
        let Self { family, addresses, total_len } = self;
        Ok(Quoted {
            family,
            at,
            l4: below(ip.len() - upper.payload.len())?,
            end: below(ip.len())?,
            total_len,
            addresses,
            protocol: upper.protocol,
            ports: ports(upper),
            fragment: upper.fragment,
        })
    }
}

fn ports(upper: &Upper<'_>) -> Option<(u16, u16)> {
    if matches!(upper.fragment, Fragment::Later { .. }) {
        return None;
    }
    match upper.protocol {
        protocol::TCP | protocol::UDP | protocol::SCTP | protocol::DCCP | protocol::UDP_LITE => {
            let &[s0, s1, d0, d1] = upper.payload.first_chunk()?;
            Some((u16::from_be_bytes([s0, s1]), u16::from_be_bytes([d0, d1])))
        }
        _ => None,
    }
}

const fn icmp_of(family: Family) -> u8 {
    match family {
        Family::V4 => protocol::ICMP,
        Family::V6 => protocol::ICMPV6,
    }
}

/// A quoted packet that is a tunnel packet with outer headers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QuotedTunnel {
    /// The encapsulation, which is never [`Encapsulation::L2`]. `udp_checksum` is `false` if the
    /// quote ends before the checksum field.
    pub kind: Encapsulation,
    /// The outer source address. If this machine sent the packet, the address is one of the
    /// machine's own addresses or belongs to its source prefix.
    pub source: IpAddr,
    /// The outer destination address, which is the address of the backend.
    pub destination: IpAddr,
    /// The length of the outer headers in bytes, or `None` if the quote ends inside them.
    pub encap_overhead: Option<u16>,
    /// The inner packet, or `None` if its IP header is invalid or not completely quoted.
    pub inner: Option<Quoted>,
}

/// Parses `quoted` as the outer packet of GRE, IP-in-IP or GUE. `frame` must be the frame that
/// contains the quote.
///
/// A router may quote only 8 bytes after the outer IP header (RFC 792). The result then contains
/// the encapsulation, but not the inner packet. The inner packet is also missing if the quoted
/// packet is a later fragment of GRE or IP-in-IP.
///
/// Returns `None` in these cases:
///
/// - The protocol or port does not belong to a supported encapsulation.
/// - The quoted packet is a later fragment of GUE.
/// - The inner packet is neither IPv4 nor IPv6.
/// - The GRE or GUE header is one that this crate never writes: version or variant not 0, source
///   routes, or a control message.
#[must_use]
pub fn quoted_tunnel(frame: &[u8], quoted: &Quoted) -> Option<QuotedTunnel> {
    let upper = frame.get(usize::from(quoted.l4)..usize::from(quoted.end))?;
    let whole = !matches!(quoted.fragment, Fragment::Later { .. });
    let (kind, carried) = match quoted.protocol {
        protocol::IPIP => (Encapsulation::Ipip, Some((Family::V4, upper))),
        protocol::IPV6 => (Encapsulation::Ipip, Some((Family::V6, upper))),
        protocol::GRE if whole => (Encapsulation::Gre, behind_gre(upper)?),
        protocol::GRE => (Encapsulation::Gre, None),
        protocol::UDP if quoted.ports.is_some_and(|(_, port)| port == protocol::GUE_PORT) => {
            let sum = upper.get(6..8).unwrap_or_default();
            (Encapsulation::Gue { udp_checksum: sum.iter().any(|&byte| byte != 0) }, behind_gue(upper)?)
        }
        _ => return None,
    };
    let carried = carried.filter(|_| whole);
    // The inner packet extends to the end of the quote, so its offset can be computed from its
    // length.
    let at = carried.map(|(_, inner)| quoted.end.saturating_sub(u16::try_from(inner.len()).unwrap_or(0)));
    let inner =
        carried.zip(at).and_then(|((family, _), at)| Quoted::read(frame, family, at, quoted.end).ok());
    Some(QuotedTunnel {
        kind,
        source: quoted.ip(quoted.addresses.src),
        destination: quoted.ip(quoted.addresses.dst),
        encap_overhead: at.map(|at| at.saturating_sub(quoted.at)),
        inner,
    })
}

/// The family and the bytes of an inner packet, or `None` if the quote ends inside the outer
/// headers.
type Carried<'a> = Option<(Family, &'a [u8])>;

/// Returns the packet inside GRE, or `Some(None)` if the quote ends inside the GRE header. Returns
/// `None` if this crate never writes such a header.
fn behind_gre(upper: &[u8]) -> Option<Carried<'_>> {
    let gre = match Gre::parse(upper) {
        Ok(gre) => gre,
        Err(Malformed::Truncated) => return Some(None),
        Err(_) => return None,
    };
    let family = match gre.protocol() {
        protocol::ETHERTYPE_IPV4 => Family::V4,
        protocol::ETHERTYPE_IPV6 => Family::V6,
        _ => return None,
    };
    Some(Some((family, gre.payload())))
}

/// Returns the packet inside GUE, or `Some(None)` if the quote ends inside the UDP or GUE header.
/// Returns `None` if this crate never writes such a header. The UDP length is ignored, because the
/// original packet may be longer than the quote.
fn behind_gue(upper: &[u8]) -> Option<Carried<'_>> {
    let gue = match Gue::parse(upper.get(8..).unwrap_or_default()) {
        Ok(gue) => gue,
        Err(Malformed::Truncated) => return Some(None),
        Err(_) => return None,
    };
    let family = match (gue.is_control(), gue.protocol()) {
        (false, protocol::IPIP) => Family::V4,
        (false, protocol::IPV6) => Family::V6,
        _ => return None,
    };
    Some(Some((family, gue.payload())))
}

#[cfg(test)]
mod tests;
