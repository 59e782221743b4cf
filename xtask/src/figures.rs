//! Reproduces the evaluations of the Maglev, MemSwitch and AppSwitch papers. The results are CSV
//! files, SVG plots and a page in `benches/results`.
//!
//! Each CSV file records the commit, command, date and machine of the measurement. The program
//! `figures` in `benches/figures` runs simulations and in-memory measurements, and draws the plots.

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

/// A figure of a paper.
struct Figure {
    name: &'static str,
    how: How,
    /// The source folders that the figure depends on. If these folders change, the figure is
    /// outdated.
    measures: &'static [&'static str],
}

#[derive(Clone, Copy)]
enum How {
    /// A simulation, with the same results on every machine.
    Simulated,
    /// An in-memory measurement by the program `figures`.
    Timed,
    /// An in-memory measurement by rows of the benchmark `pipeline`.
    Pipeline,
    /// A measurement on a veth pair, which needs root.
    Veth(fn(Option<&Path>) -> Result<String>),
}

/// Creates the figures in `names`, or all figures if `names` is empty, and then draws the plots of
/// all figures.
///
/// If `only_draw` is `true`, no figure is measured. If `binary` is given, this balancer is measured
/// instead of a fresh build.
pub(crate) fn run(names: &[String], only_draw: bool, binary: Option<&Path>) -> Result<()> {
    let chosen = if only_draw { Vec::new() } else { chosen(names)? };
    if chosen.iter().any(|figure| matches!(figure.how, How::Veth(_))) {
        setup::require_root("measuring figures 8, 9-veth and kv")?;
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
            .with_context(|| format!("cannot write {}", file.display()))?;
        eprintln!("figure {}: {:.0} s", figure.name, start.elapsed().as_secs_f64());
    }
    draw()
}

/// Draws the plots and writes the results page from the CSV files.
pub(crate) fn draw() -> Result<()> {
    let program = program("sluicegate-figures", "figures")?;
    cargo::run(Command::new(&program).arg("draw").arg(root().join(RESULTS)))?;
    println!("{RESULTS}/README.md");
    Ok(())
}

/// Returns the figures with these names, or all figures if `names` is empty. If no figure has
/// exactly this name, figures that begin with the name and a hyphen are selected.
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
        ensure!(found.len() > before, "there is no figure {name:?} (figures: {})", known.join(", "));
    }
    Ok(found)
}

/// Builds a program of a package with the benchmark profile, and returns its path.
fn program(package: &str, name: &str) -> Result<PathBuf> {
    cargo::run(&mut cargo(&["build", "--profile", "bench", "--package", package, "--bin", name]))?;
    Ok(Metadata::read()?.target_directory()?.join("release").join(name))
}

/// Returns the comment lines at the top of a results file, with the command and the last commit
/// that changed the folders in `measures`.
pub(crate) fn origin(command: &str, measures: &[&str], is_simulated: bool) -> Result<String> {
    let commit = git(&["log", "-1", "--format=%H %cs", "--"], measures)?;
    let (commit, committed) = commit.split_once(' ').context("no commit contains the measured folders")?;
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

/// Runs a command that must succeed, and returns its standard output. The command's standard error
/// is not captured.
pub(crate) fn output(command: &mut Command) -> Result<String> {
    let words = command.get_program().to_string_lossy().into_owned();
    let output = command
        .stderr(std::process::Stdio::inherit())
        .output()
        .with_context(|| format!("cannot run {words}"))?;
    ensure!(output.status.success(), "{words} failed ({})", output.status);
    String::from_utf8(output.stdout).with_context(|| format!("{words} printed invalid UTF-8"))
}

/// Returns the processor model, the number of processors and the kernel version. The number of
/// processors comes from `/proc/cpuinfo`, because the standard library does not count processors to
/// which this thread is not bound.
fn machine() -> Result<String> {
    let cpuinfo = fs::read_to_string("/proc/cpuinfo")?;
    let model = cpuinfo.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
    let model = model.map_or("an unknown processor", |(_, model)| model);
    let count = cpuinfo.lines().filter(|line| line.starts_with("processor")).count();
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease")?;
    Ok(format!("{count} processors of {model}, shared virtual machine; Linux {}", kernel.trim()))
}

/// Measures the rows of Figure 9. The types of traffic are measured alternately, in several runs.
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

/// Parses the median in nanoseconds per packet from a line that the program `rows` printed.
fn median_of(line: &str) -> Result<f64> {
    let word = line.split("median ").nth(1).and_then(|rest| rest.split(" ns").next());
    let Some(nanos) = word.and_then(|word| word.parse().ok()).filter(|nanos| *nanos > 0.0) else {
        bail!("the line {line:?} has no median");
    };
    Ok(nanos)
}

const TABLES: &[&str] = &["crates/maglev-hash/src"];
const DAY: &[&str] = &["crates/conntrack/src", "crates/maglev-hash/src"];
/// The source folders of the code that processes packets in memory.
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
/// The source folders of the code that processes keyed requests.
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
/// The types of traffic in Figure 9, with the names of their rows in the benchmark `pipeline`.
const TRAFFIC: [(&str, &str); 3] =
    [("constant 5-tuple", "one flow"), ("non-SYN", "1 M flows"), ("SYN", "syn flood")];
/// The number of runs, which must be odd, so that the median is a measured value.
const RUNS: usize = 7;
/// The number of batches of 64 packets.
const BATCHES: &str = "10000";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figure_is_found_by_its_name_or_an_error() {
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
    fn measured_folders_are_in_the_checkout() {
        for path in FIGURES.iter().flat_map(|figure| figure.measures) {
            assert!(root().join(path).is_dir(), "{path}");
        }
    }

    #[test]
    fn median_of_a_row_is_read() {
        assert!((median_of("one flow: least 20.1 ns, median 21.5 ns\n").unwrap() - 21.5).abs() < 1e-9);
        for line in ["", "one flow: least 20.1 ns", "median x ns", "median 0 ns"] {
            assert!(median_of(line).is_err(), "{line}");
        }
    }
}
