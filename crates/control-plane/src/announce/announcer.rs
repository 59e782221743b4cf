//! The announcer at work: a plan, decisions about it, and the speaker that carries them out.
//!
//! In: configurations, what is seen, the stage of a drain; on the control loop, and no call waits. Out: what the speaker has to
//! say. The speaker's tasks run on a thread of their own (`bgp`), BFD on another: neither waits for the control loop.
//! Not here: when the filter and the snapshot follow (`publisher` asks [`Announcer::retire`] and [`Flush::wait`]).

mod listening;
mod liveness;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use bgp::bfd::Bfd;
use bgp::{Desired, Prefix, Speaker, SpeakerConfig, StartError, State};
use tokio::runtime::{Builder, Handle, Runtime};
use tokio::sync::{oneshot, watch};
use tokio::task::AbortHandle;

use super::decision::{Decider, Seen, Stage, VipStatus};
use super::keeper::{self, Watched};
use super::plan::{Identity, Plan};
use config::{Config, Machine};
use listening::Listening;
use liveness::Liveness;

/// Announces VIPs, as long as the file has peers for this machine.
#[derive(Debug, Default)]
pub struct Announcer {
    pub(crate) plan: Plan,
    pub(crate) decider: Decider,
    pub(crate) stage: Stage,
    pub(crate) statuses: BTreeMap<Arc<str>, VipStatus>,
    pub(crate) running: Option<Running>,
    /// The file has no peer for the machine any more: its routes are marked until then.
    parting: Option<(Running, Duration)>,
    /// Routes that the next configuration does not have.
    retiring: BTreeSet<Prefix>,
    faulty: bool,
    pub(crate) now: Duration,
    /// Why a peer of the file has no session.
    pub(crate) refused: Vec<String>,
    listening: Listening,
    /// BFD of another process, before the BGP sessions that it is beside.
    liveness: Option<Liveness>,
}

#[derive(Debug)]
pub(crate) struct Running {
    pub(crate) identity: Identity,
    pub(crate) speaker: Arc<Speaker>,
    pub(crate) bfd: Option<Arc<Bfd>>,
    watched: watch::Sender<Watched>,
    keeper: Option<AbortHandle>,
    engine: Engine,
}

/// The runtime, before its thread begins and after.
#[derive(Debug)]
enum Engine {
    Still(Quiet),
    Turning { handle: Handle, end: oneshot::Sender<()>, thread: JoinHandle<()> },
    Ended,
}

/// A runtime that may be dropped on another one's thread: it is not waited for.
#[derive(Debug)]
struct Quiet(Option<Runtime>);

impl Drop for Quiet {
    fn drop(&mut self) {
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}

impl Announcer {
    /// Listens where the file says, which may take a capability, and announces nothing yet.
    ///
    /// # Errors
    /// An address that can't be listened at, or a peer whose key the kernel refuses.
    pub fn open(config: &Config, machine: &Machine) -> Result<Self, AnnounceError> {
        Self::default().open_as(config, machine, false)
    }

    /// The same in the place of another process, whose routes routers keep until they hear from this one, and whose BFD sessions
    /// [`Announcer::take_bfd`] may have taken before.
    ///
    /// # Errors
    /// As [`Announcer::open`].
    pub fn resume(self, config: &Config, machine: &Machine) -> Result<Self, AnnounceError> {
        self.open_as(config, machine, true)
    }

    fn open_as(self, config: &Config, machine: &Machine, resumes: bool) -> Result<Self, AnnounceError> {
        let plan = Plan::new(config, machine);
        let open = |identity| Running::open(identity, &plan, &plan.listen, resumes);
        let running = plan.identity.clone().map(open).transpose()?;
        Ok(Self { plan, running, liveness: self.liveness, ..Self::default() })
    }

    /// Begins to speak: from now on with the capabilities that the calling thread has now.
    ///
    /// # Errors
    /// The system has no thread left.
    pub fn begin(&mut self) -> Result<(), AnnounceError> {
        match &mut self.running {
            Some(running) => running.begin(&self.plan, self.liveness.take()),
            None => Ok(()),
        }
    }

    /// Whether there are peers.
    #[must_use]
    pub fn is_at_work(&self) -> bool {
        self.running.is_some()
    }

    /// Takes over a configuration that is in force: call after snapshot and filter have it. What only a start can bring (AS number,
    /// identifier) stays as it is; a section that comes is begun with, and one that goes is ended.
    pub fn configure(&mut self, config: &Config, machine: &Machine) {
        let before = std::mem::replace(&mut self.plan, Plan::new(config, machine));
        self.follow_families(&before);
        self.decider.reloaded(self.now);
        self.retiring.clear();
        self.refused.clear();
        self.listening = Listening::default();
        match (&mut self.running, self.plan.identity.clone()) {
            (Some(running), Some(_)) => self.refused = running.follow(&self.plan),
            (running @ Some(_), None) => {
                let gone = running.take();
                self.part(gone);
            }
            (None, Some(identity)) => {
                self.leave();
                let begun = Running::open(identity, &self.plan, &[], false)
                    .and_then(|mut running| running.begin(&self.plan, None).map(|()| running));
                match begun {
                    Ok(running) => self.running = Some(running),
                    Err(error) => {
                        tracing::error!(%error, "nothing is announced");
                        self.refused.push(error.to_string());
                    }
                }
            }
            (None, None) => {}
        }
        self.listen();
    }

    /// Checks through the VIP come or go by a reload: what stood for all its addresses stands for each family, and the other way.
    fn follow_families(&mut self, before: &Plan) {
        for (name, rules) in &self.plan.rules {
            let mut of_vip = before.rules.iter().filter(|(_, old)| old.vip == rules.vip);
            let Some((old, _)) = of_vip.next().filter(|_| !before.rules.contains_key(name)) else { continue };
            self.decider.inherit(old, name);
            if let Some(status) = self.statuses.get(old).cloned() {
                self.statuses.insert(Arc::clone(name), status);
            }
        }
    }

    /// Withdraws what `next` does not announce any more, before the filter and the threads forget it; `None`: nothing goes.
    pub fn retire(&mut self, next: &Config, machine: &Machine) -> Option<Flush> {
        let next = Plan::new(next, machine);
        let desired = self.desired();
        let announced = desired.peers.values().flat_map(|table| table.iter().map(|(prefix, _)| prefix));
        self.retiring = announced.filter(|prefix| !next.routes.contains_key(prefix)).collect();
        if self.retiring.is_empty() {
            return None;
        }
        self.say();
        self.running.as_ref().map(|running| Flush(Arc::clone(&running.speaker)))
    }

    /// The configuration that [`Announcer::retire`] was asked about does not come.
    pub fn keep(&mut self) {
        self.retiring.clear();
        self.say();
    }

    /// Decides anew. `now` counts from the start of the process.
    pub fn look(&mut self, seen: &Seen, now: Duration) {
        self.now = now;
        if self.listening.is_due(now) {
            self.listen();
        }
        let statuses = self.decider.decide(&self.plan.rules, self.plan.times, seen, now);
        self.tell_changes(&statuses);
        self.statuses = statuses;
        self.say();
        let faulty = seen.forwarder_fault.is_some();
        if faulty && !self.faulty {
            self.end_those_not_told();
        }
        self.faulty = faulty;
        if faulty || self.parting.as_ref().is_some_and(|(_, until)| *until <= now) {
            self.leave();
        }
    }

    /// What the file says and only a start brings: one sentence a key, such as `bgp.asn: 65101 -> 65102`.
    #[must_use]
    pub fn needs_restart(&self) -> Vec<String> {
        let Some((old, new)) =
            self.running.as_ref().map(|running| &running.identity).zip(self.plan.identity.as_ref())
        else {
            return Vec::new();
        };
        old.differing(new)
    }

    /// What an operator should know, one sentence each.
    #[must_use]
    pub fn warnings(&self) -> Vec<String> {
        self.faults().chain(self.silent_peers()).collect()
    }

    /// What the configuration in force asks for and can't be had, one sentence each.
    pub fn faults(&self) -> impl Iterator<Item = String> {
        self.refused.iter().chain(&self.listening.failures).map(|why| format!("bgp: {why}"))
    }

    /// How far a drain is.
    #[must_use]
    pub fn stage(&self) -> Stage {
        self.stage
    }

    /// The machine drains, or does not any more.
    pub fn set_stage(&mut self, stage: Stage) {
        self.stage = stage;
        self.say();
        if stage == Stage::Left {
            self.end_those_not_told();
            self.leave();
        }
    }

    /// How long a drain announces routes as about to go: no time when nobody has one.
    #[must_use]
    pub fn notice(&self) -> Duration {
        let status = self.running.as_ref().map(|running| running.speaker.status()).unwrap_or_default();
        let announced = status.values().any(|peer| peer.counts.announced_any());
        if announced { self.plan.graceful_shutdown } else { Duration::ZERO }
    }

    /// Ends all sessions with a text for the routers' operators (RFC 9003), then BFD, then the thread: 5 s at most.
    pub async fn close(self, text: &str) {
        for running in self.running.into_iter().chain(self.parting.map(|(running, _)| running)) {
            running.close(text).await;
        }
    }

    /// Leaves the sessions to another process on this machine: routers keep the routes for the time that was agreed on.
    pub async fn abandon(self) {
        for running in self.running.into_iter().chain(self.parting.map(|(running, _)| running)) {
            running.speaker.abandon().await;
            running.end().await;
        }
    }

    /// The routes that routers have now are announced as about to go (RFC 8326).
    fn part(&mut self, gone: Option<Running>) {
        let Some(running) = gone else { return };
        let desired = running.speaker.announced();
        let has_routes = running.speaker.status().values().any(|peer| peer.counts.announced_any());
        let notice = if has_routes { self.plan.graceful_shutdown } else { Duration::ZERO };
        running.speaker.announce(desired.graceful_shutdown());
        self.parting = Some((running, self.now + notice));
        if notice.is_zero() {
            self.leave();
        }
    }

    fn leave(&mut self) {
        if let Some((running, _)) = self.parting.take() {
            running.leave();
        }
    }

    /// At the addresses of the plan, and no others.
    fn listen(&mut self) {
        let Some(running) = &self.running else { return };
        let refused = running.speaker.listen(&self.plan.listen);
        self.listening.observe(&refused, self.now);
    }

    fn shown(&self) -> BTreeSet<Arc<str>> {
        let announced = self.statuses.iter().filter(|(_, status)| **status == VipStatus::Announced);
        announced.map(|(name, _)| Arc::clone(name)).collect()
    }

    /// Peers that have had no session for a while: their routers send nothing here.
    fn silent_peers(&self) -> impl Iterator<Item = String> {
        let status = self.running.as_ref().map(|running| running.speaker.status()).unwrap_or_default();
        let silent = status.into_values().filter(|peer| peer.state != State::Established);
        let silent =
            silent.filter(|peer| peer.since.elapsed().unwrap_or_default() >= SILENCE || peer.failures > 1);
        silent.map(|peer| {
            let why = peer.last_error.map_or_else(|| "it does not call".to_owned(), |(why, _)| why);
            format!("bgp: no session with peer {}: {why}", peer.name)
        })
    }

    pub(crate) fn desired(&self) -> Desired {
        self.plan.desired(&self.shown(), self.stage, &self.retiring)
    }

    fn say(&self) {
        let Some(running) = &self.running else { return };
        let desired = self.desired();
        if *running.speaker.announced() != desired {
            running.speaker.announce(desired);
        }
    }

    fn end_those_not_told(&self) {
        if let Some(Running { speaker, engine: Engine::Turning { handle, .. }, .. }) = &self.running {
            handle.spawn(keeper::end_those_not_told(Arc::clone(speaker)));
        }
    }

    fn tell_changes(&self, next: &BTreeMap<Arc<str>, VipStatus>) {
        if self.running.is_none() {
            return;
        }
        for (vip, status) in next {
            let was = self.statuses.get(vip) == Some(&VipStatus::Announced);
            match status {
                VipStatus::Announced if !was => tracing::info!(change = "vip", %vip, "announced"),
                VipStatus::Away(why) if was => tracing::warn!(change = "vip", %vip, %why, "withdrawn"),
                _ => {}
            }
        }
    }
}

/// A withdrawal on its way.
#[derive(Debug)]
pub struct Flush(Arc<Speaker>);

impl Flush {
    /// Waits until the routers have the withdrawal and have had a moment to follow it; half a second at most.
    pub async fn wait(self) {
        let late = self.0.flushed(WITHDRAWN_WITHIN).await;
        if !late.is_empty() {
            tracing::warn!(peers = %late.join(", "), "a withdrawal was not acknowledged yet: the reload goes on");
        }
        tokio::time::sleep(SETTLED_WITHIN).await;
    }
}

impl Running {
    fn open(
        identity: Identity,
        plan: &Plan,
        listen: &[SocketAddr],
        resumes: bool,
    ) -> Result<Self, AnnounceError> {
        let runtime = Builder::new_current_thread().enable_all().build().map_err(AnnounceError::Thread)?;
        let mut config = SpeakerConfig::new(identity.asn, identity.router_id);
        (config.listen, config.peers, config.resumes) = (listen.to_vec(), plan.peers.clone(), resumes);
        let runtime = Quiet(Some(runtime));
        let speaker = {
            let _inside = runtime.0.as_ref().map(Runtime::enter);
            Arc::new(Speaker::start(config).map_err(AnnounceError::Speaker)?)
        };
        let watched = watch::Sender::new(plan.bfd.clone());
        Ok(Self { identity, speaker, bfd: None, watched, keeper: None, engine: Engine::Still(runtime) })
    }

    fn begin(&mut self, plan: &Plan, liveness: Option<Liveness>) -> Result<(), AnnounceError> {
        let Engine::Still(mut still) = std::mem::replace(&mut self.engine, Engine::Ended) else {
            return Ok(());
        };
        let Some(handle) = still.0.as_ref().map(|runtime| runtime.handle().clone()) else { return Ok(()) };
        let liveness = liveness.map_or_else(Liveness::start, Ok)?;
        let (end, ended) = oneshot::channel();
        let turn = move || {
            if let Some(runtime) = still.0.take() {
                // Acknowledged, or the task that sends has ended.
                drop(runtime.block_on(ended));
            }
        };
        let thread = std::thread::Builder::new().name("bgp".into()).spawn(turn);
        let thread = thread.map_err(AnnounceError::Thread)?;
        self.engine = Engine::Turning { handle, end, thread };
        self.watch(liveness, plan);
        tracing::info!(
            asn = self.identity.asn,
            router_id = %self.identity.router_id,
            peers = plan.peers.len(),
            "announcing by BGP"
        );
        Ok(())
    }

    /// BFD beside the BGP sessions from now on.
    fn watch(&mut self, liveness: Liveness, plan: &Plan) {
        let Engine::Turning { handle, .. } = &self.engine else { return };
        liveness.belongs_to(&self.speaker);
        let Liveness { bfd, taken, .. } = liveness;
        let patience = liveness::patience(&plan.peers);
        let keeper = keeper::Keeper::new(Arc::clone(&bfd), taken, patience, self.watched.subscribe());
        let task = handle.spawn(keeper.keep(self.speaker.watch()));
        (self.bfd, self.keeper) = (Some(bfd), Some(task.abort_handle()));
    }

    /// Peers come, go and change. What can't be had, in words.
    fn follow(&self, plan: &Plan) -> Vec<String> {
        self.watched.send_replace(plan.bfd.clone());
        let refused: Vec<String> =
            self.speaker.set_peers(plan.peers.clone()).iter().map(ToString::to_string).collect();
        for error in &refused {
            tracing::error!(error, "a peer of the file has no session");
        }
        refused
    }

    /// There are no peers any more.
    fn leave(self) {
        let handle = Handle::try_current();
        tracing::info!(change = "router", "nothing is announced by BGP any more");
        if let Ok(handle) = handle {
            handle.spawn(self.close("no longer configured"));
        }
    }

    async fn close(self, text: &str) {
        let watches = !self.watched.borrow().is_empty();
        self.speaker.shutdown(text).await;
        if watches {
            tokio::time::sleep(keeper::OUTLIVES).await;
        }
        self.end().await;
    }

    async fn end(self) {
        let Self { bfd, engine, watched, .. } = self;
        drop(watched);
        let Engine::Turning { end, thread, .. } = engine else { return };
        // The keeper has the other reference to BFD, and ends with its thread.
        _ = end.send(());
        let ended = tokio::task::spawn_blocking(move || {
            drop(thread.join());
            drop(bfd);
        });
        drop(ended.await);
    }
}

/// Why nothing can be announced.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AnnounceError {
    /// The speaker does not start.
    #[error("[bgp]: {0}")]
    Speaker(StartError),
    /// The system has no thread left.
    #[error("[bgp]: no thread: {0}")]
    Thread(io::Error),
    /// BFD sessions of another process can't be gone on with.
    #[error("[bgp]: BFD of another process: {0}")]
    Bfd(io::Error),
}

/// A router is given so long for a withdrawal that a reload waits for.
const WITHDRAWN_WITHIN: Duration = Duration::from_millis(300);
/// A router's forwarding follows its table by milliseconds.
const SETTLED_WITHIN: Duration = Duration::from_millis(100);

/// A router that restarts is back by then.
const SILENCE: Duration = Duration::from_secs(30);
