//! The handle that a program holds: peers come and go, routes change, all end together.
//!
//! Not here: anything of one peer (`peer`); peers that were removed (`parting`). Invariant: a command for one peer never waits for another.

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

/// A BGP speaker that announces, and imports nothing.
///
/// All methods may be called from any thread. Dropping it ends the sessions, but waits for nothing: [`Speaker::shutdown`] does.
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
    /// Routers have the routes of another process in whose place those come that begin now.
    resumes: bool,
}

#[derive(Debug)]
struct Running {
    config: PeerConfig,
    commands: mpsc::UnboundedSender<PeerCommand>,
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

    /// Listens at these addresses and no others from now on; sessions go on. Those that can't be had are given back with the
    /// reason, and may be tried again.
    pub fn listen(&self, at: &[SocketAddr]) -> Vec<(SocketAddr, io::Error)> {
        let _inside = self.runtime.enter();
        let mut peers = self.peers();
        let Peers { by_name, listeners, .. } = &mut *peers;
        listeners.follow(at, &self.callers, by_name.values().map(|running| &running.config))
    }

    /// Where it listens, with the ports that were found where none was asked for.
    #[must_use]
    pub fn listens_at(&self) -> Vec<SocketAddr> {
        self.peers().listeners.addresses()
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
    pub fn watch(&self) -> StatusWatch {
        StatusWatch(self.board.subscribe())
    }

    /// Adds a peer.
    ///
    /// # Errors
    /// A field out of range, a name or an address that another peer has, or a key that the kernel refuses.
    pub fn add_peer(&self, config: PeerConfig) -> Result<(), ConfigError> {
        let mut peers = self.peers();
        check_beside(&config, peers.configs())?;
        if let Some(Parting { running, .. }) = peers.parting.remove(&config.place()) {
            self.ending().end(&peers, running);
        }
        self.begin(&mut peers, config)?;
        peers.set_furthest()
    }

    /// These are the peers from now on. A peer is known by its address: another name, key, port, limit of hops, side that dials,
    /// next hop, limit or retry is taken over by the running session, other timers by the next one. Anything else needs another
    /// session: routes are announced as about to go for the peer's `notice`, then it restarts. A peer that is not
    /// among them is removed: its routes are marked in the same way, then its session ends (Cease: peer de-configured). Meanwhile
    /// it stands in the status as `NAME (removed)`, and can come back.
    ///
    /// What can't be had is given back: a field out of range, a name or an address twice, a key that the kernel refuses. A peer of
    /// that address stays as it is but for its name, or is not there.
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

    /// BFD has lost the peer: its session ends (Cease: BFD down, RFC 9384). Whether there is such a peer.
    pub fn bfd_down(&self, name: &str) -> bool {
        let peers = self.peers();
        peers.named(name).is_some_and(|running| running.commands.send(PeerCommand::BfdDown).is_ok())
    }

    /// Ends a peer's session at once, without a word: its end sees the connection reset, and drops our routes. For one that does
    /// not take what is sent. Another session follows after a while. Whether there is such a peer.
    pub fn reset(&self, name: &str, why: &str) -> bool {
        let peers = self.peers();
        peers.named(name).is_some_and(|running| running.commands.send(PeerCommand::Reset(why.into())).is_ok())
    }

    /// Waits until each peer with a session has acknowledged all that it is to have now, and no longer than `patience`: the names
    /// of those that have not. A peer whose TCP takes nothing more (a window of zero) is one of them, whatever our own kernel
    /// has taken.
    pub async fn flushed(&self, patience: Duration) -> Vec<String> {
        let until = Instant::now() + patience;
        let ask = |running: &Running| {
            let (answer, flushed) = oneshot::channel();
            // It fails only when the task has ended: there is nothing to send.
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

    /// Ends all sessions, with a text for the operators of the other ends (RFC 9003, cut to 128 bytes), and waits until they
    /// have it, 5 s at most.
    pub async fn shutdown(&self, text: &str) {
        let running = self.take_all();
        for Running { config, commands, .. } in &running {
            drop(commands.send(PeerCommand::Stop(Stop::Shutdown(text.into()))));
            self.callers.remove(config);
            tracing::info!(peer = config.name, text, "BGP session shut down");
        }
        let tasks = async {
            for running in running {
                drop(running.task.await);
            }
        };
        if timeout(MOST_FOR_SHUTDOWN, tasks).await.is_err() {
            tracing::warn!("not every BGP peer took its leave in time");
        }
        self.board.send_modify(Status::clear);
    }

    /// Ends all sessions without a word, for a process that comes in this one's place on the same machine: peers that have agreed to a
    /// graceful restart ([`PeerConfig::graceful_restart`]) keep the routes for its time, and others drop them. Nobody listens any more
    /// when it returns.
    pub async fn abandon(&self) {
        let running = self.take_all();
        for Running { config, commands, .. } in &running {
            drop(commands.send(PeerCommand::Abandon));
            self.callers.remove(config);
            tracing::info!(peer = config.name, "BGP session left to another process");
        }
        for running in running {
            drop(running.task.await);
        }
        self.board.send_modify(Status::clear);
    }

    /// All peers, which are none any more; nobody listens.
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
            // It fails only when the task has ended.
            drop(running.commands.send(PeerCommand::Change(Box::new(config.clone()))));
            running.config = config;
        }
        peers.by_name.insert(running.config.name.clone(), running);
        key
    }

    /// Those that stay stand on the board under the names that they get: all at once, as two may change names.
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
    /// Those that were removed and have a session among them.
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
        self.listeners
            .set_key(config.address, config.md5.as_ref())
            .map_err(|error| ConfigError::new(&config.name, "md5", format!("the kernel refuses: {error}")))
    }

    fn set_furthest(&self) -> Result<(), ConfigError> {
        self.listeners
            .set_furthest(self.configs())
            .map_err(|error| ConfigError::new("", "gtsm_hops", format!("the kernel refuses: {error}")))
    }
}

/// Those that can be had together.
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

/// Whether a session can be run by `config`, and none of the others has its name or its place.
fn check_beside<'a>(
    config: &PeerConfig,
    mut others: impl Iterator<Item = &'a PeerConfig> + Clone,
) -> Result<(), ConfigError> {
    config.check()?;
    if others.clone().any(|other| other.name == config.name) {
        return Err(ConfigError::new(&config.name, "name", "another peer has it"));
    }
    let twice = |other: &PeerConfig| {
        ConfigError::new(&config.name, "address", format!("peer {} has {}", other.name, config.address))
    };
    others.find(|other| other.place() == config.place()).map_or(Ok(()), |other| Err(twice(other)))
}

/// What a peer is known by: its address, and the interface of a link-local one.
type Place = (IpAddr, u32);

/// Why a speaker does not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// A field is out of range.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// An address can't be listened at.
    #[error("can't listen for BGP at {at}: {error}")]
    Listen {
        /// Which.
        at: SocketAddr,
        /// Why.
        error: io::Error,
    },
    /// There is no tokio runtime around.
    #[error("a BGP speaker needs a tokio runtime around it")]
    NoRuntime,
}

/// More connections of a peer than this, not looked at yet, are closed.
const MAX_WAITING_CALLS: usize = 4;
const MOST_FOR_SHUTDOWN: Duration = Duration::from_secs(5);
