//! Checks that the router still has the session after a change to the MD5 key.
//!
//! bird and FRR restart the session when their key changes. These routers sign the last messages of
//! the old session with the old key, so this speaker never receives these messages. Until the
//! router acknowledges data under the new key, this module opens a second connection to the router
//! and sends an OPEN. A router that still has the session rejects the connection (RFC 4271 §6.8). A
//! router that no longer has the session accepts the connection.
//!
//! If this speaker may not open connections, it counts the segments that TCP retransmits after the
//! router has connected. If the router connects again without acknowledging these segments, the
//! session is lost. A fixed timeout is not possible, because TCP retransmits at increasing
//! intervals.

use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpStream;
use tokio::time::Instant;

use super::Peer;
use crate::config::Connect;
use crate::connection::Connection;
use crate::session::Stop;
use crate::status::State;

/// The state of the check, from the key change until the router acknowledges data under the new
/// key.
#[derive(Debug)]
pub(super) struct Rekeyed {
    pub(super) look_at: Instant,
    /// A second connection, dialed with the new key while the session exists.
    pub(super) beside: Option<Connection>,
    /// The number of segments that TCP had retransmitted when the router first connected with the
    /// new key.
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

    /// Closes the second connection, because a new one must use the current configuration.
    pub(super) fn redial_beside(&mut self) {
        if let Some(beside) = self.rekeyed.as_mut().and_then(|rekeyed| rekeyed.beside.as_mut()) {
            beside.stop(&Stop::ConfigurationChange);
        }
    }

    /// Handles a second connection that the router has accepted.
    pub(super) fn answered_beside(&mut self, stream: TcpStream) {
        let may_be_gone = self.leaving.is_none() && !self.both.iter().all(Connection::is_flushed);
        if let Some(rekeyed) = self.rekeyed.as_mut().filter(|_| may_be_gone) {
            let (config, want) = (Arc::clone(&self.config), Arc::clone(&self.want));
            rekeyed.beside = Connection::new(stream, self.local, config, want).ok();
        }
    }

    /// Handles a connection from the router, which has the new key. If the router still had the
    /// session, it would acknowledge the segments that TCP retransmits from now on.
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

    /// Closes the second connection and ends the check.
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
        let why = "the router has the new MD5 key but no longer has the session";
        self.both.iter_mut().for_each(|connection| connection.session.lost(why, now));
        self.settle();
    }
}

/// The interval between attempts to open a second connection. The interval is long enough for data
/// in transit to be acknowledged.
const TRY_EVERY: Duration = Duration::from_secs(3);
/// The number of retransmissions after which the session is considered lost. When TCP sends the
/// second retransmission, it has already waited long enough for an acknowledgment of the first
/// retransmission.
const REPEATED_IN_VAIN: u32 = 2;
