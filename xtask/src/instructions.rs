//! `bench instructions`: how many instructions a packet takes, by rows of the bench `pipeline`.
//!
//! In: the program `rows` under callgrind, which counts what happens inside `process`; of two runs the difference, so that flows
//! that are established first do not count. Out: a table, beside what `benches/results/instructions.csv` has kept.
//! Not here: the rows. Times need a quiet machine; these counts repeat on a busy one.
//! AVX2 is counted where the processor has it: callgrind knows no AVX-512.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

use crate::cargo::{self, Metadata, cargo};
use crate::figures::{PIPELINE, origin};
use crate::setup;

/// Those that are established quickly: callgrind takes fifty times the time.
const ROWS: [&str; 24] = [
    "one flow",
    "1000 flows",
    "syn flood",
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
    "1000 flows, policy addresses",
    "1000 flows, policy source",
    "1000 flows, tunnelled arrivals",
    "truncated",
    "wrong header length",
    "wrong data offset",
    "unserved port",
];
/// Batches of the two runs.
const BATCHES: [u32; 2] = [100, 400];
/// Packets a batch, as `rows` has it.
const BATCH: u32 = 64;
/// More than this times what was kept last is a failure.
const GROWTH: f64 = 1.1;
const RESULTS: &str = "benches/results/instructions.csv";

/// Counts all rows and keeps them under today's date and the commit.
pub(crate) fn run() -> Result<()> {
    let counts = count_all()?;
    let path = cargo::root().join(RESULTS);
    let date = said(Command::new("date").arg("+%F"))?;
    let commit =
        said(Command::new("git").args(["describe", "--always", "--dirty"]).current_dir(cargo::root()))?;
    // What stands above is of the last run; each line has the commit of its own.
    let mut text = origin("cargo xtask bench instructions", PIPELINE, false)?;
    for line in kept()?.lines().filter(|line| !line.starts_with('#')) {
        writeln!(text, "{line}")?;
    }
    for (row, count) in ROWS.iter().zip(counts) {
        writeln!(text, "{date},{commit},{count:.1},{row}")?;
    }
    fs::write(&path, text).with_context(|| format!("can't write {RESULTS}"))
}

/// Counts all rows, and fails when one has grown by more than a tenth since it was kept last.
pub(crate) fn compare() -> Result<()> {
    let kept = kept()?;
    let counts = count_all()?;
    let grown = ROWS.iter().zip(counts).filter_map(|(row, count)| {
        let before = last(&kept, row)?;
        (count > before * GROWTH).then(|| format!("{row}: {before:.1} to {count:.1} instructions a packet"))
    });
    let grown: Vec<String> = grown.collect();
    ensure!(
        grown.is_empty(),
        "a row has grown by more than a tenth; `bench instructions` keeps it, if it is meant: {}",
        grown.join("; ")
    );
    Ok(())
}

/// Prints each row as soon as it is known.
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
    println!("{:>12} {:>12}  row", "instructions", "kept last");
    ROWS.iter()
        .map(|row| {
            let count = count(&program, row)?;
            let before = last(&kept, row).map_or_else(|| "-".to_owned(), |count| format!("{count:.1}"));
            println!("{count:>12.1} {before:>12}  {row}");
            Ok(count)
        })
        .collect()
}

/// Instructions of a packet of a row.
fn count(program: &Path, row: &str) -> Result<f64> {
    let [few, many] = BATCHES;
    let [first, second] = [collected(program, row, few)?, collected(program, row, many)?];
    ensure!(second > first, "{row}: {first} instructions in {few} batches, and {second} in {many}");
    Ok((second - first) as f64 / f64::from((many - few) * BATCH))
}

/// All that callgrind counts in a run.
fn collected(program: &Path, row: &str, batches: u32) -> Result<u64> {
    let output = Command::new("valgrind")
        .args(["--tool=callgrind", "--toggle-collect=*Pipeline*process*", "--callgrind-out-file=/dev/null"])
        .arg(program)
        .args([row, &batches.to_string()])
        .output()
        .context("can't run valgrind")?;
    let said = String::from_utf8_lossy(&output.stderr);
    if !output.status.success() {
        bail!("valgrind of {row}: {}: {said}", output.status);
    }
    sum(&said).with_context(|| format!("valgrind of {row} says no sum: {said}"))
}

/// The sum in callgrind's last words: `==7== Collected : 12345`.
fn sum(said: &str) -> Option<u64> {
    let line = said.lines().find(|line| line.contains("Collected :"))?;
    line.rsplit(' ').next()?.parse().ok()
}

fn kept() -> Result<String> {
    let path: PathBuf = cargo::root().join(RESULTS);
    fs::read_to_string(&path).with_context(|| format!("can't read {RESULTS}"))
}

/// What was kept of a row last: date, commit, instructions, row, which may have commas.
fn last(kept: &str, row: &str) -> Option<f64> {
    let fields = |line: &str| line.splitn(4, ',').map(str::to_owned).collect::<Vec<_>>();
    let of_row = kept.lines().map(fields).rfind(|fields| fields.get(3).is_some_and(|name| name == row))?;
    of_row.get(2)?.parse().ok()
}

fn said(command: &mut Command) -> Result<String> {
    let output = command.output().with_context(|| format!("can't run {:?}", command.get_program()))?;
    ensure!(output.status.success(), "{:?}: {}", command.get_program(), output.status);
    Ok(String::from_utf8(output.stdout)?.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn callgrinds_sum_is_read_from_its_last_words() {
        let said = "==7== Events    : Ir\n==7== Collected : 85762568\n==7== \n";
        assert_eq!(sum(said), Some(85_762_568));
        assert_eq!(sum("==7== Events    : Ir\n"), None);
    }

    #[test]
    fn the_last_line_of_a_row_counts_whatever_commas_its_name_has() {
        let kept = "date,commit,instructions,row\n2026-01-01,a,500.5,1000 flows\n2026-01-02,b,510.0,1000 flows\n\
                    2026-01-02,b,600.0,1000 flows, limits\n";
        assert_eq!(last(kept, "1000 flows"), Some(510.0));
        assert_eq!(last(kept, "1000 flows, limits"), Some(600.0));
        assert_eq!(last(kept, "one flow"), None);
    }
}
