use proptest::collection::vec;
use proptest::prelude::*;

use super::*;
use crate::test_frames::{damaged_frame, frame};

/// Builds a TCP frame over IPv4 without options or padding.
fn tcp_v4() -> Vec<u8> {
    let mut frame = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 0x08, 0x00];
    frame.extend([0x45, 0x28, 0, 40, 0xab, 0xcd, 0x40, 0, 63, 6, 0, 0, 192, 0, 2, 9, 198, 51, 100, 1]);
    frame.extend([0x30, 0x39, 0, 80, 0, 0, 0, 1, 0, 0, 0, 2, 0x50, 0x12, 0xff, 0xff, 0, 0, 0, 0]);
    frame
}

/// Builds a UDP frame over IPv6. `extensions` precede UDP, and the first one has the type `first`.
fn udp_v6(first: u8, extensions: &[u8]) -> Vec<u8> {
    let mut frame = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 0x86, 0xdd];
    let len = u8::try_from(extensions.len() + 12).unwrap();
    frame.extend([0x6b, 0x80, 0, 0, 0, len, first, 64]);
    frame.extend([0x20, 1, 0x0d, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]);
    frame.extend([0x20, 1, 0x0d, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2]);
    frame.extend(extensions);
    frame.extend([0x30, 0x39, 0, 53, 0, 12, 0, 0, b'a', b'b', b'c', b'd']);
    frame
}

fn with(mut frame: Vec<u8>, changes: &[(usize, u8)]) -> Vec<u8> {
    for &(at, byte) in changes {
        frame[at] = byte;
    }
    frame
}

fn tagged_with(mut frame: Vec<u8>, tags: &[u8]) -> Vec<u8> {
    frame.splice(12..12, tags.iter().copied());
    frame
}

fn malformed(frame: &[u8]) -> Malformed {
    match parse(frame) {
        Err(ParseError::Malformed(reason)) => reason,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_tcp_frame_is_read_field_by_field() {
    let frame = [tcp_v4(), vec![0; 6]].concat(); // six bytes of Ethernet padding
    let parsed = parse(&frame).unwrap();
    let expected = Parsed {
        family: Family::V4,
        l3: 14,
        l4: 34,
        end: 54,
        protocol: 6,
        src_port: 12345,
        dst_port: 80,
        tcp_flags: 0x12,
        fragment: Fragment::None,
        tos: 0x28,
        ttl: 63,
        dont_fragment: true,
    };
    assert_eq!(parsed, expected);
    assert_eq!(parsed.ip_len(), 40);
    let Addresses { src, dst } = parsed.addresses(&frame);
    assert_eq!(src, [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 192, 0, 2, 9]);
    assert_eq!(dst, [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 198, 51, 100, 1]);
}

#[test]
fn a_udp_frame_with_extension_headers_is_read_field_by_field() {
    let extensions = [60, 0, 1, 4, 0, 0, 0, 0, 17, 0, 1, 4, 0, 0, 0, 0];
    let frame = udp_v6(0, &extensions);
    let parsed = parse(&frame).unwrap();
    let expected = Parsed {
        family: Family::V6,
        l3: 14,
        l4: 70,
        end: 82,
        protocol: 17,
        src_port: 12345,
        dst_port: 53,
        tcp_flags: 0,
        fragment: Fragment::None,
        tos: 0xb8,
        ttl: 64,
        dont_fragment: true,
    };
    assert_eq!(parsed, expected);
    let Addresses { src, dst } = parsed.addresses(&frame);
    assert_eq!((src[..4].to_vec(), src[15], dst[15]), (vec![0x20, 1, 0x0d, 0xb8], 1, 2));
}

#[test]
fn parse_ip_matches_parse_without_the_link_header() {
    for frame in [tcp_v4(), udp_v6(17, &[]), udp_v6(0, &[60, 0, 1, 4, 0, 0, 0, 0, 17, 0, 1, 4, 0, 0, 0, 0])] {
        let (behind, alone) = (parse(&frame).unwrap(), parse_ip(&frame[14..]).unwrap());
        let moved = Parsed { l3: alone.l3 + 14, l4: alone.l4 + 14, end: alone.end + 14, ..alone };
        assert_eq!((moved, alone.l3), (behind, 0));
        assert_eq!(alone.addresses(&frame[14..]), behind.addresses(&frame));
        for len in 0..frame.len() - 14 {
            assert_eq!(parse_ip(&frame[14..14 + len]).unwrap_err(), parse(&frame[..14 + len]).unwrap_err());
        }
    }
    assert_eq!(parse_ip(&[0x50; 60]), Err(Malformed::Version.into()));
}

#[test]
fn parse_accepts_two_tags_and_rejects_a_third() {
    let l3 = |frame: &[u8]| parse(frame).map(|parsed| (parsed.l3, parsed.l4, parsed.end, parsed.dst_port));
    let vlan = [0x81, 0x00, 0x00, 0x07];
    let qinq = [0x88, 0xa8, 0x00, 0x07, 0x81, 0x00, 0x00, 0x08];
    assert_eq!(l3(&tagged_with(tcp_v4(), &vlan)), Ok((18, 38, 58, 80)));
    assert_eq!(l3(&tagged_with(tcp_v4(), &qinq)), Ok((22, 42, 62, 80)));
    assert_eq!(l3(&tagged_with(udp_v6(17, &[]), &qinq)), Ok((22, 62, 74, 53)));
    assert_eq!(l3(&tagged_with(tcp_v4(), &[vlan; 3].concat())), Err(ParseError::NotIp));
}

#[test]
fn other_ethernet_types_are_not_ip() {
    for kind in [[0x08, 0x06], [0x88, 0xcc], [0x91, 0x00], [0x00, 0x2e]] {
        assert_eq!(parse(&with(tcp_v4(), &[(12, kind[0]), (13, kind[1])])), Err(ParseError::NotIp));
    }
}

#[test]
fn every_cut_of_a_frame_is_truncated() {
    let frames = [tcp_v4(), udp_v6(0, &[17, 0, 0, 0, 0, 0, 0, 0]), tagged_with(tcp_v4(), &[0x81, 0, 0, 7])];
    for frame in frames {
        for len in 0..frame.len() {
            assert_eq!(malformed(&frame[..len]), Malformed::Truncated, "{len} of {frame:02x?}");
        }
    }
}

#[test]
fn each_lie_has_its_name() {
    use Malformed::*;
    assert_eq!(malformed(&with(tcp_v4(), &[(14, 0x65)])), Version);
    assert_eq!(malformed(&with(tcp_v4(), &[(14, 0x44)])), HeaderLength);
    assert_eq!(malformed(&with(tcp_v4(), &[(17, 19)])), TotalLength);
    assert_eq!(malformed(&with(tcp_v4(), &[(17, 41)])), Truncated);
    assert_eq!(malformed(&with(tcp_v4(), &[(17, 39)])), Truncated); // TCP needs 20 bytes
    assert_eq!(malformed(&with(tcp_v4(), &[(46, 0x40)])), HeaderLength);
    assert_eq!(malformed(&with(tcp_v4(), &[(46, 0x60)])), Truncated);
    assert_eq!(malformed(&with(udp_v6(17, &[]), &[(14, 0x40)])), Version);
    assert_eq!(malformed(&with(udp_v6(17, &[]), &[(59, 7)])), UdpLength);
    assert_eq!(malformed(&with(udp_v6(17, &[]), &[(59, 13)])), Truncated);
    assert_eq!(malformed(&udp_v6(51, &[17, 0, 0, 0, 0, 0, 0, 0])), HeaderLength);
    assert_eq!(malformed(&udp_v6(60, &[0, 0, 0, 0, 0, 0, 0, 0, 17, 0, 0, 0, 0, 0, 0, 0])), ExtensionChain);
    assert_eq!(malformed(&udp_v6(44, &[44, 0, 0, 0, 0, 0, 0, 0, 17, 0, 0, 0, 0, 0, 0, 0])), ExtensionChain);
}

#[test]
fn eight_extension_headers_are_read_and_nine_are_not() {
    let chain = |count: usize| {
        let mut bytes = [60, 0, 1, 4, 0, 0, 0, 0].repeat(count);
        bytes[count * 8 - 8] = 17;
        udp_v6(60, &bytes)
    };
    assert_eq!(parse(&chain(8)).unwrap().l4, 54 + 64);
    assert_eq!(malformed(&chain(9)), Malformed::ExtensionChain);
}

#[test]
fn parse_packet_beyond_65535_bytes_is_too_long() {
    let mut frame = with(tcp_v4(), &[(16, 0xff), (17, 0xff)]);
    frame.resize(14 + 65_535, 0);
    assert_eq!(malformed(&frame), Malformed::TooLong);
    let frame = with(frame, &[(17, 0xff - 14)]);
    assert_eq!(parse(&frame).unwrap().end, 65_535);
    let mut frame = with(udp_v6(17, &[]), &[(18, 0xff), (19, 0xff)]);
    frame.resize(14 + 40 + 65_535, 0);
    assert_eq!(malformed(&frame), Malformed::TooLong);
    let frame = with(frame, &[(19, 0xff - 54)]);
    assert_eq!(parse(&frame).unwrap().end, 65_535);
}

#[test]
fn parse_distinguishes_ipv4_fragments() {
    let word = |hi, lo| parse(&with(tcp_v4(), &[(20, hi), (21, lo)])).unwrap();
    assert_eq!(word(0x40, 0).fragment, Fragment::None);
    assert_eq!(word(0x80, 0).fragment, Fragment::None); // The reserved bit is ignored.
    let first = word(0x20, 0);
    assert_eq!((first.fragment, first.dst_port, first.tcp_flags), (Fragment::First { id: 0xabcd }, 80, 0x12));
    let later = word(0x20, 1);
    assert_eq!(later.fragment, Fragment::Later { id: 0xabcd, offset: 8, more: true });
    assert_eq!((later.src_port, later.dst_port, later.tcp_flags, later.l4), (0, 0, 0, 34));
    let last = word(0x1f, 0xff);
    assert_eq!(last.fragment, Fragment::Later { id: 0xabcd, offset: 65_528, more: false });
}

#[test]
fn parse_distinguishes_ipv6_fragments() {
    let piece = |hi, lo| parse(&udp_v6(44, &[17, 0, hi, lo, 1, 2, 3, 4])).unwrap();
    let atomic = piece(0, 0);
    assert_eq!((atomic.fragment, atomic.dst_port, atomic.l4), (Fragment::None, 53, 62));
    let first = piece(0, 1);
    assert_eq!((first.fragment, first.dst_port), (Fragment::First { id: 0x0102_0304 }, 53));
    let later = piece(0x05, 0xa9);
    assert_eq!(later.fragment, Fragment::Later { id: 0x0102_0304, offset: 1448, more: true });
    assert_eq!((later.protocol, later.dst_port), (17, 0));
    let last = piece(0x05, 0xa8);
    assert_eq!(last.fragment, Fragment::Later { id: 0x0102_0304, offset: 1448, more: false });
}

#[test]
fn parse_does_not_read_headers_in_a_later_fragment() {
    for kind in [0, 43, 44, 51, 60] {
        let parsed = parse(&udp_v6(44, &[kind, 0, 0, 8, 0, 0, 0, 0])).unwrap();
        assert_eq!((parsed.protocol, parsed.l4, parsed.end), (kind, 62, 74));
    }
    let parsed = parse(&with(tcp_v4(), &[(21, 1), (23, 51)])).unwrap();
    assert_eq!((parsed.protocol, parsed.l4), (51, 34));
}

#[test]
fn fragment_starts_before_fragmented_extension_headers() {
    let share = |frame: &[u8]| {
        let parsed = parse(frame).unwrap();
        assert_eq!(parsed.fragment_len(frame), parsed.end - parsed.fragment_start(frame));
        (parsed.fragment_start(frame), parsed.l4)
    };
    let ah = [17, 1, 0, 0, 0, 0, 0, 1, 0, 0, 0, 1];
    let options = [17, 0, 1, 4, 0, 0, 0, 0];
    let six = |kind, more, behind: &[u8]| {
        udp_v6(60, &[&[44, 0, 1, 4, 0, 0, 0, 0, kind, 0, 0, more, 1, 2, 3, 4], behind].concat())
    };
    assert_eq!(share(&six(17, 1, &[])), (70, 70));
    assert_eq!(share(&six(60, 1, &options)), (70, 78));
    assert_eq!(share(&six(51, 1, &ah)), (70, 82));
    assert_eq!(share(&six(60, 8, &options)), (70, 70), "a later fragment has no extension headers");
    let mut four = with(tcp_v4(), &[(17, 52), (20, 0x20), (23, 51)]);
    four.splice(34..34, [6, 1, 0, 0, 0, 0, 0, 1, 0, 0, 0, 1]);
    assert_eq!(share(&four), (34, 46));
    assert_eq!(share(&with(tcp_v4(), &[(20, 0x20)])), (34, 34));
    let parsed = parse(&four).unwrap();
    for len in 0..four.len() {
        assert!(parsed.fragment_start(&four[..len]) <= parsed.l4);
    }
}

/// Fragments packets. The offset and the length of each fragment lead to the next one.
#[test]
fn fragments_of_a_datagram_follow_each_other_without_gaps() {
    let datagram = |frame: Vec<u8>, payload: usize| {
        let mut frame = frame;
        frame.resize(frame.len() + payload, 7);
        let len = u16::try_from(frame.len() - 14).unwrap();
        let (at, len) = if frame[14] >> 4 == 4 { (16, len) } else { (18, len - 40) };
        frame[at..at + 2].copy_from_slice(&len.to_be_bytes());
        frame
    };
    for (frame, behind) in [(datagram(tcp_v4(), 2_000), 20), (datagram(udp_v6(17, &[]), 2_000), 40)] {
        let whole = parse(&frame).unwrap();
        assert_eq!((whole.fragment.id(), whole.fragment.offset(), whole.fragment.more()), (None, 0, false));
        assert_eq!(
            (whole.fragment_len(&frame), whole.payload_len()),
            (whole.end - whole.l4, whole.end - whole.l4)
        );
        let mut ip = frame[14..].to_vec();
        let pieces = if whole.family == Family::V4 {
            crate::allow_cutting(&mut ip, 7);
            crate::pieces_v4(&ip, 600).unwrap()
        } else {
            crate::pieces_v6(&ip, 600, 7).unwrap()
        };
        let mut next = 0;
        for piece in pieces {
            let mut bytes = vec![0; piece.len()];
            piece.write(&mut bytes).unwrap();
            let parsed = crate::parse_ip(&bytes).unwrap();
            let fragment = parsed.fragment;
            assert_eq!((fragment.id(), fragment.offset()), (Some(7), next));
            next += parsed.fragment_len(&bytes);
            assert_eq!(fragment.more(), usize::from(next) < ip.len() - behind);
        }
        assert_eq!(usize::from(next), ip.len() - behind);
    }
}

#[test]
fn addresses_convert_to_ip_addresses_and_back() {
    for (frame, source, destination) in
        [(tcp_v4(), "192.0.2.9", "198.51.100.1"), (udp_v6(17, &[]), "2001:db8::1", "2001:db8::2")]
    {
        let addresses = parse(&frame).unwrap().addresses(&frame);
        let pair: (IpAddr, IpAddr) = (source.parse().unwrap(), destination.parse().unwrap());
        assert_eq!(<(IpAddr, IpAddr)>::from(addresses), pair);
        assert_eq!(Addresses::from(pair), addresses);
    }
}

#[test]
fn parse_skips_authentication_headers() {
    let ah = [17, 1, 0, 0, 0, 0, 0, 1, 0, 0, 0, 1];
    let parsed = parse(&udp_v6(51, &ah)).unwrap();
    assert_eq!((parsed.protocol, parsed.l4, parsed.dst_port), (17, 66, 53));
    let mut frame = with(tcp_v4(), &[(17, 52), (23, 51)]);
    frame.splice(34..34, [6, 1, 0, 0, 0, 0, 0, 1, 0, 0, 0, 1]);
    let parsed = parse(&frame).unwrap();
    assert_eq!((parsed.protocol, parsed.l4, parsed.dst_port), (6, 46, 80));
}

#[test]
fn parse_first_fragment_needs_only_ports() {
    let cut = |len: u8| with(tcp_v4(), &[(20, 0x20), (17, 20 + len)]);
    assert_eq!(malformed(&cut(3)), Malformed::Truncated);
    let tiny = parse(&cut(4)).unwrap();
    assert_eq!((tiny.dst_port, tiny.tcp_flags), (80, 0));
    assert_eq!(parse(&cut(13)).unwrap().tcp_flags, 0);
    assert_eq!(parse(&cut(14)).unwrap().tcp_flags, 0x12);
}

#[test]
fn parse_reads_ports_only_of_protocols_with_ports() {
    for protocol in [132, 33, 136] {
        let parsed = parse(&with(tcp_v4(), &[(23, protocol)])).unwrap();
        assert_eq!((parsed.src_port, parsed.dst_port, parsed.tcp_flags), (12345, 80, 0));
    }
    for protocol in [1, 47, 50, 4, 58] {
        let parsed = parse(&with(tcp_v4(), &[(23, protocol)])).unwrap();
        assert_eq!(
            (parsed.src_port, parsed.dst_port, parsed.tcp_flags, parsed.protocol),
            (0, 0, 0, protocol)
        );
    }
    assert_eq!(malformed(&with(tcp_v4(), &[(23, 132), (17, 31)])), Malformed::Truncated);
    assert_eq!(malformed(&with(tcp_v4(), &[(23, 136), (17, 27)])), Malformed::Truncated);
}

#[test]
fn addresses_of_another_frame_do_not_panic() {
    for frame in [tcp_v4(), udp_v6(17, &[])] {
        let parsed = parse(&frame).unwrap();
        for len in 0..frame.len() {
            let _ = parsed.addresses(&frame[..len]);
        }
        assert_eq!(parsed.addresses(&[]), Addresses { src: [0; 16], dst: [0; 16] });
    }
}

mod agreement;
mod readers;
mod views;
