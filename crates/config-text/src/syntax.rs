//! Finds all syntax errors and duplicate keys in text that is not valid TOML. Each mistake is
//! reported as one error.
//!
//! The TOML parser continues after an error, but treats all text after an unclosed list as part of
//! the list. This module therefore replaces the statement with the first error by blanks and parses
//! the text again. A broken header is blanked together with its section. Offsets stay the same.

use std::ops::Range;

use toml::de::{DeTable, DeValue, Error};

use crate::message::Message;
use crate::statements::{Statement, Unclosed, statements};
use crate::words::quote;

/// A syntax error or a duplicate key, with its offset.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Flaw {
    pub(crate) offset: usize,
    pub(crate) message: Message,
}

/// Returns the part of the text that can be read, and the errors. The search stops after [`MOST`]
/// errors. In this case, the text after the last error is dropped.
///
/// # Cost
/// One parse of the whole text for each error, but at most 32 MiB in total.
pub(crate) fn repair(text: &str) -> (String, Vec<Flaw>) {
    let (mut left, mut flaws) = (text.to_owned(), Vec::new());
    let most = (PARSED_BYTES / text.len().max(1)).clamp(1, MOST);
    while flaws.len() < most {
        let errors = DeTable::parse_recoverable(&left).1;
        // The parser reports duplicate keys only in the text that it can read, so syntax errors are
        // handled before duplicate keys.
        let Some(error) = errors.iter().min_by_key(|error| (is_twice(error), start(error, &left))) else {
            break;
        };
        let (flaw, broken) = cause(&left, error);
        flaws.push(flaw);
        if left.get(broken.clone()).is_none_or(|text| text.trim().is_empty()) {
            break;
        }
        let blank = |byte: u8| if byte == b'\n' { '\n' } else { ' ' };
        let blanks: String =
            left.as_bytes().get(broken.clone()).into_iter().flatten().copied().map(blank).collect();
        left.replace_range(broken, &blanks);
    }
    // The text after the last error was not checked, so reading it could return wrong values.
    if let Some(last) = flaws.last().filter(|_| flaws.len() == most) {
        left.truncate(left.floor_char_boundary(last.offset));
    }
    flaws.sort_by_key(|flaw| flaw.offset);
    (left, flaws)
}

fn is_twice(error: &Error) -> bool {
    error.message() == "duplicate key"
}

fn start(error: &Error, text: &str) -> usize {
    error.span().map_or(text.len(), |span| span.start)
}

/// Converts an error of the TOML parser into the error to report. Also returns the range of the
/// text that cannot be read because of the error.
fn cause(text: &str, error: &Error) -> (Flaw, Range<usize>) {
    let at = start(error, text);
    let all = statements(text);
    // If a bracket is not closed, the parser reports the error at the end of the text.
    let before = |one: &&Statement| one.range.start <= at;
    let unclosed = all.iter().take_while(before).position(|one| one.unclosed.is_some());
    let number = unclosed
        .filter(|_| !is_twice(error))
        .or_else(|| all.iter().take_while(before).count().checked_sub(1));
    let Some((number, statement)) = number.and_then(|number| Some((number, all.get(number)?))) else {
        return (Flaw::of(at, error), at..text.len());
    };
    let broken = if statement.is_header { section(&all, number, text) } else { statement.range.clone() };
    if is_twice(error) {
        return (twice(text, &all, number, at), broken);
    }
    let flaw = match &statement.unclosed {
        Some(unclosed) => Flaw { offset: unclosed.at, message: words(text, unclosed) },
        None => Flaw::of(at, error),
    };
    (flaw, broken)
}

impl Flaw {
    /// Creates an error with the message of the parser.
    fn of(offset: usize, error: &Error) -> Self {
        let message = format!("invalid TOML ({})", error.message().replace('\n', " "));
        Self { offset, message: message.into() }
    }
}

fn words(text: &str, unclosed: &Unclosed) -> Message {
    let Unclosed { at, open } = *unclosed;
    let (bracket, close) =
        if text.get(open..).is_some_and(|rest| rest.starts_with('[')) { ('[', ']') } else { ('{', '}') };
    let (here, there) = (line(text, at), line(text, open));
    let place = if here == there { String::new() } else { format!(" on line {there}") };
    (format!("`{bracket}`{place} is not closed"), format!("add `{close}`")).into()
}

/// Returns the range of a section, from its header to the next header.
fn section(all: &[Statement], header: usize, text: &str) -> Range<usize> {
    let next = all.iter().skip(header + 1).find(|one| one.is_header);
    let start = all.get(header).map_or(text.len(), |one| one.range.start);
    start..next.map_or(text.len(), |next| next.range.start)
}

/// Returns the error for a key or section that is defined twice. The help line of the error
/// contains the line number of the first definition.
fn twice(text: &str, all: &[Statement], number: usize, at: usize) -> Flaw {
    let mut paths = paths(text, all);
    let (before, here) = (paths.by_ref().take(number).collect::<Vec<_>>(), paths.next());
    let (path, statement) = here.unwrap_or_default();
    let is_header = statement.is_some_and(|one| one.is_header);
    // A key inside an inline table is not a statement.
    let is_own = statement.is_some_and(|one| one.keys.contains(&at));
    let first = first(&before, &path).filter(|_| is_own);
    let help = first.map(|one| format!("the first definition is on line {}", line(text, one.range.start)));
    let name = path.join(".");
    let message = match (is_own, is_header) {
        (false, _) => "a key is defined twice in one table".to_owned(),
        (true, true) => format!("section [{}] is defined twice", name.escape_debug()),
        (true, false) => format!("key {} is defined twice", quote(&name)),
    };
    Flaw { offset: at, message: (message, help.unwrap_or_default()).into() }
}

/// Returns the earlier statement that defines the same path.
fn first<'s>(before: &[(Vec<String>, Option<&'s Statement>)], path: &[String]) -> Option<&'s Statement> {
    // Different elements of an array of tables may have the same keys, so the last definition
    // before this definition is reported as the duplicate.
    let same = before.iter().rfind(|(other, _)| other == path);
    // A key such as `a.b` also conflicts with `a = 1`.
    let part = |(other, one): &&(Vec<String>, Option<&Statement>)| {
        let is_value = one.is_some_and(|one| !one.is_header);
        is_value && !other.is_empty() && (path.starts_with(other) || other.starts_with(path))
    };
    same.or_else(|| before.iter().find(part)).and_then(|(_, one)| *one)
}

/// Returns each statement with its full path, which consists of the keys in the section header and
/// the keys in the statement.
fn paths<'s>(
    text: &'s str,
    all: &'s [Statement],
) -> impl Iterator<Item = (Vec<String>, Option<&'s Statement>)> {
    all.iter().scan(Vec::new(), move |section, statement| {
        let keys = text.get(statement.keys.clone()).unwrap_or_default();
        if statement.is_header {
            *section = path(keys);
            return Some((section.clone(), Some(statement)));
        }
        let own = path(&format!("{keys} = 0"));
        Some((section.iter().cloned().chain(own).collect(), Some(statement)))
    })
}

/// Returns the keys of one statement. The TOML parser handles quotes and dots.
fn path(statement: &str) -> Vec<String> {
    let (table, _) = DeTable::parse_recoverable(statement);
    let (mut keys, mut next) = (Vec::new(), table.get_ref().iter().next());
    while let Some((key, value)) = next {
        keys.push(key.get_ref().to_string());
        next = match value.get_ref() {
            DeValue::Table(table) => table.iter().next(),
            _ => None,
        };
    }
    keys
}

/// Returns the line number of an offset, starting at 1.
fn line(text: &str, offset: usize) -> usize {
    text.bytes().take(offset).filter(|&byte| byte == b'\n').count() + 1
}

/// The maximum number of errors. Each error costs one parse of the whole text.
const MOST: usize = 20;
/// The maximum number of bytes to parse in total. The total is limited because clients can send
/// large configurations with `config put`.
const PARSED_BYTES: usize = 32 << 20;
