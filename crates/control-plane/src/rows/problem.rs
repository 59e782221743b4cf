//! A problem of a configuration as the admin API shows it.

use admin::view::{self, ProblemView};
use config::{Problem, Severity};

/// The row of a problem.
#[must_use]
pub fn problem_row(problem: &Problem) -> ProblemView {
    let severity = match problem.severity {
        Severity::Error => view::Severity::Error,
        Severity::Warning => view::Severity::Warning,
    };
    ProblemView {
        severity,
        file: problem.file().display().to_string(),
        line: problem.line(),
        column: problem.column(),
        field: problem.field.to_owned(),
        found: problem.found.to_owned(),
        allowed: problem.allowed.to_owned(),
    }
}
