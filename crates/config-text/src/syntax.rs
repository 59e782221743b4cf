//! What is wrong with a text that is not TOML, or says something twice: one flaw for each cause, where it stands.
//!
//! In: a text that the parser refuses. Out: its flaws in their order, and the text without what is broken, blanks in its
//! place, so that the rest can be read at the same offsets.
//! The parser goes on behind an error as it can: a list that is not closed swallows all that follows. So the statement
//! (a header up to the next one, or a key with its value) that the first error is in is blanked, and the text is parsed
//! again. Not here: what large texts are parsed in (`pieces`); the same section in several files (`reader`).

use std::ops::Range;

use toml::de::{DeTable, DeValue, Error};

use crate::statements::{Statement, Unclosed, statements};
use crate::words::quote;

/// What is wrong at an offset.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Flaw {
    pub(crate) offset: usize,
    pub(crate) found: String,
    pub(crate) allowed: &'static str,
}

/// The flaws, at most [`MOST`], and what is left of the text: nothing behind the last of so many.
///
/// # Cost
/// A parse of the whole for each, of 32 MiB in all.
pub(crate) fn mend(text: &str) -> (String, Vec<Flaw>) {
    let (mut left, mut flaws) = (text.to_owned(), Vec::new());
    let most = (PARSED_BYTES / text.len().max(1)).clamp(1, MOST);
    while flaws.len() < most {
        let errors = DeTable::parse_recoverable(&left).1;
        // Something twice is found while the rest is read: what is broken before comes first.
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
    // What was not looked for would make wrong values.
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

/// The flaw behind an error, and what can't be read for it.
fn cause(text: &str, error: &Error) -> (Flaw, Range<usize>) {
    let at = start(error, text);
    let all = statements(text);
    // What is not closed goes on to the end for the parser.
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
        Some(unclosed) => Flaw {
            offset: unclosed.at,
            found: format!("a syntax error ({})", words(text, unclosed)),
            allowed: TOML,
        },
        None => Flaw::of(at, error),
    };
    (flaw, broken)
}

impl Flaw {
    /// As the parser says.
    fn of(offset: usize, error: &Error) -> Self {
        let found = format!("a syntax error ({})", error.message().replace('\n', " "));
        Self { offset, found, allowed: TOML }
    }
}

fn words(text: &str, unclosed: &Unclosed) -> String {
    let Unclosed { at, open } = *unclosed;
    let (bracket, close) =
        if text.get(open..).is_some_and(|rest| rest.starts_with('[')) { ('[', ']') } else { ('{', '}') };
    let (here, there) = (line(text, at), line(text, open));
    let place = if here == there { String::new() } else { format!(" of line {there}") };
    format!("`{bracket}`{place} is not closed, expected `{close}`")
}

/// From a header to the next one.
fn section(all: &[Statement], header: usize, text: &str) -> Range<usize> {
    let next = all.iter().skip(header + 1).find(|one| one.is_header);
    let start = all.get(header).map_or(text.len(), |one| one.range.start);
    start..next.map_or(text.len(), |next| next.range.start)
}

/// What is said a second time, with the line of the first.
fn twice(text: &str, all: &[Statement], number: usize, at: usize) -> Flaw {
    let mut paths = paths(text, all);
    let (before, here) = (paths.by_ref().take(number).collect::<Vec<_>>(), paths.next());
    let (path, statement) = here.unwrap_or_default();
    let is_header = statement.is_some_and(|one| one.is_header);
    // A key inside of a value has no statement of its own.
    let is_own = statement.is_some_and(|one| one.keys.contains(&at));
    let after = first(&before, &path)
        .filter(|_| is_own)
        .map(|one| format!(", after line {}", line(text, one.range.start)));
    let (what, allowed) =
        if is_header { ("section", "each section once") } else { ("key", "each key once in its table") };
    let name = if is_own { quote(&path.join(".")) } else { "in one table".to_owned() };
    Flaw { offset: at, found: format!("a second {what} {name}{}", after.unwrap_or_default()), allowed }
}

/// The statement that gives what another one with this path gives again.
fn first<'s>(before: &[(Vec<String>, Option<&'s Statement>)], path: &[String]) -> Option<&'s Statement> {
    // Of the elements of a list each may have the same keys: the nearest counts.
    let same = before.iter().rfind(|(other, _)| other == path);
    // `a = 1` and `a.b = 1`.
    let part = |(other, one): &&(Vec<String>, Option<&Statement>)| {
        let is_value = one.is_some_and(|one| !one.is_header);
        is_value && !other.is_empty() && (path.starts_with(other) || other.starts_with(path))
    };
    same.or_else(|| before.iter().find(part)).and_then(|(_, one)| *one)
}

/// The statements, each with the keys that lead to what it gives: those of its section, and its own.
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

/// The keys of one statement, whose quotes and dots the parser knows.
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

/// The line of an offset, from 1.
fn line(text: &str, offset: usize) -> usize {
    text.bytes().take(offset).filter(|&byte| byte == b'\n').count() + 1
}

const TOML: &str = "TOML 1.0";
/// More are not looked for: each costs a parse of the whole.
const MOST: usize = 20;
/// So that the flaws of a large text, which `config put` takes, cost no more than those of a small one.
const PARSED_BYTES: usize = 32 << 20;
