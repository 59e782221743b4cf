//! The short form of the benchmark, which the lane `zero-copy` runs with the build of the test
//! lanes.
//!
//! The lane compares counts with `xtask/zero-copy/kept.csv` if they are the same in every run and
//! on every machine: the instructions of the XDP program and of the crates that process packets,
//! and the lost frames. The wake-ups of the driver vary by one or two. All other counts, in the
//! kernel and in user space, depend on timers and on other threads.

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
use crate::setup;

/// Compares the counts for this build of the test lanes with the recorded counts.
pub(crate) fn compare(balancer: &Path) -> Result<()> {
    let text = fs::read_to_string(path()).with_context(|| format!("cannot read {PATH}"))?;
    let different = differences(&parse(&text)?, &count(balancer)?);
    ensure!(
        different.is_empty(),
        "counts differ from {PATH} (`cargo xtask bench zero-copy --keep` records the new counts):\n  {}",
        different.join("\n  ")
    );
    Ok(())
}

/// Records the counts for the given build of the test lanes, or for a new build.
pub(crate) fn keep(binary: Option<&Path>) -> Result<()> {
    setup::ensure(&[setup::BUILD, setup::VM, setup::COUNT].concat())?;
    let binary = match binary {
        Some(binary) => binary.to_owned(),
        None => Built::new(&[], false)?.balancer()?.to_owned(),
    };
    let mut text = HEAD.to_owned();
    for (name, count) in count(&binary)? {
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
    let (rows, failed) = rows(&chosen, Some(balancer), None)?;
    ensure!(failed.is_empty(), "{}", failed.join("; "));
    Ok(rows.iter().flat_map(exact).collect())
}

/// Returns the reproducible counts of a row, with their names.
fn exact(row: &Row) -> Vec<(String, f64)> {
    let name = |what: &str| format!("{} {}: {what}", row.nic.name(), row.traffic.name());
    let program = row.profile.functions.iter().filter(|((_, function), _)| function.starts_with(PROGRAM));
    let mut counts = vec![
        (name("XDP program"), row.per_packet(program.map(|(_, count)| count).sum())),
        #[expect(clippy::cast_precision_loss, reason = "few frames")]
        (name(LOST), row.lost as f64),
    ];
    counts.extend(PARTS.map(|part| (name(part.name()), row.of(part))));
    let wake_ups = row.profile.calls.get(WAKE_UP).copied().unwrap_or_default();
    #[expect(clippy::cast_precision_loss, reason = "few calls")]
    counts.push((name(WAKE_UPS), wake_ups as f64));
    counts
}

/// Compares counts by name. A count that exists on only one side is a difference.
fn differences(kept: &BTreeMap<String, f64>, now: &BTreeMap<String, f64>) -> Vec<String> {
    let names = kept.keys().chain(now.keys().filter(|name| !kept.contains_key(*name)));
    let differs = |name: &String| {
        let (kept, now) = (kept.get(name).copied(), now.get(name).copied());
        let is_near = match (kept, now) {
            (Some(kept), Some(now)) => {
                let tolerance = if name.ends_with(WAKE_UPS) { WAKE_UP_TOLERANCE } else { TOLERANCE };
                let fewest = if name.ends_with(LOST) { 0.0 } else { FEW };
                (now - kept).abs() <= (kept * tolerance).max(fewest)
            }
            _ => false,
        };
        let word = |count: Option<f64>| count.map_or("nothing".to_owned(), |count| format!("{count:.1}"));
        (!is_near).then(|| format!("{name}: {}, recorded: {}", word(now), word(kept)))
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
const HEAD: &str = "# Instructions per packet, lost frames and wake-ups of the build of the test lanes.\n\
                    # cargo xtask bench zero-copy --keep\ncount,name\n";
const PROGRAM: &str = "bpf_prog_";
const PARTS: [Part; 4] = [Part::Rings, Part::Engine, Part::Pipeline, Part::Table];
/// The system call with which a packet thread wakes the driver, once or twice per batch.
const WAKE_UP: &str = "sendto";
const WAKE_UPS: &str = "wake-ups in a burst";
const WAKE_UP_TOLERANCE: f64 = 0.1;
const TOLERANCE: f64 = 0.01;
const LOST: &str = "lost frames";
/// A difference of so few instructions per packet is no change of the code.
const FEW: f64 = 2.0;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_may_differ_by_one_percent_and_wake_ups_by_ten() {
        let kept = parse("# comment\ncount,name\n1000.0,rings\n0.0,lost frames\n32.0,wake-ups in a burst\n")
            .expect("valid");
        assert_eq!(kept.len(), 3);
        let with = |rings: f64, lost: f64| {
            let mut now = kept.clone();
            now.extend([("rings".to_owned(), rings), ("lost frames".to_owned(), lost)]);
            differences(&kept, &now)
        };
        assert!(with(1010.0, 0.0).is_empty() && with(990.0, 0.0).is_empty());
        assert_eq!(with(1010.1, 0.0), ["rings: 1010.1, recorded: 1000.0"]);
        assert_eq!(with(1000.0, 1.0), ["lost frames: 1.0, recorded: 0.0"]);
        let mut now = kept.clone();
        now.insert("wake-ups in a burst".to_owned(), 35.0);
        assert!(differences(&kept, &now).is_empty());
        now.remove("wake-ups in a burst");
        now.insert("table".to_owned(), 2.0);
        assert_eq!(
            differences(&kept, &now),
            ["wake-ups in a burst: nothing, recorded: 32.0", "table: 2.0, recorded: nothing"]
        );
        assert!(parse("count,name\n1.0;rings\n").is_err());
    }
}
