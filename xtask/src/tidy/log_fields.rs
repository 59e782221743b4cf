//! Checks that log fields have one name for each thing.
//!
//! The section "Fields" of `docs/reference/log.md` lists the names of all log fields. A field in
//! the sources that has no row is a finding, and so is a row that no log line uses. A field such as
//! `backend = %address`, whose value is called by the name of another object, is a finding too.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use anyhow::Result;
use proc_macro2::{TokenStream, TokenTree};

use super::log_lines;

/// The log fields in the sources, each with the location of one log line.
pub(super) type Fields = BTreeMap<String, String>;

/// Adds the fields of one file to `fields`. The argument `name` is the path of the file.
pub(super) fn gather(name: &str, text: &str, fields: &mut Fields) -> Vec<String> {
    let mut findings = Vec::new();
    for found in log_lines::macros(name, text) {
        let at = format!("{name}:{}", found.line);
        for (field, value) in read(found.arguments) {
            if OBJECTS.contains(&&*value) && field != value && OBJECTS.contains(&&*field) {
                findings.push(format!(
                    "{at}: log field `{field}` has the value `{value}`, use the field `{value}`"
                ));
            }
            fields.entry(field).or_insert_with(|| at.clone());
        }
    }
    findings
}

/// Compares the fields with the page.
pub(super) fn check(page: &Path, fields: &Fields) -> Result<Vec<String>> {
    Ok(compare(fields, &std::fs::read_to_string(page)?))
}

fn compare(fields: &Fields, page: &str) -> Vec<String> {
    let section = page.split("## Fields\n").nth(1).and_then(|rest| rest.split("\n<!--").next());
    let rows = section.unwrap_or_default().lines().filter_map(|line| line.strip_prefix("| `"));
    let rows: BTreeSet<&str> = rows.filter_map(|row| row.split('`').next()).collect();
    let without = fields.iter().filter(|(field, _)| !rows.contains(field.as_str()));
    let without = without.map(|(field, at)| {
        format!("{at}: log field `{field}` has no row in {PAGE}; use a listed name, or add a row")
    });
    let unused = rows.iter().filter(|row| !fields.contains_key(**row));
    without.chain(unused.map(|row| format!("{PAGE}:1: no log line has the field `{row}`"))).collect()
}

/// Returns the name of each field, and the last identifier of its value.
fn read(arguments: TokenStream) -> Vec<(String, String)> {
    let tokens: Vec<TokenTree> = arguments.into_iter().collect();
    let is =
        |token: &TokenTree, mark: char| matches!(token, TokenTree::Punct(found) if found.as_char() == mark);
    let field = |argument: &[TokenTree]| {
        let bare = argument.iter().position(|token| !is(token, '%') && !is(token, '?'))?;
        let (TokenTree::Ident(name), rest) = argument.get(bare..)?.split_first()? else { return None };
        match rest.first() {
            None => Some((name.to_string(), name.to_string())),
            Some(mark) if is(mark, '=') => {
                let last = rest.iter().rev().find_map(|token| match token {
                    TokenTree::Ident(word) => Some(word.to_string()),
                    _ => None,
                });
                Some((name.to_string(), last.unwrap_or_default()))
            }
            _ => None,
        }
    };
    tokens.split(|token| is(token, ',')).filter_map(field).collect()
}

pub(super) const PAGE: &str = "docs/reference/log.md";
/// The fields that name an object. Each has a value of its own kind.
const OBJECTS: [&str; 11] = [
    "address",
    "backend",
    "check",
    "client",
    "family",
    "interface",
    "machine",
    "peer",
    "pool",
    "service",
    "vip",
];

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE_TEXT: &str = "# Log\n| `x` | no field |\n## Fields\n| field | content |\n|---|---|\n\
                             | `vip` | a VIP |\n| `unused` | nothing |\n\n<!-- begin: generated -->\n| `later` | |\n";

    #[test]
    fn fields_without_row_and_wrong_values_are_findings() {
        let code = r#"
            fn f() {
                tracing::warn!(target: "health", %vip, "down {}", backend);
                tracing::debug!(neighbour = %self.own.address, ?took, "left");
                tracing::info!(backend = %address, "resolved");
            }
            #[cfg(test)]
            mod tests { fn g() { tracing::info!(odd = 1, "in a test"); } }
        "#;
        let mut fields = Fields::new();
        let findings = gather("crates/x/src/a.rs", code, &mut fields);
        let wrong =
            "crates/x/src/a.rs:5: log field `backend` has the value `address`, use the field `address`";
        assert_eq!(findings, [wrong]);
        assert_eq!(fields.keys().collect::<Vec<_>>(), ["backend", "neighbour", "took", "vip"]);
        let findings = compare(&fields, PAGE_TEXT);
        assert_eq!(findings.len(), 4, "{findings:?}");
        assert!(
            findings[1].starts_with("crates/x/src/a.rs:4: log field `neighbour` has no row"),
            "{findings:?}"
        );
        assert!(findings[3].ends_with("no log line has the field `unused`"), "{findings:?}");
    }
}
