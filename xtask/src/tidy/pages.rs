//! Checks the documentation. Each link must have a target, the book must list each page, and the
//! runbook must have a section for each alert rule.
//!
//! Pages in `docs/` may link only to folders that the book contains: `docs/`, `config/` and
//! `benches/results/`. The module `book` checks that the book can be built.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

/// The Markdown pages, by their path in the checkout.
pub(super) type Pages = BTreeMap<String, String>;

/// Checks that the links of all pages have targets, in other pages or in files of the checkout.
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

/// Returns the inline links to files. Links in code blocks are ignored.
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

/// Returns the reason why a link on the page `name` is broken, or `None` if the link has a target.
fn broken(checkout: &Path, pages: &Pages, name: &str, target: &str) -> Option<String> {
    let (path, anchor) = target.split_once('#').map_or((target, None), |(path, anchor)| (path, Some(anchor)));
    let there = if path.is_empty() { name.to_owned() } else { beside(name, path) };
    if name.starts_with(BOOK)
        && ![BOOK, "config/", "benches/results/"].iter().any(|folder| there.starts_with(folder))
    {
        return Some("the book has only docs/, config/ and benches/results/".to_owned());
    }
    if !checkout.join(&there).exists() {
        return Some(format!("there is no file {there}"));
    }
    let has = |anchor: &str| headings(pages.get(&there)?).find(|heading| slug(heading) == anchor);
    anchor.filter(|anchor| has(anchor).is_none()).map(|anchor| format!("{there} has no heading #{anchor}"))
}

/// Converts a relative path on the page `name` to a path in the checkout.
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

/// Returns the anchor of a heading, as mdBook and common code forges generate it.
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
    missing.map(|name| format!("{name}:1: {SUMMARY} does not list this page")).collect()
}

/// Checks that the runbook has a section for each alert rule, and that the `runbook_url` of the
/// rule names this section.
fn without_section(rules: &str, text: &str, pages: &Pages) -> Vec<String> {
    let runbook = pages.get(RUNBOOK).map(String::as_str).unwrap_or_default();
    let sections: BTreeSet<&str> = headings(runbook).collect();
    let mut found = Vec::new();
    for rule in text.split("- alert: ").skip(1) {
        let name = rule.lines().next().unwrap_or_default();
        if !sections.contains(name) {
            found.push(format!("{RUNBOOK}:1: section {name} is missing, for an alert of {rules}"));
        }
        let url = format!("runbook_url: \"{RUNBOOK}#{}\"\n", slug(name));
        if !rule.contains(&url) {
            found.push(format!("{rules}:1: {name} has no runbook_url {}", url.trim_end()));
        }
    }
    if found.is_empty() && !text.contains("- alert: ") {
        found.push(format!("{rules}:1: the file has no rules"));
    }
    found
}

const BOOK: &str = "docs/";
const SUMMARY: &str = "docs/SUMMARY.md";
const RUNBOOK: &str = "docs/how-to/respond-to-alerts.md";
const RULES: [&str; 2] = ["config/alerts.yml", "config/alerts-probe.yml"];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cargo::root;

    fn pages(pages: &[(&str, &str)]) -> Pages {
        pages.iter().map(|(name, text)| ((*name).to_owned(), (*text).to_owned())).collect()
    }

    #[test]
    fn link_without_a_target_is_a_finding() {
        let summary = "- [a](how-to/add-a-vip.md)\n- [b](explanation/decisions/README.md)\n";
        for (text, word) in [
            (
                "[b](../explanation/decisions/README.md#decisions), [c](../../config/sluicegate.toml), [d](https://docs.rs/x)",
                "",
            ),
            ("# A day's work_1\n[b](#a-days-work_1)\n```sh\n[x](gone.md)\n```\n", ""),
            ("a\n[b](gone.md)", "docs/how-to/add-a-vip.md:2: gone.md: there is no file docs/how-to/gone.md"),
            (
                "[b](../explanation/decisions/README.md#gone)",
                "docs/explanation/decisions/README.md has no heading #gone",
            ),
            ("```sh\n# gone\n```\n[b](#gone)", "docs/how-to/add-a-vip.md has no heading #gone"),
            ("[b](../../README.md)", "the book has only docs/, config/ and benches/results/"),
        ] {
            let all = [
                (SUMMARY, summary),
                ("docs/how-to/add-a-vip.md", text),
                ("docs/explanation/decisions/README.md", "# Decisions"),
            ];
            // Findings about alerts are ignored, because the test pages have no sections for
            // alerts.
            let found: Vec<_> =
                check(root(), &pages(&all)).into_iter().filter(|found| !found.contains(" alert")).collect();
            let is_right =
                if word.is_empty() { found.is_empty() } else { found.len() == 1 && found[0].contains(word) };
            assert!(is_right, "{text}: {found:?}");
        }
    }

    #[test]
    fn page_missing_in_the_summary_is_a_finding() {
        let all =
            pages(&[(SUMMARY, "- [a](a.md)"), ("docs/a.md", ""), ("docs/b/c.md", ""), ("README.md", "")]);
        assert_eq!(outside_the_book(&all), ["docs/b/c.md:1: docs/SUMMARY.md does not list this page"]);
    }

    #[test]
    fn alert_needs_its_section_and_its_url() {
        let rule = |name: &str, url: &str| {
            format!(
                "  - alert: {name}\n    annotations:\n      runbook_url: \"docs/how-to/respond-to-alerts.md#{url}\"\n"
            )
        };
        let all = pages(&[(RUNBOOK, "# Runbook\n## DiskFull\n## Gone\n")]);
        let check = |text: &str| without_section("rules.yml", text, &all);
        assert_eq!(check(&rule("DiskFull", "diskfull")), [""; 0]);
        assert_eq!(check(&rule("DiskFull", "disk")).len(), 1);
        assert_eq!(check(&(rule("DiskFull", "diskfull") + &rule("Other", "other"))).len(), 1);
        assert_eq!(check("groups: []\n"), ["rules.yml:1: the file has no rules"]);
    }
}
