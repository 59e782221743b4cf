//! Applies those events of the health thread that are not health states: advice from agents and
//! results of flushes.

use control_plane::{log_advice, log_flushed};
use health::{Advice, Flushed, TargetKey};

use super::Daemon;
use super::lifecycle::HandOver;

impl Daemon {
    pub(super) fn take_advice(&mut self, advised: &[(TargetKey, Advice)]) {
        let now = self.lifecycle.elapsed();
        match self.controller.advise(advised, &self.publisher.current(), now) {
            Ok(Some(snapshot)) => self.publish_states(snapshot),
            Ok(None) => {}
            // log: New weights or drains that agents requested could not be applied. The changes
            // are applied together with the next change that an agent requests. Report a bug if the
            // line is repeated.
            Err(error) => tracing::error!(%error, "advice from agents not applied"),
        }
        log_advice(&self.controller, advised);
    }

    pub(super) fn take_flushed(&mut self, outcomes: &[Flushed]) {
        if self.lifecycle.hand_over == HandOver::Frozen {
            // The new process sends its requests to other servers until it has flushed these
            // servers itself.
            self.checks.hold(outcomes);
            return;
        }
        log_flushed(&self.controller, outcomes);
        match self.controller.flushed(outcomes, &self.publisher.current(), self.lifecycle.elapsed()) {
            Ok(Some(snapshot)) => self.publish_states(snapshot),
            Ok(None) => {}
            // log: The result of a cache flush could not be applied, so the backend stays out of
            // service until the next attempt. Report a bug if the line is repeated.
            Err(error) => tracing::error!(%error, "flush results not applied"),
        }
    }
}
