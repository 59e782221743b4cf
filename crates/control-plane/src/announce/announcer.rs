//! Runs the BGP speaker, and passes it the routes that the plan and the announcement decisions
//! require.
//!
//! The control loop calls the announcer, and no call blocks. The BGP speaker and BFD each have
//! their own thread, so neither waits for the control loop. `publisher` uses [`Announcer::retire`]
//! and [`Flush::wait`] to withdraw routes before the filter and the snapshot change.

mod changes;
mod commands;
mod listening;
mod liveness;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::SocketAddr;
use std::ops::Range;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use bgp::bfd::Bfd;
use bgp::{Desired, Prefix, Speaker, SpeakerConfig, StartError, State};
use tokio::runtime::{Builder, Handle, Runtime};
use tokio::sync::{oneshot, watch};
use tokio::task::AbortHandle;

use super::decision::{Decider, HandedAnnouncements, Seen, Stage, VipStatus};
use super::keeper::{self, Watched};
use super::plan::{Identity, Plan};
use config::{Config, Machine};
use listening::Listening;
use liveness::Liveness;

/// Announces VIPs to the BGP peers of this machine. Without BGP peers in the configuration, no
/// speaker runs.
#[derive(Debug, Default)]
pub struct Announcer {
    pub(crate) plan: Plan,
    pub(crate) decider: Decider,
    pub(crate) stage: Stage,
    pub(crate) statuses: BTreeMap<Arc<str>, VipStatus>,
    pub(crate) running: Option<Running>,
    /// The speaker that is being closed because a reload removed the last peer, and the time at
    /// which it closes. Until the speaker closes, its routes carry the graceful-shutdown community.
    parting: Option<(Running, Duration)>,
    /// Routes that are withdrawn because they are not in the next configuration.
    retiring: BTreeSet<Prefix>,
    faulty: bool,
    pub(crate) now: Duration,
    /// `true` while an upgrade hands the state over, so that no decision changes it.
    frozen: bool,
    /// `true` until the first decision in a process that resumes the announcements of another one.
    resumes: bool,
    /// The time of the first decision in this process, and the time until which routers keep routes
    /// of the previous process.
    pub(crate) kept: Range<Duration>,
    /// The reasons why the speaker rejected peers, one for each rejected peer.
    pub(crate) refused: Vec<String>,
    listening: Listening,
    /// BFD sessions that were taken over from the previous process, until the speaker starts.
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

/// The runtime of the speaker: not started, running on its thread, or ended.
#[derive(Debug)]
enum Engine {
    Still(Quiet),
    Turning { handle: Handle, end: oneshot::Sender<()>, thread: JoinHandle<()> },
    Ended,
}

/// A tokio runtime that may be dropped inside another tokio runtime. Dropping a plain `Runtime`
/// inside another runtime would panic.
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
    /// Opens the BGP listening sockets, for which the process may need a capability. No route is
    /// announced before [`Announcer::begin`] is called.
    ///
    /// # Errors
    /// Returns [`AnnounceError`] if the kernel rejects a listening address or the MD5 key of a
    /// peer.
    pub fn open(config: &Config, machine: &Machine) -> Result<Self, AnnounceError> {
        Self::default().open_as(config, machine, false)
    }

    /// Opens the BGP listening sockets in a process that replaces another process. Routers keep the
    /// routes of the old process until the new process announces its own routes. To continue the
    /// BFD sessions of the old process, call [`Announcer::take_bfd`] before this function.
    ///
    /// # Errors
    /// Returns the errors of [`Announcer::open`].
    pub fn resume(self, config: &Config, machine: &Machine) -> Result<Self, AnnounceError> {
        self.open_as(config, machine, true)
    }

    fn open_as(self, config: &Config, machine: &Machine, resumes: bool) -> Result<Self, AnnounceError> {
        let plan = Plan::new(config, machine);
        let open = |identity| Running::open(identity, &plan, &plan.listen, resumes);
        let running = plan.identity.clone().map(open).transpose()?;
        Ok(Self { plan, running, liveness: self.liveness, decider: self.decider, resumes, ..Self::default() })
    }

    /// Starts the BGP thread. The new thread inherits the current capabilities of the calling
    /// thread.
    ///
    /// # Errors
    /// Returns [`AnnounceError`] if the thread cannot be created.
    pub fn begin(&mut self) -> Result<(), AnnounceError> {
        match &mut self.running {
            Some(running) => running.begin(&self.plan, self.liveness.take()),
            None => Ok(()),
        }
    }

    /// Returns `true` if this machine has a BGP speaker.
    #[must_use]
    pub fn is_at_work(&self) -> bool {
        self.running.is_some()
    }

    /// Applies a new configuration. The snapshot and the XDP filter must already use this
    /// configuration. A changed AS number or router ID takes effect only after a restart. If the
    /// configuration adds the first peer, the speaker starts. If the configuration removes the last
    /// peer, the speaker stops.
    pub fn configure(&mut self, config: &Config, machine: &Machine) {
        let before = std::mem::replace(&mut self.plan, Plan::new(config, machine));
        self.follow_families(&before);
        self.decider.reloaded(self.now);
        let kept = |vip: &str| self.plan.rules.values().any(|rules| &*rules.vip == vip);
        self.decider.overrides.retain(kept);
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
                        // log: BGP could not start, so no VIP is announced. Fix the cause in
                        // `error`, then reload and check `sluicegate bgp status`.
                        tracing::error!(%error, "BGP start failed");
                        self.refused.push(error.to_string());
                    }
                }
            }
            (None, None) => {}
        }
        self.listen();
    }

    /// Copies the announcement state of a VIP to its new names when a reload adds or removes checks
    /// through VIPs. If backends are checked through a VIP, each address family of the VIP has its
    /// own name and state.
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

    /// Withdraws the routes that are not in the configuration `next`. The routes are withdrawn
    /// before the VIPs are removed from the filter and the packet threads. Returns `None` if no
    /// route is withdrawn.
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

    /// Announces the routes withdrawn by [`Announcer::retire`] again. The caller uses this function
    /// when the new configuration was rejected.
    pub fn keep(&mut self) {
        self.retiring.clear();
        self.say();
    }

    /// Decides again which VIPs are announced, based on the observed state `seen`. `now` is the
    /// time since the process started. Nothing changes while the announcer is frozen.
    pub fn look(&mut self, seen: &Seen, now: Duration) {
        if self.frozen {
            return;
        }
        self.now = now;
        if std::mem::take(&mut self.resumes) {
            let restarts = self.plan.peers.iter().filter_map(|peer| peer.graceful_restart.as_ref());
            let least = restarts.map(|restart| Duration::from_secs(restart.seconds.into())).min();
            self.kept = now..now + least.unwrap_or_default();
        }
        if self.listening.is_due(now) {
            self.listen();
        }
        self.expire_overrides();
        let statuses = self.decider.decide(&self.plan.rules, self.plan.times, seen, now);
        self.tell_changes(&statuses);
        self.statuses = statuses;
        self.say();
        let faulty = seen.fault.as_ref().is_some_and(|fault| fault.withdraws(self.plan.times));
        if faulty && !self.faulty {
            self.end_those_not_told();
        }
        self.faulty = faulty;
        if faulty || self.parting.as_ref().is_some_and(|(_, until)| *until <= now) {
            self.leave();
        }
    }

    /// Returns the changed BGP settings that take effect only after a restart, one entry per key,
    /// such as `bgp.asn: 65101 -> 65102`.
    #[must_use]
    pub fn needs_restart(&self) -> Vec<String> {
        let Some((old, new)) =
            self.running.as_ref().map(|running| &running.identity).zip(self.plan.identity.as_ref())
        else {
            return Vec::new();
        };
        old.differing(new)
    }

    /// Returns warnings for the operator, one sentence each.
    #[must_use]
    pub fn warnings(&self) -> Vec<String> {
        self.faults().chain(self.silent_peers()).collect()
    }

    /// Returns one sentence for each peer that was rejected and for each address on which listening
    /// failed.
    pub fn faults(&self) -> impl Iterator<Item = String> {
        self.refused.iter().chain(&self.listening.failures).map(|why| format!("bgp: {why}"))
    }

    /// Returns the current stage of the drain.
    #[must_use]
    pub fn stage(&self) -> Stage {
        self.stage
    }

    /// Sets the stage of the drain, and changes the announced routes accordingly.
    pub fn set_stage(&mut self, stage: Stage) {
        self.stage = stage;
        self.say();
        if stage == Stage::Left {
            self.end_those_not_told();
            self.leave();
        }
    }

    /// Returns the time for which routes carry the graceful-shutdown community during a drain. The
    /// time is zero if no route is announced to any router.
    #[must_use]
    pub fn notice(&self) -> Duration {
        let status = self.running.as_ref().map(|running| running.speaker.status()).unwrap_or_default();
        let announced = status.values().any(|peer| peer.counts.announced_any());
        if announced { self.plan.graceful_shutdown } else { Duration::ZERO }
    }

    /// Suspends or resumes all decisions. During the hand-over of an upgrade, the new process
    /// already has the state, and the forwarder of this process cannot be checked.
    pub fn freeze(&mut self, frozen: bool) {
        self.frozen = frozen;
    }

    /// Returns the history of announcements and the overrides, for an upgrade.
    #[must_use]
    pub fn handed(&self) -> HandedAnnouncements {
        self.decider.handed()
    }

    /// Continues the history of announcements and the overrides of the old process.
    pub fn take(&mut self, handed: &HandedAnnouncements) {
        self.decider.take(handed);
    }

    /// Returns the speaker with its sessions, for an upgrade. This value keeps the history and the
    /// overrides, so that it can [resume](Announcer::resume) if the upgrade fails. The decisions
    /// stay suspended, because a decision without a plan would delete the history.
    #[must_use]
    pub fn part_with_speaker(&mut self) -> Self {
        let (decider, now, frozen) = (self.decider.clone(), self.now, self.frozen);
        let kept = Self { decider, now, frozen, ..Self::default() };
        std::mem::replace(self, kept)
    }

    /// Closes all BGP sessions, then BFD, then the BGP thread. `text` is sent to the routers as a
    /// message for their operators (RFC 9003). Closing the sessions takes at most 5 s.
    pub async fn close(self, text: &str) {
        for running in self.running.into_iter().chain(self.parting.map(|(running, _)| running)) {
            running.close(text).await;
        }
    }

    /// Ends the BGP thread without closing the sessions at the routers, because a new process on
    /// this machine continues the sessions. Routers keep the routes for the negotiated restart
    /// time.
    pub async fn abandon(self) {
        for running in self.running.into_iter().chain(self.parting.map(|(running, _)| running)) {
            running.speaker.abandon().await;
            running.end().await;
        }
    }

    /// Announces all routes with the graceful-shutdown community (RFC 8326), and sets the time at
    /// which the sessions are closed.
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

    /// Opens the listening sockets that the plan requires, and closes all others.
    fn listen(&mut self) {
        let Some(running) = &self.running else { return };
        let refused = running.speaker.listen(&self.plan.listen);
        self.listening.observe(&refused, self.now);
    }

    /// Returns a warning for each peer without a BGP session. A router without a session sends no
    /// traffic to this machine.
    fn silent_peers(&self) -> impl Iterator<Item = String> {
        let status = self.running.as_ref().map(|running| running.speaker.status()).unwrap_or_default();
        let silent = status.into_values().filter(|peer| peer.state != State::Established);
        let silent =
            silent.filter(|peer| peer.since.elapsed().unwrap_or_default() >= SILENCE || peer.failures > 1);
        silent.map(|peer| {
            let why = peer.last_error.map_or_else(|| "the peer has not connected".to_owned(), |(why, _)| why);
            format!("bgp: no session with peer {} ({why})", peer.name)
        })
    }

    /// Returns `true` if routers keep the routes of a VIP because the previous process of an
    /// upgrade announced them, and this VIP was not withdrawn since.
    pub(crate) fn keeps(&self, vip: &str) -> bool {
        self.kept.contains(&self.now) && self.decider.since(vip) < self.kept.start
    }

    pub(crate) fn desired(&self) -> Desired {
        self.plan.desired(&self.statuses, self.stage, &self.retiring)
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
        if self.running.is_some() {
            changes::log(&self.plan.rules, &self.statuses, next);
        }
    }
}

/// Withdrawals that were sent to the routers.
#[derive(Debug)]
pub struct Flush(Arc<Speaker>);

impl Flush {
    /// Waits until the routers have acknowledged the withdrawals and had time to update their
    /// forwarding tables. Waiting takes at most 0.5 s.
    pub async fn wait(self) {
        let late = self.0.flushed(WITHDRAWN_WITHIN).await;
        if !late.is_empty() {
            // log: A router is slow to acknowledge a withdrawal. The reload continues, and packets
            // for removed VIPs may still arrive for a short time.
            tracing::warn!(peer = %late.join(", "), "route withdrawal not acknowledged yet");
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
                // The future `ended` completes when a value is sent on `end`, or with an error when
                // `end` is dropped. In both cases, the BGP thread ends.
                drop(runtime.block_on(ended));
            }
        };
        let thread = std::thread::Builder::new().name("bgp".into()).spawn(turn);
        let thread = thread.map_err(AnnounceError::Thread)?;
        self.engine = Engine::Turning { handle, end, thread };
        self.watch(liveness, plan);
        // log: The BGP speaker has started and opens sessions with the routers.
        tracing::info!(
            asn = self.identity.asn,
            router_id = %self.identity.router_id,
            peers = plan.peers.len(),
            "BGP started"
        );
        Ok(())
    }

    /// Starts the task that runs a BFD session for each BGP session.
    fn watch(&mut self, liveness: Liveness, plan: &Plan) {
        let Engine::Turning { handle, .. } = &self.engine else { return };
        liveness.belongs_to(&self.speaker);
        let Liveness { bfd, taken, .. } = liveness;
        let patience = liveness::patience(&plan.peers);
        let keeper = keeper::Keeper::new(Arc::clone(&bfd), taken, patience, self.watched.subscribe());
        let task = handle.spawn(keeper.keep(self.speaker.watch()));
        (self.bfd, self.keeper) = (Some(bfd), Some(task.abort_handle()));
    }

    /// Applies the peers and BFD settings of a new plan. Returns the errors of rejected peers.
    fn follow(&self, plan: &Plan) -> Vec<String> {
        self.watched.send_replace(plan.bfd.clone());
        let refused: Vec<String> =
            self.speaker.set_peers(plan.peers.clone()).iter().map(ToString::to_string).collect();
        for error in &refused {
            // log: A BGP peer was rejected, because its MD5 key or address could not be set. The
            // peer has no session. Fix the cause in `error`, then reload.
            tracing::error!(error, "BGP peer rejected");
        }
        refused
    }

    /// Closes the speaker in a background task, after a reload removed the last peer.
    fn leave(self) {
        let handle = Handle::try_current();
        // log: A reload removed the last BGP peer, so this machine announces no routes.
        tracing::info!(change = "router", "BGP stopped");
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
        // Only the keeper task has another reference to the BFD handle, and this task ends with the
        // BGP thread.
        _ = end.send(());
        let ended = tokio::task::spawn_blocking(move || {
            drop(thread.join());
            drop(bfd);
        });
        drop(ended.await);
    }
}

/// An error that prevents the announcement of VIPs.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AnnounceError {
    /// The BGP speaker cannot start.
    #[error("cannot start BGP ({0})")]
    Speaker(StartError),
    /// The BGP thread cannot be created.
    #[error("cannot create the BGP thread: {0}")]
    Thread(io::Error),
    /// The BFD sessions of the previous process cannot be continued.
    #[error("cannot take over the BFD sessions of the previous process: {0}")]
    Bfd(io::Error),
}

/// The time for which a reload waits until routers acknowledge a withdrawal.
const WITHDRAWN_WITHIN: Duration = Duration::from_millis(300);
/// The time that a router needs after the acknowledgment to update its forwarding table.
const SETTLED_WITHIN: Duration = Duration::from_millis(100);

/// The time after which a missing BGP session is reported as a warning. A router reconnects in less
/// time after a normal restart.
const SILENCE: Duration = Duration::from_secs(30);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::announce::Rules;

    #[test]
    fn history_survives_an_upgrade_that_fails() {
        let mut announcer = Announcer::default();
        let rules = Rules { vip: "www".into(), announced: true, heard: true, ..Rules::default() };
        announcer.plan.rules.insert("www".into(), rules);
        announcer.look(&Seen::default(), Duration::from_secs(1));
        announcer.freeze(true);
        let handed = announcer.handed();
        let _speaker = announcer.part_with_speaker();
        announcer.look(&Seen::default(), Duration::from_secs(2));
        assert_eq!(announcer.handed(), handed);
        announcer.freeze(false);
        announcer.look(&Seen::default(), Duration::from_secs(3));
        assert_ne!(announcer.handed(), handed);
    }
}
