//! The texts of all configuration files, and the problems found in them.
//!
//! Problems are reported with their positions (byte offset and key path), possibly from several
//! threads. [`Report::finish`] sorts the problems and adds the files and lines. Offsets are counted
//! across all files in the order in which the files were read, so one number identifies both a file
//! and a position in the file.
//!
//! After an error, reading may continue with a default value, because [`Report::finish`] will
//! return an error. After a syntax error, the parser skips text, which may contain keys that seem
//! to be missing. [`Report::finish`] therefore omits missing keys, warnings, and further problems
//! on the line of a syntax error.

use std::collections::BTreeSet;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use crate::excerpt::{Excerpt, excerpt};
use crate::field::Field;
use crate::message::Message;
use crate::near_miss::{MAX_KNOWN, hint};
use crate::pieces;
use crate::problem::{Problem, Problems, Severity, narrow};
use crate::questions::{self, Questions, Step};
use crate::words::{few, quote};

/// The position of a value, which consists of its byte offset in all files and its key path.
#[derive(Clone, Debug, Default)]
pub struct Place {
    /// The offset in bytes, counted across all files in the order in which they were read.
    pub offset: usize,
    /// The key path of the value.
    pub field: Field,
}

impl Place {
    /// Returns the position of a key at the top level of the first file.
    pub fn top(key: &'static str) -> Self {
        Self { offset: 0, field: Field::of(key) }
    }

    /// Returns the position to report for a key that is missing from this table.
    pub fn key(&self, key: &'static str) -> Self {
        Self { offset: self.offset, field: Arc::new(self.field.clone()).key(key) }
    }
}

/// A checked value with its position in the files.
#[derive(Clone, Debug)]
pub struct At<T> {
    /// The value that was read.
    pub value: T,
    /// The position of the value.
    pub place: Place,
}

/// Returns `true` for the path of a file that this process has already opened, such as the pipe of
/// `config check <(command)`.
pub(crate) fn is_open_file(path: &Path) -> bool {
    ["/dev/fd", "/dev/stdin", "/proc/self/fd"].iter().any(|folder| path.starts_with(folder))
}

/// Returns the values without their positions.
pub fn values<T: Clone>(list: &[At<T>]) -> Vec<T> {
    list.iter().map(|at| at.value.clone()).collect()
}

/// A renamed key, or a renamed value of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Renamed {
    /// The key path. For a renamed key, this is the path of the table that contains the key. For a
    /// renamed value, this is the path of the key with this value. Examples: `bgp.peers.[]`,
    /// `pool.*.kv.path`.
    pub path: &'static str,
    /// The name in earlier versions.
    pub old: &'static str,
    /// The current name.
    pub new: &'static str,
}

/// The cause of a problem.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Ground {
    Syntax,
    Value,
    Absence,
    /// The problem is a warning.
    Doubt,
}

/// A problem, and the index of its file.
struct Collected {
    ground: Ground,
    file: usize,
    /// The offset of the problem. `None` if the text of the file is not in the report.
    offset: Option<usize>,
    problem: Problem,
}

impl Collected {
    /// Returns the sort key of the problem.
    fn order(&self) -> impl Ord + '_ {
        let Problem { file, position, field, message, .. } = &self.problem;
        (self.file, file, position, field, message)
    }
}

/// One file that was read.
pub struct Text {
    /// The path of the file, as the caller passed it.
    pub path: Arc<Path>,
    /// The content of the file.
    pub text: String,
    /// The offset of the first byte of the file.
    pub(crate) base: usize,
    line_starts: Vec<usize>,
    /// The number of characters before each multiple of [`STRIDE`] bytes.
    characters: Vec<usize>,
    /// The repaired content of a file with syntax errors. The broken parts are replaced by blanks,
    /// so that offsets stay the same.
    pub(crate) repaired: OnceLock<String>,
}

impl Text {
    /// Returns the number of the line that contains `offset`, starting at 1, and the byte range of
    /// the line without its line feed. `offset` is counted from the start of this file.
    fn line(&self, offset: usize) -> (usize, Range<usize>) {
        let line = self.line_starts.partition_point(|&start| start <= offset);
        let start = self.line_starts.get(line.saturating_sub(1)).copied().unwrap_or(0);
        let end = self.line_starts.get(line).map_or(self.text.len(), |next| next - 1);
        (line, start..end)
    }

    /// Returns the number of characters before `offset`, which is counted from the start of this
    /// file.
    ///
    /// # Cost
    /// Reads at most [`STRIDE`] bytes. A file may have many problems on one long line, so the cost
    /// must not depend on the length of the line.
    fn characters_before(&self, offset: usize) -> usize {
        // The end of the file may be a multiple of `STRIDE` for which no number is stored.
        let number = (offset / STRIDE).min(self.characters.len().saturating_sub(1));
        let known = self.characters.get(number).copied().unwrap_or(0);
        known + characters(self.text.as_bytes().get(number * STRIDE..offset).unwrap_or_default())
    }
}

/// Returns the number of characters that start in a part of a UTF-8 text.
fn characters(part: &[u8]) -> usize {
    #[cfg(test)]
    crate::steps::add(part.len());
    part.iter().filter(|&&byte| byte & 0xc0 != 0x80).count()
}

/// Collects the problems in one configuration.
pub struct Report {
    /// Each cell is filled only once and never moved, because parsed tables hold references to the
    /// texts.
    texts: Box<[OnceLock<Text>]>,
    collected: Mutex<Vec<Collected>>,
    /// The ranges of offsets that must not be printed.
    hidden: Mutex<Vec<Range<usize>>>,
    renamed: &'static [Renamed],
    /// The recorded schema. `None` if no schema is recorded.
    questions: Option<Mutex<Questions>>,
    /// The work that hints have caused so far, in pairs of compared characters.
    compared: AtomicUsize,
}

/// Creates a report without files and problems.
impl Default for Report {
    fn default() -> Self {
        let texts = std::iter::repeat_with(OnceLock::new).take(MAX_FILES).collect();
        let (collected, hidden) = (Mutex::default(), Mutex::default());
        Self { texts, collected, hidden, renamed: &[], questions: None, compared: AtomicUsize::new(0) }
    }
}

impl Report {
    /// Creates a report that records the schema: the keys that are read and the values that are
    /// accepted.
    pub fn with_questions() -> Self {
        Self { questions: Some(Mutex::default()), ..Self::default() }
    }

    /// Adds renamed keys and values. Problems about an old name then also contain the new name.
    #[must_use]
    pub fn with_renamed(self, renamed: &'static [Renamed]) -> Self {
        Self { renamed, ..self }
    }

    /// Returns the recorded schema. The schema is empty unless the report was created by
    /// [`with_questions`](Self::with_questions).
    pub fn questions(self) -> Questions {
        let questions = self.questions.map(Mutex::into_inner);
        questions.map(|inner| inner.unwrap_or_else(PoisonError::into_inner)).unwrap_or_default()
    }

    /// Records a schema event for a key path.
    pub(crate) fn ask(&self, field: impl FnOnce() -> Field, step: impl FnOnce() -> Step) {
        if let Some(questions) = &self.questions {
            let mut questions = questions.lock().unwrap_or_else(PoisonError::into_inner);
            questions::keep(&mut questions, &field(), step());
        }
    }

    /// Adds a file. Returns `None` if the report already has [`MAX_FILES`] files.
    pub(crate) fn add(&self, path: &Path, text: String) -> Option<&Text> {
        let free = self.texts.iter().find(|cell| cell.get().is_none())?;
        // The gap of one byte keeps the end of a file distinct from the start of the next file.
        let base = self.texts().last().map_or(0, |last| last.base + last.text.len() + 1);
        let starts = text.bytes().enumerate().filter(|&(_, byte)| byte == b'\n').map(|(at, _)| at + 1);
        let line_starts = std::iter::once(0).chain(starts).collect();
        let characters = text.as_bytes().chunks(STRIDE).scan(0, |before, part| {
            let here = *before;
            *before += characters(part);
            Some(here)
        });
        let characters = characters.collect();
        let (path, repaired) = (path.into(), OnceLock::new());
        Some(free.get_or_init(|| Text { path, text, base, line_starts, characters, repaired }))
    }

    /// Returns the files in the order in which they were added.
    pub fn texts(&self) -> impl Iterator<Item = &Text> {
        self.texts.iter().map_while(OnceLock::get)
    }

    /// Returns `true` if the files are large enough for several threads to read them faster than
    /// one thread.
    pub fn is_large(&self) -> bool {
        pieces::is_large(self.texts().map(|text| text.text.len()).sum())
    }

    /// Returns the folder of the file that contains a position. For a pipe from the shell, this is
    /// the working directory, which is the empty path.
    pub fn folder(&self, place: &Place) -> PathBuf {
        let file = self.file(place.offset).map(|(_, text)| &*text.path).filter(|path| !is_open_file(path));
        file.and_then(Path::parent).unwrap_or(Path::new("")).to_owned()
    }

    fn file(&self, offset: usize) -> Option<(usize, &Text)> {
        self.texts().enumerate().take_while(|(_, text)| text.base <= offset).last()
    }

    /// Prevents text in a range of offsets from being printed.
    pub(crate) fn hide(&self, range: Range<usize>) {
        self.hidden.lock().unwrap_or_else(PoisonError::into_inner).push(range);
    }

    /// Returns the new name of a renamed key or value. For a key, `path` is the path of the table
    /// that contains the key. For a value, `path` is the path of the key with this value.
    pub(crate) fn new_name(&self, path: &Field, old: &str) -> Option<&'static str> {
        let mut known = self.renamed.iter().filter(|renamed| renamed.old == old).peekable();
        known.peek()?;
        let path = path.path().join(".");
        known.find(|renamed| renamed.path == path).map(|renamed| renamed.new)
    }

    /// Reports a TOML syntax error at `offset`.
    pub(crate) fn syntax(&self, offset: usize, message: Message) {
        self.push(Ground::Syntax, &Place { offset, field: Field::default() }, message);
    }

    /// Reports a wrong value.
    pub fn error(&self, place: &Place, message: impl Into<Message>) {
        self.push(Ground::Value, place, message.into());
    }

    /// Reports that a key, or a section to which a key refers, is missing.
    pub fn absent(&self, place: &Place, message: impl Into<Message>) {
        self.push(Ground::Absence, place, message.into());
    }

    /// Returns the hint of [`hint`] for a name that the text refers to. A text may have many names,
    /// and each is compared with all known names, so only the first names get a hint.
    pub fn hint<'k>(&self, name: &str, known: impl IntoIterator<Item = &'k str>) -> Option<String> {
        let known: Vec<&str> = known.into_iter().take(MAX_KNOWN + 1).collect();
        let pairs = name.len() * known.iter().map(|known| known.len()).sum::<usize>();
        if self.compared.fetch_add(pairs, Ordering::Relaxed) > MAX_COMPARED {
            return None;
        }
        #[cfg(test)]
        crate::steps::add(pairs);
        hint(name, known)
    }

    /// Reports a reference to a section that does not exist. `kind` is the kind of section in
    /// words, such as `prefix group`. The help line suggests the most similar of the `known` names,
    /// or lists some of the known names.
    pub fn unknown<'k>(
        &self,
        name: &At<Arc<str>>,
        known: impl IntoIterator<Item = &'k Arc<str>>,
        kind: &str,
    ) {
        let known: Vec<&str> = known.into_iter().map(|known| &**known).take(MAX_KNOWN + 1).collect();
        let help = self.hint(&name.value, known.iter().copied()).unwrap_or_else(|| {
            let section = kind.to_ascii_lowercase().replace(' ', "_");
            match known.len() {
                0 => format!("add a section [{section}.{}]", name.value),
                1..=MAX_KNOWN => format!("known {kind}s: {}", few(known)),
                _ => format!("add a section [{section}.{}], or use one of the known {kind}s", name.value),
            }
        });
        self.absent(&name.place, (format!("unknown {kind} {}", quote(&name.value)), help));
    }

    /// Reports a valid value that is probably a mistake.
    pub fn warning(&self, place: &Place, message: impl Into<Message>) {
        self.push(Ground::Doubt, place, message.into());
    }

    /// Returns a description of `place` for a message about a problem at `from`. The description
    /// contains the key path and the line of `place`. If `place` and `from` are in different files,
    /// the description also contains the file.
    pub fn name(&self, place: &Place, from: &Place) -> String {
        let (line, _) = self.position(place.offset);
        let file = |place: &Place| self.file(place.offset);
        match (file(place), file(from)) {
            (Some((one, text)), Some((other, _))) if one != other => {
                format!("{} in {}:{line}", place.field, text.path.display())
            }
            _ => format!("{} on line {line}", place.field),
        }
    }

    /// Reports a problem in a file that is not part of the report, such as a key file.
    pub fn elsewhere(&self, problem: Problem) {
        self.collect(Collected { ground: Ground::Value, file: MAX_FILES, offset: None, problem });
    }

    /// Returns all problems.
    ///
    /// # Errors
    /// If there is at least one error, returns the errors together with the warnings.
    pub fn finish(self) -> Result<Problems, Problems> {
        let collected = std::mem::take(&mut *self.collected.lock().unwrap_or_else(PoisonError::into_inner));
        let line = |one: &Collected| (one.file, one.problem.line());
        let broken: BTreeSet<_> =
            collected.iter().filter(|one| one.ground == Ground::Syntax).map(line).collect();
        let holds = |one: &Collected| match one.ground {
            Ground::Syntax => true,
            Ground::Value => !broken.contains(&line(one)),
            Ground::Absence | Ground::Doubt => broken.is_empty(),
        };
        let hidden = self.disjoint();
        let mut collected: Vec<Collected> = collected.into_iter().filter(holds).collect();
        collected.sort_by(|one, other| one.order().cmp(&other.order()));
        collected.dedup_by(|one, other| one.problem == other.problem);
        for one in collected.iter_mut().take(MAX_EXCERPTS) {
            one.problem.excerpt = self.excerpt(one, &hidden).map(Box::new);
        }
        let problems: Vec<Problem> = collected.into_iter().map(|one| one.problem).collect();
        let refused = problems.iter().any(|problem| problem.severity == Severity::Error);
        if refused { Err(Problems(problems)) } else { Ok(Problems(problems)) }
    }

    /// Returns the ranges that must not be printed, sorted and merged.
    fn disjoint(&self) -> Vec<Range<usize>> {
        let mut all = std::mem::take(&mut *self.hidden.lock().unwrap_or_else(PoisonError::into_inner));
        all.sort_unstable_by_key(|range| range.start);
        let mut merged: Vec<Range<usize>> = Vec::with_capacity(all.len());
        for range in all {
            match merged.last_mut() {
                Some(last) if range.start <= last.end => last.end = last.end.max(range.end),
                _ => merged.push(range),
            }
        }
        merged
    }

    /// Returns the line to print below a problem. Returns `None` if the line would not help the
    /// operator or may contain a secret.
    fn excerpt(&self, one: &Collected, hidden: &[Range<usize>]) -> Option<Excerpt> {
        let offset = one.offset?;
        let (file, text) = self.file(offset)?;
        let is_first_byte = offset == text.base && matches!(one.ground, Ground::Absence | Ground::Doubt);
        // An included file with a syntax error may not be a configuration at all. The file could be
        // a private key.
        if is_first_byte || (one.ground == Ground::Syntax && file > 0) {
            return None;
        }
        let end = text.base + text.text.len();
        let first = hidden.partition_point(|range| range.end <= text.base);
        let inside = hidden.get(first..).unwrap_or_default();
        let (_, line) = text.line(offset - text.base);
        // [`excerpt`] expects offsets from the start of the file.
        let inside: Vec<Range<usize>> = inside
            .iter()
            .skip(inside.partition_point(|range| range.end <= text.base + line.start))
            .take_while(|range| range.start < (text.base + line.end).min(end))
            .map(|range| range.start.saturating_sub(text.base)..range.end - text.base)
            .collect();
        excerpt(&text.text, line, offset - text.base, &inside)
    }

    fn push(&self, ground: Ground, place: &Place, message: Message) {
        let Some((file, text)) = self.file(place.offset) else { return };
        let severity = if ground == Ground::Doubt { Severity::Warning } else { Severity::Error };
        let Message { text: message, help } = message;
        let problem = Problem {
            file: Arc::clone(&text.path),
            position: Some(narrow(self.position(place.offset))),
            excerpt: None,
            field: place.field.to_string(),
            message,
            help,
            severity,
        };
        self.collect(Collected { ground, file, offset: Some(place.offset), problem });
    }

    fn collect(&self, problem: Collected) {
        self.collected.lock().unwrap_or_else(PoisonError::into_inner).push(problem);
    }

    /// Returns the line and the column of a byte offset, both starting at 1. Columns are counted in
    /// characters.
    fn position(&self, offset: usize) -> (usize, usize) {
        let Some((_, text)) = self.file(offset) else { return (1, 1) };
        let offset = text.text.floor_char_boundary(offset - text.base);
        let (line, range) = text.line(offset);
        (line, text.characters_before(offset) - text.characters_before(range.start) + 1)
    }
}

/// The distance in bytes between two file positions for which the number of preceding characters is
/// stored.
const STRIDE: usize = 128;
/// The work after which names get no more hints. This amount of work takes about a tenth of a
/// second.
const MAX_COMPARED: usize = 1 << 24;
/// The maximum number of problems with an excerpt. An excerpt takes time in proportion to its line,
/// which may have hundreds of problems.
const MAX_EXCERPTS: usize = 1_000;
/// The maximum number of files in a configuration. The limit is high enough for a separate file for
/// each VIP of a large cluster.
pub(crate) const MAX_FILES: usize = 1_024;
