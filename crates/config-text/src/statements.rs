//! A text cut into statements, which needs no text that is right: headers `[...]`, and keys with their values.
//!
//! In: a text. Out: its [`Statement`]s in their order. Blank lines and comments between belong to none.
//! A value goes over lines while a bracket is open. It ends before a line that can only be a header, or the next key of a
//! table, whatever is open: there a bracket is missing.
//! Not here: what is right (the parser of the crate `toml`), what is said of it (`syntax`).
//! Source: TOML 1.1.

use std::ops::Range;

/// A header, or a key with its value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Statement {
    pub(crate) range: Range<usize>,
    pub(crate) is_header: bool,
    /// Where the keys are: of a header all of it, else in front of `=`.
    pub(crate) keys: Range<usize>,
    pub(crate) unclosed: Option<Unclosed>,
}

/// A bracket that is missing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Unclosed {
    /// Where it is missing.
    pub(crate) at: usize,
    /// Where its partner is.
    pub(crate) open: usize,
}

/// All statements of a text.
///
/// # Cost
/// Linear in the text.
pub(crate) fn statements(text: &str) -> Vec<Statement> {
    let (mut found, mut at) = (Vec::new(), 0);
    while let Some(rest) = text.get(at..).filter(|rest| !rest.is_empty()) {
        let blank = rest.len() - rest.trim_start().len();
        if blank > 0 || rest.starts_with('#') {
            at += if blank > 0 { blank } else { line(rest).len() };
            continue;
        }
        let statement = if rest.starts_with('[') { header(text, at) } else { pair(text, at) };
        at = statement.range.end.max(at + 1);
        found.push(statement);
    }
    found
}

/// Up to the end of the line, which is not in it.
fn line(rest: &str) -> &str {
    rest.split('\n').next().unwrap_or_default()
}

fn header(text: &str, start: usize) -> Statement {
    let rest = line(text.get(start..).unwrap_or_default());
    let mut scan = Scan::new(text, start);
    while scan.at < start + rest.len() && scan.step() != Step::End {}
    let end = start + rest.len();
    let unclosed = scan.open.first().map(|(open, _)| Unclosed { at: scan.last, open: *open });
    Statement { range: start..end, is_header: true, keys: start..scan.last, unclosed }
}

fn pair(text: &str, start: usize) -> Statement {
    let mut scan = Scan::new(text, start);
    let mut keys = start..start;
    loop {
        let (at, open) = (scan.at, scan.open.len());
        match scan.step() {
            Step::Equals if open == 0 && keys.is_empty() => keys = start..at,
            Step::Line if open == 0 => break,
            Step::Line if scan.ends_here() => break,
            Step::End => break,
            _ => {}
        }
    }
    let missing = scan.open.last().map(|(open, _)| Unclosed { at: scan.last, open: *open });
    Statement { range: start..scan.last, is_header: false, keys, unclosed: scan.mismatch.or(missing) }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Step {
    Equals,
    Line,
    Other,
    End,
}

/// A walk over a text: strings and comments as one step each, brackets counted.
struct Scan<'t> {
    text: &'t str,
    at: usize,
    /// The end of what was no blank, comment or line end.
    last: usize,
    /// The brackets that are open, with their offsets.
    open: Vec<(usize, char)>,
    /// The first bracket that another kind of bracket closes.
    mismatch: Option<Unclosed>,
}

impl<'t> Scan<'t> {
    fn new(text: &'t str, at: usize) -> Self {
        Self { text, at, last: at, open: Vec::new(), mismatch: None }
    }

    fn rest(&self) -> &'t str {
        self.text.get(self.at..).unwrap_or_default()
    }

    fn step(&mut self) -> Step {
        let rest = self.rest();
        let Some(first) = rest.chars().next() else { return Step::End };
        let length = match first {
            '#' => line(rest).len(),
            '"' | '\'' => string(rest, first),
            _ => first.len_utf8(),
        };
        match first {
            '[' | '{' => self.open.push((self.at, first)),
            ']' => self.close('['),
            '}' => self.close('{'),
            _ => {}
        }
        self.at += length;
        if !first.is_whitespace() && first != '#' {
            self.last = self.at;
        }
        match first {
            '=' => Step::Equals,
            '\n' => Step::Line,
            _ => Step::Other,
        }
    }

    fn close(&mut self, opener: char) {
        let Some(partner) = self.open.iter().rposition(|(_, open)| *open == opener) else { return };
        if let Some((open, _)) = self.open.get(partner + 1) {
            self.mismatch.get_or_insert(Unclosed { at: self.last, open: *open });
        }
        self.open.truncate(partner);
    }

    /// Whether the line that begins here can be no part of what is open.
    fn ends_here(&self) -> bool {
        let line = line(self.rest());
        let in_list = self.open.last().is_some_and(|(_, open)| *open == '[');
        is_header(line) || (in_list && is_key(line))
    }
}

/// The length of a string with its quotes. One on a line ends with it, closed or not.
fn string(rest: &str, quote: char) -> usize {
    let triple: String = [quote; 3].iter().collect();
    let (open, close) = if rest.starts_with(&triple) { (3, triple) } else { (1, quote.to_string()) };
    let mut at = open;
    while let Some(left) = rest.get(at..).filter(|left| !left.is_empty()) {
        if left.starts_with(&close) {
            return at + close.len();
        }
        if open == 1 && left.starts_with('\n') {
            return at;
        }
        let step = if quote == '"' && left.starts_with('\\') { 2 } else { 1 };
        at += left.chars().take(step).map(char::len_utf8).sum::<usize>();
    }
    rest.len()
}

/// `[name]` or `[[name.name]]`: bare words are no values of a list.
fn is_header(line: &str) -> bool {
    let line = line.split('#').next().unwrap_or_default().trim();
    let inside = line.strip_prefix('[').map(|rest| rest.trim_matches(['[', ']']).trim());
    let bare = |word: &str| {
        let word = word.trim();
        word.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_') && word.bytes().all(is_bare)
    };
    inside.is_some_and(|inside| {
        let mut words = inside.split('.');
        words.next().is_some_and(bare) && !VALUES.contains(&inside)
    })
}

/// `name =`, `name.name =` or `"name" =`.
fn is_key(line: &str) -> bool {
    let name = |byte: u8| is_bare(byte) || b".\"' \t".contains(&byte);
    line.split_once('=').is_some_and(|(key, _)| !key.trim().is_empty() && key.bytes().all(name))
}

fn is_bare(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"_-".contains(&byte)
}

/// Words that a list may hold.
const VALUES: [&str; 4] = ["true", "false", "inf", "nan"];
