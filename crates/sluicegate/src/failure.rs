//! Why a verb ends without an answer, which is also its exit code: 1, 2 for wrong usage, 3 for no daemon.

use std::fmt;
use std::process::ExitCode;

use admin::Refusal;
use admin::view::ProblemView;

use crate::table::word;

#[derive(Debug)]
pub(crate) enum Failure {
    /// The command line contradicts itself, the file or this machine.
    Usage(String),
    /// No balancer answers at the socket.
    NoDaemon(String),
    /// The balancer refuses.
    Refused(Refusal),
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Usage(wrong) => f.write_str(wrong),
            Self::NoDaemon(why) => write!(f, "no balancer answers: {why}"),
            Self::Refused(refusal) => {
                f.write_str(&refusal.message)?;
                refusal.problems.iter().try_for_each(|problem| write!(f, "\n{}", problem_line(problem)))
            }
        }
    }
}

impl std::error::Error for Failure {}

/// An error of usage.
pub(crate) fn usage(wrong: impl Into<String>) -> anyhow::Error {
    Failure::Usage(wrong.into()).into()
}

/// The exit code that an error of a verb ends with.
pub(crate) fn exit_code(error: &anyhow::Error) -> ExitCode {
    match error.downcast_ref::<Failure>() {
        Some(Failure::Usage(_)) => ExitCode::from(2),
        Some(Failure::NoDaemon(_)) => ExitCode::from(3),
        _ => ExitCode::FAILURE,
    }
}

/// 0 when all is well, else 1.
pub(crate) fn verdict(is_well: bool) -> ExitCode {
    if is_well { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// `file:line:column: severity: field: found X, allowed Y`, without what there is not.
fn problem_line(problem: &ProblemView) -> String {
    let ProblemView { severity, file, line, column, field, found, allowed } = problem;
    let place = match (line, column) {
        (Some(line), Some(column)) => format!("{file}:{line}:{column}"),
        _ => file.clone(),
    };
    let field = if field.is_empty() { String::new() } else { format!(" {field}:") };
    format!("{place}: {}:{field} found {found}, allowed {allowed}", word(severity))
}
