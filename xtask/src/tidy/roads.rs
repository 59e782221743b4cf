//! The roads of the map: lists of functions, in the order in which something passes them.
//!
//! In: the map's text and the files that it names. Out: a finding for each step that is not in the code.
//! A road is a section `## The road of a …`, whose steps open as ``1. `crates/a/src/b.rs` `Type::function` ``: a function of an
//! implementation or trait of that file, a free one without `Type::`, or one of C. Text between the steps is free.

use std::fs;
use std::path::Path;

use syn::{ImplItem, Item, TraitItem, Type};

use super::MAP;

/// A step of a road.
struct Step<'a> {
    number: usize,
    file: &'a str,
    function: &'a str,
}

/// Holds the roads of `map` against the code of a checkout.
pub(super) fn check(checkout: &Path, map: &str) -> Vec<String> {
    let mut found = Vec::new();
    for name in ROADS {
        let title = format!("## {name}\n");
        let Some(section) = map.split(&title).nth(1).and_then(|rest| rest.split("\n## ").next()) else {
            found.push(format!("{MAP}:1: no section {name:?}"));
            continue;
        };
        let steps: Vec<_> = section.lines().filter(|line| is_numbered(line)).collect();
        if !(1..=MAX_STEPS).contains(&steps.len()) {
            found.push(format!("{MAP}:1: {name}: {} steps, 1 to {MAX_STEPS} are allowed", steps.len()));
        }
        let wrong = steps.iter().enumerate().filter_map(|(place, line)| missing(checkout, place + 1, line));
        found.extend(wrong.map(|what| format!("{MAP}:1: {name}: {what}")));
    }
    found
}

fn is_numbered(line: &str) -> bool {
    line.split_once(". ").is_some_and(|(number, _)| number.parse::<usize>().is_ok())
}

/// Why a line is no step, or its function is not where it says.
fn missing(checkout: &Path, place: usize, line: &str) -> Option<String> {
    let Some(step) = step(line).filter(|step| step.number == place) else {
        return Some(format!("step {place} does not open as {place}. `file` `function`"));
    };
    let Ok(text) = fs::read_to_string(checkout.join(step.file)) else {
        return Some(format!("step {place}: no file {}", step.file));
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

/// Names of all functions of a Rust file, with their types.
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

/// Whether a line of C begins the definition of a function.
fn is_in_c(text: &str, function: &str) -> bool {
    let call = format!(" {function}(");
    let top = text.lines().filter(|line| !line.starts_with(char::is_whitespace) && !line.starts_with("//"));
    top.into_iter().any(|line| line.contains(&call) && !line.ends_with(';'))
}

const ROADS: [&str; 5] = [
    "The road of a packet",
    "The road of a verdict",
    "The road of a reload",
    "The road of a route",
    "The road of an upgrade",
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
    fn a_step_that_the_code_lacks_is_a_finding() {
        let road = |name: &str, steps: &str| format!("# Map\n\n## {name}\n\nText.\n\n{steps}\nMore.\n");
        let file = "crates/datapath/bpf/steer.bpf.c";
        let rust = "xtask/src/tidy/roads.rs";
        for (steps, word) in [
            (format!("1. `{file}` `steer`. Text.\n2. `{rust}` `check`\n"), ""),
            (format!("1. `{file}` `steers`\n"), "no function steers"),
            (format!("1. `{rust}` `Step::check`\n"), "no function Step::check"),
            ("1. `crates/no.rs` `check`\n".into(), "no file crates/no.rs"),
            (format!("2. `{rust}` `check`\n"), "step 1 does not open"),
            ("1. The check (`check`)\n".into(), "step 1 does not open"),
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
