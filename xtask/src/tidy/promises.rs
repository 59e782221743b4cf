//! Checks that a test verifies each promise in `docs/promises.md`.
//!
//! A row of the page has the form `| name | promise | figure |`. A test that verifies a promise has
//! the line `// Promise: NAME` above it. The check reports a promise without such a test, a line
//! that names an unknown promise, and a line that no test follows.

use std::collections::BTreeMap;

/// The promises that are named above tests. The map contains, for each promise, the location of the
/// first line that names it.
pub(super) type Held = BTreeMap<String, String>;

/// Adds the promises that are named in a file. Returns a finding for each line that names a promise
/// and is not followed by a test.
pub(super) fn gather(name: &str, text: &str, held: &mut Held) -> Vec<String> {
    if !name.ends_with(".rs") || name.ends_with("tidy/promises.rs") {
        return Vec::new();
    }
    let lines: Vec<&str> = text.lines().map(str::trim_start).collect();
    let mut findings = Vec::new();
    for (index, line) in lines.iter().enumerate() {
        let Some(promise) = line.strip_prefix(MARK) else { continue };
        let at = format!("{name}:{}", index + 1);
        let below = lines[index..].iter().find(|line| !line.starts_with("//"));
        // Tests inside `proptest!` do not need an attribute.
        let is_test = below.is_some_and(|line| line.starts_with("#[") || line.starts_with("fn "));
        if !is_test {
            findings.push(format!("{at}: no test below the promise {promise}"));
        }
        held.entry(promise.to_owned()).or_insert(at);
    }
    findings
}

/// Compares the promises in `docs/promises.md` with the `// Promise:` lines above the tests.
pub(super) fn check(page: &str, held: &Held) -> Vec<String> {
    let mut findings = Vec::new();
    let mut rows = BTreeMap::new();
    for (number, line) in (1..).zip(page.lines()).filter(|(_, line)| line.starts_with('|')).skip(HEAD) {
        let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
        let [name, promise, figure] = cells[..] else {
            findings.push(format!("{PROMISES}:{number}: the row has {} cells instead of 3", cells.len()));
            continue;
        };
        if promise.is_empty() || figure.is_empty() {
            findings.push(format!("{PROMISES}:{number}: {name} has no text or no figure"));
        }
        rows.insert(name, number);
    }
    if rows.is_empty() {
        findings.push(format!("{PROMISES}:1: the table has no rows"));
    }
    let without = rows.iter().filter(|(name, _)| !held.contains_key(**name));
    findings.extend(without.map(|(name, number)| format!("{PROMISES}:{number}: promise {name} has no test")));
    let unknown = held.iter().filter(|(name, _)| !rows.contains_key(name.as_str()));
    findings.extend(unknown.map(|(name, at)| format!("{at}: {PROMISES} has no promise {name}")));
    findings
}

pub(super) const PROMISES: &str = "docs/promises.md";
const MARK: &str = "// Promise: ";
/// The number of table lines before the first row.
const HEAD: usize = 2;

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: &str =
        "# Promises\n\n| name | promise | figure |\n|---|---|---|\n| no-loss | No loss. | 0 |\n";

    #[test]
    fn promises_and_tests_match_or_are_findings() {
        let mut held = Held::new();
        let code = "    // Promise: no-loss\n    #[test]\n    fn a() {}\n";
        assert_eq!(gather("crates/x/src/x.rs", code, &mut held), [""; 0]);
        assert_eq!(check(PAGE, &held), [""; 0]);
        assert_eq!(check(PAGE, &Held::new()), ["docs/promises.md:5: promise no-loss has no test"]);
        held.insert("other".to_owned(), "a.rs:1".to_owned());
        assert_eq!(check(PAGE, &held), ["a.rs:1: docs/promises.md has no promise other"]);
    }

    #[test]
    fn malformed_rows_and_stray_marks_are_findings() {
        let stray = gather("crates/x/src/x.rs", "// Promise: no-loss\nlet x = 1;\n", &mut Held::new());
        assert_eq!(stray, ["crates/x/src/x.rs:1: no test below the promise no-loss"]);
        let page = PAGE.replace("| 0 |", "| |");
        let held = Held::from([("no-loss".to_owned(), "a.rs:1".to_owned())]);
        assert_eq!(check(&page, &held), ["docs/promises.md:5: no-loss has no text or no figure"]);
        let short = PAGE.replace("| No loss. ", "");
        assert!(check(&short, &Held::new())[0].contains("2 cells instead of 3"));
        assert!(check("", &Held::new())[0].contains("has no rows"));
    }
}
