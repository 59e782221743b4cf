//! Tests of the frame parser with known frames and with all their truncations.

use super::*;
use crate::FrameSpec;

/// A UDP datagram in a GRE packet, written by hand from RFC 791, 2784 and 768.
const GRE: [u8; 14 + 20 + 4 + 20 + 8 + 2] = [
    0x02, 0, 0, 0, 0, 1, 0x02, 0, 0, 0, 0, 2, 0x08, 0x00, // Ethernet
    0x45, 0, 0, 54, 0, 0, 0x40, 0, 64, 47, 0xe4, 0xc8, 192, 0, 2, 1, 198, 18, 1,
    1, // 192.0.2.1 -> 198.18.1.1
    0, 0, 0x08, 0x00, // GRE
    0x45, 0, 0, 30, 0, 0, 0, 0, 63, 17, 0x21, 0x99, 198, 18, 0, 2, 203, 0, 113,
    10, // 198.18.0.2 -> 203.0.113.10
    0x30, 0x39, 0, 53, 0, 10, 0, 0, b'h', b'i', // 12345 -> 53
];

#[test]
fn gre_is_taken_apart() {
    let frame = Frame::parse(&GRE).unwrap();
    let outer = frame.outer().unwrap();
    assert_eq!(outer.kind, Kind::Gre);
    assert_eq!(
        (outer.outer.source, outer.outer.destination),
        ("192.0.2.1".parse().unwrap(), "198.18.1.1".parse().unwrap())
    );
    assert_eq!(outer.outer.ttl, 64);
    assert!(outer.outer.dont_fragment && !outer.inner.dont_fragment);
    assert_eq!(outer.inner.ports(), Some((12345, 53)));
    assert_eq!(outer.inner.payload()[8..], *b"hi");
    assert_eq!(outer.inner.transport_checksum_ok(), None);
}

#[test]
fn a_header_checksum_off_by_one_is_wrong() {
    let mut bytes = GRE;
    let sum = checksum(&[&GRE[14..24], &[0, 0], &GRE[26..34]]);
    bytes[24..26].copy_from_slice(&sum.to_be_bytes());
    assert!(Frame::parse(&bytes).unwrap().ip.checksum_ok);
    bytes[25] ^= 1;
    assert!(!Frame::parse(&bytes).unwrap().ip.checksum_ok);
}

#[test]
fn a_cut_frame_is_no_frame() {
    for len in 0..GRE.len() {
        assert_eq!(Frame::parse(&GRE[..len]), None, "{len}");
    }
    // Extra bytes after the packet are padding.
    let padded = [&GRE[..], &[0; 7]].concat();
    assert_eq!(Frame::parse(&padded), Frame::parse(&GRE));
}

/// Returns `GRE` with `between` instead of the GRE header. The outer protocol and length are
/// adjusted.
fn wrapped(protocol: u8, between: &[u8]) -> Vec<u8> {
    let mut bytes = [&GRE[..34], between, &GRE[38..]].concat();
    bytes[17] = u8::try_from(bytes.len() - 14).unwrap();
    bytes[23] = protocol;
    bytes
}

#[test]
fn each_wrapping_is_told_from_the_others() {
    let gue_port = GUE_PORT.to_be_bytes();
    let udp = [&[0xc0, 0], &gue_port[..], &[0, 0, 0, 0]].concat();
    let gue = |header: &[u8]| [&udp[..], header].concat();
    let long = [&[0x1f, 4, 0, 0][..], &[0; 31 * 4]].concat();
    for (protocol, between, kind) in [
        (4, vec![], Some(Kind::Ipip)),
        (17, gue(&[0, 4, 0, 0]), Some(Kind::Gue)),
        (17, gue(&[1, 4, 0x20, 0, 9, 9, 9, 9]), Some(Kind::Gue)),
        (17, gue(&long), Some(Kind::Gue)),
        (17, gue(&[0x40, 4, 0, 0]), None), // variant 1
        (17, gue(&[0x20, 4, 0, 0]), None), // a control message
        (17, gue(&[0, 6, 0, 0]), None),
        (17, [&[0xc0, 0, 0, 53, 0, 0, 0, 0][..], &[0, 4, 0, 0]].concat(), None),
        (50, vec![], None),
    ] {
        let outer = Frame::parse(&wrapped(protocol, &between)).unwrap().outer();
        assert_eq!(outer.as_ref().map(|outer| outer.kind), kind, "{protocol} {between:?}");
        assert!(outer.is_none_or(|outer| outer.inner.ports() == Some((12345, 53))));
    }
}

#[test]
fn fragment_has_byte_offset_and_ports_only_in_first() {
    let mut bytes = GRE[38..].to_vec();
    bytes[6..8].copy_from_slice(&[0x20, 0]);
    let first = Ip::parse(&bytes).unwrap();
    assert_eq!((first.fragment, first.ports()), (Some((0, true)), Some((12345, 53))));
    bytes[6..8].copy_from_slice(&[0x01, 0x02]);
    let later = Ip::parse(&bytes).unwrap();
    assert_eq!((later.fragment, later.ports()), (Some((0x102 * 8, false)), None));

    let v6 = |word: [u8; 2]| {
        let mut bytes = vec![0x60, 0, 0, 0, 0, 24, 0, 63];
        bytes.extend([1; 16].into_iter().chain([2; 16]));
        bytes.extend([44, 0, 0, 0, 0, 0, 0, 0]); // hop-by-hop options, then a fragment header
        bytes.extend([17, 0, word[0], word[1], 0, 0, 0, 7]);
        bytes.extend([0x30, 0x39, 0, 53, 0, 8, 0, 0]);
        Ip::parse(&bytes).unwrap()
    };
    assert_eq!((v6([0, 1]).fragment, v6([0, 1]).ports()), (Some((0, true)), Some((12345, 53))));
    assert_eq!((v6([0x05, 0xa8]).fragment, v6([0x05, 0xa8]).ports()), (Some((1448, false)), None));
    assert_eq!((v6([0, 1]).protocol, v6([0, 1]).header_bytes), (17, 56));
}

#[test]
fn tags_are_of_802_1q_and_802_1ad() {
    let spec =
        FrameSpec::udp([2; 6], [4; 6], "198.18.0.2:1".parse().unwrap(), "203.0.113.10:2".parse().unwrap());
    let one = FrameSpec { vlans: vec![0xabc], ..spec.clone() }.bytes();
    assert_eq!(one[12..18], [0x81, 0x00, 0x0a, 0xbc, 0x08, 0x00]);
    assert_eq!(Frame::parse(&one).unwrap().vlans, [0xabc]);
    let two = FrameSpec { vlans: vec![0xabc, 5], ..spec }.bytes();
    assert_eq!(two[12..22], [0x88, 0xa8, 0x0a, 0xbc, 0x81, 0x00, 0, 5, 0x08, 0x00]);
}

#[test]
fn zero_udp_checksum_is_sent_as_ones() {
    let spec =
        FrameSpec::udp([2; 6], [4; 6], "198.18.0.2:1".parse().unwrap(), "203.0.113.10:2".parse().unwrap());
    let sums: Vec<[u8; 2]> = (0..=u16::MAX)
        .map(|word| FrameSpec { payload: word.to_be_bytes().to_vec(), ..spec.clone() }.bytes())
        .map(|frame| [frame[40], frame[41]])
        .collect();
    assert!(!sums.contains(&[0, 0]) && sums.contains(&[0xff, 0xff]));
}

#[test]
fn gre_with_a_key_is_not_ours() {
    let mut bytes = GRE;
    bytes[34] = 0x20;
    assert_eq!(Frame::parse(&bytes).unwrap().outer(), None);
}

#[test]
fn built_frames_have_correct_checksums() {
    let (v4, v6) = (["198.18.0.2:4000", "203.0.113.10:80"], ["[2001:db8::2]:4000", "[2001:db8:f::10]:80"]);
    for [source, destination] in [v4, v6] {
        for (tcp_flags, vlans) in [(None, vec![]), (Some(0x02), vec![7]), (Some(0x18), vec![100, 200])] {
            let (source, destination) = (source.parse().unwrap(), destination.parse().unwrap());
            let plain = FrameSpec::udp([2; 6], [4; 6], source, destination);
            let spec = FrameSpec { tcp_flags, vlans, payload: b"odd".to_vec(), ..plain };
            let mut bytes = spec.bytes();
            let frame = Frame::parse(&bytes).unwrap();
            assert_eq!((frame.to, frame.from, &frame.vlans), ([4; 6], [2; 6], &spec.vlans));
            assert_eq!((frame.ip.source, frame.ip.destination), (source.ip(), destination.ip()));
            assert_eq!(frame.ip.ports(), Some((4000, 80)));
            assert!(frame.ip.checksum_ok);
            assert_eq!(frame.ip.transport_checksum_ok(), Some(true));
            *bytes.last_mut().unwrap() ^= 1;
            assert_eq!(Frame::parse(&bytes).unwrap().ip.transport_checksum_ok(), Some(false));
        }
    }
}

#[test]
fn the_checksum_agrees_with_rfc_1071() {
    // The example of RFC 1071 §3, in which the sum is ddf2.
    assert_eq!(checksum(&[&[0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7]]), !0xddf2);
}

#[test]
fn flows_differ_in_their_source_port_alone() {
    let spec = FrameSpec::smallest_udp(
        [2; 6],
        [4; 6],
        "198.18.0.2:1000".parse().unwrap(),
        "203.0.113.10:9".parse().unwrap(),
    );
    let ports: Vec<_> = spec.flows(3).iter().map(|f| Frame::parse(f).unwrap().ip.ports().unwrap()).collect();
    assert_eq!(ports, [(1000, 9), (1001, 9), (1002, 9)]);
    assert!(spec.flows(3).iter().all(|frame| frame.len() == 60));
}
