//! Tests of prefix groups on the packet path: which VIPs accept packets, which packets are dropped,
//! and which entries the XDP filter contains.

use std::net::IpAddr;

use etherparse::PacketBuilder;
use forwarder::{
    Binding, Decision, DropReason, Flow, Prefix, PrefixGroup, Snapshot, SnapshotError, Suffix, Verdict,
    VipAddress,
};
use packet::Encapsulation;

use crate::bed::{Bed, OURS, ROUTER, gre_slots, ip, parts, slot, tcp};

fn prefix(address: &str, length: u8) -> Prefix {
    Prefix::new(ip(address), length).unwrap()
}

fn group(name: &str, prefixes: &[(&str, u8)]) -> PrefixGroup {
    PrefixGroup {
        name: name.into(),
        prefixes: prefixes.iter().map(|(address, length)| prefix(address, *length)).collect(),
    }
}

fn grouped(group: usize, suffix: &str, length: u8, service: usize) -> Binding {
    let suffix = Suffix::new(ip(suffix), length).unwrap();
    Binding { address: VipAddress::Suffix { group, suffix }, protocol: 6, ports: 80..=80, service }
}

fn ping(source: &str, vip: &str) -> Vec<u8> {
    let link = PacketBuilder::ethernet2(ROUTER, OURS);
    let mut bytes = Vec::new();
    match (ip(source), ip(vip)) {
        (IpAddr::V4(s), IpAddr::V4(d)) => {
            link.ipv4(s.octets(), d.octets(), 64).icmpv4_echo_request(1, 2).write(&mut bytes, b"hello")
        }
        (IpAddr::V6(s), IpAddr::V6(d)) => {
            link.ipv6(s.octets(), d.octets(), 64).icmpv6_echo_request(1, 2).write(&mut bytes, b"hello")
        }
        _ => panic!("addresses of different families"),
    }
    .unwrap();
    bytes
}

fn edge() -> forwarder::Parts {
    let mut parts = parts(gre_slots(3), &[1, 1, 1]);
    parts.groups = vec![group("edge", &[("198.51.100.0", 24), ("2001:db8:e::", 48)])];
    parts.bindings.extend([grouped(0, "0.0.0.20", 5, 0), grouped(0, "::20", 72, 0)]);
    parts
}

#[test]
fn group_serves_the_vips_of_every_cluster_and_no_others() {
    let mut bed = Bed::new(edge());
    for (client, vip) in [
        ("198.18.0.7", "198.51.100.20"),
        ("198.18.0.7", "198.51.100.244"),
        ("2001:db8::7", "2001:db8:e::20"),
        ("2001:db8::7", "2001:db8:e:ab00::20"),
    ] {
        assert_eq!(bed.send(24, &tcp(client, 4000, vip, 80, "S")).0, Verdict::Tx, "{vip}");
        assert_eq!(
            bed.send(24, &tcp(client, 4000, vip, 81, "S")).0,
            Verdict::Drop(DropReason::NoVip),
            "{vip}"
        );
        assert_eq!(bed.send(24, &ping(client, vip)).0, Verdict::Reply, "{vip}");
        let flow = Flow::new((ip(client), 4000), (ip(vip), 80), 6).unwrap();
        assert!(matches!(bed.live.current().decide(&flow), Decision::Chosen { service: 0, .. }), "{vip}");
    }
    for (client, vip) in [("198.18.0.7", "198.51.100.21"), ("2001:db8::7", "2001:db8:e:1::20")] {
        assert_eq!(
            bed.send(24, &tcp(client, 4000, vip, 80, "S")).0,
            Verdict::Drop(DropReason::NoVip),
            "{vip}"
        );
        assert_eq!(bed.send(24, &ping(client, vip)).0, Verdict::Drop(DropReason::NoVip), "{vip}");
    }
}

#[test]
fn unknown_groups_and_shared_prefixes_are_refused() {
    let mut nowhere = edge();
    nowhere.bindings.push(grouped(1, "0.0.0.1", 8, 0));
    assert_eq!(Snapshot::new(nowhere).err(), Some(SnapshotError::NoSuchGroup(1)));
    let mut twice = edge();
    twice.groups.push(group("far", &[("198.51.100.0", 24)]));
    let error = Snapshot::new(twice).unwrap_err();
    assert_eq!(error.to_string(), "prefix 198.51.100.0/24 is in groups edge and far");
    let mut clash = edge();
    clash.bindings.push(grouped(0, "0.0.0.20", 5, 1));
    let error = Snapshot::new(clash).unwrap_err();
    assert_eq!(error.to_string(), "s0 and s1 claim the same address, protocol and port");
}

#[test]
fn filter_has_the_prefixes_of_groups_with_vips() {
    let slots =
        vec![slot("b1", "198.18.1.1", Encapsulation::Gre), slot("b2", "198.18.1.2", Encapsulation::Ipip)];
    let filter = |groups: Vec<PrefixGroup>, bindings: Vec<Binding>| {
        let mut parts = parts(slots.clone(), &[1, 2]);
        parts.groups = groups;
        parts.bindings = bindings;
        let snapshot = Snapshot::new(parts).unwrap();
        assert!(snapshot.filter().is_empty());
        let shown = snapshot.filter_prefixes().iter();
        shown.map(ToString::to_string).collect::<Vec<_>>()
    };
    let groups = || {
        vec![
            group("idle", &[("203.0.113.0", 24)]),
            group("one", &[("198.51.100.0", 25), ("2001:db8:e::", 48)]),
            group("two", &[("198.51.100.128", 25), ("192.0.2.0", 24)]),
        ]
    };
    let both = || vec![grouped(1, "0.0.0.1", 7, 0), grouped(2, "0.0.0.1", 7, 0)];
    assert_eq!(filter(groups(), both()), ["192.0.2.0/24", "198.51.100.0/24", "2001:db8:e::/48"]);
    assert_eq!(filter(groups(), both()[1..].to_vec()), ["192.0.2.0/24", "198.51.100.128/25"]);
    assert_eq!(filter(groups(), vec![]), [""; 0]);
    let many = group("many", &[]);
    let prefixes = (0..100).map(|n| prefix(&format!("198.18.{}.0", n * 2), 24)).collect();
    let many = PrefixGroup { prefixes, ..many };
    assert_eq!(filter(vec![many], vec![grouped(0, "0.0.0.1", 8, 0)]).len(), 64);
}
