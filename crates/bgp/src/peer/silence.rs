//! Looks for the cause when a peer does not respond. The kernel's counters of dropped segments
//! often show the reason before the connection attempt times out.
//!
//! The module compares the counters with their values at the start of the attempt, and reports the
//! reason in the status and the log. The attempt continues nevertheless, because other connections
//! on this machine can also change the counters.

use std::time::Duration;

use tokio::time::Instant;

use super::Peer;
use crate::config::PeerConfig;
use crate::drops::Drops;
use crate::status::State;

/// The dropped-segment counters at the start of the last attempt.
#[derive(Debug)]
pub(super) struct Silence {
    before: Drops,
    pub(super) look_at: Instant,
}

impl Silence {
    pub(super) fn begin() -> Self {
        Self { before: Drops::now(), look_at: Instant::now() + LOOK_EVERY }
    }

    pub(super) fn hint(&self, config: &PeerConfig) -> Option<&'static str> {
        Drops::now().hint_since(self.before, config)
    }
}

impl Peer {
    /// Returns `true` if an attempt is in progress but the peer has not sent a message yet.
    pub(super) fn waits_for_a_word(&self) -> bool {
        let is_silent = self.both.iter().all(|one| one.session.state() == State::OpenSent);
        is_silent && (self.attempts.dialling.is_under_way() || self.both.iter().next().is_some())
    }

    pub(super) fn look_for_a_reason(&mut self) {
        self.silence.look_at = Instant::now() + LOOK_EVERY;
        if let Some(hint) = self.silence.hint(&self.config) {
            self.report.suspect(&format!("no message from the peer yet; {hint}"));
        }
    }
}

/// The interval between checks. This interval is the time after which the kernel retransmits the
/// first segment of a connection.
const LOOK_EVERY: Duration = Duration::from_secs(1);
