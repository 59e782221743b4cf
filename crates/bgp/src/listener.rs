//! Where peers reach us: accepted connections go to the task of the peer that they come from.
//!
//! Invariant: a connection from anyone else is closed before a byte of it is read; a peer that opens connections faster than
//! its task takes them loses them.

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

    /// Hands a connection over; closes one that nobody waits for.
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

/// Where peers reach us now. Keys and limits are set on each socket before it listens.
#[derive(Debug, Default)]
pub(crate) struct Listeners(Vec<Listener>);

impl Listeners {
    /// Listens at these addresses alone from now on. Those that can't be had are given back with the reason; the rest is there.
    /// Runs in a tokio runtime's context.
    pub(crate) fn follow<'a>(
        &mut self,
        at: &[SocketAddr],
        callers: &Callers,
        peers: impl Iterator<Item = &'a PeerConfig> + Clone,
    ) -> Vec<(SocketAddr, io::Error)> {
        // First, as a new one may want an address of theirs.
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

    /// The key that `peer` signs with; `None`: it signs nothing.
    pub(crate) fn set_key(&self, peer: IpAddr, key: Option<&Md5Key>) -> io::Result<()> {
        let mut like = self.0.iter().filter(|listener| listener.address.is_ipv4() == peer.is_ipv4());
        like.try_for_each(|listener| socket::set_md5(&*listener.socket, peer, key))
    }

    /// Takes calls from as far away as the furthest of these peers may be.
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

/// `None`: one of them may be anywhere, or none calls.
fn furthest<'a>(is_v6: bool, peers: impl Iterator<Item = &'a PeerConfig>) -> Option<u8> {
    let calling = peers.filter(|peer| peer.address.is_ipv6() == is_v6 && peer.connect != Connect::Dial);
    let hops = calling.map(|peer| peer.gtsm_hops).reduce(|a, b| a.zip(b).map(|(a, b)| a.max(b)));
    hops.flatten()
}

/// A listening socket, and the task that accepts. Dropping it closes it.
#[derive(Debug)]
struct Listener {
    socket: Arc<TcpListener>,
    /// As it was asked for.
    asked: SocketAddr,
    /// With the port that was found if none was asked for.
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
        // At once, as another may want the address: the task is gone only when its runtime turns.
        if let Err(error) = SockRef::from(&*self.socket).shutdown(Shutdown::Both) {
            tracing::debug!(%error, at = %self.address, "a BGP listener closes late");
        }
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
            // It is being closed.
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => return,
            Err(error) => {
                tracing::warn!(%error, "a BGP connection can't be accepted");
                tokio::time::sleep(PAUSE).await;
            }
        }
    }
}

/// When descriptors have run out, trying again at once helps nobody.
const PAUSE: Duration = Duration::from_millis(200);
