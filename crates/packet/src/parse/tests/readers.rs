//! Two other parsers that the tests compare with `parse`: `etherparse`, and the checked views of
//! this crate.
//!
//! [`check`] panics if the results differ in a way that is not listed here. The fuzzer
//! (`tests/fuzz`) also compiles this file, so paths start with `packet::`.

use etherparse::{Ipv6ExtensionSlice, NetSlice, SlicedPacket, TransportSlice};
use packet::{Addresses, Family, Fragment, Ipv4, Ipv6, Malformed, ParseError, Udp, parse};

/// Checks that `parse`, the views of this crate and `etherparse` return the same fields for
/// `frame`.
pub(super) fn check(frame: &[u8]) {
    let ours = ours(frame);
    match by_views(frame) {
        Ok(seen) => assert_eq!(ours, seen, "views"),
        Err(reason) => assert_eq!(parse(frame), Err(reason), "views"),
    }
    if let Ok(theirs) = theirs(frame) {
        let stricter = matches!(parse(frame), Err(ParseError::Malformed(Malformed::ExtensionChain)));
        assert!(!stricter || theirs == Seen::Malformed, "{theirs:?}");
        assert_eq!(ours, theirs, "etherparse");
    }
}

/// The fields that all parsers return.
#[derive(Debug, PartialEq)]
pub(super) enum Seen {
    Ip {
        v6: bool,
        l4: usize,
        end: usize,
        protocol: u8,
        ports: (u16, u16),
        flags: u8,
        /// The identification, the offset in bytes, and the more-fragments flag.
        fragment: Option<(u32, u16, bool)>,
        tos: u8,
        ttl: u8,
        dont_fragment: bool,
        src: [u8; 16],
        dst: [u8; 16],
    },
    NotIp,
    Malformed,
}

fn ours(frame: &[u8]) -> Seen {
    let parsed = match parse(frame) {
        Ok(parsed) => parsed,
        Err(ParseError::NotIp) => return Seen::NotIp,
        Err(ParseError::Malformed(_)) => return Seen::Malformed,
    };
    assert!(parsed.l3 < parsed.l4 && parsed.l4 <= parsed.end && usize::from(parsed.end) <= frame.len());
    let Addresses { src, dst } = parsed.addresses(frame);
    Seen::Ip {
        v6: parsed.family == Family::V6,
        l4: parsed.l4.into(),
        end: parsed.end.into(),
        protocol: parsed.protocol,
        ports: (parsed.src_port, parsed.dst_port),
        flags: parsed.tcp_flags,
        fragment: match parsed.fragment {
            Fragment::None => None,
            Fragment::First { id } => Some((id, 0, true)),
            Fragment::Later { id, offset, more } => Some((id, offset, more)),
        },
        tos: parsed.tos,
        ttl: parsed.ttl,
        dont_fragment: parsed.dont_fragment,
        src,
        dst,
    }
}

/// Parses the whole frame with `etherparse`. Returns `Err` with the reason if the parsers are
/// expected to differ.
pub(super) fn theirs(frame: &[u8]) -> Result<Seen, &'static str> {
    let sliced = match SlicedPacket::from_ethernet(frame) {
        Ok(sliced) => sliced,
        Err(error) => return refused(frame, &error),
    };
    if foreign_tags(frame) {
        return Err("etherparse parses 0x9100, MACsec and a third tag; parse returns NotIp for these");
    }
    let Some(payload) = sliced.ip_payload() else { return Ok(Seen::NotIp) };
    let l4 = payload.payload.as_ptr() as usize - frame.as_ptr() as usize;
    let place = Place { l4, end: l4 + payload.payload.len(), protocol: payload.ip_number.0 };
    let transport = theirs_of_transport(sliced.transport.as_ref())?;
    match sliced.net.as_ref() {
        Some(NetSlice::Ipv4(ip)) => theirs_of_v4(ip, place, transport),
        Some(NetSlice::Ipv6(ip)) => theirs_of_v6(ip, place, transport),
        _ => Ok(Seen::NotIp),
    }
}

/// The source port and the destination port, and the TCP flags.
type Read = ((u16, u16), u8);

struct Place {
    l4: usize,
    end: usize,
    protocol: u8,
}

fn theirs_of_transport(transport: Option<&TransportSlice<'_>>) -> Result<Read, &'static str> {
    match transport {
        Some(TransportSlice::Tcp(tcp)) => Ok(((tcp.source_port(), tcp.destination_port()), tcp.slice()[13])),
        Some(TransportSlice::Udp(udp)) if udp.length() == 0 => {
            Err("etherparse accepts a UDP length of 0 as the rest of the packet; parse rejects it")
        }
        Some(TransportSlice::Udp(udp)) => Ok(((udp.source_port(), udp.destination_port()), 0)),
        _ => Ok(((0, 0), 0)),
    }
}

fn theirs_of_v4(ip: &etherparse::Ipv4Slice<'_>, place: Place, read: Read) -> Result<Seen, &'static str> {
    let Place { l4, end, protocol } = place;
    let h = ip.header();
    let offset = h.fragments_offset().value() * 8;
    let piece = (u32::from(h.identification()), offset, h.more_fragments());
    let fragment = ip.is_payload_fragmented().then_some(piece);
    let (ports, flags) = ports_of_pieces(protocol, ip.payload().payload, fragment, read)?;
    if offset != 0 && h.protocol().0 == 51 {
        return Err("etherparse reads an authentication header in a later fragment");
    }
    let mapped = |a: [u8; 4]| std::net::Ipv4Addr::from(a).to_ipv6_mapped().octets();
    let tos = h.dcp().value() << 2 | h.ecn().value();
    let (ttl, dont_fragment) = (h.ttl(), h.dont_fragment());
    let (src, dst) = (mapped(h.source()), mapped(h.destination()));
    Ok(Seen::Ip { v6: false, l4, end, protocol, ports, flags, fragment, tos, ttl, dont_fragment, src, dst })
}

fn theirs_of_v6(ip: &etherparse::Ipv6Slice<'_>, place: Place, read: Read) -> Result<Seen, &'static str> {
    let Place { l4, end, protocol } = place;
    let h = ip.header();
    if h.payload_length() == 0 && ip.payload().len_source == etherparse::LenSource::Slice {
        return Err("etherparse treats a payload length of 0 as a jumbogram; parse treats it as empty");
    }
    let mut fragments = Vec::new();
    for extension in ip.extensions().clone() {
        if let Ipv6ExtensionSlice::Fragment(f) = extension {
            fragments.push((f.identification(), f.fragment_offset().value() * 8, f.more_fragments()));
        }
    }
    if fragments.len() > 1 || ip.extensions().clone().into_iter().count() > 8 {
        return Err("etherparse accepts any number of extension and fragment headers");
    }
    if behind_later_fragment(ip) {
        return Err("etherparse reads extension headers in a later fragment");
    }
    let fragment = fragments.first().copied().filter(|&(_, offset, more)| offset != 0 || more);
    let (ports, flags) = ports_of_pieces(protocol, ip.payload().payload, fragment, read)?;
    let (tos, ttl, dont_fragment) = (h.traffic_class(), h.hop_limit(), true);
    let (src, dst) = (h.source(), h.destination());
    Ok(Seen::Ip { v6: true, l4, end, protocol, ports, flags, fragment, tos, ttl, dont_fragment, src, dst })
}

/// Returns the expected result for a frame that `etherparse` rejected, or the reason why `parse`
/// may accept the frame.
fn refused(frame: &[u8], error: &etherparse::err::packet::SliceError) -> Result<Seen, &'static str> {
    use etherparse::err::{Layer, packet::SliceError};
    if foreign_tags(frame) {
        return Err("etherparse parses 0x9100, MACsec and a third tag; parse returns NotIp for these");
    }
    if let SliceError::Len(len) = error {
        if matches!(
            len.layer,
            Layer::Icmpv4
                | Layer::Icmpv4Timestamp
                | Layer::Icmpv4TimestampReply
                | Layer::Icmpv6
                | Layer::Igmp
        ) {
            return Err("etherparse requires complete ICMP and IGMP headers; parse does not check them");
        }
        if len.layer == Layer::Arp {
            return Err("etherparse reads ARP");
        }
    }
    let later = match parse(frame) {
        Ok(parsed) => match parsed.fragment {
            Fragment::Later { .. } => matches!(parsed.protocol, 0 | 43 | 44 | 51 | 60),
            _ => false,
        },
        Err(_) => false,
    };
    if later {
        return Err("etherparse reads extension and authentication headers in a later fragment");
    }
    if ipv6_without_payload(frame) {
        return Err("etherparse treats a payload length of 0 as a jumbogram; parse treats it as empty");
    }
    Ok(Seen::Malformed)
}

/// Adds the ports that `etherparse` does not return: the ports of fragments, and of protocols other
/// than TCP and UDP.
fn ports_of_pieces(
    protocol: u8,
    payload: &[u8],
    fragment: Option<(u32, u16, bool)>,
    seen: Read,
) -> Result<Read, &'static str> {
    let word = |at: usize| u16::from_be_bytes([payload[at], payload[at + 1]]);
    let need = match (protocol, fragment) {
        (6 | 17 | 33 | 132 | 136, Some((_, 0, _))) => 4,
        (_, Some(_)) => return Ok(((0, 0), 0)),
        (33 | 132, None) => 12,
        (136, None) => 8,
        _ => return Ok(seen),
    };
    if payload.len() < need {
        return Err(
            "parse requires the ports of first fragments, SCTP, DCCP and UDP-Lite; etherparse does not",
        );
    }
    let flags = if protocol == 6 { payload.get(13).copied().unwrap_or(0) } else { 0 };
    Ok(((word(0), word(2)), flags))
}

fn foreign_tags(frame: &[u8]) -> bool {
    let word = |at: usize| frame.get(at..at + 2).map_or(0, |w| u16::from_be_bytes([w[0], w[1]]));
    let is_tag = |word| matches!(word, 0x8100 | 0x88a8);
    let foreign = |word| matches!(word, 0x9100 | 0x88e5);
    let mut at = 12;
    for _ in 0..2 {
        if !is_tag(word(at)) {
            return foreign(word(at));
        }
        at += 4;
    }
    foreign(word(at)) || is_tag(word(at))
}

fn ipv6_without_payload(frame: &[u8]) -> bool {
    let l3 = (12..=20).step_by(4).find(|&at| frame.get(at..at + 2) == Some(&[0x86, 0xdd])).map(|at| at + 2);
    l3.is_some_and(|l3| frame.get(l3 + 4..l3 + 6) == Some(&[0, 0]) && frame.len() > l3 + 40)
}

fn behind_later_fragment(ip: &etherparse::Ipv6Slice<'_>) -> bool {
    let mut later = false;
    for extension in ip.extensions().clone() {
        if later {
            return true;
        }
        later = matches!(&extension, Ipv6ExtensionSlice::Fragment(f) if f.fragment_offset().value() != 0);
    }
    false
}

/// Parses the frame with the checked views of this crate.
fn by_views(frame: &[u8]) -> Result<Seen, ParseError> {
    let (link, mut rest) = frame.split_first_chunk::<14>().ok_or(Malformed::Truncated)?;
    let mut kind = u16::from_be_bytes([link[12], link[13]]);
    for _ in 0..2 {
        if kind == 0x8100 || kind == 0x88a8 {
            let ([_, _, high, low], behind) = rest.split_first_chunk().ok_or(Malformed::Truncated)?;
            (kind, rest) = (u16::from_be_bytes([*high, *low]), behind);
        }
    }
    match kind {
        0x0800 => Ok(v4_by_views(rest, frame.len() - rest.len())?),
        0x86dd => Ok(v6_by_views(rest, frame.len() - rest.len())?),
        _ => Err(ParseError::NotIp),
    }
}

fn v4_by_views(rest: &[u8], l3: usize) -> Result<Seen, Malformed> {
    let ip = Ipv4::parse(rest)?;
    let (src, dst) = (ip.source().to_ipv6_mapped().octets(), ip.destination().to_ipv6_mapped().octets());
    let end = l3 + usize::from(ip.total_len());
    let (mut protocol, mut payload) = (ip.protocol(), ip.payload());
    if protocol == 51 && !matches!(ip.fragment(), Fragment::Later { .. }) {
        let &[next, words] = payload.first_chunk().ok_or(Malformed::Truncated)?;
        let len = if words == 0 { None } else { Some(usize::from(words) * 4 + 8) };
        payload = payload.get(len.ok_or(Malformed::HeaderLength)?..).ok_or(Malformed::Truncated)?;
        protocol = next;
    }
    let (ports, flags) = view_ports(protocol, payload, ip.fragment())?;
    let (l4, fragment) = (end - payload.len(), parts(ip.fragment()));
    let (tos, ttl, dont_fragment) = (ip.tos(), ip.ttl(), ip.dont_fragment());
    Ok(Seen::Ip { v6: false, l4, end, protocol, ports, flags, fragment, tos, ttl, dont_fragment, src, dst })
}

fn v6_by_views(rest: &[u8], l3: usize) -> Result<Seen, Malformed> {
    let ip = Ipv6::parse(rest)?;
    let upper = ip.upper()?;
    let (src, dst) = (ip.source().octets(), ip.destination().octets());
    let end = l3 + 40 + usize::from(ip.payload_len());
    let (ports, flags) = view_ports(upper.protocol, upper.payload, upper.fragment)?;
    let (l4, fragment, protocol) = (end - upper.payload.len(), parts(upper.fragment), upper.protocol);
    let (tos, ttl, dont_fragment) = (ip.traffic_class(), ip.hop_limit(), true);
    Ok(Seen::Ip { v6: true, l4, end, protocol, ports, flags, fragment, tos, ttl, dont_fragment, src, dst })
}

fn parts(fragment: Fragment) -> Option<(u32, u16, bool)> {
    match fragment {
        Fragment::None => None,
        Fragment::First { id } => Some((id, 0, true)),
        Fragment::Later { id, offset, more } => Some((id, offset, more)),
    }
}

fn view_ports(protocol: u8, payload: &[u8], fragment: Fragment) -> Result<Read, Malformed> {
    match (fragment, protocol) {
        (Fragment::None, 6) => tcp(payload),
        (Fragment::None, 17) => Udp::parse(payload).map(|u| ((u.src_port(), u.dst_port()), 0)),
        (fragment, _) => {
            ports_of_pieces(protocol, payload, parts(fragment), ((0, 0), 0)).map_err(|_| Malformed::Truncated)
        }
    }
}

fn tcp(segment: &[u8]) -> Result<Read, Malformed> {
    let header = segment.first_chunk::<20>().ok_or(Malformed::Truncated)?;
    let len = usize::from(header[12] >> 4) * 4;
    if len < 20 {
        return Err(Malformed::HeaderLength);
    }
    segment.get(..len).ok_or(Malformed::Truncated)?;
    let port = |at: usize| u16::from_be_bytes([header[at], header[at + 1]]);
    Ok(((port(0), port(2)), header[13]))
}
