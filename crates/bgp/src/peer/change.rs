//! Another configuration for a peer whose session may be running.
//!
//! In: the configuration. Out: a session that goes on under it, or one that restarts with notice.
//! Invariant: a session ends for nothing that it can take over, and never unannounced while `notice` is above zero.
//! Not here: what follows a change of the key (`rekeyed`).
//! Source: RFC 8326 §4 (routes are marked before the session goes down); Linux takes another key of TCP MD5 on a connection that
//! is up, as many routers do: segments under the other key are lost until both ends have the same one.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::Peer;
use super::rekeyed::Rekeyed;
use crate::config::PeerConfig;
use crate::connection::Connection;
use crate::session::Stop;
use crate::status::State;

/// A session that restarts soon; its routes are marked until then.
#[derive(Debug)]
pub(super) struct Leaving {
    pub(super) until: Instant,
    /// What the next session has.
    pub(super) next: Box<PeerConfig>,
}

impl Peer {
    /// It is no peer any more: its session goes on until it is stopped, with the routes of now, marked. None follows.
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

    /// It was to go, and is a peer again.
    fn come_back(&mut self, name: &str) {
        tracing::info!(peer = name, "its session stays: it is a peer again");
        self.parting = false;
        let table = Arc::clone(self.inputs.desired.borrow().of(name));
        // Its table may not be there yet: till then it keeps what it has.
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
                tracing::info!(
                    peer = next.name,
                    "its session stays: the change that would have restarted it is taken back"
                );
                self.say();
            }
            return self.take_over(*next);
        }
        self.take_over(self.config.until_restart(&next));
        let is_known = self.both.iter().any(|one| one.session.counts().announced_any());
        let notice = if is_known { next.times.notice } else { Duration::ZERO };
        let until = self.leaving.take().map_or(Instant::now() + notice, |leaving| leaving.until);
        tracing::info!(change = "router", peer = next.name, after = ?notice, "its configuration has changed: the session restarts");
        self.leaving = Some(Leaving { until, next });
        self.say();
    }

    /// Whether no session of now needs to end for it.
    fn can_take_over(&self, next: &PeerConfig) -> bool {
        let from_there =
            |one: &Connection| next.local_address.is_none_or(|address| address == one.local_address);
        let moves = self.both.dialled.iter().any(|one| is_up(one) && !from_there(one));
        !self.both.iter().any(is_up) || (!moves && self.config.keeps_session(next))
    }

    /// Ends the session whose time has come; the next one has the new configuration.
    pub(super) fn restart_when_due(&mut self) {
        if self.leaving.as_ref().is_some_and(|leaving| leaving.until <= Instant::now()) {
            self.attempts.is_restarting = true;
            self.both.iter_mut().for_each(|connection| connection.stop(&Stop::ConfigurationChange));
            self.settle();
        }
    }

    /// A session that is up goes on under `config`. What is not up yet begins anew, unless it is the same attempt.
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
