//! Splits configuration text into statements, even if the text is not valid TOML. A statement is a
//! header `[...]`, or a key with its value.
//!
//! A value continues on the next line while a bracket is open. If the next line can only be a
//! header or another key, the value ends before that line, because its closing bracket must be
//! missing. The module `syntax` reports the errors.
//!
//! Reference: TOML 1.1.

use std::ops::Range;

/// A header, or a key with its value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Statement {
    pub(crate) range: Range<usize>,
    pub(crate) is_header: bool,
    /// The range of the keys, which is the whole header or the part of a statement before `=`.
    pub(crate) keys: Range<usize>,
    pub(crate) unclosed: Option<Unclosed>,
}

/// A missing closing bracket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Unclosed {
    /// The offset where the closing bracket is missing.
    pub(crate) at: usize,
    /// The offset of the opening bracket.
    pub(crate) open: usize,
}

/// Returns all statements in configuration text. Blank lines and comments are skipped.
///
/// # Cost
/// Linear in the length of the text.
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

/// Returns the text up to the end of the current line.
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

/// A scanner that tracks unclosed brackets. Each string or comment is skipped in one step.
struct Scan<'t> {
    text: &'t str,
    at: usize,
    /// The end of the last string, bracket or word. White space, comments and line feeds are not
    /// included.
    last: usize,
    /// The offset and kind of each open bracket.
    open: Vec<(usize, char)>,
    /// The number of open `[`.
    lists: usize,
    /// The number of open `{`.
    tables: usize,
    /// The first bracket that was closed by a bracket of a different kind.
    mismatch: Option<Unclosed>,
}

impl<'t> Scan<'t> {
    fn new(text: &'t str, at: usize) -> Self {
        Self { text, at, last: at, open: Vec::new(), lists: 0, tables: 0, mismatch: None }
    }

    fn rest(&self) -> &'t str {
        self.text.get(self.at..).unwrap_or_default()
    }

    fn step(&mut self) -> Step {
        #[cfg(test)]
        crate::steps::add(1);
        let rest = self.rest();
        let Some(first) = rest.chars().next() else { return Step::End };
        let length = match first {
            '#' => line(rest).len(),
            '"' | '\'' => string(rest, first),
            _ => first.len_utf8(),
        };
        match first {
            '[' | '{' => self.open(first),
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

    fn open(&mut self, bracket: char) {
        self.open.push((self.at, bracket));
        *self.count(bracket) += 1;
    }

    fn close(&mut self, opener: char) {
        // A closing bracket without a matching opening bracket is skipped without a search.
        // Otherwise the search visits only brackets that are then removed, so the total cost stays
        // linear.
        if *self.count(opener) == 0 {
            return;
        }
        let mut inner = None;
        while let Some((open, bracket)) = self.open.pop() {
            #[cfg(test)]
            crate::steps::add(1);
            *self.count(bracket) -= 1;
            if bracket == opener {
                break;
            }
            inner = Some(open);
        }
        if let Some(open) = inner {
            self.mismatch.get_or_insert(Unclosed { at: self.last, open });
        }
    }

    /// Returns the number of open brackets of the same kind.
    fn count(&mut self, bracket: char) -> &mut usize {
        if bracket == '[' { &mut self.lists } else { &mut self.tables }
    }

    /// Returns `true` if the current line cannot be a part of the preceding value, which has
    /// unclosed brackets.
    fn ends_here(&self) -> bool {
        let line = line(self.rest());
        let in_list = self.open.last().is_some_and(|(_, open)| *open == '[');
        is_header(line) || (in_list && is_key(line))
    }
}

/// Returns the length of a string, including its quotes. An unclosed single-line string ends at the
/// end of the line.
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

/// Returns `true` for a line such as `[name]` or `[[name.name]]` that cannot be a list inside a
/// value.
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

/// Returns `true` for a line that begins with `name =`, `name.name =` or `"name" =`.
fn is_key(line: &str) -> bool {
    let name = |byte: u8| is_bare(byte) || b".\"' \t".contains(&byte);
    line.split_once('=').is_some_and(|(key, _)| !key.trim().is_empty() && key.bytes().all(name))
}

fn is_bare(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"_-".contains(&byte)
}

/// Unquoted words that may be elements of a list.
const VALUES: [&str; 4] = ["true", "false", "inf", "nan"];
