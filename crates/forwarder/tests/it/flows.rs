//! Tests of backend selection and of the lifetime of flows.

use forwarder::*;
use std::collections::HashMap;

use crate::bed::*;

#[test]
fn a_flow_stays_while_weights_change_and_its_backend_serves() {
    let slots = gre_slots(4);
    let mut bed = Bed::new(parts(slots.clone(), &[1, 1, 1, 1]));
    let frames: Vec<_> = (0..500).map(|port| tcp("198.51.100.7", 1000 + port, VIP4, 80, "A")).collect();
    let first: Vec<_> = frames.iter().map(|frame| bed.backend_of(frame)).collect();
    for (round, weights) in [[9, 1, 1, 1], [0, 0, 0, 1], [1, 5, 0, 9]].iter().enumerate() {
        let mut next = parts(slots.clone(), weights);
        next.generation = Generation(round as u64 + 2);
        bed.live.publish(Snapshot::new(next).unwrap());
        let now: Vec<_> = frames.iter().map(|frame| bed.backend_of(frame)).collect();
        assert_eq!(now, first, "round {round}");
    }
    assert_eq!(bed.counters.reselected.read(), 0);
}

// Promise: backend-failure
#[test]
fn a_down_backends_flows_move_once_and_a_draining_ones_stay() {
    let slots = gre_slots(3);
    let mut bed = Bed::new(parts(slots.clone(), &[1, 1, 1]));
    let frames: Vec<_> = (0..300).map(|port| tcp("198.51.100.7", 1000 + port, VIP4, 80, "A")).collect();
    let first: Vec<_> = frames.iter().map(|frame| bed.backend_of(frame).unwrap()).collect();
    let changed = vec![SlotState::Down, SlotState::Draining, SlotState::Serving];
    let next = bed.live.current().with_states(changed).unwrap();
    bed.live.publish(next);
    let second: Vec<_> = frames.iter().map(|frame| bed.backend_of(frame).unwrap()).collect();
    for (before, after) in first.iter().zip(&second) {
        // Flows on the draining backend stay there, and all flows on the failed backend move.
        assert_eq!(*after, if *before == 1 { 3 } else { *before });
    }
    let moved = first.iter().filter(|backend| **backend == 1).count();
    assert_eq!(bed.counters.reselected.read(), moved as u64);
    let third: Vec<_> = frames.iter().map(|frame| bed.backend_of(frame).unwrap()).collect();
    assert_eq!(third, second);
    assert_eq!(bed.counters.reselected.read(), moved as u64, "a moved flow is tracked at its new backend");
}

#[test]
fn syn_on_a_closing_flow_leaves_only_a_draining_backend() {
    let mut bed = Bed::new(parts(gre_slots(3), &[1, 1, 1]));
    let frame = |port: u16, flags: &str| tcp("198.51.100.7", 1000 + port, VIP4, 80, flags);
    let begin = |bed: &mut Bed, port: u16| {
        let first = bed.backend_of(&frame(port, "S")).unwrap();
        bed.advance(1);
        assert_eq!(bed.backend_of(&frame(port, "A")), Some(first));
        first
    };
    // The flows progress in steps of one second, which is shorter than the timeout for flows that
    // are being opened.
    let first: Vec<_> = (0..100).map(|port| begin(&mut bed, port)).collect();
    let states = vec![SlotState::Draining, SlotState::Serving, SlotState::Serving];
    bed.live.publish(bed.live.current().with_states(states).unwrap());
    for (port, before) in (0..).zip(&first) {
        assert_eq!(
            bed.backend_of(&frame(port, "S")),
            Some(*before),
            "a SYN does not move an established flow"
        );
        for flags in ["FA", "A", "RA", "SA"] {
            assert_eq!(bed.backend_of(&frame(port, flags)), Some(*before), "{flags}");
        }
        let after = bed.backend_of(&frame(port, "S")).unwrap();
        assert!(if *before == 1 { after != 1 } else { after == *before }, "{before} {after}");
        for flags in ["S", "A", "FA", "S"] {
            assert_eq!(
                bed.backend_of(&frame(port, flags)),
                Some(after),
                "{flags}: the flow is tracked there"
            );
        }
    }
    let moved = first.iter().filter(|backend| **backend == 1).count();
    assert!(moved > 0);
    assert_eq!(bed.counters.reselected.read(), moved as u64);
}

#[test]
fn reused_5_tuple_never_gets_a_draining_backend() {
    let mut bed = Bed::new(parts(gre_slots(1), &[1]));
    let frame = |flags: &str| tcp("198.51.100.7", 1000, VIP4, 80, flags);
    assert_eq!(bed.backend_of(&frame("S")), Some(1));
    assert_eq!(bed.backend_of(&frame("FA")), Some(1));
    bed.live.publish(bed.live.current().with_states(vec![SlotState::Draining]).unwrap());
    for _ in 0..3 {
        assert_eq!(bed.backend_of(&frame("S")), None, "repeated packets are dropped too");
    }
    bed.live.publish(bed.live.current().with_states(vec![SlotState::Serving]).unwrap());
    assert_eq!(bed.backend_of(&frame("S")), Some(1));
}

#[test]
fn flows_on_an_excluded_slot_are_reselected() {
    let slots = gre_slots(3);
    let mut bed = Bed::new(parts(slots, &[1, 1, 1]));
    let ours: Vec<_> = (0..300).map(|port| tcp("198.51.100.7", 1000 + port, VIP4, 80, "A")).collect();
    let theirs: Vec<_> = (0..250).map(|host| udp(&format!("198.51.100.{host}"), 9, VIP4, 53, b"")).collect();
    let backends = |bed: &mut Bed, frames: &[Vec<u8>]| -> Vec<u8> {
        frames.iter().map(|frame| bed.backend_of(frame).unwrap()).collect()
    };
    let (first, other) = (backends(&mut bed, &ours), backends(&mut bed, &theirs));
    let current = bed.live.current();
    let mut services = current.services().to_vec();
    let smaller = pool(current.slots(), &[0, 1, 1]);
    services[0].pool = smaller;
    bed.live.publish(current.with_services(services.clone()).unwrap());
    assert_eq!(backends(&mut bed, &ours), first, "flows stay while no slot is excluded");
    services[0].excluded_slots = [SlotId(0)].into();
    bed.live.publish(current.with_services(services).unwrap());
    for (before, after) in first.iter().zip(backends(&mut bed, &ours)) {
        assert!(if *before == 1 { after != 1 } else { after == *before }, "{before} {after}");
    }
    assert_eq!(backends(&mut bed, &theirs), other);
    let moved = first.iter().filter(|backend| **backend == 1).count();
    assert_eq!(bed.counters.reselected.read(), moved as u64);
}

#[test]
fn new_flows_avoid_what_does_not_serve_and_spread_over_the_rest() {
    let slots = gre_slots(10);
    let mut bed = Bed::new(parts(slots.clone(), &[1; 10]));
    let mut changed = vec![SlotState::Down; 10];
    changed[3] = SlotState::Serving;
    changed[9] = SlotState::Serving;
    let next = bed.live.current().with_states(changed).unwrap();
    bed.live.publish(next);
    let mut shares = HashMap::new();
    for port in 0..2000 {
        *shares.entry(bed.backend_of(&tcp("198.51.100.7", port, VIP4, 80, "S")).unwrap()).or_insert(0) += 1;
    }
    assert_eq!(shares.len(), 2);
    // The distribution is binomial with 2,000 flows and probability 1/2. The tolerance of 134 is
    // six standard deviations.
    assert!(shares.values().all(|share: &i32| (share - 1000).abs() < 134), "{shares:?}");
}

#[test]
fn a_restart_moves_exactly_the_flows_whose_table_entry_changed() {
    let slots = gre_slots(5);
    let before = Snapshot::new(parts(slots.clone(), &[1, 1, 1, 1, 1])).unwrap();
    let after = Snapshot::new(parts(slots.clone(), &[1, 1, 3, 1, 1])).unwrap();
    let table =
        |snapshot: &Snapshot| std::sync::Arc::clone(snapshot.services()[0].pool.table.as_ref().unwrap());
    let (old, new) = (table(&before), table(&after));
    let mut first = Bed::new(parts(slots.clone(), &[1, 1, 1, 1, 1]));
    let mut second = Bed::new(parts(slots, &[1, 1, 3, 1, 1]));
    let hasher = FlowHasher::new(&HashKey::new([5; 16]));
    let mut moved = 0;
    for port in 1..3000 {
        let frame = tcp("198.51.100.7", port, VIP4, 80, "A");
        let flow = Flow::new((ip("198.51.100.7"), port), (ip(VIP4), 80), 6).unwrap();
        let hash = hasher.hash(HashPolicy::FiveTuple, &flow);
        let entry_changed = old.lookup_uniform(hash) != new.lookup_uniform(hash);
        let flow_moved = first.backend_of(&frame) != second.backend_of(&frame);
        assert_eq!(flow_moved, entry_changed);
        moved += usize::from(flow_moved);
    }
    assert!(moved > 0);
}

#[test]
fn backends_get_packets_and_bytes_on_their_own_account() {
    let mut bed = Bed::new(parts(gre_slots(2), &[1, 1]));
    let mut counts = [(0u64, 0u64); 2];
    for port in 0..100 {
        let frame = udp("198.51.100.7", port, VIP4, 443, &vec![0; usize::from(port)]);
        let backend = bed.backend_of(&frame).unwrap();
        let count = &mut counts[usize::from(backend) - 1];
        *count = (count.0 + 1, count.1 + frame.len() as u64);
    }
    let all = bed.counters.service(0).unwrap();
    assert_eq!(
        (all.packets.read(), all.bytes.read()),
        (counts[0].0 + counts[1].0, counts[0].1 + counts[1].1)
    );
    for (slot, count) in (0..).zip(counts) {
        let pair = bed.counters.backend(slot).unwrap();
        assert_eq!((pair.packets.read(), pair.bytes.read()), count);
    }
}

#[test]
fn a_full_table_forwards_by_maglev_and_counts_it() {
    let mut bed = Bed::with_flows(parts(gre_slots(3), &[1, 1, 1]), 1024);
    let frames: Vec<_> = (0..4000).map(|port| tcp("198.51.100.7", port, VIP4, 80, "A")).collect();
    for frame in &frames {
        assert!(bed.backend_of(frame).is_some());
        bed.advance(0);
    }
    // A second packet in a later tick ends the probation period of a flow. After that, the entry is
    // not evicted.
    bed.advance(1);
    let backends: Vec<_> = frames.iter().map(|frame| bed.backend_of(frame)).collect();
    assert!(backends.iter().all(Option::is_some));
    bed.poll();
    let table = &bed.counters.flow_table;
    assert!(table.evicted.read() > 0);
    assert!(table.entries.read() <= 1024 + 256);
    let hits_and_misses = table.hits.read() + table.misses.read();
    assert_eq!(hits_and_misses, 8000);
}
