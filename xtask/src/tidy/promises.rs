//! The promises: each row of `docs/promises.md` names the tests that hold it.
//!
//! In: the document and the files that it names. Out: a finding for each row without a figure or a test, and for each test that is gone.
//! A row is `| promise | figure | tests |`, a test ``` `file` `function` ```; several are parted by `; `.

use std::fs;
use std::path::Path;

/// Holds the table of `document` against the code of a checkout.
pub(super) fn check(checkout: &Path, document: &str) -> Vec<String> {
    let rows = (1..).zip(document.lines()).filter(|(_, line)| line.starts_with('|')).skip(HEAD);
    let mut rows = rows.peekable();
    if rows.peek().is_none() {
        return vec![format!("{PROMISES}:1: no row promises anything")];
    }
    rows.flat_map(|(number, row)| {
        wrong(checkout, row).into_iter().map(move |what| format!("{PROMISES}:{number}: {what}"))
    })
    .collect()
}

fn wrong(checkout: &Path, row: &str) -> Vec<String> {
    let cells: Vec<&str> = row.trim_matches('|').split('|').map(str::trim).collect();
    let [promise, figure, tests] = cells[..] else {
        return vec![format!("{} cells, 3 are wanted", cells.len())];
    };
    let mut found = Vec::new();
    if promise.is_empty() || figure.is_empty() {
        found.push("a promise without its sentence or its figure".to_owned());
    }
    found.extend(tests.split("; ").filter_map(|test| gone(checkout, test)));
    found
}

/// Why a test is not where it says.
fn gone(checkout: &Path, test: &str) -> Option<String> {
    let names = test.strip_prefix('`').and_then(|rest| rest.strip_suffix('`'));
    let Some((file, function)) = names.and_then(|names| names.split_once("` `")) else {
        return Some(format!("no test: {test:?} is not `file` `function`"));
    };
    let Ok(text) = fs::read_to_string(checkout.join(file)) else { return Some(format!("no file {file}")) };
    let lines: Vec<&str> = text.lines().collect();
    let is_it = |place: &usize| begins(lines[*place], function) && is_test(&lines[..*place], lines[*place]);
    (!(0..lines.len()).any(|place| is_it(&place))).then(|| format!("{file} has no test {function}"))
}

fn begins(line: &str, function: &str) -> bool {
    let line = line.trim_start();
    let name = line.strip_prefix("async ").unwrap_or(line).strip_prefix("fn ");
    name.and_then(|name| name.strip_prefix(function)).is_some_and(|rest| rest.starts_with('('))
}

/// By its attribute, or within `proptest!`, which needs none.
fn is_test(before: &[&str], line: &str) -> bool {
    let above = before.iter().rev().map(|line| line.trim_start());
    let mut above = above.take_while(|line| line.starts_with("#[") || line.starts_with("///"));
    above.any(|line| line.starts_with("#[test]") || line.starts_with("#[tokio::test"))
        || line.starts_with(' ') && before.iter().any(|line| line.starts_with("proptest! {"))
}

pub(super) const PROMISES: &str = "docs/promises.md";
/// The headings, and the line below.
const HEAD: usize = 2;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cargo::root;

    #[test]
    fn a_row_whose_test_is_gone_is_a_finding() {
        let document =
            |row: &str| format!("# Promises\n\n| promise | figure | held by |\n|---|---|---|\n{row}\n");
        let (file, this) = ("xtask/src/tidy/promises.rs", "a_row_whose_test_is_gone_is_a_finding");
        for (row, word) in [
            (format!("| a | 1 | `{file}` `{this}` |"), ""),
            (
                format!("| a | 1 | `{file}` `{this}`; `{file}` `gone` |"),
                "docs/promises.md:5: xtask/src/tidy/promises.rs has no test gone",
            ),
            (format!("| a | 1 | `{file}` `a_row_whose` |"), "no test a_row_whose"),
            ("| a | 1 | `no.rs` `check` |".into(), "no file no.rs"),
            ("| a | 1 | by hand |".into(), "is not `file` `function`"),
            (format!("| a | | `{file}` `{this}` |"), "without its sentence or its figure"),
            (format!("| a | `{file}` `{this}` |"), "2 cells"),
            ("No row.".into(), "no row promises"),
        ] {
            let found = check(root(), &document(&row));
            let is_right =
                if word.is_empty() { found.is_empty() } else { found.len() == 1 && found[0].contains(word) };
            assert!(is_right, "{row}: {found:?}");
        }
    }
}
