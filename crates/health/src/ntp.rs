//! The NTP check, over UDP.
//!
//! A check passes if the server responds, is synchronized and has a sufficiently low stratum. The
//! time in the response is not checked, because the clock of this machine is no more reliable than
//! the server.
//!
//! References: RFC 5905 §7.3 (the header), §7.4 (kiss codes) and §8 (fields that must match), and
//! RFC 9109 (random source port, which the kernel chooses).

use std::net::{IpAddr, SocketAddr};

use super::dial::receive;
use super::{Dialer, Failure};
use config::NtpCheck;

/// Sends one request. Datagrams that do not match the request are ignored.
pub(super) async fn attempt(check: &NtpCheck, address: IpAddr, dialer: &Dialer) -> Result<(), Failure> {
    let mut stamp = [0; 8];
    getrandom::fill(&mut stamp).map_err(|error| Failure::Local(error.to_string().into()))?;
    let socket = dialer.udp(SocketAddr::new(address, check.port)).await;
    let socket = socket.map_err(|error| Failure::from(&error))?;
    socket.send(&request(stamp)).await.map_err(|error| Failure::from(&error))?;
    // The buffer has no space for extension fields, because the request does not use them.
    let mut buffer = [0; HEADER_BYTES];
    loop {
        let length = receive(&socket, &mut buffer).await?;
        let answer = buffer.get(..length).unwrap_or_default();
        if let Some(health_state) = judge(answer, stamp, check.max_stratum) {
            return health_state;
        }
    }
}

/// Encodes a client request. The transmit timestamp of the request is the random `stamp`, which the
/// server copies into its response.
fn request(stamp: [u8; 8]) -> Vec<u8> {
    [&[VERSION << 3 | MODE_CLIENT][..], &[0; HEADER_BYTES - 1 - 8], &stamp].concat()
}

/// Returns the result of a response. Returns `None` if the response does not match the request,
/// because the matching response may still arrive.
fn judge(answer: &[u8], stamp: [u8; 8], max_stratum: u8) -> Option<Result<(), Failure>> {
    if answer.get(ORIGIN..ORIGIN + stamp.len())? != stamp {
        return None;
    }
    Some(judge_answer(answer, max_stratum))
}

fn judge_answer(answer: &[u8], max_stratum: u8) -> Result<(), Failure> {
    let header = answer.first_chunk::<HEADER_BYTES>();
    let &[first, stratum, _, _, _, _, _, _, _, _, _, _, k0, k1, k2, k3, ..] =
        header.ok_or_else(|| Failure::malformed("response shorter than the NTP header"))?;
    let (leap, mode, code) = (first >> 6, first & 0x07, [k0, k1, k2, k3]);
    match (mode, leap, stratum) {
        (MODE_SERVER, _, 0) if code.iter().all(u8::is_ascii_graphic) => Err(Failure::Kiss(code)),
        (MODE_SERVER, LEAP_UNKNOWN, _) | (MODE_SERVER, _, 0 | UNSYNCHRONIZED..) => {
            Err(Failure::Unsynchronized)
        }
        (MODE_SERVER, _, found) if found > max_stratum => Err(Failure::Stratum { found, max: max_stratum }),
        (MODE_SERVER, _, _) => Ok(()),
        (other, _, _) => {
            Err(Failure::Malformed(format!("NTP mode {other}, expected {MODE_SERVER} (server)").into()))
        }
    }
}

const HEADER_BYTES: usize = 48;
/// The offset of the field in which the server returns the transmit timestamp of the request.
const ORIGIN: usize = 24;
const VERSION: u8 = 4;
const MODE_CLIENT: u8 = 3;
const MODE_SERVER: u8 = 4;
/// The leap indicator of a clock that is not synchronized.
const LEAP_UNKNOWN: u8 = 3;
/// The lowest stratum that means "not synchronized".
const UNSYNCHRONIZED: u8 = 16;

#[cfg(test)]
mod tests;
