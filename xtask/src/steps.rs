//! Runs the steps of a test lane. Every step runs even if earlier steps fail, and the failures are
//! collected.
//!
//! The module finds failed tests in the output of cargo and libtest. The module `lanes` defines the
//! steps of each lane.

use std::io::{BufRead, BufReader, pipe};
use std::process::{Command, ExitStatus};
use std::thread;

use anyhow::{Context, Result, ensure};

use crate::{cargo, leftovers};

/// The failures of all steps that have run so far.
pub(crate) struct Steps {
    long: bool,
    failed: Vec<String>,
}

impl Steps {
    /// Creates an empty list of failures. If `long` is `true`, tests run with their full number of
    /// cases.
    pub(crate) fn new(long: bool) -> Self {
        Self { long, failed: Vec::new() }
    }

    /// Returns `true` if tests run with their full number of cases.
    pub(crate) fn is_long(&self) -> bool {
        self.long
    }

    /// Returns the value of a successful outcome. Records an error as a failure and returns `None`.
    pub(crate) fn check<T>(&mut self, outcome: Result<T>) -> Option<T> {
        outcome.map_err(|error| self.failed(format!("{error:#}"))).ok()
    }

    /// Runs a command that contains no tests.
    pub(crate) fn command(&mut self, command: &mut Command) {
        eprintln!("── {}", words(command));
        self.check(cargo::run(command));
    }

    /// Runs a cargo command that runs tests. Cargo prints the name of each test program.
    pub(crate) fn tests(&mut self, command: &mut Command) {
        self.tests_of("", command);
    }

    /// Runs one test program. The list of failures shows it as `program`.
    pub(crate) fn tests_of(&mut self, program: &str, command: &mut Command) {
        eprintln!("── {}", words(command));
        if self.long {
            command.env("SLUICEGATE_LONG", "1");
        }
        let observed = Observed { program: program.into(), ..Observed::default() };
        let Some(run) = self.check(watch(command, observed, "")) else { return };
        if !run.status.success() && run.observed.failed.is_empty() {
            self.failed(format!("{}: {}", words(command), run.status));
        }
        run.observed.failed.into_iter().for_each(|test| self.failed(test));
    }

    /// Runs a command in which exactly `passed` tests must pass. A filter that matches no test is
    /// therefore a failure. Output lines begin with `what`, because other steps may run in
    /// parallel.
    pub(crate) fn exactly(&mut self, what: &str, command: &mut Command, passed: usize) {
        eprintln!("── {what}");
        let Some(run) = self.check(watch(command, Observed::default(), &format!("{what}: "))) else { return };
        let count = run.observed.passed;
        let all = || {
            ensure!(run.status.success(), "{what} failed ({})", run.status);
            ensure!(count == Some(passed), "{what}: {count:?} tests passed instead of {passed}");
            Ok(())
        };
        if run.observed.failed.is_empty() {
            self.check(all());
        }
        run.observed.failed.into_iter().for_each(|test| self.failed(format!("{what}: {test}")));
    }

    /// Runs the given steps in parallel. The failures of each step are collected separately.
    pub(crate) fn at_once<const N: usize>(&mut self, each: [impl FnOnce(&mut Self) + Send; N]) {
        let long = self.long;
        let failed = thread::scope(|scope| {
            let each = each.map(|run| {
                scope.spawn(move || {
                    let mut steps = Self::new(long);
                    run(&mut steps);
                    steps.failed
                })
            });
            each.map(|one| one.join().unwrap_or_else(|_| vec!["the thread of a step panicked".to_owned()]))
        });
        self.failed.extend(failed.into_iter().flatten());
    }

    /// Returns the descriptions of all failures.
    pub(crate) fn end(self) -> Vec<String> {
        self.failed
    }

    /// Records a failure.
    pub(crate) fn failed(&mut self, what: String) {
        eprintln!("FAILED {what}");
        self.failed.push(what);
    }
}

fn words(command: &Command) -> String {
    let words: Vec<_> = command.get_args().map(|word| word.to_string_lossy()).collect();
    format!("{} {}", command.get_program().to_string_lossy(), words.join(" "))
}

struct Run {
    status: ExitStatus,
    observed: Observed,
}

/// The test results found in the output lines so far.
#[derive(Debug, Default, PartialEq)]
struct Observed {
    program: String,
    failed: Vec<String>,
    /// `true` inside the list of failures at the end of a program's output. Earlier output lines
    /// are not reliable, because tests may print text between a test name and its result.
    in_list: bool,
    /// The number of passed tests in the first test program that succeeded.
    passed: Option<usize>,
}

impl Observed {
    fn line(&mut self, line: &str) {
        let words = line.trim();
        let in_list = self.in_list && line.starts_with("    ");
        self.in_list = in_list || words == "failures:";
        if let Some(place) = words.strip_prefix("Running ") {
            // The line has the form `tests/net/main.rs (target/release/deps/net-0123456789abcdef)`.
            let file = place.trim_end_matches(')').rsplit('/').next().unwrap_or_default();
            self.program = file.rsplit_once('-').map_or(file, |(name, _)| name).into();
        } else if let Some(library) = words.strip_prefix("Doc-tests ") {
            self.program = library.into();
        } else if let Some(counts) = words.strip_prefix("test result: ok. ") {
            self.passed = self.passed.or_else(|| counts.split(' ').next()?.parse().ok());
        } else if in_list {
            self.failed(words);
        } else if let Some(test) =
            words.strip_prefix("test ").and_then(|rest| rest.strip_suffix(" ... FAILED"))
        {
            self.failed(test);
        }
    }

    fn failed(&mut self, test: &str) {
        let named = if self.program.is_empty() { test.into() } else { format!("{}: {test}", self.program) };
        if !self.failed.contains(&named) {
            self.failed.push(named);
        }
    }
}

/// Runs a command and evaluates its output lines. The output is copied to standard error, with the
/// prefix `before` on each line.
fn watch(command: &mut Command, mut observed: Observed, before: &str) -> Result<Run> {
    let (reader, writer) = pipe()?;
    leftovers::mark(command);
    command.stdout(writer.try_clone()?).stderr(writer);
    let words = words(command);
    let mut child = command.spawn().with_context(|| format!("cannot run {words}"))?;
    // This process must close its write end of the pipe, because otherwise reading would never
    // reach the end of the output.
    command.stdout(std::process::Stdio::null()).stderr(std::process::Stdio::null());
    for line in BufReader::new(reader).split(b'\n') {
        let line = String::from_utf8_lossy(&line?).into_owned();
        eprintln!("{before}{line}");
        observed.line(&line);
    }
    Ok(Run { status: child.wait()?, observed })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failed_tests_are_named_with_their_program() {
        let mut observed = Observed::default();
        for line in [
            "     Running unittests src/lib.rs (target/debug/deps/control_plane-59807616e1fa2540)",
            "test next_hop::tests::a_table ... ok",
            "test next_hop::tests::another ... FAILED",
            "test result: FAILED. 1 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out",
            "     Running tests/net/main.rs (target/release/deps/net-0123456789abcdef)",
            "test capture::each_condition ... FAILED",
            "test capture::with_output ... said",
            "FAILED",
            "failures:",
            "",
            "---- capture::each_condition stdout ----",
            "    no test",
            "failures:",
            "    capture::each_condition",
            "    capture::with_output",
            "",
            "    no test",
            "test result: ok. 5 passed; 0 failed; 0 ignored",
            "test result: ok. 6 passed; 0 failed; 0 ignored",
            "   Doc-tests packet",
            "test crates/packet/src/lib.rs - (line 7) ... FAILED",
        ] {
            observed.line(line);
        }
        let failed = [
            "control_plane: next_hop::tests::another",
            "net: capture::each_condition",
            "net: capture::with_output",
            "packet: crates/packet/src/lib.rs - (line 7)",
        ];
        assert_eq!((observed.failed, observed.passed), (failed.map(String::from).into(), Some(5)));
    }

    #[test]
    fn failed_step_does_not_stop_the_others() {
        let mut steps = Steps::new(false);
        let shell = |script: &str| {
            let mut command = Command::new("sh");
            command.args(["-c", script]);
            command
        };
        steps.tests(&mut shell("echo 'test a ... FAILED'; echo 'test b ... FAILED' >&2; exit 101"));
        steps.command(&mut shell("exit 3"));
        steps.tests(&mut shell("exit 4"));
        steps.tests_of("net", &mut shell("echo 'test d ... FAILED'; exit 101"));
        steps.exactly("vm", &mut shell("echo 'test result: ok. 2 passed;'"), 3);
        steps.exactly("vm", &mut shell("echo 'test result: ok. 3 passed;'"), 3);
        steps.exactly("vm", &mut shell("echo 'test c ... FAILED'; exit 1"), 3);
        let both = ["e", "f"].map(|name| {
            let mut command = shell(&format!("echo 'test {name} ... FAILED'; exit 1"));
            move |steps: &mut Steps| steps.exactly("vm", &mut command, 3)
        });
        steps.at_once(both);
        let failed = steps.end();
        assert_eq!((failed.len(), &failed[..2]), (9, &["a".to_owned(), "b".to_owned()][..]), "{failed:?}");
        for (failed, words) in failed[2..].iter().zip([
            "exit 3",
            "exit 4",
            "net: d",
            "Some(2) tests passed instead of 3",
            "vm: c",
            "vm: e",
            "vm: f",
        ]) {
            assert!(failed.contains(words), "{failed}");
        }
    }
}
