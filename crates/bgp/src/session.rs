//! The BGP session of one connection, which does not use sockets or read the clock.
//!
//! The caller passes received bytes, the time and commands. The session returns the bytes to write,
//! the next deadline and the reason why it has ended. The module `peer` opens connections and
//! resolves collisions, and the module `machine` contains the state machine.
//!
//! A session buffers one message from the peer and a few outgoing messages, even if the peer sends
//! too much or does not read. After its end, a session ignores all input.
//!
//! See RFC 4271 §6 and §8, RFC 7606 and RFC 9687.

use std::collections::{BTreeMap, HashSet};
use std::hash::{BuildHasher, RandomState};
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::codec::{self, Dialect, Malformed};
use crate::config::PeerConfig;
use crate::inbox::Inbox;
use crate::machine::{Event, Machine, Output, Timer};
use crate::message::{
    Capability, Cease, Identity, Message, Notification, Open, Refresh, RefreshKind, Update,
};
use crate::outbound::{NextHops, Outbound};
use crate::outbox::Outbox;
use crate::prefix::{Family, Prefix};
use crate::route::Routes;
use crate::status::{Blocked, Counts, Negotiated, State};
use crate::words;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Stop {
    /// A shutdown by the operator, with a message for the peer.
    Shutdown(String),
    Deconfigured,
    ConfigurationChange,
    BfdDown,
    Collision,
}

#[derive(Debug)]
pub(crate) struct Session {
    pub(crate) config: Arc<PeerConfig>,
    local: Identity,
    local_address: IpAddr,
    machine: Machine,
    inbox: Inbox,
    outbox: Outbox,
    outbound: Option<Outbound>,
    want: Arc<Routes>,
    pub(crate) negotiated: Option<Negotiated>,
    counts: Counts,
    heard: HashSet<u64>,
    hasher: RandomState,
    timers: Timers,
    end: Option<String>,
    /// `true` if this speaker ended the session without a fault.
    pub(crate) is_planned: bool,
}

/// The deadlines of the timers, each of which is `None` while the timer is stopped.
#[derive(Clone, Copy, Debug, Default)]
struct Timers {
    open: Option<Instant>,
    hold: Option<Instant>,
    keepalive: Option<Instant>,
}

impl Session {
    /// Creates a session on an open connection. The OPEN message is then ready to be written.
    pub(crate) fn new(
        local: Identity,
        config: Arc<PeerConfig>,
        local_address: IpAddr,
        want: Arc<Routes>,
        now: Instant,
    ) -> Self {
        let mut session = Self {
            local,
            local_address,
            machine: Machine::new(local, &config),
            inbox: Inbox::default(),
            outbox: Outbox::default(),
            outbound: None,
            want,
            negotiated: None,
            counts: Counts::default(),
            heard: HashSet::new(),
            hasher: RandomState::new(),
            timers: Timers { open: Some(now + config.times.open), ..Timers::default() },
            end: None,
            is_planned: false,
            config,
        };
        session.feed(Event::Connected, now);
        session
    }

    pub(crate) fn state(&self) -> State {
        if self.end.is_some() { State::Idle } else { self.machine.state() }
    }

    /// Returns the router ID in the peer's OPEN.
    pub(crate) fn peer_id(&self) -> Option<Ipv4Addr> {
        self.machine.peer_open.as_ref().map(|open| open.router_id)
    }

    /// Returns the reason why the session ended, or `None` while it runs. After the end, the
    /// remaining output should still be written.
    pub(crate) fn end(&self) -> Option<&str> {
        self.end.as_deref()
    }

    /// Returns `true` if the connection has accepted all output of the session.
    pub(crate) fn has_said_all(&self) -> bool {
        self.outbound.as_ref().is_none_or(|outbound| outbound.pending == 0) && self.outbox.bytes().is_empty()
    }

    pub(crate) fn counts(&self) -> Counts {
        let Some(outbound) = &self.outbound else { return self.counts };
        Counts {
            announced_v4: outbound.announced(Family::Ipv4),
            announced_v6: outbound.announced(Family::Ipv6),
            unannounceable: outbound.unannounceable,
            pending: outbound.pending,
            unsent_bytes: self.outbox.bytes().len(),
            ..self.counts
        }
    }

    /// Returns the routes that the peer has after reading all messages encoded so far.
    pub(crate) fn routes(&self) -> Arc<Routes> {
        self.outbound.as_ref().map(|outbound| Arc::clone(&outbound.sent)).unwrap_or_default()
    }

    /// Returns the configured families whose routes this session cannot carry.
    pub(crate) fn blocked(&self) -> BTreeMap<Family, Blocked> {
        let (Some(negotiated), Some(outbound)) = (&self.negotiated, &self.outbound) else {
            return BTreeMap::new();
        };
        let blocked = |family: &Family| match outbound.next_hops.of(*family) {
            _ if !negotiated.families.contains(family) => Some((*family, Blocked::NotNegotiated)),
            None => Some((*family, Blocked::NoNextHop)),
            Some(_) => None,
        };
        self.config.families.iter().filter_map(blocked).collect()
    }

    pub(crate) fn received(&mut self, bytes: &[u8], now: Instant) {
        self.inbox.push(bytes);
        while self.end.is_none() {
            match self.inbox.next(self.dialect()) {
                Ok(Some(message)) => self.message(message, now),
                Ok(None) => break,
                Err(Malformed { notification, what }) => {
                    let why = format!("malformed message in {}: {what}", self.state());
                    self.refuse(why, notification, now);
                }
            }
        }
    }

    pub(crate) fn lost(&mut self, why: &str, now: Instant) {
        if self.end.is_none() {
            self.end_with(format!("connection lost in {}: {why}", self.state()));
            self.feed(Event::Lost, now);
            self.outbox.clear();
        }
    }

    /// Returns the time at which [`Self::tick`] must be called next.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        let stuck = self.outbox.stuck_since.map(|since| since + self.send_hold());
        let Timers { open, hold, keepalive } = self.timers;
        let timers = [open, hold, keepalive, stuck];
        timers.into_iter().flatten().filter(|_| self.end.is_none()).min()
    }

    pub(crate) fn tick(&mut self, now: Instant) {
        let due = |at: Option<Instant>| at.is_some_and(|at| at <= now);
        if self.end.is_some() {
            return;
        }
        let stuck = self.outbox.stuck_since.map(|since| since + self.send_hold());
        if due(stuck) {
            // RFC 9687 §3: no NOTIFICATION is sent, because the peer would not read it.
            self.end_with(format!(
                "send hold time expired: the peer read no data for {:?}",
                self.send_hold()
            ));
            self.outbox.clear();
        } else if due(self.timers.open) {
            let (limit, state) = (self.config.times.open, self.state());
            self.end_with(format!("no session within {limit:?}: the connection is still in {state}"));
            self.feed(Event::HoldExpired, now);
        } else if due(self.timers.hold) {
            let silence =
                self.negotiated.as_ref().map_or(self.config.times.hold, |negotiated| negotiated.hold);
            self.end_with(format!("hold time expired: no message for {silence:?}"));
            self.feed(Event::HoldExpired, now);
        } else if due(self.timers.keepalive) {
            self.feed(Event::KeepaliveDue, now);
        }
    }

    /// Returns the send hold time, which must be longer than the hold time (RFC 9687 §4.4). The
    /// hold time may have been negotiated under an earlier configuration.
    fn send_hold(&self) -> Duration {
        let agreed = self.negotiated.as_ref().map(|negotiated| negotiated.hold * 2);
        self.config.times.send_hold.max(agreed.unwrap_or_default())
    }

    /// Returns the bytes to write now, or an empty slice. Routes are encoded only when the buffer
    /// has room.
    pub(crate) fn output(&mut self, now: Instant) -> &[u8] {
        while self.end.is_none() && self.outbox.has_room() {
            match self.outbound.as_mut().and_then(Outbound::next) {
                Some(Ok(bytes)) => self.send(&bytes, now),
                // log: Some routes are not announced, because their attributes do not fit into one
                // UPDATE. Use fewer communities. If the number is within the limits, report a bug.
                Some(Err(error)) => tracing::error!(peer = self.config.name, %error, "routes not announced"),
                None => break,
            }
        }
        self.outbox.bytes()
    }

    pub(crate) fn written(&mut self, count: usize, now: Instant) {
        self.outbox.written(count, now);
    }

    pub(crate) fn desire(&mut self, want: Arc<Routes>) {
        if let Some(outbound) = &mut self.outbound {
            outbound.desire(Arc::clone(&want));
        }
        self.want = want;
    }

    /// Applies a configuration that the session can continue with ([`PeerConfig::keeps_session`]).
    pub(crate) fn reconfigure(&mut self, config: Arc<PeerConfig>) {
        self.config = config;
        if let (Some(outbound), Some(negotiated)) = (&mut self.outbound, &self.negotiated) {
            outbound.use_next_hops(NextHops::new(&self.config, negotiated, self.local_address));
        }
    }

    /// Sends a KEEPALIVE now, so that the peer's TCP has data to acknowledge.
    pub(crate) fn keep_alive(&mut self, now: Instant) {
        if self.state() == State::Established {
            self.send_encoded(codec::encode_keepalive(), now);
        }
    }

    pub(crate) fn stop(&mut self, stop: &Stop, now: Instant) {
        if self.end.is_some() {
            return;
        }
        self.is_planned = *stop != Stop::BfdDown;
        let (why, cease) = match stop {
            Stop::Shutdown(text) => {
                self.end_with(format!("shut down: {text}"));
                return self.feed(Event::Stop(crate::message::shutdown_data(text)), now);
            }
            Stop::BfdDown => {
                self.end_with("BFD reports that the peer is down".into());
                return self.feed(Event::BfdDown, now);
            }
            Stop::Deconfigured => ("the peer was removed", Cease::PeerDeconfigured),
            Stop::ConfigurationChange => {
                ("the peer's configuration changed", Cease::OtherConfigurationChange)
            }
            Stop::Collision => ("replaced by another connection with the peer", Cease::Collision),
        };
        self.refuse(why.into(), Notification::cease(cease), now);
    }

    fn dialect(&self) -> Dialect {
        Dialect {
            local_asn: self.local.asn,
            external: self.local.asn != self.config.asn,
            four_byte: self.negotiated.as_ref().is_none_or(|negotiated| negotiated.four_byte_asn),
        }
    }

    fn message(&mut self, message: Message, now: Instant) {
        self.counts.messages_received += 1;
        match message {
            Message::Open(open) => {
                tracing::debug!(peer = self.config.name, ?open, "OPEN received");
                self.feed(Event::Open(open), now);
            }
            Message::Keepalive => self.feed(Event::Keepalive, now),
            Message::Update(update) => {
                self.feed(Event::Update, now);
                self.update(&update, now);
            }
            Message::Refresh(refresh) => self.refresh(refresh, now),
            Message::Notification(notification) => {
                let own = notification.refused_asn() == Some(self.local.asn);
                let hint =
                    if own { ", because it refuses our AS number and expects another one" } else { "" };
                self.end_with(format!("the peer ended the session: {notification}{hint}"));
                self.feed(Event::Notification(notification), now);
            }
        }
    }

    /// Counts the prefixes of an UPDATE and drops them.
    fn update(&mut self, update: &Update, now: Instant) {
        if self.end.is_some() {
            return;
        }
        self.counts.ignored_prefixes += update.announced.len() as u64;
        if let Some(what) = &update.tolerated {
            self.counts.tolerated_errors += 1;
            if self.counts.tolerated_errors == 1 {
                // log: A router sent an UPDATE with an error that does not end the session (RFC
                // 7606). The load balancer ignores the router's routes anyway. Report the error to
                // the operator of the router. Further errors are counted in `tolerated_errors` and
                // not logged.
                tracing::warn!(peer = self.config.name, why = what, "malformed UPDATE tolerated");
            }
        }
        let Some(most) = self.config.max_prefixes else { return };
        let hash = |prefix: &Prefix| self.hasher.hash_one(prefix);
        update.withdrawn.iter().for_each(|prefix| _ = self.heard.remove(&hash(prefix)));
        for prefix in &update.announced {
            self.heard.insert(hash(prefix));
            if self.heard.len() > most as usize {
                let why = format!("the peer announces more than {most} prefixes");
                return self.refuse(why, Notification::cease(Cease::MaximumPrefixes), now);
            }
        }
    }

    fn refresh(&mut self, refresh: Refresh, now: Instant) {
        // A request for a family that was not negotiated is ignored (RFC 2918 §4), but restarts the
        // hold timer.
        self.feed(Event::Refresh(refresh.family.unwrap_or(Family::Ipv4)), now);
        if let (Some(outbound), Some(family), RefreshKind::Request) =
            (&mut self.outbound, refresh.family, refresh.kind)
        {
            self.counts.refreshes += 1;
            outbound.refresh(family);
        }
    }

    fn refuse(&mut self, why: String, notification: Notification, now: Instant) {
        self.end_with(why);
        let outputs = self.machine.refuse(notification);
        self.carry_out(outputs, now);
    }

    /// Sets the reason for the end. Only the first reason is kept.
    fn end_with(&mut self, why: String) {
        self.end.get_or_insert(why);
    }

    fn feed(&mut self, event: Event, now: Instant) {
        let outputs = self.machine.handle(event);
        self.carry_out(outputs, now);
    }

    fn carry_out(&mut self, outputs: Vec<Output>, now: Instant) {
        for output in outputs {
            match output {
                Output::SendOpen(open) => self.send_encoded(codec::encode_open(&open), now),
                Output::SendKeepalive => self.send_encoded(codec::encode_keepalive(), now),
                Output::SendNotification(notification) => {
                    self.end_with(self.explain(&notification));
                    self.outbox.drop_unstarted();
                    self.send_encoded(codec::encode_notification(&notification), now);
                }
                Output::Timer(timer, after) => {
                    let at = after.map(|after| now + after);
                    match timer {
                        Timer::Hold => self.timers.hold = at,
                        Timer::Keepalive => self.timers.keepalive = at,
                    }
                }
                Output::Close => self.end_with(format!("connection closed in {}", self.state())),
                Output::State(state) => {
                    tracing::debug!(peer = self.config.name, %state, "BGP session state changed");
                }
                Output::Established(negotiated) => self.established(*negotiated),
            }
        }
    }

    /// Returns the reason for a NOTIFICATION that the state machine sends, with details from the
    /// peer's OPEN.
    fn explain(&self, notification: &Notification) -> String {
        let open = self.machine.peer_open.as_ref();
        match (notification.code, notification.subcode, open) {
            (2, 2, Some(open)) => {
                format!("AS mismatch: the peer reports AS {}, expected {}", open.asn(), self.config.asn)
            }
            (2, 3, Some(open)) => format!("the peer's router ID {} is not acceptable", open.router_id),
            (2, 6, Some(open)) => {
                format!("the peer's hold time of {} s is not acceptable", open.hold_seconds)
            }
            (2, 7, Some(open)) => format!("no common family: the peer offers {}", families(open)),
            _ => format!("session ended by this side in {}: {notification}", self.state()),
        }
    }

    fn established(&mut self, negotiated: Negotiated) {
        self.timers.open = None;
        let next_hops = NextHops::new(&self.config, &negotiated, self.local_address);
        self.negotiated = Some(negotiated.clone());
        self.outbound = Some(Outbound::new(self.dialect(), next_hops, &negotiated, Arc::clone(&self.want)));
    }

    fn send_encoded(&mut self, bytes: Result<Vec<u8>, codec::Unencodable>, now: Instant) {
        match bytes {
            Ok(bytes) => self.send(&bytes, now),
            Err(error) => self.end_with(error.to_string()),
        }
    }

    fn send(&mut self, bytes: &[u8], now: Instant) {
        if !bytes.is_empty() {
            self.counts.messages_sent += 1;
            self.outbox.push(bytes, now);
        }
    }
}

/// Returns the supported families that an OPEN announces, as text.
fn families(open: &Open) -> String {
    let of = |capability: &Capability| match capability {
        Capability::Multiprotocol(family) => Some(*family),
        _ => None,
    };
    let offered: Vec<Family> = open.capabilities.iter().filter_map(of).collect();
    if offered.is_empty() { "neither ipv4 nor ipv6".to_owned() } else { words::list(&offered) }
}

/// The minimum duration of a stable session. After a stable session, the backoff starts again at
/// the first wait.
pub(crate) const STABLE: Duration = Duration::from_secs(10);

#[cfg(test)]
mod tests;
