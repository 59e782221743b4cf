//! memcached: `version`.
//!
//! In: the check. Out: passed when the answer is `VERSION` and something.
//! Source: memcached's `doc/protocol.txt`, "version".

use std::net::{IpAddr, SocketAddr};

use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::failure::quote;
use super::{Dialer, Failure};
use config::MemcachedCheck;

/// Asks once.
pub(super) async fn attempt(check: &MemcachedCheck, address: IpAddr, dialer: &Dialer) -> Result<(), Failure> {
    let peer = SocketAddr::new(address, check.port);
    let mut stream = dialer.tcp(peer).await.map_err(|error| Failure::from(&error))?;
    stream.write_all(b"version\r\n").await.map_err(|error| Failure::from(&error))?;
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

const LONGEST_LINE: usize = 256;

#[cfg(test)]
mod tests;
