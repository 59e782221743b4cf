//! Calling cargo, and asking it about the workspace.

use std::env;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use serde_json::Value;

/// A cargo command in the workspace's root, as from a shell: without what the outer `cargo run` says of the package `xtask`.
/// Build scripts that watch those variables (ring's does) would run anew at each change between the two, and all above them.
pub(crate) fn cargo(args: &[&str]) -> Command {
    let mut command = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.args(args).current_dir(root());
    env::vars_os().filter(|(name, _)| is_of_a_package(name)).for_each(|(name, _)| {
        command.env_remove(name);
    });
    command
}

/// Whether cargo sets this variable for the program of a package that it runs.
fn is_of_a_package(name: &OsStr) -> bool {
    let name = name.to_string_lossy();
    ["CARGO_PKG_", "CARGO_MANIFEST_"].iter().any(|start| name.starts_with(start))
        || ["CARGO_CRATE_NAME", "CARGO_BIN_NAME", "CARGO_PRIMARY_PACKAGE", "OUT_DIR"].contains(&&*name)
}

/// Runs a command to its end with its output on standard error, which leaves standard output to figures.
pub(crate) fn run(command: &mut Command) -> Result<()> {
    let words: Vec<_> = [command.get_program()]
        .into_iter()
        .chain(command.get_args())
        .map(|word| word.to_string_lossy())
        .collect();
    let words = words.join(" ");
    let status = command.stdout(std::io::stderr()).status().with_context(|| format!("can't run {words}"))?;
    if !status.success() {
        bail!("{words}: {status}");
    }
    Ok(())
}

/// The workspace's root.
pub(crate) fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask/ stands in the root")
}

/// What `cargo metadata` says of every crate that is built for this target, those of the workspace among them.
pub(crate) fn built() -> Result<Vec<Value>> {
    let mut metadata = metadata(&["--locked", "--filter-platform", crate::dist::TARGET])?;
    let packages = metadata["packages"].as_array_mut().context("cargo metadata names no packages")?;
    Ok(std::mem::take(packages))
}

fn metadata(args: &[&str]) -> Result<Value> {
    let output = cargo(&["metadata", "--format-version", "1"])
        .args(args)
        .stderr(Stdio::inherit())
        .output()
        .context("can't run cargo metadata")?;
    serde_json::from_slice(&output.stdout).context("cargo metadata tells no JSON")
}

/// The workspace as `cargo metadata` tells it.
pub(crate) struct Metadata(Value);

impl Metadata {
    pub(crate) fn read() -> Result<Self> {
        metadata(&["--no-deps"]).map(Self)
    }

    /// Where builds go.
    pub(crate) fn target_directory(&self) -> Result<PathBuf> {
        Ok(self.0["target_directory"].as_str().context("cargo metadata names no target folder")?.into())
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

    /// Where its manifest stands.
    pub(crate) fn folder(&self) -> Option<&'a Path> {
        Path::new(self.0["manifest_path"].as_str()?).parent()
    }

    /// The folder's name, by which the map of the rooms calls it; `None` for what is no room of the product.
    pub(crate) fn room(&self) -> Option<&'a str> {
        let folder = self.folder()?;
        let room = folder.parent()?.ends_with("crates").then(|| folder.file_name())??;
        room.to_str()
    }

    /// Whether its manifest names one: it is of use without the rest.
    pub(crate) fn has_readme(&self) -> bool {
        self.0["readme"].is_string()
    }

    /// The oldest compiler that builds it.
    pub(crate) fn rust_version(&self) -> &'a str {
        self.0["rust_version"].as_str().unwrap_or_default()
    }

    /// Names of its targets of a kind, such as `bench`; with `unlisted`, those alone that `cargo test` passes over.
    pub(crate) fn targets(&self, kind: &'a str, unlisted: bool) -> impl Iterator<Item = &'a str> {
        let all = self.0["targets"].as_array().into_iter().flatten();
        all.filter(move |target| {
            target["kind"].as_array().is_some_and(|kinds| kinds.iter().any(|k| k == kind))
        })
        .filter(move |target| !unlisted || target["test"] == false)
        .filter_map(|target| target["name"].as_str())
    }

    /// Folders of the workspace's packages that it needs to build or run; what its tests alone need is left out.
    pub(crate) fn edges(&self) -> impl Iterator<Item = &'a str> {
        let all = self.0["dependencies"].as_array().into_iter().flatten();
        all.filter(|dependency| dependency["kind"] != "dev")
            .filter_map(|dependency| Path::new(dependency["path"].as_str()?).file_name()?.to_str())
    }
}

/// Builds the balancer for release; returns where it is.
pub(crate) fn release_binary() -> Result<PathBuf> {
    run(&mut cargo(&["build", "--release", "--package", "sluicegate"]))?;
    Ok(Metadata::read()?.target_directory()?.join("release/sluicegate"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_inner_cargo_does_not_hear_of_the_outer_ones_package() {
        let command = cargo(&["build"]);
        let removed: Vec<_> = command.get_envs().filter(|(_, value)| value.is_none()).collect();
        for name in ["CARGO_MANIFEST_DIR", "CARGO_PKG_NAME", "CARGO_PKG_VERSION_PATCH"] {
            assert!(env::var_os(name).is_some(), "cargo sets {name}, for tests too");
            assert!(removed.contains(&(OsStr::new(name), None)), "{removed:?}");
        }
        for name in ["CARGO", "CARGO_HOME", "CARGO_TARGET_DIR", "CARGO_HTTP_CAINFO"] {
            assert!(!is_of_a_package(OsStr::new(name)), "{name}");
        }
    }
}
