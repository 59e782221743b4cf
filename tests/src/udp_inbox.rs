//! A UDP server that keeps what it was sent, and answers nothing.
//!
//! Out: of each datagram its sender, its length and a digest. What came in pieces comes here whole, or not at all.

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

/// A datagram that came.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Received {
    /// Who sent it.
    pub from: SocketAddr,
    /// Bytes of its payload.
    pub len: usize,
    /// [`digest`] of its payload.
    pub digest: u64,
}

/// A running server; it ends with its handle.
#[derive(Debug)]
pub struct UdpInbox {
    seen: Arc<Mutex<Vec<Received>>>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl UdpInbox {
    /// Listens in `ns` at `address`, with room for 64 MiB that wait.
    ///
    /// # Errors
    /// `address` is not there, or taken; not root.
    pub fn start(ns: &Namespace, address: SocketAddr) -> Result<Self> {
        let socket = ns
            .run(move || UdpSocket::bind(address))
            .with_context(|| format!("can't bind {address} in namespace {}", ns.name()))?;
        setsockopt(&socket, RcvBufForce, &(64 << 20))?;
        socket.set_read_timeout(Some(LOOK))?;
        let (seen, stop) = (Arc::<Mutex<_>>::default(), Arc::new(AtomicBool::new(false)));
        let thread = {
            let (seen, stop) = (Arc::clone(&seen), Arc::clone(&stop));
            thread::spawn(move || collect(&socket, &seen, &stop))
        };
        Ok(Self { seen, stop, thread: Some(thread) })
    }

    /// What came up to now, in order.
    #[must_use]
    pub fn seen(&self) -> Vec<Received> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// How many came up to now.
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

/// The same for the same bytes.
#[must_use]
pub fn digest(bytes: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    hasher.write(bytes);
    hasher.finish()
}

fn collect(socket: &UdpSocket, seen: &Mutex<Vec<Received>>, stop: &AtomicBool) {
    let mut room = vec![0; 1 << 16];
    while !stop.load(Ordering::Relaxed) {
        // An error is the time-out.
        let Ok((len, from)) = socket.recv_from(&mut room) else { continue };
        let received = Received { from, len, digest: digest(&room[..len]) };
        seen.lock().unwrap_or_else(PoisonError::into_inner).push(received);
    }
}

const LOOK: Duration = Duration::from_millis(50);
