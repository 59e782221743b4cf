//! Runs a child process in a network namespace, and records its output.
//!
//! Dropping the handle ends the child. If the thread that started the child ends first, the kernel
//! kills the child. Signals are sent only to the child itself, not to its descendants.
//!
//! References: prctl(2) PR_SET_PDEATHSIG, which refers to the parent thread.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{Id, WaitPidFlag, WaitStatus, waitid};
use nix::unistd::Pid;

use crate::{Namespace, eventually};

/// The output stream on which a line was printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stream {
    /// The standard output.
    Out,
    /// The standard error.
    Err,
}

/// A line of output, without its line break.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    /// The output stream.
    pub stream: Stream,
    /// The text of the line.
    pub text: String,
}

/// A child that has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ended {
    /// The exit code, or `None` if a signal ended the child.
    pub code: Option<i32>,
    /// The standard output.
    pub out: String,
    /// The standard error.
    pub err: String,
}

/// A running child.
#[derive(Debug)]
pub struct Process {
    name: String,
    child: Child,
    status: Option<ExitStatus>,
    lines: Arc<Mutex<Output>>,
    _ns: Namespace, // Keeps the worker thread alive, because its end would kill the child.
}

impl Process {
    /// Starts `program` in `ns`.
    ///
    /// # Errors
    /// Returns an error if `setpriv` (package util-linux) cannot be started. If `program` does not
    /// exist, the child exits with status 127.
    pub fn start<S: AsRef<OsStr>>(ns: &Namespace, name: &str, program: S, args: &[&str]) -> Result<Self> {
        let mut command = Command::new("setpriv");
        // The parent may end before the kernel registers the parent-death signal. The shell
        // therefore checks that its parent is still the expected process before it starts the
        // program.
        command
            .args(["--pdeathsig", "KILL", "--", "sh", "-c", r#"[ "$PPID" = "$0" ] && exec "$@""#])
            .arg(std::process::id().to_string())
            .arg(program)
            .args(args)
            .process_group(0) // Ctrl-C then reaches only the test process.
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = ns.start(command).with_context(|| format!("cannot start {name}"))?;
        let lines = Arc::new(Mutex::new(Output { open: 2, ..Output::default() }));
        let (out, err) = (
            child.stdout.take().context("the output is not piped")?,
            child.stderr.take().context("the output is not piped")?,
        );
        collect(out, Stream::Out, &lines);
        collect(err, Stream::Err, &lines);
        Ok(Self { name: name.into(), child, status: None, lines, _ns: ns.clone() })
    }

    /// Runs `program` in `ns` and waits until it ends.
    ///
    /// # Errors
    /// Fails in the same cases as [`Self::start`]. If the program does not end within `bound`,
    /// kills it and returns an error.
    pub fn to_end<S: AsRef<OsStr>>(
        ns: &Namespace,
        program: S,
        args: &[&str],
        bound: Duration,
    ) -> Result<Ended> {
        let mut process = Self::start(ns, &args.join(" "), program, args)?;
        let Some(status) = process.wait(bound) else {
            process.kill();
            bail!("{} did not end in {bound:?}:\n{}", process.name, process.tail());
        };
        let said = |stream| {
            let lines = process.lines().into_iter().filter(|line| line.stream == stream);
            lines.map(|line| line.text + "\n").collect()
        };
        Ok(Ended { code: status.code(), out: said(Stream::Out), err: said(Stream::Err) })
    }

    /// Returns the process ID.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Returns the recorded lines, oldest first. Only the newest 20,000 lines are recorded.
    #[must_use]
    pub fn lines(&self) -> Vec<Line> {
        self.output().lines.clone()
    }

    /// Waits for a line that `wanted` accepts. Lines that are already recorded are considered too.
    ///
    /// # Errors
    /// Returns an error if no such line appears within `bound` or before the process ends. The
    /// message contains the last lines.
    pub fn wait_for_line(&mut self, bound: Duration, wanted: impl Fn(&str) -> bool) -> Result<String> {
        self.wait_for_line_after(0, bound, wanted)
    }

    /// Waits for a line like [`Self::wait_for_line`], but ignores the first `seen` lines
    /// ([`Self::line_count`]).
    ///
    /// # Errors
    /// Fails in the same cases as [`Self::wait_for_line`].
    pub fn wait_for_line_after(
        &mut self,
        seen: usize,
        bound: Duration,
        wanted: impl Fn(&str) -> bool,
    ) -> Result<String> {
        let found = eventually(bound, || {
            let ended = self.try_status().is_some() && self.output().open == 0;
            let found =
                self.output().after(seen).find(|line| wanted(&line.text)).map(|line| line.text.clone());
            found.map(Ok).or_else(|| ended.then_some(Err(())))
        });
        match found {
            Some(Ok(line)) => Ok(line),
            Some(Err(())) => bail!("{} ended without the expected line:\n{}", self.name, self.tail()),
            None => bail!("{} did not print the expected line in {bound:?}:\n{}", self.name, self.tail()),
        }
    }

    /// Returns the number of lines that the process has printed.
    #[must_use]
    pub fn line_count(&self) -> usize {
        let output = self.output();
        output.forgotten + output.lines.len()
    }

    /// Sends a signal to the process.
    ///
    /// # Errors
    /// Returns an error if the process has ended.
    pub fn signal(&mut self, signal: Signal) -> Result<()> {
        if let Some(status) = self.try_status() {
            bail!("{} has ended: {status}:\n{}", self.name, self.tail());
        }
        // The child has not been reaped yet, so its process ID has not been reused.
        let pid = Pid::from_raw(i32::try_from(self.child.id())?);
        kill(pid, signal).with_context(|| format!("cannot signal {}", self.name))
    }

    /// Sends SIGSTOP, and waits until all threads of the process have stopped. SIGCONT resumes the
    /// process.
    ///
    /// # Errors
    /// Returns an error if the process has ended.
    pub fn pause(&mut self) -> Result<()> {
        self.signal(Signal::SIGSTOP)?;
        let pid = Pid::from_raw(i32::try_from(self.child.id())?);
        let seen = WaitPidFlag::WSTOPPED | WaitPidFlag::WEXITED | WaitPidFlag::WNOWAIT;
        match waitid(Id::Pid(pid), seen)? {
            WaitStatus::Stopped(..) => Ok(()),
            other => bail!("{} did not stop: {other:?}", self.name),
        }
    }

    /// Sends SIGTERM, and waits until the process has ended and all its output is recorded.
    ///
    /// # Errors
    /// If the process does not end within `bound`, kills it and returns an error.
    pub fn stop(&mut self, bound: Duration) -> Result<ExitStatus> {
        if self.try_status().is_none() {
            self.signal(Signal::SIGTERM)?;
        }
        if let Some(status) = self.wait(bound) {
            return Ok(status);
        }
        self.kill();
        Err(anyhow!("{} did not end in {bound:?} after SIGTERM:\n{}", self.name, self.tail()))
    }

    /// Waits until the process ends by itself. Returns `None` if the process is still running after
    /// `bound`.
    pub fn wait(&mut self, bound: Duration) -> Option<ExitStatus> {
        eventually(bound, || self.try_status().filter(|_| self.output().open == 0))
    }

    /// Kills the process with SIGKILL and reaps it.
    pub fn kill(&mut self) {
        if self.try_status().is_none() {
            // `kill` and `wait` fail only if the process has ended.
            drop(self.child.kill());
            self.status = self.child.wait().ok();
        }
    }

    /// Returns the last lines of output, for error messages.
    #[must_use]
    pub fn tail(&self) -> String {
        let output = self.output();
        let from = output.lines.len().saturating_sub(40);
        output.lines[from..].iter().map(|line| format!("  | {}\n", line.text)).collect()
    }

    fn try_status(&mut self) -> Option<ExitStatus> {
        if self.status.is_none() {
            self.status = self.child.try_wait().ok().flatten();
        }
        self.status
    }

    fn output(&self) -> MutexGuard<'_, Output> {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if self.try_status().is_none() && self.signal(Signal::SIGTERM).is_ok() {
            // The first signal may start a drain, which a second signal ends. The two signals
            // differ, because the kernel may merge two identical pending signals.
            drop(self.signal(Signal::SIGINT));
            eventually(GRACE, || self.try_status());
        }
        self.kill();
    }
}

#[derive(Debug, Default)]
struct Output {
    lines: Vec<Line>,
    forgotten: usize,
    open: u32,
}

impl Output {
    fn push(&mut self, line: Line) {
        if self.lines.len() == MAX_LINES {
            self.lines.drain(..MAX_LINES / 2);
            self.forgotten += MAX_LINES / 2;
        }
        self.lines.push(line);
    }

    fn after(&self, seen: usize) -> impl Iterator<Item = &Line> {
        self.lines.iter().skip(seen.saturating_sub(self.forgotten))
    }
}

fn collect<R: Read + Send + 'static>(pipe: R, stream: Stream, lines: &Arc<Mutex<Output>>) {
    let lines = Arc::clone(lines);
    thread::spawn(move || {
        let mut pipe = BufReader::new(pipe);
        let mut bytes = Vec::new();
        while pipe.read_until(b'\n', &mut bytes).is_ok_and(|n| n > 0) {
            let text = String::from_utf8_lossy(&bytes).trim_end().to_owned();
            lines.lock().unwrap_or_else(PoisonError::into_inner).push(Line { stream, text });
            bytes.clear();
        }
        lines.lock().unwrap_or_else(PoisonError::into_inner).open -= 1;
    });
}

const MAX_LINES: usize = 20_000;
const GRACE: Duration = Duration::from_secs(5);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forgetting_old_lines_keeps_the_count() {
        let mut output = Output::default();
        for n in 0..=MAX_LINES {
            output.push(Line { stream: Stream::Out, text: n.to_string() });
        }
        assert_eq!(output.forgotten + output.lines.len(), MAX_LINES + 1);
        let late: Vec<_> = output.after(MAX_LINES).map(|line| line.text.clone()).collect();
        assert_eq!(late, [MAX_LINES.to_string()]);
    }
}
