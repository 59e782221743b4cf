//! Tests of the XDP program for backends. The tests compare exact bytes, check the results for many
//! packets against a simple model, and receive packets on a real socket.

use std::net::{IpAddr, UdpSocket};
use std::time::Duration;

use datapath::interface::Interface;
use datapath::{ByFamily, Decap, DecapCounts, host_addresses};
use proptest::prelude::*;
use proptest::test_runner::TestRunner;

use crate::bed::{self, Wire};
use crate::frames::{frame, gre, gue, ip, ip_in_ip, packet, udp, with_tos};
use crate::run::{DROP, PASS, Program};

#[path = "../../../packet/src/ecn/tests/figure_4.rs"]
mod figure_4;
use figure_4::FIGURE_4;

const HOST4: &str = "192.0.2.10";
const HOST6: &str = "2001:db8::10";
const LB4: &str = "198.51.100.7";
const LB6: &str = "2001:db8:5::7";

fn attach() -> Decap {
    let nets = [(ip("198.51.100.0"), 28), (ip("2001:db8:5::"), 64)];
    let from = [nets[0], nets[1], (ip("203.0.113.7"), 32), (ip("2001:db8:6::7"), 128)];
    Decap::attach("near", &[ip(HOST4), ip(HOST6)], &from, &vips()).unwrap()
}

fn vips() -> Vec<(IpAddr, u8)> {
    vec![(ip("203.0.113.8"), 30), (ip("2001:db8:f::10"), 128)]
}

fn inner(is_v6: bool) -> Vec<u8> {
    inner_to(if is_v6 { "2001:db8:f::10" } else { "203.0.113.10" })
}

fn inner_to(to: &str) -> Vec<u8> {
    let from = if to.contains(':') { "2001:db8:c::1" } else { "198.18.0.1" };
    packet(ip(from), ip(to), 17, &udp(80, b"hello"))
}

fn outer(is_v6: bool, protocol: u8, payload: &[u8]) -> Vec<u8> {
    let (from, to) = if is_v6 { (LB6, HOST6) } else { (LB4, HOST4) };
    packet(ip(from), ip(to), protocol, payload)
}

#[test]
fn decap_removes_each_tunnel_kind_and_keeps_vlan_tags() {
    bed::enter();
    let decap = attach();
    let program = Program::on_near();
    for is_v6 in [false, true] {
        for inner in [inner(false), inner(true)] {
            for tags in 0..=2 {
                for payload in [
                    outer(is_v6, 47, &gre(0, &inner)),
                    outer(is_v6, 47, &gre(0x0100, &inner)), // recursion control, as a peer sets it
                    outer(is_v6, ip_in_ip(&inner), &inner),
                    outer(is_v6, 17, &gue(&inner)),
                ] {
                    let (verdict, left) = program.run(&frame(tags, &payload), 0);
                    assert_eq!((verdict, left), (PASS, frame(tags, &inner)));
                }
            }
        }
    }
    let six = ByFamily { ipv4: 6, ipv6: 6 };
    let gre = ByFamily { ipv4: 12, ipv6: 12 };
    assert_eq!(decap.counts().unwrap(), DecapCounts { gre, ipip: six, gue: six, ..DecapCounts::default() });
}

/// The TOS also contains DSCP bits, which must not change.
#[test]
fn decap_merges_congestion_marks_by_figure_4_of_rfc_6040() {
    bed::enter();
    let decap = attach();
    let program = Program::on_near();
    let (mut taken_off, mut dropped) = (0, 0);
    for (inner_tos, outer_tos) in
        (0..=255).flat_map(|inner| [0, 0x55, 0xaa, 0xff].map(|outer| (inner, outer)))
    {
        for (is_v6, inner) in
            [(false, inner(false)), (true, inner(false)), (false, inner(true)), (true, inner(true))]
        {
            let inner = with_tos(inner, inner_tos);
            let sent = frame(1, &with_tos(outer(is_v6, 47, &gre(0, &inner)), outer_tos));
            let row = FIGURE_4[usize::from(inner_tos & 3)];
            let (verdict, left) = program.run(&sent, 0);
            match row[usize::from(outer_tos & 3)] {
                Some(ecn) => {
                    assert_eq!((verdict, left), (PASS, frame(1, &with_tos(inner, inner_tos & 0xfc | ecn))));
                    taken_off += 1;
                }
                None => {
                    assert_eq!(verdict, DROP);
                    dropped += 1;
                }
            }
        }
    }
    let counts = decap.counts().unwrap();
    assert_eq!((counts.gre.ipv4 + counts.gre.ipv6, counts.congestion), (taken_off, dropped));
    assert_eq!(counts.passed + counts.malformed + counts.refused_source + counts.refused_destination, 0);
}

#[derive(Debug, PartialEq)]
enum Fate {
    Gre,
    Ipip,
    Gue,
    Refused,
    Malformed,
    NoVip,
    Congestion,
    Passed,
}

/// Returns the expected result for `frame`, computed from byte offsets as given in the RFCs and
/// independently of the code under test.
fn oracle(frame: &[u8]) -> (Fate, Vec<u8>) {
    let same = |fate| (fate, frame.to_vec());
    let word =
        |at: usize| frame.get(at..at + 2).map_or(0, |two| usize::from(two[0]) << 8 | usize::from(two[1]));
    let mut at = 12;
    for _ in 0..2 {
        if matches!(word(at), 0x8100 | 0x88a8) {
            at += 4;
        }
    }
    let (kind, ip_at) = (at, at + 2);
    let byte = |at: usize| usize::from(*frame.get(at).unwrap_or(&0));
    let (head, protocol, length, from_ok, to_ok);
    // the lowest two bits of the TOS or traffic class
    let ecn = |at: usize| if byte(at) >> 4 == 6 { byte(at + 1) >> 4 & 3 } else { byte(at + 1) & 3 };
    match (word(kind), byte(ip_at) >> 4) {
        (0x0800, 4) if frame.len() >= ip_at + 20 => {
            if byte(ip_at) != 0x45 || word(ip_at + 6) & 0x3fff != 0 {
                return same(Fate::Passed);
            }
            (head, protocol, length) = (20, byte(ip_at + 9), word(ip_at + 2));
            let from = &frame[ip_at + 12..ip_at + 16];
            from_ok = (from[..3] == [198, 51, 100] && from[3] < 16) || from == [203, 0, 113, 7];
            to_ok = frame[ip_at + 16..ip_at + 20] == [192, 0, 2, 10];
        }
        (0x86dd, 6) if frame.len() >= ip_at + 40 => {
            (head, protocol, length) = (40, byte(ip_at + 6), 40 + word(ip_at + 4));
            let from = &frame[ip_at + 8..ip_at + 24];
            from_ok = from[..8] == [0x20, 1, 0x0d, 0xb8, 0, 5, 0, 0]
                || from == [0x20, 1, 0x0d, 0xb8, 0, 6, 0, 0, 0, 0, 0, 0, 0, 0, 0, 7];
            to_ok = IpAddr::from(<[u8; 16]>::try_from(&frame[ip_at + 24..ip_at + 40]).unwrap()) == ip(HOST6);
        }
        _ => return same(Fate::Passed),
    }
    let behind = ip_at + head;
    let (fate, tunnel, inner_is_v6) = match protocol {
        4 => (Fate::Ipip, 0, false),
        41 => (Fate::Ipip, 0, true),
        47 if frame.len() >= behind + 4 && word(behind) & 0xfc07 == 0 && word(behind + 2) == 0x0800 => {
            (Fate::Gre, 4, false)
        }
        47 if frame.len() >= behind + 4 && word(behind) & 0xfc07 == 0 && word(behind + 2) == 0x86dd => {
            (Fate::Gre, 4, true)
        }
        17 if frame.len() >= behind + 12
            && word(behind + 2) == 6080
            && byte(behind + 8) == 0
            && word(behind + 10) == 0 =>
        {
            match byte(behind + 9) {
                4 => (Fate::Gue, 12, false),
                41 => (Fate::Gue, 12, true),
                _ => return same(Fate::Passed),
            }
        }
        _ => return same(Fate::Passed),
    };
    if !to_ok {
        return same(Fate::Passed);
    }
    if !from_ok {
        return same(Fate::Refused);
    }
    let start = behind + tunnel;
    let need = if inner_is_v6 { 40 } else { 20 };
    if frame.len() < start + need {
        return same(Fate::Malformed);
    }
    let says = if inner_is_v6 { 40 + word(start + 4) } else { word(start + 2) };
    let version = if inner_is_v6 { 6 } else { 4 };
    if byte(start) >> 4 != version || says < need || head + tunnel + says > length {
        return same(Fate::Malformed);
    }
    let to_vip = if inner_is_v6 {
        IpAddr::from(<[u8; 16]>::try_from(&frame[start + 24..start + 40]).unwrap()) == ip("2001:db8:f::10")
    } else {
        frame[start + 16..start + 19] == [203, 0, 113] && (8..12).contains(&frame[start + 19])
    };
    if !to_vip {
        return same(Fate::NoVip);
    }
    let mut left = frame[..kind].to_vec();
    left.extend(if inner_is_v6 { [0x86, 0xdd] } else { [0x08, 0x00] });
    left.extend(&frame[start..]);
    let Some(merged) = FIGURE_4[ecn(start)][ecn(ip_at)].map(usize::from) else {
        return same(Fate::Congestion);
    };
    let (at, change) = (kind + 2, i64::try_from(merged).unwrap() - i64::try_from(ecn(start)).unwrap());
    if inner_is_v6 {
        left[at + 1] = u8::try_from(i64::from(left[at + 1]) + (change << 4)).unwrap();
    } else if change != 0 {
        left[at + 1] = u8::try_from(i64::from(left[at + 1]) + change).unwrap();
        // A wrong checksum must stay wrong by the same amount. Checksums are numbers modulo 65,535.
        let sum = i64::from(u16::from_be_bytes([left[at + 10], left[at + 11]])) - change;
        left[at + 10..at + 12].copy_from_slice(&u16::try_from(sum.rem_euclid(0xffff)).unwrap().to_be_bytes());
    }
    (fate, left)
}

fn count_of(counts: &DecapCounts, fate: &Fate) -> u64 {
    match fate {
        Fate::Gre => counts.gre.ipv4 + counts.gre.ipv6,
        Fate::Ipip => counts.ipip.ipv4 + counts.ipip.ipv6,
        Fate::Gue => counts.gue.ipv4 + counts.gue.ipv6,
        Fate::Refused => counts.refused_source,
        Fate::Malformed => counts.malformed,
        Fate::NoVip => counts.refused_destination,
        Fate::Congestion => counts.congestion,
        Fate::Passed => counts.passed,
    }
}

fn total(counts: &DecapCounts) -> u64 {
    let removed = [Fate::Gre, Fate::Ipip, Fate::Gue];
    let others = [Fate::Refused, Fate::Malformed, Fate::NoVip, Fate::Congestion, Fate::Passed];
    removed.iter().chain(&others).map(|fate| count_of(counts, fate)).sum()
}

/// Generates a tunneled packet. Up to two bytes are changed, and the end may be truncated or
/// padded.
fn shapes() -> impl Strategy<Value = Vec<u8>> {
    let sources4 =
        prop::sample::select(vec![LB4, "198.51.100.15", "198.51.100.16", "203.0.113.7", "203.0.113.6"]);
    let sources6 = prop::sample::select(vec![
        LB6,
        "2001:db8:5:1::7",
        "2001:db8:6::7",
        "2001:db8:6::6",
        "::ffff:198.51.100.7",
    ]);
    let to4 = prop::sample::select(vec![HOST4, HOST4, HOST4, "192.0.2.11"]);
    let to6 = prop::sample::select(vec![HOST6, HOST6, HOST6, "2001:db8::11", "::ffff:192.0.2.10"]);
    let flags =
        prop::sample::select(vec![0, 0, 0, 0x0100, 0x0300, 0x0400, 0x8000, 0x2000, 0x1000, 0x0001, 0x0008]);
    let addresses = (sources4, to4, sources6, to6);
    let vips = prop::sample::select(vec![
        "203.0.113.10",
        "203.0.113.8",
        "203.0.113.12",
        "192.0.2.10",
        "2001:db8:f::10",
        "2001:db8:f::10",
        "2001:db8:f::11",
        "::ffff:203.0.113.10",
    ]);
    let change = prop::collection::vec((14_usize..100, any::<u8>()), 0..3);
    // In most cases the length in the outer header is correct.
    let says = prop_oneof![4 => Just(None), 1 => (0_u8..120).prop_map(Some)];
    let ends = prop_oneof![4 => Just(0_isize), 1 => -40_isize..30];
    // Packets that must be dropped are generated often enough.
    let tos = (
        prop::sample::select(vec![0_u8, 0, 0xb8, 0x21, 2, 0xff]),
        prop::sample::select(vec![3_u8, 3, 0xff, 0x29, 2, 0]),
    );
    (any::<bool>(), vips, 0_usize..4, addresses, 0..6, flags, change, (says, ends, tos)).prop_map(
        |(is_v6, vip, tags, (from4, to4, from6, to6), kind, flags, change, (says, ends, tos))| {
            let inner = with_tos(inner_to(vip), tos.0);
            let (protocol, payload) = match kind {
                0 | 1 => (47, gre(flags, &inner)),
                2 | 3 => (ip_in_ip(&inner), inner),
                4 => (17, gue(&inner)),
                _ => (17, udp(6080, &[u8::try_from(flags >> 8).unwrap(), 4, 0, 0])),
            };
            let (from, to) = if is_v6 { (from6, to6) } else { (from4, to4) };
            let mut frame = frame(tags, &with_tos(packet(ip(from), ip(to), protocol, &payload), tos.1));
            if let Some(length) = says {
                let at = 14 + 4 * tags + if is_v6 { 4 } else { 2 };
                frame[at..at + 2].copy_from_slice(&[0, length]);
            }
            for (at, value) in change {
                if let Some(byte) = frame.get_mut(at) {
                    *byte = value;
                }
            }
            frame.resize(frame.len().saturating_add_signed(ends).max(14), 0);
            frame
        },
    )
}

// Promise: decap-filter
#[test]
fn decap_agrees_with_the_model_on_all_tunnels() {
    bed::enter();
    let decap = attach();
    let program = Program::on_near();
    let seen = std::cell::RefCell::new(std::collections::BTreeMap::<String, u32>::new());
    let config = ProptestConfig { cases: 20_000, failure_persistence: None, ..ProptestConfig::default() };
    TestRunner::new(config)
        .run(&shapes(), |frame| {
            let (fate, expected) = oracle(&frame);
            let before = decap.counts().unwrap();
            let verdict = if fate == Fate::Congestion { DROP } else { PASS };
            prop_assert_eq!(program.run(&frame, 0), (verdict, expected));
            let after = decap.counts().unwrap();
            prop_assert_eq!(count_of(&after, &fate), count_of(&before, &fate) + 1, "{:?}", fate);
            prop_assert_eq!(total(&after), total(&before) + 1);
            *seen.borrow_mut().entry(format!("{fate:?}")).or_default() += 1;
            Ok(())
        })
        .unwrap();
    let seen = seen.into_inner();
    println!("{seen:?}");
    assert_eq!(seen.len(), 8, "a result never occurred: {seen:?}");
    assert!(seen.values().all(|count| *count > 100), "{seen:?}");
}

#[test]
fn decap_delivers_inner_packets_to_a_socket() {
    bed::enter();
    for end in ["all", "near", "lo"] {
        std::fs::write(format!("/proc/sys/net/ipv4/conf/{end}/rp_filter"), "0").unwrap();
    }
    bed::ip(&format!("addr add {HOST4}/24 dev near"));
    bed::ip(&format!("addr add {HOST6}/64 dev near nodad"));
    bed::ip("addr add 203.0.113.10/32 dev lo");
    bed::ip("route add default dev near");
    assert_eq!(host_addresses().unwrap(), [ip(HOST4), ip("203.0.113.10"), ip(HOST6)]);
    let from = [(ip("198.51.100.0"), 28), (ip("2001:db8:5::"), 64)];
    let decap = Decap::attach("near", &host_addresses().unwrap(), &from, &vips()).unwrap();
    let server = UdpSocket::bind("203.0.113.10:80").unwrap();
    server.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    let far = Wire::on("far");
    let inner = inner(false);
    for payload in [
        outer(false, 47, &gre(0, &inner)),
        outer(true, 47, &gre(0, &inner)),
        outer(false, 4, &inner),
        outer(true, 4, &inner),
        outer(false, 17, &gue(&inner)),
        outer(true, 17, &gue(&inner)),
    ] {
        far.send(&frame(0, &payload));
        let mut buffer = [0; 64];
        let (length, from) = server.recv_from(&mut buffer).expect("the inner packet");
        assert_eq!((&buffer[..length], from.to_string().as_str()), (&b"hello"[..], "198.18.0.1:12345"));
    }
    let one = ByFamily { ipv4: 1, ipv6: 1 };
    let counts = decap.counts().unwrap();
    assert_eq!((counts.gre, counts.ipip, counts.gue), (one, one, one));
    assert_eq!((counts.refused_source, counts.malformed), (0, 0));
    // The inner destinations are not VIPs. Decapsulating these packets could bypass the packet
    // filter of the host.
    for to in [HOST4, "127.0.0.1", "203.0.113.12"] {
        far.send(&frame(0, &outer(false, 47, &gre(0, &inner_to(to)))));
    }
    bed::eventually("three inner packets to no VIP", || decap.counts().unwrap().refused_destination == 3);
    assert_eq!(decap.counts().unwrap().gre, one);
}

#[test]
fn decap_dropped_leaves_no_program() {
    bed::enter();
    let decap = attach();
    assert!(Interface::read("near").unwrap().xdp_program.is_some());
    assert_eq!(decap.mode().name(), "driver");
    drop(decap);
    bed::eventually("no program on near", || Interface::read("near").unwrap().xdp_program.is_none());
}
