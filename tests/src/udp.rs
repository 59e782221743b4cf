//! UDP servers in backends, and a client.
//!
//! A server is bound to one address, the VIP, so that its replies carry it. A reply is the backend's name, a space, the
//! client's address as seen, a space, and the request's bytes.

use std::io::ErrorKind;
use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::Namespace;

/// A running server; it ends with its handle.
#[derive(Debug)]
pub struct UdpServer {
    answered: Arc<AtomicU64>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
    _sink: Option<UdpSocket>,
}

impl UdpServer {
    /// Answers in `ns` at `address`, as backend `name`.
    ///
    /// # Errors
    /// `address` is not there, or taken.
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

    /// Takes in `ns` whatever comes to `address`, and answers nothing: without it the kernel would answer with ICMP errors.
    ///
    /// # Errors
    /// `address` is not there, or taken.
    pub fn sink(ns: &Namespace, address: SocketAddr) -> Result<Self> {
        let socket = bind(ns, address)?;
        Ok(Self {
            answered: Arc::default(),
            stop: Arc::default(),
            thread: None,
            _sink: Some(socket), // never read: a full buffer drops at no cost
        })
    }

    /// Requests answered up to now.
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

/// What a UDP request brought back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UdpReply {
    /// The backend that answered, by its own word.
    pub backend: String,
    /// The client's address as the backend saw it.
    pub client_seen: Option<SocketAddr>,
    /// The client's own address.
    pub local: SocketAddr,
    /// Where the reply came from.
    pub from: SocketAddr,
    /// The bytes that came back.
    pub payload: Vec<u8>,
}

/// Sends `payload` once from a fresh port, and waits for its reply, from wherever it comes.
///
/// # Errors
/// No reply in `timeout`, or one that is not the server's.
pub fn udp_ask(ns: &Namespace, server: SocketAddr, payload: &[u8], timeout: Duration) -> Result<UdpReply> {
    let payload = payload.to_owned();
    ns.run(move || {
        let any: SocketAddr = if server.is_ipv4() { ([0; 4], 0).into() } else { ([0; 8], 0).into() };
        let socket = UdpSocket::bind(any)?;
        // Connecting another socket asks the kernel for the source address without filtering this one's replies.
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
        ensure!(back == payload, "{} bytes sent to {server}, others came back", payload.len());
        Ok(UdpReply { backend, client_seen: client.parse().ok(), local, from, payload: back })
    })
}

fn bind(ns: &Namespace, address: SocketAddr) -> Result<UdpSocket> {
    ns.run(move || UdpSocket::bind(address))
        .with_context(|| format!("can't bind {address} in namespace {}", ns.name()))
}

fn answer(socket: &UdpSocket, name: &str, answered: &AtomicU64, stop: &AtomicBool) {
    let mut room = [0; 2048];
    while !stop.load(Ordering::Relaxed) {
        // An error is the time-out, or a client that has gone; the next request is another one's.
        let Ok((len, client)) = socket.recv_from(&mut room) else { continue };
        let mut reply = format!("{name} {client} ").into_bytes();
        reply.extend_from_slice(&room[..len]);
        if socket.send_to(&reply, client).is_ok() {
            answered.fetch_add(1, Ordering::Relaxed);
        }
    }
}

const LOOK: Duration = Duration::from_millis(50);
