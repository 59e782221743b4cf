//! Checks the crates that can be used separately, which are the crates in `crates/` whose manifest
//! names a README.
//!
//! `cargo xtask api` compares the public API of each such crate with the file `api.txt`. A test
//! lane checks that each crate builds with its minimum supported Rust version, and that it builds
//! from its package.
//!
//! The JSON format of rustdoc is unstable, so the version of the crate `public-api` must match the
//! pinned toolchain.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use public_api::Builder;

use crate::cargo::{self, Metadata, Package, cargo};
use crate::steps::Steps;

/// Compares the public API of each crate with its `api.txt`. If `write` is `true`, writes the
/// current API to the file instead.
pub(crate) fn api(write: bool) -> Result<()> {
    let metadata = Metadata::read()?;
    let libraries: Vec<Package<'_>> = all(&metadata).collect();
    ensure!(!libraries.is_empty(), "no crate in crates/ names a README");
    let target = metadata.target_directory()?.join("api");
    document(&libraries, &target)?;
    let mut findings = Vec::new();
    for library in &libraries {
        let now = public(library, &target)?;
        let file = library.folder().context("a package manifest has no parent folder")?.join(FILE);
        if write {
            fs::write(&file, now.join("\n") + "\n")
                .with_context(|| format!("cannot write {}", file.display()))?;
            continue;
        }
        let found = differences(&fs::read_to_string(&file).unwrap_or_default(), &now);
        findings.extend(found.into_iter().map(|line| format!("{}: {line}", library.name())));
    }
    findings.iter().for_each(|finding| eprintln!("{finding}"));
    ensure!(
        findings.is_empty(),
        "a public API differs from its {FILE} (run `cargo xtask api --write` to accept)"
    );
    Ok(())
}

/// Builds each crate with its minimum supported Rust version, and from a package. The builds need
/// the network, to install compilers and to download dependencies that are not in the workspace.
pub(crate) fn alone(steps: &mut Steps) {
    let Some(metadata) = steps.check(Metadata::read()) else { return };
    let mut by_compiler: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    // Crates that require the pinned compiler of the workspace are skipped here, because all other
    // steps already use this compiler.
    for library in all(&metadata).filter(|library| library.rust_version() != env!("CARGO_PKG_RUST_VERSION")) {
        by_compiler.entry(library.rust_version()).or_default().push(library.name());
    }
    for (compiler, names) in &by_compiler {
        steps.command(&mut oldest(compiler, names));
    }
    let mut package = cargo(&["package", "--allow-dirty"]);
    steps.command(package.args(all(&metadata).flat_map(|library| ["--package", library.name()])));
}

fn all(metadata: &Metadata) -> impl Iterator<Item = Package<'_>> {
    metadata.packages().filter(|package| package.room().is_some() && package.has_readme())
}

/// Returns a command that checks crates with their minimum supported Rust version. The compiler is
/// installed if it is missing.
fn oldest(compiler: &str, names: &[&str]) -> Command {
    let mut command = Command::new("rustup");
    command.args(["run", "--install", compiler, "cargo", "check", "--locked", "--lib"]);
    command.args(["--target-dir", "target/oldest"]);
    command.args(names.iter().flat_map(|name| ["--package", name])).current_dir(cargo::root());
    command
}

/// Runs rustdoc with JSON output in a separate build folder. Build scripts check whether unstable
/// features are allowed. In a shared folder, everything would be rebuilt each time this setting
/// changes.
fn document(libraries: &[Package<'_>], target: &Path) -> Result<()> {
    let mut doc = cargo(&["doc", "--locked", "--no-deps", "--lib", "--target-dir"]);
    doc.arg(target).args(libraries.iter().flat_map(|library| ["--package", library.name()]));
    doc.env("RUSTC_BOOTSTRAP", "1").env("RUSTDOCFLAGS", "-Z unstable-options --output-format json");
    cargo::run(&mut doc)
}

/// Returns the public items of a library, one per line of `api.txt`.
fn public(library: &Package<'_>, target: &Path) -> Result<Vec<String>> {
    let name = library
        .targets("lib", false)
        .next()
        .with_context(|| format!("{} is not a library", library.name()))?;
    let json = target.join("doc").join(name).with_extension("json");
    let api = Builder::from_rustdoc_json(&json).omit_blanket_impls(true).build();
    let api = api.with_context(|| format!("cannot read {}", json.display()))?;
    Ok(api.items().map(ToString::to_string).filter(|item| !is_usual(item)).collect())
}

/// Returns `true` if an item is omitted from `api.txt`. The omitted items are auto traits that
/// nearly all types implement, blanket implementations of traits that programs cannot name, and
/// methods of traits whose implementation is already listed.
fn is_usual(item: &str) -> bool {
    let is_of = |name: &str| item.contains(&format!(" core::{name} for "));
    let is_impl = item.starts_with("impl") && USUAL.iter().any(|name| is_of(name));
    is_impl || item.starts_with("pub fn") && DERIVED.iter().any(|method| item.contains(method))
}

/// Returns the lines that were removed and the lines that were added.
fn differences(kept: &str, now: &[String]) -> Vec<String> {
    let (kept, now): (BTreeSet<&str>, BTreeSet<&str>) =
        (kept.lines().collect(), now.iter().map(String::as_str).collect());
    let gone = kept.difference(&now).map(|line| format!("- {line}"));
    let new = now.difference(&kept).map(|line| format!("+ {line}"));
    gone.chain(new).collect()
}

/// The name of the file with the public API, which is next to the manifest.
const FILE: &str = "api.txt";
const USUAL: [&str; 8] = [
    "marker::Freeze",
    "marker::Send",
    "marker::StructuralPartialEq",
    "marker::Sync",
    "marker::Unpin",
    "marker::UnsafeUnpin",
    "panic::unwind_safe::RefUnwindSafe",
    "panic::unwind_safe::UnwindSafe",
];
const DERIVED: [&str; 6] = [
    "::clone(&self) -> ",
    "::cmp(&self, &",
    "::eq(&self, &",
    "::fmt(&self, &mut core::fmt::Formatter<'_>)",
    "::hash<__H: core::hash::Hasher>(&self, ",
    "::partial_cmp(&self, &",
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_auto_traits_are_listed_and_derived_methods_not() {
        for (item, is_listed) in [
            ("impl core::marker::Send for packet::Parsed", false),
            ("impl<'a> core::panic::unwind_safe::UnwindSafe for packet::Ipv4<'a>", false),
            ("impl<T> core::marker::Sync for kv_switch::Exchanges<T> where T: core::marker::Sync", false),
            ("impl !core::marker::Sync for packet::Parsed", true),
            ("impl core::marker::Copy for packet::Parsed", true),
            ("pub fn packet::send<T: core::marker::Send>(T)", true),
            ("pub fn packet::Parsed::clone(&self) -> packet::Parsed", false),
            ("pub fn packet::Parsed::clone_into(&self, &mut [u8])", true),
        ] {
            assert_eq!(!is_usual(item), is_listed, "{item}");
        }
    }

    #[test]
    fn removed_or_added_line_is_a_difference() {
        let now = ["pub fn b()", "pub fn a()"].map(String::from);
        assert_eq!(differences("pub fn a()\npub fn b()\n", &now), [""; 0]);
        assert_eq!(differences("pub fn a()\npub fn c()\n", &now), ["- pub fn c()", "+ pub fn b()"]);
        assert_eq!(differences("", &now), ["+ pub fn a()", "+ pub fn b()"]);
    }
}
