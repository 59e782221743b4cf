//! A peer from which nothing comes: what the kernel drops says why, long before a timer ends the attempt.
//!
//! In: its counters at the begin of an attempt, and now. Out: a reason for the status and the log. The attempt goes on: the
//! counters are not this peer's alone.

use std::time::Duration;

use tokio::time::Instant;

use super::Peer;
use crate::config::PeerConfig;
use crate::drops::Drops;
use crate::status::State;

/// Since the last attempt began.
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
    /// Whether an attempt is under way in which the peer has said nothing yet.
    pub(super) fn waits_for_a_word(&self) -> bool {
        let is_silent = self.both.iter().all(|one| one.session.state() == State::OpenSent);
        is_silent && (self.attempts.dialling.is_under_way() || self.both.iter().next().is_some())
    }

    pub(super) fn look_for_a_reason(&mut self) {
        self.silence.look_at = Instant::now() + LOOK_EVERY;
        if let Some(hint) = self.silence.hint(&self.config) {
            self.report.suspect(&format!("nothing heard yet: {hint}"));
        }
    }
}

/// The kernel sends its first segment again after as long.
const LOOK_EVERY: Duration = Duration::from_secs(1);
