//! Computes health states from the results of attempts. The module does not read the clock. Callers
//! pass the current time.
//!
//! A target is Unknown until one of its attempts passes, or until [`Rules::first_fall`] consecutive
//! attempts have failed. Later, a target becomes Up when [`Rules::rise`] consecutive attempts have
//! passed, and Down when [`Rules::fall`] consecutive attempts have failed. The documentation of
//! [`HealthStates`] has the rules for failures of this machine's own network.
//!
//! If all targets start to fail at the same time, the network of this machine is assumed to have
//! failed, and no target becomes Down. With fewer than 3 backends or 2 pools, this rule does not
//! apply.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use super::target::HealthState;

/// The thresholds of a local failure: the minimum number of backends and the minimum number of
/// pools that must fail together.
const LOCAL_FAILURE_BACKENDS: usize = 3;
const LOCAL_FAILURE_POOLS: usize = 2;

/// The thresholds at which a target changes its state.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rules {
    pub(super) rise: u32,
    pub(super) fall: u32,
    /// The number of consecutive failures after which a target in the state Unknown becomes Down.
    pub(super) first_fall: u32,
    /// The time within which the target is probed at least once. The span is the longest interval
    /// plus the timeout.
    pub(super) span: Duration,
    /// `false` if attempts can pass without the network. A pass of such a target does not end a
    /// silence (see [`HealthStates`]), so its failures during a silence are not counted either.
    pub(super) answers: bool,
    /// `true` if a change to Down is held during a silence. The field is also `true` for exec
    /// checks, because a fault in the network of this machine can make a check program fail.
    pub(super) holds: bool,
}

/// The result of an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    Pass,
    /// The attempt passed without a response. The attempt is treated as a pass of the target, but
    /// does not show that the network of this machine works.
    Silent,
    Fail,
    /// This machine could not send the probe. Such a failure is not treated as a failure of the
    /// backend, but contributes to the detection of a local failure.
    Local,
}

/// Unpublished changes to health states and to the local failure.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Changes {
    pub(super) turned: Vec<(u32, HealthState)>,
    pub(super) local_failure: Option<bool>,
}

/// The health state of one target, and the counts from which the state is computed.
#[derive(Clone, Debug)]
pub(super) struct Count {
    pub(super) state: HealthState,
    pub(super) passes: u32,
    pub(super) fails: u32,
    pub(super) held: bool,
    rules: Rules,
    backend: Arc<str>,
    pools: Vec<Arc<str>>,
    /// The number of the silence during which the target last failed. The documentation of
    /// [`HealthStates`] defines a silence.
    failed_in: u64,
}

/// The health states of all targets, and the detection of local failures.
///
/// A *silence* starts at the first failure after a pass, and ends at the next pass of any target. A
/// change to Down that is due during a silence is *held*, and is applied when the silence ends.
///
/// A silence is complete if every target that could end it has failed, or if the silence has
/// lasted for the longest interval (including jitter and timeout). If at least 3 backends in 2
/// pools have failed in a complete silence, there is a *local failure*. In a local failure, held
/// states are discarded, and results are ignored until a target passes. If fewer backends or
/// pools have failed, the held states are applied. If there are fewer than 3 backends or 2 pools
/// in total, no state is held.
///
/// For some targets, such as targets of exec checks, a pass does not show that the network works
/// ([`Rules::answers`] is `false`). A pass of such a target does not end a silence, and its
/// failures do not contribute to a local failure. If all targets have `answers` set to `false`, no
/// state is held.
#[derive(Debug, Default)]
pub(super) struct HealthStates {
    targets: Vec<Option<Count>>,
    backends: Groups,
    pools: Groups,
    /// The number of targets whose [`Rules::answers`] is `true`.
    answering: usize,
    /// The number of targets for each value of [`Rules::span`].
    spans: BTreeMap<Duration, usize>,
    /// The number of the current silence, or of the next silence if there is no current silence.
    /// Silences are numbered from 1. Because each silence has a new number, failures in earlier
    /// silences are ignored and need no cleanup.
    pub(super) silence: u64,
    since: Option<Duration>,
    failed: usize,
    held: Vec<u32>,
    local_failure: bool,
    /// `true` while the set of targets changes. No decision is made then, because it would be based
    /// on an incomplete set.
    changing: bool,
}

impl HealthStates {
    pub(super) fn new() -> Self {
        Self { silence: 1, ..Self::default() }
    }

    /// Returns the counts of a target.
    pub(super) fn count(&self, id: u32) -> Option<&Count> {
        self.targets.get(id as usize)?.as_ref()
    }

    /// Returns `true` if a Down state is held. If any target passes, the held state is applied.
    pub(super) fn wants_confirmation(&self) -> bool {
        !self.held.is_empty()
    }

    /// Returns `true` if a passed check of `id` could show that the network of this machine works.
    /// The target must not be down, and must not have failed in this silence.
    pub(super) fn can_confirm(&self, id: u32) -> bool {
        self.count(id).is_some_and(|t| t.state != HealthState::Down && t.failed_in != self.silence)
    }

    /// Returns `true` if the last result differs from the state of the target, so that the next
    /// attempt should follow soon. Returns `false` in a local failure, because all targets would
    /// otherwise be probed faster.
    pub(super) fn in_doubt(&self, id: u32, passed: bool) -> bool {
        let Some(target) = self.count(id) else { return false };
        !self.local_failure
            && match target.state {
                HealthState::Unknown => true,
                HealthState::Up => !passed,
                HealthState::Down => passed,
            }
    }

    /// Returns the time at which [`HealthStates::decide`] may change states without another result.
    pub(super) fn deadline(&self) -> Option<Duration> {
        (!self.local_failure).then_some(self.since?)?.checked_add(self.span())
    }

    /// Adds a target. `id` must not be in use. Until the next call of [`HealthStates::decide`], the
    /// set of targets is treated as incomplete.
    pub(super) fn insert(&mut self, id: u32, rules: Rules, backend: Arc<str>, pools: Vec<Arc<str>>) {
        self.changing = true;
        let at = id as usize;
        if at >= self.targets.len() {
            self.targets.resize(at + 1, None);
        }
        self.answering += usize::from(rules.answers);
        *self.spans.entry(rules.span).or_default() += 1;
        self.backends.join(&backend);
        pools.iter().for_each(|pool| self.pools.join(pool));
        let state = HealthState::Unknown;
        let (passes, fails, held, failed_in) = (0, 0, false, 0);
        self.targets[at] = Some(Count { state, passes, fails, held, rules, backend, pools, failed_in });
    }

    /// Removes a target. Until the next call of [`HealthStates::decide`], the set of targets is
    /// treated as incomplete.
    pub(super) fn remove(&mut self, id: u32) -> Option<Count> {
        self.changing = true;
        let gone = self.targets.get_mut(id as usize)?.take()?;
        self.answering -= usize::from(gone.rules.answers);
        if let Some(count) = self.spans.get_mut(&gone.rules.span) {
            *count -= 1;
            if *count == 0 {
                self.spans.remove(&gone.rules.span);
            }
        }
        if gone.held {
            self.held.retain(|held| *held != id);
        }
        let failed = gone.failed_in == self.silence;
        self.failed -= usize::from(failed);
        let silence = failed.then_some(self.silence);
        self.backends.leave(&gone.backend, silence);
        gone.pools.iter().for_each(|pool| self.pools.leave(pool, silence));
        Some(gone)
    }

    /// Changes the thresholds, backend name and pools of a target. The state and the counts of the
    /// target are not changed.
    pub(super) fn regroup(&mut self, id: u32, rules: Rules, backend: Arc<str>, pools: Vec<Arc<str>>) {
        let Some(old) = self.remove(id) else { return };
        let (held, failed) = (old.held, old.failed_in == self.silence);
        self.insert(id, rules, backend, pools);
        if let Some(target) = self.targets.get_mut(id as usize).and_then(Option::as_mut) {
            (target.state, target.passes, target.fails, target.held) =
                (old.state, old.passes, old.fails, held);
        }
        if held {
            self.held.push(id);
        }
        if failed {
            self.mark_failed(id);
        }
    }

    /// Adds a result of the target `id` that arrived at `now`.
    pub(super) fn result(&mut self, id: u32, outcome: Outcome, now: Duration, out: &mut Changes) {
        let Some(answers) = self.count(id).map(|count| count.rules.answers) else { return };
        match outcome {
            Outcome::Pass => self.pass(id, out),
            Outcome::Silent => self.pass_in_silence(id, out),
            Outcome::Fail | Outcome::Local if !answers => {
                if outcome == Outcome::Fail && !self.local_failure {
                    self.fail(id, out);
                    if self.count(id).is_some_and(|count| count.held) {
                        self.since.get_or_insert(now);
                    }
                }
            }
            Outcome::Fail | Outcome::Local => {
                self.since.get_or_insert(now);
                self.mark_failed(id);
                if outcome == Outcome::Fail && !self.local_failure {
                    self.fail(id, out);
                }
                if !self.changing {
                    self.decide(now, out);
                }
            }
        }
    }

    /// Completes a change of the target set, and makes the decisions that are due at `now`. For
    /// example, the time without a passing check may now be long enough for a local failure, or too
    /// few targets may be left for one.
    pub(super) fn decide(&mut self, now: Duration, out: &mut Changes) {
        self.changing = false;
        if !self.may_hold() {
            self.end_local_failure(out);
            self.give_held(None, out);
        }
        let Some(since) = self.since.filter(|_| !self.local_failure) else { return };
        let over = now >= since.saturating_add(self.span());
        let many = self.backends.failed >= LOCAL_FAILURE_BACKENDS && self.pools.failed >= LOCAL_FAILURE_POOLS;
        if many && (over || self.failed == self.answering) {
            self.local_failure = true;
            out.local_failure = Some(true);
            for id in std::mem::take(&mut self.held) {
                if let Some(target) = self.targets[id as usize].as_mut() {
                    target.held = false;
                }
            }
        } else if over {
            self.give_held(None, out);
            self.end_silence();
        }
    }

    fn pass(&mut self, id: u32, out: &mut Changes) {
        self.end_local_failure(out);
        self.give_held(Some(id), out);
        self.end_silence();
        self.count_pass(id, out);
    }

    fn pass_in_silence(&mut self, id: u32, out: &mut Changes) {
        if self.local_failure {
            return;
        }
        self.held.retain(|held| *held != id);
        if let Some(target) = self.targets[id as usize].as_mut() {
            target.held = false;
        }
        self.count_pass(id, out);
    }

    fn count_pass(&mut self, id: u32, out: &mut Changes) {
        let Some(target) = self.targets[id as usize].as_mut() else { return };
        target.fails = 0;
        target.passes = target.passes.saturating_add(1);
        let up = match target.state {
            HealthState::Unknown => true,
            HealthState::Up => false,
            HealthState::Down => target.passes >= target.rules.rise,
        };
        if up {
            target.state = HealthState::Up;
            out.turned.push((id, HealthState::Up));
        }
    }

    fn fail(&mut self, id: u32, out: &mut Changes) {
        let hold = self.may_hold();
        let Some(target) = self.targets[id as usize].as_mut() else { return };
        target.passes = 0;
        target.fails = target.fails.saturating_add(1);
        let due = match target.state {
            HealthState::Unknown => target.fails >= target.rules.first_fall,
            HealthState::Up => target.fails >= target.rules.fall,
            HealthState::Down => false,
        };
        if !due || target.held {
            return;
        }
        if hold && target.rules.holds {
            target.held = true;
            self.held.push(id);
        } else {
            target.state = HealthState::Down;
            out.turned.push((id, HealthState::Down));
        }
    }

    /// Returns `true` if a local failure is possible and can end. While the set changes, this is
    /// assumed.
    fn may_hold(&self) -> bool {
        self.changing
            || (self.answering > 0
                && self.backends.len() >= LOCAL_FAILURE_BACKENDS
                && self.pools.len() >= LOCAL_FAILURE_POOLS)
    }

    fn mark_failed(&mut self, id: u32) {
        let Some(target) = self.targets[id as usize].as_mut() else { return };
        if target.failed_in == self.silence {
            return;
        }
        target.failed_in = self.silence;
        self.failed += 1;
        self.backends.fail(&target.backend, self.silence);
        target.pools.iter().for_each(|pool| self.pools.fail(pool, self.silence));
    }

    /// Applies all held Down states, except for the target `except`, which has just passed.
    fn give_held(&mut self, except: Option<u32>, out: &mut Changes) {
        for id in std::mem::take(&mut self.held) {
            let Some(target) = self.targets[id as usize].as_mut() else { continue };
            target.held = false;
            if Some(id) != except {
                target.state = HealthState::Down;
                out.turned.push((id, HealthState::Down));
            }
        }
    }

    fn end_local_failure(&mut self, out: &mut Changes) {
        if std::mem::take(&mut self.local_failure) {
            out.local_failure = Some(false);
            for target in self.targets.iter_mut().flatten() {
                (target.passes, target.fails) = (0, 0);
            }
        }
    }

    fn end_silence(&mut self) {
        if self.since.take().is_some() {
            self.silence += 1;
            (self.failed, self.backends.failed, self.pools.failed) = (0, 0, 0);
        }
    }

    fn span(&self) -> Duration {
        self.spans.last_key_value().map_or(Duration::ZERO, |(span, _)| *span)
    }
}

/// The targets grouped by backend or by pool. Each group has a name, and counts its targets and the
/// targets that failed in the current silence.
#[derive(Debug, Default)]
struct Groups {
    by_name: HashMap<Arc<str>, Group>,
    /// The number of groups with a failed target in this silence.
    failed: usize,
}

#[derive(Debug, Default)]
struct Group {
    targets: usize,
    failed: usize,
    /// The number of the silence for which `failed` is valid.
    silence: u64,
}

impl Groups {
    fn len(&self) -> usize {
        self.by_name.len()
    }

    fn join(&mut self, name: &Arc<str>) {
        self.by_name.entry(Arc::clone(name)).or_default().targets += 1;
    }

    /// Removes a target from a group. `silence` is the number of the silence in which the target
    /// has failed, if that is the current silence.
    fn leave(&mut self, name: &Arc<str>, silence: Option<u64>) {
        let Some(group) = self.by_name.get_mut(name) else { return };
        if silence.is_some() {
            group.failed -= 1;
            self.failed -= usize::from(group.failed == 0);
        }
        group.targets -= 1;
        if group.targets == 0 {
            self.by_name.remove(name);
        }
    }

    fn fail(&mut self, name: &Arc<str>, silence: u64) {
        let Some(group) = self.by_name.get_mut(name) else { return };
        if group.silence != silence {
            (group.silence, group.failed) = (silence, 0);
        }
        group.failed += 1;
        self.failed += usize::from(group.failed == 1);
    }
}

#[cfg(test)]
mod tests;
