//! An input that violates a property is a failure. The fuzzer stores the input in
//! `tests/fuzz/kept/TARGET/`, and ordinary tests run it from then on. Inputs that extend the
//! coverage are stored in `target/fuzz/corpus`, from which the next run continues. The fuzzer is
//! built with the pinned compiler and the code generation flags for libFuzzer. The build of the
//! fuzzer needs neither a nightly compiler nor cargo-fuzz. Compiling libFuzzer needs clang, which
//! every build of the balancer needs too. The fuzzer has a separate build folder: in a shared
//! folder, its different compiler flags would cause all dependencies to be rebuilt.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

use crate::cargo::{self, cargo, root};
use crate::dist::TARGET;
use crate::setup;
use crate::steps::Steps;

/// Runs one target or all targets, each for `seconds`.
pub(crate) fn run(target: Option<&str>, seconds: u32) -> Result<()> {
    setup::ensure(setup::BUILD)?;
    let mut steps = Steps::new(false);
    run_in(&mut steps, target, seconds);
    let failed = steps.end();
    ensure!(failed.is_empty(), "failed targets: {}", failed.join(", "));
    Ok(())
}

/// Runs the targets as steps of a test lane.
pub(crate) fn run_in(steps: &mut Steps, target: Option<&str>, seconds: u32) {
    let targets = cargo::run(&mut build()).and_then(|()| targets(target));
    for target in steps.check(targets).into_iter().flatten() {
        if let Some(mut fuzzer) = steps.check(fuzzer(&target, seconds)) {
            steps.command(&mut fuzzer);
        }
    }
}

/// Returns the names of all targets that the fuzzer lists. If `wanted` is given, only this target
/// is returned.
fn targets(wanted: Option<&str>) -> Result<Vec<String>> {
    let output = Command::new(program()).env_remove(NAME).output().context("cannot run the fuzzer")?;
    let names: Vec<String> = String::from_utf8(output.stdout)?.lines().map(str::to_owned).collect();
    ensure!(output.status.success() && !names.is_empty(), "the fuzzer lists no targets");
    match wanted {
        None => Ok(names),
        Some(one) if names.iter().any(|name| name == one) => Ok(vec![one.to_owned()]),
        Some(one) => bail!("there is no fuzz target {one:?} (targets: {})", names.join(", ")),
    }
}

fn build() -> Command {
    let mut build =
        cargo(&["build", "--package", "sluicegate-fuzz", "--bin", "fuzz", "--features", "libfuzzer"]);
    // With an explicit target, the flags do not apply to build scripts, which are not linked with
    // libFuzzer.
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

/// The environment variable that selects the fuzz target.
const NAME: &str = "SLUICEGATE_FUZZ";
/// Compiler flags that enable coverage counters and the tracing of comparisons. The traces help
/// libFuzzer to find magic numbers. Without these flags libFuzzer exits with an error.
const COVERAGE: [&str; 5] = [
    "-Cpasses=sancov-module",
    "-Cllvm-args=-sanitizer-coverage-level=4",
    "-Cllvm-args=-sanitizer-coverage-inline-8bit-counters",
    "-Cllvm-args=-sanitizer-coverage-pc-table",
    "-Cllvm-args=-sanitizer-coverage-trace-compares",
];
/// The arguments of libFuzzer. An input may take 10 s and the process 2 GiB of memory. The log
/// shows only the start, failures and the end.
const LIMITS: [&str; 4] = ["-timeout=10", "-rss_limit_mb=2048", "-verbosity=0", "-print_final_stats=1"];
