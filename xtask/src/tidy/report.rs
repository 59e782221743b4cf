//! Prints code metrics with their limits. Below the table, the report lists the places that exceed
//! a limit, in the form `file:line name value`.
//!
//! Tests are not measured. The report never fails. To enforce the house rules, run `tidy` without
//! `--report`.

use std::fmt::Write as _;
use std::path::Path;

use anyhow::Result;

use super::circles::{self, Names};
use super::probe;
use super::results;
use super::rows;
use super::sizes::{self, Function};
use super::source::{self, Crate, Part};
use super::structs;

/// Prints the report for the checkout in `folder`.
pub(crate) fn run(folder: &Path) -> Result<()> {
    let product = source::read(folder, Part::Product)?;
    let tools = source::read(folder, Part::Tools)?;
    let functions: Vec<Function> = product.iter().chain(&tools).flat_map(sizes::functions).collect();
    let mut measures = crate_measures(&product);
    measures.push(rows::measure(&product.iter().collect::<Vec<_>>()));
    measures.push(largest_struct(&product));
    measures.extend(function_measures(&functions));
    measures.push(probe::measure(folder, &product)?);
    measures.push(results::measure(folder)?);
    print!("{}{}", table(&measures), details(&measures));
    print!("{}", by_crate(&product, &tools));
    Ok(())
}

/// A code metric, which is one line of the table.
pub(super) struct Measure {
    pub(super) what: &'static str,
    pub(super) now: usize,
    pub(super) bar: usize,
    /// The places that are counted or that exceed the limit, as `file:line name value`.
    pub(super) offenders: Vec<String>,
}

fn crate_measures(product: &[Crate]) -> Vec<Measure> {
    let mut sizes: Vec<_> = product.iter().map(|one| (one.lines(), one.name.clone())).collect();
    sizes.sort();
    let (largest, name) = sizes.last().cloned().unwrap_or_default();
    let circular: Vec<String> = product.iter().flat_map(circles::members).collect();
    vec![
        Measure {
            what: "lines of the largest crate, without tests",
            now: largest,
            bar: 9_000,
            offenders: vec![name],
        },
        Measure {
            what: "lines in total, without tests",
            now: product.iter().map(Crate::lines).sum(),
            bar: LINES_AT_START,
            offenders: Vec::new(),
        },
        Measure { what: "modules in a cycle", now: circular.len(), bar: 0, offenders: circular },
    ]
}

fn largest_struct(product: &[Crate]) -> Measure {
    let mut all: Vec<_> =
        product.iter().flat_map(|one| structs::with_methods(one, &Names::read(one))).collect();
    all.sort_by_key(|found| std::cmp::Reverse(found.fields));
    Measure {
        what: "fields of the largest struct that has methods",
        now: all.first().map_or(0, |largest| largest.fields),
        bar: MAX_FIELDS,
        offenders: all
            .iter()
            .take_while(|found| found.fields > 12)
            .map(|found| format!("{} {} {}", found.at, found.name, found.fields))
            .collect(),
    }
}

fn function_measures(functions: &[Function]) -> [Measure; 3] {
    let over = |value: fn(&Function) -> usize, most: usize| {
        let mut found: Vec<&Function> = functions.iter().filter(|function| value(function) > most).collect();
        found.sort_by_key(|function| {
            (function.at.split('/').take(2).collect::<Vec<_>>(), std::cmp::Reverse(value(function)))
        });
        found
            .iter()
            .map(|function| format!("{} {} {}", function.at, function.name, value(function)))
            .collect()
    };
    let measure = |what, offenders: Vec<String>, bar| Measure { what, now: offenders.len(), bar, offenders };
    let mut tuples = measure("parameters that are tuples", over(|function| function.tuples, 0), 0);
    tuples.now = functions.iter().map(|function| function.tuples).sum();
    [
        measure("functions over 35 lines", over(|function| function.lines, 35), 15),
        measure("functions over 5 parameters (with self)", over(|function| function.parameters, 5), 5),
        tuples,
    ]
}

fn table(measures: &[Measure]) -> String {
    let mut table = format!("{:<48} {:>7} {:>7}\n", "measure", "now", "bar");
    for Measure { what, now, bar, .. } in measures {
        let verdict = if now > bar { "over" } else { "" };
        let _ = writeln!(table, "{what:<48} {now:>7} {bar:>7} {verdict}");
    }
    table
}

fn details(measures: &[Measure]) -> String {
    let mut text = String::new();
    for measure in measures.iter().filter(|measure| !measure.offenders.is_empty()) {
        let _ = writeln!(text, "\n# {}", measure.what);
        measure.offenders.iter().for_each(|line| text.extend([line, "\n"]));
    }
    text
}

fn by_crate(product: &[Crate], tools: &[Crate]) -> String {
    let mut text = String::from("\n# lines without tests, by crate\n");
    for one in product.iter().chain(tools) {
        let _ = writeln!(text, "{:<24} {:>6}", one.name, one.lines());
    }
    text
}

/// The total number of lines before the restructuring of the code, for comparison.
const LINES_AT_START: usize = 58_389;
const MAX_FIELDS: usize = 15;
