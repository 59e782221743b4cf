//! Checks that each library crate has an example in the header of `lib.rs`, and a short program in
//! its folder `examples/`.
//!
//! The commands `cargo build --all-targets` and `cargo test --doc` check that the examples compile
//! and work.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

/// Checks all crates in the folder `crates`.
pub(super) fn check(crates: &Path) -> Result<Vec<String>> {
    let mut findings = Vec::new();
    for folder in entries(crates)? {
        let Ok(head) = fs::read_to_string(folder.join("src/lib.rs")) else { continue };
        let name = folder.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if !head.lines().any(|line| line == "//! ```") {
            findings.push(format!("{CRATES}/{name}/src/lib.rs: the header has no example"));
        }
        let programs = entries(&folder.join("examples")).unwrap_or_default();
        if programs.is_empty() {
            findings.push(format!("{CRATES}/{name}: the crate has no program in examples/"));
        }
        for program in programs {
            let lines = fs::read_to_string(&program)?.lines().count();
            if lines >= MOST_LINES {
                let file = program.file_name().unwrap_or_default().to_string_lossy();
                findings.push(format!(
                    "{CRATES}/{name}/examples/{file}: {lines} lines; an example must have fewer than {MOST_LINES}"
                ));
            }
        }
    }
    Ok(findings)
}

fn entries(folder: &Path) -> Result<Vec<PathBuf>> {
    let entries = fs::read_dir(folder).with_context(|| format!("cannot read {}", folder.display()))?;
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
    fn each_library_needs_a_short_example() {
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
                "crates/bare/src/lib.rs: the header has no example",
                "crates/bare: the crate has no program in examples/",
                "crates/long/examples/long.rs: 80 lines; an example must have fewer than 80",
            ]
        );
    }
}
