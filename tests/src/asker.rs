//! A client of memcached's UDP protocol, one request at a time, with its frame in plain sight.
//!
//! In: commands as they stand behind the frame. Out: what was answered to each, or that nothing was in time.

use std::io::ErrorKind;
use std::net::{SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::{Duration, Instant};

use crate::Namespace;

/// Asks one server from one socket.
#[derive(Debug)]
pub struct Asker {
    socket: UdpSocket,
    next: AtomicU16,
}

impl Asker {
    /// From any port.
    ///
    /// # Panics
    /// As [`Self::from_port`].
    #[must_use]
    pub fn new(ns: &Namespace, server: SocketAddr) -> Self {
        Self::from_port(ns, server, 0)
    }

    /// From a port of its own; 0: any.
    ///
    /// # Panics
    /// The port is taken, or no route leads to the server.
    #[must_use]
    pub fn from_port(ns: &Namespace, server: SocketAddr, port: u16) -> Self {
        let socket = ns.run(move || {
            let any: SocketAddr =
                if server.is_ipv4() { ([0; 4], port).into() } else { ([0; 8], port).into() };
            let socket = UdpSocket::bind(any).expect("a free port");
            socket.connect(server).expect("a route");
            socket
        });
        Self { socket, next: AtomicU16::new(1) }
    }

    /// Sends a command in a frame of its own, and returns that.
    ///
    /// # Panics
    /// As [`Self::send_plainly`].
    pub fn send(&self, command: &[u8]) -> [u8; 8] {
        let [high, low] = self.next.fetch_add(1, Ordering::Relaxed).to_be_bytes();
        let frame = [high, low, 0, 0, 0, 1, 0, 0];
        self.send_plainly(&[&frame, command].concat());
        frame
    }

    /// Sends these bytes.
    ///
    /// # Panics
    /// The kernel refuses, but for an ICMP error about an earlier request: a server that is not there.
    pub fn send_plainly(&self, datagram: &[u8]) {
        if let Err(error) = self.socket.send(datagram) {
            assert_eq!(error.kind(), ErrorKind::ConnectionRefused, "{error}");
            self.socket.send(datagram).expect("that cleared the error");
        }
    }

    /// The answer to a command, without its frame; `None`: none came within `patience`.
    ///
    /// # Panics
    /// As [`Self::send_plainly`].
    pub fn ask_within(&self, command: &[u8], patience: Duration) -> Option<Vec<u8>> {
        let frame = self.send(command);
        Some(self.next_to(frame, Instant::now() + patience)?[8..].to_vec())
    }

    /// The answer to a command in all its datagrams, which must be of one message and come in order.
    ///
    /// # Panics
    /// As [`Self::send_plainly`], and when they are not.
    pub fn ask_whole(&self, command: &[u8], patience: Duration) -> Option<Vec<u8>> {
        let frame = self.send(command);
        let (end, mut whole) = (Instant::now() + patience, Vec::new());
        for sequence in 0_u16.. {
            let datagram = self.next_to(frame, end)?;
            let total = u16::from_be_bytes([datagram[4], datagram[5]]);
            assert_eq!((&datagram[2..4], &datagram[6..8]), (&sequence.to_be_bytes()[..], &[0, 0][..]));
            assert!(sequence < total && datagram.len() <= 1_400, "datagram {sequence} of {total}");
            whole.extend_from_slice(&datagram[8..]);
            if sequence + 1 == total {
                break;
            }
        }
        Some(whole)
    }

    /// The next datagram that answers this frame.
    fn next_to(&self, frame: [u8; 8], end: Instant) -> Option<Vec<u8>> {
        let mut room = [0; 2_048];
        while let Some(left) = end.checked_duration_since(Instant::now()).filter(|left| !left.is_zero()) {
            self.socket.set_read_timeout(Some(left)).expect("it is not zero");
            match self.socket.recv(&mut room) {
                Ok(length) if room[..2] == frame[..2] => return Some(room[..length].to_vec()),
                Ok(_) => {}
                // An ICMP error about an earlier request: a server that is not there.
                Err(error)
                    if matches!(error.kind(), ErrorKind::Interrupted | ErrorKind::ConnectionRefused) => {}
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
                Err(error) => panic!("{error}"),
            }
        }
        None
    }
}
