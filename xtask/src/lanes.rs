//! Defines the test lanes. A lane is a group of tests with its steps, the packages that it needs,
//! and a time budget.
//!
//! Every lane runs all its steps even if some of them fail. The final report lists each failed test
//! with its lane, and any failure makes the task fail. A lane that exceeds its time budget is
//! reported but does not fail. The programs are built first, in a separate lane named `build`, so
//! that the times of the other lanes include only the tests.

use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

use crate::bare::{self, Readme};
use crate::build::{Built, cargo_lane};
use crate::cargo::{self, Metadata, cargo};
use crate::leftovers::nothing_left;
use crate::steps::Steps;
use crate::{
    book, demo, demo_kv, fuzz, instructions, libraries, packages, setup, tidy, try_packages, zero_copy,
};

/// A group of tests that have the same requirements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Lane {
    /// Run format checks, lints, documentation, unit tests and house rules (no root needed)
    Unit,
    /// Run tests with real traffic in network namespaces, and the demo (needs root)
    Net,
    /// Run BGP and BFD tests with BIRD, FRR and gobgpd in namespaces, and with a cluster of two
    /// balancers (needs root)
    Bgp,
    /// Run tests of keyed services with real memcached servers and clients in namespaces, and their
    /// demo (needs root)
    Kv,
    /// Test alert rules with promtool, metrics with a real Prometheus, and the status page with
    /// Chromium (needs root)
    Web,
    /// Test zero-copy mode and the kernel's own tunnels in a VM (needs root)
    ZeroCopy,
}

impl Lane {
    pub(crate) const ALL: [Self; 6] = [Self::Unit, Self::Net, Self::Bgp, Self::Kv, Self::Web, Self::ZeroCopy];

    /// Returns the Debian packages that the lane needs.
    pub(crate) fn packages(self) -> Vec<&'static str> {
        match self {
            Self::Unit => [setup::BUILD, setup::PACKAGES, setup::INSTRUCTIONS].concat(),
            Self::Net => {
                let pages = [setup::QUICK_START, setup::HOW_TO].concat();
                [setup::BUILD, setup::BED, setup::SERVICE, setup::CAPTURE, &pages, setup::ROUTERS].concat()
            }
            Self::Bgp => [setup::BUILD, setup::BED, setup::ROUTERS].concat(),
            Self::Kv => [setup::BUILD, setup::BED, setup::KV].concat(),
            Self::Web => [setup::BUILD, setup::BED, setup::WEB].concat(),
            Self::ZeroCopy => [setup::BUILD, setup::BED, setup::VM, setup::COUNT].concat(),
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Unit => "unit",
            Self::Net => "net",
            Self::Bgp => "bgp",
            Self::Kv => "kv",
            Self::Web => "web",
            Self::ZeroCopy => "zero-copy",
        }
    }

    fn budget(self) -> Duration {
        Duration::from_secs(match self {
            Self::Unit => 10 * 60,
            Self::Net => 10 * 60,
            Self::Bgp | Self::Kv => 4 * 60,
            Self::Web => 2 * 60,
            Self::ZeroCopy => 4 * 60,
        })
    }

    /// Returns the names of the test targets that the lane runs. For the lane `unit`, which runs
    /// all other test targets, the list is empty.
    fn programs(self) -> &'static [&'static str] {
        match self {
            Self::Unit => &[],
            Self::Net => &["net", "tunnel", "bpf", "next_hop"],
            Self::Bgp => &["routers", "cluster"],
            Self::Kv => &["kv", "servers"],
            Self::Web => &["web"],
            Self::ZeroCopy => &[zero_copy::TEST],
        }
    }

    fn run(self, steps: &mut Steps, built: Option<&Built>) {
        // If a package is missing, the steps cannot run.
        if steps.check(setup::ensure(&self.packages())).is_none() {
            return;
        }
        match (self, built) {
            (Self::Unit, _) => unit(steps),
            (_, None) => steps.failed("not run because its programs could not be built".to_owned()),
            (Self::Net, Some(built)) => net(steps, built),
            (Self::Bgp, Some(built)) => {
                programs(steps, built, self);
                steps.check(built.balancer().and_then(nothing_left));
            }
            (Self::Kv, Some(built)) => kv(steps, built),
            (Self::Web, Some(built)) => web(steps, built),
            (Self::ZeroCopy, Some(built)) => zero_copy::run(steps, built),
        }
    }
}

/// Returns `lanes`, or all lanes if none is given.
pub(crate) fn chosen(lanes: &[Lane]) -> &[Lane] {
    if lanes.is_empty() { &Lane::ALL } else { lanes }
}

/// Runs the given lanes, or all lanes if none is given. Prints the failures and the duration of
/// each lane.
pub(crate) fn run(lanes: &[Lane], long: bool) -> Result<()> {
    let mut report = Report::default();
    let mut built = None;
    report.run("build", BUILD_BUDGET, long, |steps| built = build(steps, chosen(lanes)));
    for &lane in chosen(lanes) {
        report.run(lane.name(), lane.budget(), long, |steps| lane.run(steps, built.as_ref()));
    }
    if long && chosen(lanes).contains(&Lane::Unit) {
        report.run("fuzz", FUZZ_BUDGET, long, |steps| fuzz::run_in(steps, None, FUZZ_SECONDS));
        report.run("instructions", INSTRUCTIONS_BUDGET, long, |steps| {
            steps.check(instructions::compare());
        });
    }
    if long && lanes.is_empty() {
        report.run("packages", PACKAGES_BUDGET, long, |steps| {
            steps.check(packages::run().and_then(|out| try_packages::run(&out)));
            steps.check(packages::run_twice());
        });
        report.run("bare", BARE_BUDGET, long, |steps| {
            steps.check(bare::run(&Readme::ALL));
        });
    }
    print!("{}", report.summary);
    println!("all: {} s of {} s", report.seconds, WHOLE_BUDGET.as_secs());
    ensure!(report.failed.is_empty(), "failed lanes: {}", report.failed.join(", "));
    Ok(())
}

#[derive(Default)]
struct Report {
    summary: String,
    failed: Vec<&'static str>,
    seconds: u64,
}

impl Report {
    fn run(&mut self, lane: &'static str, budget: Duration, long: bool, run: impl FnOnce(&mut Steps)) {
        let (start, mut steps) = (Instant::now(), Steps::new(long));
        run(&mut steps);
        let (failures, took, budget) = (steps.end(), start.elapsed().as_secs(), budget.as_secs());
        self.seconds += took;
        let word = if failures.is_empty() { "ok" } else { "FAILED" };
        let late = if took > budget { ", over budget" } else { "" };
        self.summary += &format!("lane {lane}: {word}, {took} s of {budget} s{late}\n");
        for failure in &failures {
            self.summary += &format!("lane {lane}: FAILED {failure}\n");
        }
        if !failures.is_empty() {
            self.failed.push(lane);
        }
    }
}

/// Builds the programs of the given lanes. Returns `None` if the build failed, or if only lanes
/// without their own test targets are given.
fn build(steps: &mut Steps, lanes: &[Lane]) -> Option<Built> {
    steps.check(setup::ensure(setup::BUILD))?;
    if lanes.contains(&Lane::Unit) {
        steps.command(cargo_lane("test").arg("--no-run"));
        steps.command(loom().arg("--no-run"));
    }
    let programs: Vec<&str> = lanes.iter().flat_map(|lane| lane.programs()).copied().collect();
    if programs.is_empty() {
        return None;
    }
    steps.check(
        setup::require_root("running lanes other than unit")
            .and_then(|()| Built::new(&programs, lanes.contains(&Lane::Net))),
    )
}

fn unit(steps: &mut Steps) {
    steps.command(&mut cargo(&["fmt", "--all", "--check"]));
    steps.command(cargo_lane("clippy").args(["--all-targets", "--", "-D", "warnings"]));
    // Like `cargo test`, Clippy ignores test targets with `test = false`, so the command names
    // these targets explicitly.
    if let Some(metadata) = steps.check(Metadata::read()) {
        let mut clippy = cargo_lane("clippy");
        for package in metadata.packages() {
            clippy.args(package.targets("test", true).flat_map(|test| ["--test", test]));
        }
        clippy.args(["--", "-D", "warnings"]);
        steps.command(&mut clippy);
    }
    // Examples are included, so that dependencies have the same features as for tests and lints.
    // With different features, all dependencies would be checked again.
    let documents = ["--no-deps", "--lib", "--bins", "--examples"];
    steps.command(cargo_lane("doc").args(documents).env("RUSTDOCFLAGS", "-D warnings"));
    steps.tests(cargo_lane("test").arg("--no-fail-fast"));
    steps.tests(&mut loom());
    steps.check(tidy::run());
    steps.check(libraries::api(false));
    if steps.is_long() {
        steps.check(book::run());
        libraries::alone(steps);
        advisories(steps);
        miri(steps);
    }
}

/// Checks the dependencies for security advisories if cargo-deny is installed. Only long runs
/// include this check, because the advisory database changes independently of commits and its
/// download needs the network.
fn advisories(steps: &mut Steps) {
    if cargo(&["deny", "--version"]).output().is_ok_and(|output| output.status.success()) {
        steps.command(&mut cargo(&["deny", "check", "advisories"]));
    } else {
        eprintln!("skipping advisories, cargo-deny is not installed (cargo install cargo-deny --locked)");
    }
}

/// Runs the tests of `conntrack` under Miri, because it is the only crate without I/O that has
/// unsafe code. Miri needs a nightly compiler, and is too slow for the full number of test cases.
fn miri(steps: &mut Steps) {
    let nightly = |args: &[&str]| {
        let mut command = Command::new("rustup");
        command.args(["run", "nightly", "cargo", "miri"]).args(args).current_dir(cargo::root());
        command
    };
    if nightly(&["--version"]).output().is_ok_and(|output| output.status.success()) {
        let package = ["test", "--target-dir", "target/miri", "--package", "sluicegate-conntrack", "--lib"];
        steps.tests(nightly(&package).args(["--", "a_batch", "reassigning"]));
    } else {
        eprintln!(
            "skipping Miri, it is not installed (rustup toolchain install nightly --component miri,rust-src)"
        );
    }
}

/// Returns the command that runs the loom models. The models have a separate build folder: in a
/// shared folder, their compiler flags would cause all dependencies to be rebuilt.
fn loom() -> Command {
    let mut loom =
        cargo(&["test", "--release", "--package", "sluicegate-loom", "--target-dir", "target/loom"]);
    loom.env("RUSTFLAGS", "--cfg loom");
    loom
}

fn net(steps: &mut Steps, built: &Built) {
    programs(steps, built, Lane::Net);
    // The ignored unit tests of `datapath` register packet memory, which needs root. The lane
    // `unit` skips them.
    if let Some(mut units) = steps.check(built.test("datapath")) {
        steps.exactly("AF_XDP packet memory", units.args(["long::", "xsk::", "--ignored"]), 7);
    }
    if let Some(binary) = steps.check(built.balancer()) {
        steps.check(demo::run(Some(binary.to_owned()), true, false));
        steps.check(nothing_left(binary));
    }
}

fn kv(steps: &mut Steps, built: &Built) {
    programs(steps, built, Lane::Kv);
    if let Some(binary) = steps.check(built.balancer()) {
        steps.check(demo_kv::run(Some(binary.to_owned()), true));
        steps.check(nothing_left(binary));
    }
}

fn web(steps: &mut Steps, built: &Built) {
    let is_test = |name: &str| name.ends_with(".test.yml");
    let is_rules = |name: &str| name.starts_with("alerts") && name.ends_with(".yml") && !is_test(name);
    for (task, files) in [("check", config_files(is_rules)), ("test", config_files(is_test))] {
        if let Some(files) = steps.check(files) {
            steps.command(Command::new("promtool").args([task, "rules"]).args(files));
        }
    }
    programs(steps, built, Lane::Web);
    steps.check(built.balancer().and_then(nothing_left));
}

/// Runs all test programs of a lane.
fn programs(steps: &mut Steps, built: &Built, lane: Lane) {
    for program in lane.programs() {
        if let Some(mut command) = steps.check(built.test(program)) {
            steps.tests_of(program, &mut command);
        }
    }
}

/// Returns the files in `config/` for which `is_meant` returns `true`. Returns an error if there
/// are none.
fn config_files(is_meant: impl Fn(&str) -> bool) -> Result<Vec<PathBuf>> {
    let entries = std::fs::read_dir(cargo::root().join("config"))?;
    let paths = entries.map(|entry| Ok(entry?.path())).collect::<Result<Vec<_>>>()?;
    let named = |path: &PathBuf| path.file_name().is_some_and(|name| is_meant(&name.to_string_lossy()));
    let files: Vec<_> = paths.into_iter().filter(named).collect();
    ensure!(!files.is_empty(), "no matching file in config/");
    Ok(files)
}

/// The time budget of the check `bare`, which includes two builds (one of them optimized, for the
/// demo) and the lanes.
const BARE_BUDGET: Duration = Duration::from_secs(60 * 60);
/// The time budget of the check `packages`, which includes three builds of the released binary, two
/// of them from scratch, and a minimal Debian root.
const PACKAGES_BUDGET: Duration = Duration::from_secs(40 * 60);
/// The time for which each fuzz target runs.
const FUZZ_SECONDS: u32 = 60;
/// The time budget of the fuzzing step, which includes the build and one minute per target.
const FUZZ_BUDGET: Duration = Duration::from_secs(20 * 60);
/// The time budget of `bench instructions`, which includes one minute of measurements and a build
/// with the release profile, because no lane uses that profile.
const INSTRUCTIONS_BUDGET: Duration = Duration::from_secs(5 * 60);
const BUILD_BUDGET: Duration = Duration::from_secs(10 * 60);
const WHOLE_BUDGET: Duration = Duration::from_secs(35 * 60);
