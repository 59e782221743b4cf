//! The whole road of a packet in memory: parse, VIP, hash, connection table, Maglev, GRE over IPv4, all counters.
//!
//! Row = which flows the 64-byte frames belong to; batches of 64, one core, time per packet. `pipeline` is the forwarder's
//! `process`, `engine` a turn of a packet thread's loop over memory rings, with reaping, refilling and polling.
//! `capture`: the same `process` with a tap in place, which somebody empties.
//! `guards`: the same `process` with lists and limits that let all of it pass.
//! `tracing`: the same `process` without reports of marked packets, and while each packet is searched for a mark that it has not.
//! The default configuration: a connection table of 1,000,000 flows. At 1 M flows, then, it is full.
//! Budget: 67 ns a packet is 14.88 Mpps, 10 GbE; the bar is 60 (one flow, 1 k), 120 (1 M) and 150 ns (SYN flood).

use std::net::Ipv4Addr;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::{Duration, Instant};

use criterion::measurement::WallTime;
use criterion::{BenchmarkGroup, BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use datapath::{Engine, MemoryDevice, MemoryFrame, Pool, mesh};
use forwarder::{
    CaptureFilter, EVERY_PACKET, Forward, Guard, HashKey, HoldSlot, Live, Now, OutOfFrames, Outlet, Packet,
    Piece, Pipeline, PrefixSet, Request, Snapshot, SourceLimit, TapSize, ThreadCounters, ThreadId, Trace,
    TraceKey, Verdict, capture_tap, request_ring,
};
use sluicegate_benches::{
    Batch, DEFAULT_BATCH, FRAME_ROOM, GRE_V4, frame, pipeline, pipeline_with, snapshot,
};

const ACK: u8 = 0x10;
const SYN: u8 = 0x02;

/// Which flow comes next.
#[derive(Clone, Copy)]
enum Traffic {
    /// Established flows, in an order without pattern.
    Flows(u32),
    /// Every packet opens a flow.
    SynFlood,
}

impl Traffic {
    fn name(self) -> String {
        match self {
            Self::Flows(1) => "one flow".into(),
            Self::Flows(flows) => format!("{flows} flows"),
            Self::SynFlood => "syn flood".into(),
        }
    }

    /// A full-period generator over the flows: each flow comes once a period, scattered.
    fn next(self, state: &mut u32) -> [u8; 60] {
        *state = state.wrapping_add(0x9e37_79b1);
        match self {
            Self::Flows(flows) => {
                let scaled = (u64::from(*state) * u64::from(flows)) >> 32;
                frame(u32::try_from(scaled).expect("below flows"), ACK)
            }
            Self::SynFlood => frame(*state & 0x00ff_ffff, SYN),
        }
    }
}

const ROWS: [Traffic; 4] =
    [Traffic::Flows(1), Traffic::Flows(1_000), Traffic::Flows(1_000_000), Traffic::SynFlood];

/// Two rounds, more than a tick apart: all flows are entered, and off probation.
fn establish(pipeline: &mut Pipeline, batch: &mut Batch, traffic: Traffic) -> Now {
    let flows = match traffic {
        Traffic::Flows(flows) => flows,
        Traffic::SynFlood => 0,
    };
    let mut now = Now::from_nanos(1_000_000_000);
    for _ in 0..2 {
        let mut flow = 0;
        while flow < flows {
            batch.run(pipeline, now, || {
                flow += 1;
                frame((flow - 1) % flows, ACK)
            });
        }
        now = Now::from_nanos(now.nanos() + 1_000_000_000);
    }
    now
}

/// One row; the pipeline as it is left.
fn row(
    group: &mut BenchmarkGroup<'_, WallTime>,
    name: &str,
    snapshot: Snapshot,
    traffic: Traffic,
) -> (Pipeline, Arc<ThreadCounters>) {
    let live = Live::new(snapshot);
    let (pipeline, counters) = pipeline(&live);
    (measure(group, name, pipeline, traffic, || {}), counters)
}

/// `between` runs after each batch, and is not timed.
fn measure(
    group: &mut BenchmarkGroup<'_, WallTime>,
    name: &str,
    mut pipeline: Pipeline,
    traffic: Traffic,
    mut between: impl FnMut(),
) -> Pipeline {
    let mut batch = Batch::default();
    let mut now = establish(&mut pipeline, &mut batch, traffic);
    let mut state = 1;
    group.bench_function(BenchmarkId::from_parameter(name), |b| {
        b.iter_custom(|packets| {
            let mut took = Duration::ZERO;
            let batches = packets.div_ceil(DEFAULT_BATCH as u64);
            for _ in 0..batches {
                now = Now::from_nanos(now.nanos() + 10_000);
                took += batch.run(&mut pipeline, now, || traffic.next(&mut state));
                between();
            }
            // Whole batches were run: scaled to the packets that were asked for.
            took.mul_f64(packets as f64 / (batches * DEFAULT_BATCH as u64) as f64)
        });
    });
    pipeline
}

fn process(c: &mut Criterion) {
    let mut group = c.benchmark_group("pipeline");
    group.throughput(Throughput::Elements(1)).measurement_time(Duration::from_secs(4)).sample_size(40);
    for traffic in ROWS {
        let (pipeline, counters) = row(&mut group, &traffic.name(), snapshot(), traffic);
        assert_eq!(counters.head_room_mismatch.read(), 0);
        let table = pipeline.flows().counters();
        let all = (table.hit + table.miss).max(1);
        let share = |count: u64| 100.0 * count as f64 / all as f64;
        println!(
            "  connection table: {:.2} % hits, {:.2} % of packets untracked, {} entries",
            share(table.hit),
            share(table.untracked),
            pipeline.flows().len()
        );
    }
    group.finish();
}

/// Deny lists of as many prefixes, scattered over all of IPv4 but for the clients' block.
fn deny(prefixes: u32) -> Guard {
    let scattered = (0..prefixes).map(|n| Ipv4Addr::from_bits(n.wrapping_mul(0x9e37_79b1)));
    let others = scattered.filter(|address| address.octets()[0] != 198);
    Guard {
        deny: Some(Arc::new(PrefixSet::new(others.map(|address| (address.into(), 28))))),
        ..Guard::default()
    }
}

/// Limits that a flood at this speed does not reach: 64 packets in 10 us are 6,400,000 a second.
fn limits() -> Guard {
    let rate = NonZeroU32::new(10_000_000);
    let each = |new_flows_per_second| SourceLimit { new_flows_per_second, v4_prefix: 24, v6_prefix: 64 };
    Guard { new_flows_per_second: rate, per_source: rate.map(each), ..Guard::default() }
}

fn guards(c: &mut Criterion) {
    let mut group = c.benchmark_group("guards");
    group.throughput(Throughput::Elements(1)).measurement_time(Duration::from_secs(3)).sample_size(40);
    let guarded = |guard: Guard| {
        let open = snapshot();
        let mut services = open.services().to_vec();
        services.iter_mut().for_each(|service| service.guard = Some(Arc::new(guard.clone())));
        open.with_services(services).expect("the same services")
    };
    for (name, snapshot, traffic) in [
        ("1000 flows, none", snapshot(), Traffic::Flows(1_000)),
        ("1000 flows, deny 10000", guarded(deny(10_000)), Traffic::Flows(1_000)),
        ("1000 flows, deny 100000", guarded(deny(100_000)), Traffic::Flows(1_000)),
        ("syn flood, none", snapshot(), Traffic::SynFlood),
        ("syn flood, limits", guarded(limits()), Traffic::SynFlood),
    ] {
        row(&mut group, name, snapshot, traffic);
    }
    group.finish();
}

/// A tap for a pipeline needs one request, which sends nothing.
struct NoFrames;

impl Outlet for NoFrames {
    fn originate(&mut self, _: &mut dyn FnMut(&mut [u8]) -> usize) -> Result<(), OutOfFrames> {
        Err(OutOfFrames)
    }

    fn release(&mut self, _: HoldSlot, _: &mut dyn FnMut(&mut Packet<'_>) -> Verdict) {}

    fn split(&mut self, _: HoldSlot, _: &mut dyn FnMut(&Packet<'_>, &mut [u8]) -> Piece) {}
}

fn capture(c: &mut Criterion) {
    let mut group = c.benchmark_group("capture");
    group.throughput(Throughput::Elements(1)).measurement_time(Duration::from_secs(3)).sample_size(40);
    for (name, sample) in [("off", None), ("1 packet in 1000", Some(1_000)), ("every packet", Some(1))] {
        let live = Live::new(snapshot());
        let (mut port, server) = request_ring(1);
        let (mut pipeline, _) = pipeline_with(&live, Some(server));
        let filter = CaptureFilter {
            sample: sample.and_then(NonZeroU32::new).unwrap_or(EVERY_PACKET),
            ..CaptureFilter::default()
        };
        let (tap, mut catch) =
            capture_tap(filter, TapSize { snap: 256, records: 1_024, batch: DEFAULT_BATCH });
        port.ask(Request::Capture(sample.map(|_| tap))).expect("room for one");
        pipeline.poll(Now::default(), &mut NoFrames);
        measure(&mut group, name, pipeline, Traffic::Flows(1_000), || {
            while let Some(record) = catch.pop() {
                catch.give_back(record);
            }
        });
    }
    group.finish();
}

fn tracing(c: &mut Criterion) {
    let mut group = c.benchmark_group("tracing");
    group.throughput(Throughput::Elements(1)).measurement_time(Duration::from_secs(3)).sample_size(40);
    let trace = || Trace {
        key: TraceKey::derive(&HashKey::new([5; 16])),
        receivers: PrefixSet::new([(Ipv4Addr::new(198, 51, 100, 9).into(), 32)]),
        per_second: 100,
    };
    for traffic in [Traffic::Flows(1_000), Traffic::SynFlood] {
        for (name, trace) in [("off", None), ("on", Some(trace()))] {
            let name = format!("{}, {name}", traffic.name());
            row(&mut group, &name, snapshot().with_trace(trace), traffic);
        }
    }
    group.finish();
}

/// A turn of the loop: inject, step, take what was sent; only the step is timed.
fn engine(c: &mut Criterion) {
    let mut group = c.benchmark_group("engine");
    group.throughput(Throughput::Elements(1)).measurement_time(Duration::from_secs(3)).sample_size(40);
    for traffic in [Traffic::Flows(1), Traffic::Flows(1_000)] {
        let live = Live::new(snapshot());
        let (pipeline, counters) = pipeline(&live);
        let frames = (0..1024).map(|_| MemoryFrame::new(ThreadId(0), FRAME_ROOM)).collect();
        let mailboxes = mesh(1, 1).pop().expect("one");
        let mut engine =
            Engine::new(MemoryDevice::new(512), pipeline, mailboxes, Pool { frames, in_all: 1024 }, counters);
        engine.step(Now::default());
        let (mut state, mut now) = (1, Now::from_nanos(1_000_000_000));
        group.bench_function(BenchmarkId::from_parameter(traffic.name()), |b| {
            b.iter_custom(|packets| {
                let batches = packets.div_ceil(DEFAULT_BATCH as u64);
                let turns = (0..batches).map(|_| {
                    now = Now::from_nanos(now.nanos() + 10_000);
                    turn(&mut engine, now, || traffic.next(&mut state))
                });
                let took: Duration = turns.sum();
                took.mul_f64(packets as f64 / (batches * DEFAULT_BATCH as u64) as f64)
            });
        });
    }
    group.finish();
}

/// How long a step with a batch of frames takes.
fn turn(
    engine: &mut Engine<MemoryDevice, Pipeline>,
    now: Now,
    mut frame: impl FnMut() -> [u8; 60],
) -> Duration {
    for _ in 0..DEFAULT_BATCH {
        assert!(engine.device_mut().inject(&frame(), GRE_V4), "room for a batch");
    }
    let start = Instant::now();
    let count = engine.step(now);
    let took = start.elapsed();
    assert_eq!(count, DEFAULT_BATCH);
    engine.device_mut().transmitted(usize::MAX, |_| {});
    took
}

criterion_group!(benches, process, guards, capture, tracing, engine);
criterion_main!(benches);
