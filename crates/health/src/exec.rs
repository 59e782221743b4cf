//! The exec check, which runs a program on this machine.
//!
//! The health thread cannot start programs itself, because its process has capabilities and cannot
//! change its user. The health thread therefore sends a request over a Unix socket to the check
//! runner, the process `sluicegate run-checks`, which runs the program with a separate user and
//! without capabilities. The module `runner` implements the check runner, `trusted` finds the file
//! of the program, and `wire` defines the messages between the two processes.
//!
//! If a request does not reach the check runner, the attempt is recorded as a failure of this
//! machine, and the health state of the backend does not change.

pub(crate) mod runner;
mod trusted;
pub(crate) mod wire;

use std::io;
use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use config::ExecCheck;
use tokio::io::AsyncWriteExt;
use tokio::net::UnixStream;

use self::wire::{Reply, Request};
use super::dial::read_line;
use super::{Failure, Interim};

pub use self::runner::{RunnerSetup, kill_programs, serve};

/// The backend that a program checks, and the time limit of the check.
pub(super) struct Subject<'a> {
    pub(super) address: IpAddr,
    pub(super) backend: &'a str,
    pub(super) pools: &'a [Arc<str>],
    pub(super) limit: Duration,
}

impl Subject<'_> {
    /// Returns the subject of an attempt for an address that is not a configured backend.
    pub(super) fn of(address: IpAddr) -> Self {
        Self { address, backend: "", pools: &[], limit: wire::LONGEST_LIMIT }
    }
}

/// Runs the program and waits for its result. If the future is dropped, the check runner kills the
/// program.
pub(super) async fn attempt(
    check: &ExecCheck,
    subject: &Subject<'_>,
    interim: &Interim,
) -> Result<(), Failure> {
    let socket = &*check.socket;
    interim.set(Err(silent(socket)));
    let mut stream = UnixStream::connect(socket).await.map_err(|error| unreachable(socket, &error))?;
    let request = Request::new(check, subject).to_text();
    stream.write_all(request.as_bytes()).await.map_err(|error| unreachable(socket, &error))?;
    let mut replies = Replies { stream, buffer: [0; wire::MOST_REPLY_BYTES], length: 0 };
    loop {
        match replies.next().await.map_err(|error| unreachable(socket, &error))? {
            Some(Reply::Started) => {
                interim.set(Err(Failure::Program("the program did not end in time".into())))
            }
            Some(Reply::Passed) => return Ok(()),
            Some(Reply::Failed(why)) => return Err(Failure::Program(why.into())),
            Some(Reply::Unable(why)) => return Err(Failure::Local(why.into())),
            None => {
                let why = format!("the check runner at {} sent no result", socket.display());
                return Err(Failure::Local(why.into()));
            }
        }
    }
}

fn silent(socket: &Path) -> Failure {
    let why = format!("the check runner at {} does not respond", socket.display());
    Failure::Local(why.into())
}

fn unreachable(socket: &Path, error: &io::Error) -> Failure {
    let help = match error.kind() {
        io::ErrorKind::PermissionDenied => "the user of the load balancer needs write access to the socket",
        _ => "is sluicegate-checks.socket active?",
    };
    let why = format!("cannot reach the check runner at {}: {error}; {help}", socket.display());
    Failure::Local(why.into())
}

/// The replies of the check runner, one per line.
struct Replies {
    stream: UnixStream,
    buffer: [u8; wire::MOST_REPLY_BYTES],
    length: usize,
}

impl Replies {
    /// Returns the next reply. Returns `None` if the connection ends or the next line is not a
    /// valid reply.
    async fn next(&mut self) -> io::Result<Option<Reply>> {
        let Self { stream, buffer, length } = self;
        let Some(end) = read_line(stream, buffer, length, |byte| byte == b'\n').await? else {
            return Ok(None);
        };
        let reply = Reply::parse(buffer.get(..end).unwrap_or_default());
        buffer.copy_within(end + 1..*length, 0);
        *length -= end + 1;
        Ok(reply)
    }
}

#[cfg(test)]
mod tests;
