//! Implements `cargo xtask packages`, which builds .deb, .rpm and OCI packages with the static
//! binary, a bill of materials, and checksums.
//!
//! With `--twice`, the task builds the last commit in two folders and checks that the outputs of
//! both builds are identical. The program in `xtask/packages` writes the package formats. This
//! program is a separate crate, because no other task needs its dependencies. The module
//! `try_packages` tests the packages.
//!
//! Reference: reproducible-builds.org on SOURCE_DATE_EPOCH.

use std::collections::BTreeSet;
use std::env;
use std::fs::{self, OpenOptions, Permissions};
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use nix::sys::stat::{Mode, umask};

use crate::bare::Folder;
use crate::cargo::{self, Metadata, cargo, root};
use crate::{dist, setup};

/// Builds and packs the binary. Returns the folder with the packages.
pub(crate) fn run() -> Result<PathBuf> {
    setup::ensure(setup::BUILD)?;
    let target = Metadata::read()?.target_directory()?;
    let out = target.join("packages");
    let binary = dist::build()?.0;
    cargo::run(&mut packing(root(), &binary, &out)?)?;
    for name in names(&out)? {
        println!("{}", out.join(name).display());
    }
    Ok(out)
}

/// Builds and packs the last commit twice, and compares the results. To detect dependencies on the
/// environment, the two folders have names of different length, and the second build has a
/// different umask, time zone and locale.
#[expect(
    clippy::disallowed_methods,
    reason = "the umask of the builds is under test, and no other thread runs"
)]
pub(crate) fn run_twice() -> Result<()> {
    setup::ensure(&[setup::BUILD, setup::BARE].concat())?;
    let folder = Folder::new("packages")?;
    let first = build_clone(&folder.path().join("one"), &[])?;
    let before = umask(Mode::from_bits_truncate(0o077));
    let other = [("TZ", "Pacific/Chatham"), ("LC_ALL", "C")];
    let second = build_clone(&folder.path().join("another/of-a-longer-name"), &other);
    umask(before);
    let count = compare(&first, &second?)?;
    println!("two builds in two folders: {count} files, identical");
    print!("{}", fs::read_to_string(first.join("SHA256SUMS"))?);
    Ok(())
}

/// Clones the last commit into a folder, and builds and packs it there. Returns the folder with the
/// packages.
fn build_clone(folder: &Path, variables: &[(&str, &str)]) -> Result<PathBuf> {
    let checkout = folder.join("checkout");
    let mut clone = Command::new("git");
    cargo::run(clone.args(["clone", "--quiet", "--no-hardlinks"]).arg(root()).arg(&checkout))?;
    let (binary, _) = dist::build_in(&checkout, &checkout.join("target"), variables)?;
    let out = folder.join("packages");
    cargo::run(packing(&checkout, &binary, &out)?.envs(variables.iter().copied()))?;
    Ok(out)
}

/// Packs the binary in `packages` again as an older version: with a different version number, and
/// with one byte appended to the program.
pub(crate) fn pack_before(packages: &Path, out: &Path) -> Result<()> {
    let name = names(packages)?.into_iter().find(|name| name.ends_with("-linux"));
    let program = out.with_extension("program");
    fs::copy(packages.join(name.context("the folder has no binary")?), &program)?;
    OpenOptions::new().append(true).open(&program)?.write_all(b"\n")?;
    // The packing program runs the binary to generate its manual pages, so the copy is made
    // executable. The original file in `packages` is not executable.
    fs::set_permissions(&program, Permissions::from_mode(0o755))?;
    cargo::run(packing(root(), &program, out)?.args(["--version", "0.0.1"]))
}

/// Returns the command that packs `binary`. The packing program is built from this checkout. If the
/// folder `out` exists, it is emptied.
fn packing(checkout: &Path, binary: &Path, out: &Path) -> Result<Command> {
    if out.exists() {
        fs::remove_dir_all(out).with_context(|| format!("cannot remove {}", out.display()))?;
    }
    // The packing program is built in release mode, because it compresses the binary three times.
    let mut program = cargo(&["run", "--quiet", "--release", "--package", "sluicegate-packages", "--"]);
    program.arg("--checkout").arg(checkout).arg("--binary").arg(binary).arg("--out").arg(out);
    program.args(["--epoch", &epoch(checkout)?]);
    Ok(program)
}

/// Returns SOURCE_DATE_EPOCH if it is set, and otherwise the time of the last commit in seconds
/// since 1970.
fn epoch(checkout: &Path) -> Result<String> {
    if let Ok(epoch) = env::var("SOURCE_DATE_EPOCH") {
        return Ok(epoch);
    }
    let mut git = Command::new("git");
    let output = git.args(["log", "--max-count=1", "--format=%ct"]).current_dir(checkout).output()?;
    ensure!(output.status.success(), "git log failed ({}); set SOURCE_DATE_EPOCH", output.status);
    Ok(String::from_utf8(output.stdout)?.trim().to_owned())
}

/// Compares all files in two folders, and returns the number of files. If a file differs, the error
/// names the position of the first difference. The binary is compared first, because the content of
/// the other files depends on it.
fn compare(one: &Path, other: &Path) -> Result<usize> {
    let mut all: Vec<String> = names(one)?.union(&names(other)?).cloned().collect();
    all.sort_by_key(|name| !name.ends_with("-linux"));
    for name in &all {
        let read = |folder: &Path| {
            fs::read(folder.join(name)).with_context(|| format!("{name} exists in only one of the folders"))
        };
        let (a, b) = (read(one)?, read(other)?);
        if let Some(at) = first_difference(&a, &b) {
            bail!(
                "{name} differs between the builds at byte {at} (file sizes: {} and {} bytes)",
                a.len(),
                b.len()
            );
        }
    }
    ensure!(!all.is_empty(), "the builds produced no files");
    Ok(all.len())
}

fn first_difference(one: &[u8], other: &[u8]) -> Option<usize> {
    let differs = one.iter().zip(other).position(|(a, b)| a != b);
    differs.or_else(|| (one.len() != other.len()).then(|| one.len().min(other.len())))
}

fn names(folder: &Path) -> Result<BTreeSet<String>> {
    let entries = fs::read_dir(folder).with_context(|| format!("cannot read {}", folder.display()))?;
    entries.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned())).collect()
}

#[cfg(test)]
mod tests {
    use testbed::TempDir;

    use super::*;

    #[test]
    fn first_difference_is_named_and_the_binary_comes_first() {
        let dir = TempDir::new().unwrap();
        let folders = ["one", "other"].map(|name| dir.path().join(name));
        for folder in &folders {
            fs::create_dir(folder).unwrap();
            fs::write(folder.join("SHA256SUMS"), "same").unwrap();
            fs::write(folder.join("sluicegate-1-x86_64-linux"), "same").unwrap();
        }
        let [one, other] = &folders;
        assert_eq!(compare(one, other).unwrap(), 2);
        fs::write(other.join("SHA256SUMS"), "samf").unwrap();
        fs::write(other.join("sluicegate-1-x86_64-linux"), "same, longer").unwrap();
        let error = compare(one, other).unwrap_err().to_string();
        assert_eq!(
            error,
            "sluicegate-1-x86_64-linux differs between the builds at byte 4 (file sizes: 4 and 12 bytes)"
        );
        fs::write(other.join("sluicegate-1-x86_64-linux"), "same").unwrap();
        assert_eq!(
            compare(one, other).unwrap_err().to_string(),
            "SHA256SUMS differs between the builds at byte 3 (file sizes: 4 and 4 bytes)"
        );
        fs::remove_file(other.join("SHA256SUMS")).unwrap();
        let error = compare(one, other).unwrap_err().to_string();
        assert_eq!(error, "SHA256SUMS exists in only one of the folders");
    }
}
