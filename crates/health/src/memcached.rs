//! memcached: `version`.
//!
//! In: the check. Out: passed when the answer is `VERSION` and something.
//! Source: memcached's `doc/protocol.txt`, "version" and "UDP protocol".

use std::net::{IpAddr, SocketAddr};

use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::failure::quote;
use super::{Dialer, Failure};
use config::{MemcachedCheck, Transport};

/// Asks once.
pub(super) async fn attempt(check: &MemcachedCheck, address: IpAddr, dialer: &Dialer) -> Result<(), Failure> {
    let peer = SocketAddr::new(address, check.port);
    match check.transport {
        Transport::Tcp => over_tcp(peer, dialer).await,
        Transport::Udp => over_udp(peer, dialer).await,
    }
}

/// What does not answer this request is no answer, and it goes on waiting.
async fn over_udp(peer: SocketAddr, dialer: &Dialer) -> Result<(), Failure> {
    let mut id = [0; 2];
    getrandom::fill(&mut id).map_err(|error| Failure::Local(error.to_string().into()))?;
    let [high, low] = id;
    let frame = [high, low, 0, 0, 0, 1, 0, 0];
    let socket = dialer.udp(peer).await.map_err(|error| Failure::from(&error))?;
    socket.send(&[&frame, QUESTION].concat()).await.map_err(|error| Failure::from(&error))?;
    let mut buffer = [0; LONGEST_LINE];
    loop {
        let length = socket.recv(&mut buffer).await.map_err(|error| Failure::from(&error))?;
        let answer = buffer.get(..length).unwrap_or_default();
        if let Some(line) = answer.strip_prefix(&frame[..]) {
            return judge(line).unwrap_or_else(|| Err(not_a_version(line)));
        }
    }
}

async fn over_tcp(peer: SocketAddr, dialer: &Dialer) -> Result<(), Failure> {
    let mut stream = dialer.tcp(peer).await.map_err(|error| Failure::from(&error))?;
    stream.write_all(QUESTION).await.map_err(|error| Failure::from(&error))?;
    let mut buffer = [0; LONGEST_LINE];
    let mut length = 0;
    loop {
        let Some(room) = buffer.get_mut(length..).filter(|room| !room.is_empty()) else {
            return Err(not_a_version(&buffer));
        };
        let read = stream.read(room).await.map_err(|error| Failure::from(&error))?;
        length += read;
        let answer = buffer.get(..length).unwrap_or_default();
        match judge(answer) {
            Some(verdict) => return verdict,
            None if read == 0 => return Err(Failure::Closed),
            None => {}
        }
    }
}

/// `None`: the line has no end yet.
fn judge(answer: &[u8]) -> Option<Result<(), Failure>> {
    let end = answer.iter().position(|&byte| byte == b'\n')?;
    let line = answer.get(..end).unwrap_or_default();
    let version = line.strip_prefix(b"VERSION ").and_then(|rest| rest.strip_suffix(b"\r"));
    Some(match version {
        Some(version) if !version.is_empty() => Ok(()),
        _ => Err(not_a_version(line)),
    })
}

fn not_a_version(line: &[u8]) -> Failure {
    Failure::Malformed(format!("{}, wanted \"VERSION ...\"", quote(line)).into())
}

const QUESTION: &[u8] = b"version\r\n";
const LONGEST_LINE: usize = 256;

#[cfg(test)]
mod tests;
