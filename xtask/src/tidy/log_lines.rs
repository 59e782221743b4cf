//! Every line of the log has its row in `docs/log.md`, and no row is without its line.
//!
//! In: sources of the product, and the page. Out: a finding for each line or row that has no other.
//! A line is a level and a sentence, as it stands in the code. Not here: `debug` and `trace`, tests, fields.

use std::collections::BTreeMap;

use proc_macro2::{Delimiter, TokenStream, TokenTree};

/// Level and sentence, and where they stand.
pub(super) type Lines = BTreeMap<(String, String), String>;

/// Adds the lines of a file, whose path is `name`.
pub(super) fn gather(name: &str, text: &str, lines: &mut Lines) -> Vec<String> {
    let is_product = name.starts_with("crates/") && name.contains("/src/") && name.ends_with(".rs");
    if !is_product || name.contains("/tests") {
        return Vec::new();
    }
    let Ok(stream) = text.parse::<TokenStream>() else { return Vec::new() };
    let mut found = Vec::new();
    walk(stream, &mut found);
    let mut findings = Vec::new();
    for (level, sentence, line) in found {
        match sentence {
            Some(sentence) => drop(lines.entry((level, sentence)).or_insert(format!("{name}:{line}"))),
            None => findings.push(format!("{name}:{line}: a line of the log without a sentence")),
        }
    }
    findings
}

/// Holds the page against all lines.
pub(super) fn check(page: &str, lines: &Lines) -> Vec<String> {
    let mut rows = BTreeMap::new();
    let mut findings = Vec::new();
    for (number, line) in page.lines().enumerate() {
        let Some(row) = row(line) else { continue };
        let at = format!("{PAGE}:{}", number + 1);
        if rows.insert(row.clone(), at.clone()).is_some() {
            findings.push(format!("{at}: {} `{}` a second time", row.0, row.1));
        }
    }
    let missing = lines.iter().filter(|(line, _)| !rows.contains_key(line));
    findings.extend(
        missing.map(|((level, words), at)| format!("{at}: {PAGE} has no row: | {level} | `{words}` |")),
    );
    let stale = rows.iter().filter(|(row, _)| !lines.contains_key(row));
    findings.extend(stale.map(|((level, words), at)| format!("{at}: no line of the log: {level} `{words}`")));
    findings
}

/// Level and sentence of a row that says what to do, too.
fn row(line: &str) -> Option<(String, String)> {
    let (level, rest) = line.strip_prefix("| ")?.split_once(" | `")?;
    let (sentence, advice) = rest.split_once("` | ")?;
    // Two of them where the sentence has some.
    let sentence = sentence.trim_matches('`').trim();
    let is_row = LEVELS.contains(&level) && advice.trim_end_matches([' ', '|']).len() > 10;
    is_row.then(|| (level.to_owned(), sentence.to_owned()))
}

fn walk(stream: TokenStream, found: &mut Vec<(String, Option<String>, usize)>) {
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
            found.push((word.to_string(), sentence(group.stream()), word.span().start().line));
        }
        if let [TokenTree::Group(group), ..] = rest {
            walk(group.stream(), found);
        }
        at += 1;
    }
}

/// `#[cfg(test)]`, and with more beside it.
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

/// The first argument that is a string and nothing else.
fn sentence(arguments: TokenStream) -> Option<String> {
    let tokens: Vec<TokenTree> = arguments.into_iter().collect();
    let arguments = tokens.split(|token| matches!(token, TokenTree::Punct(mark) if mark.as_char() == ','));
    let strings = arguments.filter_map(|argument| match argument {
        [TokenTree::Literal(literal)] => syn::parse_str::<syn::LitStr>(&literal.to_string()).ok(),
        _ => None,
    });
    strings.map(|string| string.value()).next()
}

pub(super) const PAGE: &str = "docs/log.md";
const LEVELS: [&str; 3] = ["error", "warn", "info"];

#[cfg(test)]
mod tests {
    use super::*;

    const CODE: &str = r#"
        fn f() {
            tracing::warn!(change = "link", %error, "it is {down}");
            tokio::select! { () = x => tracing::info!("a long \
                sentence", ), }
            tracing::debug!("not said");
        }
        #[cfg(test)]
        fn g() { tracing::error!("of a test"); }
        #[cfg(all(test, loom))]
        mod tests { fn h() { tracing::error!("of another"); } }
        fn i() { tracing::error!(error = "no"); }
    "#;

    #[test]
    fn lines_are_found_wherever_they_stand_but_in_tests() {
        let mut lines = Lines::new();
        let findings = gather("crates/x/src/x.rs", CODE, &mut lines);
        assert_eq!(findings, ["crates/x/src/x.rs:12: a line of the log without a sentence"]);
        let found: Vec<_> = lines.iter().map(|((level, words), at)| (&**level, &**words, &**at)).collect();
        let wanted = [
            ("info", "a long sentence", "crates/x/src/x.rs:4"),
            ("warn", "it is {down}", "crates/x/src/x.rs:3"),
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
    fn a_line_without_a_row_and_a_row_without_a_line_are_findings() {
        let lines = Lines::from([(("warn".to_owned(), "down".to_owned()), "a.rs:1".to_owned())]);
        let good = "| level | sentence |\n|---|---|\n| warn | `down` | look at the link |\n";
        assert_eq!(check(good, &lines), [""; 0]);
        let twice = format!("{good}| warn | `down` | look at the link |\n");
        assert_eq!(check(&twice, &lines), ["docs/log.md:4: warn `down` a second time"]);
        let missing = "a.rs:1: docs/log.md has no row: | warn | `down` |";
        assert_eq!(check("", &lines), [missing]);
        // Another level is another line; a row that says nothing is none.
        let other = good.replace("| warn", "| info");
        assert_eq!(check(&other, &lines), [missing, "docs/log.md:3: no line of the log: info `down`"]);
        assert_eq!(check(&good.replace("look at the link", "-"), &lines), [missing]);
    }
}
