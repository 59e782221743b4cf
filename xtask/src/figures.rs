//! `figures`: the paper's evaluation made anew, as CSV, SVG and a page in `benches/results`.
//!
//! In: names of figures. Out: for each its CSV, with the commit, command, date and machine that it is of; then all plots and the page.
//! Not here: what is simulated, timed and drawn (the program `figures` of `benches/figures`).

mod kv;
mod veth;

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};

use crate::cargo::{self, Metadata, cargo, root};
use crate::setup;
use crate::tidy::{COMMIT, MEASURES, RESULTS};

/// A figure of the paper.
struct Figure {
    name: &'static str,
    how: How,
    /// Folders of the code whose change makes it old.
    measures: &'static [&'static str],
}

#[derive(Clone, Copy)]
enum How {
    /// The same rows on every machine.
    Simulated,
    /// In memory, by the program `figures`.
    Timed,
    /// In memory, by rows of the bench `pipeline`.
    Pipeline,
    /// On a veth, as root.
    Veth(fn(Option<&Path>) -> Result<String>),
}

/// Makes `names`, or all, and draws every figure that there is. `only_draw`: makes none. `binary`: a balancer of this checkout, where
/// one is needed, instead of a fresh build.
pub(crate) fn run(names: &[String], only_draw: bool, binary: Option<&Path>) -> Result<()> {
    let chosen = if only_draw { Vec::new() } else { chosen(names)? };
    if chosen.iter().any(|figure| matches!(figure.how, How::Veth(_))) {
        setup::require_root("figures 8, 9-veth and kv")?;
    }
    let folder = root().join(RESULTS);
    fs::create_dir_all(&folder)?;
    let program = program("sluicegate-figures", "figures")?;
    for figure in chosen {
        let start = Instant::now();
        eprintln!("figure {}", figure.name);
        let rows = match figure.how {
            How::Simulated | How::Timed => output(Command::new(&program).args(["run", figure.name]))?,
            How::Pipeline => pipeline()?,
            How::Veth(measure) => measure(binary)?,
        };
        let command = format!("cargo xtask figures {}", figure.name);
        let file = folder.join(format!("figure-{}.csv", figure.name));
        fs::write(&file, origin(&command, figure.measures, matches!(figure.how, How::Simulated))? + &rows)
            .with_context(|| format!("can't write {}", file.display()))?;
        eprintln!("figure {}: {:.0} s", figure.name, start.elapsed().as_secs_f64());
    }
    cargo::run(Command::new(&program).arg("draw").arg(&folder))?;
    println!("{RESULTS}/README.md");
    Ok(())
}

/// Those of these names, or all. A name that is none itself stands for those that begin with it and a hyphen.
fn chosen(names: &[String]) -> Result<Vec<&'static Figure>> {
    if names.is_empty() {
        return Ok(FIGURES.iter().collect());
    }
    let known: Vec<&str> = FIGURES.iter().map(|figure| figure.name).collect();
    let mut found = Vec::new();
    for name in names {
        let before = found.len();
        found.extend(FIGURES.iter().filter(|figure| figure.name == name));
        if found.len() == before {
            let is_in =
                |figure: &&Figure| figure.name.split_once('-').is_some_and(|(group, _)| group == name);
            found.extend(FIGURES.iter().filter(is_in));
        }
        ensure!(found.len() > before, "there is no figure {name:?}; there are: {}", known.join(", "));
    }
    Ok(found)
}

/// Builds a program of a package as benches are built; returns where it is.
fn program(package: &str, name: &str) -> Result<PathBuf> {
    cargo::run(&mut cargo(&["build", "--profile", "bench", "--package", package, "--bin", name]))?;
    Ok(Metadata::read()?.target_directory()?.join("release").join(name))
}

/// What stands above the rows of a results file: `command` made them, by what lies in the folders of `measures`.
pub(crate) fn origin(command: &str, measures: &[&str], is_simulated: bool) -> Result<String> {
    let commit = git(&["log", "-1", "--format=%H %cs", "--"], measures)?;
    let (commit, committed) = commit.split_once(' ').context("nobody has committed what is measured")?;
    let is_clean = git(&["status", "--porcelain", "--"], measures)?.is_empty();
    let changes = if is_clean { "" } else { " and changes" };
    let (date, machine) = if is_simulated {
        (committed.to_owned(), "any machine: simulated".to_owned())
    } else {
        (output(Command::new("date").args(["-u", "+%F"]))?.trim().into(), machine()?)
    };
    Ok(format!(
        "# {COMMIT}: {commit}{changes}\n# {MEASURES}: {}\n# command: {command}\n# date: {date}\n# machine: {machine}\n",
        measures.join(" "),
    ))
}

fn git(arguments: &[&str], paths: &[&str]) -> Result<String> {
    let text = output(Command::new("git").current_dir(root()).args(arguments).args(paths))?;
    Ok(text.trim_end().to_owned())
}

/// Standard output of a command that ends well; its standard error is ours.
fn output(command: &mut Command) -> Result<String> {
    let words = command.get_program().to_string_lossy().into_owned();
    let output = command
        .stderr(std::process::Stdio::inherit())
        .output()
        .with_context(|| format!("can't run {words}"))?;
    ensure!(output.status.success(), "{words}: {}", output.status);
    String::from_utf8(output.stdout).with_context(|| format!("{words} says no text"))
}

/// Its processor, how many of them, its kernel. A thread that is bound to one sees the others here alone.
fn machine() -> Result<String> {
    let cpuinfo = fs::read_to_string("/proc/cpuinfo")?;
    let model = cpuinfo.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
    let model = model.map_or("an unknown processor", |(_, model)| model);
    let count = cpuinfo.lines().filter(|line| line.starts_with("processor")).count();
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease")?;
    Ok(format!("{count} processors of {model}, shared virtual machine; Linux {}", kernel.trim()))
}

/// The rows of Figure 9: each type of traffic by turns.
fn pipeline() -> Result<String> {
    let program = program("sluicegate-benches", "rows")?;
    let mut rates = [const { Vec::new() }; TRAFFIC.len()];
    for _ in 0..RUNS {
        for (rates, (_, row)) in rates.iter_mut().zip(TRAFFIC) {
            let line = output(Command::new(&program).args([row, BATCHES]))?;
            eprint!("{line}");
            rates.push(1e9 / median_of(&line)?);
        }
    }
    let mut rows = format!("# runs: {RUNS}\ntraffic,packets_per_s,least,most\n");
    for (mut rates, (name, _)) in rates.into_iter().zip(TRAFFIC) {
        rates.sort_by(f64::total_cmp);
        let _ = writeln!(rows, "{name},{:.0},{:.0},{:.0}", rates[RUNS / 2], rates[0], rates[RUNS - 1]);
    }
    Ok(rows)
}

/// Nanoseconds of a packet in a line of `rows`.
fn median_of(line: &str) -> Result<f64> {
    let word = line.split("median ").nth(1).and_then(|rest| rest.split(" ns").next());
    let Some(nanos) = word.and_then(|word| word.parse().ok()).filter(|nanos| *nanos > 0.0) else {
        bail!("no median in {line:?}");
    };
    Ok(nanos)
}

const TABLES: &[&str] = &["crates/maglev-hash/src"];
const DAY: &[&str] = &["crates/conntrack/src", "crates/maglev-hash/src"];
/// All that a packet passes in memory.
pub(crate) const PIPELINE: &[&str] = &[
    "crates/classifier/src",
    "crates/conntrack/src",
    "crates/counters/src",
    "crates/forwarder/src",
    "crates/maglev-hash/src",
    "crates/packet/src",
    "crates/sip-lanes/src",
    "crates/trace-mark/src",
];
pub(crate) const VETH: &[&str] = &[
    "crates/classifier/src",
    "crates/conntrack/src",
    "crates/counters/src",
    "crates/datapath/bpf",
    "crates/datapath/src",
    "crates/engine/src",
    "crates/forwarder/src",
    "crates/maglev-hash/src",
    "crates/packet/src",
    "crates/sip-lanes/src",
    "crates/trace-mark/src",
];
/// All that a request by key passes.
pub(crate) const KEYED: &[&str] = &[
    "crates/classifier/src",
    "crates/counters/src",
    "crates/datapath/bpf",
    "crates/datapath/src",
    "crates/engine/src",
    "crates/forwarder/src",
    "crates/kv-switch/src",
    "crates/maglev-hash/src",
    "crates/packet/src",
    "crates/sip-lanes/src",
    "crates/trace-mark/src",
];
const FIGURES: [Figure; 12] = [
    Figure { name: "7", how: How::Simulated, measures: DAY },
    Figure { name: "7-rates", how: How::Simulated, measures: DAY },
    Figure { name: "8", how: How::Veth(veth::bypass), measures: VETH },
    Figure { name: "9", how: How::Pipeline, measures: PIPELINE },
    Figure { name: "9-veth", how: How::Veth(veth::traffic), measures: VETH },
    Figure { name: "11", how: How::Simulated, measures: TABLES },
    Figure { name: "12", how: How::Simulated, measures: TABLES },
    Figure { name: "build", how: How::Timed, measures: TABLES },
    Figure { name: "kv-rate", how: How::Veth(kv::by_rate), measures: KEYED },
    Figure { name: "kv-light", how: How::Veth(kv::light), measures: KEYED },
    Figure { name: "kv-size", how: How::Veth(kv::by_size), measures: KEYED },
    Figure { name: "kv-mixed", how: How::Veth(kv::mixed), measures: KEYED },
];
/// Types of traffic, and the rows of the bench `pipeline` that have them.
const TRAFFIC: [(&str, &str); 3] =
    [("constant 5-tuple", "one flow"), ("non-SYN", "1 M flows"), ("SYN", "syn flood")];
/// An odd number.
const RUNS: usize = 7;
/// Of 64 packets.
const BATCHES: &str = "10000";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_figure_is_found_by_its_name_and_an_unknown_one_is_an_error() {
        let names = |names: &[&str]| -> Vec<String> { names.iter().map(|&name| name.into()).collect() };
        let found = chosen(&names(&["12", "7"])).unwrap();
        assert_eq!(found.iter().map(|figure| figure.name).collect::<Vec<_>>(), ["12", "7"]);
        assert_eq!(chosen(&[]).unwrap().len(), FIGURES.len());
        let kv = chosen(&names(&["kv"])).unwrap();
        let kv: Vec<&str> = kv.iter().map(|figure| figure.name).collect();
        assert_eq!(kv, ["kv-rate", "kv-light", "kv-size", "kv-mixed"]);
        let error = chosen(&names(&["10"])).err().unwrap().to_string();
        assert!(error.contains("\"10\"") && error.contains("11, 12"), "{error}");
    }

    #[test]
    fn what_figures_measure_is_in_the_checkout() {
        for path in FIGURES.iter().flat_map(|figure| figure.measures) {
            assert!(root().join(path).is_dir(), "{path}");
        }
    }

    #[test]
    fn the_median_of_a_row_is_read() {
        assert!((median_of("one flow: least 20.1 ns, median 21.5 ns\n").unwrap() - 21.5).abs() < 1e-9);
        for line in ["", "one flow: least 20.1 ns", "median x ns", "median 0 ns"] {
            assert!(median_of(line).is_err(), "{line}");
        }
    }
}
