//! Why a verb ends without an answer, which is also its exit code: 1, 2 for wrong usage, 3 for no daemon.
//!
//! In words on standard error; under `--json` as one line of JSON where the answer would have been, in the API's shape of a
//! refusal.

use std::process::ExitCode;
use std::{env, fmt};

use admin::Refusal;
use admin::view::ProblemView;
use serde_json::json;

use crate::out::{errln, outln};
use crate::table::{json_line, word};

/// Why there is no answer.
#[derive(Debug)]
pub enum Failure {
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
pub fn usage(wrong: impl Into<String>) -> anyhow::Error {
    Failure::Usage(wrong.into()).into()
}

/// Says why a verb has no answer; the exit code that it ends with.
pub fn tell(error: &anyhow::Error) -> ExitCode {
    let failure = error.downcast_ref::<Failure>();
    if wants_json() {
        let problems: &[_] = match failure {
            Some(Failure::Refused(refusal)) => &refusal.problems,
            _ => &[],
        };
        let message = match failure {
            Some(Failure::Refused(refusal)) => refusal.message.clone(),
            _ => format!("{error:#}"),
        };
        tell_json(&kind(failure), &message, problems);
    } else {
        errln!("sluicegate: {error:#}");
    }
    match failure {
        Some(Failure::Usage(_)) => ExitCode::from(WRONG_USAGE),
        Some(Failure::NoDaemon(_)) => ExitCode::from(3),
        _ => ExitCode::FAILURE,
    }
}

/// Says what is wrong with a command line that could not be read; help and the version are no such thing.
pub fn tell_unread(error: &clap::Error) -> ExitCode {
    if error.use_stderr() && wants_json() {
        let words = error.render().to_string();
        tell_json("usage", words.trim_start_matches("error: ").trim_end(), &[]);
        return ExitCode::from(WRONG_USAGE);
    }
    error.exit()
}

/// For programs: the balancer's own word where it refuses.
fn kind(failure: Option<&Failure>) -> String {
    match failure {
        Some(Failure::Usage(_)) => "usage".to_owned(),
        Some(Failure::NoDaemon(_)) => "no_daemon".to_owned(),
        Some(Failure::Refused(refusal)) => word(&refusal.kind),
        None => "failed".to_owned(),
    }
}

fn tell_json(kind: &str, message: &str, problems: &[ProblemView]) {
    let answer = json!({ "kind": kind, "error": message, "problems": problems });
    match json_line(&answer) {
        Ok(line) => outln!("{line}"),
        Err(_) => errln!("sluicegate: {message}"),
    }
}

/// By the words as they were typed: those that can't be read say it too.
fn wants_json() -> bool {
    env::args_os().skip(1).take_while(|word| word != "--").any(|word| word == "--json")
}

/// 0 when all is well, else 1.
pub fn verdict(is_well: bool) -> ExitCode {
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

const WRONG_USAGE: u8 = 2;
