//! What lanes run, built before the first of them: the balancer and the tests' programs.
//!
//! In: names of test targets. Out: [`Built`]. Every call builds for the whole workspace, for one target and under one profile,
//! unit tests and lints too: cargo gives dependencies the features that the chosen packages want together, and builds them anew
//! for each other choice. Static, so that the lane `zero-copy` takes the same programs into its VM that the other lanes run here.
//! Not here: what is shipped (`dist`), which is the same with LTO and without debug assertions.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::cargo::Metadata;
use crate::dist::cargo_static;

/// Programs that have been built.
pub(crate) struct Built {
    programs: BTreeMap<String, PathBuf>,
    folders: BTreeMap<String, PathBuf>,
}

/// A cargo command over the whole workspace, by which all that lanes run or lint is built.
pub(crate) fn cargo_lane(task: &str) -> Command {
    cargo_static(&[task, "--workspace", "--profile", "lane"])
}

impl Built {
    /// Builds the balancer, and the programs of these tests; with `units`, the unit tests of the libraries too.
    pub(crate) fn new(tests: &[&str], units: bool) -> Result<Self> {
        let mut command = cargo_lane("build");
        command.args(["--bin", BALANCER]).args(tests.iter().flat_map(|test| ["--test", test]));
        let mut programs = executables(&mut command)?;
        let missing: Vec<_> =
            tests.iter().chain([&BALANCER]).filter(|name| !programs.contains_key(**name)).collect();
        ensure!(missing.is_empty(), "cargo names no program of {missing:?}");
        if units {
            programs.extend(executables(cargo_lane("test").args(["--lib", "--no-run"]))?);
        }
        let metadata = Metadata::read()?;
        let mut folders = BTreeMap::new();
        for package in metadata.packages() {
            let Some(folder) = package.folder() else { continue };
            let targets = package.targets("test", false).chain(package.targets("lib", false));
            folders.extend(targets.map(|target| (target.to_owned(), folder.to_owned())));
        }
        Ok(Self { programs, folders })
    }

    /// The balancer.
    pub(crate) fn balancer(&self) -> Result<&Path> {
        self.program(BALANCER)
    }

    /// A program, by its target's name.
    pub(crate) fn program(&self, name: &str) -> Result<&Path> {
        self.programs.get(name).map(PathBuf::as_path).with_context(|| format!("{name} has not been built"))
    }

    /// Runs a test as cargo does, against the balancer: in its package's folder.
    pub(crate) fn test(&self, name: &str) -> Result<Command> {
        let mut command = Command::new(self.program(name)?);
        command.current_dir(self.folders.get(name).context("a test has a package")?);
        command.arg(THREADS).env("SLUICEGATE_BIN", self.balancer()?);
        Ok(command)
    }
}

/// Builds, and returns what cargo says it has built, by the names of targets.
fn executables(command: &mut Command) -> Result<BTreeMap<String, PathBuf>> {
    command.args(["--message-format", "json-render-diagnostics"]).stderr(Stdio::inherit());
    let output = command.output().context("can't run cargo")?;
    ensure!(output.status.success(), "cargo: {}", output.status);
    Ok(String::from_utf8(output.stdout)?.lines().filter_map(executable).collect())
}

/// The program that a message of cargo's tells of, with its target's name.
fn executable(message: &str) -> Option<(String, PathBuf)> {
    let message: Value = serde_json::from_str(message).ok()?;
    let path = message["executable"].as_str()?;
    Some((message["target"]["name"].as_str()?.to_owned(), path.into()))
}

const BALANCER: &str = "sluicegate";
/// The same on every machine. Tests that use namespaces wait for half of their time, and each has its own.
const THREADS: &str = "--test-threads=4";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_is_named_by_its_target() {
        let ours = r#"{"target":{"name":"zero_copy"},"executable":"/x/zero_copy-1"}"#;
        assert_eq!(executable(ours), Some(("zero_copy".into(), "/x/zero_copy-1".into())));
        for other in [
            r#"{"target":{"name":"testbed"},"executable":null}"#,
            r#"{"reason":"build-finished","success":true}"#,
            "",
        ] {
            assert_eq!(executable(other), None, "{other}");
        }
    }
}
