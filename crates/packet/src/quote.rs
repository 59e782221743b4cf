//! The packet that an ICMP error quotes, as far as it was quoted.
//!
//! In: a frame with an ICMP message and what [`crate::parse`] said of it. Out: the error's kind, and addresses, protocol
//! and ports of the quoted packet; its inner packet when it is a tunnel's.
//! Not here: whether the quoted packet was ever sent (`forwarder` asks its tables): nothing in a quote is trusted.
//! Invariant: `at < l4 <= end <= frame.len()` for each quoted packet.
//! Source: RFC 792, RFC 1122 §3.2.2, RFC 1812 §4.3.2.3, RFC 4443 §2.4, RFC 4884.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::checksum::Sum;
use crate::ipv6::{Upper, quoted_upper};
use crate::parse::{ipv4_fragment, mapped};
use crate::{
    Addresses, Encapsulation, Family, Fragment, Gre, Gue, IcmpErrorKind, Malformed, Parsed, protocol,
};

/// An ICMP error and the packet it speaks of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IcmpError {
    /// What went wrong.
    pub kind: IcmpErrorKind,
    /// The packet that it went wrong for.
    pub quoted: Quoted,
}

/// A packet of which only the start is there. Offsets are in bytes from the start of the frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quoted {
    /// IP version.
    pub family: Family,
    /// Where its IP header starts.
    pub at: u16,
    /// Where its upper layer starts; `end` when the quote ends before that.
    pub l4: u16,
    /// Where the quoted bytes end. An extension structure (RFC 4884) behind a longer packet's quote counts as quoted:
    /// it has at least 128 bytes in front of it, so headers are not mistaken for it.
    pub end: u16,
    /// Bytes that the packet had, header included, by its own words; mostly more than `end - at`.
    pub total_len: u32,
    /// Source and destination; the source of a quoted packet is who gets to know of the error.
    pub addresses: Addresses,
    /// IP protocol number of the upper layer; that of the extension header in which the quote ends, if it ends in one.
    pub protocol: u8,
    /// Source and destination port of TCP, UDP, SCTP, DCCP and UDP-Lite. `None` for other protocols, for later
    /// fragments, and when the quote ends before them.
    pub ports: Option<(u16, u16)>,
    /// Whether the quoted packet was a piece of another.
    pub fragment: Fragment,
}

/// What an ICMP message says of a packet that was sent.
///
/// `None`: not ICMP, a fragment of ICMP, no error, or an error that asks for nothing (source quench, redirect).
/// The message's checksum is not verified: [`icmp_checksum_ok`].
///
/// # Errors
/// [`Malformed`]: an ICMP message below 8 bytes; a quote shorter than an IP header, of another version, or with
/// lengths or an extension chain that no packet has. A quote that merely ends early is no error.
#[must_use]
pub fn icmp_error(frame: &[u8], parsed: &Parsed) -> Option<Result<IcmpError, Malformed>> {
    if parsed.fragment != Fragment::None || parsed.protocol != icmp_of(parsed.family) {
        return None;
    }
    let message = frame.get(usize::from(parsed.l4)..usize::from(parsed.end)).unwrap_or_default();
    let Some(header) = message.first_chunk::<8>() else { return Some(Err(Malformed::Truncated)) };
    let kind = IcmpErrorKind::read(parsed.family, *header)?;
    // Eight bytes lie between `l4` and `end`.
    let quoted = Quoted::read(frame, parsed.family, parsed.l4.saturating_add(8), parsed.end);
    Some(quoted.map(|quoted| IcmpError { kind, quoted }))
}

/// Whether the checksum of the ICMP or ICMPv6 message in `frame` is right; `false` for anything else, and for
/// fragments. Code that acts on a message, instead of passing it on, asks first.
///
/// # Cost
/// A pass over the message.
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
    /// The packet between `at` and `end` of `frame`.
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
        let payload = ip.get(header_len..).unwrap_or_default(); // empty, when the quote ends in the options
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

/// What the quoted IP header says.
struct Header {
    family: Family,
    addresses: Addresses,
    total_len: u32,
}

impl Header {
    /// `ip`: the quoted bytes, of which `upper.payload` is the end.
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

/// A quoted packet that is the outer packet of a tunnel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QuotedTunnel {
    /// How the inner packet was carried; never [`Encapsulation::L2`]. `udp_checksum` is `false` when the quote ends
    /// before that field.
    pub kind: Encapsulation,
    /// Outer source address: this machine or its source prefix, if the packet was ours.
    pub source: IpAddr,
    /// Outer destination address: the backend.
    pub destination: IpAddr,
    /// Where the inner packet starts, in bytes from the outer IP header, by the outer headers that were quoted; the
    /// inner packet itself may lie behind the quote. `None`: not even those are there.
    pub encap_overhead: Option<u16>,
    /// The inner packet, when at least its IP header was quoted and makes sense.
    pub inner: Option<Quoted>,
}

/// Reads `quoted`, of the same `frame`, as the outer packet of GRE, IP-in-IP or GUE.
///
/// A router may quote as little as 8 bytes behind the outer IP header (RFC 792): for GRE and IP-in-IP that gives the
/// kind, for GUE too (by its port), and the inner packet is unknown. So it is for later fragments of GRE and
/// IP-in-IP.
///
/// `None`: another protocol or port, a later fragment of GUE, GRE or GUE in a form that is not ours (version or
/// variant not 0, source routes, control messages), or carrying neither IPv4 nor IPv6.
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
    // The inner packet reaches to the end of the quote: its offset is what is left in front of it.
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

/// Family and bytes of an inner packet; `None` when the quote ends in the headers in front of it.
type Carried<'a> = Option<(Family, &'a [u8])>;

/// `None`: not what we send.
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

/// `None`: not what we send. The UDP length speaks of the whole packet, so it is not asked.
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
