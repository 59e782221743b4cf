//! Flushes memcached servers of keyed pools after they were unavailable. A server is flushed before
//! it receives requests again.
//!
//! While a server was unavailable, other servers received its keys, so its stored values may be
//! outdated. A pool member (one backend in one leaf pool) is treated as unavailable if it was down
//! or drained, if it had weight 0, or if it was newly added to a pool that was already in use. In a
//! new pool and at startup, every pool member is treated as available.
//!
//! [`Controller::flushes`] returns the servers to flush. `RuntimeState::flushing` contains the pool
//! members whose servers have not been flushed yet. Invariant: before a server receives keys again,
//! the values that it stored before it became unavailable are deleted. `health` sends the flush and
//! schedules retries.

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

/// The pool members that were unavailable and have not been flushed since then.
#[derive(Debug, Default)]
pub(super) struct Rejoins {
    /// The pool members whose servers must be flushed before they receive requests.
    pub(super) unavailable: HashSet<SlotKey>,
    /// The pool members that go into service as soon as their servers are flushed.
    flushing: BTreeMap<SlotKey, Flushing>,
    numbers: u64,
}

/// The flush progress of one pool member.
#[derive(Clone, Debug)]
pub struct Flushing {
    /// The error of the last failed flush attempt.
    pub last_error: Option<String>,
    left: Vec<Flush>,
    /// All ports of the server to flush, including ports that were already flushed.
    ports: BTreeSet<u16>,
}

impl Plan {
    /// Returns the pool members in `unavailable` that need only a flush to go into service.
    pub(super) fn flushing(
        &self,
        unavailable: &HashSet<SlotKey>,
        runtime_state: &RuntimeState,
    ) -> HashSet<SlotKey> {
        let is_ready = |key: &&SlotKey| {
            runtime_state.health(key) == HealthState::Up && !self.is_away(key, runtime_state)
        };
        unavailable.iter().filter(is_ready).cloned().collect()
    }

    /// Returns `true` if the pool member cannot be in service, so that other members receive its
    /// keys. A pending flush is not considered. If the health state is still unknown, only an
    /// override or a weight of 0 makes the result `true`.
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
    /// Returns the pool members that will be unavailable or not yet flushed under the next plan.
    pub(super) fn unavailable_in(&self, plan: &Plan, runtime_state: &RuntimeState) -> HashSet<SlotKey> {
        let before = self.plan.emptied();
        let pools: BTreeSet<&Arc<str>> = before.values().flat_map(|one| &one.keyed).collect();
        // The VIPs in the keys are not compared, because the reload may have added or removed
        // checks through VIPs.
        let known: HashSet<SlotKey> =
            self.index.memberships().iter().map(|one| one.key.membership()).collect();
        let left: HashSet<SlotKey> = self.unavailable.iter().map(SlotKey::membership).collect();
        let was_away = |key: &SlotKey, one: &Emptied| match before.contains_key(key) {
            true => self.unavailable.contains(key),
            false if known.contains(&key.membership()) => left.contains(&key.membership()),
            false => one.keyed.iter().any(|pool| pools.contains(pool)),
        };
        let unavailable =
            plan.emptied().iter().filter(|(key, one)| was_away(key, one) || plan.is_away(key, runtime_state));
        unavailable.map(|(key, _)| key.clone()).collect()
    }
}

impl Controller {
    /// Returns the flushes that must be sent, one for each port of each server.
    #[must_use]
    pub fn flushes(&self) -> Vec<Flush> {
        self.rejoins.flushing.values().flat_map(|one| &one.left).copied().collect()
    }

    /// Returns the flush progress of a pool member. Returns `None` if the pool member needs no
    /// flush, or if it is unavailable for another reason.
    #[must_use]
    pub fn flushing(&self, key: &SlotKey) -> Option<&Flushing> {
        self.rejoins.flushing.get(key)
    }

    /// Returns the pool member to which the flush with this number belongs.
    #[must_use]
    pub fn flushed_for(&self, number: u64) -> Option<(&SlotKey, &Flushing)> {
        let has = |one: &Flushing| one.left.iter().any(|flush| flush.number == number);
        self.rejoins.flushing.iter().find(|(_, one)| has(one))
    }

    /// Applies the results of flushes. Returns the snapshot to publish, or `None` if no pool member
    /// went into service.
    ///
    /// # Errors
    /// Returns [`CompileError::Snapshot`] if `current` is not derived from the last snapshot that
    /// [`Controller::finish`] returned.
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
                self.rejoins.unavailable.remove(&key);
                empty.push(key);
            }
        }
        self.restate(empty.iter(), current, now)
    }

    /// Returns the pool members whose servers were unavailable and have not been flushed since
    /// then.
    pub(crate) fn unflushed(&self) -> impl Iterator<Item = &SlotKey> {
        self.rejoins.unavailable.iter()
    }

    /// Replaces the set of pool members that must be flushed: `is_unflushed` returns whether a pool
    /// member is in the new set. Pool members that are still unavailable are added. Returns the
    /// snapshot to publish, or `None` if no slot state changed.
    ///
    /// # Errors
    /// Returns [`CompileError::Snapshot`] if `current` is not derived from the last snapshot that
    /// [`Controller::finish`] returned.
    pub(crate) fn take_unflushed(
        &mut self,
        is_unflushed: impl Fn(&SlotKey) -> bool,
        current: &Snapshot,
        now: Duration,
    ) -> Result<Option<Snapshot>, CompileError> {
        let emptied: Vec<SlotKey> = self.plan.emptied().keys().cloned().collect();
        self.follow_absence(emptied.iter().filter(|key| is_unflushed(key)).cloned().collect());
        self.restate(emptied.iter(), current, now)
    }

    /// Marks those pool members in `keys` as unavailable that can no longer be in service.
    pub(super) fn note_absence(&mut self, keys: &[&SlotKey]) {
        let mut unavailable = std::mem::take(&mut self.rejoins.unavailable);
        let emptied = keys.iter().filter(|key| self.plan.emptied().contains_key(key));
        unavailable.extend(
            emptied.filter(|key| self.plan.is_away(key, &self.runtime_state)).map(|key| (*key).clone()),
        );
        self.follow_absence(unavailable);
    }

    /// Replaces the set of unavailable pool members, and starts flushes for those that only need a
    /// flush. If a pool member became unavailable during its flush, the flush is restarted later.
    pub(super) fn follow_absence(&mut self, unavailable: HashSet<SlotKey>) {
        self.runtime_state.flushing = self.plan.flushing(&unavailable, &self.runtime_state);
        let Rejoins { flushing, numbers, .. } = &mut self.rejoins;
        let emptied = self.plan.emptied();
        flushing.retain(|key, one| {
            let ports = emptied.get(key).map(|emptied| &emptied.ports);
            self.runtime_state.flushing.contains(key) && ports == Some(&one.ports)
        });
        for (key, one) in self.runtime_state.flushing.iter().filter_map(|key| emptied.get_key_value(key)) {
            flushing.entry(key.clone()).or_insert_with(|| Flushing::begin(key, one, numbers));
        }
        self.rejoins.unavailable = unavailable;
    }
}

impl Flushing {
    /// Creates one flush per port, each with a unique number.
    fn begin(key: &SlotKey, one: &Emptied, numbers: &mut u64) -> Self {
        let (interval, timeout) = one.pace();
        let flush = |port: &u16| {
            *numbers += 1;
            Flush { number: *numbers, server: SocketAddr::new(key.address, *port), interval, timeout }
        };
        Self { last_error: None, left: one.ports.iter().map(flush).collect(), ports: one.ports.clone() }
    }
}
