//! Tests of the source lists and rate limits of VIPs: verdicts and counters.

use std::num::NonZeroU32;
use std::sync::Arc;

use forwarder::*;

use crate::bed::*;

fn list(prefixes: &[(&str, u8)]) -> Option<Arc<PrefixSet>> {
    Some(Arc::new(PrefixSet::new(prefixes.iter().map(|(address, length)| (ip(address), *length)))))
}

fn each(rate: u32, v4_prefix: u8, v6_prefix: u8) -> Option<SourceLimit> {
    Some(SourceLimit { new_flows_per_second: NonZeroU32::new(rate)?, v4_prefix, v6_prefix })
}

/// Returns a configuration in which only service 0 (TCP 80, UDP 443) has the guard.
fn guarded(guard: Guard) -> Parts {
    let mut parts = parts(gre_slots(3), &[1, 1, 1]);
    parts.services[0].guard = Some(Arc::new(guard));
    parts
}

fn publish(bed: &Bed, guard: Option<Guard>) {
    let current = bed.live.current();
    let mut services = current.services().to_vec();
    services[0].guard = guard.map(Arc::new);
    bed.live.publish(current.with_services(services).unwrap());
}

/// Returns all drop reasons that occurred, with the number of drops.
fn drops(bed: &Bed) -> Vec<(&'static str, u64)> {
    let all = DropReason::ALL.iter().map(|reason| (reason.name(), bed.counters.drops(*reason)));
    all.filter(|(_, count)| *count > 0).collect()
}

#[test]
fn without_a_guard_nobody_is_asked() {
    let mut bed = Bed::new(parts(gre_slots(3), &[1, 1, 1]));
    for port in 0..1000 {
        assert_eq!(bed.send(24, &tcp("198.51.100.7", port, VIP4, 80, "S")).0, Verdict::Tx);
    }
    assert_eq!(drops(&bed), []);
}

#[test]
fn allow_list_serves_only_its_sources_and_deny_list_wins() {
    let guard = Guard {
        allow: list(&[("198.51.100.0", 24), ("2001:db8:1::", 48)]),
        deny: list(&[("198.51.100.128", 25), ("192.0.2.0", 24)]),
        ..Guard::default()
    };
    let mut bed = Bed::new(guarded(guard));
    let rows = [
        ("198.51.100.7", VIP4, Verdict::Tx),
        ("198.51.100.128", VIP4, Verdict::Drop(DropReason::Denied)),
        ("192.0.2.9", VIP4, Verdict::Drop(DropReason::NotAllowed)),
        ("203.0.113.200", VIP4, Verdict::Drop(DropReason::NotAllowed)),
        ("2001:db8:1::9", VIP6, Verdict::Tx),
        ("2001:db8:2::9", VIP6, Verdict::Drop(DropReason::NotAllowed)),
        ("::ffff:198.51.100.7", VIP6, Verdict::Drop(DropReason::NotAllowed)),
    ];
    for (source, vip, verdict) in rows {
        assert_eq!(bed.send(24, &tcp(source, 9, vip, 80, "S")).0, verdict, "{source}");
    }
    assert_eq!(drops(&bed), [("not_allowed", 4), ("denied", 1)]);
    assert_eq!(bed.pipeline.flows().len(), 2, "refused packets create no flow");
    assert_eq!(bed.counters.service(0).unwrap().flows.read(), 2);
    let other = udp("192.0.2.9", 9, VIP4, 53, b"");
    assert_eq!(bed.send(24, &other).0, Verdict::Tx, "another service has no guard");
}

/// Returns an ICMPv4 packet from `source` to the first VIP. Without `client`, the packet is an echo
/// request. With `client`, the packet is an ICMP error that quotes a reply to this client.
fn icmp(source: [u8; 4], client: Option<[u8; 4]>) -> Vec<u8> {
    let (mut frame, mut quote) = (Vec::new(), Vec::new());
    let step = etherparse::PacketBuilder::ethernet2(ROUTER, OURS).ipv4(source, [203, 0, 113, 10], 64);
    let Some(client) = client else {
        step.icmpv4_echo_request(1, 2).write(&mut frame, b"ping").unwrap();
        return frame;
    };
    let answer = etherparse::PacketBuilder::ipv4([203, 0, 113, 10], client, 60);
    answer.tcp(80, 9, 7, 8).write(&mut quote, &[0; 20]).unwrap();
    step.icmpv4_raw(3, 1, [0; 4]).write(&mut frame, &quote).unwrap();
    frame
}

#[test]
fn access_lists_check_pingers_and_quoted_clients() {
    let guard = Guard {
        allow: list(&[("198.51.100.0", 24)]),
        deny: list(&[("198.51.100.128", 25)]),
        ..Guard::default()
    };
    let mut bed = Bed::new(guarded(guard));
    let (served, denied, router) = ([198, 51, 100, 7], [198, 51, 100, 130], [192, 0, 2, 254]);
    assert_eq!(bed.send(24, &icmp(served, None)).0, Verdict::Reply);
    assert_eq!(bed.send(24, &icmp(denied, None)).0, Verdict::Drop(DropReason::Denied));
    assert_eq!(bed.send(24, &icmp(router, None)).0, Verdict::Drop(DropReason::NotAllowed));
    assert_eq!(bed.send(24, &icmp(router, Some(served))).0, Verdict::Tx, "the lists do not apply to routers");
    assert_eq!(bed.send(24, &icmp(served, Some(denied))).0, Verdict::Drop(DropReason::Denied));
    assert_eq!(drops(&bed), [("not_allowed", 1), ("denied", 2)]);
    // The `where` command predicts the same verdict for a ping.
    let foretold = |source: [u8; 4]| {
        let flow = Flow::new((source, 0), (ip(VIP4), 0), 1).unwrap();
        bed.live.current().explain(&flow, None).outcome
    };
    assert_eq!(
        [served, denied, router].map(foretold),
        [Outcome::Reply, Outcome::Drop(DropReason::Denied), Outcome::Drop(DropReason::NotAllowed)]
    );
}

#[test]
fn new_deny_list_stops_known_flows_until_it_is_removed() {
    let mut bed = Bed::new(parts(gre_slots(3), &[1, 1, 1]));
    let (cut, stays) = (tcp("198.51.100.7", 9, VIP4, 80, "A"), tcp("198.51.100.8", 9, VIP4, 80, "A"));
    let before = [bed.backend_of(&cut), bed.backend_of(&stays)];
    assert!(before.iter().all(Option::is_some));
    publish(&bed, Some(Guard { deny: list(&[("198.51.100.7", 32)]), ..Guard::default() }));
    assert_eq!(bed.send(24, &cut).0, Verdict::Drop(DropReason::Denied));
    assert_eq!(bed.backend_of(&stays), before[1]);
    publish(&bed, None);
    assert_eq!(bed.backend_of(&cut), before[0], "the flow returns to its backend");
    assert_eq!((drops(&bed), bed.pipeline.flows().len()), (vec![("denied", 1)], 2));
}

// Promise: limits-spare-known-flows
#[test]
fn a_limit_counts_new_flows_and_no_packet_of_a_known_one() {
    for has_fast_path in [true, false] {
        limit_counts_new_flows_only(has_fast_path);
    }
}

fn limit_counts_new_flows_only(has_fast_path: bool) {
    let limit = Guard { new_flows_per_second: NonZeroU32::new(5), ..Guard::default() };
    let mut bed = Bed::new(guarded(limit.clone()));
    if !has_fast_path {
        bed.pipeline = bed.pipeline.without_fast_path();
    }
    let frames: Vec<_> = (0..8).map(|n| tcp(&format!("198.51.100.{n}"), 9, VIP4, 80, "S")).collect();
    for round in 0..3 {
        let sent = frames.iter().filter(|frame| bed.send(24, frame).0 == Verdict::Tx).count();
        assert_eq!(sent, 5, "round {round}: the first five flows are known");
    }
    assert_eq!(drops(&bed), [("flow_rate", 9)]);
    assert_eq!(bed.counters.service(0).unwrap().flows.read(), 5);
    // Publishing a snapshot, as a reload does, does not reset the rate limit.
    publish(&bed, Some(limit));
    assert_eq!(bed.send(24, &frames[7]).0, Verdict::Drop(DropReason::FlowRate));
    bed.advance(1);
    let sent = frames.iter().filter(|frame| bed.send(24, frame).0 == Verdict::Tx).count();
    assert_eq!(sent, 8, "five more flows per second");
}

// Promise: crowded-limits
#[test]
fn a_crowded_table_charges_no_packet_of_what_goes_on() {
    let mut bed = Bed::with_flows(guarded(Guard::default()), 64);
    let mut open = |port: u16, flags| bed.send(24, &tcp("198.51.100.7", port, VIP4, 80, flags)).0;
    let flows: Vec<u16> = (1_000..1_064).filter(|port| open(*port, "S") == Verdict::Tx).collect();
    for _ in 0..4 {
        bed.advance(1);
        let known = flows.iter().map(|port| bed.send(24, &tcp("198.51.100.7", *port, VIP4, 80, "A")).0);
        assert!(known.into_iter().all(|verdict| verdict == Verdict::Tx));
    }
    assert!(bed.pipeline.flows().is_crowded());
    // New flows are counted against the limit, but packets of known flows are not.
    publish(&bed, Some(Guard { new_flows_per_second: NonZeroU32::new(3), ..Guard::default() }));
    let mut sent = |source, flags| {
        let frames = (2_000..2_050).map(|port| tcp(source, port, VIP4, 80, flags));
        frames.filter(|frame| bed.send(24, frame).0 == Verdict::Tx).count()
    };
    assert_eq!((sent("198.51.100.8", "A"), sent("198.51.100.9", "S")), (50, 3));
}

#[test]
fn a_flow_that_is_reselected_is_no_new_one() {
    let limit = Guard { new_flows_per_second: NonZeroU32::new(40), ..Guard::default() };
    let mut bed = Bed::new(guarded(limit));
    let frames: Vec<_> = (0..40).map(|port| tcp("198.51.100.7", port, VIP4, 80, "A")).collect();
    let first: Vec<_> = frames.iter().map(|frame| bed.backend_of(frame).unwrap()).collect();
    let changed = vec![SlotState::Down, SlotState::Serving, SlotState::Serving];
    bed.live.publish(bed.live.current().with_states(changed).unwrap());
    let moved = first.iter().filter(|backend| **backend == 1).count() as u64;
    assert!(frames.iter().all(|frame| bed.backend_of(frame).is_some()), "reselection is not charged");
    assert_eq!((bed.counters.reselected.read(), drops(&bed)), (moved, vec![]));
}

#[test]
fn source_limit_applies_per_prefix_and_for_all_services() {
    let guard = Arc::new(Guard { per_source: each(3, 24, 64), ..Guard::default() });
    let mut parts = parts(gre_slots(3), &[1, 1, 1]);
    parts.services.iter_mut().for_each(|service| service.guard = Some(Arc::clone(&guard)));
    let mut bed = Bed::new(parts);
    let mut sent =
        |frames: Vec<Vec<u8>>| frames.iter().filter(|frame| bed.send(24, frame).0 == Verdict::Tx).count();
    assert_eq!(sent((0..9).map(|n| tcp(&format!("198.51.100.{n}"), 9, VIP4, 80, "S")).collect()), 3);
    assert_eq!(sent(vec![udp("198.51.100.77", 9, VIP4, 53, b"")]), 0, "another service of the VIP");
    assert_eq!(sent((0..9).map(|n| udp("192.0.2.7", n, VIP4, 443, b"")).collect()), 3);
    assert_eq!(sent((0..9).map(|n| tcp(&format!("2001:db8:1:2::{n}"), 9, VIP6, 80, "S")).collect()), 3);
    assert_eq!(sent(vec![tcp("2001:db8:1:3::1", 9, VIP6, 80, "S")]), 1);
    assert_eq!(drops(&bed), [("source_flow_rate", 6 + 1 + 6 + 6)]);
}

#[test]
fn the_source_s_limit_speaks_before_the_vip_s() {
    let guard =
        Guard { new_flows_per_second: NonZeroU32::new(4), per_source: each(2, 32, 128), ..Guard::default() };
    let mut bed = Bed::new(guarded(guard));
    for port in 0..10 {
        let _ = bed.send(24, &tcp("198.51.100.7", port, VIP4, 80, "S"));
    }
    assert_eq!(drops(&bed), [("source_flow_rate", 8)]);
    for host in 8..14 {
        let _ = bed.send(24, &tcp(&format!("198.51.100.{host}"), 9, VIP4, 80, "S"));
    }
    assert_eq!(drops(&bed), [("source_flow_rate", 8), ("flow_rate", 4)]);
}

#[test]
fn where_names_the_list_that_refuses() {
    let guard = Guard {
        allow: list(&[("198.51.100.0", 24)]),
        deny: list(&[("198.51.100.9", 32)]),
        ..Guard::default()
    };
    let snapshot = Snapshot::new(guarded(guard)).unwrap();
    let decide = |source: &str| snapshot.decide(&Flow::new((ip(source), 5), (ip(VIP4), 80), 6).unwrap());
    assert_eq!(decide("192.0.2.1"), Decision::Refused { service: 0, reason: DropReason::NotAllowed });
    assert_eq!(decide("198.51.100.9"), Decision::Refused { service: 0, reason: DropReason::Denied });
    assert!(matches!(decide("198.51.100.8"), Decision::Chosen { service: 0, .. }));
}

#[test]
fn a_guard_without_a_meter_is_refused() {
    let far = Guard { id: GuardId(GuardId::LIMIT), ..Guard::default() };
    assert_eq!(Snapshot::new(guarded(far)).err(), Some(SnapshotError::TooManyGuards));
    assert!(Snapshot::new(guarded(Guard { id: GuardId(GuardId::LIMIT - 1), ..Guard::default() })).is_ok());
}
