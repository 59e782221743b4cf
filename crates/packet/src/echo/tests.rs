use etherparse::{PacketBuilder, SlicedPacket};
use proptest::collection::vec;
use proptest::prelude::*;

use super::*;
use crate::oracle;
use crate::parse;

const CLIENT: [u8; 6] = [2, 0, 0, 0, 0, 1];
const ROUTER: [u8; 6] = [2, 0, 0, 0, 0, 2];
const V4: ([u8; 4], [u8; 4]) = ([192, 0, 2, 9], [198, 51, 100, 1]);
const V6: ([u8; 16], [u8; 16]) = (
    [0x20, 1, 0x0d, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 9],
    [0x20, 1, 0x0d, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1],
);

fn request_v4(ttl: u8, id: u16, seq: u16, data: &[u8]) -> Vec<u8> {
    let mut frame = Vec::new();
    let builder = PacketBuilder::ethernet2(CLIENT, ROUTER).ipv4(V4.0, V4.1, ttl);
    builder.icmpv4_echo_request(id, seq).write(&mut frame, data).unwrap();
    frame
}

fn request_v6(ttl: u8, id: u16, seq: u16, data: &[u8]) -> Vec<u8> {
    let mut frame = Vec::new();
    let builder = PacketBuilder::ethernet2(CLIENT, ROUTER).ipv6(V6.0, V6.1, ttl);
    builder.icmpv6_echo_request(id, seq).write(&mut frame, data).unwrap();
    frame
}

fn turn(frame: &mut [u8]) -> bool {
    let parsed = parse(frame).unwrap();
    echo_reply(frame, &parsed)
}

proptest! {
    #[test]
    fn echo_reply_matches_etherparse(
        ttl: u8, id: u16, seq: u16, data in vec(any::<u8>(), 0..80), padding in 0..20usize
    ) {
        let mut expected = Vec::new();
        let builder = PacketBuilder::ethernet2(ROUTER, CLIENT).ipv4(V4.1, V4.0, 64);
        builder.icmpv4_echo_reply(id, seq).write(&mut expected, &data).unwrap();
        let mut frame = request_v4(ttl, id, seq, &data);
        frame.extend(vec![0xee; padding]);
        expected.extend(vec![0xee; padding]);
        prop_assert!(turn(&mut frame));
        prop_assert_eq!(&frame, &expected);
        prop_assert_eq!(oracle::checksum(&frame[14..34]), 0);

        let mut expected = Vec::new();
        let builder = PacketBuilder::ethernet2(ROUTER, CLIENT).ipv6(V6.1, V6.0, 64);
        builder.icmpv6_echo_reply(id, seq).write(&mut expected, &data).unwrap();
        let mut frame = request_v6(ttl, id, seq, &data);
        prop_assert!(turn(&mut frame));
        prop_assert_eq!(&frame, &expected);
        SlicedPacket::from_ethernet(&frame).unwrap();
    }

    #[test]
    fn any_bytes_and_any_offsets_do_not_panic(
        mut bytes in vec(any::<u8>(), 0..100), l3: u16, l4: u16, end: u16, v6: bool
    ) {
        let mut parsed = parse(&request_v4(9, 1, 1, &[])).unwrap();
        if v6 {
            parsed = parse(&request_v6(9, 1, 1, &[])).unwrap();
        }
        (parsed.l3, parsed.l4, parsed.end) = (l3, l4, end);
        let old = bytes.clone();
        if !echo_reply(&mut bytes, &parsed) {
            prop_assert_eq!(bytes, old);
        }
    }
}

/// Returns `true` if the frame is rejected and left unchanged.
fn refused(frame: &[u8]) -> bool {
    let mut turned = frame.to_vec();
    !turn(&mut turned) && turned == frame
}

#[test]
fn tags_are_kept() {
    let mut frame = request_v4(9, 1, 1, b"ping");
    frame.splice(12..12, [0x81, 0, 0, 7]);
    assert!(turn(&mut frame));
    assert_eq!(frame[..18], [2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 0x81, 0, 0, 7, 8, 0]);
}

#[test]
fn echo_reply_rejects_other_packets() {
    for (at, byte) in [(34, 0), (34, 13), (35, 1), (23, 6 + 41)] {
        let mut frame = request_v4(9, 1, 1, b"ping");
        frame[at] = byte;
        assert!(refused(&frame), "{at} {byte}");
    }
    for (at, byte) in [(54, 129), (54, 8), (55, 1), (20, 59)] {
        let mut frame = request_v6(9, 1, 1, b"ping");
        frame[at] = byte;
        assert!(refused(&frame), "{at} {byte}");
    }
}

#[test]
fn echo_reply_rejects_fragments_options_and_short_messages() {
    let changed = |changes: &[(usize, u8)]| {
        let mut frame = request_v4(9, 1, 1, b"pingping");
        changes.iter().for_each(|&(at, byte)| frame[at] = byte);
        frame
    };
    assert!(!refused(&changed(&[])));
    assert!(refused(&changed(&[(20, 0x20)])));
    assert!(refused(&changed(&[(21, 1)])));
    assert!(refused(&changed(&[(0, 0xff)])));
    assert!(refused(&changed(&[(6, 3)])));
    assert!(refused(&changed(&[(14, 0x46), (38, 8)])));
    assert!(refused(&changed(&[(17, 27)])));
}

#[test]
fn echo_reply_of_zeros_has_the_checksum_of_zeros() {
    for data in [&[][..], &[0; 56], &[0; 55]] {
        let mut frame = request_v4(9, 0, 0, data);
        assert!(turn(&mut frame));
        assert_eq!(frame[36..38], [0xff, 0xff], "{} bytes", data.len());
        // These words add up to 0xffff, so the checksum stays 0x0000.
        let mut frame = request_v4(9, 0xffff, 0, data);
        assert!(turn(&mut frame));
        assert_eq!(frame[36..38], [0, 0]);
    }
}

#[test]
fn echo_reply_rejects_martian_sources_and_wrong_header_checksums() {
    for source in
        [[0, 0, 0, 0], [0, 1, 2, 3], [127, 0, 0, 1], [224, 0, 0, 1], [240, 1, 2, 3], [255, 255, 255, 255]]
    {
        let mut frame = Vec::new();
        let builder = PacketBuilder::ethernet2(CLIENT, ROUTER).ipv4(source, V4.1, 9);
        builder.icmpv4_echo_request(1, 2).write(&mut frame, b"x").unwrap();
        assert!(!turn(&mut frame), "{source:?}");
    }
    for source in ["::", "::1", "ff02::1", "::ffff:192.0.2.9"]
        .map(|source| source.parse::<std::net::Ipv6Addr>().unwrap().octets())
    {
        let mut frame = Vec::new();
        let builder = PacketBuilder::ethernet2(CLIENT, ROUTER).ipv6(source, V6.1, 9);
        builder.icmpv6_echo_request(1, 2).write(&mut frame, b"x").unwrap();
        assert!(!turn(&mut frame), "{source:?}");
    }
    for (at, bit) in (24..26).flat_map(|at| (0..8).map(move |bit| (at, 1 << bit))) {
        let mut frame = request_v4(9, 1, 1, b"ping");
        frame[at] ^= bit;
        assert!(refused(&frame), "byte {at} of the header checksum");
    }
}
