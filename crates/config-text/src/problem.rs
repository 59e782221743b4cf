//! What is wrong with a file, in the words that the operator reads.
//!
//! In: a place, what was found, what was allowed. Out: one line a problem, sorted as the file is.
//! Not here: how problems are found and collected (`report`).

use std::fmt;
use std::path::Path;
use std::sync::Arc;

/// Whether a problem stops the configuration from being used.
// The API has a type of its own, as `admin` knows no domain type; `control-plane` converts (`rows/refusal.rs`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// The configuration is refused.
    Error,
    /// The configuration works, and probably not as meant.
    Warning,
}

/// One finding in a configuration file.
///
/// Displayed as `file:line:column: field.path: found X, allowed Y`; a warning says so before the field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    pub(crate) file: Arc<Path>,
    pub(crate) position: Option<(usize, usize)>,
    /// The field, such as `pool.web.backends[0].weight`; empty for errors of TOML syntax.
    pub field: String,
    /// What stands in the file. Never a secret.
    pub found: String,
    /// What may stand there.
    pub allowed: String,
    /// Error or warning.
    pub severity: Severity,
}

impl Problem {
    /// A problem of the file as a whole: it has no line.
    pub fn of_file(file: &Path, found: impl Into<String>, allowed: impl Into<String>) -> Self {
        Self {
            file: file.into(),
            position: None,
            field: String::new(),
            found: found.into(),
            allowed: allowed.into(),
            severity: Severity::Error,
        }
    }

    /// The same at a line and column, both from 1, for a value that the field `field` led to.
    #[must_use]
    pub fn at(self, line: usize, column: usize, field: String) -> Self {
        Self { position: Some((line, column)), field, ..self }
    }

    /// The file as it was named by the caller.
    pub fn file(&self) -> &Path {
        &self.file
    }

    /// The line, from 1; `None` when the file as a whole is meant.
    pub fn line(&self) -> Option<usize> {
        self.position.map(|(line, _)| line)
    }

    /// The column in characters, from 1; `None` when the file as a whole is meant.
    pub fn column(&self) -> Option<usize> {
        self.position.map(|(_, column)| column)
    }
}

impl Problem {
    /// As displayed, without the word for its severity: for where that is said already.
    pub fn sentence(&self) -> String {
        self.with("")
    }

    /// The problem in words, `severity` among them.
    fn with(&self, severity: &str) -> String {
        let Self { file, position, field, found, allowed, .. } = self;
        let file = file.display();
        let position = position.map(|(line, column)| format!("{line}:{column}:")).unwrap_or_default();
        let field = if field.is_empty() { String::new() } else { format!(" {field}:") };
        format!("{file}:{position}{severity}{field} found {found}, allowed {allowed}")
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.with(if self.severity == Severity::Warning { " warning:" } else { "" }))
    }
}

/// Every problem of one file, sorted by line and column. Displayed one a line.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Problems(pub(crate) Vec<Problem>);

impl From<Problem> for Problems {
    fn from(problem: Problem) -> Self {
        Self(vec![problem])
    }
}

/// Of one file, in the order of its lines.
impl FromIterator<Problem> for Problems {
    fn from_iter<I: IntoIterator<Item = Problem>>(problems: I) -> Self {
        Self(problems.into_iter().collect())
    }
}

impl Problems {
    /// The problems in the order of the file.
    pub fn iter(&self) -> std::slice::Iter<'_, Problem> {
        self.0.iter()
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl<'a> IntoIterator for &'a Problems {
    type Item = &'a Problem;
    type IntoIter = std::slice::Iter<'a, Problem>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

impl fmt::Display for Problems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, problem) in self.0.iter().enumerate() {
            if index > 0 {
                f.write_str("\n")?;
            }
            write!(f, "{problem}")?;
        }
        Ok(())
    }
}

impl std::error::Error for Problems {}
