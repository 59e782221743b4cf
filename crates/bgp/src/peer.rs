//! One peer's task: it dials, takes what was accepted, lets two connections fight it out, and waits between failures.
//!
//! In: orders, accepted connections, the desired table. Out: the peer's status and log lines.
//! Invariant: at most one connection dialled and one accepted; all that a peer does is felt by its own task alone.
//! Source: RFC 4271 §6.8, §8.

use std::hash::RandomState;
use std::sync::Arc;

use tokio::net::TcpStream;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};

use crate::backoff;
use crate::codec;
use crate::collision::{self, End, Side};
use crate::config::{Connect, PeerConfig};
use crate::connection::{self, Connection};
use crate::dialling::Dialling;
use crate::local::Local;
use crate::message::{Cease, Notification};
use crate::report::Report;
use crate::route::Desired;
use crate::session::{STABLE, Stop};
use crate::status::State;

/// What the speaker tells a peer's task.
#[derive(Debug)]
pub(crate) enum Order {
    Change(Box<PeerConfig>),
    BfdDown,
    /// At once and without a word, for this reason.
    Reset(String),
    /// The last one.
    Stop(Stop),
}

pub(crate) struct Peer {
    local: Local,
    config: Arc<PeerConfig>,
    desired: watch::Receiver<Arc<Desired>>,
    orders: mpsc::UnboundedReceiver<Order>,
    inbound: mpsc::Receiver<TcpStream>,
    report: Report,
    dialled: Option<Connection>,
    accepted: Option<Connection>,
    dialling: Dialling,
    retry_at: Instant,
    failures: u32,
    seed: RandomState,
    up_since: Option<Instant>,
    closing: JoinSet<()>,
    stopped: bool,
}

/// What its task reads from.
pub(crate) struct Inputs {
    pub(crate) desired: watch::Receiver<Arc<Desired>>,
    pub(crate) orders: mpsc::UnboundedReceiver<Order>,
    pub(crate) inbound: mpsc::Receiver<TcpStream>,
}

enum Happened {
    Ordered(Order),
    Inbound(TcpStream),
    Desired,
    DialEnded(Result<TcpStream, String>),
    Other,
}

impl Peer {
    pub(crate) fn new(local: Local, config: PeerConfig, inputs: Inputs, report: Report) -> Self {
        Self {
            local,
            config: Arc::new(config),
            desired: inputs.desired,
            orders: inputs.orders,
            inbound: inputs.inbound,
            report,
            dialled: None,
            accepted: None,
            dialling: Dialling::default(),
            retry_at: Instant::now(),
            failures: 0,
            seed: RandomState::new(),
            up_since: None,
            closing: JoinSet::new(),
            stopped: false,
        }
    }

    /// Until it is stopped and its last message is out.
    pub(crate) async fn run(mut self) {
        while !(self.stopped && self.connections().next().is_none() && self.closing.is_empty()) {
            if self.may_dial() && self.retry_at <= Instant::now() {
                self.dialling.start(&self.config);
            }
            self.publish();
            match self.wait().await {
                Happened::Ordered(order) => self.order(order),
                Happened::Inbound(stream) => self.inbound(stream),
                Happened::Desired => self.desire(),
                Happened::DialEnded(Ok(stream)) => self.dialled = self.connect(stream),
                Happened::DialEnded(Err(error)) => self.failed(&error),
                Happened::Other => {}
            }
            self.settle();
        }
    }

    async fn wait(&mut self) -> Happened {
        let may_dial = self.may_dial();
        tokio::select! {
            order = self.orders.recv(), if !self.stopped => {
                Happened::Ordered(order.unwrap_or_else(|| Order::Stop(Stop::Shutdown(String::new()))))
            }
            Some(stream) = self.inbound.recv() => Happened::Inbound(stream),
            Ok(()) = self.desired.changed() => Happened::Desired,
            ended = self.dialling.ended() => Happened::DialEnded(ended),
            () = sleep_until(self.retry_at), if may_dial => Happened::Other,
            () = turn(&mut self.dialled) => Happened::Other,
            () = turn(&mut self.accepted) => Happened::Other,
            Some(_) = self.closing.join_next() => Happened::Other,
        }
    }

    fn may_dial(&self) -> bool {
        let idle = !self.stopped && self.connections().next().is_none() && !self.dialling.is_under_way();
        idle && self.config.connect != Connect::Listen
    }

    fn connections(&self) -> impl Iterator<Item = &Connection> {
        self.dialled.iter().chain(&self.accepted)
    }

    fn connections_mut(&mut self) -> impl Iterator<Item = &mut Connection> {
        self.dialled.iter_mut().chain(&mut self.accepted)
    }

    fn order(&mut self, order: Order) {
        match order {
            Order::BfdDown => self.connections_mut().for_each(|connection| connection.stop(&Stop::BfdDown)),
            Order::Reset(why) => {
                let had = [self.dialled.take(), self.accepted.take()];
                let ended = had.into_iter().flatten().map(Connection::reset).count();
                self.dialling.give_up();
                if ended > 0 {
                    self.failed(&why);
                }
            }
            Order::Stop(stop) => {
                self.stopped = true;
                self.dialling.give_up();
                self.connections_mut().for_each(|connection| connection.stop(&stop));
            }
            Order::Change(config) => {
                let keeps = self.config.keeps_session(&config);
                self.config = Arc::from(config);
                let config = Arc::clone(&self.config);
                if keeps {
                    let sessions = self.connections_mut().map(|connection| &mut connection.session);
                    return sessions.for_each(|session| session.reconfigure(Arc::clone(&config)));
                }
                self.dialling.give_up();
                self.connections_mut().for_each(|connection| connection.stop(&Stop::ConfigurationChange));
                self.settle();
                (self.failures, self.retry_at) = (0, Instant::now());
            }
        }
    }

    fn desire(&mut self) {
        let want = Arc::clone(self.desired.borrow_and_update().of(&self.config.name));
        self.connections_mut().for_each(|connection| connection.session.desire(Arc::clone(&want)));
    }

    fn connect(&mut self, stream: TcpStream) -> Option<Connection> {
        let want = Arc::clone(self.desired.borrow().of(&self.config.name));
        let connected = Connection::new(stream, self.local, Arc::clone(&self.config), want);
        connected.map_err(|error| self.failed(&format!("can't use the connection: {error}"))).ok()
    }

    fn inbound(&mut self, stream: TcpStream) {
        let established = self.connections().find(|c| c.session.state() == State::Established);
        let survives = established.is_some_and(|connection| !self.may_replace(connection));
        let refusal = if self.config.connect == Connect::Dial || self.stopped {
            Some(Cease::ConnectionRejected)
        } else {
            survives.then_some(Cease::Collision)
        };
        if let Some(cease) = refusal {
            tracing::debug!(peer = self.config.name, ?cease, "connection turned away");
            let message = codec::encode_notification(&Notification::cease(cease)).unwrap_or_default();
            if self.closing.len() < MAX_CLOSING {
                self.closing.spawn(connection::turn_away(stream, message));
            }
            return;
        }
        // The peer would not have opened another if it still had the old one.
        for connection in self.connections_mut().filter(|c| c.session.state() == State::Established) {
            connection.session.lost("the peer has restarted", Instant::now().into_std());
        }
        if let Some(mut old) = self.accepted.take() {
            old.stop(&Stop::Collision);
            self.leave(old);
        }
        self.settle();
        self.accepted = self.connect(stream);
    }

    /// RFC 4724 §4.2: with graceful restart a new connection is the sign that the peer has lost the old one.
    fn may_replace(&self, established: &Connection) -> bool {
        let restarts = |negotiated: &crate::status::Negotiated| {
            let is_restart = |c: &crate::Capability| matches!(c, crate::Capability::GracefulRestart { .. });
            negotiated.peer_capabilities.iter().any(is_restart)
        };
        self.config.graceful_restart.is_some() && established.session.negotiated().is_some_and(restarts)
    }

    /// Ends what lost a collision, and takes leave of what has ended.
    fn settle(&mut self) {
        if let (Some(dialled), Some(accepted)) = (&mut self.dialled, &mut self.accepted)
            && let Some(router_id) = accepted.session.peer_id().or(dialled.session.peer_id())
        {
            let us = End { asn: self.local.asn, router_id: self.local.router_id };
            let peer = End { asn: self.config.asn, router_id };
            match collision::loser(dialled.session.state(), accepted.session.state(), us, peer) {
                Some(Side::Dialled) => dialled.stop(&Stop::Collision),
                Some(Side::Accepted) => accepted.stop(&Stop::Collision),
                None => {}
            }
        }
        for side in [Side::Dialled, Side::Accepted] {
            let slot = if side == Side::Dialled { &mut self.dialled } else { &mut self.accepted };
            if let Some(ended) = slot.take_if(|connection| connection.session.end().is_some()) {
                self.ended(ended);
            }
        }
        let is_up = self.connections().any(|c| c.session.state() == State::Established);
        if is_up && self.up_since.is_none() {
            self.up_since = Some(Instant::now());
            self.dialling.give_up();
            let negotiated = self.connections().find_map(|c| c.session.negotiated().cloned());
            self.report.established(negotiated.as_ref());
        }
    }

    fn ended(&mut self, connection: Connection) {
        let why = connection.session.end().unwrap_or_default().to_owned();
        self.leave(connection);
        if self.connections().next().is_some() {
            // The other one goes on.
            tracing::debug!(peer = self.config.name, why, "connection ended");
        } else {
            self.failed(&why);
        }
    }

    /// Lets the last message of an ended connection arrive.
    fn leave(&mut self, connection: Connection) {
        if self.closing.len() < MAX_CLOSING {
            self.closing.spawn(connection.close());
        }
    }

    /// Nothing is left, and the next attempt is some time away.
    fn failed(&mut self, why: &str) {
        let was_stable = self.up_since.take().is_some_and(|since| since.elapsed() >= STABLE);
        self.failures = if was_stable { 1 } else { self.failures.saturating_add(1) };
        let chance = backoff::chance(&self.seed, self.failures.into());
        let wait = backoff::wait(self.failures, self.config.first_retry, self.config.longest_retry, chance);
        self.retry_at = Instant::now() + wait;
        let next = (self.config.connect != Connect::Listen && !self.stopped).then_some(wait);
        self.report.failed(why, next, self.failures);
    }

    fn publish(&mut self) {
        let best = self.dialled.iter().chain(&self.accepted);
        let best = best.max_by_key(|connection| connection.session.state());
        let waiting = match self.config.connect {
            _ if self.stopped => State::Idle,
            _ if self.dialling.is_under_way() => State::Connect,
            Connect::Dial => State::Idle,
            Connect::Both | Connect::Listen => State::Active,
        };
        self.report.publish(&self.config, waiting, best.map(|connection| &connection.session));
    }
}

async fn turn(connection: &mut Option<Connection>) {
    match connection {
        Some(connection) => connection.turn().await,
        None => std::future::pending().await,
    }
}

/// Connections that wait for the other end to close; more are closed at once.
const MAX_CLOSING: usize = 8;
