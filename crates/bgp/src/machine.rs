//! The BGP state machine of one connection. Only this file uses `rustbgpd-fsm`.
//!
//! The machine takes the events of one TCP connection, and returns the messages to send, the timers
//! to set and the request to close the connection. Each connection has its own instance. The module
//! `peer` handles backoff and collisions.
//!
//! This module adds what `rustbgpd-fsm` lacks: it corrects the OPEN message, converts a Cease
//! message to a hard reset if the peer would otherwise keep the routes, and adds the subcode of the
//! current state to FSM errors.
//!
//! See RFC 4271 §8, and RFC 4724, 6608 and 8538.

use std::time::Duration;

use rustbgpd_fsm as fsm;

use crate::codec;
use crate::config::PeerConfig;
use crate::message::{Capability, Identity, Notification, Open};
use crate::prefix::Family;
use crate::status::{Negotiated, State};

/// An event of the connection.
#[derive(Clone, Debug)]
pub(crate) enum Event {
    Connected,
    Open(Open),
    Keepalive,
    Update,
    Refresh(Family),
    Notification(Notification),
    HoldExpired,
    KeepaliveDue,
    Lost,
    /// A stop by the operator, with the data of the Cease message (RFC 9003).
    Stop(Vec<u8>),
    BfdDown,
}

/// An action for the session. Actions must be carried out in the order in which they are returned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Output {
    SendOpen(Open),
    SendKeepalive,
    SendNotification(Notification),
    /// Sets a timer. `None` stops the timer.
    Timer(Timer, Option<Duration>),
    /// Closes the connection after all messages are sent.
    Close,
    State(State),
    Established(Box<Negotiated>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Timer {
    Hold,
    Keepalive,
}

#[derive(Debug)]
pub(crate) struct Machine {
    inner: fsm::Session,
    config: PeerConfig,
    /// The peer's OPEN, or `None` before it is received.
    pub(crate) peer_open: Option<Open>,
    hard_reset: bool,
}

impl Machine {
    pub(crate) fn new(local: Identity, config: &PeerConfig) -> Self {
        let mut foreign = fsm::PeerConfig::new(local.asn, config.asn, local.router_id);
        foreign.hold_time = u16::try_from(config.times.hold.as_secs()).unwrap_or(u16::MAX);
        foreign.families = config.families.iter().map(|&family| codec::foreign_family(family)).collect();
        // A peer that announces no families supports IPv4 by default. This default must be disabled
        // if IPv4 is not configured.
        foreign.disable_ipv4_unicast = !config.families.contains(&Family::Ipv4);
        if let Some(restart) = config.graceful_restart {
            foreign.graceful_restart = true;
            foreign.gr_restart_time = restart.seconds;
        }
        let mut inner = fsm::Session::new(foreign);
        // `ManualStart` makes `rustbgpd-fsm` request a connection. The request is ignored, because
        // the connection already exists.
        drop(inner.handle_event(fsm::Event::ManualStart));
        Self { inner, config: config.clone(), peer_open: None, hard_reset: false }
    }

    pub(crate) fn state(&self) -> State {
        own_state(self.inner.state())
    }

    pub(crate) fn handle(&mut self, event: Event) -> Vec<Output> {
        let before = self.state();
        let foreign = match event {
            Event::Connected => fsm::Event::TcpConnectionConfirmed,
            Event::Open(open) => {
                let foreign = fsm::Event::OpenReceived(codec::foreign_open(&open));
                self.peer_open.get_or_insert(open);
                foreign
            }
            Event::Keepalive => fsm::Event::KeepaliveReceived,
            Event::Update => fsm::Event::UpdateReceived,
            Event::Refresh(family) => {
                let (afi, safi) = codec::foreign_family(family);
                fsm::Event::RouteRefreshReceived { afi, safi }
            }
            Event::Notification(n) => fsm::Event::NotificationReceived(codec::foreign_notification(&n)),
            Event::HoldExpired => fsm::Event::HoldTimerExpires,
            Event::KeepaliveDue => fsm::Event::KeepaliveTimerExpires,
            Event::Lost => fsm::Event::TcpConnectionFails,
            Event::Stop(data) => fsm::Event::ManualStop { reason: Some(data.into()) },
            Event::BfdDown => fsm::Event::BfdDown,
        };
        let actions = self.inner.handle_event(foreign);
        actions.into_iter().filter_map(|action| self.own(action, before)).collect()
    }

    /// Ends the connection with a NOTIFICATION that no event of `rustbgpd-fsm` can cause. The
    /// machine must not be used afterwards.
    pub(crate) fn refuse(&mut self, notification: Notification) -> Vec<Output> {
        let notification = self.as_peer_wants(notification);
        vec![Output::SendNotification(notification), Output::Close, Output::State(State::Idle)]
    }

    fn own(&mut self, action: fsm::Action, before: State) -> Option<Output> {
        Some(match action {
            fsm::Action::SendOpen(open) => Output::SendOpen(self.correct(codec::own_open(&open))),
            fsm::Action::SendKeepalive => Output::SendKeepalive,
            fsm::Action::SendNotification(notification) => {
                let own = with_subcode(codec::own_notification(&notification), before);
                Output::SendNotification(self.as_peer_wants(own))
            }
            fsm::Action::StartTimer(timer, seconds) => {
                Output::Timer(own_timer(timer)?, Some(Duration::from_secs(seconds.into())))
            }
            fsm::Action::StopTimer(timer) => Output::Timer(own_timer(timer)?, None),
            fsm::Action::CloseTcpConnection => Output::Close,
            fsm::Action::StateChanged { new, .. } => Output::State(own_state(new)),
            fsm::Action::SessionEstablished(negotiated) => {
                // The flag is saved here, because `rustbgpd-fsm` no longer has it when a Cease is
                // sent.
                self.hard_reset = negotiated.peer_notification_gr;
                Output::Established(Box::new(self.negotiated(&negotiated)))
            }
            _ => return None,
        })
    }

    /// Corrects the OPEN of `rustbgpd-fsm`, which always offers RFC 8950 and always sets the
    /// restart bits to zero.
    fn correct(&self, mut open: Open) -> Open {
        open.capabilities.retain(|capability| *capability != Capability::ExtendedNextHop);
        if self.config.next_hops.extended {
            open.capabilities.push(Capability::ExtendedNextHop);
        }
        for capability in &mut open.capabilities {
            if let (Capability::GracefulRestart { restarting, families, .. }, Some(restart)) =
                (capability, self.config.graceful_restart)
            {
                *restarting = restart.restarting;
                families.iter_mut().for_each(|(_, forwarding)| *forwarding = restart.forwarding);
            }
        }
        open
    }

    /// Converts a Cease to a hard reset if the peer negotiated the N bit. With that bit, a peer
    /// keeps the routes after a plain Cease for the restart time, although this speaker is gone
    /// (RFC 8538 §3).
    fn as_peer_wants(&self, notification: Notification) -> Notification {
        if self.hard_reset { notification.into_hard_reset() } else { notification }
    }

    fn negotiated(&self, foreign: &fsm::NegotiatedSession) -> Negotiated {
        let capabilities = self.peer_open.as_ref().map(|open| open.capabilities.clone()).unwrap_or_default();
        let families = foreign.negotiated_families.iter();
        let families: Vec<Family> =
            families.filter_map(|&(afi, safi)| codec::own_family(afi, safi)).collect();
        Negotiated {
            asn: foreign.peer_asn,
            router_id: foreign.peer_router_id,
            hold: Duration::from_secs(foreign.hold_time.into()),
            four_byte_asn: foreign.four_octet_as,
            extended_next_hop: self.config.next_hops.extended
                && capabilities.contains(&Capability::ExtendedNextHop),
            route_refresh: foreign.peer_route_refresh,
            enhanced_route_refresh: foreign.peer_enhanced_route_refresh,
            hard_reset: foreign.peer_notification_gr,
            graceful_restart: self.config.graceful_restart.is_some() && restarts(&capabilities),
            refused: self.refused(&families, &capabilities),
            families,
            peer_capabilities: capabilities,
        }
    }

    /// Returns the capabilities that this speaker offered but the peer did not offer.
    fn refused(&self, families: &[Family], capabilities: &[Capability]) -> Vec<&'static str> {
        let lacks = |family| self.config.families.contains(&family) && !families.contains(&family);
        let extended = self.config.next_hops.extended && !capabilities.contains(&Capability::ExtendedNextHop);
        let restart = self.config.graceful_restart.is_some() && !restarts(capabilities);
        let all = [
            (lacks(Family::Ipv4), "ipv4 unicast"),
            (lacks(Family::Ipv6), "ipv6 unicast"),
            (extended, "extended next hop"),
            (restart, "graceful restart"),
        ];
        all.into_iter().filter(|(is_refused, _)| *is_refused).map(|(_, name)| name).collect()
    }
}

fn restarts(capabilities: &[Capability]) -> bool {
    capabilities.iter().any(|one| matches!(one, Capability::GracefulRestart { .. }))
}

/// Sets the subcode of an FSM error, which identifies the state in which the unexpected message
/// arrived (RFC 6608).
fn with_subcode(notification: Notification, state: State) -> Notification {
    let subcode = match (notification.code, notification.subcode, state) {
        (Notification::FSM_ERROR, 0, State::OpenSent) => 1,
        (Notification::FSM_ERROR, 0, State::OpenConfirm) => 2,
        (Notification::FSM_ERROR, 0, State::Established) => 3,
        (_, subcode, _) => subcode,
    };
    Notification { subcode, ..notification }
}

fn own_timer(timer: fsm::TimerType) -> Option<Timer> {
    match timer {
        fsm::TimerType::Hold => Some(Timer::Hold),
        fsm::TimerType::Keepalive => Some(Timer::Keepalive),
        // The task of the peer handles the connect-retry timer.
        _ => None,
    }
}

fn own_state(state: fsm::SessionState) -> State {
    match state {
        fsm::SessionState::Idle => State::Idle,
        fsm::SessionState::Connect => State::Connect,
        fsm::SessionState::Active => State::Active,
        fsm::SessionState::OpenSent => State::OpenSent,
        fsm::SessionState::OpenConfirm => State::OpenConfirm,
        fsm::SessionState::Established => State::Established,
    }
}
