//! Writes an ICMP error about a received frame into the buffer of that frame.
//!
//! [`may_answer`] implements the rules about packets that must not trigger an ICMP error. The
//! caller must limit the rate of errors. If no error is written, the buffer stays unchanged.
//!
//! The rules are in RFC 792, RFC 1122 §3.2.2, RFC 1191 §4, RFC 1812 §4.3.2 and RFC 4443 §2.2 to
//! §3.3.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use core::ops::Range;

use crate::checksum::{self, Sum};
use crate::source::words;
use crate::{Addresses, Family, Fragment, IcmpErrorKind, Ipv4, Mac, Parsed, is_martian, protocol};

/// The kind and the source address of the ICMP error to write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ErrorSpec {
    /// The kind of ICMP error to write.
    pub kind: IcmpErrorKind,
    /// The source address of the error: the VIP or an address of this machine. The family must
    /// match the received packet.
    pub source: IpAddr,
    /// The identification in the IPv4 header of the error, which is sent without DF. Unused for
    /// IPv6.
    pub identification: u16,
}

/// Replaces the frame at `buffer[frame]` with an ICMP error to its sender, and returns the range of
/// the error in `buffer`.
///
/// `parsed` is the result of [`crate::parse`] for the frame as received. If the caller has
/// decremented the TTL or hop limit in the meantime, this function restores the original value in
/// the quoted packet. All other bytes of the packet must be as received. MAC addresses are swapped
/// and VLAN tags are kept.
///
/// The headers of the error need 28 bytes of space in front of the packet (48 for IPv6). If the
/// buffer has less space there, the quoted packet is moved toward the end of the buffer.
///
/// Returns `None` and leaves `buffer` unchanged in these cases:
/// - [`may_answer`] forbids an error.
/// - The source address in `order` and the packet have different families.
/// - The family has no error of this kind.
/// - The buffer is too small.
///
/// # Cost
/// One pass over at most 1,232 bytes for the checksum, and one copy of these bytes if the quoted
/// packet is moved.
#[must_use]
pub fn write_icmp_error(
    buffer: &mut [u8],
    frame: Range<usize>,
    parsed: &Parsed,
    order: &ErrorSpec,
) -> Option<Range<usize>> {
    let (start, link_len) = (frame.start, usize::from(parsed.l3));
    let received = buffer.get(frame)?;
    let ip_len = received.get(link_len..usize::from(parsed.end))?.len();
    if !may_answer(received, parsed) {
        return None;
    }
    let head = Head::new(received, parsed, order)?;
    let quote_len = ip_len.min(head.longest_quote());
    let (old, growth) = (start + link_len, link_len + head.growth());
    let quote_at = old.max(growth);
    let error = quote_at - growth..quote_at + quote_len;
    if error.end > buffer.len() {
        return None;
    }
    buffer.copy_within(old..old + quote_len, quote_at);
    let written = buffer.get_mut(error.clone())?;
    let (link, ip) = written.split_at_mut_checked(link_len)?;
    link.iter_mut().zip(head.link).for_each(|(slot, byte)| *slot = byte);
    head.write(ip, parsed)?;
    Some(error)
}

/// Returns `true` if an ICMP error may be sent about `frame`.
///
/// The result is `false` for ICMP errors, redirects, unknown ICMP types, fragments other than the
/// first fragment, and IPv4 packets with a wrong header checksum. The result is also `false` if an
/// IP or MAC address is multicast or broadcast, or if the source address is martian
/// ([`crate::is_martian`]).
///
/// # References
/// RFC 1122 §3.2.2, RFC 1812 §4.3.2.7, RFC 4443 §2.4 (e).
#[must_use]
pub fn may_answer(frame: &[u8], parsed: &Parsed) -> bool {
    let Some(&[d0, d1, d2, d3, d4, d5, s0, s1, s2, s3, s4, s5]) = frame.first_chunk::<12>() else {
        return false;
    };
    if Mac([d0, d1, d2, d3, d4, d5]).is_group() || Mac([s0, s1, s2, s3, s4, s5]).is_group() {
        return false;
    }
    // RFC 4443 does not mention later fragments, but a later fragment may belong to an ICMP error.
    if matches!(parsed.fragment, Fragment::Later { .. }) || !is_answerable_upper(frame, parsed) {
        return false;
    }
    let Addresses { src, dst } = parsed.addresses(frame);
    // RFC 4443 §2.4 (e.3) has exceptions for multicast destinations. These exceptions are not
    // needed, because a VIP is never multicast.
    let to_many = match parsed.family {
        Family::V4 => dst[12] >= 224,
        Family::V6 => Ipv6Addr::from(dst).is_multicast(),
    };
    !to_many && !is_martian(parsed.family, words(src)) && ip_checksum_ok(frame, parsed)
}

/// Returns `true` if the IPv4 header checksum is correct. Always returns `true` for IPv6, which has
/// no header checksum. `parsed` must be the result of [`crate::parse`] for `frame`.
#[must_use]
pub fn ip_checksum_ok(frame: &[u8], parsed: &Parsed) -> bool {
    let header = frame.get(usize::from(parsed.l3)..);
    parsed.family == Family::V6 || header.is_some_and(|ip| Ipv4::parse(ip).is_ok_and(|ip| ip.checksum_ok()))
}

/// Returns `true` unless the packet is an ICMP error or an ICMP message of an unknown type.
fn is_answerable_upper(frame: &[u8], parsed: &Parsed) -> bool {
    let kind = || frame.get(..usize::from(parsed.end)).and_then(|frame| frame.get(usize::from(parsed.l4)));
    match (parsed.family, parsed.protocol) {
        // The listed types are the ICMP queries and replies (RFC 792, 950, 1256, 8335). An unknown
        // type may be an error, so no ICMP error is sent in reply to it.
        (Family::V4, protocol::ICMP) => matches!(kind(), Some(0 | 8 | 9 | 10 | 13..=18 | 42 | 43)),
        //= RFC 4443 §2.1
        //# Thus, error messages have message types from 0 to 127
        (Family::V6, protocol::ICMPV6) => kind().is_some_and(|&kind| kind >= 128 && kind != REDIRECT_V6),
        _ => true,
    }
}

/// The IP and ICMP headers of the error, which precede the quoted packet.
struct Head {
    link: [u8; 22],
    message: [u8; 8],
    ip: Ip,
}

enum Ip {
    V4 { source: Ipv4Addr, destination: Ipv4Addr, tos: u8, identification: u16 },
    V6 { source: Ipv6Addr, destination: Ipv6Addr },
}

impl Head {
    fn new(received: &[u8], parsed: &Parsed, order: &ErrorSpec) -> Option<Self> {
        let mut link = [0; 22];
        let old = received.get(..usize::from(parsed.l3)).filter(|old| old.len() <= 22)?;
        let (destination, rest) = old.split_first_chunk::<6>()?;
        let (source, rest) = rest.split_first_chunk::<6>()?;
        let bytes = source.iter().chain(destination).chain(rest);
        link.iter_mut().zip(bytes).for_each(|(slot, byte)| *slot = *byte);
        let src = parsed.addresses(received).src;
        let ip = match (parsed.family, order.source) {
            (Family::V4, IpAddr::V4(source)) => {
                let [.., a, b, c, d] = src;
                let destination = Ipv4Addr::new(a, b, c, d);
                let identification = order.identification;
                Ip::V4 { source, destination, tos: error_tos(parsed.tos), identification }
            }
            (Family::V6, IpAddr::V6(source)) => Ip::V6 { source, destination: src.into() },
            _ => return None,
        };
        Some(Self { link, message: order.kind.header(parsed.family)?, ip })
    }

    /// Returns the length of the IP and ICMP headers together, in bytes.
    const fn growth(&self) -> usize {
        match self.ip {
            Ip::V4 { .. } => 28,
            Ip::V6 { .. } => 48,
        }
    }

    const fn longest_quote(&self) -> usize {
        match self.ip {
            //= RFC 1812 §4.3.2.3
            //# the ICMP datagram SHOULD contain as much of the original datagram as possible
            //# without the length of the ICMP datagram exceeding 576 bytes
            Ip::V4 { .. } => 576 - self.growth(),
            //= RFC 4443 §2.4 (c)
            //# as much of the IPv6 offending (invoking) packet (the packet that caused the error)
            //# as possible without making the error message packet exceed the minimum IPv6 MTU
            Ip::V6 { .. } => 1280 - self.growth(),
        }
    }

    /// Writes the headers. `packet` extends from the IP header of the error to the end of the
    /// quoted packet, which is already in place.
    fn write(&self, packet: &mut [u8], parsed: &Parsed) -> Option<()> {
        let total = u16::try_from(packet.len()).ok()?;
        match self.ip {
            Ip::V4 { source, destination, tos, identification } => {
                let (ip, icmp) = packet.split_first_chunk_mut::<20>()?;
                *ip = header_v4(source, destination, tos, identification, total);
                self.write_message(icmp, parsed, Sum::new())
            }
            Ip::V6 { source, destination } => {
                let (ip, icmp) = packet.split_first_chunk_mut::<40>()?;
                let len = total.checked_sub(40)?;
                fill_v6(ip, source, destination, len);
                let pseudo = Sum::new().add_pseudo_v6(source, destination, protocol::ICMPV6, len);
                self.write_message(icmp, parsed, pseudo)
            }
        }
    }

    fn write_message(&self, icmp: &mut [u8], parsed: &Parsed, pseudo: Sum) -> Option<()> {
        let (header, quote) = icmp.split_first_chunk_mut::<8>()?;
        restore_ttl(quote, parsed);
        *header = self.message;
        let [hi, lo] = pseudo.add_bytes(icmp).finish().to_be_bytes();
        let header = icmp.first_chunk_mut::<8>()?;
        [header[2], header[3]] = [hi, lo];
        Some(())
    }
}

/// Returns the TOS for an ICMP error: the TOS of the received packet with the precedence of ICMP
/// errors.
const fn error_tos(tos: u8) -> u8 {
    //= RFC 1812 §4.3.2.5
    //# ICMP error messages SHOULD have their precedence value set to 6 (INTERNETWORK CONTROL) or 7
    //# (NETWORK CONTROL).
    // The other TOS bits are kept, except the two ECN bits (RFC 3168), which are cleared because
    // ICMP messages are not ECN-capable.
    INTERNETWORK_CONTROL | tos & 0x1c
}

fn header_v4(source: Ipv4Addr, destination: Ipv4Addr, tos: u8, id: u16, total: u16) -> [u8; 20] {
    let ([t0, t1], [i0, i1]) = (total.to_be_bytes(), id.to_be_bytes());
    let ([a, b, c, d], [e, f, g, h]) = (source.octets(), destination.octets());
    // DF is clear, so that routers can fragment a large error. With DF set, a large error would be
    // lost silently, because routers send no ICMP errors about ICMP errors.
    let mut ip = [0x45, tos, t0, t1, i0, i1, 0, 0, HOPS, protocol::ICMP, 0, 0, a, b, c, d, e, f, g, h];
    [ip[10], ip[11]] = checksum::checksum(&ip).to_be_bytes();
    ip
}

/// Sets the traffic class and the flow label to 0. The precedence that RFC 1812 requires applies
/// only to IPv4.
fn fill_v6(ip: &mut [u8; 40], source: Ipv6Addr, destination: Ipv6Addr, payload: u16) {
    let [p0, p1] = payload.to_be_bytes();
    let fixed = [0x60, 0, 0, 0, p0, p1, protocol::ICMPV6, HOPS];
    let bytes = fixed.into_iter().chain(source.octets()).chain(destination.octets());
    ip.iter_mut().zip(bytes).for_each(|(slot, byte)| *slot = byte);
}

/// Restores the original TTL of the quoted packet and updates its IPv4 checksum.
fn restore_ttl(quote: &mut [u8], parsed: &Parsed) {
    match parsed.family {
        Family::V4 => {
            if let Some(h) = quote.first_chunk_mut::<20>().filter(|h| h[8] != parsed.ttl) {
                let old = u16::from_be_bytes([h[8], h[9]]);
                h[8] = parsed.ttl;
                let new = u16::from_be_bytes([h[8], h[9]]);
                let sum = checksum::update(u16::from_be_bytes([h[10], h[11]]), old, new);
                [h[10], h[11]] = sum.to_be_bytes();
            }
        }
        Family::V6 => {
            if let Some(h) = quote.first_chunk_mut::<40>() {
                h[7] = parsed.ttl;
            }
        }
    }
}

const HOPS: u8 = 64;
const INTERNETWORK_CONTROL: u8 = 6 << 5;
const REDIRECT_V6: u8 = 137;

#[cfg(test)]
mod tests;
