//! Tests of the priority of established flows. While the connection table is full and the thread is
//! overloaded, SYNs above the budget for new flows are dropped.

use forwarder::*;

use crate::bed::*;

const ENTRIES: usize = 1_024;
/// The number of established flows, which is more than seven eighths of the entries.
const FLOWS: u16 = 1_000;
const BATCH: usize = 64;
/// The number of full batches after which a thread is overloaded.
const FULL_BATCHES: usize = 16;
/// Half of the packets of each batch belong to established flows, so the budget for the next batch
/// is one SYN plus one per sixteen of these packets.
const BUDGET: usize = 1 + BATCH / 2 / 16;
const MICROS_10: u64 = 10_000;

/// A pipeline with a crowded connection table.
struct Crowded {
    bed: Bed,
    flows: Vec<u16>,
    sent: u16,
}

impl Crowded {
    fn new(change: impl FnOnce(&mut Parts)) -> Self {
        let mut parts = parts(gre_slots(3), &[1; 3]);
        change(&mut parts);
        let bed = Bed::with(parts, PipelineConfig { flows: ENTRIES, max_batch: BATCH, ..config() });
        let mut crowded = Self { bed, flows: Vec::new(), sent: 0 };
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
        self.bed.now = Now::from_nanos(self.bed.now.nanos() + nanos);
        let frames: Vec<Vec<u8>> = (0..size)
            .map(|number| {
                self.sent = (self.sent + 1) % FLOWS;
                let port = self.flows[usize::from(self.sent) % self.flows.len()];
                if number % 2 == 0 { tcp("198.51.100.7", port, VIP4, 80, "A") } else { newcomer(self.sent) }
            })
            .collect();
        let mut buffers = vec![[0; 256]; size];
        let mut packets: Vec<_> = buffers
            .iter_mut()
            .zip(&frames)
            .map(|(buffer, frame)| {
                buffer[24..24 + frame.len()].copy_from_slice(frame);
                Packet::new(buffer, 24, 24 + frame.len(), Origin::Wire)
            })
            .collect();
        let mut verdicts = vec![Verdict::Reply; size];
        self.bed.pipeline.process(self.bed.now, &mut packets, &mut verdicts);
        let is_allowed =
            |verdict: &Verdict| matches!(verdict, Verdict::Tx | Verdict::Drop(DropReason::Overload));
        assert!(verdicts.iter().all(is_allowed), "{verdicts:?}");
        let sent = |first: usize| {
            verdicts.iter().skip(first).step_by(2).filter(|verdict| **verdict == Verdict::Tx).count()
        };
        [sent(0), sent(1)]
    }

    /// Processes full batches in a row until the thread is overloaded.
    fn overload(&mut self, newcomer: fn(u16) -> Vec<u8>) {
        for number in 0..FULL_BATCHES {
            // The first batch arrives after a pause, so it does not count.
            let nanos = if number == 0 { 10_000_000 } else { MICROS_10 };
            assert_eq!(self.batch(nanos, BATCH, newcomer), [BATCH / 2; 2], "batch {number}");
        }
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
        let dropped = |crowded: &Crowded| crowded.bed.counters.drops(DropReason::Overload);
        assert_eq!(dropped(&crowded), 0);
        for _ in 0..20 {
            assert_eq!(crowded.batch(MICROS_10, BATCH, newcomer), [BATCH / 2, BUDGET]);
        }
        assert_eq!(dropped(&crowded), 20 * (BATCH / 2 - BUDGET) as u64);
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
    let mut roomy = Crowded { bed, flows: (1..=FLOWS).collect(), sent: 0 };
    roomy.overload(syn);
    assert_eq!(roomy.batch(MICROS_10, BATCH, syn), [BATCH / 2; 2]);
}
