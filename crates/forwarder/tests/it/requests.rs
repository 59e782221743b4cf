//! Tests of control-plane requests to a running pipeline.

use std::collections::BTreeMap;
use std::sync::Arc;

use forwarder::*;

use crate::bed::*;

fn answer(bed: &mut Bed, request: Request) -> Reply {
    bed.port.ask(request).unwrap();
    bed.poll();
    bed.port.answer().expect("one poll serves one request")
}

/// Lists all flows, with at most `room` entries per request.
fn list(bed: &mut Bed, filter: FlowFilter, room: usize) -> Vec<FlowEntry> {
    let (mut found, mut from) = (Vec::new(), Some(FlowCursor::default()));
    while let Some(cursor) = from {
        let request = Request::List { filter, from: cursor, buffer: Vec::with_capacity(room) };
        let Reply::Flows { buffer, next } = answer(bed, request) else { panic!("flows") };
        assert!(buffer.capacity() <= room, "the thread must not grow the buffer");
        found.extend(buffer);
        from = next;
    }
    found
}

fn purge(bed: &mut Bed, filter: FlowFilter) -> usize {
    let (mut purged, mut from) = (0, Some(FlowCursor::default()));
    while let Some(cursor) = from {
        let Reply::Purged { count, next } = answer(bed, Request::Purge { filter, from: cursor }) else {
            panic!("purged")
        };
        purged += count;
        from = next;
    }
    purged
}

#[test]
fn flows_are_listed_in_steps_and_purged_by_backend() {
    let mut bed = Bed::new(parts(gre_slots(2), &[1, 1]));
    let mut to_first = 0;
    for port in 0..200 {
        to_first += usize::from(bed.backend_of(&tcp("198.51.100.7", port, VIP4, 80, "A")) == Some(1));
    }
    bed.backend_of(&udp("198.51.100.7", 7, VIP4, 53, b"")).unwrap();
    assert_eq!(list(&mut bed, FlowFilter::All, 64).len(), 201);
    assert_eq!(list(&mut bed, FlowFilter::Service(ServiceId(1)), 8).len(), 1);
    let on_first = list(&mut bed, FlowFilter::Slot(SlotId(0)), 64);
    assert!((to_first..=to_first + 1).contains(&on_first.len()));
    let purged = purge(&mut bed, FlowFilter::Slot(SlotId(0)));
    assert_eq!(purged, on_first.len());
    assert_eq!(list(&mut bed, FlowFilter::Slot(SlotId(0)), 64), []);
    assert_eq!(list(&mut bed, FlowFilter::All, 64).len(), 201 - purged);
}

/// Counts all flows by slot and service, with at most `room` entries per request.
fn counted(bed: &mut Bed, room: usize) -> BTreeMap<(SlotId, ServiceId), usize> {
    let (mut sums, mut from) = (BTreeMap::new(), Some(FlowCursor::default()));
    while let Some(cursor) = from {
        let request = Request::Count { from: cursor, buffer: Vec::with_capacity(room) };
        let Reply::Counted { buffer, next } = answer(bed, request) else { panic!("counted") };
        assert!(buffer.capacity() <= room, "the thread must not grow the buffer");
        buffer.iter().for_each(|whose| *sums.entry((whose.slot, whose.service)).or_default() += 1);
        from = next;
    }
    sums
}

#[test]
fn flows_are_counted_in_steps_by_slot_and_service() {
    let mut bed = Bed::new(parts(gre_slots(2), &[1, 1]));
    let mut sent = BTreeMap::new();
    for port in 0..300 {
        let (service, packet) = match port % 3 {
            0 => (1, udp(&format!("198.51.100.{}", port % 250), port, VIP4, 53, b"")),
            _ => (0, tcp("198.51.100.7", port, VIP4, 80, "A")),
        };
        let backend = bed.backend_of(&packet).unwrap();
        *sent.entry((SlotId(u32::from(backend) - 1), ServiceId(service))).or_default() += 1;
    }
    for room in [4, 64, 8_192] {
        assert_eq!(counted(&mut bed, room), sent, "step size {room}");
    }
    bed.advance(3_600);
    assert_eq!(counted(&mut bed, 64), BTreeMap::new());
}

#[test]
fn flows_without_recent_packets_are_counted_as_idle() {
    let mut bed = Bed::new(parts(gre_slots(1), &[1]));
    let send = |bed: &mut Bed, port| bed.backend_of(&tcp("198.51.100.7", port, VIP4, 80, "A")).unwrap();
    let active = |bed: &mut Bed| {
        let request = Request::Count { from: FlowCursor::default(), buffer: Vec::with_capacity(8_192) };
        let Reply::Counted { buffer, .. } = answer(bed, request) else { panic!("counted") };
        [true, false].map(|is_active| buffer.iter().filter(|whose| whose.is_active == is_active).count())
    };
    // A flow without a SYN keeps the short timeout of 60 s until its third packet.
    for _ in 0..3 {
        (0..10).for_each(|port| _ = send(&mut bed, port));
        bed.advance(1);
    }
    assert_eq!(active(&mut bed), [10, 0]);
    bed.advance(50);
    (0..3).for_each(|port| _ = send(&mut bed, port));
    bed.advance(15);
    assert_eq!(active(&mut bed), [3, 7], "the last packets of 7 flows arrived 66 s ago");
}

/// The previous process had 300 flows on backend 1 of 2. Hashing would send half of these flows to
/// the other backend. Until a packet of such a flow arrives, only the first thread lists, counts
/// and purges the flow. The `where` command predicts the backend of the next packet.
#[test]
fn flows_of_the_previous_process_are_listed_and_purged_once() {
    let packet = |port| tcp("198.51.100.7", port, VIP4, 80, "A");
    let mut tables = Vec::new();
    for thread in 0..3 {
        let mut old = Bed::new(parts(gre_slots(2), &[1, 0]));
        (0..100).for_each(|port| assert_eq!(old.backend_of(&packet(100 * thread + port)), Some(1)));
        tables.push(old.pipeline.into_flows().unwrap());
    }
    let mut bed = Bed::new(parts(gre_slots(2), &[1, 1]));
    bed.pipeline.use_previous_tables(Arc::new(PreviousTables::new(tables)), Now::from_nanos(u64::MAX));
    let whose = (SlotId(0), ServiceId(0));
    assert_eq!(counted(&mut bed, 64), BTreeMap::from([(whose, 300)]));
    for port in 0..40 {
        assert_eq!(bed.backend_of(&packet(7 * port)), Some(1), "a flow of the previous process");
    }
    assert_eq!(counted(&mut bed, 64), BTreeMap::from([(whose, 300)]), "each flow is counted once");
    assert_eq!(list(&mut bed, FlowFilter::All, 8).len(), 300);
    assert_eq!(list(&mut bed, FlowFilter::Slot(SlotId(1)), 8), []);
    let flow = |port| Flow::new((ip("198.51.100.7"), port), (ip(VIP4), 80), 6).unwrap();
    let tracked = |bed: &mut Bed, port| match answer(bed, Request::Where(flow(port))) {
        Reply::Where(answer) => answer.tracked.map(|entry| entry.slot),
        other => panic!("{other:?}"),
    };
    assert_eq!(
        [0, 1, 299, 300].map(|port| tracked(&mut bed, port)),
        [Some(SlotId(0)), Some(SlotId(0)), Some(SlotId(0)), None]
    );
    assert_eq!(purge(&mut bed, FlowFilter::Slot(SlotId(0))), 300);
    assert_eq!(counted(&mut bed, 64), BTreeMap::new());
    assert_eq!([0, 1, 299].map(|port| tracked(&mut bed, port)), [None; 3]);
    let moved = (0..300).filter(|port| bed.backend_of(&packet(*port)) == Some(2)).count();
    assert!((100..200).contains(&moved), "{moved} of 300 flows follow the hash");
}

/// While established flows fill the table, a SYN is not looked up in the previous process's tables
/// before it gets an entry. If it gets no entry, all packets of the flow go to the same backend.
#[test]
fn untracked_syn_follows_the_previous_tables() {
    let packet = |port, flags| tcp("198.51.100.7", port, VIP4, 80, flags);
    let mut old = Bed::new(parts(gre_slots(2), &[1, 0]));
    (0..40).for_each(|port| assert_eq!(old.backend_of(&packet(port, "A")), Some(1)));
    let tables = vec![old.pipeline.into_flows().unwrap()];
    let mut bed = Bed::with_flows(parts(gre_slots(2), &[0, 1]), 64);
    bed.pipeline.use_previous_tables(Arc::new(PreviousTables::new(tables)), Now::from_nanos(u64::MAX));
    assert_eq!(bed.backend_of(&packet(0, "S")), Some(1), "the table has free entries");
    // A flow cannot be evicted after packets in two ticks. A new flow evicts the oldest flow with
    // packets in one tick, so the newest flows continue first.
    for start in [1_000, 2_000, 3_000] {
        (start..start + 64).for_each(|port| assert_eq!(bed.backend_of(&packet(port, "S")), Some(2)));
        bed.advance(1);
        (start..start + 64).rev().for_each(|port| assert_eq!(bed.backend_of(&packet(port, "A")), Some(2)));
        bed.advance(1);
    }
    assert!(bed.pipeline.flows().is_crowded());
    // A SYN without an entry follows the previous process's entry, as the next packets do.
    for (ports, has_fast_path) in [(3..20, true), (20..40, false)] {
        if !has_fast_path {
            bed.pipeline = bed.pipeline.without_fast_path();
        }
        let mut untracked = 0;
        for port in ports {
            let before = bed.pipeline.flows().counters().untracked;
            let backends = ["S", "A", "A"].map(|flags| bed.backend_of(&packet(port, flags)));
            if bed.pipeline.flows().counters().untracked > before {
                assert_eq!(backends, [Some(1); 3], "flow {port}");
                untracked += 1;
            }
        }
        assert!(untracked > 5, "{untracked} flows were untracked");
    }
}

#[test]
fn where_says_what_the_next_packet_does_and_changes_nothing() {
    let mut bed = Bed::new(parts(gre_slots(3), &[1, 1, 1]));
    let flow = Flow::new((ip("198.51.100.7"), 5), (ip(VIP4), 80), 6).unwrap();
    let Reply::Where(before) = answer(&mut bed, Request::Where(flow)) else { panic!("where") };
    assert_eq!(before.tracked, None);
    let Decision::Chosen { selection, .. } = before.decision else { panic!("chosen") };
    let backend = bed.backend_of(&tcp("198.51.100.7", 5, VIP4, 80, "S")).unwrap();
    assert_eq!(u32::from(backend) - 1, selection.slot.0);
    let Reply::Where(after) = answer(&mut bed, Request::Where(flow)) else { panic!("where") };
    assert_eq!(after.tracked.unwrap().slot, selection.slot);
    let stranger = Flow::new((ip("198.51.100.7"), 5), (ip(VIP4), 81), 6).unwrap();
    let Reply::Where(nowhere) = answer(&mut bed, Request::Where(stranger)) else { panic!("where") };
    assert_eq!((nowhere.decision, nowhere.tracked), (Decision::NoVip, None));
    assert_eq!(nowhere.generation, Generation(1));
}

#[test]
fn an_asker_who_never_reads_blocks_nobody() {
    let mut bed = Bed::new(parts(gre_slots(1), &[1]));
    let flow = Flow::new((ip("198.51.100.7"), 5), (ip(VIP4), 80), 6).unwrap();
    let mut asked = 0;
    for _ in 0..100 {
        asked += u32::from(bed.port.ask(Request::Where(flow)).is_ok());
        bed.poll();
    }
    assert_eq!(asked, 16, "eight replies and eight requests wait");
    assert!(bed.backend_of(&tcp("198.51.100.7", 5, VIP4, 80, "S")).is_some());
    let mut answers = 0;
    for _ in 0..20 {
        while bed.port.answer().is_some() {
            answers += 1;
        }
        bed.poll();
    }
    assert_eq!(answers, 16);
}
