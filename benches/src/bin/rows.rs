//! Runs one row of the benchmark `pipeline` without Criterion, for instruction counts and quick
//! measurements. The command line is `rows NAME BATCHES [NANOS]`. The clock of the packets advances
//! by `NANOS` per batch, by default 10,000.
//!
//! The program prints the minimum and the median time per packet over all batches, and the
//! percentage of packets on the fast path. Under callgrind with
//! `--toggle-collect='*Pipeline*process*'`, the difference between two runs gives the instructions
//! per packet (`cargo xtask bench instructions`).

use sluicegate_benches::{Batch, DEFAULT_BATCH, Row};

fn main() {
    let mut arguments = std::env::args().skip(1);
    let row = arguments.next().and_then(|name| Row::named(&name));
    let batches = arguments.next().and_then(|batches| batches.parse::<usize>().ok());
    let nanos = arguments.next().map_or(Some(10_000), |nanos| nanos.parse::<u64>().ok());
    let (Some(row), Some(batches), Some(nanos)) = (row, batches, nanos) else {
        let names: Vec<_> = Row::ALL.iter().map(|row| row.name).collect();
        eprintln!("usage: rows NAME BATCHES [NANOS] (names: {})", names.join("; "));
        std::process::exit(2);
    };
    let mut batch = Batch::default();
    let (mut pipeline, counters, mut now) = row.establish(&mut batch);
    let before = counters.fast_path.read();
    let (mut state, mut times) = (1, Vec::with_capacity(batches));
    for _ in 0..batches {
        now = forwarder::Now::from_nanos(now.nanos() + nanos);
        times.push(row.turn(&mut batch, &mut pipeline, now, &mut state));
    }
    times.sort_unstable();
    let each = |at: usize| times.get(at).map_or(0.0, |time| time.as_nanos() as f64 / DEFAULT_BATCH as f64);
    let plain = 100 * (counters.fast_path.read() - before) / (batches * DEFAULT_BATCH).max(1) as u64;
    let (least, median) = (each(0), each(batches / 2));
    println!("{}: least {least:.1} ns, median {median:.1} ns, plain {plain} %", row.name);
}
