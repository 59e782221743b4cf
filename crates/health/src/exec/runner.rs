//! Runs the programs of exec checks, for `sluicegate run-checks`.
//!
//! Each connection carries one request. A program runs in its own process group without a shell,
//! with an empty standard input and its own environment. The whole process group is killed when the
//! program ends, when its time limit expires, or when the connection closes. Processes that left
//! the group become children of this process, which is their subreaper, and are killed too. The
//! environment of such a process shows which program started it. When a program ends, the processes
//! of other programs are therefore not affected.
//!
//! References: prctl(2), `PR_SET_CHILD_SUBREAPER`; proc(5), `/proc/PID/task/TID/children`.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use nix::sys::signal::{Signal, kill, killpg};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::{Pid, getpgid};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::net::{UnixListener, UnixStream};
use tokio::process::{Child, Command};
use tokio::sync::Semaphore;
use tokio::time::{sleep, timeout};

use super::trusted;
use super::wire::{MOST_REQUEST_BYTES, Reply, Request, printable};
use crate::lock;

/// The settings of a runner.
#[derive(Clone, Debug)]
pub struct RunnerSetup {
    /// The folder of the programs.
    pub programs: PathBuf,
    /// The maximum number of programs that run in parallel.
    pub most: usize,
}

/// Accepts requests, and runs their programs. The function returns only if the process cannot
/// become a subreaper. Call this function on a single-threaded runtime.
///
/// # Errors
/// Returns the error of prctl(2).
pub async fn serve(listener: UnixListener, setup: RunnerSetup) -> io::Result<()> {
    nix::sys::prctl::set_child_subreaper(true)?;
    let running = Arc::new(Mutex::new(BTreeMap::new()));
    let free = Arc::new(Semaphore::new(setup.most));
    let programs: Arc<Path> = setup.programs.into();
    loop {
        let Ok((mut stream, _)) = listener.accept().await else {
            sleep(ACCEPT_PAUSE).await; // no file descriptor is free
            continue;
        };
        let permit = Arc::clone(&free).try_acquire_owned();
        let (programs, running, most) = (Arc::clone(&programs), Arc::clone(&running), setup.most);
        tokio::spawn(async move {
            let reply = match permit {
                Ok(_permit) => handle(&mut stream, &programs, &running).await,
                Err(_) => Some(Reply::Unable(format!("the check runner already runs {most} programs"))),
            };
            if let Some(reply) = reply {
                send(&mut stream, &reply).await;
            }
        });
    }
}

/// Handles one connection. Returns the last reply, or `None` if the peer has closed the connection.
async fn handle(stream: &mut UnixStream, programs: &Path, running: &Running) -> Option<Reply> {
    let request = match timeout(REQUEST_LIMIT, read_request(stream)).await {
        Ok(Ok(request)) => request,
        Ok(Err(why)) => return Some(Reply::Unable(why.into())),
        Err(_) => return Some(Reply::Unable("the request is not complete".into())),
    };
    let mut program = match Program::start(&request, programs, running) {
        Ok(program) => program,
        Err(why) => return Some(Reply::Unable(why)),
    };
    send(stream, &Reply::Started).await;
    let mut more = [0];
    let end = tokio::select! {
        biased;
        status = program.finish() => Some(status),
        () = sleep(request.limit) => Some(Reply::Failed("the program did not end in time".into())),
        // The peer sends nothing after its request.
        _ = stream.read(&mut more) => None,
    };
    program.kill().await;
    end
}

pub(crate) async fn read_request(stream: &mut (impl AsyncRead + Unpin)) -> Result<Request, &'static str> {
    let mut text = Vec::new();
    loop {
        if let Some(lines) = text.strip_suffix(b"\n\n") {
            return Request::parse(lines);
        }
        if text.len() >= MOST_REQUEST_BYTES {
            return Err("the request is too long");
        }
        match (&mut *stream).take(MOST_REQUEST_BYTES as u64).read_buf(&mut text).await {
            Ok(0) | Err(_) => return Err("the request is not complete"),
            Ok(_) => {}
        }
    }
}

/// Sends a reply. A peer that reads nothing does not hold the connection.
async fn send(stream: &mut UnixStream, reply: &Reply) {
    let _ = timeout(REQUEST_LIMIT, stream.write_all(reply.to_text().as_bytes())).await;
}

/// The process IDs of the programs that run, with the numbers of their runs ([`RUN`]).
type Running = Mutex<BTreeMap<i32, u64>>;

/// A program that runs. Dropping the handle kills the process group of the program.
struct Program<'a> {
    child: Child,
    group: Pid,
    running: &'a Running,
}

impl<'a> Program<'a> {
    fn start(request: &Request, programs: &Path, running: &'a Running) -> Result<Self, String> {
        let name = &request.program;
        let path = trusted::program(programs, name)?;
        static RUNS: AtomicU64 = AtomicU64::new(1);
        let run = RUNS.fetch_add(1, Ordering::Relaxed);
        let mut command = Command::new(&path);
        command
            .arg0(programs.join(name)) // some programs choose what they do by the name of the link
            .args(&request.arguments)
            .env_clear()
            .env("PATH", PATH)
            .env("LC_ALL", "C.UTF-8")
            .env(RUN, run.to_string())
            .env("SLUICEGATE_BACKEND", &request.backend)
            .env("SLUICEGATE_POOLS", &request.pools)
            .env("SLUICEGATE_ADDRESS", request.address.to_string())
            .current_dir("/")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0)
            .kill_on_drop(true);
        if let Some(port) = request.port {
            command.env("SLUICEGATE_PORT", port.to_string());
        }
        // Strays are killed only while this lock is free, so a program that is being started is
        // never treated as a stray.
        let mut ids = lock(running);
        let child = command.spawn().map_err(|error| format!("cannot start {}: {error}", path.display()))?;
        let id = child.id().and_then(|id| i32::try_from(id).ok()).ok_or("the program has no process ID")?;
        ids.insert(id, run);
        Ok(Self { child, group: Pid::from_raw(id), running })
    }

    /// Waits for the end of the program, and returns the result.
    async fn finish(&mut self) -> Reply {
        let (out, err) = (self.child.stdout.take(), self.child.stderr.take());
        let (mut from_out, mut from_err) = (FirstLine::default(), FirstLine::default());
        let status = {
            let reading = async { tokio::join!(from_out.read(out), from_err.read(err)) };
            tokio::pin!(reading);
            let mut is_read = false;
            let status = loop {
                tokio::select! {
                    status = self.child.wait() => break status,
                    _ = &mut reading, if !is_read => is_read = true,
                }
            };
            // Reading the output does not wait for other processes in the group.
            let _ = killpg(self.group, Signal::SIGKILL);
            if !is_read {
                let _ = timeout(REST, reading).await;
            }
            status
        };
        let text = if from_out.0.is_empty() { from_err.0 } else { from_out.0 };
        match status {
            Ok(status) if status.success() => Reply::Passed,
            Ok(status) => Reply::Failed(words(status, &text)),
            Err(error) => Reply::Unable(format!("cannot wait for the program: {error}")),
        }
    }

    /// Kills the process group, and processes that have left the group.
    async fn kill(mut self) {
        // After the end of the program, its ID may belong to another process.
        if self.child.id().is_some() {
            let _ = killpg(self.group, Signal::SIGKILL);
            let _ = self.child.wait().await;
        }
        let running = self.running;
        drop(self);
        // A killed process may leave children, which then belong to this process.
        for _ in 0..STRAY_ROUNDS {
            if kill_strays(&lock(running)) == 0 {
                break;
            }
            sleep(STRAY_PAUSE).await;
        }
    }
}

impl Drop for Program<'_> {
    fn drop(&mut self) {
        if self.child.id().is_some() {
            let _ = killpg(self.group, Signal::SIGKILL);
        }
        lock(self.running).remove(&self.group.as_raw());
    }
}

/// Kills all programs and the processes that they have started. Call this function before the
/// process ends, when the runtime of [`serve`] no longer exists.
pub fn kill_programs() {
    for _ in 0..STRAY_ROUNDS {
        if kill_strays(&BTreeMap::new()) == 0 {
            break;
        }
        std::thread::sleep(STRAY_PAUSE);
    }
}

/// Kills and reaps the children of this process that belong to no running program. Returns the
/// number of killed processes.
fn kill_strays(programs: &BTreeMap<i32, u64>) -> usize {
    let tasks = fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
    let lists = tasks.filter_map(|task| fs::read_to_string(task.path().join("children")).ok());
    let children = lists
        .flat_map(|list| list.split_whitespace().filter_map(|id| id.parse().ok()).collect::<Vec<i32>>())
        .filter(|id| !programs.contains_key(id));
    let mut killed = 0;
    for id in children {
        let child = Pid::from_raw(id);
        let is_alive = || matches!(waitpid(child, Some(WaitPidFlag::WNOHANG)), Ok(WaitStatus::StillAlive));
        if is_alive() && !is_needed(child, programs) {
            let _ = kill(child, Signal::SIGKILL);
            is_alive();
            killed += 1;
        }
    }
    killed
}

/// Returns `true` if a process may belong to a running program.
fn is_needed(process: Pid, programs: &BTreeMap<i32, u64>) -> bool {
    if programs.is_empty() {
        return false;
    }
    if getpgid(Some(process)).is_ok_and(|group| programs.contains_key(&group.as_raw())) {
        return true;
    }
    // A process that has changed its environment may belong to any program, so it is kept until no
    // program runs.
    let environment = fs::read(format!("/proc/{process}/environ")).unwrap_or_default();
    let run = environment.split(|byte| *byte == 0).find_map(|line| {
        let value = line.strip_prefix(RUN.as_bytes())?.strip_prefix(b"=")?;
        str::from_utf8(value).ok()?.parse().ok()
    });
    run.is_none_or(|run: u64| programs.values().any(|running| *running == run))
}

/// The first line that a program prints which is not blank.
#[derive(Default)]
pub(crate) struct FirstLine(String);

impl FirstLine {
    /// Reads until the end of the output. Only the first line is kept.
    pub(crate) async fn read(&mut self, from: Option<impl AsyncRead + Unpin>) {
        let Some(mut from) = from else { return };
        let (mut buffer, mut line) = ([0; 4_096], Vec::new());
        while let Ok(read @ 1..) = from.read(&mut buffer).await {
            if !self.0.is_empty() {
                continue;
            }
            // Only new bytes are searched, because a program may write one byte at a time.
            let new = buffer.get(..read).unwrap_or_default();
            let new = if line.is_empty() { new.trim_ascii_start() } else { new };
            let end = new.iter().position(|byte| *byte == b'\n');
            line.extend_from_slice(new.get(..end.unwrap_or(new.len())).unwrap_or_default());
            if end.is_some() || line.len() >= LONGEST_LINE {
                self.0 = printable(&line);
            }
        }
        if self.0.is_empty() {
            self.0 = printable(&line);
        }
    }
}

fn words(status: ExitStatus, text: &str) -> String {
    use std::os::unix::process::ExitStatusExt as _;
    let how = match (status.code(), status.signal().map(Signal::try_from)) {
        (Some(code), _) => format!("exit status {code}"),
        (None, Some(Ok(signal))) => format!("killed by {signal}"),
        (None, _) => "killed by a signal".into(),
    };
    if text.is_empty() { how } else { format!("{how}: {text}") }
}

const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
/// The variable with a number that is different for each run of a program.
const RUN: &str = "SLUICEGATE_RUN";
const REQUEST_LIMIT: Duration = Duration::from_secs(2);
const REST: Duration = Duration::from_millis(100);
/// The number of bytes after which the rest of a line is ignored.
const LONGEST_LINE: usize = 4_096;
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
const STRAY_ROUNDS: u32 = 20;
const STRAY_PAUSE: Duration = Duration::from_millis(10);
