//! Measures the complete path of a packet in memory: parsing, VIP matching, hashing, connection
//! table lookup, Maglev lookup, GRE encapsulation over IPv4, and all counters.
//!
//! The rows are defined in `rows.rs`; their names describe the flows. Frames are 64 bytes long, and
//! one core processes them in batches of 64. Times are per packet. `pipeline` measures the
//! forwarder's `process`. `engine` measures one iteration of a packet thread's loop over rings in
//! memory, including polling, the refill of the fill ring, and the collection of frames that were
//! sent. `capture` measures `process` while a capture runs and its output is read. All settings
//! have their default values, except the size of the connection table in some rows. Budget: 67 ns
//! per packet, which is 14.88 Mpps on 10 GbE.

use std::num::NonZeroU32;
use std::time::{Duration, Instant};

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use engine::{Engine, MemoryDevice, MemoryFrame, Pool, mesh};
use forwarder::{
    CaptureFilter, EVERY_PACKET, Forward, FragmentStep, HoldSlot, Live, MAX_ENCAP_OVERHEAD, NotSent, Now,
    Outlet, Packet, Pipeline, Request, TapSize, ThreadId, Verdict, capture_tap, request_ring,
};
use sluicegate_benches::{Batch, DEFAULT_BATCH, FRAME_ROOM, Row, Traffic, pipeline, pipeline_with, snapshot};

/// Runs whole batches until at least `packets` packets are processed. Returns the time scaled to
/// `packets`.
fn time_batches(packets: u64, mut turn: impl FnMut() -> Duration) -> Duration {
    let batches = packets.div_ceil(DEFAULT_BATCH as u64);
    let took: Duration = (0..batches).map(|_| turn()).sum();
    took.mul_f64(packets as f64 / (batches * DEFAULT_BATCH as u64) as f64)
}

fn process(c: &mut Criterion) {
    let mut group = c.benchmark_group("pipeline");
    group.throughput(Throughput::Elements(1)).measurement_time(Duration::from_secs(3)).sample_size(40);
    for row in Row::ALL {
        let mut batch = Batch::default();
        let (mut pipeline, counters, mut now) = row.establish(&mut batch);
        let mut state = 1;
        group.bench_function(BenchmarkId::from_parameter(row.name), |b| {
            b.iter_custom(|packets| {
                time_batches(packets, || {
                    now = Now::from_nanos(now.nanos() + 10_000);
                    row.turn(&mut batch, &mut pipeline, now, &mut state)
                })
            });
        });
        assert_eq!(counters.head_room_mismatch.read(), 0);
        let table = pipeline.flows().counters();
        let all = (table.hit + table.miss).max(1);
        let share = |count: u64| 100.0 * count as f64 / all as f64;
        println!(
            "  connection table: {:.2} % hits, {:.2} % of packets untracked, {} entries; {} packets on the fast path",
            share(table.hit),
            share(table.untracked),
            pipeline.flows().len(),
            counters.fast_path.read(),
        );
    }
    group.finish();
}

/// A frame outlet that sends nothing. The request that starts a capture needs an outlet.
struct NoFrames;

impl Outlet for NoFrames {
    fn originate(&mut self, _: &mut dyn FnMut(&mut Packet<'_>) -> bool) -> Result<(), NotSent> {
        Err(NotSent::NoFrame)
    }

    fn free_frames(&self) -> usize {
        0
    }

    fn release(&mut self, _: HoldSlot, _: &mut dyn FnMut(&mut Packet<'_>) -> Verdict) {}

    fn split(&mut self, _: HoldSlot, _: &mut dyn FnMut(&Packet<'_>, &mut [u8]) -> FragmentStep) {}
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
        port.ask(Request::Capture(sample.map(|_| tap))).expect("the request queue is empty");
        pipeline.poll(Now::default(), &mut NoFrames);
        let (mut batch, mut state) = (Batch::default(), 1);
        let mut now = Now::from_nanos(1_000_000_000);
        group.bench_function(BenchmarkId::from_parameter(name), |b| {
            b.iter_custom(|packets| {
                time_batches(packets, || {
                    now = Now::from_nanos(now.nanos() + 10_000);
                    let took = batch.run(&mut pipeline, now, || Traffic::Flows(1_000).next(&mut state).v4());
                    while let Some(record) = catch.pop() {
                        catch.give_back(record);
                    }
                    took
                })
            });
        });
    }
    group.finish();
}

/// Measures one iteration of the packet thread's loop. The time to add and remove frames is not
/// measured.
fn engine(c: &mut Criterion) {
    let mut group = c.benchmark_group("engine");
    group.throughput(Throughput::Elements(1)).measurement_time(Duration::from_secs(3)).sample_size(40);
    for (name, traffic) in [("one flow", Traffic::Flows(1)), ("1000 flows", Traffic::Flows(1_000))] {
        let live = Live::new(snapshot());
        let (pipeline, counters) = pipeline(&live);
        let frames = (0..1024).map(|_| MemoryFrame::new(ThreadId(0), FRAME_ROOM)).collect();
        let mailboxes = mesh(1, 1).pop().expect("the mesh has one thread");
        let mut engine =
            Engine::new(MemoryDevice::new(512), pipeline, mailboxes, Pool { frames, in_all: 1024 }, counters);
        engine.step(Now::default());
        let (mut state, mut now) = (1, Now::from_nanos(1_000_000_000));
        group.bench_function(BenchmarkId::from_parameter(name), |b| {
            b.iter_custom(|packets| {
                time_batches(packets, || {
                    now = Now::from_nanos(now.nanos() + 10_000);
                    turn(&mut engine, now, || traffic.next(&mut state).v4())
                })
            });
        });
    }
    group.finish();
}

/// Returns how long the engine needs for one batch of frames.
fn turn(
    engine: &mut Engine<MemoryDevice, Pipeline>,
    now: Now,
    mut frame: impl FnMut() -> [u8; 60],
) -> Duration {
    for _ in 0..DEFAULT_BATCH {
        assert!(engine.device_mut().inject(&frame(), MAX_ENCAP_OVERHEAD), "room for a batch");
    }
    let start = Instant::now();
    let count = engine.step(now);
    let took = start.elapsed();
    assert_eq!(count, DEFAULT_BATCH);
    engine.device_mut().transmitted(usize::MAX, |_| {});
    took
}

criterion_group!(benches, process, capture, engine);
criterion_main!(benches);
