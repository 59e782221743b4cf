//! Compares the cost per packet with 10,000 prefixes and 10,000 suffixes to the cost per packet
//! with one exact VIP. The packets in both cases are IPv6 packets.
//!
//! `groups` measures the forwarder's `process` in batches of 64. Each flow has its own VIP. The
//! rows of `groups` use 1,000 established flows, or 200,000 flows whose table entries do not fit
//! into the L2 cache. `find` measures VIP matching and backend selection without the connection
//! table. One row of `find` looks up 10,000 addresses in turn, and one always looks up the same
//! address. Goal: compared with one exact VIP, prefix groups add at most 50 ns per packet. The
//! limit of 50 ns includes the cost of the XDP program, which `datapath/tests/bpf/cost.rs`
//! measures.

use std::hint::black_box;
use std::time::Duration;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use forwarder::{Decision, Flow, Live, Now, Snapshot};
use sluicegate_benches::{Batch, DEFAULT_BATCH, VIP6, exact_v6, frame_v6, grouped, pipeline};

const FLOWS: [u32; 2] = [1_000, 200_000];
const ENTRIES: u32 = 10_000;

fn rows(addresses: u32) -> [(&'static str, Snapshot, Vec<[u8; 16]>); 2] {
    let (snapshot, to) = grouped(ENTRIES, addresses);
    [("one exact VIP", exact_v6(), vec![VIP6.octets()]), ("10000 prefixes, 10000 suffixes", snapshot, to)]
}

fn process(c: &mut Criterion) {
    let mut group = c.benchmark_group("groups");
    group.throughput(Throughput::Elements(1)).measurement_time(Duration::from_secs(4)).sample_size(40);
    let rows = FLOWS.into_iter().flat_map(|flows| rows(flows).map(|row| (flows, row)));
    for (flows, (name, snapshot, to)) in rows {
        let live = Live::new(snapshot);
        let (mut pipeline, _) = pipeline(&live);
        let mut batch = Batch::default();
        let mut now = Now::from_nanos(1_000_000_000);
        let mut state = 1_u32;
        let mut next = || {
            state = state.wrapping_add(0x9e37_79b1);
            let flow = (u64::from(state) * u64::from(flows)) >> 32;
            frame_v6(
                u32::try_from(flow).expect("the number is below the number of flows"),
                &to[flow as usize % to.len()],
            )
        };
        for _ in 0..flows.max(16_000) / 16 {
            now = Now::from_nanos(now.nanos() + 10_000_000);
            batch.run(&mut pipeline, now, &mut next);
        }
        group.bench_function(BenchmarkId::new(name, flows), |b| {
            b.iter_custom(|packets| {
                let batches = packets.div_ceil(DEFAULT_BATCH as u64);
                let mut took = Duration::ZERO;
                for _ in 0..batches {
                    now = Now::from_nanos(now.nanos() + 10_000);
                    took += batch.run(&mut pipeline, now, &mut next);
                }
                // The benchmark runs only whole batches, so it scales the time to the requested
                // number of packets.
                took.mul_f64(packets as f64 / (batches * DEFAULT_BATCH as u64) as f64)
            });
        });
    }
    group.finish();
}

fn find(c: &mut Criterion) {
    let mut group = c.benchmark_group("find");
    group.throughput(Throughput::Elements(1));
    for (name, snapshot, to) in rows(ENTRIES) {
        let mut flow = Flow {
            source: [9; 16],
            destination: [0; 16],
            source_port: 4000,
            destination_port: 80,
            protocol: 6,
        };
        let mut number = 0;
        group.bench_function(BenchmarkId::from_parameter(name), |b| {
            b.iter(|| {
                number = (number + 1) % to.len();
                flow.destination = to[number];
                let decision = black_box(&snapshot).decide(&flow);
                assert!(matches!(decision, Decision::Chosen { .. }));
            });
        });
    }
    group.finish();
}

criterion_group!(benches, process, find);
criterion_main!(benches);
