//! Tests of all encapsulations, each over IPv4 and IPv6 and with IPv4 and IPv6 packets inside.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use testbed::{Balancer, Bed, BedSpec, Capture, Decap, Encapsulation, Frame, Kind, LbConfig, Outer};

use crate::scene::{BOUND, Scene};

/// Sends TCP and UDP packets over IPv4 and IPv6. The balancer must send as many packets as it
/// received, and the backends must decapsulate all of them.
fn carries(kind: Encapsulation, outer_v4: bool) {
    let config = |bed: &Bed| {
        let config = LbConfig::new(bed).encapsulation(kind);
        if outer_v4 { config } else { config.outer_v6(bed) }
    };
    let scene = Scene::with(config);
    let outside = watch(&scene);
    for ipv4 in [true, false] {
        scene.ask(ipv4, 8);
        let mut flows = scene.flows(ipv4, 8);
        scene.round(&mut flows);
    }
    let counts = scene.settled();
    assert_eq!(counts.drops(), []);
    assert_eq!(counts.over_threads(&["head_room_mismatch"]), 0);
    scene.taken_off(counts.sent());
    let expected = match kind {
        Encapsulation::Gre => Kind::Gre,
        Encapsulation::Ipip => Kind::Ipip,
        Encapsulation::Gue => Kind::Gue,
        Encapsulation::L2 => unreachable!("l2 does not encapsulate"),
    };
    let host = &scene.bed.balancers[0];
    let sent = usize::try_from(counts.sent()).unwrap();
    let wrapped = wrapped(&outside.wait_for(sent, BOUND).unwrap());
    let addresses: BTreeSet<IpAddr> =
        scene.bed.backends.iter().map(|b| if outer_v4 { b.v4.into() } else { b.v6.into() }).collect();
    for Outer { kind, outer, inner } in &wrapped {
        assert_eq!((*kind, outer.source), (expected, host.address(outer.destination)));
        assert!(addresses.contains(&outer.destination) && outer.checksum_ok && inner.checksum_ok);
        assert_eq!(
            (outer.ttl, inner.ttl),
            (64, 62),
            "the router and the balancer must each decrement the TTL"
        );
        assert!(inner.transport_checksum_ok().unwrap_or(true));
        assert!(outer.transport_checksum_ok().unwrap_or(true));
    }
    let kinds: BTreeSet<_> = wrapped.iter().map(|o| (o.inner.source.is_ipv4(), o.inner.protocol)).collect();
    assert_eq!(kinds, BTreeSet::from([(true, 6), (true, 17), (false, 6), (false, 17)]));
    if kind == Encapsulation::Gue {
        one_value_a_flow(&wrapped, |outer| outer.outer.ports().unwrap().0);
    }
}

/// Captures the packets that the balancer sends to the router.
fn watch(scene: &Scene) -> Capture {
    let host = &scene.bed.balancers[0];
    let wrapped = |frame: &[u8]| Frame::parse(frame).is_some_and(|frame| frame.outer().is_some());
    Capture::start(&scene.bed.router, &host.port, 10_000, wrapped).unwrap()
}

fn wrapped(frames: &[testbed::Captured]) -> Vec<Outer> {
    frames.iter().filter(|f| !f.outgoing).map(|f| Frame::parse(&f.bytes).unwrap().outer().unwrap()).collect()
}

/// Checks that `value` is the same for all packets of a flow and differs between flows. Returns one
/// value for each flow.
fn one_value_a_flow<T: Ord + Copy + std::fmt::Debug>(
    wrapped: &[Outer],
    value: impl Fn(&Outer) -> T,
) -> BTreeSet<T> {
    let mut by_flow: BTreeMap<_, BTreeSet<T>> = BTreeMap::new();
    for outer in wrapped {
        let inner = &outer.inner;
        let flow = (inner.source, inner.destination, inner.protocol, inner.ports());
        by_flow.entry(flow).or_default().insert(value(outer));
    }
    assert!(by_flow.values().all(|values| values.len() == 1), "{by_flow:?}");
    let all: BTreeSet<T> = by_flow.into_values().flatten().collect();
    assert!(all.len() > 1, "{all:?}");
    all
}

#[test]
fn gre_over_ipv4_carries_both_families() {
    carries(Encapsulation::Gre, true);
}

#[test]
fn gre_over_ipv6_carries_both_families() {
    carries(Encapsulation::Gre, false);
}

#[test]
fn ipip_over_ipv4_carries_both_families() {
    carries(Encapsulation::Ipip, true);
}

#[test]
fn ipip_over_ipv6_carries_both_families() {
    carries(Encapsulation::Ipip, false);
}

#[test]
fn gue_over_ipv4_carries_both_families() {
    carries(Encapsulation::Gue, true);
}

#[test]
fn gue_over_ipv6_carries_both_families() {
    carries(Encapsulation::Gue, false);
}

#[test]
fn l2_carries_both_families() {
    let spec = BedSpec { switched: true, ..BedSpec::default() };
    let scene = Scene::new(&spec, |bed| LbConfig::new(bed).encapsulation(Encapsulation::L2));
    for ipv4 in [true, false] {
        scene.ask(ipv4, 8);
        let mut flows = scene.flows(ipv4, 8);
        scene.round(&mut flows);
    }
    assert_eq!(scene.settled().drops(), []);
}

#[test]
fn outer_source_is_constant_per_flow() {
    for (prefix, outer_v4) in [("198.51.100.0/28", true), ("2001:db8:5::/64", false)] {
        let bed = Bed::new(&BedSpec::default()).unwrap();
        let mut config = LbConfig::new(&bed);
        config.encapsulation_keys = format!("source_prefixes = [\"{prefix}\"]");
        if !outer_v4 {
            config = config.outer_v6(&bed);
        }
        let from = [prefix.to_owned()];
        let decaps: Vec<_> = (0..3).map(|index| Decap::start(&bed, index, &from).unwrap()).collect();
        let balancer = Balancer::start(&bed, 0, &config).unwrap();
        let scene = Scene { balancer, decaps, bed };
        let outside = watch(&scene);
        for ipv4 in [true, false] {
            scene.ask(ipv4, 16);
        }
        let counts = scene.settled();
        scene.taken_off(counts.sent());
        let seen = outside.wait_for(usize::try_from(counts.sent()).unwrap(), BOUND).unwrap();
        let sources = one_value_a_flow(&wrapped(&seen), |outer| outer.outer.source);
        let inside = |source: &IpAddr| match source {
            IpAddr::V4(ip) => ip.octets()[..3] == [198, 51, 100] && ip.octets()[3] < 16,
            IpAddr::V6(ip) => ip.segments()[..4] == [0x2001, 0xdb8, 5, 0],
        };
        assert!(sources.iter().all(inside), "{sources:?}");
        // The probability that 32 flows use fewer than 8 of 16 addresses is below 1e-6.
        assert!(sources.len() >= 8, "{sources:?}");
    }
}
