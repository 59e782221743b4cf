//! Tests of the programs for packet sockets on a veth pair. The socket filter must accept exactly
//! the packets that the ingress program drops and that an XDP program redirects.

use std::os::fd::AsFd;

use datapath::interface::Interface;
use datapath::steer::{Filter, Steer, SteerCounts, SteerError, TunnelEndpoints, takes};
use datapath::{AttachError, AttachMode};
use forwarder::{Prefix, TunnelProtocols};
use proptest::prelude::*;
use proptest::test_runner::TestRunner;

use crate::bed::{self, Wire};
use crate::frames::{frame, gre, gue, ip, packet, udp};
use crate::steer::{difference, to};

const VIP4: &str = "203.0.113.10";
const VIP6: &str = "2001:db8:f::10";
const OWN4: &str = "192.0.2.1";
const OWN6: &str = "2001:db8::1";
const PEER4: &str = "203.0.113.9";
const PEER6: &str = "2001:db8:77::9";

fn filter() -> Filter {
    let prefix = |address: &str, length| Prefix::new(ip(address), length).unwrap();
    let prefixes = [prefix("198.51.100.0", 25), prefix("2001:db8:e::", 48)];
    Filter::new([ip(VIP4), ip(VIP6)], prefixes, [ip("198.51.100.1"), ip("2001:db8:e::1")])
}

fn ends() -> TunnelEndpoints {
    let prefix = |address: &str, length| Prefix::new(ip(address), length).unwrap();
    let carriers = TunnelProtocols::GRE.and(TunnelProtocols::GUE);
    TunnelEndpoints {
        addresses: vec![prefix(OWN4, 32), prefix(OWN6, 128)],
        sources: vec![(prefix(PEER4, 32), carriers), (prefix(PEER6, 128), carriers)],
        answers: vec![ip(OWN4), ip(OWN6)],
        source_ports: 61_000..=61_255,
    }
}

/// Generates packets of all types that the programs distinguish, and near misses of these types.
fn packets() -> Vec<Vec<u8>> {
    let payload = udp(80, b"hello");
    let inner = to(VIP4, 17, &payload);
    let between =
        |from: &str, to: &str, protocol, payload: &[u8]| packet(ip(from), ip(to), protocol, payload);
    let error4 =
        |quoted: &[u8]| between("198.18.0.254", OWN4, 1, &[&[3, 4, 0, 0, 0, 0, 5, 0], quoted].concat());
    let error6 =
        |quoted: &[u8]| between("2001:db8:c::fe", OWN6, 58, &[&[2, 0, 0, 0, 0, 0, 5, 0], quoted].concat());
    let tunnels = [
        between(PEER4, OWN4, 47, &gre(0, &inner)),
        between(PEER4, OWN4, 17, &gue(&inner)),
        between(PEER6, OWN6, 47, &gre(0, &inner)),
        between(PEER6, OWN6, 17, &gue(&inner)),
        between("198.18.0.1", OWN4, 47, &gre(0, &inner)),
    ];
    let errors = [
        error4(&between(OWN4, "198.18.1.1", 47, &gre(0, &inner))),
        error4(&between(OWN4, "198.18.1.1", 17, &gue(&inner))),
        error4(&between(OWN4, "198.18.1.1", 6, &payload)),
        error6(&between(OWN6, "2001:db8:18::1", 47, &gre(0, &inner))),
        error6(&between(OWN6, "2001:db8:18::1", 17, &gue(&inner))),
    ];
    let plain = [VIP4, VIP6, OWN4, OWN6, "198.51.100.1", "198.51.100.2", "2001:db8:e::1", "2001:db8:e::2"]
        .map(|address| to(address, 17, &payload));
    let answers = [OWN4, OWN6, "198.51.100.2"].map(|address| to(address, 17, &udp(61_007, b"an answer")));
    let discovery = [VIP6, OWN6].map(|address| to(address, 58, &[135, 0, 0, 0]));
    [&tunnels[..], &errors, &plain, &answers, &discovery].concat()
}

/// Attaches the programs with a filter and tunnel endpoints. Also returns a socket with the socket
/// filter.
fn attached() -> (Steer, Wire) {
    bed::enter();
    let mut steer = Steer::attach_ingress("near", 8).unwrap();
    let socket = Wire::on("near");
    steer.attach_filter(socket.as_fd()).unwrap();
    steer.set_filter(&filter()).unwrap();
    steer.set_tunnel_endpoints(&ends()).unwrap();
    (steer, socket)
}

/// Sends a frame. Returns the changes in the ingress program's counters, and the packet that the
/// socket received.
fn send(steer: &Steer, socket: &Wire, far: &Wire, frame: &[u8]) -> (SteerCounts, Option<Vec<u8>>) {
    let before = steer.counts().unwrap();
    far.send(frame);
    let moved = || difference(&steer.counts().unwrap(), &before);
    // The socket receives its copy of the packet before the ingress program runs.
    bed::eventually("the program has seen the frame", || moved() != SteerCounts::default());
    (moved(), socket.received())
}

// Promise: af-packet-isolation
#[test]
fn packet_socket_gets_the_packets_that_xdp_would_redirect() {
    let (steer, socket) = attached();
    assert_eq!(steer.mode(), AttachMode::Ingress);
    let far = Wire::on("far");
    let packets = packets();
    let config = ProptestConfig { cases: 3_000, failure_persistence: None, ..ProptestConfig::default() };
    let change = (any::<prop::sample::Index>(), 0..8u8);
    let ways = (
        any::<prop::sample::Index>(),
        0..=3usize,
        proptest::option::weighted(0.5, any::<prop::sample::Index>()),
        proptest::option::weighted(0.3, change),
        proptest::bool::weighted(0.05),
    );
    let seen = std::cell::RefCell::new([0; 2]);
    TestRunner::new(config)
        .run(&ways, |(chosen, tags, cut, change, is_group)| {
            let mut packet = chosen.get(&packets).clone();
            if let Some((place, bit)) = change {
                // The first byte is not changed, because `frame` uses it to select the IP version.
                let place = 1 + place.index(packet.len() - 1);
                packet[place] ^= 1 << bit;
            }
            if let Some(cut) = cut {
                // The kernel drops a VLAN-tagged frame if too few bytes follow the tag.
                packet.truncate(2 + cut.index(packet.len() - 2));
            }
            let mut frame = frame(tags, &packet);
            frame[0] |= u8::from(is_group);
            let expected = takes(&frame, &filter(), &ends());
            let (counts, had) = send(&steer, &socket, &far, &frame);
            prop_assert_eq!(had.is_some(), expected, "{:02x?}", frame);
            prop_assert_eq!(counts.redirected, u64::from(expected), "{:02x?}", frame);
            prop_assert_eq!(counts.values().iter().sum::<u64>(), 1);
            seen.borrow_mut()[usize::from(expected)] += 1;
            Ok(())
        })
        .unwrap();
    let [left, taken] = *seen.borrow();
    assert!(left > 500 && taken > 500, "{left} passed to the kernel, {taken} received by the socket");
}

#[test]
fn packet_counts_have_the_reason_of_each_passed_packet() {
    let (steer, socket) = attached();
    let far = Wire::on("far");
    let group = |mut frame: Vec<u8>| {
        frame[0] |= 1;
        frame
    };
    let payload = udp(80, b"hello");
    for (frame, expected) in [
        (frame(0, &to(VIP4, 17, &payload)), SteerCounts { redirected: 1, ..SteerCounts::default() }),
        (frame(1, &to(VIP6, 17, &payload)), SteerCounts { redirected: 1, ..SteerCounts::default() }),
        (frame(0, &to(OWN4, 17, &payload)), SteerCounts { passed: 1, ..SteerCounts::default() }),
        (frame(3, &to(VIP4, 17, &payload)), SteerCounts { passed: 1, ..SteerCounts::default() }),
        (group(frame(0, &to(VIP4, 17, &payload))), SteerCounts { multicast: 1, ..SteerCounts::default() }),
        (
            frame(0, &to(VIP6, 58, &[136, 0, 0, 0])),
            SteerCounts { neighbour_discovery: 1, ..SteerCounts::default() },
        ),
    ] {
        assert_eq!(send(&steer, &socket, &far, &frame).0, expected, "{frame:02x?}");
    }
}

#[test]
fn packet_programs_work_next_to_an_xdp_program() {
    let (mut steer, _) = attached();
    assert_eq!(Interface::read("near").unwrap().xdp_program, None);
    let refused = steer.set_socket(0, &std::io::stdin()).unwrap_err();
    assert!(matches!(refused, SteerError::Attach(AttachError::Part("xsks"))), "{refused:?}");
    let xdp = Steer::attach("near", &crate::steer::OPTIONS).unwrap();
    let refused = xdp.attach_filter(Wire::on("near").as_fd()).unwrap_err();
    assert!(matches!(refused, SteerError::Attach(AttachError::Part("take"))), "{refused:?}");
}
