//! Runs random packets through the complete pipeline on three threads. No thread may panic, every
//! frame must be in exactly one place, the counters must add up at every step, and only valid
//! packets may be sent.
//!
//! A run has 200,000 packets, or ten million if `SLUICEGATE_LONG` is set.

#![allow(
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    clippy::indexing_slicing,
    reason = "a failed test may panic"
)]

mod bed;
mod frames;
mod gathers;
mod interfaces;
mod one_flow;
mod peers;
mod random;
mod replicas;

use std::sync::Arc;

use bed::{FRAMES, THREADS, Thread, snapshot, threads};
use forwarder::{Counter, DropReason, Live, Now, ThreadCounters, Totals};
use random::Random;

/// A millisecond, in nanoseconds.
const MILLI: u64 = 1_000_000;

fn sum(counters: &[Arc<ThreadCounters>], of: impl Fn(&ThreadCounters) -> &Counter) -> u64 {
    counters.iter().map(|counters| of(counters).read()).sum()
}

fn drops(counters: &[Arc<ThreadCounters>], reason: DropReason) -> u64 {
    counters.iter().map(|counters| counters.drops(reason)).sum()
}

/// Runs one iteration of a thread and checks the frames that were sent.
fn turn(engine: &mut Thread, now: Now, taken: usize) {
    engine.step(now);
    engine.device_mut().transmitted(taken, |frame| {
        assert!(packet::parse(frame).is_ok(), "sent an invalid packet: {frame:02x?}");
    });
}

fn in_one_place_and_counted_once(engines: &[Thread], counters: &[Arc<ThreadCounters>]) {
    let total: usize = engines.iter().map(|engine| engine.census().total()).sum();
    assert_eq!(total, FRAMES * usize::from(THREADS));
    for (engine, counters) in engines.iter().zip(counters) {
        let balance = Totals::from(&**counters);
        assert_eq!(balance.came, balance.left + balance.held);
        assert_eq!(engine.census().held as u64, balance.held);
    }
}

/// Runs iterations without new packets until no frame is held or in flight.
fn drain(engines: &mut [Thread], mut now: u64) {
    for _ in 0..2_000 {
        now += 50 * MILLI;
        engines.iter_mut().for_each(|engine| turn(engine, Now::from_nanos(now), usize::MAX));
    }
}

/// Checks that all important events occurred. A run without an event does not test how the pipeline
/// handles this event.
fn came_to_everything(counters: &[Arc<ThreadCounters>]) {
    let reached: [(&str, u64); 16] = [
        ("opened", sum(counters, |c| &c.decapsulated)),
        ("sent to another cluster", sum(counters, |c| &c.remote_flows)),
        ("received from another cluster", sum(counters, |c| &c.remote_decapsulated)),
        ("sent", sum(counters, |c| &c.tx)),
        ("replies", sum(counters, |c| &c.replies)),
        ("crossed threads", sum(counters, |c| &c.to_threads)),
        ("fragments sent", sum(counters, |c| &c.originated)),
        ("time exceeded", sum(counters, |c| &c.time_exceeded)),
        ("packet too big sent", sum(counters, |c| &c.packet_too_big_sent)),
        ("cut", sum(counters, |c| &c.fragmented)),
        ("moved for their headroom", sum(counters, |c| &c.head_room_mismatch)),
        ("first pieces", sum(counters, |c| &c.fragment_table.recorded)),
        ("duplicate first fragments", sum(counters, |c| &c.fragment_table.duplicates)),
        ("fragments that followed", sum(counters, |c| &c.fragment_table.followed)),
        ("fragments that waited", sum(counters, |c| &c.fragment_table.waited)),
        ("fragments released", sum(counters, |c| &c.fragment_table.released)),
    ];
    for (name, count) in reached {
        println!("{name}: {count}");
        assert!(count > 0, "{name}");
    }
    for &reason in DropReason::ALL {
        println!("dropped as {}: {}", reason.name(), drops(counters, reason));
    }
    let unreachable = [
        DropReason::NotAllowed, // the VIPs have no access lists and no limits
        DropReason::Denied,
        DropReason::SourceFlowRate,
        DropReason::FlowRate,
        DropReason::UnknownGateway, // next hops are resolved
        DropReason::HoldFull,       // each iteration sends all fragments of a batch
        DropReason::Overload,       // no thread has 1,024 packets in full batches
    ];
    // In this test, no service selects backends by key. `forwarder/tests/it/keyed.rs` tests the
    // drop reasons of keyed services.
    let reachable = |reason: &&DropReason| !unreachable.contains(reason) && !reason.name().starts_with("kv_");
    for &reason in DropReason::ALL.iter().filter(reachable) {
        assert!(drops(counters, reason) > 0, "no packet was dropped for {}", reason.name());
    }
}

// Promise: frame-accounting
#[test]
fn pipeline_keeps_frames_and_counters_consistent() {
    let packets = if std::env::var_os("SLUICEGATE_LONG").is_some() { 10_000_000 } else { 200_000 };
    let live = Live::new(snapshot());
    let (mut engines, counters) = threads(&live);
    let mut random = Random(2);
    let (mut injected, mut now, mut iterations) = (0u64, MILLI, 0u64);
    while injected < packets {
        let which = random.below(u64::from(THREADS)) as usize;
        for _ in 0..random.below(32) {
            let frame = frames::any(&mut random);
            // The headroom of a device is 63 bytes. Packets in tests can have less.
            let head = [0, 24, 24, 28, 44, 63][random.below(6) as usize];
            injected += u64::from(engines[which].device_mut().inject(&frame, head));
        }
        now += random.below(2 * MILLI);
        if random.below(500) == 0 {
            live.publish(live.current().with_states(bed::states(&mut random)).unwrap());
        }
        // In some iterations the link sends fewer packets than arrive.
        iterations += 1;
        let taken = random.below(if iterations % 1024 < 512 { 48 } else { 8 }) as usize;
        turn(&mut engines[which], Now::from_nanos(now), taken);
        in_one_place_and_counted_once(&engines, &counters);
    }
    drain(&mut engines, now);
    in_one_place_and_counted_once(&engines, &counters);
    came_to_everything(&counters);
    assert!(engines.iter().all(|engine| engine.census().held + engine.census().mailboxes == 0));
    assert_eq!(sum(&counters, |c| &c.to_threads), sum(&counters, |c| &c.from_threads));
    let dropped: u64 = DropReason::ALL.iter().map(|&reason| drops(&counters, reason)).sum();
    let left = sum(&counters, |c| &c.tx) + sum(&counters, |c| &c.replies) + dropped;
    assert_eq!(left, injected + sum(&counters, |c| &c.originated));
}
