//! A received frame becomes an ICMP error to its sender, in its own buffer.
//!
//! In: the frame, what [`crate::parse`] said of it when it came, what went wrong. Out: where the error's frame lies.
//! Not here: how often (`forwarder` limits the rate), whether the packet deserves one.
//! Invariant: without an answer not a byte of the buffer has changed.
//! Source: RFC 792, RFC 1122 §3.2.2, RFC 1191 §4, RFC 1812 §4.3.2, RFC 4443 §2.2 to §3.3.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use core::ops::Range;

use crate::checksum::{self, Sum};
use crate::{Addresses, Family, Fragment, IcmpErrorKind, Ipv4, Mac, Parsed, protocol};

/// What an ICMP error is to say, and who says it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ErrorOrder {
    /// What went wrong.
    pub kind: IcmpErrorKind,
    /// Source address of the error: the VIP, or this machine's own; of the offending packet's family.
    pub source: IpAddr,
    /// Identification of the error's IPv4 header, which has DF clear; IPv6 has none.
    pub identification: u16,
}

/// Turns the frame at `frame` of `buffer` into an ICMP error about it, to its sender, and says where that lies.
///
/// `parsed` is what [`crate::parse`] said of the frame as it came. The quote has the TTL or hop limit of that moment,
/// whether or not it was lowered since; everything else in the IP packet must be as it was received. MAC addresses are
/// swapped, tags kept. The error grows towards the front by 28 bytes (IPv6: 48), and where there is less room in front
/// of the frame, the quote moves back.
///
/// `None`, with `buffer` untouched: an error must not be sent ([`may_answer`]), the family of `order.source` is not
/// the packet's, the family cannot say `order.kind`, or there is no room.
///
/// # Cost
/// A pass over at most 1,232 bytes for the checksum; a copy of them where the quote moves.
#[must_use]
pub fn write_icmp_error(
    buffer: &mut [u8],
    frame: Range<usize>,
    parsed: &Parsed,
    order: &ErrorOrder,
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

/// Whether any ICMP error may be sent about `frame`: not about an ICMP error (or a type we do not know), a redirect, or
/// a later fragment; not about an IPv4 header whose checksum is wrong; not when source or destination is multicast, broadcast,
/// or a source that is nobody's, be it an IP or a MAC address.
///
/// # Source
/// RFC 1122 §3.2.2, RFC 1812 §4.3.2.7, RFC 4443 §2.4 (e).
#[must_use]
pub fn may_answer(frame: &[u8], parsed: &Parsed) -> bool {
    let Some(&[d0, d1, d2, d3, d4, d5, s0, s1, s2, s3, s4, s5]) = frame.first_chunk::<12>() else {
        return false;
    };
    if Mac([d0, d1, d2, d3, d4, d5]).is_group() || Mac([s0, s1, s2, s3, s4, s5]).is_group() {
        return false;
    }
    // RFC 4443 does not name later fragments, but whether one belongs to an ICMP error nobody can see.
    if matches!(parsed.fragment, Fragment::Later { .. }) || !is_answerable_upper(frame, parsed) {
        return false;
    }
    let Addresses { src, dst } = parsed.addresses(frame);
    // The exceptions of RFC 4443 §2.4 (e.3) for multicast destinations are not taken: a VIP is none.
    let to_many = match parsed.family {
        Family::V4 => dst[12] >= 224,
        Family::V6 => Ipv6Addr::from(dst).is_multicast(),
    };
    !to_many && is_one_host(parsed.family, src) && ip_checksum_ok(frame, parsed)
}

/// Whether an answer may go to `source`: it is not unspecified, loopback, multicast or broadcast.
///
/// # Source
/// RFC 1122 §3.2.1.3 and §3.2.2, RFC 4443 §2.4 (e.6).
pub(crate) fn is_one_host(family: Family, source: [u8; 16]) -> bool {
    match family {
        // Class E holds the limited broadcast address.
        Family::V4 => !matches!(source[12], 0 | 127 | 224..),
        Family::V6 => {
            let source = Ipv6Addr::from(source);
            !(source.is_unspecified() || source.is_loopback() || source.is_multicast())
        }
    }
}

/// That of the IPv4 header; IPv6 has none.
fn ip_checksum_ok(frame: &[u8], parsed: &Parsed) -> bool {
    let header = frame.get(usize::from(parsed.l3)..);
    parsed.family == Family::V6 || header.is_some_and(|ip| Ipv4::parse(ip).is_ok_and(|ip| ip.checksum_ok()))
}

/// Whether the upper layer is anything but ICMP's errors.
fn is_answerable_upper(frame: &[u8], parsed: &Parsed) -> bool {
    let kind = || frame.get(..usize::from(parsed.end)).and_then(|frame| frame.get(usize::from(parsed.l4)));
    match (parsed.family, parsed.protocol) {
        // The queries and their answers (RFC 792, 950, 1256, 8335); a type we do not know may be an error.
        (Family::V4, protocol::ICMP) => matches!(kind(), Some(0 | 8 | 9 | 10 | 13..=18 | 42 | 43)),
        //= RFC 4443 §2.1
        //# Thus, error messages have message types from 0 to 127
        (Family::V6, protocol::ICMPV6) => kind().is_some_and(|&kind| kind >= 128 && kind != REDIRECT_V6),
        _ => true,
    }
}

/// What stands in front of the quote.
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
    fn new(received: &[u8], parsed: &Parsed, order: &ErrorOrder) -> Option<Self> {
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

    /// Bytes of IP and ICMP header.
    const fn growth(&self) -> usize {
        match self.ip {
            Ip::V4 { .. } => 28,
            Ip::V6 { .. } => 48,
        }
    }

    const fn longest_quote(&self) -> usize {
        match self.ip {
            //= RFC 1812 §4.3.2.3
            //# the ICMP datagram SHOULD contain as much of the original datagram as possible without the length of the
            //# ICMP datagram exceeding 576 bytes
            Ip::V4 { .. } => 576 - self.growth(),
            //= RFC 4443 §2.4 (c)
            //# as much of the IPv6 offending (invoking) packet (the packet that caused the error) as possible without
            //# making the error message packet exceed the minimum IPv6 MTU
            Ip::V6 { .. } => 1280 - self.growth(),
        }
    }

    /// `packet` runs from the error's IP header to the end of the quote, which is in its place.
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

/// The TOS of the offending packet with the precedence of errors.
const fn error_tos(tos: u8) -> u8 {
    //= RFC 1812 §4.3.2.5
    //# ICMP error messages SHOULD have their precedence value set to 6 (INTERNETWORK CONTROL) or 7 (NETWORK CONTROL).
    // Its TOS bits stay, but for the two that have since become ECN's (RFC 3168): no ICMP message is ECN-capable.
    INTERNETWORK_CONTROL | tos & 0x1c
}

fn header_v4(source: Ipv4Addr, destination: Ipv4Addr, tos: u8, id: u16, total: u16) -> [u8; 20] {
    let ([t0, t1], [i0, i1]) = (total.to_be_bytes(), id.to_be_bytes());
    let ([a, b, c, d], [e, f, g, h]) = (source.octets(), destination.octets());
    // DF is clear: an error too big for a link would be lost unseen, for errors cause no errors.
    let mut ip = [0x45, tos, t0, t1, i0, i1, 0, 0, HOPS, protocol::ICMP, 0, 0, a, b, c, d, e, f, g, h];
    [ip[10], ip[11]] = checksum::checksum(&ip).to_be_bytes();
    ip
}

/// Traffic class and flow label are 0: RFC 1812's precedence is a rule of IPv4, and RFC 4443 has none.
fn fill_v6(ip: &mut [u8; 40], source: Ipv6Addr, destination: Ipv6Addr, payload: u16) {
    let [p0, p1] = payload.to_be_bytes();
    let fixed = [0x60, 0, 0, 0, p0, p1, protocol::ICMPV6, HOPS];
    let bytes = fixed.into_iter().chain(source.octets()).chain(destination.octets());
    ip.iter_mut().zip(bytes).for_each(|(slot, byte)| *slot = byte);
}

/// Gives the quoted packet the TTL it came with, and the IPv4 checksum that belongs to it.
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
