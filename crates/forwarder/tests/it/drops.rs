//! One test for each drop reason.

use forwarder::*;

use crate::bed::*;

fn dropped(bed: &mut Bed, frame: &[u8], reason: DropReason) {
    let before: Vec<u64> = DropReason::ALL.iter().map(|r| bed.counters.drops(*r)).collect();
    assert_eq!(bed.send(24, frame).0, Verdict::Drop(reason));
    for (known, before) in DropReason::ALL.iter().zip(before) {
        let moved = u64::from(*known == reason);
        assert_eq!(bed.counters.drops(*known), before + moved, "{}", known.name());
    }
}

// Promise: no-reflection
#[test]
fn each_reason_has_its_packet() {
    let mut bed = Bed::new(parts(gre_slots(2), &[1, 1]));
    let good = tcp("198.51.100.7", 9, VIP4, 80, "S");
    dropped(&mut bed, &good[..30], DropReason::Malformed);
    dropped(&mut bed, &[], DropReason::Malformed);
    let mut arp = good.clone();
    arp[12..14].copy_from_slice(&[0x08, 0x06]);
    dropped(&mut bed, &arp, DropReason::NotIp);
    dropped(&mut bed, &tcp("198.51.100.7", 9, VIP4, 81, "S"), DropReason::NoVip);
    dropped(&mut bed, &tcp("198.51.100.7", 9, "203.0.113.99", 80, "S"), DropReason::NoVip);
    dropped(&mut bed, &udp("198.51.100.7", 9, VIP4, 80, b""), DropReason::NoVip);
    let from_vip = udp(VIP4, 9, VIP4, 443, b"an error");
    dropped(&mut bed, &from_vip, DropReason::FromVip);
    dropped(&mut bed, &from_vip, DropReason::FromVip); // The packet creates no flow.
    dropped(&mut bed, &udp(VIP6, 9, VIP6, 443, b"an error"), DropReason::FromVip);
    let mut timestamp = Vec::new();
    let ask =
        etherparse::PacketBuilder::ethernet2(ROUTER, OURS).ipv4([198, 51, 100, 7], [203, 0, 113, 10], 9);
    ask.icmpv4_raw(13, 0, [0; 4]).write(&mut timestamp, &[0; 12]).unwrap();
    dropped(&mut bed, &timestamp, DropReason::Icmp);
    let mut last = good.clone();
    last[14 + 8] = 1;
    let mut nameless = parts(gre_slots(2), &[1, 1]);
    nameless.own.clear();
    dropped(&mut Bed::new(nameless), &last, DropReason::Ttl);
    let mut large = udp("198.51.100.7", 9, VIP4, 443, &[0; 1460]);
    large[14 + 6] = 0; // DF
    dropped(&mut bed, &large, DropReason::TooBig);
}

/// For ICMP packets, the decision of the `where` command matches the verdict of the pipeline.
#[test]
fn what_is_decided_of_icmp_is_what_is_done_with_it() {
    let mut bed = Bed::new(parts(gre_slots(1), &[1]));
    let snapshot = Snapshot::new(parts(gre_slots(1), &[1])).unwrap();
    let decided = |destination: &str, protocol: u8| {
        let source = if destination.contains(':') { "2001:db8::7" } else { "198.51.100.7" };
        snapshot.decide(&Flow::new((ip(source), 0), (ip(destination), 0), protocol).unwrap())
    };
    let echo = |icmp: etherparse::Icmpv4Type, destination: [u8; 4]| {
        let mut frame = Vec::new();
        let builder =
            etherparse::PacketBuilder::ethernet2(ROUTER, OURS).ipv4([198, 51, 100, 7], destination, 9);
        builder.icmpv4(icmp).write(&mut frame, b"x").unwrap();
        frame
    };
    let header = etherparse::IcmpEchoHeader { id: 1, seq: 1 };
    let request = etherparse::Icmpv4Type::EchoRequest(header);
    assert_eq!(decided(VIP4, 1), Decision::Icmp { echo: true });
    assert_eq!(bed.send(24, &echo(request.clone(), [203, 0, 113, 10])).0, Verdict::Reply);
    let answer = etherparse::Icmpv4Type::EchoReply(header);
    assert_eq!(bed.send(24, &echo(answer, [203, 0, 113, 10])).0, Verdict::Drop(DropReason::Icmp));
    assert_eq!(decided("203.0.113.99", 1), Decision::NoVip);
    assert_eq!(bed.send(24, &echo(request.clone(), [203, 0, 113, 99])).0, Verdict::Drop(DropReason::NoVip));
    // The IPv4 packet contains an ICMPv6 message.
    let mut strange = echo(request, [203, 0, 113, 10]);
    strange[14 + 9] = 58;
    let mut ip4 = etherparse::Ipv4Header::from_slice(&strange[14..]).unwrap().0;
    ip4.header_checksum = ip4.calc_header_checksum();
    strange[14..34].copy_from_slice(&ip4.to_bytes());
    assert_eq!(decided(VIP4, 58), Decision::Icmp { echo: false });
    assert_eq!(bed.send(24, &strange).0, Verdict::Drop(DropReason::Icmp));
    assert_eq!(decided(VIP6, 58), Decision::Icmp { echo: true });
    assert_eq!(decided(VIP6, 1), Decision::Icmp { echo: false });
}

#[test]
fn a_packet_that_just_fits_the_mtu_is_sent() {
    let mut bed = Bed::new(parts(gre_slots(1), &[1]));
    let largest = udp("198.51.100.7", 9, VIP4, 443, &[0; 1500 - 24 - 28]);
    assert_eq!(bed.send(24, &largest).0, Verdict::Tx);
    let mut larger = udp("198.51.100.7", 9, VIP4, 443, &[0; 1500 - 24 - 27]);
    larger[14 + 6] = 0; // DF
    dropped(&mut bed, &larger, DropReason::TooBig);
}

#[test]
fn without_a_serving_backend_or_a_way_to_it_there_is_a_reason() {
    let frame = tcp("198.51.100.7", 9, VIP4, 80, "S");
    let mut empty = Bed::new(parts(gre_slots(1), &[0]));
    dropped(&mut empty, &frame, DropReason::NoBackend);
    let mut down = parts(gre_slots(1), &[1]);
    down.states[0] = SlotState::Down;
    dropped(&mut Bed::new(down), &frame, DropReason::NoBackend);
    let mut lost = gre_slots(1);
    lost[0].next_hop = None;
    dropped(&mut Bed::new(parts(lost, &[1])), &frame, DropReason::NoNextHop);
}

#[test]
fn a_buffer_without_room_behind_is_no_head_room() {
    let mut bed = Bed::new(parts(gre_slots(1), &[1]));
    let frame = tcp("198.51.100.7", 9, VIP4, 80, "S");
    let mut tight = frame.clone();
    let len = tight.len();
    let mut packets = [Packet::new(&mut tight, 0, len, Origin::Wire)];
    let mut verdicts = [Verdict::Tx];
    bed.pipeline.process(bed.now, &mut packets, &mut verdicts);
    assert_eq!(verdicts, [Verdict::Drop(DropReason::NoHeadRoom)]);
}
