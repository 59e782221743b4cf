//! `packages`: what is handed on of a static binary that has been built: a .deb, an .rpm, an OCI image, a bill of materials, and
//! the checksums of all of them.
//!
//! In: a checkout and its binary. Out: files in a folder. `cargo xtask packages` runs it.
//! Not here: building the binary, comparing two builds, trying the packages (`xtask`).
//! Invariant: the same binary and checkout give the same bytes: entries are sorted, owners and modes are said, and times are the
//! commit's.
#![forbid(unsafe_code)]

mod archive;
mod contents;
mod deb;
mod licences;
mod linked;
mod oci;
mod rpm;
mod sbom;
#[cfg(test)]
mod scene;

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use clap::Parser;
use sha2::{Digest, Sha256};

use crate::linked::Linked;

/// What is to be packed.
#[derive(Debug, Parser)]
#[command(name = "packages")]
struct Arguments {
    /// Whose documents, units and dependencies
    #[arg(long)]
    checkout: PathBuf,
    /// The static binary, which is run for its manual pages and completions
    #[arg(long)]
    binary: PathBuf,
    /// When all of it was made: seconds since 1970
    #[arg(long)]
    epoch: u32,
    /// Where the packages go
    #[arg(long)]
    out: PathBuf,
    /// Of the packages, in place of the checkout's
    #[arg(long)]
    version: Option<String>,
}

/// What every package says of itself.
#[derive(Clone, Debug)]
struct Release {
    version: String,
    /// Seconds since 1970.
    epoch: u32,
}

fn main() -> Result<()> {
    let Arguments { checkout, binary, epoch, out, version } = Arguments::parse();
    let linked = Linked::read(&checkout)?;
    let release = Release { version: version.unwrap_or_else(|| linked.version().to_owned()), epoch };
    let entries = contents::gather(&checkout, &binary, &linked)?;
    let version = &release.version;
    let files = [
        (format!("sluicegate-{version}-x86_64-linux"), fs::read(&binary)?),
        (format!("sluicegate_{version}_amd64.deb"), deb::package(&release, &entries)?),
        (format!("sluicegate-{version}-{}.x86_64.rpm", rpm::RELEASE), rpm::package(&release, &entries)?),
        (format!("sluicegate-{version}-oci.tar"), oci::image(&release, &entries)?),
        (format!("sluicegate-{version}.cdx.json"), sbom::bill(&release, &linked)?),
    ];
    fs::create_dir_all(&out).with_context(|| format!("can't make {}", out.display()))?;
    let mut sums = String::new();
    for (name, bytes) in &files {
        write(&out.join(name), bytes)?;
        sums += &format!("{}  {name}\n", sha256(bytes));
    }
    write(&out.join("SHA256SUMS"), sums.as_bytes())
}

fn write(path: &Path, bytes: &[u8]) -> Result<()> {
    fs::write(path, bytes).with_context(|| format!("can't write {}", path.display()))
}

/// In hex digits.
fn sha256(bytes: &[u8]) -> String {
    hex(&Sha256::digest(bytes))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
