//! Holds the texts of all files, collects problems while they are read (by several threads), and turns byte offsets into files and lines.
//!
//! In: places (offset, field) from the reader and the checks. Out: [`Problems`], sorted.
//! An offset counts through all files in the order in which they were added, so that a place is one number.
//! Invariant: with one error collected [`Report::finish`] gives an error;
//! therefore a reader may go on with a default after it has reported one.
//! After a syntax error the parser has skipped text, so what seems to be missing may only be unread:
//! problems of absence, warnings, and problems on that same line are then left out.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use crate::field::Field;
use crate::near_miss::hint;
use crate::pieces;
use crate::problem::{Problem, Problems, Severity};
use crate::questions::{self, Questions, Step};
use crate::words::quote;

/// Where a value stands: its byte offset in all files and the path of keys that leads to it.
#[derive(Clone, Debug, Default)]
pub struct Place {
    /// In bytes, through all files in the order in which they were read.
    pub offset: usize,
    /// The path of keys.
    pub field: Field,
}

impl Place {
    /// Of a key at the top of the first file.
    pub fn top(key: &'static str) -> Self {
        Self { offset: 0, field: Field::of(key) }
    }

    /// Of a key that the table here has not, and might.
    pub fn key(&self, key: &'static str) -> Self {
        Self { offset: self.offset, field: Arc::new(self.field.clone()).key(key) }
    }
}

/// A checked value that remembers where it was written.
#[derive(Clone, Debug)]
pub struct At<T> {
    /// The value.
    pub value: T,
    /// Where it was written.
    pub place: Place,
}

/// The values without their places.
pub fn values<T: Clone>(list: &[At<T>]) -> Vec<T> {
    list.iter().map(|at| at.value.clone()).collect()
}

/// What a problem rests on.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Ground {
    Syntax,
    Value,
    Absence,
    /// Nothing is wrong: a warning.
    Doubt,
}

/// A problem, and which file it stands in.
struct Collected {
    ground: Ground,
    file: usize,
    problem: Problem,
}

impl Collected {
    /// What problems are sorted by.
    fn order(&self) -> impl Ord + '_ {
        let Problem { file, position, field, found, .. } = &self.problem;
        (self.file, file, position, field, found)
    }
}

/// One file that was read.
pub struct Text {
    /// As it was named.
    pub path: Arc<Path>,
    /// All of it.
    pub text: String,
    /// The offset of its first byte.
    pub(crate) base: usize,
    line_starts: Vec<usize>,
    /// Of a text that is not TOML, what can be read, at the same offsets.
    pub(crate) mended: OnceLock<String>,
}

/// The collector for one configuration.
pub struct Report {
    /// Filled from the front and never moved, because what is parsed from them borrows them.
    texts: Box<[OnceLock<Text>]>,
    collected: Mutex<Vec<Collected>>,
    /// `None`: nobody wants to know.
    questions: Option<Mutex<Questions>>,
}

/// Without a file, and without a problem.
impl Default for Report {
    fn default() -> Self {
        let texts = std::iter::repeat_with(OnceLock::new).take(MAX_FILES).collect();
        Self { texts, collected: Mutex::default(), questions: None }
    }
}

impl Report {
    /// As the default, and keeps what readers ask.
    pub fn with_questions() -> Self {
        Self { questions: Some(Mutex::default()), ..Self::default() }
    }

    /// What readers have asked; nothing, unless it was kept.
    pub fn questions(self) -> Questions {
        let questions = self.questions.map(Mutex::into_inner);
        questions.map(|inner| inner.unwrap_or_else(PoisonError::into_inner)).unwrap_or_default()
    }

    /// Keeps what is asked of a value, where that is wanted.
    pub(crate) fn ask(&self, field: impl FnOnce() -> Field, step: impl FnOnce() -> Step) {
        if let Some(questions) = &self.questions {
            let mut questions = questions.lock().unwrap_or_else(PoisonError::into_inner);
            questions::keep(&mut questions, &field(), step());
        }
    }

    /// Keeps one more file; `None` when there are [`MAX_FILES`] already.
    pub(crate) fn add(&self, path: &Path, text: String) -> Option<&Text> {
        let free = self.texts.iter().find(|cell| cell.get().is_none())?;
        // One more than its length, so that the end of a file is not the start of the next.
        let base = self.texts().last().map_or(0, |last| last.base + last.text.len() + 1);
        let starts = text.bytes().enumerate().filter(|&(_, byte)| byte == b'\n').map(|(at, _)| at + 1);
        let line_starts = std::iter::once(0).chain(starts).collect();
        Some(free.get_or_init(|| Text {
            path: path.into(),
            text,
            base,
            line_starts,
            mended: OnceLock::new(),
        }))
    }

    /// The files so far, in the order in which they were added.
    pub fn texts(&self) -> impl Iterator<Item = &Text> {
        self.texts.iter().map_while(OnceLock::get)
    }

    /// Whether there is work for several threads.
    pub fn is_large(&self) -> bool {
        pieces::is_large(self.texts().map(|text| text.text.len()).sum())
    }

    /// The folder of the file in which a place stands.
    pub fn folder(&self, place: &Place) -> PathBuf {
        let file = self.file(place.offset).map(|(_, text)| &*text.path);
        file.and_then(Path::parent).unwrap_or(Path::new("")).to_owned()
    }

    fn file(&self, offset: usize) -> Option<(usize, &Text)> {
        self.texts().enumerate().take_while(|(_, text)| text.base <= offset).last()
    }

    /// TOML itself is broken at `offset`.
    pub(crate) fn syntax(&self, offset: usize, found: String, allowed: &str) {
        self.push(Ground::Syntax, &Place { offset, field: Field::default() }, found, allowed);
    }

    /// A value that is there is wrong.
    pub fn error(&self, place: &Place, found: impl Into<String>, allowed: impl Into<String>) {
        self.push(Ground::Value, place, found, allowed);
    }

    /// Something that should be there is not: a key, or the target of a reference.
    pub fn absent(&self, place: &Place, found: impl Into<String>, allowed: impl Into<String>) {
        self.push(Ground::Absence, place, found, allowed);
    }

    /// A name that nothing has; `allowed` says what has names, and the nearest of `known` follows as a hint.
    pub fn unknown<'k>(&self, name: &At<Arc<str>>, known: impl Iterator<Item = &'k Arc<str>>, allowed: &str) {
        let hint = hint(&name.value, known.map(|known| &**known));
        self.absent(&name.place, format!("\"{}\"", name.value), format!("{allowed}{hint}"));
    }

    /// Usable, and probably not meant.
    pub fn warning(&self, place: &Place, found: impl Into<String>, allowed: impl Into<String>) {
        self.push(Ground::Doubt, place, found, allowed);
    }

    /// A second place for the message of a problem at `from`: its field and line, and its file when it is another.
    pub fn name(&self, place: &Place, from: &Place) -> String {
        let (line, _) = self.position(place.offset);
        let file = |place: &Place| self.file(place.offset);
        match (file(place), file(from)) {
            (Some((one, text)), Some((other, _))) if one != other => {
                format!("{} in {}:{line}", place.field, text.path.display())
            }
            _ => format!("{} in line {line}", place.field),
        }
    }

    /// A problem of a file that can't be read, at the place that asked for it.
    pub(crate) fn unreadable(&self, place: &Place, problem: &Problem) {
        let found = format!("{}: {}", quote(&problem.file.display().to_string()), problem.found);
        self.error(place, found, problem.allowed.as_str());
    }

    /// A problem in a file that is not TOML and was not kept.
    pub fn elsewhere(&self, problem: Problem) {
        self.collect(Collected { ground: Ground::Value, file: MAX_FILES, problem });
    }

    /// All that was collected: `Err` with errors and warnings when there is an error, else the warnings.
    pub fn finish(self) -> Result<Problems, Problems> {
        let collected = self.collected.into_inner().unwrap_or_else(PoisonError::into_inner);
        let line = |one: &Collected| (one.file, one.problem.line());
        let broken: BTreeSet<_> =
            collected.iter().filter(|one| one.ground == Ground::Syntax).map(line).collect();
        let holds = |one: &Collected| match one.ground {
            Ground::Syntax => true,
            Ground::Value => !broken.contains(&line(one)),
            Ground::Absence | Ground::Doubt => broken.is_empty(),
        };
        let mut collected: Vec<Collected> = collected.into_iter().filter(holds).collect();
        collected.sort_by(|one, other| one.order().cmp(&other.order()));
        let mut problems: Vec<Problem> = collected.into_iter().map(|one| one.problem).collect();
        problems.dedup();
        let refused = problems.iter().any(|problem| problem.severity == Severity::Error);
        if refused { Err(Problems(problems)) } else { Ok(Problems(problems)) }
    }

    fn push(&self, ground: Ground, place: &Place, found: impl Into<String>, allowed: impl Into<String>) {
        let Some((file, text)) = self.file(place.offset) else { return };
        let problem = Problem {
            file: Arc::clone(&text.path),
            position: Some(self.position(place.offset)),
            field: place.field.to_string(),
            found: found.into(),
            allowed: allowed.into(),
            severity: if ground == Ground::Doubt { Severity::Warning } else { Severity::Error },
        };
        self.collect(Collected { ground, file, problem });
    }

    fn collect(&self, problem: Collected) {
        self.collected.lock().unwrap_or_else(PoisonError::into_inner).push(problem);
    }

    /// Line and column of a byte offset, both from 1, the column in characters.
    fn position(&self, offset: usize) -> (usize, usize) {
        let Some((_, Text { text, base, line_starts, .. })) = self.file(offset) else { return (1, 1) };
        let offset = text.floor_char_boundary(offset - base);
        let line = line_starts.partition_point(|&start| start <= offset);
        let start = line_starts.get(line.saturating_sub(1)).copied().unwrap_or(0);
        let column = text.get(start..offset).map_or(0, |before| before.chars().count());
        (line, column + 1)
    }
}

/// More files than a cluster has VIPs worth a file of their own.
pub(crate) const MAX_FILES: usize = 1_024;
