use etherparse::{Icmpv6Type, PacketBuilder, icmpv4, icmpv6};
use proptest::collection::vec;
use proptest::prelude::*;

use self::slow::{Slow, slow_view};
use super::*;
use crate::test_frames::frame;
use crate::{Inner, Outer, Template, parse};

const ROUTER: [u8; 4] = [203, 0, 113, 7];
const VIP: [u8; 4] = [198, 51, 100, 1];
const CLIENT: [u8; 4] = [192, 0, 2, 9];

/// Builds a frame in which a router sends an ICMP error. The ICMP header is `message`, and `quote`
/// follows it. The checksums are 0.
fn wrapped(family: Family, message: [u8; 8], quote: &[u8]) -> Vec<u8> {
    let mut frame = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2];
    let len = u16::try_from(8 + quote.len()).unwrap();
    match family {
        Family::V4 => {
            frame.extend([0x08, 0x00, 0x45, 0]);
            frame.extend((len + 20).to_be_bytes());
            frame.extend([0, 0, 0, 0, 60, 1, 0, 0]);
            frame.extend([ROUTER, VIP].concat());
        }
        Family::V6 => {
            frame.extend([0x86, 0xdd, 0x60, 0, 0, 0]);
            frame.extend(len.to_be_bytes());
            frame.extend([58, 60]);
            frame.extend([0x20, 1, 0x0d, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 7]);
            frame.extend([0x20, 1, 0x0d, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1]);
        }
    }
    frame.extend(message);
    frame.extend(quote);
    frame
}

fn read(frame: &[u8]) -> Option<Result<IcmpError, Malformed>> {
    icmp_error(frame, &parse(frame).unwrap())
}

/// Builds a TCP packet from port 80 of the VIP to port 31337 of the client, starting at its IP
/// header.
fn answer_v4() -> Vec<u8> {
    let mut ip = Vec::new();
    PacketBuilder::ipv4(VIP, CLIENT, 63).tcp(80, 31337, 1, 1).write(&mut ip, &[7; 40]).unwrap();
    ip
}

fn answer_v6() -> Vec<u8> {
    let mut ip = Vec::new();
    let (vip, client) = ("2001:db8::101".parse::<Ipv6Addr>(), "2001:db8::9".parse::<Ipv6Addr>());
    let ends = (vip.unwrap().octets(), client.unwrap().octets());
    PacketBuilder::ipv6(ends.0, ends.1, 63).udp(53, 31337).write(&mut ip, &[7; 40]).unwrap();
    ip
}

#[test]
fn fragmentation_needed_with_eight_bytes_names_the_flow() {
    let answer = answer_v4();
    let frame = wrapped(Family::V4, [3, 4, 0, 0, 0, 0, 0x05, 0x78], &answer[..28]);
    let expected = Quoted {
        family: Family::V4,
        at: 42,
        l4: 62,
        end: 70,
        total_len: 80,
        addresses: Addresses { src: mapped(VIP), dst: mapped(CLIENT) },
        protocol: 6,
        ports: Some((80, 31337)),
        fragment: Fragment::None,
    };
    let error = IcmpError { kind: IcmpErrorKind::TooBig { mtu: 1400 }, quoted: expected };
    assert_eq!(read(&frame), Some(Ok(error)));
}

#[test]
fn packet_too_big_names_the_quoted_flow() {
    let answer = answer_v6();
    let frame = wrapped(Family::V6, [2, 0, 0, 0, 0, 1, 0x12, 0x34], &answer);
    let error = read(&frame).unwrap().unwrap();
    assert_eq!(error.kind, IcmpErrorKind::TooBig { mtu: 0x0001_1234 });
    assert_eq!((error.quoted.ports, error.quoted.protocol), (Some((53, 31337)), 17));
    assert_eq!(
        (error.quoted.at, error.quoted.l4, error.quoted.end, error.quoted.total_len),
        (62, 102, 150, 88)
    );
    let addresses = [error.quoted.addresses.src, error.quoted.addresses.dst].map(Ipv6Addr::from);
    assert_eq!(addresses.map(|ip| ip.to_string()), ["2001:db8::101", "2001:db8::9"]);
}

#[test]
fn icmp_error_returns_the_kind_of_each_type() {
    let (v4, v6) = (answer_v4(), answer_v6());
    let kind = |family, message| {
        let quote = if family == Family::V4 { &v4 } else { &v6 };
        read(&wrapped(family, message, quote)).map(|error| error.unwrap().kind)
    };
    let v4 = |message| kind(Family::V4, message);
    // Routers that predate RFC 1191 send an MTU of 0.
    assert_eq!(v4([3, 4, 0, 0, 0, 0, 0, 0]), Some(IcmpErrorKind::TooBig { mtu: 0 }));
    assert_eq!(v4([3, 13, 0, 0, 1, 2, 3, 4]), Some(IcmpErrorKind::Unreachable { code: 13 }));
    assert_eq!(v4([11, 1, 0, 0, 0, 0, 0, 0]), Some(IcmpErrorKind::TimeExceeded { code: 1 }));
    assert_eq!(v4([12, 0, 0, 0, 9, 0, 0, 0]), Some(IcmpErrorKind::ParameterProblem { code: 0, pointer: 9 }));
    for kind in [0, 1, 2, 4, 5, 8, 13, 58, 255] {
        assert_eq!(v4([kind, 0, 0, 0, 0, 0, 0, 0]), None, "{kind}");
    }
    let v6 = |message| kind(Family::V6, message);
    assert_eq!(v6([1, 4, 0, 0, 0, 0, 0, 0]), Some(IcmpErrorKind::Unreachable { code: 4 }));
    // The ICMP code is ignored.
    assert_eq!(v6([2, 9, 0, 0, 0, 0, 5, 0]), Some(IcmpErrorKind::TooBig { mtu: 1280 }));
    assert_eq!(v6([3, 0, 0, 0, 0, 0, 0, 0]), Some(IcmpErrorKind::TimeExceeded { code: 0 }));
    assert_eq!(v6([4, 1, 0, 0, 0, 0, 1, 0]), Some(IcmpErrorKind::ParameterProblem { code: 1, pointer: 256 }));
    for kind in [0, 5, 100, 127, 128, 129, 133, 137, 255] {
        assert_eq!(v6([kind, 0, 0, 0, 0, 0, 0, 0]), None, "{kind}");
    }
}

#[test]
fn icmp_error_rejects_other_protocols_and_fragments() {
    let frame = wrapped(Family::V4, [3, 1, 0, 0, 0, 0, 0, 0], &answer_v4());
    for (at, byte) in [(23, 58), (23, 47), (20, 0x20), (21, 1)] {
        let mut frame = frame.clone();
        frame[at] = byte;
        assert_eq!(read(&frame), None, "{at} {byte}");
    }
    let mut short = frame;
    [short[16], short[17]] = [0, 27];
    assert_eq!(read(&short), Some(Err(Malformed::Truncated)));
}

#[test]
fn icmp_error_quote_with_invalid_lengths_is_malformed() {
    let reason = |family, changes: &[(usize, u8)], len: usize| {
        let mut quote = if family == Family::V4 { answer_v4() } else { answer_v6() };
        changes.iter().for_each(|&(at, byte)| quote[at] = byte);
        let message = if family == Family::V4 { [3, 1, 0, 0, 0, 0, 0, 0] } else { [1, 0, 0, 0, 0, 0, 0, 0] };
        read(&wrapped(family, message, &quote[..len])).unwrap().unwrap_err()
    };
    assert_eq!(reason(Family::V4, &[], 19), Malformed::Truncated);
    assert_eq!(reason(Family::V4, &[(0, 0x65)], 40), Malformed::Version);
    assert_eq!(reason(Family::V4, &[(0, 0x44)], 40), Malformed::HeaderLength);
    assert_eq!(reason(Family::V4, &[(3, 19)], 40), Malformed::TotalLength);
    assert_eq!(reason(Family::V4, &[(9, 51), (21, 0)], 40), Malformed::HeaderLength);
    assert_eq!(reason(Family::V6, &[], 39), Malformed::Truncated);
    assert_eq!(reason(Family::V6, &[(0, 0x45)], 60), Malformed::Version);
    assert_eq!(reason(Family::V6, &[(6, 60), (40, 0), (41, 0)], 60), Malformed::ExtensionChain);
}

#[test]
fn quote_that_ends_in_ip_options_has_no_ports() {
    let mut quote = answer_v4();
    quote[0] = 0x4f;
    let quoted = read(&wrapped(Family::V4, [3, 1, 0, 0, 0, 0, 0, 0], &quote[..30])).unwrap().unwrap().quoted;
    assert_eq!((quoted.protocol, quoted.ports, quoted.l4, quoted.end), (6, None, 72, 72));
}

#[test]
fn quote_excludes_bytes_after_the_packet() {
    let short = [0x45, 0, 0, 22, 0, 0, 0, 0, 63, 17, 0, 0, 198, 51, 100, 1, 192, 0, 2, 9, 0, 53, 9, 9, 9, 9];
    let quoted = read(&wrapped(Family::V4, [3, 3, 0, 0, 0, 0, 0, 0], &short)).unwrap().unwrap().quoted;
    assert_eq!((quoted.end - quoted.at, quoted.total_len, quoted.ports), (22, 22, None));
}

#[test]
fn icmp_checksum_ok_matches_etherparse() {
    let answer = answer_v4();
    let kind = etherparse::Icmpv4Type::DestinationUnreachable(icmpv4::DestUnreachableHeader::Host);
    let mut frame = Vec::new();
    let builder = PacketBuilder::ethernet2([2; 6], [4; 6]).ipv4(ROUTER, VIP, 60);
    builder.icmpv4(kind).write(&mut frame, &answer).unwrap();
    let parsed = parse(&frame).unwrap();
    assert!(icmp_checksum_ok(&frame, &parsed));
    assert_eq!(read(&frame).unwrap().unwrap().kind, IcmpErrorKind::Unreachable { code: 1 });
    frame[60] ^= 1;
    assert!(!icmp_checksum_ok(&frame, &parsed));

    let mut frame = Vec::new();
    let kind = Icmpv6Type::TimeExceeded(icmpv6::TimeExceededCode::HopLimitExceeded);
    let builder = PacketBuilder::ethernet2([2; 6], [4; 6]).ipv6([1; 16], [2; 16], 60);
    builder.icmpv6(kind).write(&mut frame, &answer_v6()).unwrap();
    let parsed = parse(&frame).unwrap();
    assert!(icmp_checksum_ok(&frame, &parsed));
    frame[30] ^= 1; // The checksum also covers the destination.
    assert!(!icmp_checksum_ok(&frame, &parsed));
    assert!(!icmp_checksum_ok(&frame, &crate::Parsed { protocol: 6, ..parsed }));
}

fn outer(v6: bool) -> Outer {
    if v6 {
        let end = |low| Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, low);
        Outer::V6 { source: end(1), destination: end(2) }
    } else {
        let end = |low| Ipv4Addr::new(198, 18, 0, low);
        Outer::V4 { source: end(1), destination: end(2) }
    }
}

fn kinds() -> impl Strategy<Value = Encapsulation> {
    prop_oneof![
        Just(Encapsulation::Gre),
        Just(Encapsulation::Ipip),
        any::<bool>().prop_map(|udp_checksum| Encapsulation::Gue { udp_checksum })
    ]
}

/// Puts outer headers in front of `inner`; the result starts at the outer IP header.
fn tunnelled(kind: Encapsulation, v6: bool, inner: &[u8]) -> Vec<u8> {
    let family = if inner[0] >> 4 == 4 { Family::V4 } else { Family::V6 };
    let template = Template::new(kind, outer(v6), family, true);
    let mut ip = vec![0; template.len()];
    template
        .write(
            &mut ip,
            &Inner { len: u16::try_from(inner.len()).unwrap(), tos: 0, flow_hash: 7, identification: 7 },
        )
        .unwrap();
    ip.extend(inner);
    assert!(template.finish_checksum(&mut ip));
    ip
}

fn unreachable(ip: &[u8]) -> Vec<u8> {
    match ip[0] >> 4 {
        4 => wrapped(Family::V4, [3, 1, 0, 0, 0, 0, 0, 0], ip),
        _ => wrapped(Family::V6, [1, 3, 0, 0, 0, 0, 0, 0], ip),
    }
}

fn tunnel_in(ip: &[u8]) -> Option<QuotedTunnel> {
    let frame = unreachable(ip);
    quoted_tunnel(&frame, &read(&frame)?.ok()?.quoted)
}

mod slow;

proptest! {
    #[test]
    fn truncated_quote_matches_the_reference_reader(frame in frame(), cut: prop::sample::Index) {
        // The test finds the IP header without `parse`, because `parse` rejects some of the
        // generated extension headers.
        let tagged = |at: usize| matches!(frame[at - 2..at], [0x81, 0] | [0x88, 0xa8]);
        let l3 = [14, 18, 22].into_iter().find(|&at| !tagged(at)).unwrap();
        let ip = &frame[l3..];
        let ip = &ip[..20 + cut.index(ip.len() - 19)];
        let error = read(&unreachable(ip)).unwrap();
        let seen = error.ok().map(|error| slow_view(&error.quoted));
        prop_assert_eq!(seen, Slow::read(ip));
    }

    // Promise: parser-safety
    #[test]
    fn any_bytes_as_a_quote_stay_inside_the_frame(
        mut bytes in vec(any::<u8>(), 1..140), v6: bool, word in 20..60u16, next in 0..70u8
    ) {
        // Most inputs get a valid version and header length, so that they pass the first checks.
        bytes[0] = if v6 { 0x60 } else { 0x40 | bytes[0] & 0x0f };
        if bytes.len() > 40 {
            bytes[if v6 { 6 } else { 9 }] = next;
            bytes[if v6 { 4 } else { 2 }] = 0;
            bytes[if v6 { 5 } else { 3 }] = word.to_be_bytes()[1];
        }
        let frame = unreachable(&bytes);
        slow::check(&frame);
    }

    #[test]
    fn any_bytes_and_any_offsets_do_not_panic(
        bytes in vec(any::<u8>(), 0..100), l3: u16, l4 in 0..120u16, end in 0..120u16
    ) {
        let mut parsed = parse(&wrapped(Family::V4, [3, 1, 0, 0, 0, 0, 0, 0], &[])).unwrap();
        (parsed.l3, parsed.l4, parsed.end) = (l3, l4, end);
        let _ = icmp_checksum_ok(&bytes, &parsed);
        let message = [&bytes[..], &[3, 1, 0, 0, 0, 0, 0, 0]].concat();
        if let Some(Ok(error)) = icmp_error(&message, &parsed) {
            let _ = quoted_tunnel(&bytes, &error.quoted);
        }
    }

    #[test]
    fn quoted_tunnel_reads_what_the_quote_contains(
        kind in kinds(), v6: bool, frame in frame(), cut: prop::sample::Index
    ) {
        let Ok(parsed) = parse(&frame) else { return Ok(()) };
        let inner = &frame[usize::from(parsed.l3)..usize::from(parsed.end)];
        let ip = tunnelled(kind, v6, inner);
        let header = if v6 { 40 } else { 20 };
        let encap_overhead = ip.len() - inner.len();
        // A router quotes at least eight bytes after the IP header.
        let len = (header + 8 + cut.index(ip.len() - header - 7)).min(ip.len());
        let ip = &ip[..len];
        let tunnel = tunnel_in(ip).unwrap();
        prop_assert_eq!(tunnel.kind, kind);
        let (source, destination) = match outer(v6) {
            Outer::V4 { source, destination } => (IpAddr::from(source), IpAddr::from(destination)),
            Outer::V6 { source, destination } => (source.into(), destination.into()),
        };
        prop_assert_eq!((tunnel.source, tunnel.destination), (source, destination));
        prop_assert_eq!(tunnel.encap_overhead.map(usize::from), (len >= encap_overhead).then_some(encap_overhead));
        let expected = ip.get(encap_overhead..).filter(|inner| inner.len() >= 20).and_then(Slow::read);
        prop_assert_eq!(tunnel.inner.as_ref().map(slow_view), expected);
        if let Some(seen) = tunnel.inner {
            prop_assert_eq!((seen.family, seen.addresses), (parsed.family, parsed.addresses(&frame)));
        }
    }
}

#[test]
fn what_is_not_ours_is_no_tunnel() {
    let inner = answer_v4();
    let changed = |kind, at: usize, byte: u8| {
        let mut ip = tunnelled(kind, false, &inner);
        ip[at] = byte;
        tunnel_in(&ip).is_some()
    };
    let gue = Encapsulation::Gue { udp_checksum: false };
    assert!(changed(Encapsulation::Gre, 20, 0x30) && changed(gue, 20, 0));
    assert!(!changed(Encapsulation::Gre, 9, 6)); // different protocol
    assert!(!changed(Encapsulation::Gre, 20, 0x40)); // source routes
    assert!(!changed(Encapsulation::Gre, 21, 1)); // PPTP's version
    assert!(!changed(Encapsulation::Gre, 22, 0x65)); // unsupported inner protocol
    assert!(!changed(gue, 23, 0xc1)); // different port
    assert!(!changed(gue, 28, 0x20) && !changed(gue, 28, 0x40)); // control, variant 1
    assert!(!changed(gue, 29, 47));
}

#[test]
fn quoted_tunnel_of_a_later_fragment_has_no_inner_packet() {
    let later = |kind| {
        let mut ip = tunnelled(kind, false, &answer_v4());
        ip[7] = 9;
        // The payload of a later fragment is data, not a GRE header with source routes.
        ip[20] = 0x40;
        tunnel_in(&ip)
    };
    for kind in [Encapsulation::Gre, Encapsulation::Ipip] {
        let tunnel = later(kind).unwrap();
        assert_eq!((tunnel.kind, tunnel.encap_overhead, tunnel.inner), (kind, None, None));
    }
    // Only the first fragment contains the port.
    assert_eq!(later(Encapsulation::Gue { udp_checksum: false }), None);
}
