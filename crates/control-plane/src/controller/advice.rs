//! Applies advice from agents. An agent on a backend can request a weight or a drain.
//!
//! The health thread limits how often the weight of a target changes. This module computes the
//! advice for each pool member, and requests a rebuild of the tables if a weight has changed.

use std::collections::HashMap;
use std::time::Duration;

use compile::{CompileError, SlotKey};
use forwarder::Snapshot;
use health::{Advice, TargetKey};

use super::Controller;

impl Controller {
    /// Applies advice from agents. Returns the snapshot to publish, or `None` if no slot state and
    /// no fallback changed. The tables are rebuilt later.
    ///
    /// # Errors
    /// Returns [`CompileError::Snapshot`] if `current` is not derived from the last snapshot that
    /// [`Controller::finish`] returned.
    pub fn advise(
        &mut self,
        advised: &[(TargetKey, Advice)],
        current: &Snapshot,
        now: Duration,
    ) -> Result<Option<Snapshot>, CompileError> {
        let of_plan = |(target, _): &&(TargetKey, Advice)| !self.plan.memberships_of(target).is_empty();
        self.advice.extend(advised.iter().filter(of_plan).cloned());
        self.follow_advice();
        let touched = advised.iter().flat_map(|(target, _)| self.plan.memberships_of(target));
        let touched: Vec<SlotKey> = touched.cloned().collect();
        self.restate(touched.iter(), current, now)
    }

    /// Returns the last advice from each agent.
    pub fn advice(&self) -> impl Iterator<Item = (&TargetKey, Advice)> {
        self.advice.iter().map(|(target, advice)| (target, *advice))
    }

    /// Computes the advice for each pool member. If a pool member has several agents, the lowest
    /// weight applies, and each agent can drain the pool member.
    pub(super) fn follow_advice(&mut self) {
        let mut advice: HashMap<SlotKey, Advice> = HashMap::new();
        for (target, new) in &self.advice {
            for key in self.plan.memberships_of(target) {
                let merged = advice.entry(key.clone()).or_insert(*new);
                merged.drains |= new.drains;
                merged.tenths = merged.tenths.min(new.tenths);
            }
        }
        self.stale |= advice != self.runtime_state.advice;
        self.runtime_state.advice = advice;
    }
}
