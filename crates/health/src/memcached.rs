//! The memcached check, which sends the command `version`. This module also sends the command
//! `flush_all`, which removes all entries of a server.
//!
//! References: memcached's `doc/protocol.txt`, "version", "flush_all" and "UDP protocol".

use std::net::{IpAddr, SocketAddr};

use tokio::io::AsyncWriteExt;

use super::dial::{read_line, receive};
use super::failure::quote;
use super::{Dialer, Failure, Interim, full_size};
use config::{MemcachedCheck, Transport};

/// Sends one request.
pub(super) async fn attempt(
    check: &MemcachedCheck,
    address: IpAddr,
    dialer: &Dialer,
    interim: &Interim,
) -> Result<(), Failure> {
    let peer = SocketAddr::new(address, check.port);
    let full_size = check.probe_mtu.then_some(interim);
    match check.transport {
        Transport::Tcp => over_tcp(&VERSION, peer, dialer, full_size).await,
        Transport::Udp => over_udp(&VERSION, peer, dialer, full_size).await,
    }
}

/// Removes all entries of the memcached server at `peer`, with one request. If TCP is refused, UDP
/// is used, because the server may have only UDP enabled. After success, all earlier entries are
/// gone. Like [`attempt`](crate::attempt()), this function has no time limit.
///
/// # Errors
/// Returns the reason why the server may still have entries.
pub async fn flush(peer: SocketAddr, dialer: &Dialer) -> Result<(), Failure> {
    match over_tcp(&FLUSH, peer, dialer, None).await {
        Err(Failure::Refused) => over_udp(&FLUSH, peer, dialer, None).await,
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

/// Sends the command over UDP. Datagrams that do not match the request are ignored. With
/// `full_size`, the command is then sent again in a packet of full size. The check accepts any
/// response to this command.
async fn over_udp(
    command: &Command,
    peer: SocketAddr,
    dialer: &Dialer,
    full_size: Option<&Interim>,
) -> Result<(), Failure> {
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
            let end = line.iter().position(|byte| *byte == b'\n').ok_or_else(|| command.other(line))?;
            command.judge(line.get(..end).unwrap_or_default())?;
            break;
        }
    }
    let Some(interim) = full_size else { return Ok(()) };
    let frame = [high ^ 0x80, low, 0, 0, 0, 1, 0, 0]; // a late response to the first command differs
    let is_response = |answer: &[u8]| answer.starts_with(&frame);
    full_size::datagram(&socket, dialer, interim, |length| command.padded(frame, length), is_response).await
}

/// Sends the command over TCP. With `full_size`, the command is repeated until its copies fill a
/// packet. Only the first response is read.
async fn over_tcp(
    command: &Command,
    peer: SocketAddr,
    dialer: &Dialer,
    full_size: Option<&Interim>,
) -> Result<(), Failure> {
    let mut stream = dialer.tcp(peer).await.map_err(|error| Failure::from(&error))?;
    let mut copies = 1;
    if let Some(interim) = full_size {
        let segment = full_size::segment(&stream)?;
        interim.set(Err(Failure::FullSize(segment)));
        copies = (segment as usize).div_ceil(command.line.len());
    }
    stream.write_all(&command.line.repeat(copies)).await.map_err(|error| Failure::from(&error))?;
    let (mut buffer, mut length) = ([0; LONGEST_LINE], 0);
    let end = read_line(&mut stream, &mut buffer, &mut length, |byte| byte == b'\n').await;
    match end.map_err(|error| Failure::from(&error))? {
        Some(end) => command.judge(buffer.get(..end).unwrap_or_default()),
        None if length == LONGEST_LINE => Err(command.other(&buffer)),
        None => Err(Failure::Closed),
    }
}

impl Command {
    /// Returns a datagram of `length` bytes. Spaces follow the command, and servers skip them.
    fn padded(&self, frame: [u8; 8], length: usize) -> Vec<u8> {
        let mut datagram = [&frame, self.line.trim_ascii_end()].concat();
        datagram.resize(datagram.len().max(length.saturating_sub(LINE_END.len())), b' ');
        datagram.extend_from_slice(LINE_END);
        datagram
    }

    /// Returns the result of a response line without its line feed.
    fn judge(&self, line: &[u8]) -> Result<(), Failure> {
        let passes = line.strip_suffix(b"\r").is_some_and(self.passes);
        if passes { Ok(()) } else { Err(self.other(line)) }
    }

    fn other(&self, line: &[u8]) -> Failure {
        Failure::Malformed(format!("{}, expected {:?}", quote(line), self.wanted).into())
    }
}

const LINE_END: &[u8] = b"\r\n";
const VERSION: Command = Command {
    line: b"version\r\n",
    passes: |line| line.strip_prefix(b"VERSION ").is_some_and(|version| !version.is_empty()),
    wanted: "VERSION ...",
};
const FLUSH: Command = Command { line: b"flush_all\r\n", passes: |line| line == b"OK", wanted: "OK" };
const LONGEST_LINE: usize = 256;

#[cfg(test)]
mod tests;
