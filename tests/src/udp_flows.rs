//! Many UDP flows from one client, each with its own port for all its life.
//!
//! In: an echo service of the bed. Out: for each flow, which backend answered its packet.
//! Sockets are connected: a reply from any other address than the one asked is not seen.

use std::io::ErrorKind;
use std::net::{SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use crate::Namespace;

/// Open flows.
#[derive(Debug)]
pub struct UdpFlows {
    sockets: Vec<UdpSocket>,
    sent: u64,
    timeout: Duration,
}

impl UdpFlows {
    /// Opens `count` flows from `ns` to `server`; replies are awaited for `timeout` after their packets.
    ///
    /// # Errors
    /// No ports are left, or there is no way to `server`.
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

    /// The client's end of each flow.
    ///
    /// # Errors
    /// The kernel does not tell.
    pub fn local(&self) -> Result<Vec<SocketAddr>> {
        self.sockets.iter().map(|socket| Ok(socket.local_addr()?)).collect()
    }

    /// Packets sent up to now.
    #[must_use]
    pub fn sent(&self) -> u64 {
        self.sent
    }

    /// Closes the flows that had no answer in a round.
    pub fn keep_answered(&mut self, answers: &[Option<String>]) {
        let mut answers = answers.iter();
        self.sockets.retain(|_| answers.next().is_some_and(Option::is_some));
    }

    /// Sends one packet on each flow, some at a time, and says which backend answered each; `None`: no reply in time.
    ///
    /// # Errors
    /// A reply is not the bed's, answers another packet, or tells of another client.
    pub fn round(&mut self) -> Result<Vec<Option<String>>> {
        self.round_within(self.timeout)
    }

    /// The same with another patience, as where no answer is expected.
    ///
    /// # Errors
    /// As [`Self::round`].
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

/// The reply to packet `number`; replies to earlier ones, given up before, are passed over.
fn answer(socket: &UdpSocket, number: u64, end: Instant) -> Result<Option<String>> {
    let local = socket.local_addr()?;
    let mut room = [0; 512];
    loop {
        // One that is there already is taken, late or not.
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
        ensure!(client == Some(&local.to_string()), "{local} is seen as {client:?}");
        let back: u64 =
            back.and_then(|back| back.parse().ok()).with_context(|| format!("a reply {text:?}"))?;
        ensure!(back <= number, "{local}: a reply to packet {back}, which has not been sent");
        if back == number {
            return Ok(backend.map(str::to_owned));
        }
    }
}

/// The kernel returns an ICMP error for an earlier packet at the next call; the packet itself is lost all the same.
fn refused(error: std::io::Error) -> std::io::Result<usize> {
    if error.kind() == ErrorKind::ConnectionRefused { Ok(0) } else { Err(error) }
}

/// Fits the queues of a veth pair (256 frames) and a socket's buffer with room to spare.
const WINDOW: usize = 50;
