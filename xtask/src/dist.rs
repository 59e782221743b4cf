//! Builds the static binary and checks that it is linked statically.
//!
//! A dynamically linked binary names an interpreter (`PT_INTERP`), which is the dynamic linker. The
//! check rejects a binary with an interpreter.
//!
//! Reference: System V ABI, ELF-64 object file format.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::cargo::{self, Metadata, cargo, root};
use crate::setup;

/// Builds the binary, checks it, and prints its path and size.
pub(crate) fn run() -> Result<()> {
    setup::ensure(setup::BUILD)?;
    let (path, size_bytes) = build()?;
    println!("{}: statically linked, {size_bytes} bytes", path.display());
    Ok(())
}

/// Builds and checks the binary. Returns its path and its size in bytes.
pub(crate) fn build() -> Result<(PathBuf, usize)> {
    build_in(root(), &Metadata::read()?.target_directory()?, &[])
}

/// Builds the binary like [`build`], but from a different checkout, into the given target directory
/// and with additional environment variables.
pub(crate) fn build_in(
    checkout: &Path,
    target: &Path,
    variables: &[(&str, &str)],
) -> Result<(PathBuf, usize)> {
    let args = ["build", "--locked", "--profile", "dist", "--package", "sluicegate", "--target", TARGET];
    let mut build = cargo(&args);
    build.arg("--target-dir").arg(target).current_dir(checkout).envs(variables.iter().copied());
    build.env_remove("RUSTFLAGS").env("CARGO_ENCODED_RUSTFLAGS", flags(checkout, target).join("\x1f"));
    cargo::run(&mut build)?;
    let path = target.join(TARGET).join("dist/sluicegate");
    let bytes = fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
    let types =
        segment_types(&bytes).with_context(|| format!("{} is not a 64-bit ELF file", path.display()))?;
    ensure!(!types.contains(&PT_INTERP), "{} is linked dynamically", path.display());
    Ok((path, bytes.len()))
}

/// Returns the flags of the Rust compiler, which select static linking and remap path prefixes, so
/// builds in two folders produce the same bytes. If several prefixes match, the compiler uses the
/// last prefix.
fn flags(checkout: &Path, target: &Path) -> Vec<String> {
    let home = env::var_os("CARGO_HOME").map(PathBuf::from);
    let home = home.or_else(|| Some(PathBuf::from(env::var_os("HOME")?).join(".cargo"))).unwrap_or_default();
    let named = [(checkout, "/sluicegate"), (target, "/target"), (&home, "/cargo")];
    let named = named.into_iter().filter(|(folder, _)| !folder.as_os_str().is_empty());
    let remapped = named.map(|(folder, name)| format!("--remap-path-prefix={}={name}", folder.display()));
    STATIC.split(' ').map(str::to_owned).chain(remapped).collect()
}

/// Returns a cargo command that links statically. The command names the target explicitly, because
/// the flag for static linking would otherwise also apply to build scripts and procedural macros,
/// which cannot be static.
pub(crate) fn cargo_static(args: &[&str]) -> Command {
    let mut command = cargo(args);
    command.args(["--target", TARGET]);
    for flags in ["RUSTFLAGS", "RUSTDOCFLAGS"] {
        command.env(flags, STATIC);
    }
    command
}

/// Returns the types of all program headers in a little-endian ELF-64 file. Returns `None` if the
/// file has a different format or is truncated.
fn segment_types(bytes: &[u8]) -> Option<Vec<u32>> {
    bytes.starts_with(b"\x7fELF\x02\x01").then_some(())?;
    let half = |at: usize| Some(usize::from(u16::from_le_bytes(bytes.get(at..at + 2)?.try_into().ok()?)));
    let table = usize::try_from(u64::from_le_bytes(bytes.get(32..40)?.try_into().ok()?)).ok()?;
    let (size, count) = (half(54)?, half(56)?);
    let segment = |n: usize| {
        let at = table.checked_add(n * size)?;
        Some(u32::from_le_bytes(bytes.get(at..at.checked_add(4)?)?.try_into().ok()?))
    };
    (0..count).map(segment).collect()
}

pub(crate) const TARGET: &str = "x86_64-unknown-linux-gnu";
const STATIC: &str = "-C target-feature=+crt-static";
const PT_INTERP: u32 = 3;

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns an ELF header followed by two program headers with these types.
    fn elf(types: [u32; 2]) -> Vec<u8> {
        let mut bytes = vec![0; 64 + 2 * 56];
        bytes[..6].copy_from_slice(b"\x7fELF\x02\x01");
        bytes[32] = 64;
        (bytes[54], bytes[56]) = (56, 2);
        for (n, kind) in types.into_iter().enumerate() {
            bytes[64 + 56 * n..][..4].copy_from_slice(&kind.to_le_bytes());
        }
        bytes
    }

    #[test]
    fn segment_types_are_read_from_the_program_headers() {
        assert_eq!(segment_types(&elf([6, PT_INTERP])), Some(vec![6, 3]));
        assert_eq!(segment_types(&elf([1, 0x6474_e551])), Some(vec![1, 0x6474_e551]));
    }

    #[test]
    fn flags_name_no_folder_of_this_machine() {
        let flags = flags(Path::new("/x/checkout"), Path::new("/x/checkout/target"));
        assert_eq!(flags[..2].join(" "), STATIC);
        assert_eq!(
            flags[2..4].join(" "),
            "--remap-path-prefix=/x/checkout=/sluicegate --remap-path-prefix=/x/checkout/target=/target"
        );
        assert!(flags[4].ends_with("=/cargo"), "{flags:?}");
    }

    #[test]
    fn truncated_or_foreign_file_is_not_elf() {
        assert_eq!(segment_types(&elf([1, 1])[..64 + 56]), None);
        assert_eq!(segment_types(b"#!/bin/sh"), None);
        let mut far = elf([1, 1]);
        far[32..40].fill(0xff);
        assert_eq!(segment_types(&far), None);
    }

    #[test]
    fn this_test_is_linked_as_its_target_requires() {
        let types = segment_types(&fs::read(std::env::current_exe().unwrap()).unwrap()).unwrap();
        assert_eq!(types.contains(&PT_INTERP), cfg!(not(target_feature = "crt-static")));
    }
}
