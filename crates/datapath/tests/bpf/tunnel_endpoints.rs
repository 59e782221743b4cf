//! Tests of redirected packets that are sent to an address of this machine: tunneled packets from
//! allowed senders, and ICMP errors about outer packets. The tests compare exact bytes and, for
//! random settings, compare the results with a simple model.

use std::net::IpAddr;

use datapath::steer::{Filter, Steer, SteerCounts, SteerError, TunnelEndpoints, takes};
use forwarder::{Prefix, TunnelProtocols};
use proptest::prelude::*;
use proptest::test_runner::TestRunner;

use crate::bed;
use crate::frames::{frame, gre, gue, ip, ip_in_ip, packet, udp};
use crate::run::{PASS, Program, REDIRECT};
use crate::steer::{OPTIONS, Receiver, difference};

const OWN4: &str = "192.0.2.1";
const OWN6: &str = "2001:db8::1";
/// The sender of upstream tunnels, which use IP in IP and GUE.
const OUTSIDE: &str = "192.0.2.77";
/// A peer, which uses GRE.
const PEER4: &str = "203.0.113.9";
const PEER6: &str = "2001:db8:77::9";

fn prefix(address: &str, length: u8) -> Prefix {
    Prefix::new(ip(address), length).unwrap()
}

fn ends() -> TunnelEndpoints {
    let by_two = TunnelProtocols::IPIP.and(TunnelProtocols::GUE);
    TunnelEndpoints {
        // Outer packets use source addresses from the last two prefixes.
        addresses: vec![
            prefix(OWN4, 32),
            prefix(OWN6, 128),
            prefix("198.51.100.0", 24),
            prefix("2001:db8:5::", 64),
        ],
        sources: vec![
            (prefix(OUTSIDE, 32), by_two),
            (prefix("203.0.113.0", 24), TunnelProtocols::GRE),
            (prefix("2001:db8:77::", 48), TunnelProtocols::GRE),
        ],
        ..TunnelEndpoints::default()
    }
}

fn inner() -> Vec<u8> {
    packet(ip("198.18.0.1"), ip("203.0.113.10"), 17, &udp(80, b"hello"))
}

/// Returns an ICMP error to `to` that quotes a packet.
fn error(to: &str, [kind, code]: [u8; 2], quoted: &[u8]) -> Vec<u8> {
    let (router, protocol) = if ip(to).is_ipv4() { ("198.18.0.254", 1) } else { ("2001:db8:c::fe", 58) };
    packet(ip(router), ip(to), protocol, &[&[kind, code, 0, 0, 0, 0, 5, 0], quoted].concat())
}

/// Returns the start of an outer packet that this machine sent: the IP header and the next eight
/// bytes.
fn outer(is_v4: bool, protocol: u8, payload: &[u8]) -> Vec<u8> {
    let (from, to, header) = if is_v4 { (OWN4, "198.18.1.1", 20) } else { (OWN6, "2001:db8:18::1", 40) };
    let mut outer = packet(ip(from), ip(to), protocol, payload);
    outer.truncate(header + 8);
    outer
}

/// Attaches a program with these tunnel endpoints and no VIP. Also returns a socket on queue 0.
fn attached(ends: &TunnelEndpoints) -> (Steer, Receiver, Program) {
    bed::enter();
    let mut steer = Steer::attach("near", &OPTIONS).unwrap();
    let receiver = Receiver::on(0);
    steer.set_socket(0, receiver.rx.fd()).unwrap();
    steer.set_tunnel_endpoints(ends).unwrap();
    (steer, receiver, Program::on_near())
}

#[test]
fn steer_redirects_allowed_tunnels_and_errors_only() {
    let (steer, _receiver, program) = attached(&ends());
    let tunnel = |from: &str, to: &str, protocol, payload: &[u8]| packet(ip(from), ip(to), protocol, payload);
    let (inner, by_gre, by_gue) = (inner(), gre(0, &inner()), gue(&inner()));
    let six = packet(ip("2001:db8:c::1"), ip("2001:db8:f::10"), 17, &udp(80, b"hello"));
    let changed = |place: usize, bits: u8| {
        let mut packet = tunnel(PEER4, OWN4, 47, &by_gre);
        packet[place] |= bits;
        packet
    };
    let options = {
        let mut packet = tunnel(PEER4, OWN4, 47, &[&[1, 1, 1, 0], &by_gre[..]].concat());
        packet[0] = 0x46;
        packet
    };
    let taken = [
        tunnel(PEER4, OWN4, 47, &by_gre),
        tunnel(PEER4, OWN4, 47, &gre(0x0100, &inner)), // recursion control as set by a peer
        tunnel("203.0.113.255", "198.51.100.9", 47, &by_gre),
        tunnel(OUTSIDE, OWN4, ip_in_ip(&inner), &inner),
        tunnel(OUTSIDE, OWN4, ip_in_ip(&six), &six),
        tunnel(OUTSIDE, OWN4, 17, &by_gue),
        tunnel(PEER6, OWN6, 47, &by_gre),
        tunnel("2001:db8:77:ffff::1", "2001:db8:5::abcd", 47, &gre(0, &six)),
        error(OWN4, [3, 4], &outer(true, 47, &by_gre)),
        error(OWN4, [3, 4], &outer(true, 4, &inner)),
        error(OWN4, [3, 4], &outer(true, 41, &six)),
        error("198.51.100.200", [3, 4], &outer(true, 17, &by_gue)),
        error(OWN6, [2, 0], &outer(false, 47, &by_gre)),
        error(OWN6, [2, 0], &outer(false, 41, &six)),
        error("2001:db8:5::1", [2, 0], &outer(false, 17, &by_gue)),
    ];
    let left = [
        tunnel(PEER4, "192.0.2.2", 47, &by_gre),
        tunnel(PEER4, "198.19.0.9", 47, &by_gre),
        tunnel("198.18.0.1", OWN4, 47, &by_gre),
        tunnel("192.0.2.78", OWN4, 17, &by_gue),
        tunnel(OUTSIDE, OWN4, 47, &by_gre),
        tunnel(PEER4, OWN4, 4, &inner),
        tunnel(PEER4, OWN4, 17, &by_gue),
        tunnel(OUTSIDE, OWN4, 17, &udp(6081, &inner)),
        tunnel(OUTSIDE, OWN4, 17, &by_gue[..7]),
        tunnel(OUTSIDE, OWN4, 6, &inner),
        changed(6, 0x20), // more fragments
        changed(7, 1),    // a later fragment
        options,
        tunnel(PEER6, OWN6, 4, &inner),
        tunnel("2001:db8:78::9", OWN6, 47, &by_gre),
        tunnel(PEER6, "2001:db8::2", 47, &by_gre),
        error("192.0.2.2", [3, 4], &outer(true, 47, &by_gre)),
        error(OWN4, [3, 1], &outer(true, 47, &by_gre)),
        error(OWN4, [11, 4], &outer(true, 47, &by_gre)),
        error(OWN4, [3, 4], &outer(true, 6, &by_gre)),
        error(OWN4, [3, 4], &outer(true, 17, &udp(53, b""))),
        error(OWN4, [3, 4], &outer(true, 17, &by_gue)[..27]),
        error(OWN4, [3, 4], &outer(true, 47, &by_gre)[..19]),
        error(OWN4, [8, 0], &[]),
        error(OWN6, [1, 0], &outer(false, 47, &by_gre)),
        error(OWN6, [2, 0], &outer(false, 6, &by_gre)),
        error(OWN6, [2, 0], &outer(false, 47, &by_gre)[..39]),
        error(OWN6, [135, 0], &[]),
    ];
    for (rows, verdict) in [(&taken[..], REDIRECT), (&left[..], PASS)] {
        for (row, packet) in rows.iter().enumerate() {
            for tags in 0..=2 {
                let (before, frame) = (steer.counts().unwrap(), frame(tags, packet));
                // The program does not change frames.
                assert_eq!(program.run(&frame, 0), (verdict, frame.clone()), "row {row}, {tags} tags");
                let without_a_kernel = takes(&frame, &Filter::default(), &ends());
                assert_eq!(without_a_kernel, verdict == REDIRECT, "row {row}, {tags} tags");
                let counts = if verdict == REDIRECT {
                    SteerCounts { redirected: 1, ..SteerCounts::default() }
                } else {
                    SteerCounts { passed: 1, ..SteerCounts::default() }
                };
                assert_eq!(difference(&steer.counts().unwrap(), &before), counts, "row {row}");
            }
        }
    }
}

#[test]
fn steer_redirects_replies_to_source_ports() {
    let asking = TunnelEndpoints {
        // The second address is not a tunnel endpoint.
        answers: vec![ip(OWN4), ip("192.0.2.2"), ip(OWN6)],
        source_ports: 61_000..=61_255,
        ..ends()
    };
    let (mut steer, _receiver, program) = attached(&asking);
    let answer = |from: &str, to: &str, port| packet(ip(from), ip(to), 17, &udp(port, b"an answer"));
    let (vip4, vip6) = ("203.0.113.10", "2001:db8:f::10");
    let taken = [
        answer(vip4, OWN4, 61_000),
        answer(vip4, OWN4, 61_255),
        answer(vip4, "192.0.2.2", 61_100),
        answer(vip6, OWN6, 61_000),
        answer(vip6, OWN6, 61_255),
        // The program does not check the source of replies, because packet threads check it.
        answer("198.18.0.1", OWN4, 61_001),
    ];
    let changed = |place: usize, bits: u8| {
        let mut packet = answer(vip4, OWN4, 61_000);
        packet[place] |= bits;
        packet
    };
    let left = [
        answer(vip4, OWN4, 60_999),
        answer(vip4, OWN4, 61_256),
        answer(vip4, OWN4, 0),
        answer(vip4, OWN4, 11_211),
        answer(vip4, "192.0.2.3", 61_000),
        // this address is a tunnel endpoint but has no source ports
        answer(vip4, "198.51.100.9", 61_000),
        answer(vip6, OWN6, 60_999),
        answer(vip6, "2001:db8::2", 61_000),
        packet(ip(vip4), ip(OWN4), 6, &udp(61_000, b"of TCP")),
        packet(ip(vip4), ip(OWN4), 17, &udp(61_000, b"")[..7]),
        changed(6, 0x20), // more fragments
        changed(7, 1),    // a later fragment
    ];
    for (rows, verdict) in [(&taken[..], REDIRECT), (&left[..], PASS)] {
        for (row, packet) in rows.iter().enumerate() {
            for tags in 0..=2 {
                let frame = frame(tags, packet);
                assert_eq!(program.run(&frame, 0), (verdict, frame.clone()), "row {row}, {tags} tags");
                let without_a_kernel = takes(&frame, &Filter::default(), &asking);
                assert_eq!(without_a_kernel, verdict == REDIRECT, "row {row}, {tags} tags");
            }
        }
    }
    // Tunneled packets are still accepted at the tunnel endpoints. An address for replies does not
    // accept tunneled packets.
    let tunnel = |to: &str| frame(0, &packet(ip(PEER4), ip(to), 47, &gre(0, &inner())));
    assert_eq!(program.run(&tunnel(OWN4), 0).0, REDIRECT);
    assert_eq!(program.run(&tunnel("192.0.2.2"), 0).0, PASS);
    // After the reply addresses are removed, the program passes all packets to the kernel.
    steer.set_tunnel_endpoints(&ends()).unwrap();
    for packet in &taken {
        assert_eq!(program.run(&frame(0, packet), 0).0, PASS);
    }
    assert_eq!(program.run(&tunnel(OWN4), 0).0, REDIRECT);
}

#[test]
fn set_ends_refuses_more_entries_than_the_maps_hold() {
    let (mut steer, _receiver, program) = attached(&ends());
    let many = |first: u16, count: u16| {
        let of = |n: u16| Prefix::new(IpAddr::from([0x2001, 0xdb8, n, 0, 0, 0, 0, 0]), 48).unwrap();
        (first..first + count).map(of).collect::<Vec<_>>()
    };
    let sources =
        |first, count| many(first, count).into_iter().map(|prefix| (prefix, TunnelProtocols::GRE)).collect();
    for (wanted, allowed, full) in [
        (257, 256, TunnelEndpoints { addresses: many(0, 257), ..ends() }),
        (1_025, 1_024, TunnelEndpoints { sources: sources(0, 1_025), ..ends() }),
    ] {
        match steer.set_tunnel_endpoints(&full) {
            Err(SteerError::TooManyTunnelEndpoints { wanted: said, allowed: most }) => {
                assert_eq!((said, most), (wanted, allowed));
            }
            other => panic!("{other:?}"),
        }
        let peers = packet(ip(PEER4), ip(OWN4), 47, &gre(0, &inner()));
        assert_eq!(program.run(&frame(0, &peers), 0).0, REDIRECT, "the previous entries stay");
    }
    // Replaces a full set with a completely different full set.
    for first in [0, 2_000] {
        let full = TunnelEndpoints {
            addresses: many(first, 256),
            sources: sources(first, 1_024),
            ..TunnelEndpoints::default()
        };
        steer.set_tunnel_endpoints(&full).unwrap();
        let own = |n: u16| format!("2001:db8:{n:x}::1");
        let last = packet(ip(&own(first + 1_023)), ip(&own(first + 255)), 47, &gre(0, &inner()));
        assert_eq!(program.run(&frame(0, &last), 0).0, REDIRECT);
        let gone = packet(ip(&own(2_000 - first)), ip(&own(2_000 - first)), 47, &gre(0, &inner()));
        assert_eq!(program.run(&frame(0, &gone), 0).0, PASS);
    }
}

/// An entry: the last octet of the first address, the prefix length and, for sources, the allowed
/// encapsulations.
type Line = (u8, u8, u8);

fn covers((first, length, _): &Line, octet: u8) -> bool {
    let shift = u32::from(32 - length);
    u32::from(*first) >> shift == u32::from(octet) >> shift
}

fn as_prefix(net: &str, (first, length, _): &Line) -> Prefix {
    let shift = u32::from(32 - length);
    let first = u32::from(*first) >> shift << shift;
    prefix(&format!("{net}{first}"), *length)
}

fn carriers(bits: u8) -> TunnelProtocols {
    let kinds = [(1, TunnelProtocols::GRE), (2, TunnelProtocols::IPIP), (4, TunnelProtocols::GUE)];
    kinds
        .iter()
        .filter(|(bit, _)| bits & bit != 0)
        .fold(TunnelProtocols::NONE, |all, (_, kind)| all.and(*kind))
}

// Promise: tunnel-senders
#[test]
fn set_ends_matches_the_model_after_any_changes() {
    let (steer, _receiver, program) = attached(&TunnelEndpoints::default());
    let steer = std::cell::RefCell::new(steer);
    let config = ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() };
    let line = || (any::<u8>(), 24..=32u8, 0..8u8);
    let lines = (prop::collection::vec(line(), 0..4), prop::collection::vec(line(), 0..6));
    let probes = prop::collection::vec((any::<u8>(), any::<u8>()), 6);
    TestRunner::new(config)
        .run(&(lines, probes), |((ends, sources), mut probes)| {
            let wanted = TunnelEndpoints {
                addresses: ends.iter().map(|line| as_prefix("192.0.2.", line)).collect(),
                sources: sources
                    .iter()
                    .map(|line| (as_prefix("203.0.113.", line), carriers(line.2)))
                    .collect(),
                ..TunnelEndpoints::default()
            };
            steer.borrow_mut().set_tunnel_endpoints(&wanted).unwrap();
            // Random addresses rarely match an entry, so the addresses of the entries are probed
            // too.
            probes.extend(sources.iter().zip(ends.iter().cycle()).map(|(source, end)| (source.0, end.0)));
            for (from, to) in probes {
                let inner = inner();
                for (bit, protocol, payload) in
                    [(1, 47, gre(0, &inner)), (2, 4, inner.clone()), (4, 17, gue(&inner))]
                {
                    let may = sources.iter().any(|line| covers(line, from) && line.2 & bit != 0);
                    let expected = may && ends.iter().any(|line| covers(line, to));
                    let (from, to) = (format!("203.0.113.{from}"), format!("192.0.2.{to}"));
                    let sent = frame(0, &packet(ip(&from), ip(&to), protocol, &payload));
                    let verdict = if expected { REDIRECT } else { PASS };
                    prop_assert_eq!(program.run(&sent, 0).0, verdict, "{} to {}, {}", from, to, protocol);
                    prop_assert_eq!(takes(&sent, &Filter::default(), &wanted), expected);
                }
            }
            Ok(())
        })
        .unwrap();
}
