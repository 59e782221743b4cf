//! Starts and stops a balancer process on a host of the testbed, sends it admin requests, and reads
//! its counters and its log.
//!
//! The module `config` writes the configuration file.

use std::env;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use nix::sys::signal::Signal;
use serde_json::Value;

use crate::{Bed, Counters, LbConfig, Process};

/// A running balancer. Dropping the handle stops the process.
#[derive(Debug)]
pub struct Balancer {
    /// The balancer process.
    pub process: Process,
    index: usize,
    admin: PathBuf,
    has_heirs: bool,
}

impl Drop for Balancer {
    fn drop(&mut self) {
        if self.has_heirs {
            self.process.kill(); // `unshare --fork` ignores SIGTERM
        }
    }
}

impl Balancer {
    /// Starts a balancer on host `index` (0 is `lb1`), and waits until it is ready.
    ///
    /// # Errors
    /// Returns an error if the binary is missing, or if the process ends or is not ready in time.
    /// The message contains the log.
    pub fn start(bed: &Bed, index: usize, config: &LbConfig) -> Result<Self> {
        let program = bed.program()?.to_str().context("the path is not UTF-8")?.to_owned();
        Self::start_by(&[&program], bed, index, config)
    }

    /// Starts a balancer like [`Self::start`], but with a different command, such as a wrapper
    /// program. The last words of `command` are the path of the binary.
    ///
    /// # Errors
    /// Fails in the same cases as [`Self::start`].
    pub fn start_by(command: &[&str], bed: &Bed, index: usize, config: &LbConfig) -> Result<Self> {
        let host = &bed.balancers[index];
        let file = config.write(bed, index)?;
        let file = file.to_str().context("the path is not UTF-8")?;
        let (program, before) = command.split_first().context("the command is empty")?;
        let args = [before, &["run", "--config", file, "--machine", &host.name]].concat();
        let process = Process::start(&host.ns, &host.name, program, &args)?;
        let admin = LbConfig::admin_socket(bed, index);
        let mut balancer = Self { process, index, admin, has_heirs: false };
        balancer.process.wait_for_line(READY_BOUND, |line| line.contains("startup completed"))?;
        Ok(balancer)
    }

    /// Starts a balancer whose process can be replaced by a new process in an upgrade.
    ///
    /// All processes live in a PID namespace whose first process is a shell. The processes end when
    /// this handle is dropped, even if the test process is killed. [`Self::process`] is the shell,
    /// so tests control the balancer through the admin API instead of with signals. `environment`
    /// is a list of assignments for `env`.
    ///
    /// # Errors
    /// Fails in the same cases as [`Self::start`].
    pub fn start_with_heirs(
        bed: &Bed,
        index: usize,
        config: &LbConfig,
        environment: &[&str],
    ) -> Result<Self> {
        let program = bed.program()?.to_str().context("the path is not UTF-8")?.to_owned();
        let shell = "\"$0\" \"$@\" & wait; while :; do sleep 1; done";
        let first = ["unshare", "--pid", "--fork", "--kill-child=KILL", "env"];
        let command = [&first[..], environment, &["sh", "-c", shell, &program]].concat();
        let mut balancer = Self::start_by(&command, bed, index, config)?;
        balancer.has_heirs = true;
        Ok(balancer)
    }

    /// Replaces the configuration file, triggers a reload, and returns the log line that reports
    /// the result of the reload.
    ///
    /// # Errors
    /// Returns an error if the process has ended, or if no such log line appears in time.
    pub fn reload(&mut self, bed: &Bed, config: &LbConfig) -> Result<String> {
        config.write(bed, self.index)?;
        let seen = self.process.line_count();
        self.process.signal(Signal::SIGHUP)?;
        self.process.wait_for_line_after(seen, READY_BOUND, |line| {
            line.contains("generation") || line.contains("reload rejected")
        })
    }

    /// Reads the counters through the admin socket.
    ///
    /// # Errors
    /// Returns an error if the response is not JSON, or if there is none.
    pub fn counters(&self) -> Result<Counters> {
        Ok(Counters(self.ask("/counters")?))
    }

    /// Sends a GET request for `path` to the admin socket, and parses the response as JSON.
    ///
    /// # Errors
    /// Returns an error if the response is missing, is not JSON or has a status other than 200.
    pub fn ask(&self, path: &str) -> Result<Value> {
        let answer = self.exchange("GET", path)?;
        body_of(&answer).with_context(|| format!("unexpected response to GET {path}, {answer:?}"))
    }

    /// Sends a POST request for `path` to the admin socket, and parses the response as JSON. The
    /// command is in effect when this function returns.
    ///
    /// # Errors
    /// Returns an error if the response is missing, is not JSON or has a status other than 200.
    pub fn order(&self, path: &str) -> Result<Value> {
        let answer = self.exchange("POST", path)?;
        body_of(&answer).with_context(|| format!("unexpected response to POST {path}, {answer:?}"))
    }

    /// Sends a GET request for `path` to the admin socket, and returns the status and the body
    /// without parsing them.
    ///
    /// # Errors
    /// Returns an error if the admin socket sends no response.
    pub fn ask_plainly(&self, path: &str) -> Result<(u16, String)> {
        let answer = self.exchange("GET", path)?;
        let (head, body) = answer.split_once("\r\n\r\n").context("the response has no end of headers")?;
        Ok((head.split(' ').nth(1).context("the response has no status")?.parse()?, body.trim().into()))
    }

    fn exchange(&self, method: &str, path: &str) -> Result<String> {
        let mut stream = UnixStream::connect(&self.admin).with_context(|| {
            format!("cannot connect to the admin socket, last log lines:\n{}", self.process.tail())
        })?;
        stream.set_read_timeout(Some(ADMIN_BOUND))?;
        stream.write_all(
            format!("{method} {path} HTTP/1.1\r\nHost: bed\r\nConnection: close\r\n\r\n").as_bytes(),
        )?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).with_context(|| format!("{method} {path}"))?;
        Ok(answer)
    }

    /// Stops the balancer with SIGTERM. Returns the counters in its last log line, or `None` if the
    /// line contains no counters.
    ///
    /// # Errors
    /// Returns an error if the balancer does not end in time or exits with a failure.
    pub fn stop(mut self) -> Result<Option<Farewell>> {
        let status = self.process.stop(STOP_BOUND)?;
        ensure!(status.success(), "the balancer ended with {status}:\n{}", self.process.tail());
        let last =
            self.process.lines().into_iter().rev().find(|line| line.text.contains("\"final_counters\""));
        Ok(last.and_then(|line| Farewell::of(&line.text)))
    }
}

/// The last log line of a balancer, with its totals.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Farewell {
    /// The log line, in JSON.
    pub line: String,
    /// The number of packets that the packet threads received.
    pub received: u64,
    /// The number of packets that the packet threads sent.
    pub forwarded: u64,
}

impl Farewell {
    fn of(line: &str) -> Option<Self> {
        let said: Value = serde_json::from_str(line).ok()?;
        let count = |name: &str| said.get(name)?.as_u64();
        Some(Self { line: line.to_owned(), received: count("received")?, forwarded: count("forwarded")? })
    }
}

/// Returns the path of the balancer binary: `SLUICEGATE_BIN` if this variable is set, otherwise
/// `release/sluicegate` in the Cargo target directory of the running test.
///
/// # Errors
/// Returns an error if the binary does not exist.
pub fn binary() -> Result<PathBuf> {
    if let Some(path) = env::var_os("SLUICEGATE_BIN") {
        let path = PathBuf::from(path);
        return path.canonicalize().with_context(|| format!("SLUICEGATE_BIN is {}", path.display()));
    }
    let here = env::current_exe()?;
    let found = here.ancestors().map(|folder| folder.join("release/sluicegate")).find(|path| path.is_file());
    found.context("release/sluicegate is missing, build it with `cargo build --release -p sluicegate`")
}

/// Returns `true` if a log line reports that `decap` is ready. Lines with "not ready" are
/// ignored.
pub(crate) fn says_ready(line: &str) -> bool {
    let mut before = "";
    line.split(|c: char| !c.is_alphanumeric()).filter(|word| !word.is_empty()).any(|word| {
        let found = word == "ready" && before != "not";
        before = word;
        found
    })
}

fn body_of(answer: &str) -> Result<Value> {
    let (head, body) = answer.split_once("\r\n\r\n").context("the response has no end of headers")?;
    let status = head.split(' ').nth(1).unwrap_or_default();
    ensure!(status == "200", "status {status}");
    // If the response is chunked, chunk sizes precede and follow the JSON.
    let start = body.find(['{', '[']).context("the response has no JSON object")?;
    let end = body.rfind(['}', ']']).context("the response has no JSON object")?;
    Ok(serde_json::from_str(&body[start..=end])?)
}

/// The time limit for the startup, which takes up to 17 s on an emulated machine under load.
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
    fn response_body_is_parsed_in_any_framing() {
        let plain = "HTTP/1.0 200 OK\r\nA: b\r\n\r\n{\"xdp\":{\"redirected\":1}}\n";
        let chunked = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n18\r\n{\"xdp\":{\"redirected\":1}}\r\n0\r\n\r\n";
        for answer in [plain, chunked] {
            assert_eq!(Counters(body_of(answer).unwrap()).redirected(), 1);
        }
        assert!(body_of("HTTP/1.1 503 no\r\n\r\n{}").is_err());
    }
}
