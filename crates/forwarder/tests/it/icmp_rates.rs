//! Tests of the rate limits of sent ICMP messages: echo replies, time-exceeded errors and
//! packet-too-big errors.

use etherparse::PacketBuilder;
use forwarder::*;

use crate::bed::*;

/// A kind of packet that causes an ICMP message. The argument of the function selects the source.
/// Sources with different numbers are in different /64 prefixes.
type Cause = (&'static str, fn(u8) -> Vec<u8>);

fn source4(n: u8) -> String {
    format!("198.51.100.{n}")
}

fn source6(n: u8) -> String {
    format!("2001:db8:9:{n}::7")
}

fn ping4(n: u8) -> Vec<u8> {
    let mut frame = Vec::new();
    let step = PacketBuilder::ethernet2(ROUTER, OURS).ipv4([198, 51, 100, n], [203, 0, 113, 10], 64);
    step.icmpv4_echo_request(1, 2).write(&mut frame, b"ping").unwrap();
    frame
}

fn ping6_from(source: &str) -> Vec<u8> {
    let [source, vip] = [source, VIP6].map(|text| match ip(text) {
        std::net::IpAddr::V6(address) => address.octets(),
        other => panic!("{other}"),
    });
    let mut frame = Vec::new();
    let step = PacketBuilder::ethernet2(ROUTER, OURS).ipv6(source, vip, 64);
    step.icmpv6_echo_request(1, 2).write(&mut frame, b"ping").unwrap();
    frame
}

fn ping6(n: u8) -> Vec<u8> {
    ping6_from(&source6(n))
}

fn expired4(n: u8) -> Vec<u8> {
    with_ttl(tcp(&source4(n), 9, VIP4, 80, "S"), 1)
}

fn expired6(n: u8) -> Vec<u8> {
    let mut frame = tcp(&source6(n), 9, VIP6, 80, "S");
    frame[14 + 7] = 1;
    frame
}

fn large4(n: u8) -> Vec<u8> {
    udp(&source4(n), 9, VIP4, 443, &[7; 1460])
}

fn large6(n: u8) -> Vec<u8> {
    udp(&source6(n), 9, VIP6, 443, &[7; 1440])
}

const REPLIES: [Cause; 4] = [
    ("IPv4 ping", ping4),
    ("IPv6 ping", ping6),
    ("IPv4 packet with an expired TTL", expired4),
    ("IPv6 packet with an expired hop limit", expired6),
];
const TOO_BIG: [Cause; 2] = [("large IPv4 packet", large4), ("large IPv6 packet", large6)];

/// Sends 100 packets and returns the number of ICMP messages.
fn messages(bed: &mut Bed, frame: &[u8]) -> usize {
    (0..100).filter(|_| bed.send(24, frame).0 == Verdict::Reply).count()
}

/// Returns a fixture that sends 20 messages per second to a source, and 50 in total.
fn bed() -> Bed {
    let icmp = IcmpRates { replies: 50, replies_per_source: 20, ..config().icmp };
    Bed::with(parts(gre_slots(1), &[1]), PipelineConfig { icmp, ..config() })
}

// Promise: icmp-rate-limits
#[test]
fn icmp_messages_are_limited_per_source_and_in_total() {
    for (cause, frame) in REPLIES.into_iter().chain(TOO_BIG) {
        let mut bed = bed();
        for second in 0..3 {
            let sent = [1, 2, 3, 4].map(|n| messages(&mut bed, &frame(n)));
            assert_eq!(sent, [20, 20, 10, 0], "{cause}, second {second}");
            bed.advance(1);
        }
    }
}

// Promise: icmp-rate-limits
#[test]
fn icmp_limit_of_an_ipv6_source_covers_its_64_prefix() {
    let mut bed = bed();
    let sent = ["2001:db8:9:1::7", "2001:db8:9:1:ffff::8", "2001:db8:9:2::7"]
        .map(|source| messages(&mut bed, &ping6_from(source)));
    assert_eq!(sent, [20, 0, 20]);
}

// Promise: icmp-rate-limits
// Promise: icmp-independent-limits
#[test]
fn icmp_replies_and_errors_of_a_source_share_a_limit_without_too_big() {
    for [ping, expired, large] in [[ping4 as fn(u8) -> _, expired4, large4], [ping6, expired6, large6]] {
        let mut bed = bed();
        let sent = [ping, expired, large].map(|frame| messages(&mut bed, &frame(1)));
        assert_eq!(sent, [20, 0, 20]);
        let mut bed = self::bed();
        let sent = [large, expired, ping].map(|frame| messages(&mut bed, &frame(1)));
        assert_eq!(sent, [20, 20, 0]);
    }
}
