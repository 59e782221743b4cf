//! The async task that manages one BGP peer. The task opens connections to the peer, takes over
//! accepted connections, resolves collisions and waits after failures.
//!
//! The inputs of the task are commands, accepted connections and the desired routes. The task
//! publishes the status of the peer and writes log lines. The modules `change` and `rekeyed` handle
//! configuration changes. The module `silence` looks for the cause when a peer does not respond.
//!
//! At most one dialed and one accepted connection exist at a time. A misbehaving peer affects only
//! the task of this peer.
//!
//! See RFC 4271 §6.8 and §8.

mod change;
mod rekeyed;
mod silence;

use std::hash::RandomState;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpStream;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until};

use crate::backoff;
use crate::codec;
use crate::collision::{self, Side};
use crate::config::{Connect, GracefulRestart, PeerConfig, Times};
use crate::connection::{self, Connection};
use crate::dialling::Dialling;
use crate::message::{Cease, Identity, Notification};
use crate::report::{self, Report};
use crate::route::{Desired, Routes};
use crate::session::{STABLE, Stop};
use crate::status::State;
use rekeyed::Rekeyed;
use silence::Silence;

#[derive(Debug)]
pub(crate) enum PeerCommand {
    Change(Box<PeerConfig>),
    /// Removes the peer. The routes of the peer carry the graceful-shutdown community until
    /// [`PeerCommand::Stop`]. Until then, the status shows the peer under the given name.
    Part(String),
    BfdDown,
    /// Resets the connection immediately, without a NOTIFICATION. The string is the reason.
    Reset(String),
    /// Requests a notification when the peer has acknowledged all routes and withdrawals.
    Flush(oneshot::Sender<()>),
    /// Ends the task without a NOTIFICATION. A peer that negotiated graceful restart keeps the
    /// routes for the restart time.
    Abandon,
    /// Ends the session and the task.
    Stop(Stop),
}

pub(crate) struct Peer {
    local: Identity,
    config: Arc<PeerConfig>,
    inputs: Inputs,
    /// The desired routes of this peer.
    want: Arc<Routes>,
    report: Report,
    /// The requesters that wait until the peer has acknowledged all routes.
    awaiting_flush: Vec<oneshot::Sender<()>>,
    leaving: Option<change::Leaving>,
    /// `true` if the peer was removed from the configuration. The peer keeps its routes, with the
    /// graceful-shutdown community, until the task is stopped.
    parting: bool,
    silence: Silence,
    /// The state of the check after a change to the MD5 key.
    rekeyed: Option<Rekeyed>,
    both: Both,
    attempts: Attempts,
    closing: JoinSet<()>,
    stopped: bool,
}

pub(crate) struct Inputs {
    pub(crate) desired: watch::Receiver<Arc<Desired>>,
    pub(crate) commands: mpsc::UnboundedReceiver<PeerCommand>,
    pub(crate) inbound: mpsc::Receiver<TcpStream>,
}

/// The connection that this speaker opened and the connection that the peer opened. Both
/// connections exist only until the collision is resolved.
#[derive(Debug, Default)]
struct Both {
    dialled: Option<Connection>,
    accepted: Option<Connection>,
}

impl Both {
    fn iter(&self) -> impl Iterator<Item = &Connection> {
        self.dialled.iter().chain(&self.accepted)
    }

    fn iter_mut(&mut self) -> impl Iterator<Item = &mut Connection> {
        self.dialled.iter_mut().chain(&mut self.accepted)
    }

    fn take_ended(&mut self) -> Option<Connection> {
        let has_ended = |connection: &mut Connection| connection.session.end().is_some();
        self.dialled.take_if(has_ended).or_else(|| self.accepted.take_if(has_ended))
    }
}

/// The state of connection attempts: the current attempt, the failure count and the time of the
/// next attempt.
struct Attempts {
    dialling: Dialling,
    retry_at: Instant,
    failures: u32,
    /// `true` if this speaker ended the last session in order to start a new one. The first waits
    /// between connection attempts are then short.
    is_restarting: bool,
    /// `true` if this process replaces another process and the router has kept the routes. OPEN
    /// messages then announce a restart, until a session is up.
    resumes: bool,
    up_since: Option<Instant>,
    seed: RandomState,
}

/// A failed attempt, or the end of a session.
struct Failed {
    was_up: bool,
    /// The wait before the next attempt.
    wait: Duration,
}

impl Attempts {
    fn new() -> Self {
        Self {
            dialling: Dialling::default(),
            retry_at: Instant::now(),
            failures: 0,
            is_restarting: false,
            resumes: false,
            up_since: None,
            seed: RandomState::new(),
        }
    }

    /// Records an established session and cancels the current attempt.
    fn succeeded(&mut self) {
        self.up_since = Some(Instant::now());
        (self.resumes, self.is_restarting) = (false, false);
        self.dialling.give_up();
    }

    /// Records a failed attempt or an ended session, and computes the next wait.
    fn failed(&mut self, times: &Times) -> Failed {
        let up_since = self.up_since.take();
        let was_stable = up_since.is_some_and(|since| since.elapsed() >= STABLE);
        self.failures = if was_stable { 1 } else { self.failures.saturating_add(1) };
        let chance = backoff::chance(&self.seed, self.failures.into());
        let first = if self.is_restarting { FIRST_OF_RESTART } else { times.first_retry };
        let wait = backoff::wait(self.failures, first, times.max_retry, chance);
        self.retry_at = Instant::now() + wait;
        Failed { was_up: up_since.is_some(), wait }
    }
}

enum Happened {
    Command(PeerCommand),
    Inbound(TcpStream),
    Desired,
    DialEnded(Result<TcpStream, String>),
    Silence,
    Other,
}

impl Peer {
    pub(crate) fn new(local: Identity, config: PeerConfig, mut inputs: Inputs, report: Report) -> Self {
        let want = Arc::clone(inputs.desired.borrow_and_update().of(&config.name));
        Self {
            local,
            config: Arc::new(config),
            want,
            inputs,
            report,
            awaiting_flush: Vec::new(),
            leaving: None,
            parting: false,
            silence: Silence::begin(),
            rekeyed: None,
            both: Both::default(),
            attempts: Attempts::new(),
            closing: JoinSet::new(),
            stopped: false,
        }
    }

    /// Sets [`Attempts::resumes`].
    pub(crate) fn resuming(mut self, resumes: bool) -> Self {
        self.attempts.resumes = resumes;
        self
    }

    /// Runs the task until it is stopped and its last message is sent.
    pub(crate) async fn run(mut self) {
        while !(self.stopped && self.both.iter().next().is_none() && self.closing.is_empty()) {
            if self.may_dial() && self.attempts.retry_at <= Instant::now() {
                self.silence = Silence::begin();
                self.attempts.dialling.start(&self.config);
            }
            self.publish();
            self.answer();
            match self.wait().await {
                Happened::Command(command) => self.command(command),
                Happened::Inbound(stream) => self.inbound(stream),
                Happened::Desired => self.desire(),
                Happened::DialEnded(Ok(stream)) => self.dial_succeeded(stream),
                // The second connection only checks the MD5 key, so its failure is ignored.
                Happened::DialEnded(Err(_)) if self.rekeyed.is_some() => {}
                Happened::DialEnded(Err(error)) => self.failed(&error, false),
                Happened::Silence => self.look_for_a_reason(),
                Happened::Other => {}
            }
            self.settle();
            self.restart_when_due();
            self.look_after_key();
        }
    }

    async fn wait(&mut self) -> Happened {
        let may_dial = self.may_dial();
        let look_at = self.waits_for_a_word().then_some(self.silence.look_at);
        let key_at = self.rekeyed.as_ref().map(|rekeyed| rekeyed.look_at);
        let restart_at = self.leaving.as_ref().map(|leaving| leaving.until);
        let beside = self.rekeyed.as_mut().and_then(|rekeyed| rekeyed.beside.as_mut());
        tokio::select! {
            command = self.inputs.commands.recv(), if !self.stopped => {
                Happened::Command(command.unwrap_or_else(|| PeerCommand::Stop(Stop::Shutdown(String::new()))))
            }
            Some(stream) = self.inputs.inbound.recv() => Happened::Inbound(stream),
            Ok(()) = self.inputs.desired.changed() => Happened::Desired,
            ended = self.attempts.dialling.ended() => Happened::DialEnded(ended),
            () = sleep_until(self.attempts.retry_at), if may_dial => Happened::Other,
            () = sleep_until(restart_at.unwrap_or_else(Instant::now)), if restart_at.is_some() => Happened::Other,
            () = sleep_until(look_at.unwrap_or_else(Instant::now)), if look_at.is_some() => Happened::Silence,
            () = sleep_until(key_at.unwrap_or_else(Instant::now)), if key_at.is_some() => Happened::Other,
            // The task polls for TCP acknowledgments, because an acknowledgment does not wake the
            // task.
            () = sleep(LOOK_EVERY), if !self.awaiting_flush.is_empty() => Happened::Other,
            () = turn(self.both.dialled.as_mut()) => Happened::Other,
            () = turn(self.both.accepted.as_mut()) => Happened::Other,
            () = turn(beside) => Happened::Other,
            Some(_) = self.closing.join_next() => Happened::Other,
        }
    }

    fn may_dial(&self) -> bool {
        let idle =
            !self.is_ending() && self.both.iter().next().is_none() && !self.attempts.dialling.is_under_way();
        idle && self.config.connect != Connect::Listen
    }

    /// Returns `true` if no further session may be started.
    fn is_ending(&self) -> bool {
        self.stopped || self.parting
    }

    fn command(&mut self, command: PeerCommand) {
        match command {
            // BFD reports the loss of the established session. A connection attempt that started
            // later continues.
            PeerCommand::BfdDown => {
                let mut up = self.both.iter_mut().filter(|one| one.session.state() == State::Established);
                up.by_ref().for_each(|connection| connection.stop(&Stop::BfdDown));
            }
            PeerCommand::Reset(why) => {
                let Both { dialled, accepted } = std::mem::take(&mut self.both);
                let ended = [dialled, accepted].into_iter().flatten().map(Connection::reset).count();
                self.attempts.dialling.give_up();
                if ended > 0 {
                    self.failed(&why, false);
                }
            }
            PeerCommand::Flush(client) => {
                self.desire();
                self.awaiting_flush.push(client);
            }
            PeerCommand::Abandon => {
                self.stopped = true;
                self.attempts.dialling.give_up();
                let Both { dialled, accepted } = std::mem::take(&mut self.both);
                [dialled, accepted].into_iter().flatten().for_each(Connection::reset);
            }
            PeerCommand::Stop(stop) => {
                self.stopped = true;
                self.attempts.dialling.give_up();
                self.both.iter_mut().for_each(|connection| connection.stop(&stop));
            }
            PeerCommand::Change(config) => self.change(config),
            PeerCommand::Part(name) => self.part(&name),
        }
    }

    fn desire(&mut self) {
        let desired = Arc::clone(&self.inputs.desired.borrow_and_update());
        // A command that renames the peer is sent before the route table for the new name, so
        // pending commands are handled first.
        while let Ok(command) = self.inputs.commands.try_recv() {
            self.command(command);
        }
        self.want = if self.parting {
            Arc::new(self.want.kept_by(&desired))
        } else {
            Arc::clone(desired.of(&self.config.name))
        };
        self.say();
    }

    /// Passes the desired routes to the sessions.
    fn say(&mut self) {
        let want = if self.leaving.is_some() || self.parting {
            Arc::new(self.want.graceful_shutdown())
        } else {
            Arc::clone(&self.want)
        };
        self.both.iter_mut().for_each(|connection| connection.session.desire(Arc::clone(&want)));
    }

    /// Notifies the waiting requesters if the peer has acknowledged all routes.
    fn answer(&mut self) {
        if !self.awaiting_flush.is_empty() && self.both.iter().all(Connection::is_flushed) {
            // Sending fails only if the requester no longer waits.
            self.awaiting_flush.drain(..).for_each(|client| _ = client.send(()));
        }
    }

    fn dial_succeeded(&mut self, stream: TcpStream) {
        if self.both.iter().all(|one| one.session.state() != State::Established) {
            self.both.dialled = self.connect(stream);
        } else {
            self.answered_beside(stream);
        }
    }

    fn connect(&mut self, stream: TcpStream) -> Option<Connection> {
        let want = Arc::clone(&self.want);
        let connected = Connection::new(stream, self.local, self.config_of_open(), want);
        connected.map_err(|error| self.failed(&format!("cannot set up the connection: {error}"), false)).ok()
    }

    fn config_of_open(&self) -> Arc<PeerConfig> {
        match self.config.graceful_restart.filter(|_| self.attempts.resumes) {
            Some(restart) => {
                let graceful_restart =
                    Some(GracefulRestart { restarting: true, forwarding: true, ..restart });
                Arc::new(PeerConfig { graceful_restart, ..PeerConfig::clone(&self.config) })
            }
            None => Arc::clone(&self.config),
        }
    }

    fn inbound(&mut self, stream: TcpStream) {
        self.called_beside();
        let established = self.both.iter().find(|c| c.session.state() == State::Established);
        let survives = established.is_some_and(|connection| !self.may_replace(connection));
        let refusal = if self.config.connect == Connect::Dial || self.is_ending() {
            Some(Cease::ConnectionRejected)
        } else {
            survives.then_some(Cease::Collision)
        };
        if let Some(cease) = refusal {
            tracing::debug!(peer = self.config.name, ?cease, "BGP connection rejected");
            let message = codec::encode_notification(&Notification::cease(cease)).unwrap_or_default();
            if self.closing.len() < MAX_CLOSING {
                self.closing.spawn(connection::take_leave(stream, message));
            }
            return;
        }
        // If the peer still had the session, it would not open a new connection.
        for connection in self.both.iter_mut().filter(|c| c.session.state() == State::Established) {
            connection.session.lost("the peer has restarted", Instant::now().into_std());
        }
        if let Some(mut old) = self.both.accepted.take() {
            old.stop(&Stop::Collision);
            self.leave(old);
        }
        self.settle();
        self.silence = Silence::begin();
        self.both.accepted = self.connect(stream);
    }

    /// Returns `true` if a new connection replaces `established`. With graceful restart, a new
    /// connection shows that the peer has lost the old one (RFC 4724 §4.2).
    fn may_replace(&self, established: &Connection) -> bool {
        let restarts = |negotiated: &crate::status::Negotiated| {
            let is_restart = |c: &crate::Capability| matches!(c, crate::Capability::GracefulRestart { .. });
            negotiated.peer_capabilities.iter().any(is_restart)
        };
        self.config.graceful_restart.is_some()
            && established.session.negotiated.as_ref().is_some_and(restarts)
    }

    /// Closes one of two colliding connections, and handles connections that have ended.
    fn settle(&mut self) {
        if let (Some(dialled), Some(accepted)) = (&mut self.both.dialled, &mut self.both.accepted)
            && let Some(router_id) = accepted.session.peer_id().or(dialled.session.peer_id())
        {
            let peer = Identity { asn: self.config.asn, router_id };
            match collision::loser(dialled.session.state(), accepted.session.state(), self.local, peer) {
                Some(Side::Dialled) => dialled.stop(&Stop::Collision),
                Some(Side::Accepted) => accepted.stop(&Stop::Collision),
                None => {}
            }
        }
        while let Some(ended) = self.both.take_ended() {
            self.ended(ended);
        }
        let is_up = self.both.iter().any(|c| c.session.state() == State::Established);
        if is_up && self.attempts.up_since.is_none() {
            self.attempts.succeeded();
            let negotiated = self.both.iter().find_map(|c| c.session.negotiated.clone());
            self.report.established(negotiated.as_ref());
        }
    }

    fn ended(&mut self, connection: Connection) {
        let mut why = connection.session.end().unwrap_or_default().to_owned();
        let is_ours = connection.session.is_planned;
        if let Some(hint) = self.silence.hint(&self.config).filter(|_| !is_ours && !connection.was_heard()) {
            why = format!("{why}; {hint}");
        }
        self.leave(connection);
        if self.both.iter().next().is_some() {
            // The other connection continues.
            tracing::debug!(peer = self.config.name, why, "BGP connection ended");
        } else {
            self.failed(&why, is_ours);
        }
    }

    /// Closes an ended connection in the background, so that its last message can arrive.
    fn leave(&mut self, connection: Connection) {
        if self.closing.len() < MAX_CLOSING {
            self.closing.spawn(connection.close());
        }
    }

    /// Handles the end of the last connection and schedules the next attempt. `planned` is `true`
    /// if this speaker ended the connection on purpose.
    fn failed(&mut self, why: &str, planned: bool) {
        self.leave_beside();
        if let Some(leaving) = self.leaving.take() {
            self.config = Arc::from(leaving.next);
        }
        let Failed { was_up, wait } = self.attempts.failed(&self.config.times);
        let next = (self.config.connect != Connect::Listen && !self.is_ending()).then_some(wait);
        let is_soon = self.attempts.is_restarting && self.attempts.failures <= SHORT_WAITS;
        let end = report::End { why, is_planned: planned || is_soon, was_up };
        self.report.failed(&end, next, self.attempts.failures);
    }

    fn publish(&mut self) {
        let best = self.both.iter().max_by_key(|connection| connection.session.state());
        let waiting = match self.config.connect {
            _ if self.is_ending() => State::Idle,
            _ if self.attempts.dialling.is_under_way() => State::Connect,
            Connect::Dial => State::Idle,
            Connect::Both | Connect::Listen => State::Active,
        };
        self.report.publish(&self.config, waiting, best.map(|connection| &connection.session));
    }
}

async fn turn(connection: Option<&mut Connection>) {
    match connection {
        Some(connection) => connection.turn().await,
        None => std::future::pending().await,
    }
}

/// The interval at which acknowledgments are polled while a requester waits.
const LOOK_EVERY: Duration = Duration::from_millis(5);
/// The first wait after a planned restart of a session. A router accepts a connection only after it
/// has closed the last session, which takes only a few milliseconds in BIRD and FRR, so the first
/// wait is short. Each further wait is twice as long.
const FIRST_OF_RESTART: Duration = Duration::from_millis(50);
/// The number of waits after a planned restart during which a refused connection is not treated as
/// a fault. Together, these waits last a few seconds.
const SHORT_WAITS: u32 = 6;
/// The maximum number of connections that remain open after the end of their session until the peer
/// closes them. Further connections are closed immediately.
const MAX_CLOSING: usize = 8;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::route::Attributes;
    use crate::status::Status;

    #[tokio::test]
    async fn peer_reads_the_table_after_a_pending_rename() {
        let (command, commands) = mpsc::unbounded_channel();
        let (table, desired) = watch::channel(Arc::<Desired>::default());
        let (_calls, inbound) = mpsc::channel(1);
        let config = PeerConfig::new("old", [192, 0, 2, 0].into(), 65_000);
        let report = Report::new(Arc::new(watch::Sender::new(Status::new())), &config, 1);
        let local = Identity { asn: 65_101, router_id: [192, 0, 2, 1].into() };
        let mut peer = Peer::new(local, config.clone(), Inputs { desired, commands, inbound }, report);
        let mut routes = Routes::new();
        routes.insert("203.0.113.10/32".parse().unwrap(), Attributes::default()).unwrap();
        let mut next = Desired::default();
        next.peers.insert("new".into(), Arc::new(routes));
        command.send(PeerCommand::Change(Box::new(PeerConfig { name: "new".into(), ..config }))).unwrap();
        table.send(Arc::new(next)).unwrap();
        // The result must not depend on whether the task sees the command or the table first.
        peer.desire();
        assert_eq!((peer.want.len(), peer.config.name.as_str()), (1, "new"));
    }
}
