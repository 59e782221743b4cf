//! Defines the errors of subcommands and their exit codes: 1 for a failure, 2 for incorrect usage,
//! and 3 if the daemon is not reachable.
//!
//! Errors are printed to standard error. With `--json` they are printed to standard output as one
//! JSON object, in the format of API errors.

use std::process::ExitCode;
use std::{env, fmt};

use admin::Refusal;
use admin::view::ProblemView;
use serde_json::json;

use crate::out::{errln, outln};
use crate::table::{json_line, word};

/// An error that determines the exit code of a subcommand.
#[derive(Debug)]
pub enum Failure {
    /// The command line is inconsistent, or does not match the configuration or this machine.
    Usage(String),
    /// The admin socket is not reachable.
    NoDaemon(String),
    /// The daemon rejected the request.
    Refused(Refusal),
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Usage(wrong) => f.write_str(wrong),
            Self::NoDaemon(why) => f.write_str(why),
            Self::Refused(refusal) => {
                f.write_str(&refusal.message)?;
                refusal.problems.iter().try_for_each(|problem| write!(f, "\n{}", problem_lines(problem)))
            }
        }
    }
}

impl std::error::Error for Failure {}

/// Creates a usage error.
pub fn usage(wrong: impl Into<String>) -> anyhow::Error {
    Failure::Usage(wrong.into()).into()
}

/// Prints the error of a subcommand and returns the exit code.
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

/// Prints the error for a command line that clap rejected, and exits. With `--json`, prints JSON
/// and returns the exit code instead. For `--help` and `--version`, which clap also reports as
/// errors, prints the requested text and exits with code 0.
pub fn tell_unread(error: &clap::Error) -> ExitCode {
    if error.use_stderr() && wants_json() {
        let words = error.render().to_string();
        tell_json("usage", words.trim_start_matches("error: ").trim_end(), &[]);
        return ExitCode::from(WRONG_USAGE);
    }
    error.exit()
}

/// Returns the value of `kind` in the JSON error. If the daemon rejected the request, the value is
/// the kind of the API error.
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

/// Returns `true` if `--json` is on the command line. Searches the raw arguments, because clap may
/// have rejected them.
fn wants_json() -> bool {
    env::args_os().skip(1).take_while(|word| word != "--").any(|word| word == "--json")
}

/// Returns exit code 0 for `true` and 1 for `false`.
pub fn verdict(is_well: bool) -> ExitCode {
    if is_well { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Formats a configuration problem in the style of a compiler message. The help text is on a second
/// line.
fn problem_lines(problem: &ProblemView) -> String {
    let help = problem.help.as_ref().map(|help| format!("\nhelp: {help}")).unwrap_or_default();
    format!("{}: {problem}{help}", word(&problem.severity))
}

const WRONG_USAGE: u8 = 2;
