//! UDP servers for backends, and a UDP client.
//!
//! A server binds to a VIP, so its replies have the VIP as source address. A reply contains the
//! backend's name, the client address and the request bytes, separated by spaces.

use std::io::ErrorKind;
use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::Namespace;

/// A running UDP server. Dropping the handle stops the server.
#[derive(Debug)]
pub struct UdpServer {
    answered: Arc<AtomicU64>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
    _sink: Option<UdpSocket>,
}

impl UdpServer {
    /// Starts an echo server in `ns` at `address` with the backend name `name`.
    ///
    /// # Errors
    /// Returns an error if `address` does not exist or is in use.
    pub fn echo(ns: &Namespace, name: &str, address: SocketAddr) -> Result<Self> {
        let socket = bind(ns, address)?;
        socket.set_read_timeout(Some(LOOK))?;
        let (answered, stop) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
        let thread = {
            let (name, answered, stop) = (name.to_owned(), Arc::clone(&answered), Arc::clone(&stop));
            thread::spawn(move || answer(&socket, &name, &answered, &stop))
        };
        Ok(Self { answered, stop, thread: Some(thread), _sink: None })
    }

    /// Starts a server in `ns` that receives and discards all datagrams to `address`. Without this
    /// server, the kernel would reply with ICMP errors.
    ///
    /// # Errors
    /// Returns an error if `address` does not exist or is in use.
    pub fn sink(ns: &Namespace, address: SocketAddr) -> Result<Self> {
        let socket = bind(ns, address)?;
        Ok(Self {
            answered: Arc::default(),
            stop: Arc::default(),
            thread: None,
            _sink: Some(socket), // never read: the kernel drops datagrams when the buffer is full
        })
    }

    /// Returns the number of requests that the server has answered so far.
    #[must_use]
    pub fn answered(&self) -> u64 {
        self.answered.load(Ordering::Relaxed)
    }
}

impl Drop for UdpServer {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            drop(thread.join());
        }
    }
}

/// The reply to a UDP request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UdpReply {
    /// The backend name in the reply.
    pub backend: String,
    /// The client address from which the backend received the request.
    pub client_seen: Option<SocketAddr>,
    /// The local address of the client.
    pub local: SocketAddr,
    /// The address that sent the reply.
    pub from: SocketAddr,
    /// The payload that the backend returned.
    pub payload: Vec<u8>,
}

/// Sends `payload` once from a new port, and waits for a reply from any address.
///
/// # Errors
/// Returns an error if no reply arrives within `timeout`, or if the reply has the wrong format.
pub fn udp_ask(ns: &Namespace, server: SocketAddr, payload: &[u8], timeout: Duration) -> Result<UdpReply> {
    let payload = payload.to_owned();
    ns.run(move || {
        let any: SocketAddr = if server.is_ipv4() { ([0; 4], 0).into() } else { ([0; 8], 0).into() };
        let socket = UdpSocket::bind(any)?;
        // The connected socket is used only to find out the source address. Connecting the other
        // socket would make the kernel discard replies from unexpected addresses.
        let route = UdpSocket::bind(any)?;
        route.connect(server)?;
        let local = SocketAddr::new(route.local_addr()?.ip(), socket.local_addr()?.port());
        socket.set_read_timeout(Some(timeout))?;
        socket.send_to(&payload, server)?;
        let mut room = [0; 2048];
        let received = loop {
            match socket.recv_from(&mut room) {
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                received => break received,
            }
        };
        let (len, from) = received.with_context(|| format!("no reply from {server}"))?;
        let mut parts = room[..len].splitn(3, |&byte| byte == b' ');
        let backend = String::from_utf8_lossy(parts.next().unwrap_or_default()).into_owned();
        let client = String::from_utf8_lossy(parts.next().unwrap_or_default()).into_owned();
        let back = parts.next().unwrap_or_default().to_owned();
        ensure!(
            back == payload,
            "sent {} bytes to {server}, but the reply has different bytes",
            payload.len()
        );
        Ok(UdpReply { backend, client_seen: client.parse().ok(), local, from, payload: back })
    })
}

fn bind(ns: &Namespace, address: SocketAddr) -> Result<UdpSocket> {
    ns.run(move || UdpSocket::bind(address))
        .with_context(|| format!("cannot bind {address} in namespace {}", ns.name()))
}

fn answer(socket: &UdpSocket, name: &str, answered: &AtomicU64, stop: &AtomicBool) {
    let mut room = [0; 2048];
    while !stop.load(Ordering::Relaxed) {
        // The error is a timeout, or an ICMP error from a client that has closed its socket.
        let Ok((len, client)) = socket.recv_from(&mut room) else { continue };
        let mut reply = format!("{name} {client} ").into_bytes();
        reply.extend_from_slice(&room[..len]);
        if socket.send_to(&reply, client).is_ok() {
            answered.fetch_add(1, Ordering::Relaxed);
        }
    }
}

const LOOK: Duration = Duration::from_millis(50);
