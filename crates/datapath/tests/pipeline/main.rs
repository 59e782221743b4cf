//! Any packets through the whole pipeline on three threads: no panic, every frame in exactly one place, counters that add up
//! at every step, and nothing sent that is no packet.
//!
//! 200,000 packets; ten million with `SLUICEGATE_LONG` set.

#![allow(
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    clippy::indexing_slicing,
    reason = "a test that cannot go on fails"
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

/// Milliseconds as nanoseconds.
const MILLI: u64 = 1_000_000;

fn sum(counters: &[Arc<ThreadCounters>], of: impl Fn(&ThreadCounters) -> &Counter) -> u64 {
    counters.iter().map(|counters| of(counters).read()).sum()
}

fn drops(counters: &[Arc<ThreadCounters>], reason: DropReason) -> u64 {
    counters.iter().map(|counters| counters.drops(reason)).sum()
}

/// One turn of a thread; what it sent is looked at.
fn turn(engine: &mut Thread, now: Now, taken: usize) {
    engine.step(now);
    engine.device_mut().transmitted(taken, |frame| {
        assert!(packet::parse(frame).is_ok(), "sent, and no packet: {frame:02x?}");
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

/// Turns without new packets, until no frame is held or on its way.
fn drain(engines: &mut [Thread], mut now: u64) {
    for _ in 0..2_000 {
        now += 50 * MILLI;
        engines.iter_mut().for_each(|engine| turn(engine, Now::from_nanos(now), usize::MAX));
    }
}

/// The run must come to all of it, or it proves nothing of what it missed.
fn came_to_everything(counters: &[Arc<ThreadCounters>]) {
    let reached: [(&str, u64); 16] = [
        ("opened", sum(counters, |c| &c.decapsulated)),
        ("sent to another cluster", sum(counters, |c| &c.remote_flows)),
        ("come from another cluster", sum(counters, |c| &c.remote_arrivals)),
        ("sent", sum(counters, |c| &c.tx)),
        ("replies", sum(counters, |c| &c.replies)),
        ("crossed threads", sum(counters, |c| &c.to_threads)),
        ("pieces sent besides", sum(counters, |c| &c.originated)),
        ("time exceeded", sum(counters, |c| &c.time_exceeded)),
        ("packet too big sent", sum(counters, |c| &c.packet_too_big_sent)),
        ("cut", sum(counters, |c| &c.fragmented)),
        ("moved for their head room", sum(counters, |c| &c.head_room_mismatch)),
        ("first pieces", sum(counters, |c| &c.fragment_table.recorded)),
        ("first pieces again", sum(counters, |c| &c.fragment_table.duplicates)),
        ("pieces that followed", sum(counters, |c| &c.fragment_table.followed)),
        ("pieces that waited", sum(counters, |c| &c.fragment_table.waited)),
        ("pieces let go", sum(counters, |c| &c.fragment_table.released)),
    ];
    for (name, count) in reached {
        println!("{name}: {count}");
        assert!(count > 0, "{name}");
    }
    for &reason in DropReason::ALL {
        println!("dropped as {}: {}", reason.name(), drops(counters, reason));
    }
    let unreachable = [
        DropReason::NotAllowed, // the VIPs have no lists and no limits
        DropReason::Denied,
        DropReason::SourceFlowRate,
        DropReason::FlowRate,
        DropReason::UnknownGateway, // next hops are resolved
        DropReason::HoldFull,       // each poll sends what is cut, and there is room for all of a batch
    ];
    // No service here chooses by key (`forwarder/tests/it/keyed.rs` comes to all of its reasons).
    let reachable = |reason: &&DropReason| !unreachable.contains(reason) && !reason.name().starts_with("kv_");
    for &reason in DropReason::ALL.iter().filter(reachable) {
        assert!(drops(counters, reason) > 0, "the run never came to {}", reason.name());
    }
}

#[test]
fn any_packets_leave_every_frame_in_one_place_and_the_counters_add_up() {
    let packets = if std::env::var_os("SLUICEGATE_LONG").is_some() { 10_000_000 } else { 200_000 };
    let live = Live::new(snapshot());
    let (mut engines, counters) = threads(&live);
    let mut random = Random(2);
    let (mut injected, mut now, mut turns) = (0u64, MILLI, 0u64);
    while injected < packets {
        let which = random.below(u64::from(THREADS)) as usize;
        for _ in 0..random.below(32) {
            let frame = frames::any(&mut random);
            // As the XDP program opens it, or in the wrong size.
            let head = [0, 24, 24, 28, 44, 63][random.below(6) as usize];
            injected += u64::from(engines[which].device_mut().inject(&frame, head));
        }
        now += random.below(2 * MILLI);
        if random.below(500) == 0 {
            live.publish(live.current().with_states(bed::states(&mut random)).unwrap());
        }
        // At times the link is slower than what comes.
        turns += 1;
        let taken = random.below(if turns % 1024 < 512 { 48 } else { 8 }) as usize;
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
