//! Applies a new configuration to a peer whose session may be running.
//!
//! The session continues with the new configuration if possible. Otherwise, its routes carry the
//! graceful-shutdown community for the `notice` time, and then the session restarts (RFC 8326 §4).
//!
//! Linux and many routers accept a new TCP MD5 key for an established connection, and drop segments
//! that are signed with the wrong key until both sides have the same key. The module `rekeyed`
//! watches the session after a key change.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::Peer;
use super::rekeyed::Rekeyed;
use crate::config::PeerConfig;
use crate::connection::Connection;
use crate::session::Stop;
use crate::status::State;

/// A scheduled restart of the session. Until the restart, the routes of the session carry the
/// graceful-shutdown community.
#[derive(Debug)]
pub(super) struct Leaving {
    pub(super) until: Instant,
    /// The configuration of the next session.
    pub(super) next: Box<PeerConfig>,
}

impl Peer {
    /// Removes the peer. The session of the peer continues until the peer is stopped, with the
    /// graceful-shutdown community on all current routes. No further session is started.
    pub(super) fn part(&mut self, name: &str) {
        (self.parting, self.leaving) = (true, None);
        self.leave_beside();
        self.config = Arc::new(PeerConfig { name: name.to_owned(), ..PeerConfig::clone(&self.config) });
        self.report.part(name, self.config.times.notice);
        self.attempts.dialling.give_up();
        let attempts = self.both.iter_mut().filter(|connection| !is_up(connection));
        attempts.for_each(|connection| connection.stop(&Stop::Deconfigured));
        self.say();
    }

    /// Cancels the removal of the peer.
    fn come_back(&mut self, name: &str) {
        // log: A reload added a router again before the removal of the router was complete. The
        // session continues without interruption.
        tracing::info!(peer = name, "BGP peer removal canceled");
        self.parting = false;
        let table = Arc::clone(self.inputs.desired.borrow().of(name));
        // Until the route table of the peer is published, the peer keeps its current routes.
        if !table.is_empty() {
            self.want = table;
        }
        self.say();
    }

    pub(super) fn change(&mut self, next: Box<PeerConfig>) {
        if self.parting {
            self.come_back(&next.name);
        }
        if self.can_take_over(&next) {
            if self.leaving.take().is_some() {
                // log: A reload reverted a change before the change had restarted the session. The
                // session continues without interruption.
                tracing::info!(peer = next.name, "BGP session restart canceled");
                self.say();
            }
            return self.take_over(*next);
        }
        self.take_over(self.config.until_restart(&next));
        let is_known = self.both.iter().any(|one| one.session.counts().announced_any());
        let notice = if is_known { next.times.notice } else { Duration::ZERO };
        let until = self.leaving.take().map_or(Instant::now() + notice, |leaving| leaving.until);
        // log: A reload changed the router's configuration in a way that needs a new session. The
        // routes carry the graceful-shutdown community (RFC 8326) for the time in `after`, then the
        // session restarts.
        tracing::info!(change = "router", peer = next.name, after = ?notice, "BGP session restart scheduled");
        self.leaving = Some(Leaving { until, next });
        self.say();
    }

    /// Returns `true` if `next` can be applied without ending a session.
    fn can_take_over(&self, next: &PeerConfig) -> bool {
        let from_there =
            |one: &Connection| next.local_address.is_none_or(|address| address == one.local_address);
        let moves = self.both.dialled.iter().any(|one| is_up(one) && !from_there(one));
        !self.both.iter().any(is_up) || (!moves && self.config.keeps_session(next))
    }

    /// Ends the session if its restart is due. The next session uses the new configuration.
    pub(super) fn restart_when_due(&mut self) {
        if self.leaving.as_ref().is_some_and(|leaving| leaving.until <= Instant::now()) {
            self.attempts.is_restarting = true;
            self.both.iter_mut().for_each(|connection| connection.stop(&Stop::ConfigurationChange));
            self.settle();
        }
    }

    /// Applies `config`. An established session continues. Connections that are not established are
    /// closed, unless they can continue with `config`.
    fn take_over(&mut self, config: PeerConfig) {
        let same_attempt = self.config.connects_alike(&config);
        let other_key = self.config.md5 != config.md5;
        self.config = Arc::new(config);
        self.report.rename(&self.config.name);
        self.redial_beside();
        let config = Arc::clone(&self.config);
        for connection in self.both.iter_mut() {
            if is_up(connection) || same_attempt {
                connection.reconfigure(&config);
            } else {
                connection.stop(&Stop::ConfigurationChange);
            }
        }
        if same_attempt {
            return;
        }
        self.attempts.dialling.give_up();
        self.settle();
        if other_key && self.both.iter().any(is_up) {
            let now = Instant::now().into_std();
            self.both.iter_mut().for_each(|connection| connection.session.keep_alive(now));
            self.leave_beside();
            self.rekeyed = Some(Rekeyed::begin());
        }
        if self.both.iter().next().is_none() {
            (self.attempts.failures, self.attempts.retry_at) = (0, Instant::now());
        }
    }
}

fn is_up(connection: &Connection) -> bool {
    connection.session.state() == State::Established
}
