//! The handle of a BGP speaker, with which the program adds, changes and removes peers, changes
//! routes, and shuts the speaker down.
//!
//! The module `peer` contains the task that runs for each peer. The module `parting` handles
//! removed peers that still have a session. A command for one peer never waits for a different
//! peer.

mod parting;

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::runtime;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout, timeout_at};

use crate::config::{ConfigError, PeerConfig, SpeakerConfig};
use crate::listener::{Callers, Listeners};
use crate::message::Identity;
use crate::peer::{Inputs, Peer, PeerCommand};
use crate::report::Report;
use crate::route::Desired;
use crate::session::Stop;
use crate::status::{PeerStatus, Status, StatusWatch};
use parting::Parting;

/// A BGP speaker that announces routes and imports none.
///
/// All methods may be called from any thread. Dropping the speaker ends the sessions without
/// waiting for the peers, unlike [`Speaker::shutdown`].
#[derive(Debug)]
pub struct Speaker {
    local: Identity,
    runtime: runtime::Handle,
    callers: Callers,
    desired: watch::Sender<Arc<Desired>>,
    board: Arc<watch::Sender<Status>>,
    peers: Arc<Mutex<Peers>>,
}

#[derive(Debug, Default)]
struct Peers {
    by_name: BTreeMap<String, Running>,
    parting: BTreeMap<Place, Parting>,
    listeners: Listeners,
    next_task: u64,
    /// `true` while the speaker adds initial peers whose routers still have the routes of a
    /// previous process.
    resumes: bool,
}

#[derive(Debug)]
struct Running {
    config: PeerConfig,
    commands: mpsc::UnboundedSender<PeerCommand>,
    task: JoinHandle<()>,
}

impl Speaker {
    /// Starts a speaker, which listens for connections and runs a task for each peer. Routes are
    /// announced only after [`Speaker::announce`].
    ///
    /// # Errors
    /// Returns an error if a field is out of range, if an address cannot be bound, or if there is
    /// no tokio runtime.
    pub fn start(config: SpeakerConfig) -> Result<Self, StartError> {
        config.check()?;
        let runtime = runtime::Handle::try_current().map_err(|_| StartError::NoRuntime)?;
        let speaker = Self {
            local: Identity { asn: config.asn, router_id: config.router_id },
            runtime,
            callers: Callers::default(),
            desired: watch::Sender::new(Arc::default()),
            board: Arc::new(watch::Sender::new(Status::new())),
            peers: Arc::default(),
        };
        if let Some((at, error)) = speaker.listen(&config.listen).into_iter().next() {
            return Err(StartError::Listen { at, error });
        }
        speaker.peers().resumes = config.resumes;
        config.peers.into_iter().try_for_each(|peer| speaker.add_peer(peer))?;
        speaker.peers().resumes = false;
        Ok(speaker)
    }

    /// Replaces the addresses on which the speaker listens. Sessions are not affected. Returns each
    /// address on which listening failed, with the error. A later call can retry these addresses.
    pub fn listen(&self, at: &[SocketAddr]) -> Vec<(SocketAddr, io::Error)> {
        let _inside = self.runtime.enter();
        let mut peers = self.peers();
        let Peers { by_name, listeners, .. } = &mut *peers;
        listeners.follow(at, &self.callers, by_name.values().map(|running| &running.config))
    }

    /// Returns the addresses on which the speaker listens, with the ports that the kernel chose for
    /// port 0.
    #[must_use]
    pub fn listens_at(&self) -> Vec<SocketAddr> {
        self.peers().listeners.addresses()
    }

    /// Sets the routes that every peer should have. Each peer receives only the changes to its
    /// current routes.
    ///
    /// # Cost
    /// The task of each peer needs `O(n log n)` time for `n` routes.
    pub fn announce(&self, desired: Desired) {
        self.desired.send_replace(Arc::new(desired));
    }

    /// Returns the routes set by the last [`Speaker::announce`].
    #[must_use]
    pub fn announced(&self) -> Arc<Desired> {
        Arc::clone(&self.desired.borrow())
    }

    /// Returns the current status of all peers.
    #[must_use]
    pub fn status(&self) -> Status {
        self.board.borrow().clone()
    }

    /// Returns a receiver for status changes. The receiver wakes whenever a state, an error or the
    /// announced routes change.
    #[must_use]
    pub fn watch(&self) -> StatusWatch {
        StatusWatch(self.board.subscribe())
    }

    /// Adds a peer.
    ///
    /// # Errors
    /// Returns an error if a field is out of range, if another peer has the same name or address,
    /// or if the kernel refuses the MD5 key.
    pub fn add_peer(&self, config: PeerConfig) -> Result<(), ConfigError> {
        let mut peers = self.peers();
        check_beside(&config, peers.configs())?;
        if let Some(Parting { running, .. }) = peers.parting.remove(&config.place()) {
            self.ending().end(&peers, running);
        }
        self.begin(&mut peers, config)?;
        peers.set_furthest()
    }

    /// Replaces the set of peers. A peer is identified by its address. A running session continues
    /// if only the name, MD5 key, port, hop limit, connection side, next hop, prefix limit or retry
    /// times of its peer change. Changes to other timers apply from the next session on. Any other
    /// change needs a new session. Before the session restarts, its routes carry the
    /// graceful-shutdown community for the peer's `notice` time.
    ///
    /// A peer that is not in `configs` is removed. The routes of a removed peer carry the community
    /// for the `notice` time, then the session ends (Cease: peer de-configured). During this time,
    /// the status shows the peer as `NAME (removed)`, and a later call can add it again without a
    /// new session.
    ///
    /// # Errors
    /// Returns an error for each refused configuration. A configuration is treated as missing if it
    /// has an invalid field, or if an earlier configuration in the list has the same name or
    /// address. If the kernel refuses the MD5 key, an existing peer keeps its configuration except
    /// for the name, and a new peer is not added.
    pub fn set_peers(&self, configs: Vec<PeerConfig>) -> Vec<ConfigError> {
        let mut peers = self.peers();
        let mut refused = Vec::new();
        let configs = distinct(configs, &mut refused);
        let before = std::mem::take(&mut peers.by_name).into_values();
        let mut before: BTreeMap<_, _> = before.map(|running| (running.config.place(), running)).collect();
        let stays = |place| configs.iter().any(|config| config.place() == place);
        let gone: Vec<Running> =
            before.extract_if(.., |place, _| !stays(*place)).map(|(_, gone)| gone).collect();
        let back = peers.parting.extract_if(.., |place, _| stays(*place));
        before.extend(back.map(|(place, parting)| (place, parting.running)));
        for running in gone {
            self.part(&mut peers, running, &configs);
        }
        self.rename(&before, &configs);
        for config in configs {
            let done = match before.remove(&config.place()) {
                Some(running) => self.change(&mut peers, running, config),
                None => self.begin(&mut peers, config),
            };
            refused.extend(done.err());
        }
        refused.extend(peers.set_furthest().err());
        refused
    }

    /// Ends the session with a peer after BFD has reported that the peer is down. The router
    /// receives a Cease message with subcode BFD Down (RFC 9384). Returns `true` if a peer has this
    /// name.
    pub fn bfd_down(&self, name: &str) -> bool {
        let peers = self.peers();
        peers.named(name).is_some_and(|running| running.commands.send(PeerCommand::BfdDown).is_ok())
    }

    /// Resets the connection of a peer without a NOTIFICATION. The peer then drops the routes of
    /// this speaker. Use this method for a peer that does not read its data. A new session is
    /// attempted after the usual wait. Returns `true` if a peer has this name.
    pub fn reset(&self, name: &str, why: &str) -> bool {
        let peers = self.peers();
        peers.named(name).is_some_and(|running| running.commands.send(PeerCommand::Reset(why.into())).is_ok())
    }

    /// Waits for at most `patience` until each peer with a session has acknowledged all its routes
    /// and withdrawals. Returns the names of the peers that have not acknowledged all routes. The
    /// result includes peers with a closed TCP window (size zero), even if the local kernel has
    /// accepted the data.
    pub async fn flushed(&self, patience: Duration) -> Vec<String> {
        let until = Instant::now() + patience;
        let ask = |running: &Running| {
            let (answer, flushed) = oneshot::channel();
            // Sending fails only if the task has ended, in which case there is no data to flush.
            drop(running.commands.send(PeerCommand::Flush(answer)));
            (running.config.name.clone(), flushed)
        };
        let asked: Vec<_> = self.peers().all().map(ask).collect();
        let mut late = Vec::new();
        for (name, flushed) in asked {
            if timeout_at(until, flushed).await.is_err() {
                late.push(name);
            }
        }
        late
    }

    /// Ends all sessions and sends `text` to the operators of the peers (RFC 9003). The text is
    /// truncated to 128 bytes. Waits for at most 5 s until the peers have closed their connections.
    pub async fn shutdown(&self, text: &str) {
        let running = self.take_all();
        for Running { config, commands, .. } in &running {
            drop(commands.send(PeerCommand::Stop(Stop::Shutdown(text.into()))));
            self.callers.remove(config);
            // log: The process is shutting down and has ended the session with a router. The field
            // `text` was sent to the router.
            tracing::info!(peer = config.name, text, "BGP session shut down");
        }
        let tasks = async {
            for running in running {
                drop(running.task.await);
            }
        };
        if timeout(MOST_FOR_SHUTDOWN, tasks).await.is_err() {
            // log: A router did not close its connection within 5 s of the shutdown. The router
            // keeps the routes until its hold time expires.
            tracing::warn!("BGP shutdown timed out");
        }
        self.board.send_modify(Status::clear);
    }

    /// Ends all sessions without a NOTIFICATION, because another process on the same machine
    /// replaces this one. Peers that negotiated graceful restart ([`PeerConfig::graceful_restart`])
    /// keep the routes for the restart time. Other peers drop the routes. When this method returns,
    /// the listening sockets are closed.
    pub async fn abandon(&self) {
        let running = self.take_all();
        for Running { config, commands, .. } in &running {
            drop(commands.send(PeerCommand::Abandon));
            self.callers.remove(config);
            // log: The command `machine upgrade` starts a new process. The router keeps the routes
            // for the time of `bgp.graceful_restart` while the new process sets up its session.
            tracing::info!(peer = config.name, "BGP session handed over");
        }
        for running in running {
            drop(running.task.await);
        }
        self.board.send_modify(Status::clear);
    }

    /// Removes and returns all peers, and closes the listening sockets.
    fn take_all(&self) -> Vec<Running> {
        let mut peers = self.peers();
        peers.listeners = Listeners::default();
        let parting = std::mem::take(&mut peers.parting).into_values().map(|parting| parting.running);
        std::mem::take(&mut peers.by_name).into_values().chain(parting).collect()
    }

    fn peers(&self) -> MutexGuard<'_, Peers> {
        self.peers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn begin(&self, peers: &mut Peers, config: PeerConfig) -> Result<(), ConfigError> {
        peers.set_key(&config)?;
        let (commands, received) = mpsc::unbounded_channel();
        let (calls, inbound) = mpsc::channel(MAX_WAITING_CALLS);
        peers.next_task += 1;
        let report = Report::new(Arc::clone(&self.board), &config, peers.next_task);
        let inputs = Inputs { desired: self.desired.subscribe(), commands: received, inbound };
        let peer = Peer::new(self.local, config.clone(), inputs, report).resuming(peers.resumes);
        let task = self.runtime.spawn(peer.run());
        self.callers.add(&config, calls);
        peers.by_name.insert(config.name.clone(), Running { config, commands, task });
        Ok(())
    }

    fn change(&self, peers: &mut Peers, mut running: Running, config: PeerConfig) -> Result<(), ConfigError> {
        let key = peers.set_key(&config);
        let config = match key {
            Ok(()) => config,
            Err(_) => PeerConfig { name: config.name, ..running.config.clone() },
        };
        if running.config != config {
            // Sending fails only if the task has ended.
            drop(running.commands.send(PeerCommand::Change(Box::new(config.clone()))));
            running.config = config;
        }
        peers.by_name.insert(running.config.name.clone(), running);
        key
    }

    /// Renames the status entries of existing peers. All names change in one step, because two
    /// peers may swap names.
    fn rename(&self, before: &BTreeMap<Place, Running>, configs: &[PeerConfig]) {
        let renamed = |config: &PeerConfig| {
            let old = &before.get(&config.place())?.config.name;
            (*old != config.name).then(|| (old.clone(), config.name.clone()))
        };
        let names: Vec<(String, String)> = configs.iter().filter_map(renamed).collect();
        if names.is_empty() {
            return;
        }
        self.board.send_modify(|status| {
            let taken = names.into_iter().filter_map(|(old, new)| Some((status.remove(&old)?, new)));
            let taken: Vec<(PeerStatus, String)> = taken.collect();
            status.extend(taken.into_iter().map(|(peer, name)| (name.clone(), PeerStatus { name, ..peer })));
        });
    }
}

impl Peers {
    /// Returns all peers, including removed peers that still have a session.
    fn all(&self) -> impl Iterator<Item = &Running> {
        self.by_name.values().chain(self.parting.values().map(|parting| &parting.running))
    }

    fn named(&self, name: &str) -> Option<&Running> {
        self.by_name.get(name).or_else(|| self.all().find(|running| running.config.name == name))
    }

    fn configs(&self) -> impl Iterator<Item = &PeerConfig> + Clone {
        self.by_name.values().map(|running| &running.config)
    }

    fn set_key(&self, config: &PeerConfig) -> Result<(), ConfigError> {
        self.listeners.set_key(config.address, config.md5.as_ref()).map_err(|error| {
            ConfigError::new(&config.name, "md5", format!("was refused by the kernel ({error})"))
        })
    }

    fn set_furthest(&self) -> Result<(), ConfigError> {
        self.listeners.set_furthest(self.configs()).map_err(|error| {
            ConfigError::new("", "gtsm_hops", format!("was refused by the kernel ({error})"))
        })
    }
}

/// Returns the valid configurations whose name and address do not occur earlier in the list.
fn distinct(configs: Vec<PeerConfig>, refused: &mut Vec<ConfigError>) -> Vec<PeerConfig> {
    let mut fit: Vec<PeerConfig> = Vec::new();
    for config in configs {
        match check_beside(&config, fit.iter()) {
            Ok(()) => fit.push(config),
            Err(problem) => refused.push(problem),
        }
    }
    fit
}

/// Checks that `config` is valid and that no other peer has the same name or address.
fn check_beside<'a>(
    config: &PeerConfig,
    mut others: impl Iterator<Item = &'a PeerConfig> + Clone,
) -> Result<(), ConfigError> {
    config.check()?;
    if others.clone().any(|other| other.name == config.name) {
        return Err(ConfigError::new(&config.name, "name", "is already used by another peer"));
    }
    let twice = |other: &PeerConfig| {
        let what = format!("must not be {}, which peer {} already has", config.address, other.name);
        ConfigError::new(&config.name, "address", what)
    };
    others.find(|other| other.place() == config.place()).map_or(Ok(()), |other| Err(twice(other)))
}

/// The key that identifies a peer: its address and, for a link-local address, the interface index.
type Place = (IpAddr, u32);

/// The reason why a speaker cannot be started.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// A field is out of range.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// An address cannot be bound.
    #[error("cannot listen for BGP at {at}: {error}")]
    Listen {
        /// The address that cannot be bound.
        at: SocketAddr,
        /// The error of the kernel.
        error: io::Error,
    },
    /// The caller runs outside a tokio runtime.
    #[error("a BGP speaker must be started inside a tokio runtime")]
    NoRuntime,
}

/// The maximum number of accepted connections from a peer that can wait in the queue of its task.
/// Further connections are closed.
const MAX_WAITING_CALLS: usize = 4;
const MOST_FOR_SHUTDOWN: Duration = Duration::from_secs(5);
