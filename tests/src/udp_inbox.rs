//! Runs a UDP server that records all datagrams and sends no replies.
//!
//! The server records the sender, the length and a digest of the payload of each datagram. The
//! kernel has already reassembled fragmented datagrams.

use std::hash::{DefaultHasher, Hasher};
use std::net::{SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::{Context, Result};
use nix::sys::socket::setsockopt;
use nix::sys::socket::sockopt::RcvBufForce;

use crate::Namespace;

/// A received datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Received {
    /// The sender.
    pub from: SocketAddr,
    /// The length of the payload in bytes.
    pub len: usize,
    /// The [`digest`] of the payload.
    pub digest: u64,
}

/// A running UDP server. Dropping the handle stops the server.
#[derive(Debug)]
pub struct UdpInbox {
    seen: Arc<Mutex<Vec<Received>>>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl UdpInbox {
    /// Starts a server in `ns` at `address`, with a receive buffer of 64 MiB.
    ///
    /// # Errors
    /// Returns an error without root privileges, or if `address` does not exist or is in use.
    pub fn start(ns: &Namespace, address: SocketAddr) -> Result<Self> {
        let socket = ns
            .run(move || UdpSocket::bind(address))
            .with_context(|| format!("cannot bind {address} in namespace {}", ns.name()))?;
        setsockopt(&socket, RcvBufForce, &(64 << 20))?;
        socket.set_read_timeout(Some(LOOK))?;
        let (seen, stop) = (Arc::<Mutex<_>>::default(), Arc::new(AtomicBool::new(false)));
        let thread = {
            let (seen, stop) = (Arc::clone(&seen), Arc::clone(&stop));
            thread::spawn(move || collect(&socket, &seen, &stop))
        };
        Ok(Self { seen, stop, thread: Some(thread) })
    }

    /// Returns the datagrams received so far, in order.
    #[must_use]
    pub fn seen(&self) -> Vec<Received> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Returns the number of datagrams received so far.
    #[must_use]
    pub fn count(&self) -> usize {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner).len()
    }
}

impl Drop for UdpInbox {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            drop(thread.join());
        }
    }
}

/// Returns a hash of the bytes.
#[must_use]
pub fn digest(bytes: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    hasher.write(bytes);
    hasher.finish()
}

fn collect(socket: &UdpSocket, seen: &Mutex<Vec<Received>>, stop: &AtomicBool) {
    let mut room = vec![0; 1 << 16];
    while !stop.load(Ordering::Relaxed) {
        // The only expected errors are timeouts.
        let Ok((len, from)) = socket.recv_from(&mut room) else { continue };
        let received = Received { from, len, digest: digest(&room[..len]) };
        seen.lock().unwrap_or_else(PoisonError::into_inner).push(received);
    }
}

const LOOK: Duration = Duration::from_millis(50);
