//! Test lanes: what each runs, what it needs, how long it may take.
//!
//! Every lane runs all its steps, whatever the ones before did; at the end stands each failed test by its name and lane. One
//! failure makes the task fail. A lane over its budget is told, not failed: time decides nothing.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};

use crate::cargo::{self, Metadata, cargo};
use crate::steps::Steps;
use crate::{demo, setup, tidy, zero_copy};

/// A group of tests that needs the same things.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Lane {
    /// Format, lints, documents, unit tests, house rules: no root
    Unit,
    /// Real traffic in namespaces, and the demo: root
    Net,
    /// BGP and BFD with bird, FRR and gobgpd in namespaces, and a cluster of two behind them: root
    Bgp,
    /// Alert rules by promtool, a real Prometheus, the status page in Chromium: root
    Web,
    /// Zero-copy and the kernel's own tunnels, in a VM: root
    ZeroCopy,
}

impl Lane {
    pub(crate) const ALL: [Self; 5] = [Self::Unit, Self::Net, Self::Bgp, Self::Web, Self::ZeroCopy];

    /// Debian packages that it needs.
    pub(crate) fn packages(self) -> Vec<&'static str> {
        match self {
            Self::Unit => setup::BUILD.to_vec(),
            Self::Net => [setup::BUILD, setup::BED, setup::SERVICE, setup::CAPTURE, setup::ROUTERS].concat(),
            Self::Bgp => [setup::BUILD, setup::BED, setup::ROUTERS].concat(),
            Self::Web => [setup::BUILD, setup::BED, setup::WEB].concat(),
            Self::ZeroCopy => [setup::BUILD, setup::BED, setup::VM].concat(),
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Unit => "unit",
            Self::Net => "net",
            Self::Bgp => "bgp",
            Self::Web => "web",
            Self::ZeroCopy => "zero-copy",
        }
    }

    fn budget(self) -> Duration {
        Duration::from_secs(match self {
            Self::Unit => 8 * 60,
            Self::Net => 6 * 60,
            Self::Bgp => 4 * 60,
            Self::Web => 2 * 60,
            Self::ZeroCopy => 3 * 60,
        })
    }

    /// The names of what failed.
    fn run(self, long: bool) -> Vec<String> {
        let mut steps = Steps::new(long);
        // Without what it needs nothing that follows would tell anything.
        if steps.check(setup::ensure(&self.packages())).is_some() {
            match self {
                Self::Unit => unit(&mut steps),
                Self::Net => net(&mut steps),
                Self::Bgp => bgp(&mut steps),
                Self::Web => web(&mut steps),
                Self::ZeroCopy => zero_copy::run(&mut steps),
            }
        }
        steps.end()
    }
}

/// `lanes`, or all.
pub(crate) fn chosen(lanes: &[Lane]) -> &[Lane] {
    if lanes.is_empty() { &Lane::ALL } else { lanes }
}

/// Runs `lanes`, or all, and prints what failed and the seconds of each.
pub(crate) fn run(lanes: &[Lane], long: bool) -> Result<()> {
    let (mut failed, mut seconds) = (Vec::new(), 0);
    let mut summary = String::new();
    for &lane in chosen(lanes) {
        let start = Instant::now();
        let failures = lane.run(long);
        let (took, budget) = (start.elapsed().as_secs(), lane.budget().as_secs());
        seconds += took;
        let word = if failures.is_empty() { "ok" } else { "FAILED" };
        let late = if took > budget { ", over its budget" } else { "" };
        summary += &format!("lane {}: {word}, {took} s of {budget} s{late}\n", lane.name());
        for failure in &failures {
            summary += &format!("lane {}: FAILED {failure}\n", lane.name());
        }
        if !failures.is_empty() {
            failed.push(lane.name());
        }
    }
    print!("{summary}");
    println!("all: {seconds} s");
    ensure!(failed.is_empty(), "failed: {}", failed.join(", "));
    Ok(())
}

fn unit(steps: &mut Steps) {
    steps.command(&mut cargo(&["fmt", "--all", "--check"]));
    steps.command(&mut cargo(&["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"]));
    // Clippy passes over test targets that `cargo test` passes over.
    for package in steps.check(Metadata::read()).iter().flat_map(Metadata::packages) {
        for test in package.targets("test", true) {
            let args = ["clippy", "--package", package.name(), "--test", test, "--", "-D", "warnings"];
            steps.command(&mut cargo(&args));
        }
    }
    steps.command(cargo(&["doc", "--workspace", "--no-deps"]).env("RUSTDOCFLAGS", "-D warnings"));
    steps.tests(&mut cargo(&["test", "--workspace", "--no-fail-fast"]));
    let loom = ["test", "--release", "--package", "sluicegate-loom", "--target-dir", "target/loom"];
    steps.tests(cargo(&loom).env("RUSTFLAGS", "--cfg loom"));
    steps.check(tidy::run());
}

fn net(steps: &mut Steps) {
    let built = setup::require_root("the lane net").and_then(|()| cargo::release_binary());
    let Some(binary) = steps.check(built) else { return };
    for (package, test) in [
        ("sluicegate-testbed", "net"),
        ("sluicegate-testbed", "tunnel"),
        ("sluicegate-datapath", "bpf"),
        ("sluicegate-control-plane", "next_hop"),
    ] {
        let args = ["test", "--release", "--package", package, "--test", test, "--", "--test-threads=2"];
        steps.tests(cargo(&args).env("SLUICEGATE_BIN", &binary));
    }
    steps.check(demo::run(Some(binary.clone()), true, false));
    steps.check(nothing_left(&binary));
}

fn bgp(steps: &mut Steps) {
    let built = setup::require_root("the lane bgp").and_then(|()| cargo::release_binary());
    let Some(binary) = steps.check(built) else { return };
    for (package, test) in [("sluicegate-bgp", "routers"), ("sluicegate-testbed", "cluster")] {
        let args = ["test", "--release", "--package", package, "--test", test, "--", "--test-threads=2"];
        steps.tests(cargo(&args).env("SLUICEGATE_BIN", &binary));
    }
    steps.check(nothing_left(&binary));
}

fn web(steps: &mut Steps) {
    let is_test = |name: &str| name.ends_with(".test.yml");
    let is_rules = |name: &str| name.starts_with("alerts") && name.ends_with(".yml") && !is_test(name);
    for (task, files) in [("check", config_files(is_rules)), ("test", config_files(is_test))] {
        if let Some(files) = steps.check(files) {
            steps.command(Command::new("promtool").args([task, "rules"]).args(files));
        }
    }
    let built = setup::require_root("the lane web").and_then(|()| cargo::release_binary());
    let Some(binary) = steps.check(built) else { return };
    let args =
        ["test", "--release", "--package", "sluicegate-testbed", "--test", "web", "--", "--test-threads=2"];
    steps.tests(cargo(&args).env("SLUICEGATE_BIN", &binary));
    steps.check(nothing_left(&binary));
}

/// Files of `config/` whose name is meant; there are some.
fn config_files(is_meant: impl Fn(&str) -> bool) -> Result<Vec<PathBuf>> {
    let entries = std::fs::read_dir(cargo::root().join("config"))?;
    let paths = entries.map(|entry| Ok(entry?.path())).collect::<Result<Vec<_>>>()?;
    let named = |path: &PathBuf| path.file_name().is_some_and(|name| is_meant(&name.to_string_lossy()));
    let files: Vec<_> = paths.into_iter().filter(named).collect();
    ensure!(!files.is_empty(), "no rules in config/");
    Ok(files)
}

/// Fails when a process of the binary under test is still there.
fn nothing_left(binary: &Path) -> Result<()> {
    let binary = binary.canonicalize()?;
    let ours = |process: &std::fs::DirEntry| {
        std::fs::read_link(process.path().join("exe")).is_ok_and(|program| program == binary)
    };
    let left: Vec<_> = std::fs::read_dir("/proc")?.flatten().filter(ours).map(|p| p.file_name()).collect();
    if !left.is_empty() {
        bail!("the tests left processes of {}: {left:?}", binary.display());
    }
    Ok(())
}
