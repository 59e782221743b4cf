//! The short form of the benchmark, which the lane `zero-copy` runs with the build of the test
//! lanes.
//!
//! It compares the counts that are the same in every run and on every machine with the counts in
//! `xtask/zero-copy/kept.csv`. These are the instructions of the XDP program and of Sluicegate, the
//! system calls of a burst, and the lost frames. Other counts of the kernel depend on timers.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

use super::devices::Device;
use super::results::Row;
use super::symbols::Part;
use super::traffic::Traffic;
use super::vm::Nic;
use super::{Chosen, rows};
use crate::build::Built;
use crate::cargo::root;

/// Compares the counts of this build of the test lanes with the kept counts.
pub(crate) fn compare(balancer: &Path) -> Result<()> {
    let text = fs::read_to_string(path()).with_context(|| format!("cannot read {PATH}"))?;
    let different = differences(&parse(&text)?, &count(balancer)?);
    ensure!(
        different.is_empty(),
        "counts differ from {PATH} by more than 1 % (`cargo xtask bench zero-copy --keep` records the new counts):\n  {}",
        different.join("\n  ")
    );
    Ok(())
}

/// Builds the balancer like the test lanes, and records its counts.
pub(crate) fn keep() -> Result<()> {
    let built = Built::new(&[], false)?;
    let mut text = String::from(HEAD);
    for (name, count) in count(built.balancer()?)? {
        println!("{count:>12.1}  {name}");
        writeln!(text, "{count:.1},{name}")?;
    }
    fs::write(path(), text).with_context(|| format!("cannot write {PATH}"))
}

fn count(balancer: &Path) -> Result<BTreeMap<String, f64>> {
    let chosen = Chosen {
        devices: vec![Device::AfXdp],
        traffic: vec![Traffic::ThousandFlows, Traffic::SynFlood],
        nics: vec![Nic::Igb],
    };
    Ok(rows(&chosen, Some(balancer), None)?.iter().flat_map(exact).collect())
}

/// Returns the counts of a row that are the same in every run, with their names.
fn exact(row: &Row) -> Vec<(String, f64)> {
    let name = |what: &str| format!("{} {}: {what}", row.nic.name(), row.traffic.name());
    let program = row.profile.functions.iter().filter(|((_, function), _)| function.starts_with(PROGRAM));
    let mut counts = vec![
        (name("XDP program"), row.per_packet(program.map(|(_, count)| count).sum())),
        #[expect(clippy::cast_precision_loss, reason = "few frames")]
        (name("lost frames"), row.lost as f64),
    ];
    counts.extend(PARTS.map(|part| (name(part.name()), row.of(part))));
    #[expect(clippy::cast_precision_loss, reason = "few calls")]
    let calls =
        row.profile.calls.iter().map(|(call, count)| (name(&format!("calls of {call}")), *count as f64));
    counts.extend(calls);
    counts
}

/// Compares counts by name. A count of only one side differs.
fn differences(kept: &BTreeMap<String, f64>, now: &BTreeMap<String, f64>) -> Vec<String> {
    let names = kept.keys().chain(now.keys().filter(|name| !kept.contains_key(*name)));
    let differs = |name: &String| {
        let (kept, now) = (kept.get(name).copied(), now.get(name).copied());
        let is_near = match (kept, now) {
            (Some(kept), Some(now)) => (now - kept).abs() <= (kept * TOLERANCE).max(ROUNDING),
            _ => false,
        };
        let word = |count: Option<f64>| count.map_or("nothing".to_owned(), |count| format!("{count:.1}"));
        (!is_near).then(|| format!("{name}: {} instead of {}", word(now), word(kept)))
    };
    names.filter_map(differs).collect()
}

fn parse(text: &str) -> Result<BTreeMap<String, f64>> {
    let row = |line: &str| {
        let (count, name) = line.split_once(',').context("a line has no comma")?;
        Ok((name.to_owned(), count.parse().with_context(|| format!("{count:?} is not a count"))?))
    };
    text.lines().filter(|line| !line.starts_with('#')).skip(1).map(row).collect()
}

fn path() -> PathBuf {
    root().join(PATH)
}

const PATH: &str = "xtask/zero-copy/kept.csv";
const HEAD: &str = "# Instructions per packet, and system calls and lost frames, of the build of the test lanes.\n\
                    # cargo xtask bench zero-copy --keep\ncount,name\n";
const PROGRAM: &str = "bpf_prog_";
const PARTS: [Part; 5] = [Part::Rings, Part::Engine, Part::Pipeline, Part::Table, Part::User];
const TOLERANCE: f64 = 0.01;
/// Counts are recorded with one decimal.
const ROUNDING: f64 = 0.1;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_may_differ_by_one_percent() {
        let kept = parse("# comment\ncount,name\n100.0,rings\n0.0,lost frames\n32.0,calls of sendto\n")
            .expect("valid");
        assert_eq!(kept.len(), 3);
        let with = |rings: f64, lost: f64| {
            let mut now = kept.clone();
            now.extend([("rings".to_owned(), rings), ("lost frames".to_owned(), lost)]);
            differences(&kept, &now)
        };
        assert!(with(101.0, 0.0).is_empty() && with(99.0, 0.0).is_empty());
        assert_eq!(with(101.1, 0.0), ["rings: 101.1 instead of 100.0"]);
        assert_eq!(with(100.0, 1.0), ["lost frames: 1.0 instead of 0.0"]);
        let mut now = kept.clone();
        now.remove("calls of sendto");
        now.insert("table".to_owned(), 2.0);
        assert_eq!(
            differences(&kept, &now),
            ["calls of sendto: nothing instead of 32.0", "table: 2.0 instead of nothing"]
        );
        assert!(parse("count,name\n1.0;rings\n").is_err());
    }
}
