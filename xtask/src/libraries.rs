//! Crates that stand alone: those of `crates/` whose manifest names a README.
//!
//! In: their sources. Out: what differs between their public API and the text of it that is kept beside each, `api.txt`; whether
//! they build with the oldest compiler that they name, and from a package of their own.
//! Not here: the examples of their READMEs, which are tests of theirs; that they depend on no other crate (`tidy`).
//! Source: rustdoc's JSON, which is unstable: its format is that of the pinned toolchain, and `public-api` the version that reads it.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use public_api::Builder;

use crate::cargo::{self, Metadata, Package, cargo};
use crate::steps::Steps;

/// Compares each public API with what is kept of it; with `write`, keeps what it is now.
pub(crate) fn api(write: bool) -> Result<()> {
    let metadata = Metadata::read()?;
    let libraries: Vec<Package<'_>> = all(&metadata).collect();
    ensure!(!libraries.is_empty(), "no crate of crates/ names a README");
    let target = metadata.target_directory()?.join("api");
    document(&libraries, &target)?;
    let mut findings = Vec::new();
    for library in &libraries {
        let now = public(library, &target)?;
        let file = library.folder().context("a package without a folder")?.join(FILE);
        if write {
            fs::write(&file, now.join("\n") + "\n")
                .with_context(|| format!("can't write {}", file.display()))?;
            continue;
        }
        let found = differences(&fs::read_to_string(&file).unwrap_or_default(), &now);
        findings.extend(found.into_iter().map(|line| format!("{}: {line}", library.name())));
    }
    findings.iter().for_each(|finding| eprintln!("{finding}"));
    ensure!(findings.is_empty(), "a public API differs from its {FILE}: `cargo xtask api --write` if it may");
    Ok(())
}

/// Builds each with the oldest compiler that it names, and from a package. Both need the network: a compiler that is not there, and
/// what dependencies a package alone would have.
pub(crate) fn alone(steps: &mut Steps) {
    let Some(metadata) = steps.check(Metadata::read()) else { return };
    let mut by_compiler: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    // The workspace's own builds all else.
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

/// It is installed where it is missing.
fn oldest(compiler: &str, names: &[&str]) -> Command {
    let mut command = Command::new("rustup");
    command.args(["run", "--install", compiler, "cargo", "check", "--locked", "--lib"]);
    command.args(["--target-dir", "target/oldest"]);
    command.args(names.iter().flat_map(|name| ["--package", name])).current_dir(cargo::root());
    command
}

/// Has rustdoc write its JSON, in a folder of its own: build scripts look whether unstable features are allowed, and what they
/// decide would be built anew at each change.
fn document(libraries: &[Package<'_>], target: &Path) -> Result<()> {
    let mut doc = cargo(&["doc", "--locked", "--no-deps", "--lib", "--target-dir"]);
    doc.arg(target).args(libraries.iter().flat_map(|library| ["--package", library.name()]));
    doc.env("RUSTC_BOOTSTRAP", "1").env("RUSTDOCFLAGS", "-Z unstable-options --output-format json");
    cargo::run(&mut doc)
}

/// The public items of a library.
fn public(library: &Package<'_>, target: &Path) -> Result<Vec<String>> {
    let name =
        library.targets("lib", false).next().with_context(|| format!("{} is no library", library.name()))?;
    let json = target.join("doc").join(name).with_extension("json");
    let api = Builder::from_rustdoc_json(&json).omit_blanket_impls(true).build();
    let api = api.with_context(|| format!("can't read {}", json.display()))?;
    Ok(api.items().map(ToString::to_string).filter(|item| !is_usual(item)).collect())
}

/// Whether an item says nothing: a type has an auto trait, as nearly all do (those that don't are listed), or one that no program
/// can name; or a method follows from the trait that is listed above it.
fn is_usual(item: &str) -> bool {
    let is_of = |name: &str| item.contains(&format!(" core::{name} for "));
    let is_impl = item.starts_with("impl") && USUAL.iter().any(|name| is_of(name));
    is_impl || item.starts_with("pub fn") && DERIVED.iter().any(|method| item.contains(method))
}

/// Lines that came and went.
fn differences(kept: &str, now: &[String]) -> Vec<String> {
    let (kept, now): (BTreeSet<&str>, BTreeSet<&str>) =
        (kept.lines().collect(), now.iter().map(String::as_str).collect());
    let gone = kept.difference(&now).map(|line| format!("- {line}"));
    let new = now.difference(&kept).map(|line| format!("+ {line}"));
    gone.chain(new).collect()
}

/// Beside the manifest.
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
    fn auto_traits_are_listed_where_they_are_missing_and_derived_methods_by_their_trait() {
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
    fn a_line_that_came_or_went_is_a_difference_and_their_order_is_none() {
        let now = ["pub fn b()", "pub fn a()"].map(String::from);
        assert_eq!(differences("pub fn a()\npub fn b()\n", &now), [""; 0]);
        assert_eq!(differences("pub fn a()\npub fn c()\n", &now), ["- pub fn c()", "+ pub fn b()"]);
        assert_eq!(differences("", &now), ["+ pub fn a()", "+ pub fn b()"]);
    }
}
