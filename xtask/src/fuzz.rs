//! The fuzzer: each target of `tests/fuzz` under libFuzzer, which sees by coverage what its inputs come to.
//!
//! In: names of targets. Out: a failure for each in which something did not hold; the input stays in `tests/fuzz/kept/TARGET/`, where
//! ordinary tests run it again. Inputs that come further stay in `target/fuzz/corpus`, and the next run begins with them.
//! It needs no nightly and no cargo-fuzz: the pinned compiler's code generation has the flags that libFuzzer wants. It needs no
//! package either that a build does not: libFuzzer is compiled by clang.
//! A build folder of its own: dependencies would be built anew at each change of flags.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

use crate::cargo::{self, cargo, root};
use crate::dist::TARGET;
use crate::setup;
use crate::steps::Steps;

/// Runs one target, or all, for so long each.
pub(crate) fn run(target: Option<&str>, seconds: u32) -> Result<()> {
    setup::ensure(setup::BUILD)?;
    let mut steps = Steps::new(false);
    run_in(&mut steps, target, seconds);
    let failed = steps.end();
    ensure!(failed.is_empty(), "failed: {}", failed.join(", "));
    Ok(())
}

/// The same as steps of a lane.
pub(crate) fn run_in(steps: &mut Steps, target: Option<&str>, seconds: u32) {
    let targets = cargo::run(&mut build()).and_then(|()| targets(target));
    for target in steps.check(targets).into_iter().flatten() {
        if let Some(mut fuzzer) = steps.check(fuzzer(&target, seconds)) {
            steps.command(&mut fuzzer);
        }
    }
}

/// The names of targets, by the program that has been built: of one or of all.
fn targets(wanted: Option<&str>) -> Result<Vec<String>> {
    let output = Command::new(program()).env_remove(NAME).output().context("can't run the fuzzer")?;
    let names: Vec<String> = String::from_utf8(output.stdout)?.lines().map(str::to_owned).collect();
    ensure!(output.status.success() && !names.is_empty(), "the fuzzer names no targets");
    match wanted {
        None => Ok(names),
        Some(one) if names.iter().any(|name| name == one) => Ok(vec![one.to_owned()]),
        Some(one) => bail!("there is no target {one:?}; there are: {}", names.join(", ")),
    }
}

fn build() -> Command {
    let mut build =
        cargo(&["build", "--package", "sluicegate-fuzz", "--bin", "fuzz", "--features", "libfuzzer"]);
    // With a target named, the flags do not reach build scripts, which nothing links libFuzzer to.
    build.args(["--profile", "fuzz", "--target", TARGET, "--target-dir", "target/fuzz"]);
    build.env("RUSTFLAGS", COVERAGE.join(" ")).env("CXX", "clang++");
    build
}

fn fuzzer(target: &str, seconds: u32) -> Result<Command> {
    let (corpus, kept) =
        (root().join("target/fuzz/corpus").join(target), root().join("tests/fuzz/kept").join(target));
    fs::create_dir_all(&corpus)?;
    fs::create_dir_all(&kept)?;
    let mut command = Command::new(program());
    command.arg(&corpus).arg(&kept).env(NAME, target);
    command.arg(format!("-max_total_time={seconds}")).arg(format!("-artifact_prefix={}/", kept.display()));
    command.args(LIMITS);
    Ok(command)
}

fn program() -> PathBuf {
    root().join("target/fuzz").join(TARGET).join("fuzz/fuzz")
}

/// By it the program knows its target.
const NAME: &str = "SLUICEGATE_FUZZ";
/// Counters of branches, and calls that tell what was compared, so that a magic number is found. Without them libFuzzer says that
/// nothing is instrumented, and fails.
const COVERAGE: [&str; 5] = [
    "-Cpasses=sancov-module",
    "-Cllvm-args=-sanitizer-coverage-level=4",
    "-Cllvm-args=-sanitizer-coverage-inline-8bit-counters",
    "-Cllvm-args=-sanitizer-coverage-pc-table",
    "-Cllvm-args=-sanitizer-coverage-trace-compares",
];
/// One input may take 10 s and the process 2 GiB: more is a fault too. The log has the start, what is found, and the end.
const LIMITS: [&str; 4] = ["-timeout=10", "-rss_limit_mb=2048", "-verbosity=0", "-print_final_stats=1"];
