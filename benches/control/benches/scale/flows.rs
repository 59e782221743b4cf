//! Measures a connection table with a given number of flows.
//!
//! The table has twice as many entries as flows, as the documentation recommends. `lookup_ns` is
//! the time per lookup of random flows in batches of 64. The table uses huge pages, like the table
//! of a packet thread. `lookup_4k_ns` is the same time without huge pages, and the difference shows
//! the cost of TLB misses. Lookups are measured in rounds, and the result is the lowest median.
//! `build_ms` is the time to allocate the table. `sweep_ms` is the time of a pass that looks for
//! expired flows. `handover_ms` is the time to send all flows through a Unix socket into another
//! table, as an upgrade does. These times are minimums.

use std::hint::black_box;
use std::io::{Read, Write};
use std::ops::Range;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use conntrack::{Config, Cursor, FlowTable, Query, Signal, Target, Tick};

use crate::{REPEATED_FOR, resident, rounds};

pub(crate) const HEAD: &str =
    "flows,entries,table_mb,lookup_ns,lookup_median_ns,lookup_4k_ns,build_ms,sweep_ms,handover_ms";
pub(crate) const COUNTS: [usize; 7] = [16_000, 50_000, 160_000, 500_000, 1_600_000, 5_000_000, 16_000_000];

pub(crate) fn measure(flows: usize) -> String {
    let before = resident("VmRSS");
    let mut table = empty(flows, datapath::advise_large_pages);
    let memory = resident("VmRSS") - before;
    fill(&mut table, flows);
    let (lookup, median) = lookup(&mut table, flows);
    let build = least(|| {
        let start = Instant::now();
        let table = empty(flows, datapath::advise_large_pages);
        let took = start.elapsed();
        drop(table);
        took
    });
    let sweep = least(|| sweep(&mut table));
    let handover = least(|| hand_over(&table, &mut empty(flows, datapath::advise_large_pages)));
    let entries = table.capacity();
    drop(table);
    let mut small = empty(flows, |_| {});
    fill(&mut small, flows);
    let (small, _) = self::lookup(&mut small, flows);
    let millis = |time: Duration| time.as_secs_f64() * 1e3;
    format!(
        "{flows},{entries},{memory:.1},{lookup:.1},{median:.1},{small:.1},{:.2},{:.3},{:.2}",
        millis(build),
        millis(sweep),
        millis(handover)
    )
}

fn empty(flows: usize, advise: impl FnOnce(Range<usize>)) -> FlowTable {
    let config = Config { capacity: 2 * flows, ..Config::default() };
    FlowTable::new_advised(&config, advise).expect("cannot allocate the table")
}

/// Adds the flows. The second packet of a flow ends the probation of its entry.
fn fill(table: &mut FlowTable, flows: usize) {
    for flow in 0..flows as u64 {
        let target = Target::new((flow % 1_000) as u32, 1).expect("a small slot");
        let _ = table.insert(hash(flow), target, Signal::Data, Tick::new(8));
        table.lookup(hash(flow), Signal::Data, NOW);
    }
    assert!(table.len() > flows / 1_000 * 999, "only {} of {flows} flows have an entry", table.len());
}

/// Returns the time per lookup in ns, as [`rounds`] does.
fn lookup(table: &mut FlowTable, flows: usize) -> (f64, f64) {
    let mut queries = [Query { hash: 0, signal: Signal::Data }; QUERIES];
    let mut hits = [None; QUERIES];
    let mut state = 1_u64;
    rounds(QUERIES, || {
        for query in &mut queries {
            state = state.wrapping_add(1);
            let random = u128::from(hash(!state)) * flows as u128;
            query.hash = hash((random >> 64) as u64);
        }
        let start = Instant::now();
        for (queries, hits) in queries.chunks(BATCH).zip(hits.chunks_mut(BATCH)) {
            table.lookup_batch(queries, NOW, hits);
        }
        let took = start.elapsed();
        black_box(&mut hits);
        took
    })
}

/// Returns the duration of a pass in the steps of a packet thread. No flow has expired.
fn sweep(table: &mut FlowTable) -> Duration {
    let start = Instant::now();
    for _ in 0..table.buckets().div_ceil(SWEEP_BUCKETS) {
        assert_eq!(table.sweep(SWEEP_BUCKETS, NOW), 0, "no flow has expired");
    }
    start.elapsed()
}

/// Sends all flows to another table, and returns the duration. The new process has allocated its
/// table before.
fn hand_over(old: &FlowTable, new: &mut FlowTable) -> Duration {
    let (mut to, mut from) = UnixStream::pair().expect("cannot create sockets");
    let start = Instant::now();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let (mut next, mut records) = (Some(Cursor::START), Vec::new());
            while let Some(cursor) = next {
                next = old.pack(cursor, PART_BUCKETS, &mut records);
                to.write_all(&(records.len() as u64).to_le_bytes()).expect("cannot send a length");
                to.write_all(&records).expect("cannot send flows");
                records.clear();
            }
        });
        let mut length = [0; 8];
        // The other end is closed after the last part.
        while from.read_exact(&mut length).is_ok() {
            let mut records = vec![0; usize::try_from(u64::from_le_bytes(length)).expect("a part is small")];
            from.read_exact(&mut records).expect("cannot receive flows");
            new.unpack(&records).expect("both tables have the same size");
        }
    });
    let took = start.elapsed();
    assert_eq!(new.len(), old.len(), "all flows have arrived");
    took
}

fn least(mut time: impl FnMut() -> Duration) -> Duration {
    let start = Instant::now();
    let mut least = Duration::MAX;
    let mut repeats = 0;
    while repeats < REPEATS || start.elapsed() < REPEATED_FOR {
        least = least.min(time());
        repeats += 1;
    }
    least
}

/// Returns a pseudorandom hash (SplitMix64).
fn hash(flow: u64) -> u64 {
    let mut hash = flow.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    hash = (hash ^ hash >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    hash = (hash ^ hash >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    hash ^ hash >> 31
}

const NOW: Tick = Tick::new(9);
const BATCH: usize = 64;
/// The number of lookups that are timed together, so that reading the clock does not matter.
const QUERIES: usize = 16 * BATCH;
/// The maximum number of buckets that a packet thread sweeps at once.
const SWEEP_BUCKETS: usize = 4_096;
/// The number of buckets that an upgrade sends at once.
const PART_BUCKETS: usize = 1 << 16;
/// The minimum number of sweeps and handovers.
const REPEATS: usize = 9;
