//! A key that was changed in a running session: whether the router still has that session.
//!
//! A router that restarts the session for a new key of its own (bird, FRR) does not say so: its last words are signed with the old
//! one. So while nothing is acknowledged under our new key, the router is dialled beside the session, and that connection speaks
//! BGP: a router that has the session turns it away, one that takes it has no other.
//! Where we may not dial, a router that calls again has no session if it also ignores what TCP repeats to it in between.
//! Invariant: no span of time decides. A segment that was lost between two keys is repeated later each time, by TCP's own timer.
//! Source: RFC 4271 §6.8 (a connection beside an established session is closed).

use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpStream;
use tokio::time::Instant;

use super::Peer;
use crate::config::Connect;
use crate::connection::Connection;
use crate::session::Stop;
use crate::status::State;

/// The key is another one, and the router may not have acknowledged anything under it.
#[derive(Debug)]
pub(super) struct Rekeyed {
    pub(super) look_at: Instant,
    /// Dialled under the new key, beside the session.
    pub(super) beside: Option<Connection>,
    /// How many segments TCP had repeated when the router called under the new key for the first time.
    called_at: Option<u32>,
}

impl Rekeyed {
    pub(super) fn begin() -> Self {
        Self { look_at: Instant::now() + TRY_EVERY, beside: None, called_at: None }
    }
}

impl Peer {
    pub(super) fn look_after_key(&mut self) {
        self.settle_beside();
        let now = Instant::now();
        let Some(rekeyed) = self.rekeyed.as_mut().filter(|rekeyed| rekeyed.look_at <= now) else { return };
        rekeyed.look_at = now + TRY_EVERY;
        if self.both.iter().all(Connection::is_flushed) {
            self.attempts.dialling.give_up();
            self.leave_beside();
        } else if self.config.connect != Connect::Listen && rekeyed.beside.is_none() {
            self.attempts.dialling.start(&self.config);
        }
    }

    /// What is dialled beside the session is to have the configuration of now.
    pub(super) fn redial_beside(&mut self) {
        if let Some(beside) = self.rekeyed.as_mut().and_then(|rekeyed| rekeyed.beside.as_mut()) {
            beside.stop(&Stop::ConfigurationChange);
        }
    }

    /// The router has answered beside the session.
    pub(super) fn answered_beside(&mut self, stream: TcpStream) {
        let may_be_gone = self.leaving.is_none() && !self.both.iter().all(Connection::is_flushed);
        if let Some(rekeyed) = self.rekeyed.as_mut().filter(|_| may_be_gone) {
            let (config, want) = (Arc::clone(&self.config), Arc::clone(&self.want));
            rekeyed.beside = Connection::new(stream, self.local, config, want).ok();
        }
    }

    /// The router calls, so it has our key: what TCP repeats from now on reaches a session that it has.
    pub(super) fn called_beside(&mut self) {
        let unacknowledged = self.both.iter().filter(|connection| !connection.is_flushed());
        let Some(repeated) = unacknowledged.map(Connection::repeated_segments).max() else { return };
        let Some(rekeyed) = &mut self.rekeyed else { return };
        match rekeyed.called_at {
            None => (rekeyed.called_at, rekeyed.look_at) = (Some(repeated), Instant::now()),
            Some(before) if repeated >= before + REPEATED_IN_VAIN => self.session_is_gone(),
            Some(_) => {}
        }
    }

    /// Nothing is asked beside the session any more.
    pub(super) fn leave_beside(&mut self) {
        if let Some(Rekeyed { beside: Some(mut beside), .. }) = self.rekeyed.take() {
            beside.stop(&Stop::Collision);
            self.leave(beside);
        }
    }

    fn settle_beside(&mut self) {
        let is_decided =
            |one: &mut Connection| one.session.end().is_some() || one.session.state() == State::Established;
        let beside = self.rekeyed.as_mut().and_then(|rekeyed| rekeyed.beside.take_if(is_decided));
        match beside {
            Some(ended) if ended.session.end().is_some() => self.leave(ended),
            Some(established) => {
                self.session_is_gone();
                self.both.dialled = Some(established);
                self.settle();
                self.say();
            }
            None => {}
        }
    }

    fn session_is_gone(&mut self) {
        let now = Instant::now().into_std();
        self.attempts.is_restarting = true;
        let why = "the router has the new key, and no session under it";
        self.both.iter_mut().for_each(|connection| connection.session.lost(why, now));
        self.settle();
    }
}

/// How often a router that acknowledges nothing is dialled: less, and a segment on its way would cost it a call for nothing.
const TRY_EVERY: Duration = Duration::from_secs(3);
/// The last of them says that TCP has waited for the acknowledgement of the one before it.
const REPEATED_IN_VAIN: u32 = 2;
