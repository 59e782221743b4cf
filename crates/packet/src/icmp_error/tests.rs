use etherparse::{PacketBuilder, icmpv4, icmpv6};
use proptest::collection::vec;
use proptest::prelude::*;

use super::*;
use crate::test_frames::frame;
use crate::{decrement_ttl, icmp_checksum_ok, icmp_error, oracle, parse};

const CLIENT: [u8; 4] = [192, 0, 2, 9];
const VIP: [u8; 4] = [198, 51, 100, 1];
const CLIENT_6: [u8; 16] = [0x20, 1, 0x0d, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 9];
const VIP_6: [u8; 16] = [0x20, 1, 0x0d, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1];
const ROUTER_MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];
const OUR_MAC: [u8; 6] = [2, 0, 0, 0, 0, 2];

fn udp_v4(ttl: u8, data: &[u8]) -> Vec<u8> {
    let mut frame = Vec::new();
    let builder = PacketBuilder::ethernet2(ROUTER_MAC, OUR_MAC).ipv4(CLIENT, VIP, ttl);
    builder.udp(31337, 53).write(&mut frame, data).unwrap();
    frame
}

fn udp_v6(ttl: u8, data: &[u8]) -> Vec<u8> {
    let mut frame = Vec::new();
    let builder = PacketBuilder::ethernet2(ROUTER_MAC, OUR_MAC).ipv6(CLIENT_6, VIP_6, ttl);
    builder.udp(31337, 53).write(&mut frame, data).unwrap();
    frame
}

fn order(kind: IcmpErrorKind, family: Family) -> ErrorSpec {
    let source = if family == Family::V4 { IpAddr::from(VIP) } else { IpAddr::from(VIP_6) };
    ErrorSpec { kind, source, identification: 0xbeef }
}

/// Returns the ICMP error about `frame`, with enough room for it. If there is no error, checks that
/// the buffer is unchanged.
fn answered(frame: &[u8], kind: IcmpErrorKind) -> Option<Vec<u8>> {
    let parsed = parse(frame).unwrap();
    let mut buffer = [&[0xee; 64], frame, &[0xee; 64]].concat();
    let old = buffer.clone();
    let place = 64..64 + frame.len();
    let range = write_icmp_error(&mut buffer, place, &parsed, &order(kind, parsed.family));
    assert_eq!(range.is_none(), buffer == old);
    range.map(|range| buffer[range].to_vec())
}

const TOO_BIG: IcmpErrorKind = IcmpErrorKind::TooBig { mtu: 1400 };

proptest! {
    #[test]
    fn write_icmp_error_matches_etherparse(
        ttl: u8, data in vec(any::<u8>(), 0..2000), lowered: bool, mtu: u16
    ) {
        let quote = |frame: &[u8], limit: usize| frame[14..frame.len().min(14 + limit)].to_vec();
        let turn = |frame: &[u8], kind| {
            let parsed = parse(frame).unwrap();
            let mut buffer = [&[0; 48], frame].concat();
            if lowered {
                let _ = decrement_ttl(&mut buffer[62..], parsed.family);
            }
            let place = 48..buffer.len();
            let range = write_icmp_error(&mut buffer, place, &parsed, &order(kind, parsed.family)).unwrap();
            buffer[range].to_vec()
        };
        let frame = udp_v4(ttl, &data);
        let fragmentation = icmpv4::DestUnreachableHeader::FragmentationNeeded { next_hop_mtu: mtu };
        let mut header = etherparse::Ipv4Header::new(0, 64, etherparse::IpNumber::ICMP, VIP, CLIENT).unwrap();
        (header.identification, header.dont_fragment) = (0xbeef, false);
        header.dscp = etherparse::IpDscp::try_new(48).unwrap();
        let mut expected = Vec::new();
        let ip = etherparse::IpHeaders::Ipv4(header, Default::default());
        let builder = PacketBuilder::ethernet2(OUR_MAC, ROUTER_MAC).ip(ip);
        let builder = builder.icmpv4(etherparse::Icmpv4Type::DestinationUnreachable(fragmentation));
        builder.write(&mut expected, &quote(&frame, 548)).unwrap();
        prop_assert_eq!(turn(&frame, IcmpErrorKind::TooBig { mtu: mtu.into() }), expected);

        let frame = udp_v6(ttl, &data);
        let mut expected = Vec::new();
        let builder = PacketBuilder::ethernet2(OUR_MAC, ROUTER_MAC).ipv6(VIP_6, CLIENT_6, 64);
        let builder = builder.icmpv6(etherparse::Icmpv6Type::PacketTooBig { mtu: mtu.into() });
        builder.write(&mut expected, &quote(&frame, 1232)).unwrap();
        prop_assert_eq!(turn(&frame, IcmpErrorKind::TooBig { mtu: mtu.into() }), expected);

        let mut expected = Vec::new();
        let builder = PacketBuilder::ethernet2(OUR_MAC, ROUTER_MAC).ipv6(VIP_6, CLIENT_6, 64);
        let code = icmpv6::TimeExceededCode::HopLimitExceeded;
        let builder = builder.icmpv6(etherparse::Icmpv6Type::TimeExceeded(code));
        builder.write(&mut expected, &quote(&frame, 1232)).unwrap();
        prop_assert_eq!(turn(&frame, IcmpErrorKind::TimeExceeded { code: 0 }), expected);
    }

    #[test]
    fn write_icmp_error_quotes_the_received_bytes(
        frame in frame(), head in 0..120usize, tail in 0..120usize
    ) {
        let Ok(parsed) = parse(&frame) else { return Ok(()) };
        let mut buffer = [vec![0xee; head], frame.clone(), vec![0xdd; tail]].concat();
        let old = buffer.clone();
        let place = head..head + frame.len();
        let written = write_icmp_error(&mut buffer, place, &parsed, &order(TOO_BIG, parsed.family));
        let (l3, end) = (usize::from(parsed.l3), usize::from(parsed.end));
        let growth = if parsed.family == Family::V4 { 28 } else { 48 };
        let fits = growth <= head || growth - head <= tail + frame.len() - end;
        prop_assert_eq!(written.is_some(), fits && may_answer(&frame, &parsed));
        let Some(range) = written else {
            prop_assert_eq!(buffer, old);
            return Ok(());
        };
        let error = &buffer[range];
        prop_assert_eq!(error.len(), end + growth);
        prop_assert_eq!(&error[l3 + growth..], &frame[l3..end]);
        prop_assert_eq!((&error[..6], &error[6..12]), (&frame[6..12], &frame[..6]));
        prop_assert_eq!(&error[12..l3], &frame[12..l3]);
        let seen = parse(error).unwrap();
        prop_assert_eq!((seen.family, seen.ttl, usize::from(seen.end)), (parsed.family, 64, error.len()));
        prop_assert!(icmp_checksum_ok(error, &seen));
        if seen.family == Family::V4 {
            prop_assert_eq!(oracle::checksum(&error[l3..l3 + 20]), 0);
            prop_assert_eq!((seen.tos, seen.dont_fragment), (0xc0 | parsed.tos & 0x1c, false));
        }
        let read = icmp_error(error, &seen).unwrap().unwrap();
        prop_assert_eq!((read.kind, read.quoted.addresses), (TOO_BIG, parsed.addresses(&frame)));
        prop_assert_eq!(seen.addresses(error).dst, parsed.addresses(&frame).src);
    }

    #[test]
    fn write_icmp_error_of_any_bytes_does_not_panic(
        mut bytes in vec(any::<u8>(), 0..200), v6: bool, start in 0..100usize, len in 0..200usize,
        l3 in prop_oneof![Just(14u16), Just(18), 0..100u16, Just(u16::MAX)],
        l4 in 0..200u16, end in prop_oneof![0..200u16, Just(u16::MAX)]
    ) {
        let mut parsed = parse(&if v6 { udp_v6(9, &[]) } else { udp_v4(9, &[]) }).unwrap();
        (parsed.l3, parsed.l4, parsed.end) = (l3, l4, end);
        let old = bytes.clone();
        match write_icmp_error(&mut bytes, start..start + len, &parsed, &order(TOO_BIG, parsed.family)) {
            Some(range) => prop_assert!(range.start < range.end && range.end <= bytes.len()),
            None => prop_assert_eq!(bytes, old),
        }
    }

    #[test]
    fn what_is_written_is_read_back(kind in kinds(), v6: bool) {
        let frame = if v6 { udp_v6(9, b"data") } else { udp_v4(9, b"data") };
        match answered(&frame, kind) {
            Some(error) => {
                let read = icmp_error(&error, &parse(&error).unwrap()).unwrap().unwrap();
                let clamped = match kind {
                    IcmpErrorKind::TooBig { mtu } if !v6 => IcmpErrorKind::TooBig { mtu: mtu.min(65535) },
                    kind => kind,
                };
                prop_assert_eq!(read.kind, clamped);
                prop_assert_eq!(read.quoted.ports, Some((31337, 53)));
            }
            None => {
                let unsayable = match kind {
                    IcmpErrorKind::Unreachable { code } => code == 4,
                    IcmpErrorKind::ParameterProblem { pointer, .. } => pointer > 255,
                    _ => false,
                };
                prop_assert!(!v6 && unsayable);
            }
        }
    }
}

fn kinds() -> impl Strategy<Value = IcmpErrorKind> {
    prop_oneof![
        (0..16u8).prop_map(|code| IcmpErrorKind::Unreachable { code }),
        prop_oneof![any::<u32>(), 0..70_000u32].prop_map(|mtu| IcmpErrorKind::TooBig { mtu }),
        any::<u8>().prop_map(|code| IcmpErrorKind::TimeExceeded { code }),
        (any::<u8>(), 0..300u32)
            .prop_map(|(code, pointer)| IcmpErrorKind::ParameterProblem { code, pointer }),
    ]
}

fn changed(frame: &[u8], changes: &[(usize, u8)]) -> Vec<u8> {
    let mut frame = frame.to_vec();
    changes.iter().for_each(|&(at, byte)| frame[at] = byte);
    if frame[12..15] == [8, 0, 0x45] {
        frame[24..26].fill(0);
        let sum = oracle::checksum(&frame[14..34]);
        frame[24..26].copy_from_slice(&sum.to_be_bytes());
    }
    frame
}

#[test]
fn may_answer_icmp_error_or_unknown_type_is_false() {
    let kind = |protocol: u8, kind: u8| {
        let frame = match protocol {
            1 => changed(&udp_v4(9, &[0; 40]), &[(23, 1), (34, kind)]),
            _ => changed(&udp_v6(9, &[0; 40]), &[(20, 58), (54, kind)]),
        };
        answered(&frame, TOO_BIG).is_some()
    };
    for query in [0, 8, 13, 14] {
        assert!(kind(1, query), "{query}");
    }
    for error in [3, 4, 5, 11, 12, 1, 200, 255] {
        assert!(!kind(1, error), "{error}");
    }
    for query in [128, 129, 135, 255] {
        assert!(kind(58, query), "{query}");
    }
    for error in [0, 1, 2, 3, 4, 100, 127, 137] {
        assert!(!kind(58, error), "{error}");
    }
}

#[test]
fn may_answer_icmp_without_type_is_false() {
    let frame = changed(&udp_v4(9, &[0; 8]), &[(17, 20), (23, 1)]);
    assert_eq!(answered(&frame, TOO_BIG), None);
    let frame = changed(&udp_v6(9, &[0; 8]), &[(19, 0), (20, 58), (54, 128)]);
    assert_eq!(answered(&frame, TOO_BIG), None);
}

#[test]
fn may_answer_depends_on_the_fragment_offset() {
    let frame = udp_v4(9, &[0; 40]);
    assert!(answered(&changed(&frame, &[(20, 0x20)]), TOO_BIG).is_some());
    assert_eq!(answered(&changed(&frame, &[(20, 0x20), (21, 1)]), TOO_BIG), None);
    assert_eq!(answered(&changed(&frame, &[(20, 0), (21, 1)]), TOO_BIG), None);
    let frame = changed(&udp_v6(9, &[0; 40]), &[(20, 44), (54, 17), (56, 0), (57, 1)]);
    assert!(answered(&frame, TOO_BIG).is_some());
    assert_eq!(answered(&changed(&frame, &[(57, 8)]), TOO_BIG), None);
}

#[test]
fn may_answer_multicast_or_unspecified_address_is_false() {
    let frame = udp_v4(9, &[0; 40]);
    for (at, byte) in [(26, 0), (26, 127), (26, 224), (26, 239), (26, 240), (26, 255), (30, 224), (30, 255)] {
        assert_eq!(answered(&changed(&frame, &[(at, byte)]), TOO_BIG), None, "{at} {byte}");
    }
    for (at, byte) in [(26, 1), (26, 126), (26, 128), (26, 223), (30, 10)] {
        assert!(answered(&changed(&frame, &[(at, byte)]), TOO_BIG).is_some(), "{at} {byte}");
    }
    let frame = udp_v6(9, &[0; 40]);
    for (at, byte) in [(22, 0xff), (38, 0xff)] {
        assert_eq!(answered(&changed(&frame, &[(at, byte)]), TOO_BIG), None, "{at} {byte}");
    }
    for low in [0, 1] {
        let mut frame = frame.clone();
        frame[22..38].copy_from_slice(&[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, low]);
        assert_eq!(answered(&frame, TOO_BIG), None, "{low}");
        frame[30] = 1;
        assert!(answered(&frame, TOO_BIG).is_some());
    }
}

#[test]
fn may_answer_group_mac_address_is_false() {
    for frame in [udp_v4(9, &[0; 40]), udp_v6(9, &[0; 40])] {
        for (at, byte) in [(0, 0xff), (0, 3), (6, 3)] {
            assert_eq!(answered(&changed(&frame, &[(at, byte)]), TOO_BIG), None, "{at} {byte}");
        }
    }
}

#[test]
fn write_icmp_error_rejects_a_source_of_the_other_family() {
    let mut frame = [vec![0; 64], udp_v4(9, &[])].concat();
    let parsed = parse(&frame[64..]).unwrap();
    let (place, order) = (64..frame.len(), order(TOO_BIG, Family::V6));
    assert_eq!(write_icmp_error(&mut frame, place, &parsed, &order), None);
}

#[test]
fn write_icmp_error_rejects_kinds_that_the_family_lacks() {
    let frame = udp_v4(9, &[]);
    // This code needs an MTU, which `Unreachable` does not have.
    assert_eq!(answered(&frame, IcmpErrorKind::Unreachable { code: 4 }), None);
    assert_eq!(answered(&frame, IcmpErrorKind::ParameterProblem { code: 0, pointer: 256 }), None);
    assert!(answered(&udp_v6(9, &[]), IcmpErrorKind::Unreachable { code: 4 }).is_some());
}

// Promise: icmp-rate-limits
#[test]
fn icmp_error_is_limited_to_576_or_1280_bytes() {
    let error = answered(&udp_v4(9, &[7; 1400]), TOO_BIG).unwrap();
    assert_eq!(error.len(), 14 + 576);
    let error = answered(&udp_v6(9, &[7; 1400]), TOO_BIG).unwrap();
    assert_eq!(error.len(), 14 + 1280);
}

#[test]
fn icmp_error_tos_has_internetwork_precedence_without_ecn() {
    let error = answered(&changed(&udp_v4(9, &[0; 9]), &[(15, 0x3f)]), TOO_BIG).unwrap();
    assert_eq!(error[15], 0xdc);
    assert_eq!(error[14 + 28 + 1], 0x3f); // The quote keeps its TOS.
}

#[test]
fn may_answer_wrong_header_checksum_is_false() {
    let mut frame = udp_v4(9, b"data");
    assert!(answered(&frame, TOO_BIG).is_some());
    frame[24] ^= 1;
    assert!(answered(&frame, TOO_BIG).is_none());
}
