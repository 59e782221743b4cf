//! Compares lookups in the connection table with lookups of the same keys in a `hashbrown` map.
//!
//! A key is the SipHash-1-3 hash of a 5-tuple. The `hashbrown` map contains the backend slot of
//! each key, and its hasher returns the key unchanged. For N flows, the connection table has 2 N
//! entries. First, the benchmark compares the connection table and the map at 1 M flows. In a pass,
//! every flow is looked up once, in random order and in batches of 64. The result is the median
//! ratio of 15 pairs of passes. The goal is half of `hashbrown`'s time. Then Criterion runs the
//! following rows. `single` looks up one key at a time, and each key depends on the previous
//! result. `batch` looks up 64 keys at a time. `insert` adds the flows of a SYN flood to a full
//! table. `carry` packs and unpacks all flows, as an upgrade does. Budget: 25 ns for a batched
//! lookup at 1 M flows.

use std::hash::{BuildHasherDefault, Hasher};
use std::hint::black_box;
use std::time::{Duration, Instant};

use conntrack::{Config, Cursor, FlowTable, Hit, Query, Signal, Target, Tick};
use criterion::{BenchmarkId, Criterion, Throughput, criterion_group};
use hashbrown::HashMap;
use siphasher::sip::SipHasher13;

const BUDGET: f64 = 0.5;
const BATCH: usize = 64;
const NOW: Tick = Tick::new(9);

/// A hasher that returns its input, because the keys are already hashes.
#[derive(Default)]
struct PassThrough(u64);

impl Hasher for PassThrough {
    fn write(&mut self, _: &[u8]) {
        unreachable!("keys are u64");
    }
    fn write_u64(&mut self, key: u64) {
        self.0 = key;
    }
    fn finish(&self) -> u64 {
        self.0
    }
}

type Map = HashMap<u64, u32, BuildHasherDefault<PassThrough>>;
type Flow = [u8; 13]; // addresses, ports, protocol

/// The connection table and the hash map, which contain the same flows, and the order in which the
/// benchmark looks up the flows.
struct Bed {
    table: FlowTable,
    map: Map,
    sip: SipHasher13,
    flows: Vec<Flow>,
    queries: Vec<Query>,
}

impl Bed {
    fn new(count: u32) -> Self {
        let sip = SipHasher13::new_with_key(b"key of the bench");
        let mut table = empty(count as usize * 2);
        let mut map = Map::with_capacity_and_hasher(count as usize, BuildHasherDefault::default());
        let mut flows: Vec<Flow> = (0..count).map(flow).collect();
        for (flow, slot) in flows.iter().zip(0u32..) {
            let (hash, slot) = (sip.hash(flow), slot % 1_000);
            let _ =
                table.insert(hash, Target::new(slot, 1).expect("a small slot"), Signal::Data, Tick::new(8));
            // The second packet of a flow ends the probation of its entry.
            table.lookup(hash, Signal::Data, NOW);
            map.insert(hash, slot);
        }
        let mut random = 1;
        for i in (1..flows.len()).rev() {
            random = sip.hash(&u64::to_le_bytes(random));
            #[expect(clippy::cast_possible_truncation, reason = "the result is below i + 1")]
            flows.swap(i, (random % (i as u64 + 1)) as usize);
        }
        let queries = flows.iter().map(|f| Query { hash: sip.hash(f), signal: Signal::Data }).collect();
        Self { table, map, sip, flows, queries }
    }

    fn table_batch(&mut self, at: usize, hits: &mut [Option<Hit>; BATCH]) {
        self.table.lookup_batch(&self.queries[at..at + BATCH], NOW, hits);
    }

    fn map_batch(&self, at: usize, slots: &mut [Option<u32>; BATCH]) {
        for (query, slot) in self.queries[at..at + BATCH].iter().zip(slots) {
            *slot = self.map.get(&query.hash).copied();
        }
    }

    fn table_hash_batch(&mut self, at: usize, hits: &mut [Option<Hit>; BATCH]) {
        let mut queries = [Query { hash: 0, signal: Signal::Data }; BATCH];
        for (flow, query) in self.flows[at..at + BATCH].iter().zip(&mut queries) {
            query.hash = self.sip.hash(flow);
        }
        self.table.lookup_batch(&queries, NOW, hits);
    }

    fn map_hash_batch(&self, at: usize, slots: &mut [Option<u32>; BATCH]) {
        for (flow, slot) in self.flows[at..at + BATCH].iter().zip(slots) {
            *slot = self.map.get(&self.sip.hash(flow)).copied();
        }
    }

    fn map_hash_all_batch(&self, at: usize, slots: &mut [Option<u32>; BATCH]) {
        let mut hashes = [0; BATCH];
        for (flow, hash) in self.flows[at..at + BATCH].iter().zip(&mut hashes) {
            *hash = self.sip.hash(flow);
        }
        for (hash, slot) in black_box(&hashes).iter().zip(slots) {
            *slot = self.map.get(hash).copied();
        }
    }

    /// Returns the start of the next batch, or 0 at the end of the queries.
    fn after(&self, at: usize) -> usize {
        if at + 2 * BATCH <= self.queries.len() { at + BATCH } else { 0 }
    }
}

/// Returns a table with the memory that packet threads use.
fn empty(capacity: usize) -> FlowTable {
    let config = Config { capacity, ..Config::default() };
    FlowTable::new_advised(&config, datapath::advise_large_pages).expect("cannot allocate the table")
}

fn flow(number: u32) -> Flow {
    let mut flow = [198, 18, 0, 0, 192, 0, 2, 1, 0, 0, 0, 80, 6];
    flow[2..4].copy_from_slice(&number.to_be_bytes()[..2]);
    flow[8..10].copy_from_slice(&number.to_be_bytes()[2..]);
    flow
}

/// Runs one pass over all flows and returns its time in nanoseconds per flow.
fn pass(bed: &mut Bed, mut batch: impl FnMut(&mut Bed, usize)) -> f64 {
    let batches = bed.queries.len() / BATCH;
    let start = Instant::now();
    for i in 0..batches {
        batch(bed, i * BATCH);
    }
    start.elapsed().as_secs_f64() * 1e9 / (batches * BATCH) as f64
}

fn verdict(name: &str, bed: &mut Bed, table: fn(&mut Bed, usize), map: fn(&mut Bed, usize)) {
    let mut pairs: Vec<(f64, f64)> = (0..15).map(|_| (pass(bed, table), pass(bed, map))).collect();
    pairs.sort_by(|a, b| (a.0 / a.1).total_cmp(&(b.0 / b.1)));
    let (ours, theirs) = pairs[pairs.len() / 2];
    let ratio = ours / theirs;
    let word = if ratio <= BUDGET { "within" } else { "OVER" };
    println!(
        "{name}, {} flows: {ours:.1} ns, hashbrown {theirs:.1} ns, ratio {ratio:.2}: {word} {BUDGET}",
        bed.queries.len()
    );
}

fn verdicts(flows: u32) {
    let mut bed = Bed::new(flows);
    let counters = bed.table.counters();
    println!(
        "{flows} flows in {} entries: {} untracked, {} moved, {:.1} bytes per tracked flow",
        bed.table.capacity(),
        counters.untracked + counters.evicted_from_probation,
        counters.moved,
        bed.table.memory_bytes() as f64 / bed.table.len() as f64
    );
    verdict(
        "given hash",
        &mut bed,
        |bed, at| bed.table_batch(at, black_box(&mut [None; BATCH])),
        |bed, at| bed.map_batch(at, black_box(&mut [None; BATCH])),
    );
    verdict(
        "computed hash",
        &mut bed,
        |bed, at| bed.table_hash_batch(at, black_box(&mut [None; BATCH])),
        |bed, at| bed.map_hash_batch(at, black_box(&mut [None; BATCH])),
    );
    verdict(
        "computed hash, hashbrown hashes the whole batch first",
        &mut bed,
        |bed, at| bed.table_hash_batch(at, black_box(&mut [None; BATCH])),
        |bed, at| bed.map_hash_all_batch(at, black_box(&mut [None; BATCH])),
    );
}

fn lookups(c: &mut Criterion) {
    for flows in [1_000, 1_000_000, 16_000_000] {
        let mut bed = Bed::new(flows);
        singles(c, &mut bed);
        batches(c, &mut bed);
    }
}

fn singles(c: &mut Criterion, bed: &mut Bed) {
    let mut group = c.benchmark_group("conntrack/single");
    group.throughput(Throughput::Elements(1));
    let (mut at, last) = (0, bed.queries.len() - 2);
    group.bench_function(BenchmarkId::new("table", bed.queries.len()), |b| {
        b.iter(|| {
            let hit = bed.table.lookup(bed.queries[at].hash, Signal::Data, NOW);
            at = if at >= last { 0 } else { at + 1 + usize::from(hit.is_none_or(|hit| hit.slot > 1_000)) };
        });
    });
    group.bench_function(BenchmarkId::new("hashbrown", bed.queries.len()), |b| {
        b.iter(|| {
            let slot = bed.map.get(&bed.queries[at].hash);
            at = if at >= last { 0 } else { at + 1 + usize::from(slot.is_none_or(|&slot| slot > 1_000)) };
        });
    });
    group.finish();
}

fn batches(c: &mut Criterion, bed: &mut Bed) {
    let mut group = c.benchmark_group("conntrack/batch");
    group.throughput(Throughput::Elements(BATCH as u64));
    let (mut at, mut hits, mut slots) = (0, [None; BATCH], [None; BATCH]);
    group.bench_function(BenchmarkId::new("table", bed.queries.len()), |b| {
        b.iter(|| {
            at = bed.after(at);
            bed.table_batch(at, &mut hits);
            black_box(&mut hits);
        });
    });
    group.bench_function(BenchmarkId::new("hashbrown", bed.queries.len()), |b| {
        b.iter(|| {
            at = bed.after(at);
            bed.map_batch(at, &mut slots);
            black_box(&mut slots);
        });
    });
    group.finish();
}

/// Measures how long it takes to pack and unpack all flows for a handover to another process. The
/// transfer between the processes is not measured.
fn carried(c: &mut Criterion) {
    let mut group = c.benchmark_group("conntrack/carry");
    group.sample_size(10);
    for flows in [100_000, 500_000, 4_000_000] {
        let old = Bed::new(flows).table;
        let (mut heir, mut records) = (empty(old.capacity()), Vec::new());
        group.throughput(Throughput::Elements(flows.into()));
        group.bench_function(BenchmarkId::new("table", flows), |b| {
            b.iter(|| {
                let mut from = Some(Cursor::START);
                while let Some(cursor) = from {
                    records.clear();
                    from = old.pack(cursor, 1 << 16, &mut records);
                    heir.unpack(&records).expect("both tables have the same size");
                }
            });
        });
    }
    group.finish();
}

fn floods(c: &mut Criterion) {
    let mut group = c.benchmark_group("conntrack/insert");
    group.throughput(Throughput::Elements(BATCH as u64));
    let sip = SipHasher13::new_with_key(b"key of the bench");
    let (mut table, mut number) = (empty(1_000_000), 0u64);
    for _ in 0..2_000_000 {
        number += 1;
        let _ = black_box(table.insert(
            sip.hash(&number.to_le_bytes()),
            Target::new(1, 1).expect("a small slot"),
            Signal::Syn,
            NOW,
        ));
    }
    group.bench_function("flood", |b| {
        b.iter(|| {
            let hashes: [u64; BATCH] = std::array::from_fn(|i| sip.hash(&(number + i as u64).to_le_bytes()));
            number += BATCH as u64;
            hashes.iter().for_each(|&hash| table.prefetch(hash));
            hashes.iter().for_each(|&hash| {
                let _ =
                    black_box(table.insert(hash, Target::new(1, 1).expect("a small slot"), Signal::Syn, NOW));
            });
        });
    });
    group.finish();
}

criterion_group! {
    name = rows;
    config = Criterion::default().sample_size(20).warm_up_time(Duration::from_millis(300))
        .measurement_time(Duration::from_secs(1)).without_plots();
    targets = lookups, floods, carried
}

fn main() {
    verdicts(1_000_000);
    rows();
    Criterion::default().configure_from_args().final_summary();
}
