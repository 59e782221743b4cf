//! A child process in a namespace, with its output at hand.
//!
//! In: a program and its arguments. Out: its lines, and its end.
//! Invariant: it ends by its own id, on drop at the latest, and by the kernel when the thread that started it is gone,
//! however that went. Nothing else is ever signalled.
//! Source: prctl(2) PR_SET_PDEATHSIG, which counts the death of the parent thread.

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

/// Where a line came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stream {
    /// Standard output.
    Out,
    /// Standard error.
    Err,
}

/// A line of output, without its end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    /// Where it came from.
    pub stream: Stream,
    /// What it says.
    pub text: String,
}

/// A child that has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ended {
    /// Its exit code; `None`: a signal ended it.
    pub code: Option<i32>,
    /// Its standard output.
    pub out: String,
    /// Its standard error.
    pub err: String,
}

/// A running child.
#[derive(Debug)]
pub struct Process {
    name: String,
    child: Child,
    status: Option<ExitStatus>,
    lines: Arc<Mutex<Output>>,
    _ns: Namespace, // its thread is the child's life
}

impl Process {
    /// Starts `program` in `ns`.
    ///
    /// # Errors
    /// `setpriv` (package util-linux) can't be started. A missing program shows as an exit with status 127.
    pub fn start<S: AsRef<OsStr>>(ns: &Namespace, name: &str, program: S, args: &[&str]) -> Result<Self> {
        let mut command = Command::new("setpriv");
        // The parent may have died before the signal was asked for: the shell looks once more.
        command
            .args(["--pdeathsig", "KILL", "--", "sh", "-c", r#"[ "$PPID" = "$0" ] && exec "$@""#])
            .arg(std::process::id().to_string())
            .arg(program)
            .args(args)
            .process_group(0) // a Ctrl-C is for the process that holds the bed
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = ns.start(command).with_context(|| format!("can't start {name}"))?;
        let lines = Arc::new(Mutex::new(Output { open: 2, ..Output::default() }));
        let (out, err) = (child.stdout.take().context("piped")?, child.stderr.take().context("piped")?);
        collect(out, Stream::Out, &lines);
        collect(err, Stream::Err, &lines);
        Ok(Self { name: name.into(), child, status: None, lines, _ns: ns.clone() })
    }

    /// Runs `program` in `ns` to its end. `None` for the exit code: a signal ended it.
    ///
    /// # Errors
    /// As [`Self::start`], or it did not end by `bound` and was killed.
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

    /// Its process id.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// All lines up to now, oldest first; of very many the newest.
    #[must_use]
    pub fn lines(&self) -> Vec<Line> {
        self.output().lines.clone()
    }

    /// Waits for a line that `wanted` accepts, from the first one on.
    ///
    /// # Errors
    /// No such line by `bound`, or the process ended without it: what it said is in the message.
    pub fn wait_for_line(&mut self, bound: Duration, wanted: impl Fn(&str) -> bool) -> Result<String> {
        self.wait_for_line_after(0, bound, wanted)
    }

    /// Waits as [`Self::wait_for_line`] does, but passes over the first `seen` lines ([`Self::line_count`]).
    ///
    /// # Errors
    /// As there.
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
            Some(Err(())) => bail!("{} ended without the awaited line:\n{}", self.name, self.tail()),
            None => bail!("{} did not say the awaited line in {bound:?}:\n{}", self.name, self.tail()),
        }
    }

    /// How many lines it has said.
    #[must_use]
    pub fn line_count(&self) -> usize {
        let output = self.output();
        output.forgotten + output.lines.len()
    }

    /// Sends it a signal.
    ///
    /// # Errors
    /// It has ended.
    pub fn signal(&mut self, signal: Signal) -> Result<()> {
        if let Some(status) = self.try_status() {
            bail!("{} has ended: {status}:\n{}", self.name, self.tail());
        }
        // Not reaped yet, so the id is still this child's.
        let pid = Pid::from_raw(i32::try_from(self.child.id())?);
        kill(pid, signal).with_context(|| format!("can't signal {}", self.name))
    }

    /// Stops it by SIGSTOP, and waits until none of its threads runs: the signal alone says nothing of when. SIGCONT lets it go on.
    ///
    /// # Errors
    /// It has ended.
    pub fn pause(&mut self) -> Result<()> {
        self.signal(Signal::SIGSTOP)?;
        let pid = Pid::from_raw(i32::try_from(self.child.id())?);
        let seen = WaitPidFlag::WSTOPPED | WaitPidFlag::WEXITED | WaitPidFlag::WNOWAIT;
        match waitid(Id::Pid(pid), seen)? {
            WaitStatus::Stopped(..) => Ok(()),
            other => bail!("{} did not stop: {other:?}", self.name),
        }
    }

    /// Asks it to end by SIGTERM and waits; all its lines have been read then.
    ///
    /// # Errors
    /// It did not end by `bound` and was killed.
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

    /// Waits for its end, without asking for it.
    pub fn wait(&mut self, bound: Duration) -> Option<ExitStatus> {
        eventually(bound, || self.try_status().filter(|_| self.output().open == 0))
    }

    /// Ends it at once by SIGKILL, and reaps it.
    pub fn kill(&mut self) {
        if self.try_status().is_none() {
            // Both fail only when it has ended already.
            drop(self.child.kill());
            self.status = self.child.wait().ok();
        }
    }

    /// Its last lines, for a message.
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
            // Where the first begins a drain, the second ends it. One of another kind, or the kernel might join them.
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
