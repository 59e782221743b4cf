//! From results to verdicts. Pure: time comes in as an argument.
//!
//! A target is Unknown until its first pass or its `first_fall`th failure in a row: the first, unless it serves already. Then
//! `rise` passes or `fall` failures in a row turn it.
//! **Silence** runs from the first failure after a pass of any target to the next such pass. A Down verdict that is due is
//! *held* in it, and given by the pass that ends it. A whole silence, in which every target failed or which has lasted for the
//! longest of all intervals (stretched by its jitter, and its time-out), is this machine's **local failure** if 3 backends in 2
//! pools failed in it: what is held is forgotten, nothing turns and nothing is counted until a target passes; then all count
//! anew. If fewer failed, what is held is given. With fewer than 3 backends or 2 pools watched, nothing is ever held.
//! Invariant: if all fail from some moment on, no Down verdict is given from then on, unless fewer than that many fail.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use super::target::HealthState;

/// Backends that must fail together, and pools that they must be in.
const LOCAL_FAILURE_BACKENDS: usize = 3;
const LOCAL_FAILURE_POOLS: usize = 2;

/// When a target turns.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rules {
    pub(super) rise: u32,
    pub(super) fall: u32,
    /// Failures in a row that decide of a target without a verdict.
    pub(super) first_fall: u32,
    /// Within which it shows itself once: the interval at its longest, and the time-out.
    pub(super) span: Duration,
}

/// What an attempt says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    Pass,
    Fail,
    /// This machine could not ask: a failure that says nothing about the backend, and something about the machine.
    Local,
}

/// What changed at one moment.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Changes {
    pub(super) turned: Vec<(u32, HealthState)>,
    pub(super) local_failure: Option<bool>,
}

/// The counts behind one target's verdict.
#[derive(Clone, Debug)]
pub(super) struct Count {
    pub(super) state: HealthState,
    pub(super) passes: u32,
    pub(super) fails: u32,
    pub(super) held: bool,
    rules: Rules,
    backend: Arc<str>,
    pools: Vec<Arc<str>>,
    /// The silence in which it failed last.
    failed_in: u64,
}

/// All targets' verdicts, and the machine's.
#[derive(Debug, Default)]
pub(super) struct Verdicts {
    targets: Vec<Option<Count>>,
    len: usize,
    backends: Groups,
    pools: Groups,
    /// How many targets have each span.
    spans: BTreeMap<Duration, usize>,
    /// The number of this silence, or of the next, from 1: so what failed in an older one need not be looked up.
    pub(super) silence: u64,
    since: Option<Duration>,
    failed: usize,
    held: Vec<u32>,
    local_failure: bool,
    /// The set is being changed: no decision rests on a part of it.
    changing: bool,
}

impl Verdicts {
    pub(super) fn new() -> Self {
        Self { silence: 1, ..Self::default() }
    }

    /// What stands behind `id`'s verdict.
    pub(super) fn count(&self, id: u32) -> Option<&Count> {
        self.targets.get(id as usize)?.as_ref()
    }

    /// A Down verdict waits: a pass of any target would free it.
    pub(super) fn wants_confirmation(&self) -> bool {
        !self.held.is_empty()
    }

    /// Could a pass of `id` confirm that this machine reaches others: is it not down, and has it not failed in this silence?
    pub(super) fn can_confirm(&self, id: u32) -> bool {
        self.count(id).is_some_and(|t| t.state != HealthState::Down && t.failed_in != self.silence)
    }

    /// The result differs from the verdict, so the next attempt should come soon. Not in local failure: the whole machine's
    /// checks would quicken.
    pub(super) fn in_doubt(&self, id: u32, passed: bool) -> bool {
        let Some(target) = self.count(id) else { return false };
        !self.local_failure
            && match target.state {
                HealthState::Unknown => true,
                HealthState::Up => !passed,
                HealthState::Down => passed,
            }
    }

    /// When [`Verdicts::decide`] may have something to say without a further result.
    pub(super) fn deadline(&self) -> Option<Duration> {
        (!self.local_failure).then_some(self.since?)?.checked_add(self.span())
    }

    /// Adds a target; `id` must be free. The set counts as changing until [`Verdicts::decide`].
    pub(super) fn insert(&mut self, id: u32, rules: Rules, backend: Arc<str>, pools: Vec<Arc<str>>) {
        self.changing = true;
        let at = id as usize;
        if at >= self.targets.len() {
            self.targets.resize(at + 1, None);
        }
        self.len += 1;
        *self.spans.entry(rules.span).or_default() += 1;
        self.backends.join(&backend);
        pools.iter().for_each(|pool| self.pools.join(pool));
        let state = HealthState::Unknown;
        let (passes, fails, held, failed_in) = (0, 0, false, 0);
        self.targets[at] = Some(Count { state, passes, fails, held, rules, backend, pools, failed_in });
    }

    /// Takes a target out. As [`Verdicts::insert`].
    pub(super) fn remove(&mut self, id: u32) -> Option<Count> {
        self.changing = true;
        let gone = self.targets.get_mut(id as usize)?.take()?;
        self.len -= 1;
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

    /// Gives a target other rules, another backend's name or other pools; its verdict and counts stay.
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

    /// Takes a result of `id`, which ended at `now`.
    pub(super) fn result(&mut self, id: u32, outcome: Outcome, now: Duration, out: &mut Changes) {
        if self.count(id).is_none() {
            return;
        }
        match outcome {
            Outcome::Pass => self.pass(id, out),
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

    /// Ends a change of the set, and says what `now` says: a silence may be whole, or local failure no longer possible.
    pub(super) fn decide(&mut self, now: Duration, out: &mut Changes) {
        self.changing = false;
        if !self.may_hold() {
            self.end_local_failure(out);
            self.give_held(None, out);
        }
        let Some(since) = self.since.filter(|_| !self.local_failure) else { return };
        let over = now >= since.saturating_add(self.span());
        let many = self.backends.failed >= LOCAL_FAILURE_BACKENDS && self.pools.failed >= LOCAL_FAILURE_POOLS;
        if many && (over || self.failed == self.len) {
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
        if hold {
            target.held = true;
            self.held.push(id);
        } else {
            target.state = HealthState::Down;
            out.turned.push((id, HealthState::Down));
        }
    }

    /// A local failure is possible, or, while the set changes, not known to be impossible.
    fn may_hold(&self) -> bool {
        self.changing
            || (self.backends.len() >= LOCAL_FAILURE_BACKENDS && self.pools.len() >= LOCAL_FAILURE_POOLS)
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

    /// Gives every Down verdict that is held, but to `except`, which has just passed.
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

/// Backends or pools, by name, with how many targets of each there are and failed in this silence.
#[derive(Debug, Default)]
struct Groups {
    by_name: HashMap<Arc<str>, Group>,
    /// Groups with a target that failed in this silence.
    failed: usize,
}

#[derive(Debug, Default)]
struct Group {
    targets: usize,
    failed: usize,
    /// The silence that `failed` is of.
    silence: u64,
}

impl Groups {
    fn len(&self) -> usize {
        self.by_name.len()
    }

    fn join(&mut self, name: &Arc<str>) {
        self.by_name.entry(Arc::clone(name)).or_default().targets += 1;
    }

    /// `silence`: the target failed in this one.
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
