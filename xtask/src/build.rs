//! Builds the programs that the test lanes run: the balancer and the test programs.
//!
//! Every call builds for the whole workspace, with one target and one profile. Unit tests and lints
//! select the same packages. Cargo unifies the features of dependencies over the selected packages,
//! so a different selection would rebuild the dependencies. Programs are linked statically, because
//! the lane `zero-copy` copies them into a VM. The module `dist` builds the released binary, which
//! uses LTO and has no debug assertions.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::cargo::Metadata;
use crate::dist::cargo_static;

/// The paths of the built programs, and the folders of their packages.
pub(crate) struct Built {
    programs: BTreeMap<String, PathBuf>,
    folders: BTreeMap<String, PathBuf>,
}

/// Returns a cargo command for the whole workspace, with the target and profile that all test lanes
/// use.
pub(crate) fn cargo_lane(task: &str) -> Command {
    cargo_static(&[task, "--workspace", "--profile", "lane"])
}

impl Built {
    /// Builds the balancer and the given test programs. If `units` is `true`, the unit tests of the
    /// libraries are built too.
    pub(crate) fn new(tests: &[&str], units: bool) -> Result<Self> {
        let mut command = cargo_lane("build");
        command.args(["--bin", BALANCER]).args(tests.iter().flat_map(|test| ["--test", test]));
        let mut programs = executables(&mut command)?;
        let missing: Vec<_> =
            tests.iter().chain([&BALANCER]).filter(|name| !programs.contains_key(**name)).collect();
        ensure!(missing.is_empty(), "cargo built no program for {missing:?}");
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

    pub(crate) fn balancer(&self) -> Result<&Path> {
        self.program(BALANCER)
    }

    /// Returns the path of the program with this target name.
    pub(crate) fn program(&self, name: &str) -> Result<&Path> {
        self.programs.get(name).map(PathBuf::as_path).with_context(|| format!("{name} has not been built"))
    }

    /// Returns a command that runs a test program in the same environment as cargo: in the folder
    /// of its package, with the path of the balancer in an environment variable.
    pub(crate) fn test(&self, name: &str) -> Result<Command> {
        let mut command = Command::new(self.program(name)?);
        command.current_dir(
            self.folders.get(name).with_context(|| format!("test {name} belongs to no package"))?,
        );
        command.arg(THREADS).env("SLUICEGATE_BIN", self.balancer()?);
        Ok(command)
    }
}

/// Runs a build, and returns the paths of the executables that cargo reports, by target name.
fn executables(command: &mut Command) -> Result<BTreeMap<String, PathBuf>> {
    command.args(["--message-format", "json-render-diagnostics"]).stderr(Stdio::inherit());
    let output = command.output().context("cannot run cargo")?;
    ensure!(output.status.success(), "cargo failed ({})", output.status);
    Ok(String::from_utf8(output.stdout)?.lines().filter_map(executable).collect())
}

/// Parses a JSON message from cargo. Returns the target name and the path if the message reports an
/// executable.
fn executable(message: &str) -> Option<(String, PathBuf)> {
    let message: Value = serde_json::from_str(message).ok()?;
    let path = message["executable"].as_str()?;
    Some((message["target"]["name"].as_str()?.to_owned(), path.into()))
}

const BALANCER: &str = "sluicegate";
/// The number of test threads, which is the same on every machine. Tests in network namespaces are
/// idle half of the time, so more threads than processors are useful.
const THREADS: &str = "--test-threads=4";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn executable_is_named_by_its_target() {
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
