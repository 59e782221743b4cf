//! Where peers reach us: accepted connections go to the task of the peer that they come from.
//!
//! Invariant: a connection from anyone else is closed before a byte of it is read; a peer that opens connections faster than
//! its task takes them loses them.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use crate::config::{Md5Key, PeerConfig};
use crate::socket;

/// Whom to give a connection to.
#[derive(Clone, Debug, Default)]
pub(crate) struct Callers(Arc<Mutex<HashMap<Caller, mpsc::Sender<TcpStream>>>>);

/// An address, and for a link-local one its interface.
type Caller = (IpAddr, u32);

impl Callers {
    pub(crate) fn add(&self, peer: &PeerConfig, to: mpsc::Sender<TcpStream>) {
        self.with(|callers| callers.insert(caller(peer.socket_address()), to));
    }

    pub(crate) fn remove(&self, peer: &PeerConfig) {
        self.with(|callers| callers.remove(&caller(peer.socket_address())));
    }

    /// Hands a connection over; gives back one that nobody waits for.
    fn give(&self, stream: TcpStream, from: SocketAddr) -> Result<(), &'static str> {
        let to = self.with(|callers| callers.get(&caller(from)).cloned());
        let to = to.ok_or("no peer has this address")?;
        to.try_send(stream).map_err(|_| "the peer's connections come faster than they are answered")
    }

    fn with<T>(&self, look: impl FnOnce(&mut HashMap<Caller, mpsc::Sender<TcpStream>>) -> T) -> T {
        look(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

fn caller(address: SocketAddr) -> Caller {
    match address {
        SocketAddr::V6(v6) if v6.ip().is_unicast_link_local() => ((*v6.ip()).into(), v6.scope_id()),
        address => (address.ip().to_canonical(), 0),
    }
}

/// A listening socket, and the task that accepts. Dropping it closes it.
#[derive(Debug)]
pub(crate) struct Listener {
    socket: Arc<TcpListener>,
    address: SocketAddr,
    task: JoinHandle<()>,
}

impl Listener {
    pub(crate) fn start(at: SocketAddr, callers: Callers) -> io::Result<Self> {
        let socket = Arc::new(socket::listen(at)?);
        let address = socket.local_addr()?;
        let task = tokio::spawn(accept(Arc::clone(&socket), callers));
        Ok(Self { socket, address, task })
    }

    /// Where it listens, with the port that was found if none was asked for.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// The key that `peer` signs with; `None`: it signs nothing.
    pub(crate) fn set_key(&self, peer: IpAddr, key: Option<&Md5Key>) -> io::Result<()> {
        if peer.is_ipv4() != self.address.is_ipv4() {
            return Ok(());
        }
        socket::set_md5(&*self.socket, peer, key)
    }

    /// Nobody further away than `hops` can connect; `None`: anybody can.
    pub(crate) fn set_furthest(&self, hops: Option<u8>) -> io::Result<()> {
        socket::set_furthest(&*self.socket, self.address.is_ipv6(), hops)
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn accept(socket: Arc<TcpListener>, callers: Callers) {
    loop {
        match socket.accept().await {
            Ok((stream, from)) => {
                if let Err(why) = callers.give(stream, from) {
                    tracing::debug!(%from, why, "BGP connection closed");
                }
            }
            Err(error) => {
                tracing::warn!(%error, "a BGP connection can't be accepted");
                tokio::time::sleep(PAUSE).await;
            }
        }
    }
}

/// When descriptors have run out, trying again at once helps nobody.
const PAUSE: Duration = Duration::from_millis(200);
