//! Runs cargo commands and reads the metadata of the workspace.

use std::env;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use serde_json::Value;

/// Returns a cargo command that runs in the workspace root. Variables that the outer `cargo run`
/// sets for the package `xtask` are removed.
///
/// Some build scripts, such as the build script of `ring`, watch these variables. If the variables
/// were kept, these scripts would run again whenever the outer and the inner cargo alternate, and
/// all dependent crates would be rebuilt.
pub(crate) fn cargo(args: &[&str]) -> Command {
    let mut command = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.args(args).current_dir(root());
    env::vars_os().filter(|(name, _)| is_of_a_package(name)).for_each(|(name, _)| {
        command.env_remove(name);
    });
    command
}

/// Returns `true` if cargo sets this environment variable for the programs that it runs.
fn is_of_a_package(name: &OsStr) -> bool {
    let name = name.to_string_lossy();
    ["CARGO_PKG_", "CARGO_MANIFEST_"].iter().any(|start| name.starts_with(start))
        || ["CARGO_CRATE_NAME", "CARGO_BIN_NAME", "CARGO_PRIMARY_PACKAGE", "OUT_DIR"].contains(&&*name)
}

/// Runs a command and waits until it ends. The command's standard output is redirected to standard
/// error, because standard output is only for results.
pub(crate) fn run(command: &mut Command) -> Result<()> {
    let words: Vec<_> = [command.get_program()]
        .into_iter()
        .chain(command.get_args())
        .map(|word| word.to_string_lossy())
        .collect();
    let words = words.join(" ");
    let status = command.stdout(std::io::stderr()).status().with_context(|| format!("cannot run {words}"))?;
    if !status.success() {
        bail!("{words} failed ({status})");
    }
    Ok(())
}

/// Copies a program without its debug information.
pub(crate) fn strip(program: &Path, copy: &Path) -> Result<()> {
    run(Command::new("strip").args(["--strip-debug", "-o"]).args([copy, program]))
}

/// Returns the root folder of the workspace.
pub(crate) fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask/ is in the root")
}

/// Returns the packages in `cargo metadata` that are built for the static target, including the
/// packages of the workspace.
pub(crate) fn built() -> Result<Vec<Value>> {
    let mut metadata = metadata(&["--locked", "--filter-platform", crate::dist::TARGET])?;
    let packages = metadata["packages"].as_array_mut().context("cargo metadata lists no packages")?;
    Ok(std::mem::take(packages))
}

fn metadata(args: &[&str]) -> Result<Value> {
    let output = cargo(&["metadata", "--format-version", "1"])
        .args(args)
        .stderr(Stdio::inherit())
        .output()
        .context("cannot run cargo metadata")?;
    serde_json::from_slice(&output.stdout).context("cargo metadata printed no JSON")
}

/// The output of `cargo metadata` for the workspace.
pub(crate) struct Metadata(Value);

impl Metadata {
    pub(crate) fn read() -> Result<Self> {
        metadata(&["--no-deps"]).map(Self)
    }

    pub(crate) fn target_directory(&self) -> Result<PathBuf> {
        Ok(self.0["target_directory"].as_str().context("cargo metadata has no target_directory")?.into())
    }

    pub(crate) fn packages(&self) -> impl Iterator<Item = Package<'_>> {
        self.0["packages"].as_array().into_iter().flatten().map(Package)
    }
}

/// A package of the workspace.
pub(crate) struct Package<'a>(&'a Value);

impl<'a> Package<'a> {
    pub(crate) fn name(&self) -> &'a str {
        self.0["name"].as_str().unwrap_or_default()
    }

    /// Returns the folder that contains the manifest.
    pub(crate) fn folder(&self) -> Option<&'a Path> {
        Path::new(self.0["manifest_path"].as_str()?).parent()
    }

    /// Returns the name of the package folder if it is directly in `crates/`, or `None` otherwise.
    pub(crate) fn room(&self) -> Option<&'a str> {
        let folder = self.folder()?;
        let room = folder.parent()?.ends_with("crates").then(|| folder.file_name())??;
        room.to_str()
    }

    /// Returns `true` if the manifest names a README. Only crates that can be used separately have
    /// a README.
    pub(crate) fn has_readme(&self) -> bool {
        self.0["readme"].is_string()
    }

    /// Returns the minimum supported Rust version of the package.
    pub(crate) fn rust_version(&self) -> &'a str {
        self.0["rust_version"].as_str().unwrap_or_default()
    }

    /// Returns the names of all targets with the given kind, such as `bench`. If `unlisted` is
    /// `true`, only targets that `cargo test` does not run are returned.
    pub(crate) fn targets(&self, kind: &'a str, unlisted: bool) -> impl Iterator<Item = &'a str> {
        let all = self.0["targets"].as_array().into_iter().flatten();
        all.filter(move |target| {
            target["kind"].as_array().is_some_and(|kinds| kinds.iter().any(|k| k == kind))
        })
        .filter(move |target| !unlisted || target["test"] == false)
        .filter_map(|target| target["name"].as_str())
    }

    /// Returns the folders of the workspace packages on which this package depends.
    /// Dev-dependencies are excluded.
    pub(crate) fn edges(&self) -> impl Iterator<Item = &'a str> {
        let all = self.0["dependencies"].as_array().into_iter().flatten();
        all.filter(|dependency| dependency["kind"] != "dev")
            .filter_map(|dependency| Path::new(dependency["path"].as_str()?).file_name()?.to_str())
    }
}

/// Builds the balancer in release mode and returns its path.
pub(crate) fn release_binary() -> Result<PathBuf> {
    run(&mut cargo(&["build", "--release", "--package", "sluicegate"]))?;
    Ok(Metadata::read()?.target_directory()?.join("release/sluicegate"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inner_cargo_does_not_see_the_package_of_the_outer_one() {
        let command = cargo(&["build"]);
        let removed: Vec<_> = command.get_envs().filter(|(_, value)| value.is_none()).collect();
        for name in ["CARGO_MANIFEST_DIR", "CARGO_PKG_NAME", "CARGO_PKG_VERSION_PATCH"] {
            assert!(env::var_os(name).is_some(), "cargo sets {name} for tests too");
            assert!(removed.contains(&(OsStr::new(name), None)), "{removed:?}");
        }
        for name in ["CARGO", "CARGO_HOME", "CARGO_TARGET_DIR", "CARGO_HTTP_CAINFO"] {
            assert!(!is_of_a_package(OsStr::new(name)), "{name}");
        }
    }
}
