//! Collects problems while the file is read, and turns byte offsets into lines.
//!
//! In: places (offset, field) from the reader and the checks. Out: [`Problems`], sorted.
//! Invariant: one error collected means that no [`Config`](super::Config) leaves [`parse`](super::parse);
//! therefore a reader may go on with a default after it has reported one.
//! After a syntax error the parser has skipped text, so what seems to be missing may only be unread:
//! problems of absence, warnings, and problems on that same line are then left out.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

use super::problem::{Problem, Problems, Severity};

/// Where a value stands: its byte offset and the path of keys that leads to it.
#[derive(Clone, Debug)]
pub(super) struct Place {
    pub(super) offset: usize,
    pub(super) field: String,
}

/// A checked value that remembers where it was written.
#[derive(Clone, Debug)]
pub(super) struct At<T> {
    pub(super) value: T,
    pub(super) place: Place,
}

/// What a problem rests on.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Ground {
    Syntax,
    Value,
    Absence,
}

/// The collector for one file.
pub(super) struct Report<'a> {
    file: Arc<Path>,
    text: &'a str,
    line_starts: Vec<usize>,
    collected: RefCell<Vec<(Ground, Problem)>>,
}

impl<'a> Report<'a> {
    pub(super) fn new(file: &Path, text: &'a str) -> Self {
        let starts = text.bytes().enumerate().filter(|&(_, byte)| byte == b'\n').map(|(at, _)| at + 1);
        let line_starts = std::iter::once(0).chain(starts).collect();
        Self { file: file.into(), text, line_starts, collected: RefCell::default() }
    }

    /// TOML itself is broken at `offset`.
    pub(super) fn syntax(&self, offset: usize, message: &str) {
        let place = Place { offset, field: String::new() };
        let found = format!("a syntax error ({})", message.replace('\n', " "));
        self.push(Ground::Syntax, Severity::Error, &place, found, "TOML 1.0".to_owned());
    }

    /// A value that is there is wrong.
    pub(super) fn error(&self, place: &Place, found: impl Into<String>, allowed: impl Into<String>) {
        self.push(Ground::Value, Severity::Error, place, found.into(), allowed.into());
    }

    /// Something that should be there is not: a key, or the target of a reference.
    pub(super) fn absent(&self, place: &Place, found: impl Into<String>, allowed: impl Into<String>) {
        self.push(Ground::Absence, Severity::Error, place, found.into(), allowed.into());
    }

    /// Usable, and probably not meant.
    pub(super) fn warning(&self, place: &Place, found: impl Into<String>, allowed: impl Into<String>) {
        self.push(Ground::Absence, Severity::Warning, place, found.into(), allowed.into());
    }

    /// The line of a place, from 1, for messages that name a second place.
    pub(super) fn line(&self, place: &Place) -> usize {
        self.position(place.offset).0
    }

    /// All that was collected: `Err` with errors and warnings when there is an error, else the warnings.
    pub(super) fn finish(self) -> Result<Problems, Problems> {
        let collected = self.collected.into_inner();
        let broken: BTreeSet<_> =
            collected.iter().filter(|(ground, _)| *ground == Ground::Syntax).map(|(_, p)| p.line()).collect();
        let mut problems: Vec<Problem> = collected
            .into_iter()
            .filter(|(ground, problem)| match ground {
                Ground::Syntax => true,
                Ground::Value => !broken.contains(&problem.line()),
                Ground::Absence => broken.is_empty(),
            })
            .map(|(_, problem)| problem)
            .collect();
        problems.sort_by(|a, b| (a.position, &a.field, &a.found).cmp(&(b.position, &b.field, &b.found)));
        problems.dedup();
        let refused = problems.iter().any(|problem| problem.severity == Severity::Error);
        if refused { Err(Problems(problems)) } else { Ok(Problems(problems)) }
    }

    fn push(&self, ground: Ground, severity: Severity, place: &Place, found: String, allowed: String) {
        let position = Some(self.position(place.offset));
        let field = place.field.clone();
        let problem = Problem { file: Arc::clone(&self.file), position, field, found, allowed, severity };
        self.collected.borrow_mut().push((ground, problem));
    }

    /// Line and column of a byte offset, both from 1, the column in characters.
    fn position(&self, offset: usize) -> (usize, usize) {
        let offset = self.text.floor_char_boundary(offset);
        let line = self.line_starts.partition_point(|&start| start <= offset);
        let start = self.line_starts.get(line.saturating_sub(1)).copied().unwrap_or(0);
        let column = self.text.get(start..offset).map_or(0, |before| before.chars().count());
        (line, column + 1)
    }
}
