//! `packages` packs a static binary as a .deb, an .rpm and an OCI image. This program also writes
//! the systemd units, a bill of materials and the checksums of all files.
//!
//! `cargo xtask packages` builds the binary and then runs this program. The packages are
//! reproducible: the same binary and checkout produce the same bytes. Archive entries are therefore
//! sorted, their owners and modes are fixed, and all times are the time of the commit.
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

/// Pack a static binary as .deb, .rpm and OCI image
#[derive(Debug, Parser)]
#[command(name = "packages")]
struct Arguments {
    /// Read documents, units and dependencies from this checkout
    #[arg(long)]
    checkout: PathBuf,
    /// Pack this static binary; it is also run to generate its manual pages and completions
    #[arg(long)]
    binary: PathBuf,
    /// Set the modification time of all packed files, in seconds since 1970
    #[arg(long)]
    epoch: u32,
    /// Write the packages to this folder
    #[arg(long)]
    out: PathBuf,
    /// Set the version of the packages [default: version of the checkout]
    #[arg(long)]
    version: Option<String>,
}

/// The files that systemd needs. Installations of the single binary need them as separate files.
const UNITS: [&str; 5] = [
    "sluicegate.service",
    "sluicegate-decap.service",
    "sluicegate-checks.service",
    "sluicegate-checks.socket",
    "sluicegate.sysusers",
];

/// The properties that all package formats share.
#[derive(Clone, Debug)]
struct Release {
    version: String,
    /// The modification time of all packed files, in seconds since 1970.
    epoch: u32,
}

fn main() -> Result<()> {
    let Arguments { checkout, binary, epoch, out, version } = Arguments::parse();
    let linked = Linked::read(&checkout)?;
    let release = Release { version: version.unwrap_or_else(|| linked.version().to_owned()), epoch };
    let entries = contents::gather(&checkout, &binary, &linked)?;
    let version = &release.version;
    let mut files = vec![
        (format!("sluicegate-{version}-x86_64-linux"), fs::read(&binary)?),
        (format!("sluicegate_{version}_amd64.deb"), deb::package(&release, &entries)?),
        (format!("sluicegate-{version}-{}.x86_64.rpm", rpm::RELEASE), rpm::package(&release, &entries)?),
        (format!("sluicegate-{version}-oci.tar"), oci::image(&release, &entries)?),
        (format!("sluicegate-{version}.cdx.json"), sbom::bill(&release, &linked)?),
    ];
    for name in UNITS {
        let path = checkout.join("config").join(name);
        let bytes = fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
        files.push((name.to_owned(), bytes));
    }
    fs::create_dir_all(&out).with_context(|| format!("cannot create {}", out.display()))?;
    let mut sums = String::new();
    for (name, bytes) in &files {
        write(&out.join(name), bytes)?;
        sums += &format!("{}  {name}\n", sha256(bytes));
    }
    write(&out.join("SHA256SUMS"), sums.as_bytes())
}

fn write(path: &Path, bytes: &[u8]) -> Result<()> {
    fs::write(path, bytes).with_context(|| format!("cannot write {}", path.display()))
}

/// Returns the SHA-256 digest in hexadecimal.
fn sha256(bytes: &[u8]) -> String {
    hex(&Sha256::digest(bytes))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
