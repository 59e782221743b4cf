//! Measures how long it takes to build Maglev tables and to look up slots.
//!
//! First, the benchmark builds a table of 65,537 slots for 1,000 backends of equal weight, and
//! compares the time with a naive implementation of pseudocode 1 of the Maglev paper. The naive
//! code uses the same hash functions as Sluicegate, computes (offset + next * skip) mod M in u64 at
//! each step, and has no permutation array. The naive code and Sluicegate's code must build the
//! same table. The result is the median ratio of 31 alternating pairs. Budget: 0.45. The name of a
//! Criterion row `build` contains the numbers of slots and backends. A `build` row builds the table
//! from sorted names on one core. The name of a `weighted` row contains the number of different
//! weights. The row `lookup` looks up a different slot in each iteration.

use std::hint::black_box;
use std::time::{Duration, Instant};

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group};
use figures::{equal, names, pseudocode};
use maglev_hash::{Backend, Options, Rank, Seed, Table, build};

const SEED: [u8; 16] = *b"seed of a bench.";
const BUDGET: f64 = 0.45;

fn fast(backends: &[Backend<'_>], size: u32) -> Table {
    let mut options = Options::new(Seed::new(SEED));
    (options.size, options.allow_coarse) = (size, true);
    build(backends, &options).expect("the size is prime and the names differ")
}

fn timed<T>(work: impl FnOnce() -> T) -> (T, Duration) {
    let start = Instant::now();
    let result = work();
    (result, start.elapsed())
}

/// Builds the table with both implementations in turn. Panics if the tables differ.
fn verdict(size: u32, count: usize, pairs: usize) {
    let names = names(count);
    let backends = equal(&names);
    let mut runs = Vec::new();
    for _ in 0..pairs {
        let (slow, slow_time) = timed(|| pseudocode(black_box(&names), black_box(size), &SEED));
        let (table, time) = timed(|| fast(black_box(&backends), black_box(size)));
        assert!(
            table.iter().map(Rank::index_by_name).eq(slow.iter().map(|&rank| usize::from(rank))),
            "the tables differ"
        );
        runs.push((time.as_secs_f64() / slow_time.as_secs_f64(), time, slow_time));
    }
    runs.sort_by(|a, b| a.0.total_cmp(&b.0));
    let (ratio, time, slow_time) = runs[pairs / 2];
    let word = if ratio <= BUDGET { "within" } else { "OVER" };
    println!(
        "maglev/verdict {size} x {count}: {time:?}, naive {slow_time:?}, ratio {ratio:.3} \
         (median of {pairs} pairs), {word} the budget of {BUDGET}; same table"
    );
}

fn builds(c: &mut Criterion) {
    let mut group = c.benchmark_group("maglev/build");
    for (size, count) in [(65_537, 1), (65_537, 100), (65_537, 1_000), (655_373, 1_000)] {
        let names = names(count);
        let backends = equal(&names);
        let row = format!("{size}x{count}");
        group.bench_function(BenchmarkId::new("equal", &row), |b| b.iter(|| fast(&backends, size)));
        group.bench_function(BenchmarkId::new("naive", &row), |b| b.iter(|| pseudocode(&names, size, &SEED)));
    }
    let names = names(1_000);
    for classes in [3, 1_000] {
        let weighted: Vec<Backend<'_>> =
            (0..).zip(&names).map(|(i, name)| Backend { name, weight: 1_000 + i % classes }).collect();
        group.bench_function(BenchmarkId::new("weighted", classes), |b| b.iter(|| fast(&weighted, 65_537)));
    }
    group.finish();
}

fn lookups(c: &mut Criterion) {
    let mut group = c.benchmark_group("maglev/lookup");
    group.throughput(Throughput::Elements(1));
    for (size, count) in [(65_537, 100), (655_373, 1_000)] {
        let names = names(count);
        let table = fast(&equal(&names), size);
        group.bench_function(BenchmarkId::new(size.to_string(), count), |b| {
            // Each lookup uses a different slot, so that the slots do not all stay in one cache
            // line.
            let mut hash = 0u64;
            b.iter(|| {
                hash = hash.wrapping_add(0x9e37_79b9_7f4a_7c15);
                black_box(table.lookup_uniform(hash))
            });
        });
    }
    group.finish();
}

criterion_group! {
    name = rows;
    config = Criterion::default().sample_size(30).warm_up_time(Duration::from_millis(500))
        .measurement_time(Duration::from_secs(2)).without_plots();
    targets = builds, lookups
}

fn main() {
    verdict(65_537, 1_000, 31);
    verdict(655_373, 1_000, 11);
    rows();
    Criterion::default().configure_from_args().final_summary();
}
