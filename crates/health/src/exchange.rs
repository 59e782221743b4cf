//! The TCP and UDP checks that send bytes and match the response.
//!
//! The expectation is an automaton, which reads the response byte by byte while it arrives. An
//! attempt reads at most 64 KiB over TCP, or one datagram of at most 4 KiB over UDP. The attempt
//! stores only the first bytes of the response, which the message of a failure shows.
//!
//! References: RFC 792 and RFC 4443 §3.1 (destination unreachable).

use std::net::{IpAddr, SocketAddr};

use config::{Expect, TcpCheck, UdpCheck};
use regex_automata::dfa::Automaton;
use regex_automata::util::primitives::StateID;
use regex_automata::util::start;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::dial::receive;
use super::failure::quote;
use super::{Dialer, Failure, Interim, Pass};

/// Sends the payload, and reads until the response contains the expectation. If the time limit
/// expires first, the failure shows the bytes that have arrived.
pub(super) async fn over_tcp(
    check: &TcpCheck,
    expect: &Expect,
    address: IpAddr,
    dialer: &Dialer,
    interim: &Interim,
) -> Result<Pass, Failure> {
    let peer = SocketAddr::new(address, check.port);
    let mut stream = dialer.tcp(peer).await.map_err(|error| Failure::from(&error))?;
    if let Some(payload) = &check.send {
        stream.write_all(&payload.bytes()).await.map_err(|error| Failure::from(&error))?;
    }
    let mut search = Search::new(expect)?;
    let mut buffer = [0; BUFFER_BYTES];
    for _ in 0..MAX_RESPONSE_BYTES {
        let room = buffer.len().min(MAX_RESPONSE_BYTES - search.length);
        let read = stream.read(buffer.get_mut(..room).unwrap_or_default()).await;
        let read = read.map_err(|error| Failure::from(&error))?;
        if search.add(buffer.get(..read).unwrap_or_default()) || read == 0 && search.end() {
            return Ok(Pass::Answered);
        }
        if read == 0 {
            break;
        }
        interim.set(Err(search.failure()));
    }
    Err(if search.length == 0 { Failure::Closed } else { search.failure() })
}

/// Sends one datagram. Without an expectation, any response passes, and so does silence until the
/// time limit. An ICMP error makes the check fail with and without an expectation.
pub(super) async fn over_udp(
    check: &UdpCheck,
    address: IpAddr,
    dialer: &Dialer,
    interim: &Interim,
) -> Result<Pass, Failure> {
    let socket = dialer.udp(SocketAddr::new(address, check.port)).await;
    let socket = socket.map_err(|error| Failure::from(&error))?;
    socket.send(&check.send.bytes()).await.map_err(|error| Failure::from(&error))?;
    if check.expect.is_none() {
        interim.set(Ok(Pass::Silent));
    }
    let mut buffer = [0; BUFFER_BYTES];
    let length = receive(&socket, &mut buffer).await?;
    let Some(expect) = &check.expect else { return Ok(Pass::Answered) };
    let mut search = Search::new(expect)?;
    let found = search.add(buffer.get(..length).unwrap_or_default()) || search.end();
    if found { Ok(Pass::Answered) } else { Err(search.failure()) }
}

/// A search for the expectation in a response that arrives in chunks.
pub(super) struct Search<'e> {
    expect: &'e Expect,
    state: StateID,
    /// The number of bytes that were read.
    length: usize,
    /// The first bytes of the response.
    head: Vec<u8>,
}

impl<'e> Search<'e> {
    pub(super) fn new(expect: &'e Expect) -> Result<Self, Failure> {
        let state = expect.automaton.start_state(&start::Config::new());
        let state = state.map_err(|error| Failure::Local(error.to_string().into()))?;
        Ok(Self { expect, state, length: 0, head: Vec::new() })
    }

    /// Reads a chunk. Returns `true` if the response contains the expectation.
    pub(super) fn add(&mut self, chunk: &[u8]) -> bool {
        let automaton = &self.expect.automaton;
        let room = HEAD_BYTES - self.head.len();
        self.head.extend_from_slice(chunk.get(..room).unwrap_or(chunk));
        self.length += chunk.len();
        for byte in chunk {
            // The automaton reports a match one byte after the end of the match.
            self.state = automaton.next_state(self.state, *byte);
            if automaton.is_match_state(self.state) {
                return true;
            }
        }
        !chunk.is_empty() && !self.expect.looks_at_end && self.end()
    }

    /// Returns `true` if the response contains the expectation when it ends here.
    fn end(&self) -> bool {
        let automaton = &self.expect.automaton;
        automaton.is_match_state(automaton.next_eoi_state(self.state))
    }

    pub(super) fn failure(&self) -> Failure {
        let message = format!("response {} does not contain {}", quote(&self.head), self.expect);
        Failure::Unexpected(message.into())
    }
}

const MAX_RESPONSE_BYTES: usize = 64 << 10;
const BUFFER_BYTES: usize = 4 << 10;
/// The number of stored bytes, which is one more than a message shows, so that the message can
/// indicate a longer response.
const HEAD_BYTES: usize = 41;

#[cfg(test)]
mod tests;
