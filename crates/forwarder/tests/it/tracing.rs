//! Tests of packet tracing: marked packets are forwarded like unmarked packets, and every report
//! and every refusal is counted.

use std::sync::Arc;

use forwarder::*;
use proptest::prelude::*;

use crate::bed::*;
use crate::icmp::without_df;
use crate::pieces::*;
use crate::ports;
use crate::tunnels::{from, machines, wrapped};

const CLOCK: u64 = 1_700_000_000;
const CLIENT: &str = "198.51.100.7";
const CLIENT6: &str = "2001:db8:9::7";

/// A pipeline with trace reports enabled.
struct Traced {
    bed: Bed,
    notices: Notices,
    key: TraceKey,
    probe: u32,
}

fn trace(key: HashKey, per_second: u32) -> Trace {
    let receivers = PrefixSet::new([(ip("198.18.0.9"), 32)]);
    Trace { key: TraceKey::derive(&key), receivers, per_second }
}

impl Traced {
    fn new(parts: Parts, config: PipelineConfig, per_second: u32, ring: usize) -> Self {
        let key = parts.hash_key;
        let (sink, notices) = notice_ring(ring);
        let bed = Bed::with(parts, config).with_notices(sink);
        let traced = bed.live.current().as_ref().clone().with_trace(Some(trace(key, per_second)));
        bed.live.publish(traced);
        bed.live.clock().set(CLOCK);
        Self { bed, notices, key: TraceKey::derive(&key), probe: 0 }
    }

    fn usual(parts: Parts) -> Self {
        Self::new(parts, config(), 100, 64)
    }

    fn mark(&mut self) -> Mark {
        self.probe += 1;
        let receiver = "198.18.0.9:9000".parse().unwrap();
        Mark { receiver, unix_seconds: CLOCK - 5, trace: 77, probe: self.probe }
    }

    /// Returns a UDP packet with a trace mark.
    fn marked(&mut self, source: &str, port: u16, vip: &str, vip_port: u16) -> (Flow, Mark, Vec<u8>) {
        let flow = Flow::new((ip(source), port), (ip(vip), vip_port), 17).unwrap();
        let mark = self.mark();
        (flow, mark, udp(source, port, vip, vip_port, &mark.sign(&self.key, &flow)))
    }

    fn reported(&mut self) -> Option<TraceEvent> {
        match self.notices.next()? {
            Notice::Trace(sighting) => Some(sighting),
            other => panic!("{other:?}"),
        }
    }

    /// Returns the number of reports, and the number of refusals for each reason in the order of
    /// [`TraceRefusal::ALL`].
    fn counts(&self) -> (u64, [u64; 6]) {
        let counters = &self.bed.counters;
        (counters.trace_reports.read(), TraceRefusal::ALL.map(|refusal| counters.trace_refusals(refusal)))
    }

    fn publish(&self, next: Snapshot) {
        self.bed.live.publish(next);
    }
}

fn maglev(step: Option<Step>) -> Option<(u8, bool)> {
    match step? {
        Step::Maglev { rehashed, reselected, .. } => Some((rehashed, reselected)),
        Step::FlowTable | Step::Ring { .. } | Step::Remote | Step::FragmentTable | Step::Redirect => None,
    }
}

#[test]
fn a_marked_packet_goes_as_any_other_and_its_step_is_told() {
    for (source, vip) in [(CLIENT, VIP4), (CLIENT6, VIP6)] {
        let mut traced = Traced::usual(parts(gre_slots(5), &[1; 5]));
        let mut plain = Bed::new(parts(gre_slots(5), &[1; 5]));
        let (flow, mark, frame) = traced.marked(source, 4000, vip, 443);
        let Decision::Chosen { hash, selection, .. } = traced.bed.live.current().decide(&flow) else {
            panic!("a backend")
        };
        assert_eq!(traced.bed.send(24, &frame), plain.send(24, &frame), "the frames are equal");
        let Selection { slot, entry, rehashed } = selection;
        let expected = TraceEvent {
            thread: ThreadId(0),
            generation: Generation(1),
            at: traced.bed.now,
            flow,
            decapsulated_from: None,
            mark,
            explanation: Explanation {
                service: Some(ServiceId(0)),
                hash: Some(hash),
                route: None,
                step: Some(Step::Maglev { entry, rehashed, reselected: false }),
                slot: Some(slot),
                outcome: Outcome::Forward,
            },
        };
        assert_eq!(traced.reported(), Some(expected));
        let (_, _, frame) = traced.marked(source, 4000, vip, 443);
        let _ = traced.bed.send(24, &frame);
        let second = traced.reported().unwrap();
        assert_eq!(second.mark.probe, 2);
        assert_eq!(second.explanation, Explanation { step: Some(Step::FlowTable), ..expected.explanation });
        assert_eq!((traced.reported(), traced.counts()), (None, (2, [0; 6])));
    }
}

#[test]
fn tcp_is_marked_behind_its_options() {
    let mut traced = Traced::usual(parts(gre_slots(2), &[1; 2]));
    let flow = Flow::new((ip(CLIENT), 5), (ip(VIP4), 80), 6).unwrap();
    let mark = traced.mark();
    let link =
        etherparse::PacketBuilder::ethernet2(ROUTER, OURS).ipv4([198, 51, 100, 7], [203, 0, 113, 10], 64);
    let step = link.tcp(5, 80, 1, 1).ack(1).options_raw(&[1; 12]).unwrap();
    let mut frame = Vec::new();
    step.write(&mut frame, &mark.sign(&traced.key, &flow)).unwrap();
    let _ = traced.bed.send(24, &frame);
    assert_eq!(traced.reported().map(|reported| (reported.flow, reported.mark)), Some((flow, mark)));
}

#[test]
fn sctp_init_and_udp_lite_are_reported() {
    let mut parts = parts(gre_slots(2), &[1; 2]);
    for (vip, protocol) in [(VIP4, 132), (VIP4, 136), (VIP6, 132), (VIP6, 136)] {
        parts.bindings.push(binding(vip, protocol, 443..=443, 0));
    }
    let mut traced = Traced::usual(parts);
    for (source, vip) in [(CLIENT, VIP4), (CLIENT6, VIP6)] {
        for protocol in [132, 136] {
            let flow = Flow::new((ip(source), 4000), (ip(vip), 443), protocol).unwrap();
            let later = Flow::new((ip(source), 0), (ip(vip), 0), protocol).unwrap();
            let mark = traced.mark();
            let [signed, signed_later] = [flow, later].map(|flow| mark.sign(&traced.key, &flow));
            let payload = |data: &[u8]| match protocol {
                132 => ports::sctp_init((4000, 443), data),
                _ => ports::udp_lite(source, vip, (4000, 443), data),
            };
            let frame = ports::packet(source, vip, protocol, &payload(&signed));
            assert_eq!(traced.bed.send(24, &frame).0, Verdict::Tx);
            let report = traced.reported().unwrap();
            assert_eq!(
                (report.flow, report.mark, report.explanation.outcome),
                (flow, mark, Outcome::Forward)
            );
            // Both fragments of a packet have a mark.
            let padding: &[u8] = if protocol == 132 { &[0; 4] } else { &[] };
            let payload = payload(&[&signed[..], padding, &signed_later].concat());
            let first = payload.len() - MARK_BYTES;
            let whole = Datagram { source, vip, protocol, id: 9, payload };
            for (piece, expected) in [(whole.piece(0, first), flow), (whole.piece(first, first + 64), later)]
            {
                let _ = traced.bed.all(&piece);
                assert_eq!(
                    traced.reported().map(|report| (report.flow, report.mark)),
                    Some((expected, mark))
                );
            }
        }
    }
    assert_eq!(traced.counts(), (12, [0; 6]));
}

#[test]
fn unreported_marked_packet_is_forwarded_and_counted() {
    let mut traced = Traced::usual(parts(gre_slots(2), &[1; 2]));
    let outsider = TraceKey::derive(&HashKey::new([6; 16]));
    let flow = Flow::new((ip(CLIENT), 4000), (ip(VIP4), 443), 17).unwrap();
    let good = traced.mark();
    let old = Mark { unix_seconds: CLOCK - 61, ..good };
    let elsewhere = Mark { receiver: "198.18.0.10:9000".parse().unwrap(), ..good };
    let key = traced.key;
    let other = Flow { source_port: 4001, ..flow };
    let payloads = [
        good.sign(&key, &flow)[..63].to_vec(),
        old.sign(&key, &flow).to_vec(),
        elsewhere.sign(&key, &flow).to_vec(),
        good.sign(&outsider, &flow).to_vec(),
        good.sign(&key, &other).to_vec(),
    ];
    for payload in payloads {
        assert!(traced.bed.backend_of(&udp(CLIENT, 4000, VIP4, 443, &payload)).is_some());
    }
    assert_eq!((traced.reported(), traced.counts()), (None, (0, [1, 1, 1, 2, 0, 0])));
    // Sixty seconds later, a packet with the same mark is treated as a replay.
    traced.bed.live.clock().set(CLOCK + 56);
    assert!(traced.bed.backend_of(&udp(CLIENT, 4000, VIP4, 443, &good.sign(&key, &flow))).is_some());
    assert_eq!((traced.reported(), traced.counts()), (None, (0, [1, 2, 1, 2, 0, 0])));
    // The mark is in the Ethernet padding, which does not belong to the packet.
    traced.bed.live.clock().set(CLOCK);
    let mut padded = udp(CLIENT, 4000, VIP4, 443, &[]);
    padded.extend(good.sign(&key, &flow));
    let _ = traced.bed.send(24, &padded);
    assert_eq!((traced.reported(), traced.counts().0), (None, 0));
}

#[test]
fn reports_keep_their_rate_and_forged_marks_use_none_of_it() {
    let mut traced = Traced::new(parts(gre_slots(2), &[1; 2]), config(), 3, 64);
    let outsider = TraceKey::derive(&HashKey::new([6; 16]));
    let (flow, mark, good) = traced.marked(CLIENT, 1, VIP4, 443);
    let forged = udp(CLIENT, 1, VIP4, 443, &mark.sign(&outsider, &flow));
    for frame in [&forged, &forged, &forged, &forged, &good, &good, &good, &good, &good] {
        assert!(traced.bed.backend_of(frame).is_some());
    }
    assert_eq!(traced.counts(), (3, [0, 0, 0, 4, 2, 0]));
    traced.bed.advance(1);
    assert!(traced.bed.backend_of(&good).is_some());
    assert_eq!(traced.counts(), (4, [0, 0, 0, 4, 2, 0]));
}

#[test]
fn a_full_ring_loses_reports_and_no_packets() {
    let mut traced = Traced::new(parts(gre_slots(2), &[1; 2]), config(), 100, 2);
    let (_, _, frame) = traced.marked(CLIENT, 1, VIP4, 443);
    assert!((0..3).all(|_| traced.bed.backend_of(&frame).is_some()));
    assert_eq!(traced.counts(), (2, [0, 0, 0, 0, 0, 1]));
}

#[test]
fn a_machine_that_is_not_told_to_does_not_look() {
    let mut traced = Traced::usual(parts(gre_slots(2), &[1; 2]));
    let plain = traced.bed.live.current().as_ref().clone().with_trace(None);
    traced.publish(plain);
    let (_, _, frame) = traced.marked(CLIENT, 1, VIP4, 443);
    assert!(traced.bed.backend_of(&frame).is_some());
    assert_eq!((traced.reported(), traced.counts()), (None, (0, [0; 6])));
}

#[test]
fn a_dropped_packet_is_told_with_its_reason() {
    let mut parts = parts(gre_slots(2), &[1; 2]);
    let deny = Some(Arc::new(PrefixSet::new([(ip("198.51.100.66"), 32)])));
    parts.services[0].guard = Some(Arc::new(Guard { deny, ..Guard::default() }));
    let mut traced = Traced::usual(parts);
    let dropped = |explanation: Explanation| match explanation.outcome {
        Outcome::Drop(reason) => (reason.name(), explanation.service, explanation.slot),
        other => panic!("{other:?}"),
    };
    // The report must not contain values of the previous packet.
    let (_, _, before) = traced.marked(CLIENT, 4000, VIP4, 443);
    let _ = traced.bed.send(24, &before);
    traced.reported().unwrap();
    let (_, _, frame) = traced.marked(CLIENT, 4000, VIP4, 444);
    let _ = traced.bed.send(24, &frame);
    let reported = traced.reported().unwrap().explanation;
    assert_eq!((dropped(reported), reported.step, reported.hash), (("no_vip", None, None), None, None));
    let (_, _, frame) = traced.marked("198.51.100.66", 4000, VIP4, 443);
    let _ = traced.bed.send(24, &frame);
    let reported = traced.reported().unwrap().explanation;
    assert_eq!((dropped(reported), reported.step), (("denied", Some(ServiceId(0)), None), None));
    let down = traced.bed.live.current().with_states(vec![SlotState::Down; 2]).unwrap();
    traced.publish(down);
    let (_, _, frame) = traced.marked(CLIENT, 4001, VIP4, 443);
    let _ = traced.bed.send(24, &frame);
    assert_eq!(dropped(traced.reported().unwrap().explanation), ("no_backend", Some(ServiceId(0)), None));
    let (_, _, frame) = traced.marked(CLIENT, 4000, VIP4, 443);
    let frame = with_ttl(frame, 1);
    let up = traced.bed.live.current().with_states(vec![SlotState::Serving; 2]).unwrap();
    traced.publish(up);
    let (verdict, _) = traced.bed.send(24, &frame);
    assert_eq!(verdict, Verdict::Reply, "time exceeded");
    let reported = traced.reported().unwrap().explanation;
    assert_eq!((reported.outcome, reported.step), (Outcome::Reply, Some(Step::FlowTable)));
    assert_eq!(traced.counts(), (5, [0; 6]));
}

#[test]
fn a_flow_whose_backend_went_down_is_told_as_reselected() {
    let mut traced = Traced::usual(parts(gre_slots(3), &[1; 3]));
    let (_, _, frame) = traced.marked(CLIENT, 9, VIP4, 443);
    let _ = traced.bed.send(24, &frame);
    let slot = traced.reported().unwrap().explanation.slot.unwrap();
    let mut states = vec![SlotState::Serving; 3];
    states[slot.0 as usize] = SlotState::Down;
    let down = traced.bed.live.current().with_states(states).unwrap();
    traced.publish(down);
    let _ = traced.bed.send(24, &frame);
    let reported = traced.reported().unwrap().explanation;
    assert!(maglev(reported.step).is_some_and(|(rehashed, reselected)| rehashed > 0 && reselected));
    assert!(reported.slot.is_some_and(|now| now != slot));
    let _ = traced.bed.send(24, &frame);
    assert_eq!(traced.reported().unwrap().explanation.step, Some(Step::FlowTable));
}

/// Returns two marked fragments. The first fragment has its mark after the UDP header. The second
/// fragment has no ports.
fn pieces(traced: &mut Traced, id: u32) -> [Vec<u8>; 2] {
    pieces_of(traced, CLIENT, id)
}

fn pieces_of(traced: &mut Traced, source: &'static str, id: u32) -> [Vec<u8>; 2] {
    let whole = Flow::new((ip(source), 4000), (ip(VIP4), 443), 17).unwrap();
    let later = Flow { source_port: 0, destination_port: 0, ..whole };
    let key = traced.key;
    let mut payload = udp_payload(4000, 443, 0);
    payload.extend(traced.mark().sign(&key, &whole));
    payload.extend(traced.mark().sign(&key, &later));
    let datagram = Datagram { source, vip: VIP4, protocol: 17, id, payload };
    [datagram.piece(0, 72), datagram.piece(72, 136)]
}

#[test]
fn a_later_piece_is_told_as_the_fragment_table_s_once_it_goes() {
    let mut traced = Traced::usual(parts(gre_slots(3), &[1; 3]));
    let [first, later] = pieces(&mut traced, 1);
    assert_eq!((traced.bed.all(&first).len(), traced.bed.all(&later).len()), (1, 1));
    let (one, two) = (traced.reported().unwrap(), traced.reported().unwrap());
    assert_eq!((one.mark.probe, maglev(one.explanation.step)), (1, Some((0, false))));
    assert_eq!(two.explanation, Explanation { step: Some(Step::FragmentTable), ..one.explanation });
    assert_eq!((two.flow.source_port, two.flow.destination_port), (0, 0));
    // The later fragment arrives first. This fragment is held, and is reported when the first
    // fragment has arrived.
    let [first, later] = pieces(&mut traced, 2);
    assert_eq!((traced.bed.all(&later), traced.reported()), (vec![], None));
    assert_eq!(traced.bed.all(&first).len(), 2);
    let reported = [traced.reported().unwrap(), traced.reported().unwrap()];
    assert_eq!(reported.map(|reported| reported.mark.probe), [3, 4]);
    assert_eq!(reported[1].explanation.step, Some(Step::FragmentTable));
    assert_eq!(reported[1].explanation.slot, one.explanation.slot);
    // The first fragment never arrives. The held fragment is reported at its timeout.
    let [_, later] = pieces(&mut traced, 3);
    assert_eq!((traced.bed.all(&later), traced.reported()), (vec![], None));
    traced.bed.advance(10);
    traced.bed.poll();
    let reported = traced.reported().unwrap().explanation;
    assert_eq!(reported.outcome, Outcome::Drop(DropReason::FragmentTimeout));
    assert_eq!((traced.reported(), traced.counts()), (None, (5, [0; 6])));
}

#[test]
fn a_piece_that_crosses_to_another_thread_is_not_told_here() {
    for thread in [0, 1] {
        let config = PipelineConfig { thread: ThreadId(thread), threads: 2, ..config() };
        let mut traced = Traced::new(parts(gre_slots(2), &[1; 2]), config, 100, 64);
        let [first, _] = pieces(&mut traced, 1);
        let (verdict, _) = traced.bed.send(24, &first);
        let crossed = matches!(verdict, Verdict::ToThread(..));
        assert_eq!(traced.reported().is_none(), crossed, "{verdict:?}");
    }
}

/// Source addresses for which both machines and all threads collect fragments.
const SOURCES: [&str; 8] = [
    "198.51.100.1",
    "198.51.100.2",
    "198.51.100.3",
    "198.51.100.4",
    "198.51.100.5",
    "198.51.100.6",
    "198.51.100.7",
    "198.51.100.8",
];

#[test]
fn redirected_fragment_is_reported_by_both_machines() {
    let mut redirected = 0;
    for (source, first_comes_first) in SOURCES.iter().flat_map(|source| [(source, true), (source, false)]) {
        let [mut here, mut there] = machines().map(Traced::usual);
        let mut pieces = pieces_of(&mut here, source, 9);
        if !first_comes_first {
            pieces.reverse();
        }
        for (n, piece) in pieces.iter().enumerate() {
            let out = here.bed.all(piece);
            let Some(reported) =
                here.reported().filter(|reported| reported.explanation.step == Some(Step::Redirect))
            else {
                continue; // This machine itself collects these fragments.
            };
            redirected += 1;
            let to_peer =
                (reported.explanation.slot, reported.explanation.outcome, reported.explanation.hash);
            assert_eq!(
                (to_peer, reported.decapsulated_from),
                ((Some(SlotId(4)), Outcome::Forward, None), None)
            );
            let sent = there.bed.all(&out[0].1);
            let waits = n == 0 && !first_comes_first;
            assert_eq!(
                sent.len(),
                if waits {
                    0
                } else if first_comes_first {
                    1
                } else {
                    2
                }
            );
            for _ in &sent {
                let onward = there.reported().unwrap();
                let is_first = onward.flow.source_port != 0;
                assert_eq!((onward.decapsulated_from, onward.mark.trace), (Some(TunnelSourceKind::Peer), 77));
                assert_eq!(maglev(onward.explanation.step).is_some(), is_first);
                assert_eq!(onward.explanation.step == Some(Step::FragmentTable), !is_first);
                assert_eq!(onward.explanation.outcome, Outcome::Forward);
            }
            assert_eq!(there.reported(), None);
        }
    }
    assert!(redirected % 2 == 0 && (4..28).contains(&redirected), "{redirected}");
}

#[test]
fn upstream_tunnel_is_reported_on_every_thread() {
    let senders =
        |parts: &mut Parts| parts.tunnels = vec![from("192.0.2.77", TunnelSourceKind::UpstreamTunnel)];
    let wrap = |frame: &[u8]| wrapped(frame, packet::Encapsulation::Gre, ("192.0.2.77", "192.0.2.1"), 0);
    let mut crossed = [0, 0];
    for source in SOURCES {
        let mut parts = parts(gre_slots(2), &[1; 2]);
        senders(&mut parts);
        let config = PipelineConfig { threads: 2, ..config() };
        let mut traced = Traced::new(parts, config, 100, 64);
        let whole = traced.marked(source, 4000, VIP4, 443).2;
        let [first, _] = pieces_of(&mut traced, source, 3);
        for (n, frame) in [whole, first].iter().enumerate() {
            let (verdict, inner) = traced.bed.send(0, &wrap(frame));
            if let Verdict::ToThread(_, reason) = verdict {
                crossed[n] += 1;
                assert_eq!(
                    (traced.reported(), inner),
                    (None, frame.clone()),
                    "the thread is not yet decided"
                );
                // The content of the report is the same on all threads, so the test uses the report
                // of this thread.
                let (verdict, _) = traced.bed.send_as(Origin::Thread(ThreadId(1), reason), 24, frame);
                assert_eq!(verdict, Verdict::Tx);
            }
            assert_eq!(traced.reported().unwrap().decapsulated_from, Some(TunnelSourceKind::UpstreamTunnel));
        }
        // A packet without a tunnel has no tunnel source.
        let plain = traced.marked(source, 4001, VIP4, 443).2;
        let _ = traced.bed.send(24, &plain);
        assert_eq!(traced.reported().unwrap().decapsulated_from, None);
    }
    assert!(crossed.iter().all(|count| (1..8).contains(count)), "{crossed:?}");
}

#[test]
fn repeated_first_fragment_follows_the_fragment_table() {
    let mut traced = Traced::usual(parts(gre_slots(2), &[1; 2]));
    let [first, _] = pieces(&mut traced, 5);
    let _ = traced.bed.send(24, &first);
    let before = traced.reported().unwrap().explanation;
    // The backend drains and the flow is purged. Maglev would now select another backend.
    let mut states = vec![SlotState::Serving; 2];
    states[before.slot.unwrap().0 as usize] = SlotState::Draining;
    let draining = traced.bed.live.current().with_states(states).unwrap();
    traced.publish(draining);
    let mut rest = Some(FlowCursor::default());
    while let Some(from) = rest {
        assert!(traced.bed.port.ask(Request::Purge { filter: FlowFilter::All, from }).is_ok());
        traced.bed.poll();
        let Some(Reply::Purged { next, .. }) = traced.bed.port.answer() else { panic!("an answer") };
        rest = next;
    }
    let _ = traced.bed.send(24, &first);
    let again = traced.reported().unwrap().explanation;
    assert_eq!((again.step, again.slot), (Some(Step::FragmentTable), before.slot));
}

#[test]
fn a_packet_that_is_cut_is_told_as_forwarded() {
    let mut slots = gre_slots(1);
    (slots[0].mtu, slots[0].too_big) = (600, TooBig::FragmentInner);
    let mut traced = Traced::usual(parts(slots, &[1]));
    let flow = Flow::new((ip(CLIENT), 9), (ip(VIP4), 443), 17).unwrap();
    let mut payload = traced.mark().sign(&traced.key, &flow).to_vec();
    payload.resize(1000, 0);
    let frame = without_df(udp(CLIENT, 9, VIP4, 443, &payload));
    assert!(traced.bed.all(&frame).len() > 1);
    assert_eq!(traced.reported().unwrap().explanation.outcome, Outcome::Forward);
    assert_eq!((traced.reported(), traced.counts()), (None, (1, [0; 6])));
}

proptest! {
    /// For any content of the connection table and any failed backends, the `where` command and the
    /// tracer report the same outcome.
    #[test]
    fn where_foretells_what_the_tracer_tells(
        states in prop::collection::vec(0..3u8, 4),
        flows in prop::collection::vec((0..40u16, prop::sample::select(vec![443u16, 53, 444])), 1..40),
    ) {
        let mut traced = Traced::usual(parts(gre_slots(4), &[1; 4]));
        for port in 0..20 {
            let _ = traced.bed.send(24, &udp(CLIENT, port, VIP4, 443, b""));
        }
        let states = states.iter().map(|state| match state {
            0 => SlotState::Serving,
            1 => SlotState::Draining,
            _ => SlotState::Down,
        });
        let changed = traced.bed.live.current().with_states(states.collect()).unwrap();
        traced.publish(changed);
        for (port, vip_port) in flows {
            let (flow, _, frame) = traced.marked(CLIENT, port, VIP4, vip_port);
            prop_assert!(traced.bed.port.ask(Request::Where(flow)).is_ok());
            traced.bed.poll();
            let Some(Reply::Where(foretold)) = traced.bed.port.answer() else { panic!("an answer") };
            let _ = traced.bed.send(24, &frame);
            prop_assert_eq!(traced.reported().unwrap().explanation, foretold.explanation);
        }
    }
}
