//! The book: `docs/` by mdBook, and `config/` beside it, to which its pages link.
//!
//! Out: `book/` in the build folder. A warning of mdBook's is a failure.
//! Not here: links, and pages that the summary leaves out (`tidy::pages`), at which mdBook does not look.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::cargo::{self, Metadata, cargo, root};

/// Builds the book, and mdBook before it where it is missing; prints where the first page is.
pub(crate) fn run() -> Result<()> {
    if mdbook().is_none() {
        eprintln!("no mdbook: building it, once (cargo {})", INSTALL.join(" "));
        let tools = Metadata::read()?.target_directory()?.join("tools");
        cargo::run(cargo(&INSTALL).arg("--root").arg(tools))?;
    }
    let mdbook = mdbook().context("mdbook is still missing")?;
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
    fs::create_dir_all(book.join("config"))?;
    for file in fs::read_dir(root().join("config"))? {
        let file = file?;
        fs::copy(file.path(), book.join("config").join(file.file_name()))?;
    }
    Ok(book)
}

fn is_quiet(log: &str) -> bool {
    log.lines().all(|line| !["WARN", "ERROR"].iter().any(|level| line.trim_start().starts_with(level)))
}

/// Where it is: in the build folder, or installed.
fn mdbook() -> Option<PathBuf> {
    let own = Metadata::read().ok()?.target_directory().ok()?.join("tools/bin/mdbook");
    [own, "mdbook".into()]
        .into_iter()
        .find(|path| Command::new(path).arg("--version").output().is_ok_and(|output| output.status.success()))
}

/// Without optimisations and what serves pages: optimised it took 13 minutes on two busy processors, and it runs for a tenth of a second.
const INSTALL: [&str; 7] =
    ["install", "mdbook", "--version", "0.5.4", "--locked", "--no-default-features", "--debug"];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_with_a_warning_is_not_quiet() {
        assert!(is_quiet(" INFO Book building has started\n INFO HTML book written to `book`\n"));
        assert!(!is_quiet(" INFO Running the html backend\n WARN unclosed HTML tag `<b>`\n"));
        assert!(!is_quiet("ERROR Error updating\n"));
    }
}
