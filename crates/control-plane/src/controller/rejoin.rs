//! Servers of keyed pools that were away: each is emptied before it serves again, as others were given its keys meanwhile.
//!
//! In: which memberships serve, by checks, orders and files; what came of emptying servers. Out: the servers to be emptied now
//! ([`Controller::flushes`]), and the memberships that wait for it (`RuntimeState::flushing`).
//! Away is who was down, drained, ordered to have no weight or given none by the file; and who joins a pool that served already.
//! At the balancer's start nobody was, nor is when a pool is new: no key was given to another before.
//! Not here: how a server is emptied, when it is tried again (`health`).
//! Invariant: what was stored in a server before it went away is gone before a key is given to it.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use forwarder::Snapshot;
use health::{Flush, Flushed, HealthState};

use super::emptied::Emptied;
use super::plan::Plan;
use super::{Controller, Known};
use compile::{CompileError, RuntimeState, SlotKey};

/// Those that were away.
#[derive(Debug, Default)]
pub(super) struct Rejoins {
    /// They must be emptied before they serve, once they could.
    pub(super) away: HashSet<SlotKey>,
    /// Those of them that could.
    flushing: BTreeMap<SlotKey, Flushing>,
    numbers: u64,
}

/// A membership that serves once its server is empty.
#[derive(Clone, Debug)]
pub struct Flushing {
    /// Why the last attempt failed.
    pub last_error: Option<String>,
    left: Vec<Flush>,
    /// Of all, those that are empty too.
    ports: BTreeSet<u16>,
}

impl Plan {
    /// Those of `away` that wait for nothing but to be emptied.
    pub(super) fn flushing(&self, away: &HashSet<SlotKey>, runtime_state: &RuntimeState) -> HashSet<SlotKey> {
        let is_ready = |key: &&SlotKey| {
            runtime_state.health(key) == HealthState::Up && !self.is_away(key, runtime_state)
        };
        away.iter().filter(is_ready).cloned().collect()
    }

    /// Whether others have a membership's keys for another reason than that it must be emptied. Before its first result: only by
    /// orders and weights.
    fn is_away(&self, key: &SlotKey, runtime_state: &RuntimeState) -> bool {
        let has_weight = |one: &Emptied| {
            one.weights.iter().all(|(weight, own)| runtime_state.weight_of_all(key, *weight, *own) > 0)
        };
        runtime_state.health(key) == HealthState::Down
            || runtime_state.override_of(key).mode.is_some()
            || !self.emptied().get(key).is_some_and(has_weight)
    }
}

impl Known {
    /// Those that are away in `plan`, which follows this one.
    pub(super) fn away_in(&self, plan: &Plan, runtime_state: &RuntimeState) -> HashSet<SlotKey> {
        let before = self.plan.emptied();
        let pools: BTreeSet<&Arc<str>> = before.values().flat_map(|one| &one.keyed).collect();
        // By whichever VIPs: checks through them may have come or gone.
        let known: HashSet<SlotKey> =
            self.index.memberships().iter().map(|one| one.key.membership()).collect();
        let left: HashSet<SlotKey> = self.away.iter().map(SlotKey::membership).collect();
        let was_away = |key: &SlotKey, one: &Emptied| match before.contains_key(key) {
            true => self.away.contains(key),
            false if known.contains(&key.membership()) => left.contains(&key.membership()),
            false => one.keyed.iter().any(|pool| pools.contains(pool)),
        };
        let away =
            plan.emptied().iter().filter(|(key, one)| was_away(key, one) || plan.is_away(key, runtime_state));
        away.map(|(key, _)| key.clone()).collect()
    }
}

impl Controller {
    /// The servers that are to be emptied now.
    #[must_use]
    pub fn flushes(&self) -> Vec<Flush> {
        self.rejoins.flushing.values().flat_map(|one| &one.left).copied().collect()
    }

    /// How far a membership is with being emptied; `None`: it need not be, or could not serve yet.
    #[must_use]
    pub fn flushing(&self, key: &SlotKey) -> Option<&Flushing> {
        self.rejoins.flushing.get(key)
    }

    /// The membership whose server is to be emptied under that number, and how far it is.
    #[must_use]
    pub fn flushed_for(&self, number: u64) -> Option<(&SlotKey, &Flushing)> {
        let has = |one: &Flushing| one.left.iter().any(|flush| flush.number == number);
        self.rejoins.flushing.iter().find(|(_, one)| has(one))
    }

    /// Takes in what came of emptying servers. `None`: no membership serves for it.
    ///
    /// # Errors
    /// [`CompileError::Snapshot`]: `current` is not what [`Controller::finish`] made last, under whatever states.
    pub fn flushed(
        &mut self,
        outcomes: &[Flushed],
        current: &Snapshot,
        now: Duration,
    ) -> Result<Option<Snapshot>, CompileError> {
        let mut empty = Vec::new();
        for Flushed { number, result } in outcomes {
            let Some(key) = self.flushed_for(*number).map(|(key, _)| key.clone()) else { continue };
            let Some(one) = self.rejoins.flushing.get_mut(&key) else { continue };
            match result {
                Ok(()) => one.left.retain(|flush| flush.number != *number),
                Err(error) => one.last_error = Some(error.clone()),
            }
            if one.left.is_empty() {
                self.rejoins.away.remove(&key);
                empty.push(key);
            }
        }
        self.restate(empty.iter(), current, now)
    }

    /// Looks at memberships whose verdict or order may be another.
    pub(super) fn note_absence(&mut self, keys: &[&SlotKey]) {
        let mut away = std::mem::take(&mut self.rejoins.away);
        let emptied = keys.iter().filter(|key| self.plan.emptied().contains_key(key));
        away.extend(
            emptied.filter(|key| self.plan.is_away(key, &self.runtime_state)).map(|key| (*key).clone()),
        );
        self.follow_absence(away);
    }

    /// These are away: those of them that could serve are to be emptied, each anew if it could not meanwhile.
    pub(super) fn follow_absence(&mut self, away: HashSet<SlotKey>) {
        self.runtime_state.flushing = self.plan.flushing(&away, &self.runtime_state);
        let Rejoins { flushing, numbers, .. } = &mut self.rejoins;
        let emptied = self.plan.emptied();
        flushing.retain(|key, one| {
            let ports = emptied.get(key).map(|emptied| &emptied.ports);
            self.runtime_state.flushing.contains(key) && ports == Some(&one.ports)
        });
        for (key, one) in self.runtime_state.flushing.iter().filter_map(|key| emptied.get_key_value(key)) {
            flushing.entry(key.clone()).or_insert_with(|| Flushing::begin(key, one, numbers));
        }
        self.rejoins.away = away;
    }
}

impl Flushing {
    /// Its servers, each under a number of its own.
    fn begin(key: &SlotKey, one: &Emptied, numbers: &mut u64) -> Self {
        let (interval, timeout) = one.pace();
        let flush = |port: &u16| {
            *numbers += 1;
            Flush { number: *numbers, server: SocketAddr::new(key.address, *port), interval, timeout }
        };
        Self { last_error: None, left: one.ports.iter().map(flush).collect(), ports: one.ports.clone() }
    }
}
