//! Builds the documentation book: mdBook renders `docs/` into `book/` in the cargo target
//! directory. The folders `config/` and `benches/results` are copied there too, because pages link
//! to them.
//!
//! A warning from mdBook is an error. mdBook does not detect broken links or pages that are missing
//! from the summary, so `tidy::pages` checks for them.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::cargo::{self, Metadata, cargo, root};

/// Builds the book and prints the path of its first page. If mdBook is missing, it is installed
/// first.
pub(crate) fn run() -> Result<()> {
    if mdbook().is_none() {
        eprintln!("mdbook is not installed; building it once (cargo {})", INSTALL.join(" "));
        let tools = Metadata::read()?.target_directory()?.join("tools");
        cargo::run(cargo(&INSTALL).arg("--root").arg(tools))?;
    }
    let mdbook = mdbook().context("cannot find mdbook after its installation")?;
    println!("{}", build(&mdbook)?.join("docs/index.html").display());
    Ok(())
}

fn build(mdbook: &Path) -> Result<PathBuf> {
    let book = Metadata::read()?.target_directory()?.join("book");
    let output = Command::new(mdbook)
        .arg("build")
        .arg(root().join("docs"))
        .arg("--dest-dir")
        .arg(book.join("docs"))
        .output()?;
    let log = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success() && is_quiet(&log), "mdbook build docs: {}\n{log}", output.status);
    for folder in ["config", "benches/results"] {
        copy(&root().join(folder), &book.join(folder))?;
    }
    Ok(book)
}

/// Copies a folder recursively.
fn copy(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let target = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            copy(&entry.path(), &target)?;
        } else {
            fs::copy(entry.path(), target)?;
        }
    }
    Ok(())
}

fn is_quiet(log: &str) -> bool {
    log.lines().all(|line| !["WARN", "ERROR"].iter().any(|level| line.trim_start().starts_with(level)))
}

/// Finds mdBook in the cargo target directory or in `PATH`.
fn mdbook() -> Option<PathBuf> {
    let own = Metadata::read().ok()?.target_directory().ok()?.join("tools/bin/mdbook");
    [own, "mdbook".into()]
        .into_iter()
        .find(|path| Command::new(path).arg("--version").output().is_ok_and(|output| output.status.success()))
}

/// The cargo arguments that install mdBook without its web server. The build is a debug build,
/// because an optimized build took 13 minutes on two busy processors, and mdBook runs for only 0.1
/// s.
const INSTALL: [&str; 7] =
    ["install", "mdbook", "--version", "0.5.4", "--locked", "--no-default-features", "--debug"];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn log_with_a_warning_is_not_quiet() {
        assert!(is_quiet(" INFO Book building has started\n INFO HTML book written to `book`\n"));
        assert!(!is_quiet(" INFO Running the html backend\n WARN unclosed HTML tag `<b>`\n"));
        assert!(!is_quiet("ERROR Error updating\n"));
    }
}
