//! The handle that a program holds: peers come and go, routes change, all end together.
//!
//! Not here: anything of one peer (`peer`). Invariant: an order for one peer never waits for another.

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::runtime;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::config::{ConfigError, Connect, PeerConfig, SpeakerConfig};
use crate::listener::{Callers, Listener};
use crate::local::Local;
use crate::peer::{Inputs, Order, Peer};
use crate::report::Report;
use crate::route::Desired;
use crate::session::Stop;
use crate::status::Status;

/// A BGP speaker that announces, and imports nothing.
///
/// All methods may be called from any thread. Dropping it ends the sessions, but waits for nothing: [`Speaker::shutdown`] does.
#[derive(Debug)]
pub struct Speaker {
    local: Local,
    runtime: runtime::Handle,
    callers: Callers,
    listeners: Vec<Listener>,
    desired: watch::Sender<Arc<Desired>>,
    board: Arc<watch::Sender<Status>>,
    peers: Mutex<Peers>,
}

#[derive(Debug, Default)]
struct Peers {
    by_name: BTreeMap<String, Running>,
    next_task: u64,
}

#[derive(Debug)]
struct Running {
    config: PeerConfig,
    orders: mpsc::UnboundedSender<Order>,
    task: JoinHandle<()>,
}

impl Speaker {
    /// Listens, and starts a task for each peer. Nothing is announced before [`Speaker::announce`].
    ///
    /// # Errors
    /// A field out of range, an address that can't be listened at, or no tokio runtime around.
    pub fn start(config: SpeakerConfig) -> Result<Self, StartError> {
        config.check()?;
        let runtime = runtime::Handle::try_current().map_err(|_| StartError::NoRuntime)?;
        let callers = Callers::default();
        let listen = |&at: &SocketAddr| {
            Listener::start(at, callers.clone()).map_err(|error| StartError::Listen { at, error })
        };
        let listeners = config.listen.iter().map(listen).collect::<Result<_, _>>()?;
        let speaker = Self {
            local: Local { asn: config.asn, router_id: config.router_id },
            runtime,
            callers,
            listeners,
            desired: watch::Sender::new(Arc::default()),
            board: Arc::new(watch::Sender::new(Status::new())),
            peers: Mutex::default(),
        };
        config.peers.into_iter().try_for_each(|peer| speaker.add_peer(peer))?;
        Ok(speaker)
    }

    /// Where it listens, with the ports that were found where none was asked for.
    #[must_use]
    pub fn listens_at(&self) -> Vec<SocketAddr> {
        self.listeners.iter().map(Listener::address).collect()
    }

    /// Makes `desired` what every peer is to have from us: the differences go out.
    ///
    /// # Cost
    /// For each peer `O(n log n)` in its routes, on its own task.
    pub fn announce(&self, desired: Desired) {
        self.desired.send_replace(Arc::new(desired));
    }

    /// What is announced.
    #[must_use]
    pub fn announced(&self) -> Arc<Desired> {
        Arc::clone(&self.desired.borrow())
    }

    /// All peers, as they are now.
    #[must_use]
    pub fn status(&self) -> Status {
        self.board.borrow().clone()
    }

    /// Wakes at every change of a state, an error, or a number of announced routes.
    #[must_use]
    pub fn watch(&self) -> watch::Receiver<Status> {
        self.board.subscribe()
    }

    /// Adds a peer.
    ///
    /// # Errors
    /// A field out of range, a name or an address that another peer has, or a key that the kernel refuses.
    pub fn add_peer(&self, config: PeerConfig) -> Result<(), ConfigError> {
        config.check()?;
        let mut peers = self.peers();
        if peers.by_name.contains_key(&config.name) {
            return Err(ConfigError::new(&config.name, "name", "another peer has it"));
        }
        peers.check_address(&config)?;
        self.set_key(&config)?;
        let (orders, ordered) = mpsc::unbounded_channel();
        let (calls, inbound) = mpsc::channel(MAX_WAITING_CALLS);
        peers.next_task += 1;
        let report = Report::new(Arc::clone(&self.board), &config, peers.next_task);
        let inputs = Inputs { desired: self.desired.subscribe(), orders: ordered, inbound };
        let peer = Peer::new(self.local, config.clone(), inputs, report);
        let task = self.runtime.spawn(peer.run());
        self.callers.add(&config, calls);
        peers.by_name.insert(config.name.clone(), Running { config, orders, task });
        self.set_furthest(&peers)
    }

    /// Ends a peer's session (Cease: peer de-configured) and forgets the peer; whether there was one.
    pub fn remove_peer(&self, name: &str) -> bool {
        let mut peers = self.peers();
        let Some(Running { config, orders, .. }) = peers.by_name.remove(name) else { return false };
        // It fails only when the task has ended.
        drop(orders.send(Order::Stop(Stop::Deconfigured)));
        self.forget(&config, &peers);
        self.board.send_modify(|status| drop(status.remove(name)));
        true
    }

    /// Gives a peer another configuration. Next hops, retries and limits change in the session; anything else begins a new one.
    ///
    /// # Errors
    /// As [`Speaker::add_peer`], or no peer has this name; nothing has changed then.
    pub fn change_peer(&self, config: PeerConfig) -> Result<(), ConfigError> {
        config.check()?;
        let mut peers = self.peers();
        let Some(running) = peers.by_name.get(&config.name) else {
            return Err(ConfigError::new(&config.name, "name", "no peer has it"));
        };
        if running.config == config {
            return Ok(());
        }
        if running.config.socket_address() != config.socket_address() {
            peers.check_address(&config)?;
            drop(peers);
            self.remove_peer(&config.name);
            return self.add_peer(config);
        }
        self.set_key(&config)?;
        if let Some(running) = peers.by_name.get_mut(&config.name) {
            drop(running.orders.send(Order::Change(Box::new(config.clone()))));
            running.config = config;
        }
        self.set_furthest(&peers)
    }

    /// BFD has lost the peer: its session ends (Cease: BFD down, RFC 9384). Whether there is such a peer.
    pub fn bfd_down(&self, name: &str) -> bool {
        let peers = self.peers();
        let running = peers.by_name.get(name);
        running.is_some_and(|running| running.orders.send(Order::BfdDown).is_ok())
    }

    /// Ends a peer's session at once, without a word: its end sees the connection reset, and drops our routes. For one that does
    /// not take what it is told. Another session follows after a while. Whether there is such a peer.
    pub fn reset(&self, name: &str, why: &str) -> bool {
        let peers = self.peers();
        let running = peers.by_name.get(name);
        running.is_some_and(|running| running.orders.send(Order::Reset(why.into())).is_ok())
    }

    /// Ends all sessions, with a text for the operators of the other ends (RFC 9003, cut to 128 bytes), and waits until they
    /// have it, 5 s at most.
    pub async fn shutdown(&self, text: &str) {
        let running = std::mem::take(&mut self.peers().by_name);
        for (name, Running { config, orders, .. }) in &running {
            drop(orders.send(Order::Stop(Stop::Shutdown(text.into()))));
            self.callers.remove(config);
            tracing::info!(peer = name, text, "BGP session shut down");
        }
        let tasks = async {
            for (_, running) in running {
                drop(running.task.await);
            }
        };
        if timeout(MOST_FOR_SHUTDOWN, tasks).await.is_err() {
            tracing::warn!("not every BGP peer took its leave in time");
        }
        self.board.send_modify(Status::clear);
    }

    fn peers(&self) -> MutexGuard<'_, Peers> {
        self.peers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn forget(&self, config: &PeerConfig, rest: &Peers) {
        self.callers.remove(config);
        for listener in &self.listeners {
            if let Err(error) = listener.set_key(config.address, None) {
                tracing::warn!(peer = config.name, %error, "the MD5 key stays set");
            }
        }
        if let Err(error) = self.set_furthest(rest) {
            tracing::warn!(%error, "the limit of hops stays as it was");
        }
    }

    fn set_key(&self, config: &PeerConfig) -> Result<(), ConfigError> {
        let mut listeners = self.listeners.iter();
        listeners
            .try_for_each(|listener| listener.set_key(config.address, config.md5.as_ref()))
            .map_err(|error| ConfigError::new(&config.name, "md5", format!("the kernel refuses: {error}")))
    }

    /// A listener takes calls from as far away as its furthest peer may be.
    fn set_furthest(&self, peers: &Peers) -> Result<(), ConfigError> {
        for listener in &self.listeners {
            let is_v4 = listener.address().is_ipv4();
            let calling = peers.by_name.values().map(|running| &running.config);
            let calling = calling.filter(|c| c.address.is_ipv4() == is_v4 && c.connect != Connect::Dial);
            let hops = calling.map(|config| config.gtsm_hops).reduce(|a, b| a.zip(b).map(|(a, b)| a.max(b)));
            listener
                .set_furthest(hops.flatten())
                .map_err(|error| ConfigError::new("", "gtsm_hops", format!("the kernel refuses: {error}")))?;
        }
        Ok(())
    }
}

impl Peers {
    fn check_address(&self, config: &PeerConfig) -> Result<(), ConfigError> {
        let same = |other: &&Running| {
            (other.config.address, other.config.scope) == (config.address, config.scope)
                && other.config.name != config.name
        };
        match self.by_name.values().find(same) {
            Some(other) => {
                let what = format!("peer {} has {}", other.config.name, config.address);
                Err(ConfigError::new(&config.name, "address", what))
            }
            None => Ok(()),
        }
    }
}

/// Why a speaker does not start.
#[derive(Debug)]
#[non_exhaustive]
pub enum StartError {
    /// A field is out of range.
    Config(ConfigError),
    /// An address can't be listened at.
    Listen {
        /// Which.
        at: SocketAddr,
        /// Why.
        error: io::Error,
    },
    /// There is no tokio runtime around.
    NoRuntime,
}

impl From<ConfigError> for StartError {
    fn from(error: ConfigError) -> Self {
        Self::Config(error)
    }
}

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Config(error) => error.fmt(f),
            Self::Listen { at, error } => write!(f, "can't listen for BGP at {at}: {error}"),
            Self::NoRuntime => f.write_str("a BGP speaker needs a tokio runtime around it"),
        }
    }
}

impl std::error::Error for StartError {}

/// More connections of a peer than this, not looked at yet, are closed.
const MAX_WAITING_CALLS: usize = 4;
const MOST_FOR_SHUTDOWN: Duration = Duration::from_secs(5);
