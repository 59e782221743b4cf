//! Tests of the priority of established flows. While the connection table is full and the thread is
//! overloaded, SYNs above the budget for new flows are dropped.

use std::num::NonZeroU32;

use forwarder::*;

use crate::bed::*;

const ENTRIES: usize = 1_024;
/// The number of established flows, which is more than seven eighths of the entries.
const FLOWS: u16 = 1_000;
const BATCH: usize = 64;
/// The number of packets in full batches after which a thread is overloaded.
const FULL_PACKETS: usize = 1_024;
/// The number of SYNs of each kind that an overloaded thread admits per batch of [`BATCH`] packets.
const BUDGET: usize = 1;
const MICROS_10: u64 = 10_000;
const PAUSE: u64 = 10_000_000;

/// A pipeline with a crowded connection table.
struct Crowded {
    bed: Bed,
    flows: Vec<u16>,
    sent: u16,
    /// The origin of packets of established flows.
    origin: Origin,
}

impl Crowded {
    fn new(change: impl FnOnce(&mut Parts)) -> Self {
        Self::with(BATCH, change)
    }

    /// Creates a pipeline with batches of up to `max_batch` packets.
    fn with(max_batch: usize, change: impl FnOnce(&mut Parts)) -> Self {
        let mut parts = parts(gre_slots(3), &[1; 3]);
        change(&mut parts);
        let bed = Bed::with(parts, PipelineConfig { flows: ENTRIES, max_batch, ..config() });
        let mut crowded = Self { bed, flows: Vec::new(), sent: 0, origin: Origin::Wire };
        crowded.flows = (1..=FLOWS).collect();
        // Each group leaves its probation before the next group begins, so that no flow is evicted.
        for group in crowded.flows.chunks(100) {
            for flags in ["S", "A", "A"] {
                for port in group {
                    let frame = tcp("198.51.100.7", *port, VIP4, 80, flags);
                    assert_eq!(crowded.bed.send(24, &frame).0, Verdict::Tx);
                }
                crowded.bed.now = Now::from_nanos(crowded.bed.now.nanos() + 300_000_000);
            }
        }
        // A few flows have no entry.
        let Self { bed, flows, .. } = &mut crowded;
        flows.retain(|port| {
            let hits = bed.pipeline.flows().counters().hit;
            assert_eq!(bed.send(24, &tcp("198.51.100.7", *port, VIP4, 80, "A")).0, Verdict::Tx);
            bed.pipeline.flows().counters().hit > hits
        });
        // An insert updates the state of the table.
        assert_eq!(bed.send(24, &syn(9_999)).0, Verdict::Tx);
        assert!(bed.pipeline.flows().is_crowded());
        crowded
    }

    /// Processes a batch `nanos` after the last batch. Every second packet belongs to an
    /// established flow, and the others come from `newcomer`. Returns how many packets of
    /// established flows and how many others are sent.
    fn batch(&mut self, nanos: u64, size: usize, newcomer: fn(u16) -> Vec<u8>) -> [usize; 2] {
        let sent = self.verdicts(nanos, &vec![newcomer; size / 2]);
        let count = |first: usize| {
            sent.iter().skip(first).step_by(2).filter(|verdict| **verdict == Verdict::Tx).count()
        };
        [count(0), count(1)]
    }

    /// Processes a batch in which each of these new packets follows a packet of an established
    /// flow. Returns all verdicts.
    fn verdicts(&mut self, nanos: u64, newcomers: &[fn(u16) -> Vec<u8>]) -> Vec<Verdict> {
        self.bed.now = Now::from_nanos(self.bed.now.nanos() + nanos);
        let mut frames = Vec::new();
        for newcomer in newcomers {
            self.sent = (self.sent + 1) % FLOWS;
            let port = self.flows[usize::from(self.sent) % self.flows.len()];
            frames.push((tcp("198.51.100.7", port, VIP4, 80, "A"), self.origin));
            frames.push((newcomer(self.sent), Origin::Wire));
        }
        let mut buffers = vec![[0; 256]; frames.len()];
        let mut packets: Vec<_> = buffers
            .iter_mut()
            .zip(&frames)
            .map(|(buffer, (frame, origin))| {
                buffer[24..24 + frame.len()].copy_from_slice(frame);
                Packet::new(buffer, 24, 24 + frame.len(), *origin)
            })
            .collect();
        let mut verdicts = vec![Verdict::Reply; frames.len()];
        self.bed.pipeline.process(self.bed.now, &mut packets, &mut verdicts);
        for (number, ((verdict, packet), (frame, _))) in
            verdicts.iter().zip(&packets).zip(&frames).enumerate()
        {
            // Each packet leaves in its place. The packets of established flows are compared from
            // their TCP header on.
            let compared = if number % 2 == 0 { 27 } else { 13 };
            match verdict {
                Verdict::Tx => assert!(packet.frame().ends_with(&frame[frame.len() - compared..])),
                verdict => assert_eq!(*verdict, Verdict::Drop(DropReason::Overload)),
            }
        }
        verdicts
    }

    /// Processes full batches in a row until the thread is overloaded.
    fn overload(&mut self, newcomer: fn(u16) -> Vec<u8>) {
        let size = self.bed.pipeline.max_batch();
        for number in 0..FULL_PACKETS / size {
            // The first batch arrives after a pause, so it does not count.
            let nanos = if number == 0 { PAUSE } else { MICROS_10 };
            assert_eq!(self.batch(nanos, size, newcomer), [size / 2; 2], "batch {number}");
        }
    }

    fn dropped(&self) -> u64 {
        self.bed.counters.drops(DropReason::Overload)
    }
}

fn syn(number: u16) -> Vec<u8> {
    tcp("192.0.2.200", 20_000 + number, VIP4, 80, "S")
}

fn tagged_syn(number: u16) -> Vec<u8> {
    tagged(&syn(number), 0x8100, 7)
}

fn syn_v6(number: u16) -> Vec<u8> {
    tcp("2001:db8:1::7", 20_000 + number, VIP6, 80, "S")
}

fn tagged_syn_v6(number: u16) -> Vec<u8> {
    tagged(&syn_v6(number), 0x8100, 7)
}

// Promise: established-priority
#[test]
fn an_overloaded_thread_drops_syns_above_the_budget_only() {
    for newcomer in [syn, tagged_syn, syn_v6, tagged_syn_v6] {
        let mut crowded = Crowded::new(|_| {});
        crowded.overload(newcomer);
        assert_eq!(crowded.dropped(), 0);
        for _ in 0..20 {
            assert_eq!(crowded.batch(MICROS_10, BATCH, newcomer), [BATCH / 2, BUDGET]);
        }
        assert_eq!(crowded.dropped(), 20 * (BATCH / 2 - BUDGET) as u64);
        // A batch that is not full, or a pause, ends the overload.
        assert_eq!(crowded.batch(MICROS_10, BATCH - 2, newcomer), [BATCH / 2 - 1; 2]);
        crowded.overload(newcomer);
        assert_eq!(crowded.batch(MICROS_10, BATCH, newcomer)[1], BUDGET);
        crowded.overload(newcomer);
    }
}

#[test]
fn an_overloaded_thread_forwards_other_new_flows() {
    let ack = |number: u16| tcp("192.0.2.200", 20_000 + number, VIP4, 80, "A");
    let datagram = |number: u16| udp("192.0.2.200", 20_000 + number, VIP4, 443, b"query");
    for newcomer in [ack as fn(u16) -> Vec<u8>, datagram] {
        let mut crowded = Crowded::new(|_| {});
        crowded.overload(newcomer);
        assert_eq!(crowded.batch(MICROS_10, BATCH, newcomer), [BATCH / 2; 2]);
    }
}

#[test]
fn an_overloaded_thread_forwards_syns_if_connections_share_entries() {
    let mut crowded = Crowded::new(|parts| {
        parts.bindings.push(binding(VIP4, 6, 81..=81, 1));
    });
    crowded.overload(syn);
    assert_eq!(crowded.batch(MICROS_10, BATCH, syn), [BATCH / 2; 2]);
}

#[test]
fn an_overloaded_thread_without_established_flows_forwards_syns() {
    let mut crowded = Crowded::new(|_| {});
    crowded.overload(syn);
    crowded.bed.now = Now::from_nanos(crowded.bed.now.nanos() + 10_000_000);
    let mut sent = 0;
    for first in (0..64 * 20).step_by(64) {
        let frames: Vec<Vec<u8>> = (first..first + 64).map(syn).collect();
        crowded.bed.now = Now::from_nanos(crowded.bed.now.nanos() + MICROS_10);
        let mut buffers: Vec<Vec<u8>> =
            frames.iter().map(|frame| [&[0; 24], &frame[..], &[0; 99]].concat()).collect();
        let mut packets: Vec<_> = buffers
            .iter_mut()
            .zip(&frames)
            .map(|(buffer, frame)| Packet::new(buffer, 24, 24 + frame.len(), Origin::Wire))
            .collect();
        let mut verdicts = vec![Verdict::Reply; 64];
        crowded.bed.pipeline.process(crowded.bed.now, &mut packets, &mut verdicts);
        sent += verdicts.iter().filter(|verdict| **verdict == Verdict::Tx).count();
    }
    assert_eq!(sent, 64 * 20);
}

#[test]
fn an_overloaded_thread_forwards_syns_while_the_table_has_room() {
    let parts = parts(gre_slots(3), &[1; 3]);
    let bed = Bed::with(parts, PipelineConfig { flows: ENTRIES * 8, max_batch: BATCH, ..config() });
    let mut roomy = Crowded { bed, flows: (1..=FLOWS).collect(), sent: 0, origin: Origin::Wire };
    roomy.overload(syn);
    assert_eq!(roomy.batch(MICROS_10, BATCH, syn), [BATCH / 2; 2]);
}

#[test]
fn a_flood_of_one_kind_does_not_use_up_the_budget_of_others() {
    let kinds = [syn, tagged_syn, syn_v6, tagged_syn_v6];
    for flood in kinds {
        let mut crowded = Crowded::new(|_| {});
        crowded.overload(flood);
        let mut newcomers = vec![flood; BATCH / 2 - kinds.len()];
        newcomers.extend(kinds);
        let verdicts = crowded.verdicts(MICROS_10, &newcomers);
        let sent: Vec<usize> = (1..BATCH).step_by(2).filter(|n| verdicts[*n] == Verdict::Tx).collect();
        // One packet of the flood, and the last packet of each other kind.
        assert_eq!(sent.len(), kinds.len(), "{sent:?}");
        assert_eq!(
            sent.iter().filter(|n| **n > BATCH - 2 * kinds.len()).count(),
            kinds.len() - 1,
            "{sent:?}"
        );
    }
}

#[test]
fn packets_of_established_flows_count_on_the_slow_path() {
    let mut crowded = Crowded::new(|_| {});
    // The fast path does not process decapsulated packets.
    let decapsulated_from = Some(TunnelSourceKind::UpstreamTunnel);
    crowded.origin = Origin::Thread(ThreadId(0), HandoffReason::Steered { decapsulated_from });
    crowded.overload(syn);
    assert_eq!(crowded.batch(MICROS_10, BATCH, syn), [BATCH / 2, BUDGET]);
}

#[test]
fn overload_and_budget_do_not_depend_on_the_batch_size() {
    for size in [8, 128] {
        let mut crowded = Crowded::with(size, |_| {});
        crowded.overload(syn);
        let sent: usize = (0..1_024 / size).map(|_| crowded.batch(MICROS_10, size, syn)[1]).sum();
        assert_eq!(sent, 1_024 / 64 * BUDGET, "{size}");
    }
    // One packet per millisecond is no overload, although each batch is full.
    let mut crowded = Crowded::with(2, |_| {});
    for _ in 0..2_000 {
        assert_eq!(crowded.batch(1_000_000, 2, syn), [1; 2]);
    }
}

#[test]
fn only_full_batches_limit_searches_for_new_flows() {
    let untracked = |size: usize| {
        let mut crowded = Crowded::new(|_| {});
        crowded.batch(PAUSE, BATCH, syn);
        let before = crowded.bed.pipeline.flows().counters();
        for _ in 0..4 {
            crowded.batch(MICROS_10, size, syn);
        }
        let after = crowded.bed.pipeline.flows().counters();
        (after.untracked - before.untracked) as f64 / (4 * size) as f64
    };
    let (limited, unlimited) = (untracked(BATCH), untracked(BATCH - 2));
    assert!(unlimited < limited, "{unlimited} of the flows are untracked, with the limit {limited}");
}

#[test]
fn capture_shows_the_packets_of_an_overloaded_thread_in_order() {
    let mut crowded = Crowded::new(|_| {});
    crowded.overload(syn);
    let filter = CaptureFilter { sample: NonZeroU32::MIN, ..CaptureFilter::default() };
    let (tap, mut catch) = capture_tap(filter, TapSize { snap: 128, records: BATCH, batch: BATCH });
    crowded.bed.port.ask(Request::Capture(Some(tap))).unwrap();
    crowded.bed.poll();
    let verdicts = crowded.verdicts(MICROS_10, &[syn as fn(u16) -> Vec<u8>; BATCH / 2]);
    for (number, verdict) in verdicts.into_iter().enumerate() {
        let record = catch.pop().unwrap();
        assert_eq!(record.verdict, verdict);
        let flags = record.before().bytes[14 + 20 + 13];
        assert_eq!(flags, if number % 2 == 0 { 0x10 } else { 0x02 }, "{number}");
        let is_sent = verdict == Verdict::Tx;
        assert_eq!((record.after().is_some(), record.slot.is_some()), (is_sent, is_sent));
        if let Some(after) = record.after() {
            assert!(after.bytes.ends_with(&record.before().bytes[34..]), "{number}");
        }
    }
    assert!(catch.pop().is_none());
    // The next batch is not affected.
    crowded.overload(syn);
}

#[test]
fn overloaded_thread_reports_a_marked_packet_with_its_own_state() {
    const CLOCK: u64 = 1_700_000_000;
    fn flow(number: u16) -> Flow {
        Flow::new((ip("192.0.2.200"), 20_000 + number), (ip(VIP4), 443), 17).unwrap()
    }
    fn marked(number: u16) -> Vec<u8> {
        let receiver = "198.18.0.9:9000".parse().unwrap();
        let mark = Mark { receiver, unix_seconds: CLOCK - 5, trace: 77, probe: u32::from(number) };
        let key = TraceKey::derive(&HashKey::new([5; 16]));
        udp("192.0.2.200", 20_000 + number, VIP4, 443, &mark.sign(&key, &flow(number)))
    }
    let mut crowded = Crowded::new(|_| {});
    let (sink, mut notices) = notice_ring(8);
    crowded.bed = crowded.bed.with_notices(sink);
    let trace = Trace {
        key: TraceKey::derive(&HashKey::new([5; 16])),
        receivers: PrefixSet::new([(ip("198.18.0.9"), 32)]),
        per_second: 100,
    };
    let traced = crowded.bed.live.current().as_ref().clone().with_trace(Some(trace));
    crowded.bed.live.publish(traced);
    crowded.bed.live.clock().set(CLOCK);
    crowded.overload(syn);
    let mut newcomers = vec![syn as fn(u16) -> Vec<u8>; BATCH / 2 - 1];
    newcomers.push(marked);
    let verdicts = crowded.verdicts(MICROS_10, &newcomers);
    assert_eq!(verdicts[BATCH - 1], Verdict::Tx);
    let Some(Notice::Trace(event)) = notices.next() else { panic!("no report") };
    assert_eq!(event.flow, flow(crowded.sent));
    let Decision::Chosen { hash, selection, .. } = crowded.bed.live.current().decide(&event.flow) else {
        panic!("no backend")
    };
    let Explanation { hash: found, slot, outcome, .. } = event.explanation;
    assert_eq!((found, slot, outcome), (Some(hash), Some(selection.slot), Outcome::Forward));
}
