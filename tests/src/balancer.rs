//! A balancer's process on a machine of the bed.
//!
//! In: a bed, a configuration, the binary under test. Out: its counters and its log.
//! Not here: what the file says (`config`).

use std::env;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use nix::sys::signal::Signal;
use serde_json::Value;

use crate::{Bed, Counters, LbConfig, Process};

/// A running balancer. Dropping it stops it.
#[derive(Debug)]
pub struct Balancer {
    /// Its process.
    pub process: Process,
    index: usize,
    admin: PathBuf,
    has_heirs: bool,
}

impl Drop for Balancer {
    fn drop(&mut self) {
        if self.has_heirs {
            self.process.kill(); // what holds them listens to nothing else
        }
    }
}

impl Balancer {
    /// Starts a balancer on machine `index` (0 is `lb1`), and waits until it carries traffic.
    ///
    /// # Errors
    /// There is no binary, it ends, or it is not ready in time: its log is in the message.
    pub fn start(bed: &Bed, index: usize, config: &LbConfig) -> Result<Self> {
        let program = bed.program()?.to_str().context("a path in UTF-8")?.to_owned();
        Self::start_by(&[&program], bed, index, config)
    }

    /// The same by another command: the binary under test at its end, and before it what starts that in its own way.
    ///
    /// # Errors
    /// As [`Self::start`].
    pub fn start_by(command: &[&str], bed: &Bed, index: usize, config: &LbConfig) -> Result<Self> {
        let host = &bed.balancers[index];
        let file = config.write(bed, index)?;
        let file = file.to_str().context("a path in UTF-8")?;
        let (program, before) = command.split_first().context("a command")?;
        let args = [before, &["run", "--config", file, "--machine", &host.name]].concat();
        let process = Process::start(&host.ns, &host.name, program, &args)?;
        let admin = LbConfig::admin_socket(bed, index);
        let mut balancer = Self { process, index, admin, has_heirs: false };
        balancer.process.wait_for_line(READY_BOUND, says_ready)?;
        Ok(balancer)
    }

    /// The same where other processes are to take over from it. They live in a process namespace of their own, whose first process is a
    /// shell, so that all of them end with this handle, also when this program is killed. Its process is that shell: signals for the
    /// balancer go by the admin API. `environment`: as `env` takes it.
    ///
    /// # Errors
    /// As [`Self::start`].
    pub fn start_with_heirs(
        bed: &Bed,
        index: usize,
        config: &LbConfig,
        environment: &[&str],
    ) -> Result<Self> {
        let program = bed.program()?.to_str().context("a path in UTF-8")?.to_owned();
        let shell = "\"$0\" \"$@\" & wait; while :; do sleep 1; done";
        let first = ["unshare", "--pid", "--fork", "--kill-child=KILL", "env"];
        let command = [&first[..], environment, &["sh", "-c", shell, &program]].concat();
        let mut balancer = Self::start_by(&command, bed, index, config)?;
        balancer.has_heirs = true;
        Ok(balancer)
    }

    /// Replaces the file and has it read again; returns the line that tells of it.
    ///
    /// # Errors
    /// It has ended, or says nothing of a generation in time.
    pub fn reload(&mut self, bed: &Bed, config: &LbConfig) -> Result<String> {
        config.write(bed, self.index)?;
        let seen = self.process.line_count();
        self.process.signal(Signal::SIGHUP)?;
        self.process.wait_for_line_after(seen, READY_BOUND, |line| line.contains("generation"))
    }

    /// Reads its counters by its admin socket.
    ///
    /// # Errors
    /// It does not answer, or not in JSON.
    pub fn counters(&self) -> Result<Counters> {
        Ok(Counters(self.ask("/counters")?))
    }

    /// Asks its admin socket for `path`, and reads the answer as JSON.
    ///
    /// # Errors
    /// It does not answer, not with 200, or not in JSON.
    pub fn ask(&self, path: &str) -> Result<Value> {
        let answer = self.exchange("GET", path)?;
        body_of(&answer).with_context(|| format!("GET {path} answers {answer:?}"))
    }

    /// Gives it an order by its admin socket, and reads the answer as JSON: the order is in force then.
    ///
    /// # Errors
    /// It does not answer, not with 200, or not in JSON.
    pub fn order(&self, path: &str) -> Result<Value> {
        let answer = self.exchange("POST", path)?;
        body_of(&answer).with_context(|| format!("POST {path} answers {answer:?}"))
    }

    /// Asks its admin socket for `path`: the answer's status, and what follows its headers.
    ///
    /// # Errors
    /// It does not answer.
    pub fn ask_plainly(&self, path: &str) -> Result<(u16, String)> {
        let answer = self.exchange("GET", path)?;
        let (head, body) = answer.split_once("\r\n\r\n").context("no end of headers")?;
        Ok((head.split(' ').nth(1).context("no status")?.parse()?, body.trim().into()))
    }

    fn exchange(&self, method: &str, path: &str) -> Result<String> {
        let mut stream = UnixStream::connect(&self.admin)
            .with_context(|| format!("no admin socket:\n{}", self.process.tail()))?;
        stream.set_read_timeout(Some(ADMIN_BOUND))?;
        stream.write_all(
            format!("{method} {path} HTTP/1.1\r\nHost: bed\r\nConnection: close\r\n\r\n").as_bytes(),
        )?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).with_context(|| format!("{method} {path}"))?;
        Ok(answer)
    }

    /// Stops it by SIGTERM; returns what its last line counts, when there is one.
    ///
    /// # Errors
    /// It does not end in time, or not well.
    pub fn stop(mut self) -> Result<Option<Farewell>> {
        let status = self.process.stop(STOP_BOUND)?;
        ensure!(status.success(), "the balancer ended with {status}:\n{}", self.process.tail());
        let last =
            self.process.lines().into_iter().rev().find(|line| line.text.contains("\"final_counters\""));
        Ok(last.and_then(|line| Farewell::of(&line.text)))
    }
}

/// The last line of a balancer's log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Farewell {
    /// The line, as JSON.
    pub line: String,
    /// Packets that its threads received.
    pub received: u64,
    /// Packets that its threads sent.
    pub forwarded: u64,
}

impl Farewell {
    fn of(line: &str) -> Option<Self> {
        let said: Value = serde_json::from_str(line).ok()?;
        let count = |name: &str| said.get(name)?.as_u64();
        Some(Self { line: line.to_owned(), received: count("received")?, forwarded: count("forwarded")? })
    }
}

/// The binary under test: `SLUICEGATE_BIN`, else `release/sluicegate` of the build folder that this program comes from.
///
/// # Errors
/// There is none.
pub fn binary() -> Result<PathBuf> {
    if let Some(path) = env::var_os("SLUICEGATE_BIN") {
        let path = PathBuf::from(path);
        return path.canonicalize().with_context(|| format!("SLUICEGATE_BIN is {}", path.display()));
    }
    let here = env::current_exe()?;
    let found = here.ancestors().map(|folder| folder.join("release/sluicegate")).find(|path| path.is_file());
    found.context("no release/sluicegate; build it with: cargo build --release -p sluicegate")
}

/// Whether a log line tells of readiness, and not of its lack.
pub(crate) fn says_ready(line: &str) -> bool {
    let mut before = "";
    line.split(|c: char| !c.is_alphanumeric()).filter(|word| !word.is_empty()).any(|word| {
        let found = word == "ready" && before != "not";
        before = word;
        found
    })
}

fn body_of(answer: &str) -> Result<Value> {
    let (head, body) = answer.split_once("\r\n\r\n").context("no end of headers")?;
    let status = head.split(' ').nth(1).unwrap_or_default();
    ensure!(status == "200", "status {status}");
    // Chunk sizes stand outside the braces, or brackets.
    let start = body.find(['{', '[']).context("no object")?;
    let end = body.rfind(['}', ']']).context("no object")?;
    Ok(serde_json::from_str(&body[start..=end])?)
}

/// In an emulated machine beside busy neighbours a start has taken 17 s.
const READY_BOUND: Duration = Duration::from_secs(60);
const STOP_BOUND: Duration = Duration::from_secs(20);
const ADMIN_BOUND: Duration = Duration::from_secs(10);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn readiness_is_a_word() {
        assert!(says_ready(r#"{"event":"ready"}"#) && says_ready("lb1 is ready: 4 threads"));
        assert!(!says_ready("already bound") && !says_ready("not ready: no neighbour") && !says_ready(""));
    }

    #[test]
    fn an_answer_is_its_object_whatever_its_framing() {
        let plain = "HTTP/1.0 200 OK\r\nA: b\r\n\r\n{\"xdp\":{\"redirected\":1}}\n";
        let chunked = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n18\r\n{\"xdp\":{\"redirected\":1}}\r\n0\r\n\r\n";
        for answer in [plain, chunked] {
            assert_eq!(Counters(body_of(answer).unwrap()).redirected(), 1);
        }
        assert!(body_of("HTTP/1.1 503 no\r\n\r\n{}").is_err());
    }
}
