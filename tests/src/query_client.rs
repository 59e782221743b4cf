//! A client for memcached's UDP protocol, which sends one request at a time.
//!
//! Callers pass commands without the UDP frame header. The client adds the header and returns the
//! response with the same request ID.

use std::io::ErrorKind;
use std::net::{SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::{Duration, Instant};

use crate::Namespace;

/// A memcached client that sends requests from one socket to one server.
#[derive(Debug)]
pub struct QueryClient {
    socket: UdpSocket,
    next: AtomicU16,
}

impl QueryClient {
    /// Creates a client with a free local port that the kernel selects.
    ///
    /// # Panics
    /// Panics in the same cases as [`Self::from_port`].
    #[must_use]
    pub fn new(ns: &Namespace, server: SocketAddr) -> Self {
        Self::from_port(ns, server, 0)
    }

    /// Creates a client with the local port `port`. If `port` is 0, the kernel selects a free port.
    ///
    /// # Panics
    /// Panics if the port is in use or the server is unreachable.
    #[must_use]
    pub fn from_port(ns: &Namespace, server: SocketAddr, port: u16) -> Self {
        let socket = ns.run(move || {
            let any: SocketAddr =
                if server.is_ipv4() { ([0; 4], port).into() } else { ([0; 8], port).into() };
            let socket = UdpSocket::bind(any).expect("cannot bind the UDP port");
            socket.connect(server).expect("the server is unreachable");
            socket
        });
        Self { socket, next: AtomicU16::new(1) }
    }

    /// Sends a command in one datagram, and returns the frame header of that datagram.
    ///
    /// # Panics
    /// Panics in the same cases as [`Self::send_plainly`].
    pub fn send(&self, command: &[u8]) -> [u8; 8] {
        let [high, low] = self.next.fetch_add(1, Ordering::Relaxed).to_be_bytes();
        let frame = [high, low, 0, 0, 0, 1, 0, 0];
        self.send_plainly(&[&frame, command].concat());
        frame
    }

    /// Sends a datagram as it is, without adding a frame header.
    ///
    /// # Panics
    /// Panics if the kernel rejects the datagram. ICMP errors for earlier requests are ignored.
    pub fn send_plainly(&self, datagram: &[u8]) {
        if let Err(error) = self.socket.send(datagram) {
            assert_eq!(error.kind(), ErrorKind::ConnectionRefused, "{error}");
            self.socket.send(datagram).expect("the datagram cannot be sent");
        }
    }

    /// Sends a command and returns the response without its frame header. Returns `None` if no
    /// response arrives within `patience`.
    ///
    /// # Panics
    /// Panics in the same cases as [`Self::send_plainly`].
    pub fn ask_within(&self, command: &[u8], patience: Duration) -> Option<Vec<u8>> {
        let frame = self.send(command);
        Some(self.next_to(frame, Instant::now() + patience)?[8..].to_vec())
    }

    /// Sends a command whose response has several datagrams, and returns the whole response.
    /// Returns `None` if the whole response does not arrive within `patience`.
    ///
    /// # Panics
    /// Panics in the same cases as [`Self::send_plainly`], and if the datagrams belong to different
    /// responses or arrive out of order.
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

    /// Returns the next datagram that has this frame header.
    fn next_to(&self, frame: [u8; 8], end: Instant) -> Option<Vec<u8>> {
        let mut room = [0; 2_048];
        while let Some(left) = end.checked_duration_since(Instant::now()).filter(|left| !left.is_zero()) {
            self.socket.set_read_timeout(Some(left)).expect("the timeout is not zero");
            match self.socket.recv(&mut room) {
                Ok(length) if room[..2] == frame[..2] => return Some(room[..length].to_vec()),
                Ok(_) => {}
                // The server was down during an earlier request, and the kernel reports the ICMP
                // error now.
                Err(error)
                    if matches!(error.kind(), ErrorKind::Interrupted | ErrorKind::ConnectionRefused) => {}
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
                Err(error) => panic!("{error}"),
            }
        }
        None
    }
}
