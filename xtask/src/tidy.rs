//! Checks the house rules: rules for this repository that the compiler does not check.
//!
//! The task prints all findings in the form `file:line: what`. With `--report`, the task instead
//! prints a table of code metrics with their limits.

mod circles;
mod commands;
mod crates;
mod edges;
mod examples;
mod log_fields;
mod log_lines;
mod pages;
mod probe;
mod promises;
mod report;
mod results;
mod roads;
mod rows;
mod sizes;
mod source;
mod structs;
mod text;
mod words;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Result, bail};

use crate::cargo::{self, Metadata, root};

use self::source::Part;

pub(crate) use self::report::run as report;
pub(crate) use self::results::{COMMIT, MEASURES, RESULTS};

/// Runs all checks on the checkout.
pub(crate) fn run() -> Result<()> {
    let mut findings = in_files()?;
    findings.extend(in_map()?);
    findings.extend(of_others()?);
    findings.extend(examples::check(&root().join(examples::CRATES))?);
    findings.extend(source::read(root(), Part::Product)?.iter().flat_map(circles::members));
    for finding in &findings {
        eprintln!("{finding}");
    }
    if !findings.is_empty() {
        bail!("{} violations of the house rules", findings.len());
    }
    Ok(())
}

/// Checks each file, the links between all documentation pages, and the generated log references.
fn in_files() -> Result<Vec<String>> {
    let mut findings = Vec::new();
    let mut documents = pages::Pages::new();
    let mut lines = log_lines::Lines::new();
    let mut fields = log_fields::Fields::new();
    let mut held = promises::Held::new();
    for path in files(root(), &KINDS)? {
        let name = path.strip_prefix(root()).unwrap_or(&path).to_string_lossy().into_owned();
        let Ok(text) = fs::read_to_string(&path) else { continue };
        findings.extend(text::check(&name, &text));
        findings.extend(words::check(&name, &text));
        findings.extend(log_lines::gather(&name, &text, &mut lines));
        findings.extend(log_fields::gather(&name, &text, &mut fields));
        findings.extend(promises::gather(&name, &text, &mut held));
        if name.ends_with(".md") {
            documents.insert(name, text);
        }
    }
    findings.extend(pages::check(root(), &documents));
    findings.extend(commands::check(root(), &documents));
    findings.extend(log_lines::check(&lines)?);
    findings.extend(log_fields::check(&root().join(log_fields::PAGE), &fields)?);
    let promises = documents.get(promises::PROMISES).map(String::as_str).unwrap_or_default();
    findings.extend(promises::check(promises, &held));
    Ok(findings)
}

/// Checks the map of crates in `crates/README.md` against the manifests and the code.
fn in_map() -> Result<Vec<String>> {
    // A missing map is treated as an empty map, which is a finding.
    let map = fs::read_to_string(root().join(MAP)).unwrap_or_default();
    let edges: BTreeMap<String, BTreeSet<String>> = Metadata::read()?
        .packages()
        .filter_map(|package| Some((package.room()?.into(), package.edges().map(Into::into).collect())))
        .collect();
    let mut findings = edges::check(&map, &edges);
    findings.extend(roads::check(root(), &map));
    Ok(findings)
}

/// Checks the sources, licenses and notices of third-party crates.
fn of_others() -> Result<Vec<String>> {
    let deny = fs::read_to_string(root().join(crates::DENY)).unwrap_or_default();
    let built = cargo::built()?;
    let mut findings = crates::check(&deny, &built)?;
    let notices = fs::read_to_string(root().join(crates::NOTICES)).unwrap_or_default();
    findings.extend(crates::noticed(&notices, &built));
    Ok(findings)
}

/// Returns all files in a folder whose extension is in `kinds`, including files in subfolders.
fn files(folder: &Path, kinds: &[&str]) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if path.is_dir() && name != "target" && name != ".git" {
            found.extend(files(&path, kinds)?);
        } else if path.extension().is_some_and(|kind| kinds.iter().any(|known| kind == *known)) {
            found.push(path);
        }
    }
    found.sort();
    Ok(found)
}

const MAP: &str = "crates/README.md";
const KINDS: [&str; 7] = ["rs", "c", "h", "md", "toml", "yml", "service"];
