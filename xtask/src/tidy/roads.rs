//! Checks the processing paths in `crates/README.md`. Each path lists functions in the order in
//! which they are called.
//!
//! A path is a section with one of the known titles. The steps of a path have the form ``1.
//! `crates/a/src/b.rs` `Type::function` ``. The function can be a method in this file, a free
//! function (without `Type::`), or a C function. A step that names a missing file or function is a
//! finding. Text between the steps is not checked.

use std::fs;
use std::path::Path;

use syn::{ImplItem, Item, TraitItem, Type};

use super::MAP;

/// A step of a processing path.
struct Step<'a> {
    number: usize,
    file: &'a str,
    function: &'a str,
}

/// Compares the processing paths in `map` with the code of a checkout.
pub(super) fn check(checkout: &Path, map: &str) -> Vec<String> {
    let mut found = Vec::new();
    for name in ROADS {
        let title = format!("## {name}\n");
        let Some(section) = map.split(&title).nth(1).and_then(|rest| rest.split("\n## ").next()) else {
            found.push(format!("{MAP}:1: section {name:?} is missing"));
            continue;
        };
        let steps: Vec<_> = section.lines().filter(|line| is_numbered(line)).collect();
        if !(1..=MAX_STEPS).contains(&steps.len()) {
            found.push(format!(
                "{MAP}:1: {name}: {} steps; a section must have 1 to {MAX_STEPS}",
                steps.len()
            ));
        }
        let wrong = steps.iter().enumerate().filter_map(|(place, line)| missing(checkout, place + 1, line));
        found.extend(wrong.map(|what| format!("{MAP}:1: {name}: {what}")));
    }
    found
}

fn is_numbered(line: &str) -> bool {
    line.split_once(". ").is_some_and(|(number, _)| number.parse::<usize>().is_ok())
}

/// Returns the reason why a line is not a valid step, or `None` if it is valid.
fn missing(checkout: &Path, place: usize, line: &str) -> Option<String> {
    let Some(step) = step(line).filter(|step| step.number == place) else {
        return Some(format!("step {place} does not begin with {place}. `file` `function`"));
    };
    let Ok(text) = fs::read_to_string(checkout.join(step.file)) else {
        return Some(format!("step {place}: there is no file {}", step.file));
    };
    let is_there = if step.file.ends_with(".rs") {
        functions(&text).any(|name| name == step.function)
    } else {
        is_in_c(&text, step.function)
    };
    (!is_there).then(|| format!("step {place}: {} has no function {}", step.file, step.function))
}

fn step(line: &str) -> Option<Step<'_>> {
    let (number, rest) = line.split_once(". `")?;
    let (file, rest) = rest.split_once("` `")?;
    let (function, _) = rest.split_once('`')?;
    Some(Step { number: number.parse().ok()?, file, function })
}

/// Returns the names of all functions in a Rust file. Names of methods include their type.
fn functions(text: &str) -> impl Iterator<Item = String> {
    let items = syn::parse_file(text).map(|file| file.items).unwrap_or_default();
    items.into_iter().flat_map(|item| match item {
        Item::Fn(function) => vec![function.sig.ident.to_string()],
        Item::Impl(block) => {
            let owner = owner(&block.self_ty);
            let functions = block.items.iter().filter_map(|item| match item {
                ImplItem::Fn(function) => Some(&function.sig.ident),
                _ => None,
            });
            functions.map(|name| format!("{owner}::{name}")).collect()
        }
        Item::Trait(block) => {
            let functions = block.items.iter().filter_map(|item| match item {
                TraitItem::Fn(function) => Some(&function.sig.ident),
                _ => None,
            });
            functions.map(|name| format!("{}::{name}", block.ident)).collect()
        }
        _ => Vec::new(),
    })
}

fn owner(kind: &Type) -> String {
    let Type::Path(path) = kind else { return String::new() };
    path.path.segments.last().map(|last| last.ident.to_string()).unwrap_or_default()
}

/// Returns `true` if the C code contains a line that begins the definition of the function.
fn is_in_c(text: &str, function: &str) -> bool {
    let call = format!(" {function}(");
    let top = text.lines().filter(|line| !line.starts_with(char::is_whitespace) && !line.starts_with("//"));
    top.into_iter().any(|line| line.contains(&call) && !line.ends_with(';'))
}

const ROADS: [&str; 5] = [
    "The path of a packet",
    "The path of a health state",
    "The path of a reload",
    "The path of a route",
    "The path of an upgrade",
];
const MAX_STEPS: usize = 8;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cargo::root;

    #[test]
    fn every_step_of_the_map_is_in_the_code() {
        let map = fs::read_to_string(root().join(MAP)).unwrap();
        assert_eq!(check(root(), &map), [""; 0]);
    }

    #[test]
    fn step_missing_in_the_code_is_a_finding() {
        let road = |name: &str, steps: &str| format!("# Map\n\n## {name}\n\nText.\n\n{steps}\nMore.\n");
        let file = "crates/datapath/bpf/steer.bpf.c";
        let rust = "xtask/src/tidy/roads.rs";
        for (steps, word) in [
            (format!("1. `{file}` `steer`. Text.\n2. `{rust}` `check`\n"), ""),
            (format!("1. `{file}` `steers`\n"), "no function steers"),
            (format!("1. `{rust}` `Step::check`\n"), "no function Step::check"),
            ("1. `crates/no.rs` `check`\n".into(), "there is no file crates/no.rs"),
            (format!("2. `{rust}` `check`\n"), "step 1 does not begin"),
            ("1. The check (`check`)\n".into(), "step 1 does not begin"),
            ("None.\n".into(), "0 steps"),
            ((1..=9).map(|n| format!("{n}. `{rust}` `check`\n")).collect(), "9 steps"),
        ] {
            let map: String = ROADS.iter().map(|name| road(name, &steps)).collect();
            let found = check(root(), &map);
            let wanted = if word.is_empty() { 0 } else { ROADS.len() };
            assert!(found.len() == wanted && found.iter().all(|found| found.contains(word)), "{found:?}");
        }
        assert_eq!(check(root(), "# Map").len(), ROADS.len());
    }
}
