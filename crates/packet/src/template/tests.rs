use std::collections::HashSet;

use etherparse::{SlicedPacket, TransportSlice};
use proptest::collection::vec;
use proptest::prelude::*;

use super::*;
use crate::{decapsulate, oracle};

const KINDS: [Encapsulation; 4] = [
    Encapsulation::Gre,
    Encapsulation::Ipip,
    Encapsulation::Gue { udp_checksum: false },
    Encapsulation::Gue { udp_checksum: true },
];
const FAMILIES: [Family; 2] = [Family::V4, Family::V6];

fn outer(family: Family) -> Outer {
    match family {
        Family::V4 => {
            Outer::V4 { source: "198.18.0.1".parse().unwrap(), destination: "198.18.0.2".parse().unwrap() }
        }
        Family::V6 => {
            Outer::V6 { source: "2001:db8::1".parse().unwrap(), destination: "2001:db8::2".parse().unwrap() }
        }
    }
}

fn inner_packet(family: Family, data: &[u8]) -> Vec<u8> {
    use etherparse::PacketBuilder;
    let mut packet = Vec::new();
    match family {
        Family::V4 => PacketBuilder::ipv4([192, 0, 2, 9], [198, 51, 100, 1], 63)
            .udp(1, 2)
            .write(&mut packet, data)
            .unwrap(),
        Family::V6 => {
            PacketBuilder::ipv6([0x20; 16], [0x21; 16], 63).udp(1, 2).write(&mut packet, data).unwrap()
        }
    }
    packet
}

/// Writes only the headers, for an inner packet of 40 bytes with TOS 0x28, hash 0x0123456789abcdef
/// and identification 0x0102.
fn written(template: &Template) -> Vec<u8> {
    let mut out = vec![0xee; template.len()];
    template
        .write(
            &mut out,
            &Inner { len: 40, tos: 0x28, flow_hash: 0x0123_4567_89ab_cdef, identification: 0x0102 },
        )
        .unwrap();
    out
}

#[test]
fn gre_over_ipv4_is_these_24_bytes() {
    let template = Template::new(Encapsulation::Gre, outer(Family::V4), Family::V4, true);
    // The header words 4528, 0040, 0000, 4000, 402f, c612, 0001, c612 and 0002 add up to 251be,
    // which folds to 51c0. The complement is ae3f.
    let expected = [
        0x45, 0x28, 0x00, 0x40, 0x00, 0x00, 0x40, 0x00, 0x40, 0x2f, 0xae, 0x3f, 198, 18, 0, 1, 198, 18, 0, 2,
        0x00, 0x00, 0x08, 0x00,
    ];
    assert_eq!(written(&template), expected);
    let redirected = written(&template.with_recursion(1));
    assert_eq!((&redirected[..20], &redirected[20..]), (&expected[..20], &[0x01, 0x00, 0x08, 0x00][..]));
}

#[test]
fn ipip_over_ipv4_without_df_is_these_20_bytes() {
    let template = Template::new(Encapsulation::Ipip, outer(Family::V4), Family::V6, false);
    // The header words 4528, 003c, 0102, 0000, 4029, c612, 0001, c612 and 0002 add up to 212b6,
    // which folds to 12b8. The complement is ed47.
    let expected = [
        0x45, 0x28, 0x00, 0x3c, 0x01, 0x02, 0x00, 0x00, 0x40, 0x29, 0xed, 0x47, 198, 18, 0, 1, 198, 18, 0, 2,
    ];
    assert_eq!(written(&template), expected);
}

#[test]
fn gue_over_ipv6_is_these_52_bytes() {
    let kind = Encapsulation::Gue { udp_checksum: false };
    let template = Template::new(kind, outer(Family::V6), Family::V4, true);
    let expected = [
        0x62, 0x87, 0x89, 0xab, 0x00, 0x34, 0x11,
        0x40, // class 0x28, label 0x789ab, 52 bytes, UDP, 64 hops
        0x20, 0x01, 0x0d, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, //
        0x20, 0x01, 0x0d, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2, //
        0xcd, 0xef, 0x17, 0xc0, 0x00, 0x34, 0x00, 0x00, // ports 52719 and 6080, 52 bytes
        0x00, 0x04, 0x00, 0x00,
    ];
    assert_eq!(written(&template), expected);
}

#[test]
fn l2_writes_nothing_and_keeps_the_inner_ethernet_type() {
    for (inner, ethertype) in [(Family::V4, 0x0800), (Family::V6, 0x86dd)] {
        let template = Template::new(Encapsulation::L2, outer(Family::V4), inner, true);
        assert_eq!((template.len(), template.ethertype(), written(&template)), (0, ethertype, vec![]));
        assert_eq!(encap_overhead(&Encapsulation::L2, Family::V4), 0);
    }
}

#[test]
fn encap_overhead_equals_the_bytes_written() {
    let expected = [[24, 44], [20, 40], [32, 52], [32, 52]];
    for (kind, row) in KINDS.into_iter().zip(expected) {
        for (family, bytes) in FAMILIES.into_iter().zip(row) {
            assert_eq!(encap_overhead(&kind, family), bytes);
            let template = Template::new(kind, outer(family), Family::V4, true);
            assert_eq!((template.len(), template.ethertype()), (bytes.into(), family.ethertype()));
        }
    }
}

/// Parses `packet` with `etherparse` and checks the fields of its IP header. Returns the protocol
/// and the offset of the payload.
fn read_back(packet: &[u8], tos: u8) -> (u8, usize) {
    let sliced = SlicedPacket::from_ip(packet).unwrap();
    let payload = sliced.ip_payload().unwrap();
    let at = payload.payload.as_ptr() as usize - packet.as_ptr() as usize;
    match sliced.net.as_ref().unwrap() {
        etherparse::NetSlice::Ipv4(ip) => {
            let h = ip.header();
            assert_eq!(oracle::checksum(h.slice()), 0);
            assert_eq!((h.dcp().value() << 2 | h.ecn().value(), h.ttl()), (tos, 64));
            assert_eq!(usize::from(h.total_len()), packet.len());
        }
        etherparse::NetSlice::Ipv6(ip) => {
            assert_eq!((ip.header().traffic_class(), ip.header().hop_limit()), (tos, 64));
            assert_eq!(usize::from(ip.header().payload_length()) + 40, packet.len());
        }
        etherparse::NetSlice::Arp(_) => unreachable!(),
    }
    (payload.ip_number.0, at)
}

fn read_back_udp(packet: &[u8], family: Family, checked: bool) {
    let sliced = SlicedPacket::from_ip(packet).unwrap();
    let Some(TransportSlice::Udp(udp)) = sliced.transport else { panic!("no UDP") };
    assert!(udp.source_port() >= 49_152 && udp.destination_port() == 6080);
    let header = usize::from(family.header_len());
    assert_eq!(usize::from(udp.length()), packet.len() - header);
    if checked {
        let addresses = if family == Family::V4 { &packet[12..20] } else { &packet[8..40] };
        let [hi, lo] = udp.length().to_be_bytes();
        let covered = [addresses, &[0, 17, hi, lo], &packet[header..]].concat();
        assert_ne!(udp.checksum(), 0);
        assert_eq!(oracle::checksum(&covered), 0);
    } else {
        assert_eq!(udp.checksum(), 0);
    }
}

proptest! {
    #[test]
    fn template_headers_are_read_back_for_every_combination(
        tos: u8, flow_hash: u64, id: u16, dont_fragment: bool, recursion in 0..8u8,
        data in vec(any::<u8>(), 0..99), pick: bool
    ) {
        for (kind, outer_family, inner) in mixes() {
            let mut template =
                Template::new(kind, outer(outer_family), inner, dont_fragment).with_recursion(recursion);
            if pick {
                template = with_source(template, outer_family).unwrap();
            }
            let packet = inner_packet(inner, &data);
            let mut whole = vec![0xee; template.len()];
            let inner_len = u16::try_from(packet.len()).unwrap();
            template.write(&mut whole, &Inner { len: inner_len, tos, flow_hash, identification: id }).unwrap();
            whole.extend(&packet);
            prop_assert!(template.finish_checksum(&mut whole));
            let (protocol, at) = read_back(&whole, tos);
            let shim = template.len() - at;
            let proto = if inner == Family::V4 { 4 } else { 41 };
            match kind {
                Encapsulation::Gre => {
                    let [hi, lo] = inner.ethertype().to_be_bytes();
                    prop_assert_eq!((protocol, &whole[at..at + shim]), (47, &[recursion, 0, hi, lo][..]));
                }
                Encapsulation::Ipip => prop_assert_eq!((protocol, shim), (proto, 0)),
                Encapsulation::Gue { udp_checksum } => {
                    prop_assert_eq!((protocol, &whole[at + 8..at + 12]), (17, &[0, proto, 0, 0][..]));
                    read_back_udp(&whole, outer_family, udp_checksum);
                }
                Encapsulation::L2 => unreachable!(),
            }
            let seen = decapsulate(&whole).unwrap();
            prop_assert_eq!((seen.kind, seen.family), (kind, inner));
            prop_assert_eq!(seen.recursion, if kind == Encapsulation::Gre { recursion } else { 0 });
            prop_assert_eq!(&whole[seen.inner..seen.end], &packet[..]);
            let Outer::V4 { source, destination } = outer(Family::V4) else { unreachable!() };
            if outer_family == Family::V4 {
                let expected = if pick { picked(Family::V4, flow_hash) } else { source.into() };
                prop_assert_eq!((seen.source, seen.destination), (expected, IpAddr::from(destination)));
                let df = [if dont_fragment { 0x40 } else { 0 }, 0];
                let [hi, lo] = if dont_fragment { [0, 0] } else { id.to_be_bytes() };
                prop_assert_eq!(&whole[4..8], &[hi, lo, df[0], df[1]][..]);
            } else if pick {
                prop_assert_eq!(seen.source, picked(Family::V6, flow_hash));
            }
        }
    }

    #[test]
    fn template_write_rejects_a_buffer_of_wrong_length(len in 0..60usize, mix in 0..16usize) {
        let (kind, outer_family, inner) = mixes()[mix];
        let template = Template::new(kind, outer(outer_family), inner, true);
        let mut out = vec![0xee; len];
        let result = template.write(&mut out, &Inner { len: 40, tos: 0, flow_hash: 7, identification: 0 });
        if len == template.len() {
            prop_assert_eq!(result, Ok(()));
        } else {
            let expected = u8::try_from(template.len()).unwrap();
            prop_assert_eq!(result, Err(WriteError::Size { found: len, expected }));
            prop_assert!(out.iter().all(|&byte| byte == 0xee));
        }
    }
}

fn mixes() -> Vec<(Encapsulation, Family, Family)> {
    let pairs = FAMILIES.into_iter().flat_map(|outer| FAMILIES.map(|inner| (outer, inner)));
    pairs.flat_map(|(outer, inner)| KINDS.map(|kind| (kind, outer, inner))).collect()
}

fn prefix(family: Family) -> (IpAddr, u8) {
    match family {
        Family::V4 => ("198.18.8.0".parse().unwrap(), 24),
        Family::V6 => ("2001:db8:8::".parse().unwrap(), 64),
    }
}

fn with_source(template: Template, family: Family) -> Option<Template> {
    let (network, length) = prefix(family);
    template.with_source(network, length)
}

fn picked(family: Family, flow_hash: u64) -> IpAddr {
    let (network, length) = prefix(family);
    SourcePrefix::new(network, length).unwrap().pick(flow_hash)
}

#[test]
fn template_write_accepts_the_longest_inner_packet() {
    for (kind, outer_family, inner) in mixes() {
        let template = Template::new(kind, outer(outer_family), inner, true);
        let counted = if outer_family == Family::V4 { template.len() } else { template.len() - 40 };
        let longest = u16::try_from(65_535 - counted).unwrap();
        let mut out = vec![0xee; template.len()];
        assert_eq!(
            template.write(&mut out, &Inner { len: longest, tos: 0, flow_hash: 7, identification: 0 }),
            Ok(())
        );
        let Some(more) = longest.checked_add(1) else { continue };
        let mut out = vec![0xee; template.len()];
        let encap_overhead = u8::try_from(template.len()).unwrap();
        let refused = Err(WriteError::TooLong { inner_len: more, encap_overhead });
        assert_eq!(
            template.write(&mut out, &Inner { len: more, tos: 0, flow_hash: 7, identification: 0 }),
            refused
        );
        assert!(out.iter().all(|&byte| byte == 0xee));
    }
}

#[test]
fn with_source_rejects_the_other_family_and_l2() {
    for family in FAMILIES {
        let template = Template::new(Encapsulation::Gre, outer(family), Family::V4, true);
        for other in FAMILIES {
            assert_eq!(with_source(template, other).is_some(), family == other);
        }
        let l2 = Template::new(Encapsulation::L2, outer(family), Family::V4, true);
        assert_eq!(with_source(l2, family), None);
    }
}

#[test]
fn flow_hashes_spread_over_ports_and_labels() {
    let kind = Encapsulation::Gue { udp_checksum: false };
    let template = Template::new(kind, outer(Family::V6), Family::V4, true);
    let (mut ports, mut labels) = (HashSet::new(), HashSet::new());
    for flow in 0..1000u64 {
        let mut out = [0; 52];
        template
            .write(
                &mut out,
                &Inner {
                    len: 40,
                    tos: 0,
                    flow_hash: flow.wrapping_mul(0x9e37_79b9_7f4a_7c15),
                    identification: 0,
                },
            )
            .unwrap();
        ports.insert([out[40], out[41]]);
        labels.insert([out[1], out[2], out[3]]);
    }
    assert!(ports.len() > 900 && labels.len() > 900, "{} ports, {} labels", ports.len(), labels.len());
}

#[test]
fn finish_checksum_sends_zero_as_all_ones() {
    let kind = Encapsulation::Gue { udp_checksum: true };
    let template = Template::new(kind, outer(Family::V6), Family::V4, true);
    let mut packet = vec![0; 54];
    template.write(&mut packet[..52], &Inner { len: 2, tos: 0, flow_hash: 7, identification: 0 }).unwrap();
    assert!(template.finish_checksum(&mut packet));
    let sum = [packet[46], packet[47]];
    packet[52..].copy_from_slice(&sum); // The last word makes the sum 0xffff.
    assert!(template.finish_checksum(&mut packet));
    assert_eq!(packet[46..48], [0xff, 0xff]);
}

#[test]
fn finish_checksum_rejects_another_length() {
    let kind = Encapsulation::Gue { udp_checksum: true };
    for family in FAMILIES {
        let template = Template::new(kind, outer(family), Family::V4, true);
        let mut packet = vec![0; template.len() + 40];
        let len = template.len();
        template
            .write(&mut packet[..len], &Inner { len: 40, tos: 0, flow_hash: 7, identification: 0 })
            .unwrap();
        for cut in 0..packet.len() {
            assert!(!template.finish_checksum(&mut packet[..cut]));
        }
        assert!(template.finish_checksum(&mut packet));
    }
}

#[test]
fn write_errors_name_the_lengths() {
    let size = WriteError::Size { found: 3, expected: 24 };
    assert_eq!(size.to_string(), "buffer has 3 bytes, but the outer headers need 24");
    let long = WriteError::TooLong { inner_len: 65_535, encap_overhead: 24 };
    assert_eq!(
        long.to_string(),
        "inner packet of 65535 bytes and headers of 24 bytes exceed the maximum IP length"
    );
}

proptest! {
    /// The reference computes the outer destination bit by bit, from the address of the other
    /// cluster and the inner destination.
    #[test]
    fn complete_for_another_cluster_matches_slow_reference(
        kept4 in 0..=32usize, kept6 in 0..=128usize, before in 0..9u8, hash: u64, pick: bool,
        data in vec(any::<u8>(), 0..40)
    ) {
        for (family, kept) in [(Family::V4, kept4), (Family::V6, kept6)] {
            let mut template = Template::new(Encapsulation::Gre, outer(family), family, true);
            if pick {
                template = with_source(template, family).unwrap();
            }
            let template = template.to_cluster(u8::try_from(kept).unwrap()).unwrap();
            prop_assert_eq!((template.recursion(), usize::from(template.kept())), (1, kept));
            let inner = inner_packet(family, &data);
            let mut whole = vec![0xee; template.len()];
            template.write(&mut whole, &Inner { len: u16::try_from(inner.len()).unwrap(), tos: 0, flow_hash: hash, identification: 7 }).unwrap();
            let plain = whole.clone();
            whole.extend(&inner);
            prop_assert!(template.complete(&mut whole, before));
            prop_assert_eq!(read_back(&whole, 0).0, 47);
            let digits = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:08b}")).collect::<String>();
            let (at, end, header) = if family == Family::V4 { (16, 20, 20) } else { (24, 40, 40) };
            let bits = (end - at) * 8;
            let (theirs, ours) = (digits(&plain[at..end]), digits(&inner[at..end]));
            let expected = format!("{}{}", &theirs[..bits - kept], &ours[bits - kept..]);
            prop_assert_eq!(digits(&whole[at..end]), expected);
            prop_assert_eq!(whole[header], (before + 1).min(7));
            prop_assert_eq!(&whole[header + 1..header + 4], &plain[header + 1..]);
            prop_assert_eq!(&whole[template.len()..], &inner);
        }
    }
}

#[test]
fn to_cluster_rejects_other_encapsulations_and_families() {
    for (kind, outer_family, inner) in mixes() {
        let template = Template::new(kind, outer(outer_family), inner, true);
        let fits = kind == Encapsulation::Gre && outer_family == inner;
        let most: u8 = if inner == Family::V4 { 32 } else { 128 };
        assert_eq!(template.to_cluster(most).is_some(), fits);
        assert!(template.to_cluster(most + 1).is_none());
    }
    let template =
        Template::new(Encapsulation::Gre, outer(Family::V4), Family::V4, true).to_cluster(8).unwrap();
    for len in 0..24 + 20 {
        let mut cut = vec![0x45; len];
        assert!(!template.complete(&mut cut, 0), "{len}");
    }
}
