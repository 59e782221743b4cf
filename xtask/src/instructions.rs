//! Implements `bench instructions`, which counts the instructions per packet for rows of the
//! benchmark `pipeline`.
//!
//! Callgrind counts the instructions inside the function `process`. Each row runs twice with
//! different numbers of batches. The result is computed from the difference between the two counts,
//! so it excludes the instructions that establish flows. The output is a table with the previous
//! counts from `benches/results/instructions.csv`. Unlike times, instruction counts are repeatable
//! on a busy machine. Callgrind does not support AVX-512, so the code runs with AVX2 if the
//! processor supports it.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

use crate::cargo::{self, Metadata, cargo};
use crate::figures::{PIPELINE, origin};
use crate::setup;

/// The measured rows. Only rows that need little preparation are measured, because a program runs
/// fifty times slower under callgrind.
const ROWS: [&str; 27] = [
    "one flow",
    "1000 flows",
    "1000 flows, UDP",
    "syn flood",
    "unknown flows, 1 previous table",
    "unknown flows, 128 previous tables",
    "IPv6, 1000 flows",
    "1000 flows, limits",
    "1000 flows, tracing",
    "1000 flows, two tags",
    "1000 flows, deny 10000",
    "1000 flows, IPIP",
    "1000 flows, L2",
    "1000 flows, GUE",
    "1000 flows, GUE with a checksum",
    "1000 flows, outer IPv6",
    "1000 flows, DF off",
    "1000 flows, source prefix",
    "1000 flows, reflect",
    "1000 flows, prefix VIP",
    "1000 flows, hashed by addresses",
    "1000 flows, hashed by source",
    "1000 flows, tunnelled arrivals",
    "truncated",
    "wrong header length",
    "wrong data offset",
    "unserved port",
];
/// The numbers of batches in the two runs.
const BATCHES: [u32; 2] = [100, 400];
/// The number of packets per batch, which is the same as in the program `rows`.
const BATCH: u32 = 64;
/// The maximum accepted growth, relative to the last recorded count.
const GROWTH: f64 = 1.1;
const RESULTS: &str = "benches/results/instructions.csv";

/// Counts all rows, and records the counts with the current date and commit.
pub(crate) fn run() -> Result<()> {
    let counts = count_all()?;
    let path = cargo::root().join(RESULTS);
    let date = said(Command::new("date").arg("+%F"))?;
    let commit =
        said(Command::new("git").args(["describe", "--always", "--dirty"]).current_dir(cargo::root()))?;
    // The comment lines at the top describe the last run. Earlier rows keep their own commit.
    let mut text = origin("cargo xtask bench instructions", PIPELINE, false)?;
    for line in kept()?.lines().filter(|line| !line.starts_with('#')) {
        writeln!(text, "{line}")?;
    }
    for (row, count) in ROWS.iter().zip(counts) {
        writeln!(text, "{date},{commit},{count:.1},{row}")?;
    }
    fs::write(&path, text).with_context(|| format!("cannot write {RESULTS}"))
}

/// Counts all rows and compares the counts with the recorded counts. Fails if a count has grown by
/// more than a tenth.
pub(crate) fn compare() -> Result<()> {
    let kept = kept()?;
    let counts = count_all()?;
    let grown = ROWS.iter().zip(counts).filter_map(|(row, count)| {
        let before = last(&kept, row)?;
        (count > before * GROWTH)
            .then(|| format!("{row}: from {before:.1} to {count:.1} instructions per packet"))
    });
    let grown: Vec<String> = grown.collect();
    ensure!(
        grown.is_empty(),
        "instruction counts have grown by more than a tenth (run `cargo xtask bench instructions` to accept): {}",
        grown.join("; ")
    );
    Ok(())
}

/// Counts all rows, and prints each result as soon as it is available.
fn count_all() -> Result<Vec<f64>> {
    setup::ensure(&[setup::BUILD, setup::INSTRUCTIONS].concat())?;
    cargo::run(&mut cargo(&[
        "build",
        "--profile",
        "bench",
        "--package",
        "sluicegate-benches",
        "--bin",
        "rows",
    ]))?;
    let program = Metadata::read()?.target_directory()?.join("release/rows");
    let kept = kept()?;
    println!("{:>12} {:>12}  row", "instructions", "previous");
    ROWS.iter()
        .map(|row| {
            let count = count(&program, row)?;
            let before = last(&kept, row).map_or_else(|| "-".to_owned(), |count| format!("{count:.1}"));
            println!("{count:>12.1} {before:>12}  {row}");
            Ok(count)
        })
        .collect()
}

/// Returns the number of instructions per packet for a row.
fn count(program: &Path, row: &str) -> Result<f64> {
    let [few, many] = BATCHES;
    let [first, second] = [collected(program, row, few)?, collected(program, row, many)?];
    ensure!(second > first, "{row}: {many} batches took {second} instructions, {few} batches took {first}");
    Ok((second - first) as f64 / f64::from((many - few) * BATCH))
}

/// Returns the number of instructions that callgrind counted in one run.
fn collected(program: &Path, row: &str, batches: u32) -> Result<u64> {
    let output = Command::new("valgrind")
        .args(["--tool=callgrind", "--toggle-collect=*Pipeline*process*", "--callgrind-out-file=/dev/null"])
        .arg(program)
        .args([row, &batches.to_string()])
        .output()
        .context("cannot run valgrind")?;
    let said = String::from_utf8_lossy(&output.stderr);
    if !output.status.success() {
        bail!("valgrind failed for {row} ({}): {said}", output.status);
    }
    sum(&said).with_context(|| format!("valgrind printed no instruction count for {row}: {said}"))
}

/// Parses the sum in the last lines of callgrind's output, such as `==7== Collected : 12345`.
fn sum(said: &str) -> Option<u64> {
    let line = said.lines().find(|line| line.contains("Collected :"))?;
    line.rsplit(' ').next()?.parse().ok()
}

fn kept() -> Result<String> {
    let path: PathBuf = cargo::root().join(RESULTS);
    fs::read_to_string(&path).with_context(|| format!("cannot read {RESULTS}"))
}

/// Returns the last recorded count of a row. The fields of a line are date, commit, instructions
/// and row. The row is the last field, because its name may contain commas.
fn last(kept: &str, row: &str) -> Option<f64> {
    let fields = |line: &str| line.splitn(4, ',').map(str::to_owned).collect::<Vec<_>>();
    let of_row = kept.lines().map(fields).rfind(|fields| fields.get(3).is_some_and(|name| name == row))?;
    of_row.get(2)?.parse().ok()
}

fn said(command: &mut Command) -> Result<String> {
    let output = command.output().with_context(|| format!("cannot run {:?}", command.get_program()))?;
    ensure!(output.status.success(), "{:?} failed ({})", command.get_program(), output.status);
    Ok(String::from_utf8(output.stdout)?.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sum_is_read_from_the_last_lines_of_callgrind() {
        let said = "==7== Events    : Ir\n==7== Collected : 85762568\n==7== \n";
        assert_eq!(sum(said), Some(85_762_568));
        assert_eq!(sum("==7== Events    : Ir\n"), None);
    }

    #[test]
    fn last_line_of_a_row_counts_even_if_its_name_has_commas() {
        let kept = "date,commit,instructions,row\n2026-01-01,a,500.5,1000 flows\n2026-01-02,b,510.0,1000 flows\n\
                    2026-01-02,b,600.0,1000 flows, limits\n";
        assert_eq!(last(kept, "1000 flows"), Some(510.0));
        assert_eq!(last(kept, "1000 flows, limits"), Some(600.0));
        assert_eq!(last(kept, "one flow"), None);
    }
}
