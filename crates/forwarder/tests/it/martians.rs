//! Packets with a source address that no host has are dropped on every path and leave no entry in a
//! table. The expected result is computed with the address predicates of the standard library.

use std::net::IpAddr;

use forwarder::*;
use packet::Encapsulation;
use proptest::prelude::*;

use crate::bed::*;
use crate::icmp::refresh;
use crate::keyed::{PORT, framed, keyed_of};
use crate::pieces::{Datagram, udp_payload};
use crate::tunnels::{from, wrapped};

/// Sources at the edges of the martian prefixes, on both sides.
const SOURCES: [&str; 24] = [
    "0.0.0.0",
    "0.255.255.255",
    "127.0.0.0",
    "127.255.255.255",
    "198.51.100.7",
    "224.0.0.0",
    "239.255.255.255",
    "240.0.0.1",
    "255.255.255.255",
    "::",
    "::1",
    "::2",
    "::1:0:0:0",
    "::fffe:198.51.100.7",
    "::ffff:198.51.100.7",
    "::ffff:0.0.0.0",
    "::1:ffff:198.51.100.7",
    "2001:db8:9::7",
    "fe7f:ffff::7",
    "fe80::7",
    "febf:ffff::7",
    "fec0::7",
    "feff:ffff::7",
    "ff02::1",
];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Tcp(&'static str),
    /// Hashed by 5-tuple.
    Udp,
    /// Hashed by addresses.
    UdpByAddresses,
    /// Hashed by addresses, and has no ports.
    Gre,
    Keyed(&'static [u8]),
    Fragment {
        first: bool,
    },
    Echo,
    /// An ICMP error whose outer source is the address.
    Error,
    /// An ICMP error that quotes a packet to the address.
    Quote,
}

const KINDS: [Kind; 13] = [
    Kind::Tcp("S"),
    Kind::Tcp("A"),
    Kind::Tcp("FA"),
    Kind::Udp,
    Kind::UdpByAddresses,
    Kind::Gre,
    Kind::Keyed(b"get k1\r\n"),
    Kind::Keyed(b"set k1 0 0 1\r\nx\r\n"),
    Kind::Fragment { first: true },
    Kind::Fragment { first: false },
    Kind::Echo,
    Kind::Error,
    Kind::Quote,
];

/// Returns `true` if the packet must be dropped as martian.
fn is_martian(source: IpAddr, kind: Kind, is_tunneled: bool) -> bool {
    match source {
        IpAddr::V4(source) => {
            source.octets()[0] == 0
                || source.is_loopback()
                || source.is_multicast()
                || source.octets()[0] >= 240
        }
        IpAddr::V6(source) => {
            let may_be_local = !is_tunneled && matches!(kind, Kind::Echo | Kind::Error);
            source.is_unspecified()
                || source.is_loopback()
                || source.is_multicast()
                || source.to_ipv4_mapped().is_some()
                || source.is_unicast_link_local() && !may_be_local
        }
    }
}

/// Replaces the source address of a frame and updates the IPv4 header checksum.
fn from_source(mut frame: Vec<u8>, source: IpAddr) -> Vec<u8> {
    match source {
        IpAddr::V4(source) => {
            frame[26..30].copy_from_slice(&source.octets());
            refresh(frame)
        }
        IpAddr::V6(source) => {
            frame[22..38].copy_from_slice(&source.octets());
            frame
        }
    }
}

fn frame(kind: Kind, source: &'static str, port: u16) -> Vec<u8> {
    let source_address = ip(source);
    let v6 = source_address.is_ipv6();
    let (host, vip) = if v6 { ("2001:db8:9::7", VIP6) } else { ("198.51.100.7", VIP4) };
    let built = match kind {
        Kind::Tcp(flags) => tcp(host, port, vip, 80, flags),
        Kind::Udp => udp(host, port, vip, 443, b"x"),
        Kind::UdpByAddresses => udp(host, port, vip, 53, b"x"),
        Kind::Gre => {
            let mut frame = udp(host, port, vip, 443, b"x");
            frame[if v6 { 20 } else { 23 }] = 47;
            if v6 { frame } else { refresh(frame) }
        }
        Kind::Keyed(command) => udp(host, port, vip, PORT, &framed(command)),
        Kind::Fragment { first } => {
            let payload = udp_payload(port, 443, 1_000);
            let datagram = Datagram { source: host, vip, protocol: 17, id: port.into(), payload };
            if first { datagram.piece(0, 504) } else { datagram.piece(504, 1_008) }
        }
        Kind::Echo => echo(host, vip),
        Kind::Error => crate::icmp::error(vip, if v6 { (1, 3) } else { (3, 1) }, &quote(host, vip, port)),
        Kind::Quote => {
            let mut quote = quote(host, vip, port);
            match source_address {
                IpAddr::V4(client) => quote[16..20].copy_from_slice(&client.octets()),
                IpAddr::V6(client) => quote[24..40].copy_from_slice(&client.octets()),
            }
            return crate::icmp::error(vip, if v6 { (1, 3) } else { (3, 1) }, &quote);
        }
    };
    from_source(built, source_address)
}

fn quote(host: &str, vip: &str, port: u16) -> Vec<u8> {
    crate::icmp::answer_to(&tcp(host, port, vip, 80, "A"), 200)
}

pub(crate) fn echo(host: &str, vip: &str) -> Vec<u8> {
    let (link, mut bytes) = (etherparse::PacketBuilder::ethernet2(ROUTER, OURS), Vec::new());
    match (ip(host), ip(vip)) {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            let step = link.ipv4(from.octets(), to.octets(), 64).icmpv4_echo_request(1, 2);
            step.write(&mut bytes, b"ping").unwrap();
        }
        (IpAddr::V6(from), IpAddr::V6(to)) => {
            let step = link.ipv6(from.octets(), to.octets(), 64).icmpv6_echo_request(1, 2);
            step.write(&mut bytes, b"ping").unwrap();
        }
        _ => panic!("families"),
    }
    bytes
}

/// Inserts an extension header with destination options after the IPv6 header.
fn with_extension(mut frame: Vec<u8>) -> Vec<u8> {
    let next = std::mem::replace(&mut frame[20], 60);
    let length = u16::from_be_bytes([frame[18], frame[19]]) + 8;
    frame[18..20].copy_from_slice(&length.to_be_bytes());
    frame.splice(54..54, [next, 0, 1, 4, 0, 0, 0, 0]);
    frame
}

fn bed(has_fast_path: bool) -> Bed {
    let application = Box::new(kv_switch::Memcached::new(3));
    let mut parts = keyed_of(application, KeyFailover::Next, KeyPath::Direct, None);
    let keyed = parts.services.last_mut().unwrap().keyed.as_mut().unwrap();
    let keyed = std::sync::Arc::get_mut(keyed).unwrap();
    let rules = std::sync::Arc::get_mut(&mut keyed.rules).unwrap();
    rules.clients = PrefixSet::new([(ip("0.0.0.0"), 0), (ip("::"), 0)]);
    parts.tunnels = vec![from("192.0.2.77", TunnelSourceKind::UpstreamTunnel)];
    let mut bed = Bed::with(parts, crate::icmp::generous());
    if !has_fast_path {
        bed.pipeline = bed.pipeline.without_fast_path();
    }
    bed
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2048))]
    #[test]
    fn martian_source_is_dropped_on_every_path(
        source in prop::sample::select(&SOURCES[..]),
        kind in prop::sample::select(&KINDS[..]),
        (has_fast_path, is_tagged, is_tunneled, is_extended) in any::<(bool, bool, bool, bool)>(),
        port in 2_000..2_100_u16,
    ) {
        let mut bed = bed(has_fast_path);
        let mut sent = frame(kind, source, port);
        let v6 = ip(source).is_ipv6();
        if is_extended && v6 && !matches!(kind, Kind::Fragment { .. } | Kind::Echo) {
            sent = with_extension(sent);
        }
        if is_tunneled {
            sent = wrapped(&sent, Encapsulation::Gre, ("192.0.2.77", "192.0.2.1"), 0);
        }
        if is_tagged {
            sent = tagged(&sent, 0x8100, 5);
        }
        let (verdict, _) = bed.send(24, &sent);
        let expected = is_martian(ip(source), kind, is_tunneled);
        prop_assert_eq!(verdict == Verdict::Drop(DropReason::Martian), expected, "{:?}", verdict);
        bed.poll();
        let fragments = &bed.counters.fragment_table;
        let entries = bed.pipeline.flows().len() as u64 + fragments.datagrams.read() + fragments.held.read();
        match (expected, kind) {
            (true, _) => prop_assert_eq!(entries, 0),
            (false, Kind::Echo) => prop_assert_eq!(verdict, Verdict::Reply),
            (false, Kind::Error | Kind::Quote | Kind::Keyed(_)) => prop_assert_eq!(verdict, Verdict::Tx),
            (false, Kind::Fragment { first: false }) => prop_assert!(matches!(verdict, Verdict::Hold(_))),
            (false, _) => prop_assert_eq!((verdict, entries > 0), (Verdict::Tx, true)),
        }
    }
}

#[test]
fn martian_source_is_refused_by_the_decision_of_where() {
    let snapshot = Snapshot::new(parts(gre_slots(1), &[1])).unwrap();
    for (source, protocol) in SOURCES.iter().flat_map(|source| [6, 1, 58].map(|protocol| (source, protocol)))
    {
        let (source, vip) = (ip(source), if ip(source).is_ipv6() { VIP6 } else { VIP4 });
        let flow = Flow::new((source, 9), (ip(vip), 80), protocol).unwrap();
        let kind = if protocol == 6 { Kind::Tcp("S") } else { Kind::Echo };
        let decision = snapshot.decide(&flow);
        let is_refused = matches!(decision, Decision::Refused { reason: DropReason::Martian, .. });
        assert_eq!(is_refused, is_martian(source, kind, false), "{source} {protocol} {decision:?}");
    }
}

#[test]
fn wrong_header_checksum_gets_no_echo_reply() {
    let mut bed = bed(true);
    let mut sent = echo("198.51.100.7", VIP4);
    assert_eq!(bed.send(24, &sent).0, Verdict::Reply);
    for bit in 0..16 {
        sent[14 + 10 + bit / 8] ^= 1 << (bit % 8);
        assert_eq!(bed.send(24, &sent).0, Verdict::Drop(DropReason::Malformed));
        sent[14 + 10 + bit / 8] ^= 1 << (bit % 8);
    }
}
