//! Generates the references of log lines and events, `docs/reference/log.md` and `events.md`, from
//! the sources of Sluicegate.
//!
//! Each `error!`, `warn!` and `info!` becomes a row with its level, its event and its `change`
//! field. The description in the row is the comment above the macro, which must start with `log:`.
//! A macro without this comment is a finding, and so are two macros with the same event and
//! different comments. A page that differs from the sources is a finding too. Macros in tests, and
//! those with level `debug` or `trace`, are ignored. The module `log_fields` checks the names of
//! fields.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use anyhow::Result;
use proc_macro2::{Delimiter, TokenStream, TokenTree};
use testbed::{code_cell, generated_page};

/// All log lines, by level and event.
pub(super) type Lines = BTreeMap<(String, String), Line>;

/// A log line in the sources.
#[derive(Clone, Debug)]
pub(super) struct Line {
    /// The location of the macro, as `file:line`.
    at: String,
    section: &'static str,
    /// The value of the `change` field, which is the kind of the event.
    change: Option<String>,
    /// The description of the event, from the comment above the macro.
    text: Option<String>,
}

/// A `tracing` macro in one file.
pub(super) struct Found {
    level: String,
    pub(super) arguments: TokenStream,
    pub(super) line: usize,
}

/// Returns the `tracing` macros in a product file, without the macros in its tests. The argument
/// `name` is the path of the file.
pub(super) fn macros(name: &str, text: &str) -> Vec<Found> {
    let is_product = name.starts_with("crates/") && name.contains("/src/") && name.ends_with(".rs");
    let mut found = Vec::new();
    if is_product
        && !name.contains("/tests")
        && let Ok(stream) = text.parse::<TokenStream>()
    {
        walk(stream, &mut found);
    }
    found
}

/// Adds the log lines of one file to `lines`. The argument `name` is the path of the file.
pub(super) fn gather(name: &str, text: &str, lines: &mut Lines) -> Vec<String> {
    let source: Vec<&str> = text.lines().collect();
    let mut findings = Vec::new();
    for Found { level, arguments, line } in
        macros(name, text).into_iter().filter(|found| found.level != "debug")
    {
        let (event, change) = (sentence(arguments.clone()), change(arguments));
        let at = format!("{name}:{line}");
        let Some(event) = event else {
            findings.push(format!("{at}: a log line without an event"));
            continue;
        };
        let new = Line { at, section: section(name), change, text: comment_above(&source, line) };
        let known = lines.entry((level, event)).or_insert_with(|| Line { text: None, ..new.clone() });
        if known.text.is_some() && new.text.is_some() && known.text != new.text {
            findings.push(format!("{}: the same event as at {} has a different comment", new.at, known.at));
        }
        known.text = known.text.take().or(new.text);
        known.change = known.change.take().or(new.change);
    }
    findings
}

/// Returns the `// log: ` comment directly above the line with the number `line`, counted from 1.
fn comment_above(source: &[&str], line: usize) -> Option<String> {
    let above = source.get(..line.checked_sub(1)?)?.iter().rev();
    // If a macro is the whole arm of a `match`, its comment is above the arm.
    let above = above.skip_while(|line| line.trim_end().ends_with("=> {"));
    let comments = above.map_while(|line| line.trim_start().strip_prefix("// "));
    let mut words = Vec::new();
    for comment in comments {
        if let Some(first) = comment.strip_prefix("log: ") {
            words.push(first);
            words.reverse();
            return Some(words.join(" "));
        }
        words.push(comment);
    }
    None
}

/// Compares both pages with the sources, or writes them.
pub(super) fn check(lines: &Lines) -> Result<Vec<String>> {
    let mut findings = Vec::new();
    for ((level, event), line) in lines {
        if line.text.is_none() {
            findings.push(format!("{}: no `// log: ` comment above {level} `{event}`", line.at));
        }
    }
    for (page, text) in [(LOG, log_table(lines)), (EVENTS, event_table(lines))] {
        if !generated_page(page, &text)? {
            findings.push(format!("{page}:1: differs from the sources; `cargo xtask docs` writes it"));
        }
    }
    Ok(findings)
}

/// Formats all log lines as tables, one per section.
fn log_table(lines: &Lines) -> String {
    let mut table = String::new();
    for section in SECTIONS.iter().map(|(_, section)| *section).fold(Vec::new(), with) {
        let _ = write!(table, "\n## {section}\n\n| level | event | description |\n|---|---|---|\n");
        for ((level, event), line) in lines.iter().filter(|(_, line)| line.section == section) {
            let text = line.text.as_deref().unwrap_or_default();
            let _ = writeln!(table, "| {level} | {} | {text} |", code_cell(event));
        }
    }
    table
}

/// Formats the log lines that are events as one table, sorted by kind.
fn event_table(lines: &Lines) -> String {
    let mut rows: Vec<_> =
        lines.iter().filter_map(|(key, line)| Some((line.change.as_ref()?, key, line))).collect();
    rows.sort_by_key(|(change, (_, event), _)| (*change, event));
    let mut table = "\n| kind | level | event | description |\n|---|---|---|---|\n".to_owned();
    for (change, (level, event), line) in rows {
        let text = line.text.as_deref().unwrap_or_default();
        let _ = writeln!(table, "| `{change}` | {level} | {} | {text} |", code_cell(event));
    }
    table
}

fn with(mut known: Vec<&'static str>, section: &'static str) -> Vec<&'static str> {
    if !known.contains(&section) {
        known.push(section);
    }
    known
}

/// Returns the section of the log reference to which a file belongs.
fn section(name: &str) -> &'static str {
    let fits = |(prefix, section): &(&str, &'static str)| name.starts_with(prefix).then_some(*section);
    SECTIONS.iter().find_map(fits).unwrap_or("Other")
}

fn walk(stream: TokenStream, found: &mut Vec<Found>) {
    let tokens: Vec<TokenTree> = stream.into_iter().collect();
    let mut at = 0;
    while let Some(rest) = tokens.get(at..).filter(|rest| !rest.is_empty()) {
        if is_of_tests(rest) {
            at += 2 + rest.iter().skip(2).position(ends_item).map_or(rest.len(), |end| end + 1);
            continue;
        }
        if let [TokenTree::Ident(word), TokenTree::Punct(mark), TokenTree::Group(group), ..] = rest
            && mark.as_char() == '!'
            && LEVELS.contains(&&*word.to_string())
        {
            let (level, line) = (word.to_string(), word.span().start().line);
            found.push(Found { level, arguments: group.stream(), line });
        }
        if let [TokenTree::Group(group), ..] = rest {
            walk(group.stream(), found);
        }
        at += 1;
    }
}

/// Returns `true` if the tokens are an attribute such as `#[cfg(test)]`. The condition may contain
/// more than `test`.
fn is_of_tests(tokens: &[TokenTree]) -> bool {
    let [TokenTree::Punct(mark), TokenTree::Group(group), ..] = tokens else { return false };
    let words = group.stream().to_string().replace(' ', "");
    mark.as_char() == '#'
        && group.delimiter() == Delimiter::Bracket
        && words.starts_with("cfg(")
        && words.contains("test")
}

fn ends_item(token: &TokenTree) -> bool {
    match token {
        TokenTree::Group(group) => group.delimiter() == Delimiter::Brace,
        TokenTree::Punct(mark) => mark.as_char() == ';',
        _ => false,
    }
}

/// Returns the value of the `change` field.
fn change(arguments: TokenStream) -> Option<String> {
    let tokens: Vec<TokenTree> = arguments.into_iter().collect();
    let values = tokens.windows(3).filter_map(|tokens| match tokens {
        [TokenTree::Ident(name), TokenTree::Punct(_), TokenTree::Literal(value)] if name == "change" => {
            syn::parse_str::<syn::LitStr>(&value.to_string()).ok()
        }
        _ => None,
    });
    values.map(|value| value.value()).next()
}

/// Returns the first argument that is a string literal.
fn sentence(arguments: TokenStream) -> Option<String> {
    let tokens: Vec<TokenTree> = arguments.into_iter().collect();
    let arguments = tokens.split(|token| matches!(token, TokenTree::Punct(mark) if mark.as_char() == ','));
    let strings = arguments.filter_map(|argument| match argument {
        [TokenTree::Literal(literal)] => syn::parse_str::<syn::LitStr>(&literal.to_string()).ok(),
        _ => None,
    });
    strings.map(|string| string.value()).next()
}

const LOG: &str = "docs/reference/log.md";
const EVENTS: &str = "docs/reference/events.md";
const LEVELS: [&str; 4] = ["error", "warn", "info", "debug"];
/// The sections of the log reference, each with the path prefix of its files. A file belongs to the
/// first section with a matching prefix.
const SECTIONS: [(&str, &str); 14] = [
    ("crates/sluicegate/src/run/health_tunnel", "Health checks"),
    ("crates/sluicegate/src/run/checks", "Backends and VIPs"),
    ("crates/sluicegate/src/run/links", "Interfaces and packets"),
    ("crates/sluicegate/src/run/reload", "Configuration"),
    ("crates/sluicegate/src/run/configuration", "Configuration"),
    ("crates/sluicegate/", "Process"),
    ("crates/control-plane/src/announce", "Routers"),
    ("crates/control-plane/src/drain", "Process"),
    ("crates/control-plane/src/reload", "Configuration"),
    ("crates/control-plane/", "Backends and VIPs"),
    ("crates/next-hop/", "Backends and VIPs"),
    ("crates/health/", "Health checks"),
    ("crates/bgp/", "Routers"),
    ("crates/", "Interfaces and packets"),
];

#[cfg(test)]
mod tests {
    use super::*;

    const CODE: &str = r#"
        fn f() {
            // log: The link is down.
            // Check the cable.
            tracing::warn!(change = "link", %error, "link {down}");
            tokio::select! { () = x => tracing::info!("a long \
                event", ), }
            tracing::debug!("left out");
        }
        #[cfg(test)]
        fn g() { tracing::error!("in a test"); }
        #[cfg(all(test, loom))]
        mod tests { fn h() { tracing::error!("in another test"); } }
        fn i() { tracing::error!(error = "no"); }
    "#;

    #[test]
    fn log_lines_are_found_outside_tests() {
        let mut lines = Lines::new();
        let findings = gather("crates/bgp/src/x.rs", CODE, &mut lines);
        assert_eq!(findings, ["crates/bgp/src/x.rs:14: a log line without an event"]);
        let found: Vec<_> =
            lines.iter().map(|((level, event), line)| (&**level, &**event, &*line.at)).collect();
        let wanted = [
            ("info", "a long event", "crates/bgp/src/x.rs:6"),
            ("warn", "link {down}", "crates/bgp/src/x.rs:5"),
        ];
        assert_eq!(found, wanted);
        for name in
            ["xtask/src/x.rs", "crates/x/src/tests.rs", "crates/x/tests/x.rs", "crates/x/src/tests/a.rs"]
        {
            let mut lines = Lines::new();
            assert_eq!((gather(name, CODE, &mut lines), lines.len()), (Vec::new(), 0), "{name}");
        }
    }

    #[test]
    fn same_event_with_another_comment_is_a_finding() {
        let other = CODE.replace("The link is down.", "The link is gone.");
        let mut lines = Lines::new();
        gather("crates/bgp/src/x.rs", CODE, &mut lines);
        let again = gather("crates/bgp/src/y.rs", CODE, &mut lines);
        assert_eq!(again, ["crates/bgp/src/y.rs:14: a log line without an event"]);
        let findings = gather("crates/bgp/src/z.rs", &other, &mut lines);
        let wanted =
            "crates/bgp/src/z.rs:5: the same event as at crates/bgp/src/x.rs:5 has a different comment";
        assert_eq!(findings[0], wanted);
        assert!(log_table(&lines).contains("| The link is down. Check the cable. |\n"));
    }

    #[test]
    fn tables_hold_the_comment_above_a_line() {
        let mut lines = Lines::new();
        gather("crates/bgp/src/x.rs", CODE, &mut lines);
        let row = "| warn | `link {down}` | The link is down. Check the cable. |\n";
        assert!(log_table(&lines).contains(row), "{}", log_table(&lines));
        let row = "| `link` | warn | `link {down}` | The link is down. Check the cable. |\n";
        assert!(event_table(&lines).ends_with(row), "{}", event_table(&lines));
        let without = &lines[&("info".to_owned(), "a long event".to_owned())];
        assert_eq!(without.text, None);
    }
}
