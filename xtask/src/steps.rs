//! The steps of a lane: each runs, whatever the ones before it did, and what fails is kept by name.
//!
//! In: commands and checks. Out: the names of failed tests, and of steps that failed without one.
//! Not here: which steps a lane has (`lanes`).
//! Source: the lines that cargo and libtest print.

use std::io::{BufRead, BufReader, pipe};
use std::process::{Command, ExitStatus};
use std::thread;

use anyhow::{Context, Result, ensure};

use crate::{cargo, leftovers};

/// Steps that have run.
pub(crate) struct Steps {
    long: bool,
    failed: Vec<String>,
}

impl Steps {
    /// None yet; `long` asks tests for their full counts.
    pub(crate) fn new(long: bool) -> Self {
        Self { long, failed: Vec::new() }
    }

    /// Whether full counts are asked for.
    pub(crate) fn is_long(&self) -> bool {
        self.long
    }

    /// Whatever can fail; what it gives when it does not.
    pub(crate) fn check<T>(&mut self, outcome: Result<T>) -> Option<T> {
        outcome.map_err(|error| self.failed(format!("{error:#}"))).ok()
    }

    /// A command that runs no tests.
    pub(crate) fn command(&mut self, command: &mut Command) {
        eprintln!("── {}", words(command));
        self.check(cargo::run(command));
    }

    /// A command that runs tests: cargo, which names each program that it runs.
    pub(crate) fn tests(&mut self, command: &mut Command) {
        self.tests_of("", command);
    }

    /// A program that runs tests, and has this name in the list of what failed.
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

    /// A command that runs tests, of which exactly `passed` are to pass: a filter that fits nothing must not look like
    /// success.
    /// Its lines begin with `what`: others may run meanwhile.
    pub(crate) fn exactly(&mut self, what: &str, command: &mut Command, passed: usize) {
        eprintln!("── {what}");
        let Some(run) = self.check(watch(command, Observed::default(), &format!("{what}: "))) else { return };
        let count = run.observed.passed;
        let all = || {
            ensure!(run.status.success(), "{what}: {}", run.status);
            ensure!(count == Some(passed), "{what}: {count:?} tests passed, not {passed}");
            Ok(())
        };
        if run.observed.failed.is_empty() {
            self.check(all());
        }
        run.observed.failed.into_iter().for_each(|test| self.failed(format!("{what}: {test}")));
    }

    /// Runs all of these at once, each with steps of its own.
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
            each.map(|one| one.join().unwrap_or_else(|_| vec!["a thread of steps panicked".to_owned()]))
        });
        self.failed.extend(failed.into_iter().flatten());
    }

    /// The names of all that failed.
    pub(crate) fn end(self) -> Vec<String> {
        self.failed
    }

    /// What did not go well, by name.
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

/// What lines of output say of tests.
#[derive(Debug, Default, PartialEq)]
struct Observed {
    program: String,
    failed: Vec<String>,
    /// The list at the end of a program's output has begun: where tests print between a name and its result, it alone tells.
    in_list: bool,
    /// By the first program that went well.
    passed: Option<usize>,
}

impl Observed {
    fn line(&mut self, line: &str) {
        let words = line.trim();
        let in_list = self.in_list && line.starts_with("    ");
        self.in_list = in_list || words == "failures:";
        if let Some(place) = words.strip_prefix("Running ") {
            // As in `tests/net/main.rs (target/release/deps/net-0123456789abcdef)`.
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

/// Runs a command with its output on standard error, `before` in front of each line, and reads along.
fn watch(command: &mut Command, mut observed: Observed, before: &str) -> Result<Run> {
    let (reader, writer) = pipe()?;
    leftovers::mark(command);
    command.stdout(writer.try_clone()?).stderr(writer);
    let words = words(command);
    let mut child = command.spawn().with_context(|| format!("can't run {words}"))?;
    // Else this process would hold the pipe open, and never see its end.
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
    fn a_failed_step_stops_no_other_and_both_are_named() {
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
            "Some(2) tests passed, not 3",
            "vm: c",
            "vm: e",
            "vm: f",
        ]) {
            assert!(failed.contains(words), "{failed}");
        }
    }
}
