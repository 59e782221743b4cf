//! Converts rejected requests and configuration problems to API responses.

use admin::view::{self, ProblemView, Refusal, RefusalKind};
use config::{Problem, Severity};

use crate::refused::Refused;

impl From<Refused> for Refusal {
    fn from(refused: Refused) -> Self {
        let message = refused.to_string();
        let kind = match refused {
            Refused::NotFound(_) => RefusalKind::NotFound,
            Refused::Conflict(_) => RefusalKind::Conflict,
            Refused::Unavailable(_) => RefusalKind::Unavailable,
            Refused::Invalid(problems) => {
                let problems = problems.iter().map(problem_row).collect();
                return Self { kind: RefusalKind::Invalid, message, problems };
            }
        };
        Self::new(kind, message)
    }
}

/// Returns the row for a configuration problem.
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
        message: problem.message.clone(),
        help: problem.help.clone(),
    }
}
