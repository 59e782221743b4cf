//! Lists everything that is linked into the binary: Rust crates, and C libraries that come from
//! crates or from Debian.
//!
//! `cargo tree` lists the crates for the enabled features, without build scripts and procedural
//! macros. The folders of the crates come from `cargo metadata`, and the checksums from
//! `Cargo.lock`. The package manager of this machine reports the versions of Debian's libraries.
//!
//! Reference: `cargo tree --edges normal,no-proc-macro`.

use std::collections::{BTreeMap, BTreeSet};
use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

/// All linked crates and libraries, sorted by name.
#[derive(Clone, Debug, Default)]
pub(crate) struct Linked {
    pub(crate) crates: Vec<Crate>,
    pub(crate) libraries: Vec<Library>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Crate {
    pub(crate) name: String,
    pub(crate) version: String,
    /// The license as an SPDX expression.
    pub(crate) licence: String,
    /// The SHA-256 digest of the crate file in the registry, in hexadecimal, or `None` for crates
    /// of this workspace.
    pub(crate) checksum: Option<String>,
    /// The folder on this machine that contains the source code.
    pub(crate) folder: PathBuf,
    /// The linked crates on which this crate depends, in the format of [`Crate::key`].
    pub(crate) uses: BTreeSet<String>,
}

impl Crate {
    pub(crate) fn key(&self) -> String {
        key(&self.name, &self.version)
    }
}

fn key(name: &str, version: &str) -> String {
    format!("{name} {version}")
}

/// A linked C library, or the standard library of Rust.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Library {
    pub(crate) name: &'static str,
    pub(crate) version: String,
    /// The license as an SPDX expression.
    pub(crate) licence: &'static str,
    /// The package URL (purl).
    pub(crate) url: String,
}

impl Linked {
    /// Determines the crates and libraries that are linked in a checkout.
    ///
    /// # Errors
    /// Returns an error if cargo or `dpkg-query` fails or prints unexpected output.
    pub(crate) fn read(checkout: &Path) -> Result<Self> {
        let text = |args: &[&str]| output(checkout, &cargo(), args);
        let tree = text(&TREE)?;
        let metadata = text(&["metadata", "--locked", "--format-version", "1", "--filter-platform", TARGET])?;
        let lock = fs::read_to_string(checkout.join("Cargo.lock"))?;
        let crates = crates(&tree, &serde_json::from_str(&metadata)?, &lock)?;
        let rustc = output(checkout, "rustc", &["--version"])?;
        let libraries = libraries(&crates, &rustc, |name| debian(checkout, name))?;
        Ok(Self { crates, libraries })
    }

    /// Returns the version of Sluicegate.
    pub(crate) fn version(&self) -> &str {
        self.crates.iter().find(|one| one.name == PRODUCT).map_or("", |one| &one.version)
    }
}

/// Returns the crates in the output of `cargo tree`. Other fields of the crates come from `cargo
/// metadata` and the lock file.
fn crates(tree: &str, metadata: &Value, lock: &str) -> Result<Vec<Crate>> {
    let checksums = checksums(lock);
    let mut found = BTreeMap::new();
    for line in tree.lines().filter(|line| !line.is_empty()) {
        let one = line.split('|').collect::<Vec<_>>();
        let [package, licence] = one[..] else {
            anyhow::bail!("cargo tree printed an unexpected line {line:?}")
        };
        let mut words = package.split(' ');
        let name = words.next().unwrap_or_default().to_owned();
        let version = words.next().and_then(|version| version.strip_prefix('v'));
        let version =
            version.with_context(|| format!("cargo tree printed no version in {line:?}"))?.to_owned();
        // `cargo tree` appends `(*)` to the license if it has already printed the crate.
        let licence =
            licence.trim_end_matches("(*)").split('/').map(str::trim).collect::<Vec<_>>().join(" OR ");
        ensure!(!licence.is_empty(), "the package {package} has no license field");
        let key = key(&name, &version);
        let checksum = checksums.get(&key).cloned();
        found.insert(key, Crate { name, version, licence, checksum, ..Crate::default() });
    }
    ensure!(found.values().any(|one| one.name == PRODUCT), "cargo tree does not list {PRODUCT}");
    let keys: BTreeSet<String> = found.keys().cloned().collect();
    for package in metadata["packages"].as_array().into_iter().flatten() {
        let text = |name: &str| package[name].as_str().unwrap_or_default();
        if let Some(one) = found.get_mut(&key(text("name"), text("version"))) {
            one.folder = Path::new(text("manifest_path")).parent().unwrap_or(Path::new("")).to_owned();
            one.uses = uses(metadata, text("id"), &keys);
        }
    }
    Ok(found.into_values().collect())
}

/// Returns the linked crates on which the crate with this ID depends.
fn uses(metadata: &Value, id: &str, linked: &BTreeSet<String>) -> BTreeSet<String> {
    let nodes = metadata["resolve"]["nodes"].as_array().into_iter().flatten();
    let deps = nodes.filter(|node| node["id"] == id).filter_map(|node| node["deps"].as_array()).flatten();
    let is_linked =
        |dep: &&Value| dep["dep_kinds"].as_array().into_iter().flatten().any(|kind| kind["kind"].is_null());
    let packages = metadata["packages"].as_array();
    let key_of = |dep: &Value| {
        let package = packages?.iter().find(|package| package["id"] == dep["pkg"])?;
        Some(key(package["name"].as_str()?, package["version"].as_str()?))
    };
    deps.filter(is_linked).filter_map(key_of).filter(|key| linked.contains(key)).collect()
}

/// Returns the checksums in the lock file. The keys have the format of [`Crate::key`].
fn checksums(lock: &str) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    for package in lock.split("[[package]]").skip(1) {
        let field = |name: &str| {
            let value = package.lines().find_map(|line| line.strip_prefix(name))?;
            Some(value.trim_matches([' ', '=', '"']))
        };
        if let (Some(name), Some(version), Some(sum)) = (field("name"), field("version"), field("checksum")) {
            found.insert(key(name, version), sum.to_owned());
        }
    }
    found
}

/// Returns the libraries that THIRD-PARTY.md lists, with their linked versions.
fn libraries(crates: &[Crate], rustc: &str, debian: impl Fn(&str) -> Result<String>) -> Result<Vec<Library>> {
    let brought = |name: &str| {
        let version = crates.iter().find(|one| one.name == name).map(|one| one.version.as_str());
        let (_, version) = version
            .and_then(|version| version.split_once('+'))
            .with_context(|| format!("the version of {name} lacks its C library's version"))?;
        anyhow::Ok(version.trim_start_matches('v').to_owned())
    };
    let of_debian = |name: &'static str, package: &str, licence: &'static str| {
        let version = debian(package)?;
        let url = format!("pkg:deb/debian/{package}@{version}?arch=amd64");
        anyhow::Ok(Library { name, version, licence, url })
    };
    let of_crate = |name: &'static str, from: &str, repository: &str, licence: &'static str| {
        let version = brought(from)?;
        let url = format!("pkg:github/{repository}@v{version}");
        anyhow::Ok(Library { name, version, licence, url })
    };
    let version = rustc.split(' ').nth(1).context("rustc printed no version")?.to_owned();
    let url = format!("pkg:generic/rust-std@{version}");
    Ok(vec![
        of_debian("glibc", "libc6-dev", "LGPL-2.1-or-later")?,
        of_crate("libbpf", "libbpf-sys", "libbpf/libbpf", "LGPL-2.1-only OR BSD-2-Clause")?,
        of_debian("libelf", "libelf-dev", "LGPL-3.0-or-later OR GPL-2.0-or-later")?,
        of_crate("libxdp", "libxdp-sys", "xdp-project/xdp-tools", "LGPL-2.1-only OR BSD-2-Clause")?,
        Library { name: "rust-std", version, licence: "MIT OR Apache-2.0", url },
        of_debian("zlib", "zlib1g-dev", "Zlib")?,
    ])
}

/// Returns the installed version of a Debian package.
fn debian(checkout: &Path, package: &str) -> Result<String> {
    output(checkout, "dpkg-query", &["--show", "--showformat", "${Version}", package])
}

fn cargo() -> String {
    env::var("CARGO").unwrap_or_else(|_| "cargo".into())
}

fn output(folder: &Path, program: &str, args: &[&str]) -> Result<String> {
    let output = Command::new(program).args(args).current_dir(folder).output();
    let output = output.with_context(|| format!("cannot run {program}"))?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{program} {} failed ({}): {said}", args.join(" "), output.status);
    String::from_utf8(output.stdout).with_context(|| format!("{program} printed invalid UTF-8"))
}

const PRODUCT: &str = "sluicegate";
const TARGET: &str = "x86_64-unknown-linux-gnu";
const TREE: [&str; 12] = [
    "tree",
    "--locked",
    "--package",
    PRODUCT,
    "--edges",
    "normal,no-proc-macro",
    "--target",
    TARGET,
    "--prefix",
    "none",
    "--format",
    "{p}|{l}",
];

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const LINES: &str = "sluicegate v0.1.0 (/x)|Apache-2.0 OR MIT\nlibbpf-sys v1.5.1+v1.5.1|BSD-2-Clause\n\
                         libxdp-sys v0.2.4+1.6.0|BSD-2-Clause\nold v1.0.0|MIT/Apache-2.0\n\nold v1.0.0|MIT/Apache-2.0 (*)\n";
    const LOCK: &str = "version = 4\n\n[[package]]\nname = \"old\"\nversion = \"1.0.0\"\nsource = \"registry\"\n\
                        checksum = \"abc\"\n\n[[package]]\nname = \"sluicegate\"\nversion = \"0.1.0\"\n";

    fn metadata() -> Value {
        let dep = |id: &str, kind: Value| json!({ "pkg": id, "dep_kinds": [{ "kind": kind }] });
        json!({
            "packages": [
                { "id": "s", "name": "sluicegate", "version": "0.1.0", "manifest_path": "/x/Cargo.toml" },
                { "id": "o", "name": "old", "version": "1.0.0", "manifest_path": "/r/old/Cargo.toml" },
                { "id": "t", "name": "test", "version": "1.0.0", "manifest_path": "/r/test/Cargo.toml" },
                { "id": "b", "name": "libbpf-sys", "version": "1.5.1+v1.5.1", "manifest_path": "/r/b/Cargo.toml" },
            ],
            "resolve": { "nodes": [
                { "id": "s", "deps": [dep("o", Value::Null), dep("t", Value::Null), dep("b", json!("build"))] },
            ] },
        })
    }

    #[test]
    fn crate_has_license_checksum_folder_and_used_crates() {
        let crates = crates(LINES, &metadata(), LOCK).unwrap();
        let names: Vec<_> = crates.iter().map(|one| one.name.as_str()).collect();
        assert_eq!(names, ["libbpf-sys", "libxdp-sys", "old", "sluicegate"]);
        let old = &crates[2];
        assert_eq!((&*old.licence, old.checksum.as_deref()), ("MIT OR Apache-2.0", Some("abc")));
        assert_eq!(old.folder, Path::new("/r/old"));
        assert_eq!(
            crates[3].uses,
            BTreeSet::from(["old 1.0.0".to_owned()]),
            "dependencies of tests and builds are excluded"
        );
        assert_eq!(crates[3].checksum, None);
    }

    #[test]
    fn tree_without_product_or_license_is_an_error() {
        for (tree, word) in [
            ("", "does not list sluicegate"),
            ("sluicegate v0.1.0|\n", "has no license field"),
            ("sluicegate|MIT\n", "no version"),
            ("sluicegate v0.1.0\n", "unexpected line"),
        ] {
            let error = crates(tree, &metadata(), LOCK).unwrap_err().to_string();
            assert!(error.contains(word), "{error}");
        }
    }

    #[test]
    fn c_libraries_have_versions_of_debian_or_their_crates() {
        let crates = crates(LINES, &metadata(), LOCK).unwrap();
        let all = libraries(&crates, "rustc 1.95.0 (x 2026)", |name| Ok(format!("of-{name}"))).unwrap();
        let said: Vec<String> = all.iter().map(|one| format!("{} {}", one.name, one.version)).collect();
        assert_eq!(
            said,
            [
                "glibc of-libc6-dev",
                "libbpf 1.5.1",
                "libelf of-libelf-dev",
                "libxdp 1.6.0",
                "rust-std 1.95.0",
                "zlib of-zlib1g-dev"
            ]
        );
        assert_eq!(all[1].url, "pkg:github/libbpf/libbpf@v1.5.1");
    }

    #[test]
    fn linked_crates_exclude_those_of_tests_and_builds() {
        let checkout = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap();
        let tree = output(checkout, &cargo(), &TREE).unwrap();
        let named = |name: &str| tree.lines().any(|line| line.starts_with(&format!("{name} v")));
        for linked in ["sluicegate", "aya", "tokio", "libbpf-sys", "rustls"] {
            assert!(named(linked), "{linked}: {tree}");
        }
        for other in ["proptest", "clap_derive", "syn", "bindgen", "rpm", "sluicegate-testbed"] {
            assert!(!named(other), "{other}: {tree}");
        }
    }
}
