//! Tests of encapsulation. The tests parse the resulting frames with etherparse.

use etherparse::{Ethernet2Header, IpHeaders, Ipv4Header, SlicedPacket, VlanSlice};
use forwarder::*;
use packet::{Encapsulation, Mac};

use crate::bed::*;

const KINDS: [(Encapsulation, u8); 4] = [
    (Encapsulation::Gre, 47),
    (Encapsulation::Ipip, 4),
    (Encapsulation::Gue { udp_checksum: false }, 17),
    (Encapsulation::L2, 0),
];

/// Returns the expected inner packet: the TTL or hop limit is decremented, the header checksum is
/// updated, and all other bytes are unchanged.
fn expected_inner(frame: &[u8]) -> Vec<u8> {
    let mut inner = frame[14..].to_vec();
    if inner[0] >> 4 == 4 {
        let (mut header, rest) = Ipv4Header::from_slice(&inner).unwrap();
        header.time_to_live -= 1;
        header.header_checksum = header.calc_header_checksum();
        let mut bytes = header.to_bytes().to_vec();
        bytes.extend(rest);
        inner = bytes;
    } else {
        inner[7] -= 1;
    }
    inner
}

#[test]
fn every_encapsulation_preserves_the_inner_packet() {
    for (kind, _) in KINDS {
        for (backend, outer_v4) in [("198.18.1.1", true), ("2001:db8:18::1", false)] {
            for frame in [tcp("198.51.100.7", 9, VIP4, 80, "S"), tcp("2001:db8:1::7", 9, VIP6, 80, "S")] {
                let slots = vec![slot("b1", backend, kind)];
                let encap_overhead = slots[0].encap_overhead();
                let mut bed = Bed::new(parts(slots, &[1]));
                let (verdict, out) = bed.send(encap_overhead, &frame);
                assert_eq!(verdict, Verdict::Tx);
                assert_eq!((&out[..6], &out[6..12]), (&HOP[..], &OURS[..]));
                let inner = expected_inner(&frame);
                assert_eq!(&out[14 + encap_overhead..], &inner[..], "{kind:?} to {backend}");
                let ethertype = u16::from_be_bytes([out[12], out[13]]);
                let inner_v4 = frame[14] >> 4 == 4;
                let outer_is_v4 = if encap_overhead == 0 { inner_v4 } else { outer_v4 };
                assert_eq!(ethertype, if outer_is_v4 { 0x0800 } else { 0x86dd });
                if encap_overhead > 0 {
                    let (headers, payload) = IpHeaders::from_slice(&out[14..]).unwrap();
                    if let Some((v4, _)) = headers.ipv4() {
                        assert_eq!(v4.calc_header_checksum(), v4.header_checksum);
                        assert_eq!(v4.destination, [198, 18, 1, 1]);
                    }
                    let expected = match (kind, inner_v4) {
                        (Encapsulation::Gre, _) => 47,
                        (Encapsulation::Ipip, true) => 4,
                        (Encapsulation::Ipip, false) => 41,
                        _ => 17,
                    };
                    assert_eq!(payload.ip_number.0, expected);
                }
                assert_eq!(bed.counters.head_room_mismatch.read(), 0);
                assert_eq!(Totals::from(&*bed.counters).left, 0, "the driver counts sent packets");
            }
        }
    }
}

#[test]
fn vlan_tags_stay_on_the_frame() {
    let plain = udp("198.51.100.7", 9, VIP4, 443, b"x");
    let single = tagged(&plain, 0x8100, 0x2005);
    let double = tagged(&single, 0x88a8, 100);
    for (frame, ids) in [(single, vec![5]), (double, vec![100, 5])] {
        let mut bed = Bed::new(parts(gre_slots(1), &[1]));
        let (verdict, out) = bed.send(24, &frame);
        assert_eq!(verdict, Verdict::Tx);
        let sliced = SlicedPacket::from_ethernet(&out).unwrap();
        let tags: Vec<u16> = match sliced.vlan().unwrap() {
            VlanSlice::SingleVlan(tag) => vec![tag.vlan_identifier().value()],
            VlanSlice::DoubleVlan(tags) => {
                vec![tags.outer.vlan_identifier().value(), tags.inner.vlan_identifier().value()]
            }
        };
        assert_eq!(tags, ids);
        assert_eq!(out.len(), frame.len() + 24);
    }
}

#[test]
fn packet_with_too_little_head_room_is_moved_and_counted() {
    for head in [0, 2, 13, 20, 23, 24, 25, 44, 52, 63] {
        let frame = tagged(&tcp("198.51.100.7", 9, VIP4, 80, "S"), 0x8100, 7);
        let mut exact = Bed::new(parts(gre_slots(1), &[1]));
        let (_, wanted) = exact.send(24, &frame);
        let mut bed = Bed::new(parts(gre_slots(1), &[1]));
        let (verdict, out) = bed.send(head, &frame);
        assert_eq!((verdict, out), (Verdict::Tx, wanted), "headroom {head}");
        assert_eq!(bed.counters.head_room_mismatch.read(), u64::from(head < 24), "headroom {head}");
    }
}

#[test]
fn ethernet_padding_does_not_travel() {
    let mut frame = udp("198.51.100.7", 9, VIP4, 443, b"");
    let ip_len = frame.len() - 14;
    frame.resize(60, 0xaa);
    let mut bed = Bed::new(parts(gre_slots(1), &[1]));
    let (_, out) = bed.send(24, &frame);
    assert_eq!(out.len(), 14 + 24 + ip_len);
}

#[test]
fn reflect_answers_known_gateways_only() {
    let mut reflecting = parts(gre_slots(1), &[1]);
    reflecting.next_hop = NextHopMode::Reflect { gateways: [Mac(ROUTER)].into(), tagging: Box::default() };
    let mut bed = Bed::new(reflecting);
    let frame = tcp("198.51.100.7", 9, VIP4, 80, "S");
    let (verdict, out) = bed.send(24, &frame);
    assert_eq!((verdict, &out[..12]), (Verdict::Tx, &[&ROUTER[..], &OURS[..]].concat()[..]));
    let mut stranger = frame.clone();
    stranger[6] = 0x0a;
    assert_eq!(bed.send(24, &stranger).0, Verdict::Drop(DropReason::UnknownGateway));
}

// Promise: icmp-rate-limits
#[test]
fn icmp_echo_is_answered_in_place_up_to_the_rate() {
    for (source, vip) in [("198.51.100.7", VIP4), ("2001:db8:1::7", VIP6)] {
        let mut frame = Vec::new();
        let link = etherparse::PacketBuilder::ethernet2(ROUTER, OURS);
        match (ip(source), ip(vip)) {
            (std::net::IpAddr::V4(s), std::net::IpAddr::V4(d)) => {
                link.ipv4(s.octets(), d.octets(), 9)
                    .icmpv4_echo_request(1, 2)
                    .write(&mut frame, b"ping")
                    .unwrap();
            }
            (std::net::IpAddr::V6(s), std::net::IpAddr::V6(d)) => {
                link.ipv6(s.octets(), d.octets(), 9)
                    .icmpv6_echo_request(1, 2)
                    .write(&mut frame, b"ping")
                    .unwrap();
            }
            _ => panic!("addresses of different families"),
        }
        frame.extend([0xaa; 20]); // Padding after the IP packet, which the reply does not contain.
        let mut bed = Bed::new(parts(gre_slots(1), &[1]));
        let (verdict, out) = bed.send(24, &frame);
        assert_eq!(verdict, Verdict::Reply);
        let (header, _) = Ethernet2Header::from_slice(&out).unwrap();
        assert_eq!((header.destination, header.source), (ROUTER, OURS));
        let mut wanted = Vec::new();
        let link = etherparse::PacketBuilder::ethernet2(OURS, ROUTER);
        match (ip(source), ip(vip)) {
            (std::net::IpAddr::V4(s), std::net::IpAddr::V4(d)) => {
                link.ipv4(d.octets(), s.octets(), 64)
                    .icmpv4_echo_reply(1, 2)
                    .write(&mut wanted, b"ping")
                    .unwrap();
            }
            (std::net::IpAddr::V6(s), std::net::IpAddr::V6(d)) => {
                link.ipv6(d.octets(), s.octets(), 64)
                    .icmpv6_echo_reply(1, 2)
                    .write(&mut wanted, b"ping")
                    .unwrap();
            }
            _ => panic!("addresses of different families"),
        }
        assert_eq!(out, wanted);
        let verdicts: Vec<Verdict> = (0..150).map(|_| bed.send(24, &frame).0).collect();
        assert_eq!(verdicts.iter().filter(|v| **v == Verdict::Reply).count(), 99);
        assert_eq!(bed.counters.drops(DropReason::ReplyRate), 51);
    }
}
