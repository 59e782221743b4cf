//! Accepts connections from peers and passes each connection to the task of its peer.
//!
//! A connection from an unknown address is closed before any byte is read. If a peer opens
//! connections faster than its task accepts them, the excess connections are closed.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, Shutdown, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use socket2::SockRef;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use crate::config::{Connect, Md5Key, PeerConfig};
use crate::socket;

/// Maps each peer address to the channel of the peer's task.
#[derive(Clone, Debug, Default)]
pub(crate) struct Callers(Arc<Mutex<HashMap<Caller, mpsc::Sender<TcpStream>>>>);

/// The address of a peer. For a link-local address, the interface index is part of the key.
type Caller = (IpAddr, u32);

impl Callers {
    pub(crate) fn add(&self, peer: &PeerConfig, to: mpsc::Sender<TcpStream>) {
        self.with(|callers| callers.insert(caller(peer.socket_address()), to));
    }

    pub(crate) fn remove(&self, peer: &PeerConfig) {
        self.with(|callers| callers.remove(&caller(peer.socket_address())));
    }

    /// Passes a connection to the task of its peer. The connection is closed if no peer has this
    /// address or the queue of the task is full.
    fn give(&self, stream: TcpStream, from: SocketAddr) -> Result<(), &'static str> {
        let to = self.with(|callers| callers.get(&caller(from)).cloned());
        let to = to.ok_or("no peer has this address")?;
        to.try_send(stream).map_err(|_| "the peer opens connections faster than they are handled")
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

/// The current listening sockets. MD5 keys and hop limits are set on each socket before it listens.
#[derive(Debug, Default)]
pub(crate) struct Listeners(Vec<Listener>);

impl Listeners {
    /// Opens and closes listeners until they match the addresses in `at`. Returns each address on
    /// which listening failed, with the error. This method must be called in the context of a tokio
    /// runtime.
    pub(crate) fn follow<'a>(
        &mut self,
        at: &[SocketAddr],
        callers: &Callers,
        peers: impl Iterator<Item = &'a PeerConfig> + Clone,
    ) -> Vec<(SocketAddr, io::Error)> {
        // Old listeners are closed first, because a new one may need the same address.
        self.0.retain(|listener| at.contains(&listener.asked));
        let mut refused = Vec::new();
        for &at in at {
            if self.0.iter().any(|listener| listener.asked == at) {
                continue;
            }
            match Listener::start(at, callers.clone(), peers.clone()) {
                Ok(listener) => self.0.push(listener),
                Err(error) => refused.push((at, error)),
            }
        }
        refused
    }

    pub(crate) fn addresses(&self) -> Vec<SocketAddr> {
        self.0.iter().map(|listener| listener.address).collect()
    }

    /// Sets the MD5 key for segments from `peer` on all listening sockets, or removes it if `key`
    /// is `None`.
    pub(crate) fn set_key(&self, peer: IpAddr, key: Option<&Md5Key>) -> io::Result<()> {
        let mut like = self.0.iter().filter(|listener| listener.address.is_ipv4() == peer.is_ipv4());
        like.try_for_each(|listener| socket::set_md5(&*listener.socket, peer, key))
    }

    /// Sets the minimum TTL of the listening sockets (GTSM) to a value that allows the most distant
    /// of these peers to connect.
    pub(crate) fn set_furthest<'a>(
        &self,
        peers: impl Iterator<Item = &'a PeerConfig> + Clone,
    ) -> io::Result<()> {
        self.0.iter().try_for_each(|listener| {
            let is_v6 = listener.address.is_ipv6();
            socket::set_furthest(&*listener.socket, is_v6, furthest(is_v6, peers.clone()))
        })
    }
}

/// Returns the largest `gtsm_hops` of the peers that may connect. Returns `None` if one of these
/// peers has no limit, or if no peer may connect.
fn furthest<'a>(is_v6: bool, peers: impl Iterator<Item = &'a PeerConfig>) -> Option<u8> {
    let calling = peers.filter(|peer| peer.address.is_ipv6() == is_v6 && peer.connect != Connect::Dial);
    let hops = calling.map(|peer| peer.gtsm_hops).reduce(|a, b| a.zip(b).map(|(a, b)| a.max(b)));
    hops.flatten()
}

/// A listening socket and its accept task. Dropping the listener closes the socket.
#[derive(Debug)]
struct Listener {
    socket: Arc<TcpListener>,
    /// The requested address.
    asked: SocketAddr,
    /// The bound address, with the port that the kernel chose for port 0.
    address: SocketAddr,
    task: JoinHandle<()>,
}

impl Listener {
    fn start<'a>(
        at: SocketAddr,
        callers: Callers,
        peers: impl Iterator<Item = &'a PeerConfig> + Clone,
    ) -> io::Result<Self> {
        let socket = socket::listen(at, |socket| {
            let mut like = peers.clone().filter(|peer| peer.address.is_ipv4() == at.is_ipv4());
            like.try_for_each(|peer| socket::set_md5(socket, peer.address, peer.md5.as_ref()))?;
            socket::set_furthest(socket, at.is_ipv6(), furthest(at.is_ipv6(), peers.clone()))
        })?;
        let socket = Arc::new(socket);
        let address = socket.local_addr()?;
        let task = tokio::spawn(accept(Arc::clone(&socket), callers));
        Ok(Self { socket, asked: at, address, task })
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        // The socket is shut down explicitly, because another listener may need the address
        // immediately, and the accept task holds the socket until the runtime polls the task again.
        if let Err(error) = SockRef::from(&*self.socket).shutdown(Shutdown::Both) {
            tracing::debug!(%error, address = %self.address, "BGP listener shutdown failed");
        }
        self.task.abort();
    }
}

async fn accept(socket: Arc<TcpListener>, callers: Callers) {
    loop {
        match socket.accept().await {
            Ok((stream, from)) => {
                if let Err(why) = callers.give(stream, from) {
                    tracing::debug!(address = %from, why, "BGP connection refused");
                }
            }
            // The listener is being closed.
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => return,
            Err(error) => {
                // log: The process has too few file descriptors or too little memory to accept a
                // connection from a router. The listener tries again after 200 ms. Raise the limits
                // of the service if this repeats.
                tracing::warn!(%error, "BGP accept failed");
                tokio::time::sleep(PAUSE).await;
            }
        }
    }
}

/// The pause after a failed `accept`. Without the pause, the loop would spin while no file
/// descriptors are free.
const PAUSE: Duration = Duration::from_millis(200);
