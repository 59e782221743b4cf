//! The memcached check, which sends the command `version`. This module also sends the command
//! `flush_all`, which removes all entries of a server.
//!
//! References: memcached's `doc/protocol.txt`, "version", "flush_all" and "UDP protocol".

use std::net::{IpAddr, SocketAddr};

use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::dial::receive;
use super::failure::quote;
use super::{Dialer, Failure};
use config::{MemcachedCheck, Transport};

/// Sends one request.
pub(super) async fn attempt(check: &MemcachedCheck, address: IpAddr, dialer: &Dialer) -> Result<(), Failure> {
    let peer = SocketAddr::new(address, check.port);
    match check.transport {
        Transport::Tcp => over_tcp(&VERSION, peer, dialer).await,
        Transport::Udp => over_udp(&VERSION, peer, dialer).await,
    }
}

/// Removes all entries of the memcached server at `peer`, with one request. If TCP is refused, UDP
/// is used, because the server may have only UDP enabled. After success, all earlier entries are
/// gone. Like [`attempt`](crate::attempt()), this function has no time limit.
///
/// # Errors
/// Returns the reason why the server may still have entries.
pub async fn flush(peer: SocketAddr, dialer: &Dialer) -> Result<(), Failure> {
    match over_tcp(&FLUSH, peer, dialer).await {
        Err(Failure::Refused) => over_udp(&FLUSH, peer, dialer).await,
        ended => ended,
    }
}

/// A memcached command of one line, whose response is also one line.
struct Command {
    line: &'static [u8],
    passes: fn(&[u8]) -> bool,
    /// The expected response, for error messages.
    wanted: &'static str,
}

/// Sends the command over UDP. Datagrams that do not match the request are ignored.
async fn over_udp(command: &Command, peer: SocketAddr, dialer: &Dialer) -> Result<(), Failure> {
    let mut id = [0; 2];
    getrandom::fill(&mut id).map_err(|error| Failure::Local(error.to_string().into()))?;
    let [high, low] = id;
    let frame = [high, low, 0, 0, 0, 1, 0, 0];
    let socket = dialer.udp(peer).await.map_err(|error| Failure::from(&error))?;
    socket.send(&[&frame, command.line].concat()).await.map_err(|error| Failure::from(&error))?;
    let mut buffer = [0; LONGEST_LINE];
    loop {
        let length = receive(&socket, &mut buffer).await?;
        let answer = buffer.get(..length).unwrap_or_default();
        if let Some(line) = answer.strip_prefix(&frame[..]) {
            return command.judge(line).unwrap_or_else(|| Err(command.other(line)));
        }
    }
}

async fn over_tcp(command: &Command, peer: SocketAddr, dialer: &Dialer) -> Result<(), Failure> {
    let mut stream = dialer.tcp(peer).await.map_err(|error| Failure::from(&error))?;
    stream.write_all(command.line).await.map_err(|error| Failure::from(&error))?;
    let mut buffer = [0; LONGEST_LINE];
    let mut length = 0;
    loop {
        let Some(room) = buffer.get_mut(length..).filter(|room| !room.is_empty()) else {
            return Err(command.other(&buffer));
        };
        let read = stream.read(room).await.map_err(|error| Failure::from(&error))?;
        length += read;
        let answer = buffer.get(..length).unwrap_or_default();
        match command.judge(answer) {
            Some(health_state) => return health_state,
            None if read == 0 => return Err(Failure::Closed),
            None => {}
        }
    }
}

impl Command {
    /// Returns the result of a response, or `None` while the response line is incomplete.
    fn judge(&self, answer: &[u8]) -> Option<Result<(), Failure>> {
        let end = answer.iter().position(|&byte| byte == b'\n')?;
        let line = answer.get(..end).unwrap_or_default();
        let passes = line.strip_suffix(b"\r").is_some_and(self.passes);
        Some(if passes { Ok(()) } else { Err(self.other(line)) })
    }

    fn other(&self, line: &[u8]) -> Failure {
        Failure::Malformed(format!("{}, expected {:?}", quote(line), self.wanted).into())
    }
}

const VERSION: Command = Command {
    line: b"version\r\n",
    passes: |line| line.strip_prefix(b"VERSION ").is_some_and(|version| !version.is_empty()),
    wanted: "VERSION ...",
};
const FLUSH: Command = Command { line: b"flush_all\r\n", passes: |line| line == b"OK", wanted: "OK" };
const LONGEST_LINE: usize = 256;

#[cfg(test)]
mod tests;
