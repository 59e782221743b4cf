//! Represents problems in configuration files, and formats them for the operator.
//!
//! A [`Problem`] can be printed in two ways. The [`Display`](fmt::Display) implementation writes a
//! single line, for logs and programs. [`Problem::report`] writes several lines in the style of a
//! compiler: severity, position, message, source line and help. The module `report` collects
//! problems and determines their positions.

use std::fmt::{self, Write as _};
use std::path::Path;
use std::sync::Arc;

use crate::excerpt::Excerpt;
use crate::message::Message;

/// The severity of a problem.
// The API has a separate severity type, because the crate `admin` must not depend on this crate.
// `control-plane` converts between the two (`rows/refusal.rs`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// The configuration is rejected.
    Error,
    /// The configuration is accepted, but probably does not do what the operator intended.
    Warning,
}

/// A problem in a configuration file.
///
/// The `Display` form is one line, `FILE:LINE:COLUMN: message`, without the help line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    pub(crate) file: Arc<Path>,
    pub(crate) position: Option<(u32, u32)>,
    pub(crate) excerpt: Option<Box<Excerpt>>,
    /// The path of the value, such as `pool.web.backends[0].weight`. The path is empty for TOML
    /// syntax errors.
    pub field: String,
    /// A one-line description of the fault, which never contains a secret.
    pub message: String,
    /// A one-line hint on how to correct the fault.
    pub help: Option<String>,
    /// The severity of the problem.
    pub severity: Severity,
}

impl Problem {
    /// Creates an error about the whole file, without a line.
    pub fn of_file(file: &Path, message: impl Into<Message>) -> Self {
        let Message { text: message, help } = message.into();
        let (file, field, severity) = (file.into(), String::new(), Severity::Error);
        Self { file, position: None, excerpt: None, field, message, help, severity }
    }

    /// Sets the line and the column of the problem, both starting at 1, and the path of the value.
    #[must_use]
    pub fn at(self, line: usize, column: usize, field: String) -> Self {
        Self { position: Some(narrow((line, column))), field, ..self }
    }

    /// Returns the path of the file, as the caller passed it.
    pub fn file(&self) -> &Path {
        &self.file
    }

    /// Returns the line, starting at 1. Returns `None` if the problem is about the whole file.
    pub fn line(&self) -> Option<usize> {
        self.position.map(|(line, _)| line as usize)
    }

    /// Returns the column in characters, starting at 1. Returns `None` if the problem is about the
    /// whole file.
    pub fn column(&self) -> Option<usize> {
        self.position.map(|(_, column)| column as usize)
    }

    /// Formats the problem over several lines in the style of a compiler, without a final line
    /// feed:
    /// ```text
    /// error: jobs.toml:3:1: unknown key "kepp" in [job.home]
    ///  3 | kepp = ...
    ///    | ^^^^
    /// help: did you mean "keep"?
    /// ```
    pub fn report(&self) -> String {
        let severity = match self.severity {
            Severity::Error => "error",
            Severity::Warning => "warning",
        };
        let mut text = format!("{severity}: {self}");
        if let (Some(excerpt), Some((number, _))) = (&self.excerpt, self.position) {
            let Excerpt { line, indent, width } = &**excerpt;
            let (digits, marks) = (number.to_string().len(), "^".repeat(*width));
            // Writing to a string cannot fail.
            let _ = write!(text, "\n {number} | {line}\n {:digits$} | {:indent$}{marks}", "", "");
        }
        if let Some(help) = &self.help {
            let _ = write!(text, "\nhelp: {help}");
        }
        text
    }
}

/// Converts a line and a column to `u32`, which keeps [`Problem`] small enough for a `Result`.
pub(crate) fn narrow((line, column): (usize, usize)) -> (u32, u32) {
    (u32::try_from(line).unwrap_or(u32::MAX), u32::try_from(column).unwrap_or(u32::MAX))
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:", self.file.display())?;
        if let Some((line, column)) = self.position {
            write!(f, "{line}:{column}:")?;
        }
        write!(f, " {}", self.message)
    }
}

/// All problems in a configuration, ordered by file and line. The `Display` form contains the full
/// report of each problem, with blank lines between the reports.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Problems(pub(crate) Vec<Problem>);

impl From<Problem> for Problems {
    fn from(problem: Problem) -> Self {
        Self(vec![problem])
    }
}

/// Collects problems that are already ordered by line.
impl FromIterator<Problem> for Problems {
    fn from_iter<I: IntoIterator<Item = Problem>>(problems: I) -> Self {
        Self(problems.into_iter().collect())
    }
}

impl Problems {
    /// Returns an iterator over the problems.
    pub fn iter(&self) -> std::slice::Iter<'_, Problem> {
        self.0.iter()
    }

    /// Returns the number of problems.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns `true` if there are no problems.
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
                f.write_str("\n\n")?;
            }
            f.write_str(&problem.report())?;
        }
        Ok(())
    }
}

impl std::error::Error for Problems {}
