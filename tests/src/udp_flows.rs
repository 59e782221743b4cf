//! Sends packets on many UDP flows from one client. Each flow has its own local port.
//!
//! In each round, every flow sends one packet to an echo server and receives the name of the
//! backend. The sockets are connected, so replies from other addresses are discarded.

use std::io::ErrorKind;
use std::net::{SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use crate::Namespace;

/// A set of open flows.
#[derive(Debug)]
pub struct UdpFlows {
    sockets: Vec<UdpSocket>,
    sent: u64,
    timeout: Duration,
}

impl UdpFlows {
    /// Opens `count` flows from `ns` to `server`. In a round, each flow waits up to `timeout` for
    /// its reply.
    ///
    /// # Errors
    /// Returns an error if no ports are free or `server` is unreachable.
    pub fn open(ns: &Namespace, server: SocketAddr, count: usize, timeout: Duration) -> Result<Self> {
        let sockets = ns.run(move || -> Result<Vec<UdpSocket>> {
            let any: SocketAddr = if server.is_ipv4() { ([0; 4], 0).into() } else { ([0; 8], 0).into() };
            let open = |_| -> Result<UdpSocket> {
                let socket = UdpSocket::bind(any)?;
                socket.connect(server)?;
                Ok(socket)
            };
            (0..count).map(open).collect()
        })?;
        Ok(Self { sockets, sent: 0, timeout })
    }

    /// Returns the local address of each flow.
    ///
    /// # Errors
    /// Returns an error if `getsockname` fails.
    pub fn local(&self) -> Result<Vec<SocketAddr>> {
        self.sockets.iter().map(|socket| Ok(socket.local_addr()?)).collect()
    }

    /// Returns the number of packets sent so far.
    #[must_use]
    pub fn sent(&self) -> u64 {
        self.sent
    }

    /// Closes the flows for which `answers`, the result of a round, contains `None`.
    pub fn keep_answered(&mut self, answers: &[Option<String>]) {
        let mut answers = answers.iter();
        self.sockets.retain(|_| answers.next().is_some_and(Option::is_some));
    }

    /// Sends one packet on each flow, several flows at a time. Returns for each flow the backend
    /// that answered, or `None` if no reply arrived in time.
    ///
    /// # Errors
    /// Returns an error if a reply has the wrong format, belongs to a different packet or names a
    /// different client.
    pub fn round(&mut self) -> Result<Vec<Option<String>>> {
        self.round_within(self.timeout)
    }

    /// Sends a round like [`Self::round`], but with a different timeout.
    ///
    /// # Errors
    /// Fails in the same cases as [`Self::round`].
    pub fn round_within(&mut self, timeout: Duration) -> Result<Vec<Option<String>>> {
        let mut answers = Vec::with_capacity(self.sockets.len());
        for window in self.sockets.chunks(WINDOW) {
            for socket in window {
                self.sent += 1;
                socket.send(self.sent.to_string().as_bytes()).or_else(refused)?;
            }
            let first = self.sent + 1 - u64::try_from(window.len())?;
            let end = Instant::now() + timeout;
            for (number, socket) in (first..).zip(window) {
                answers.push(answer(socket, number, end)?);
            }
        }
        Ok(answers)
    }
}

/// Returns the reply to packet `number`. Late replies to earlier packets are skipped.
fn answer(socket: &UdpSocket, number: u64, end: Instant) -> Result<Option<String>> {
    let local = socket.local_addr()?;
    let mut room = [0; 512];
    loop {
        // The timeout is at least 1 ms, so that a reply that has already arrived is always read.
        let rest = end.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
        socket.set_read_timeout(Some(rest))?;
        let len = match socket.recv(&mut room) {
            Ok(len) => len,
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                return Ok(None);
            }
            Err(error) if matches!(error.kind(), ErrorKind::ConnectionRefused | ErrorKind::Interrupted) => {
                continue;
            }
            Err(error) => return Err(error.into()),
        };
        let text = std::str::from_utf8(&room[..len])?;
        let mut words = text.splitn(3, ' ');
        let (backend, client, back) = (words.next(), words.next(), words.next());
        ensure!(client == Some(&local.to_string()), "the backend observed {client:?} instead of {local}");
        let back: u64 =
            back.and_then(|back| back.parse().ok()).with_context(|| format!("invalid reply {text:?}"))?;
        ensure!(back <= number, "{local} received a reply to packet {back}, which has not been sent");
        if back == number {
            return Ok(backend.map(str::to_owned));
        }
    }
}

/// Ignores an ICMP error for an earlier packet. The kernel reports the error at the next send or
/// receive call. A send call that reports the error does not send its packet.
fn refused(error: std::io::Error) -> std::io::Result<usize> {
    if error.kind() == ErrorKind::ConnectionRefused { Ok(0) } else { Err(error) }
}

/// The number of flows that send at the same time. The packets of so many flows fit into the queues
/// of a veth pair (256 frames) and into a socket buffer.
const WINDOW: usize = 50;
