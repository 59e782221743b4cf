//! The documents: every link leads somewhere, every page is in the book, every alert rule has its section in the runbook.
//!
//! In: the checkout's Markdown files and alert rules. Out: findings.
//! Not here: whether the book builds (`book`).
//! Invariant: pages of `docs/` link to what the book has beside it: `docs/` and `config/`.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

/// Markdown files by their path below the checkout.
pub(super) type Pages = BTreeMap<String, String>;

/// Holds pages against each other and against the checkout's files.
pub(super) fn check(checkout: &Path, pages: &Pages) -> Vec<String> {
    let mut found = Vec::new();
    for (name, text) in pages {
        for link in links(text) {
            let what = broken(checkout, pages, name, link.target);
            found.extend(what.map(|what| format!("{name}:{}: {}: {what}", link.line, link.target)));
        }
    }
    found.extend(outside_the_book(pages));
    for rules in RULES {
        let text = fs::read_to_string(checkout.join(rules)).unwrap_or_default();
        found.extend(without_section(rules, &text, pages));
    }
    found
}

struct Link<'a> {
    line: usize,
    target: &'a str,
}

/// Inline links to files, outside of blocks of code.
fn links(text: &str) -> Vec<Link<'_>> {
    let (mut found, mut is_code) = (Vec::new(), false);
    for (line, words) in (1..).zip(text.lines()) {
        is_code ^= words.starts_with("```");
        if is_code {
            continue;
        }
        let targets = words.split("](").skip(1).filter_map(|rest| rest.split(')').next());
        let targets = targets.filter(|target| !target.contains("://") && !target.starts_with("mailto:"));
        found.extend(targets.map(|target| Link { line, target }));
    }
    found
}

/// Why a link of the page `name` leads nowhere.
fn broken(checkout: &Path, pages: &Pages, name: &str, target: &str) -> Option<String> {
    let (path, anchor) = target.split_once('#').map_or((target, None), |(path, anchor)| (path, Some(anchor)));
    let there = if path.is_empty() { name.to_owned() } else { beside(name, path) };
    if name.starts_with(BOOK) && ![BOOK, "config/"].iter().any(|folder| there.starts_with(folder)) {
        return Some("the book has docs/ and config/ alone".to_owned());
    }
    if !checkout.join(&there).exists() {
        return Some(format!("no file {there}"));
    }
    let has = |anchor: &str| headings(pages.get(&there)?).find(|heading| slug(heading) == anchor);
    anchor.filter(|anchor| has(anchor).is_none()).map(|anchor| format!("{there} has no heading {anchor}"))
}

/// A path as a page says it, below the checkout.
fn beside(name: &str, path: &str) -> String {
    let mut parts: Vec<&str> = name.split('/').collect();
    parts.pop();
    for part in path.split('/').filter(|part| *part != ".") {
        if part == ".." {
            parts.pop();
        } else {
            parts.push(part);
        }
    }
    parts.join("/")
}

fn headings(text: &str) -> impl Iterator<Item = &str> {
    let mut is_code = false;
    text.lines().filter_map(move |line| {
        is_code ^= line.starts_with("```");
        let heading = line.trim_start_matches('#').strip_prefix(' ')?;
        (line.starts_with('#') && !is_code).then_some(heading)
    })
}

/// The anchor of a heading, as mdBook and the usual forges make it.
fn slug(heading: &str) -> String {
    let kept = heading.chars().filter(|c| c.is_alphanumeric() || [' ', '-', '_'].contains(c));
    kept.map(|c| if c == ' ' { '-' } else { c.to_ascii_lowercase() }).collect()
}

fn outside_the_book(pages: &Pages) -> Vec<String> {
    let listed: BTreeSet<String> = pages.get(SUMMARY).map_or_else(BTreeSet::new, |summary| {
        links(summary).iter().map(|link| beside(SUMMARY, link.target)).collect()
    });
    let all = pages.keys().filter(|name| name.starts_with(BOOK) && *name != SUMMARY);
    let missing = all.filter(|name| !listed.contains(*name));
    missing.map(|name| format!("{name}:1: {SUMMARY} does not list it")).collect()
}

/// Alert rules whose `runbook_url` does not name their section, or whose section is not there.
fn without_section(rules: &str, text: &str, pages: &Pages) -> Vec<String> {
    let runbook = pages.get(RUNBOOK).map(String::as_str).unwrap_or_default();
    let sections: BTreeSet<&str> = headings(runbook).collect();
    let mut found = Vec::new();
    for rule in text.split("- alert: ").skip(1) {
        let name = rule.lines().next().unwrap_or_default();
        if !sections.contains(name) {
            found.push(format!("{RUNBOOK}:1: no section {name}, an alert of {rules}"));
        }
        let url = format!("runbook_url: \"{RUNBOOK}#{}\"\n", slug(name));
        if !rule.contains(&url) {
            found.push(format!("{rules}:1: {name} has no {}", url.trim_end()));
        }
    }
    if found.is_empty() && !text.contains("- alert: ") {
        found.push(format!("{rules}:1: no rules"));
    }
    found
}

const BOOK: &str = "docs/";
const SUMMARY: &str = "docs/SUMMARY.md";
const RUNBOOK: &str = "docs/runbook.md";
const RULES: [&str; 2] = ["config/alerts.yml", "config/alerts-probe.yml"];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cargo::root;

    fn pages(pages: &[(&str, &str)]) -> Pages {
        pages.iter().map(|(name, text)| ((*name).to_owned(), (*text).to_owned())).collect()
    }

    #[test]
    fn a_link_without_an_end_is_a_finding() {
        let summary = "- [a](operations.md)\n- [b](decisions/README.md)\n";
        for (text, word) in [
            (
                "[b](decisions/README.md#decisions), [c](../config/sluicegate.toml), [d](https://docs.rs/x)",
                "",
            ),
            ("# A day's work_1\n[b](#a-days-work_1)\n```sh\n[x](gone.md)\n```\n", ""),
            ("a\n[b](gone.md)", "docs/operations.md:2: gone.md: no file docs/gone.md"),
            ("[b](decisions/README.md#gone)", "docs/decisions/README.md has no heading gone"),
            ("```sh\n# gone\n```\n[b](#gone)", "docs/operations.md has no heading gone"),
            ("[b](../README.md)", "the book has docs/ and config/ alone"),
        ] {
            let all = [
                (SUMMARY, summary),
                ("docs/operations.md", text),
                ("docs/decisions/README.md", "# Decisions"),
            ];
            let found: Vec<_> =
                check(root(), &pages(&all)).into_iter().filter(|found| !found.contains("runbook")).collect();
            let is_right =
                if word.is_empty() { found.is_empty() } else { found.len() == 1 && found[0].contains(word) };
            assert!(is_right, "{text}: {found:?}");
        }
    }

    #[test]
    fn a_page_that_the_summary_does_not_list_is_a_finding() {
        let all =
            pages(&[(SUMMARY, "- [a](a.md)"), ("docs/a.md", ""), ("docs/b/c.md", ""), ("README.md", "")]);
        assert_eq!(outside_the_book(&all), ["docs/b/c.md:1: docs/SUMMARY.md does not list it"]);
    }

    #[test]
    fn an_alert_has_its_section_and_names_it() {
        let rule = |name: &str, url: &str| {
            format!("  - alert: {name}\n    annotations:\n      runbook_url: \"docs/runbook.md#{url}\"\n")
        };
        let all = pages(&[(RUNBOOK, "# Runbook\n## DiskFull\n## Gone\n")]);
        let check = |text: &str| without_section("rules.yml", text, &all);
        assert_eq!(check(&rule("DiskFull", "diskfull")), [""; 0]);
        assert_eq!(check(&rule("DiskFull", "disk")).len(), 1);
        assert_eq!(check(&(rule("DiskFull", "diskfull") + &rule("Other", "other"))).len(), 1);
        assert_eq!(check("groups: []\n"), ["rules.yml:1: no rules"]);
    }
}
