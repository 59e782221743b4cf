//! Checks with a counting allocator that `new` allocates all memory, and that it allocates exactly
//! `Config::memory_bytes`. The test is a separate program, because the allocator counts the
//! allocations of all threads.

#![allow(clippy::unwrap_used, reason = "a failed test may panic")]

use std::alloc::System;
use std::time::Duration;

use fragment_table::{Arrival, Config, Extent, FragmentTable, Key, Millis};
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, Stats, StatsAlloc};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

#[test]
fn table_allocates_documented_bytes_in_new_and_never_again() {
    let lifetime = Duration::from_millis(100);
    let config = Config { datagrams: 1_000, buffered: 300, per_datagram: 2, per_source: 20, lifetime };
    let mut table = FragmentTable::<u64>::new(&config).unwrap();
    let build = || table = FragmentTable::new(&config).unwrap();
    assert_eq!(
        least(build, |change| change.bytes_allocated + change.reallocations),
        config.memory_bytes::<u64>()
    );
    let mut n = 0;
    let packets = || {
        for _ in 0..30_000 {
            packet(&mut table, n);
            n += 1;
        }
    };
    assert_eq!(least(packets, |change| change.allocations + change.deallocations + change.reallocations), 0);
    let c = table.counters();
    let seen = [c.recorded, c.known, c.held, c.released, c.expired_known, c.expired_frames, c.refused_source];
    assert!(seen.iter().all(|&count| count > 0), "{c:?}");
}

/// Returns the minimum of several runs, because the test harness may allocate memory in another
/// thread during a run.
fn least(mut run: impl FnMut(), count: impl Fn(Stats) -> usize) -> usize {
    let once = |_| {
        let region = Region::new(ALLOCATOR);
        run();
        count(region.change())
    };
    (0..6).map(once).min().unwrap()
}

fn extent(offset: u16) -> Extent {
    Extent { offset, bytes: 8, more: true }
}

fn packet(table: &mut FragmentTable<u64>, n: u32) {
    let (key, hash) = name(n / 3 % 2_500);
    let now = Millis(u64::from(n / 50));
    if n.is_multiple_of(7) {
        let _ = table.first(&Arrival { key: &key, hash, extent: extent(0) }, u64::from(n % 2), 9, now);
    } else {
        let _ = table.later(&Arrival { key: &key, hash, extent: extent(8) }, hash % 10, now);
    }
    if n.is_multiple_of(64) {
        table.expire(now, 8);
        while table.release().is_some() {}
    }
}

fn name(n: u32) -> (Key, u64) {
    let key = Key { source: [1; 16], destination: [2; 16], protocol: 17, id: n };
    (key, u64::from(n).wrapping_mul(0xbf58_476d_1ce4_e5b9).rotate_left(31))
}
