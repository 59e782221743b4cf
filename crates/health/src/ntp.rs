//! An NTP request over UDP.
//!
//! In: the check. Out: passed when the answer to this very request is of a server that is synchronized, and near enough to a
//! reference clock.
//! Not here: what time the server says: this machine's own clock is no better judge of it.
//! Source: RFC 5905 §7.3 (the header), §7.4 (kiss codes), §8 (what must match); RFC 9109 for the port, which the kernel chooses.

use std::net::{IpAddr, SocketAddr};

use super::{Dialer, Failure};
use config::NtpCheck;

/// Asks once. What does not answer this request is no answer, and it goes on waiting.
pub(super) async fn attempt(check: &NtpCheck, address: IpAddr, dialer: &Dialer) -> Result<(), Failure> {
    let mut stamp = [0; 8];
    getrandom::fill(&mut stamp).map_err(|error| Failure::Local(error.to_string().into()))?;
    let socket = dialer.udp(SocketAddr::new(address, check.port)).await;
    let socket = socket.map_err(|error| Failure::from(&error))?;
    socket.send(&request(stamp)).await.map_err(|error| Failure::from(&error))?;
    // What follows the header, and so what is cut here, is of extensions that were not asked for.
    let mut buffer = [0; HEADER_BYTES];
    loop {
        let length = socket.recv(&mut buffer).await.map_err(|error| Failure::from(&error))?;
        let answer = buffer.get(..length).unwrap_or_default();
        if let Some(verdict) = judge(answer, stamp, check.max_stratum) {
            return verdict;
        }
    }
}

/// A client's header. Its only time is `stamp`, of when it was sent: a server takes it for a number, and gives it back.
fn request(stamp: [u8; 8]) -> Vec<u8> {
    [&[VERSION << 3 | MODE_CLIENT][..], &[0; HEADER_BYTES - 1 - 8], &stamp].concat()
}

/// `None`: it does not answer this request; the answer may still come.
fn judge(answer: &[u8], stamp: [u8; 8], max_stratum: u8) -> Option<Result<(), Failure>> {
    if answer.get(ORIGIN..ORIGIN + stamp.len())? != stamp {
        return None;
    }
    Some(judge_answer(answer, max_stratum))
}

fn judge_answer(answer: &[u8], max_stratum: u8) -> Result<(), Failure> {
    let header = answer.first_chunk::<HEADER_BYTES>();
    let &[first, stratum, _, _, _, _, _, _, _, _, _, _, k0, k1, k2, k3, ..] =
        header.ok_or_else(|| Failure::malformed("an answer that is shorter than NTP's header"))?;
    let (leap, mode, code) = (first >> 6, first & 0x07, [k0, k1, k2, k3]);
    match (mode, leap, stratum) {
        (MODE_SERVER, _, 0) if code.iter().all(u8::is_ascii_graphic) => Err(Failure::Kiss(code)),
        (MODE_SERVER, LEAP_UNKNOWN, _) | (MODE_SERVER, _, 0 | UNSYNCHRONIZED..) => {
            Err(Failure::Unsynchronized)
        }
        (MODE_SERVER, _, found) if found > max_stratum => Err(Failure::Stratum { found, max: max_stratum }),
        (MODE_SERVER, _, _) => Ok(()),
        (other, _, _) => {
            Err(Failure::Malformed(format!("NTP of mode {other}, wanted a server's, {MODE_SERVER}").into()))
        }
    }
}

const HEADER_BYTES: usize = 48;
/// Where the answer repeats the time at which the request was sent.
const ORIGIN: usize = 24;
const VERSION: u8 = 4;
const MODE_CLIENT: u8 = 3;
const MODE_SERVER: u8 = 4;
/// The leap indicator of a clock that is not synchronized.
const LEAP_UNKNOWN: u8 = 3;
/// The least stratum that is none.
const UNSYNCHRONIZED: u8 = 16;

#[cfg(test)]
mod tests;
