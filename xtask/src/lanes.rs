//! Test lanes: what each runs, what it needs, how long it may take.
//!
//! Every lane runs, whatever the ones before it did; one failure makes the task fail. A lane over its budget is told, not
//! failed: time decides nothing.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};

use crate::cargo::{self, Metadata, cargo};
use crate::{demo, setup, tidy, zero_copy};

/// A group of tests that needs the same things.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Lane {
    /// Format, lints, documents, unit tests, house rules: no root
    Unit,
    /// Real traffic in namespaces, and the demo: root
    Net,
    /// BGP and BFD with bird, FRR and gobgpd in namespaces: root
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
            Self::Net => [setup::BUILD, setup::BED, setup::SERVICE, setup::CAPTURE].concat(),
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

    fn run(self, long: bool) -> Result<()> {
        setup::ensure(&self.packages())?;
        match self {
            Self::Unit => unit(long),
            Self::Net => net(long),
            Self::Bgp => bgp(long),
            Self::Web => web(long),
            Self::ZeroCopy => zero_copy::run(),
        }
    }
}

/// `lanes`, or all.
pub(crate) fn chosen(lanes: &[Lane]) -> &[Lane] {
    if lanes.is_empty() { &Lane::ALL } else { lanes }
}

/// Runs `lanes`, or all, and prints the seconds of each.
pub(crate) fn run(lanes: &[Lane], long: bool) -> Result<()> {
    let mut failed = Vec::new();
    let mut summary = String::new();
    for &lane in chosen(lanes) {
        let start = Instant::now();
        let outcome = lane.run(long);
        let (took, budget) = (start.elapsed().as_secs(), lane.budget().as_secs());
        let word = if outcome.is_ok() { "ok" } else { "FAILED" };
        let late = if took > budget { ", over its budget" } else { "" };
        summary += &format!("lane {}: {word}, {took} s of {budget} s{late}\n", lane.name());
        if let Err(error) = outcome {
            eprintln!("lane {}: {error:#}", lane.name());
            failed.push(lane.name());
        }
    }
    print!("{summary}");
    ensure!(failed.is_empty(), "failed: {}", failed.join(", "));
    Ok(())
}

fn unit(long: bool) -> Result<()> {
    step(&mut cargo(&["fmt", "--all", "--check"]), long)?;
    step(&mut cargo(&["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"]), long)?;
    // Clippy passes over test targets that `cargo test` passes over.
    for package in Metadata::read()?.packages() {
        for test in package.targets("test", true) {
            let args = ["clippy", "--package", package.name(), "--test", test, "--", "-D", "warnings"];
            step(&mut cargo(&args), long)?;
        }
    }
    step(cargo(&["doc", "--workspace", "--no-deps"]).env("RUSTDOCFLAGS", "-D warnings"), long)?;
    step(&mut cargo(&["test", "--workspace"]), long)?;
    let loom = ["test", "--release", "--package", "sluicegate-loom", "--target-dir", "target/loom"];
    step(cargo(&loom).env("RUSTFLAGS", "--cfg loom"), long)?;
    tidy::run()
}

fn net(long: bool) -> Result<()> {
    setup::require_root("the lane net")?;
    let binary = cargo::release_binary()?;
    let tests = [
        ("sluicegate-testbed", "net"),
        ("sluicegate-testbed", "tunnel"),
        ("sluicegate-datapath", "bpf"),
        ("sluicegate-control-plane", "next_hop"),
    ];
    for (package, test) in tests {
        let args = ["test", "--release", "--package", package, "--test", test, "--", "--test-threads=2"];
        step(cargo(&args).env("SLUICEGATE_BIN", &binary), long)?;
    }
    demo::run(Some(binary.clone()), true, false)?;
    nothing_left(&binary)
}

fn bgp(long: bool) -> Result<()> {
    setup::require_root("the lane bgp")?;
    let test = ["test", "--release", "--package", "sluicegate-bgp", "--test", "routers"];
    step(cargo(&test).args(["--", "--test-threads=2"]), long)
}

fn web(long: bool) -> Result<()> {
    setup::require_root("the lane web")?;
    let is_test = |name: &str| name.ends_with(".test.yml");
    let rules = config_files(|name| name.starts_with("alerts") && name.ends_with(".yml") && !is_test(name))?;
    for (task, files) in [("check", rules), ("test", config_files(is_test)?)] {
        ensure!(!files.is_empty(), "no rules in config/ to {task}");
        cargo::run(Command::new("promtool").args([task, "rules"]).args(files))?;
    }
    let binary = cargo::release_binary()?;
    let args =
        ["test", "--release", "--package", "sluicegate-testbed", "--test", "web", "--", "--test-threads=2"];
    step(cargo(&args).env("SLUICEGATE_BIN", &binary), long)?;
    nothing_left(&binary)
}

/// Files of `config/` whose name is meant.
fn config_files(is_meant: impl Fn(&str) -> bool) -> Result<Vec<PathBuf>> {
    let entries = std::fs::read_dir(cargo::root().join("config"))?;
    let paths = entries.map(|entry| Ok(entry?.path())).collect::<Result<Vec<_>>>()?;
    let named = |path: &PathBuf| path.file_name().is_some_and(|name| is_meant(&name.to_string_lossy()));
    Ok(paths.into_iter().filter(named).collect())
}

fn step(command: &mut Command, long: bool) -> Result<()> {
    let words: Vec<_> = command.get_args().map(|word| word.to_string_lossy().into_owned()).collect();
    eprintln!("── cargo {}", words.join(" "));
    if long {
        command.env("SLUICEGATE_LONG", "1");
    }
    cargo::run(command)
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
