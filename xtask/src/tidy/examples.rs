//! Whether each library crate shows its use: an example in the head of its `lib.rs`, and a program under `examples/` that is read in
//! a minute.
//!
//! In: a folder of crates. Out: a finding for each that lacks one, and for each program that is too long.
//! Not here: whether they compile and say what they should (`cargo build --all-targets`, `cargo test --doc`).

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

/// `crates` is the folder whose folders are the crates.
pub(super) fn check(crates: &Path) -> Result<Vec<String>> {
    let mut findings = Vec::new();
    for folder in entries(crates)? {
        let Ok(head) = fs::read_to_string(folder.join("src/lib.rs")) else { continue };
        let name = folder.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if !head.lines().any(|line| line == "//! ```") {
            findings.push(format!("{CRATES}/{name}/src/lib.rs: its head has no example"));
        }
        let programs = entries(&folder.join("examples")).unwrap_or_default();
        if programs.is_empty() {
            findings.push(format!("{CRATES}/{name}: no program under examples/"));
        }
        for program in programs {
            let lines = fs::read_to_string(&program)?.lines().count();
            if lines >= MOST_LINES {
                let file = program.file_name().unwrap_or_default().to_string_lossy();
                findings.push(format!(
                    "{CRATES}/{name}/examples/{file}: {lines} lines, where an example has fewer than {MOST_LINES}"
                ));
            }
        }
    }
    Ok(findings)
}

fn entries(folder: &Path) -> Result<Vec<PathBuf>> {
    let entries = fs::read_dir(folder).with_context(|| format!("can't read {}", folder.display()))?;
    let mut found = entries.map(|entry| Ok(entry?.path())).collect::<Result<Vec<_>>>()?;
    found.sort();
    Ok(found)
}

pub(super) const CRATES: &str = "crates";
const MOST_LINES: usize = 80;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_library_shows_its_use_in_few_lines() {
        let folder = std::env::temp_dir().join(format!("sluicegate-tidy-examples-{}", std::process::id()));
        let file = |name: &str, text: &str| {
            let path = folder.join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        file("program/src/main.rs", "");
        file("good/src/lib.rs", "//! What it is for.\n//! ```\n//! ```\n");
        file("good/examples/short.rs", &"\n".repeat(79));
        let clean = check(&folder).unwrap();
        file("bare/src/lib.rs", "//! What it is for.\n");
        file("long/src/lib.rs", "//! ```\n//! ```\n");
        file("long/examples/long.rs", &"\n".repeat(80));
        let findings = check(&folder).unwrap();
        fs::remove_dir_all(&folder).unwrap();
        assert_eq!(clean, Vec::<String>::new());
        assert_eq!(
            findings,
            [
                "crates/bare/src/lib.rs: its head has no example",
                "crates/bare: no program under examples/",
                "crates/long/examples/long.rs: 80 lines, where an example has fewer than 80",
            ]
        );
    }
}
