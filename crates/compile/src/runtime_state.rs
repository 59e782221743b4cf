//! What is in force beside the file: verdicts of health, operator's overrides, slow start, fallbacks.
//!
//! In: what the controller learns. Out: the state and the weight of each membership.
//! Not here: how verdicts come about (`health`), tables (`tables`).
//! Invariant: the default says of everything that it serves as the file has it; so a file is compiled for `config check`,
//! `where` and `replay`.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use forwarder::SlotState;
use health::HealthState;

use crate::keys::{PoolView, SlotKey};

/// What an operator has said of a backend; lost at a restart.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Override {
    /// Its state.
    pub mode: Option<Mode>,
    /// Its weight in the pool that lists it, in place of the file's.
    pub weight: Option<u32>,
}

/// A state that an operator may give.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Old flows only.
    Drain,
    /// Nothing.
    Down,
}

/// What an override is for; where two are for a membership, the narrower one wins.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OverrideKey {
    /// The backend.
    pub backend: Arc<str>,
    /// In this leaf pool; `None`: in all.
    pub pool: Option<Arc<str>>,
}

/// All of it.
#[derive(Clone, Debug, Default)]
pub struct RuntimeState {
    /// What the checks of a membership find together: up when all pass, down when one fails, unknown while one has no
    /// result yet. A membership that is not here has no check, and is up.
    pub health: HashMap<SlotKey, HealthState>,
    /// By operators.
    pub overrides: BTreeMap<OverrideKey, Override>,
    /// Memberships that came up lately: quarters of their weight, 1 to 3.
    pub quarters: HashMap<SlotKey, u8>,
    /// Pools in whose place their fallback serves.
    pub fallbacks: BTreeSet<PoolView>,
    /// Memberships of keyed pools that would serve, and are emptied first: they were away (`control_plane`).
    pub flushing: HashSet<SlotKey>,
}

impl Mode {
    /// The word for it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Drain => "draining",
            Self::Down => "down",
        }
    }
}

impl RuntimeState {
    /// What the checks find.
    #[must_use]
    pub fn health(&self, key: &SlotKey) -> HealthState {
        self.health.get(key).copied().unwrap_or(HealthState::Up)
    }

    /// What the operator says; each of its two parts from the narrowest that has it.
    #[must_use]
    pub fn override_of(&self, key: &SlotKey) -> Override {
        let find = |pool| {
            let wanted = OverrideKey { backend: Arc::clone(&key.backend), pool };
            self.overrides.get(&wanted).copied().unwrap_or_default()
        };
        if self.overrides.is_empty() {
            return Override::default();
        }
        let (narrow, wide) = (find(Some(Arc::clone(&key.pool))), find(None));
        Override { mode: narrow.mode.or(wide.mode), weight: narrow.weight.or(wide.weight) }
    }

    /// What the membership may be given. Down goes before draining: a dead backend's flows are lost on it. One that is emptied has
    /// its old flows, of other services, and no keys.
    #[must_use]
    pub fn state(&self, key: &SlotKey) -> SlotState {
        match (self.override_of(key).mode, self.health(key)) {
            (Some(Mode::Down), _) | (_, HealthState::Down | HealthState::Unknown) => SlotState::Down,
            (Some(Mode::Drain), HealthState::Up) => SlotState::Draining,
            (None, HealthState::Up) if self.flushing.contains(key) => SlotState::Draining,
            (None, HealthState::Up) => SlotState::Serving,
        }
    }

    /// Its weight in a pool where the file gives it `weight`, and `own` in the pool that lists it; 0 unless it serves.
    /// Not yet reduced by slow start.
    #[must_use]
    pub fn weight(&self, key: &SlotKey, weight: u32, own: u32) -> u32 {
        if self.state(key) == SlotState::Serving { self.weight_of_all(key, weight, own) } else { 0 }
    }

    /// The same whether or not it serves.
    #[must_use]
    pub fn weight_of_all(&self, key: &SlotKey, weight: u32, own: u32) -> u32 {
        match self.override_of(key).weight {
            None => weight,
            // The path's factor is weight / own; where the file says 0 it is not known, and counts as 1.
            Some(wanted) if own == 0 => wanted,
            Some(wanted) => {
                let scaled = u64::from(weight) * u64::from(wanted) / u64::from(own);
                u32::try_from(scaled).unwrap_or(u32::MAX)
            }
        }
    }

    /// A pool's weights as they enter its table: quarters of those that came up lately, the others whole.
    pub fn ramped<'a>(&self, members: impl Iterator<Item = (&'a SlotKey, u32)> + Clone) -> Vec<u32> {
        let ramping =
            !self.quarters.is_empty() && members.clone().any(|(key, _)| self.quarters.contains_key(key));
        if !ramping {
            return members.map(|(_, weight)| weight).collect();
        }
        let four = |weight: u32| weight.saturating_mul(4);
        let part = |(key, weight): (&SlotKey, u32)| match self.quarters.get(key) {
            Some(quarters) => weight.saturating_mul(u32::from(*quarters)),
            None => four(weight),
        };
        members.map(part).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(backend: &str, pool: Option<&str>) -> OverrideKey {
        OverrideKey { backend: backend.into(), pool: pool.map(Into::into) }
    }

    fn key(pool: &str, backend: &str) -> SlotKey {
        SlotKey { pool: pool.into(), backend: backend.into(), address: [192, 0, 2, 1].into(), vip: None }
    }

    #[test]
    fn an_override_for_one_pool_goes_before_one_for_all_and_down_before_all() {
        let (a, b) = (key("a", "b1"), key("b", "b1"));
        let mut runtime_state = RuntimeState::default();
        assert_eq!((runtime_state.state(&a), runtime_state.weight(&a, 6, 3)), (SlotState::Serving, 6));
        let drain = Override { mode: Some(Mode::Drain), weight: Some(5) };
        runtime_state.overrides.insert(of("b1", None), drain);
        let down = Override { mode: Some(Mode::Down), weight: None };
        runtime_state.overrides.insert(of("b1", Some("b")), down);
        assert_eq!([&a, &b].map(|key| runtime_state.state(key)), [SlotState::Draining, SlotState::Down]);
        assert_eq!(
            runtime_state.override_of(&b).weight,
            Some(5),
            "what the narrow one does not say, the wide one does"
        );
        runtime_state.health.insert(a.clone(), HealthState::Down);
        assert_eq!(runtime_state.state(&a), SlotState::Down);
        runtime_state.overrides.clear();
        runtime_state.health.insert(a.clone(), HealthState::Unknown);
        assert_eq!((runtime_state.state(&a), runtime_state.weight(&a, 6, 3)), (SlotState::Down, 0));
    }

    #[test]
    fn an_operators_weight_keeps_the_factor_of_the_path() {
        let (a, mut runtime_state) = (key("a", "b1"), RuntimeState::default());
        runtime_state.overrides.insert(of("b1", None), Override { mode: None, weight: Some(5) });
        assert_eq!(runtime_state.weight(&a, 6, 3), 10);
        assert_eq!(runtime_state.weight(&a, 0, 0), 5);
        assert_eq!(runtime_state.weight(&a, u32::MAX, 1), u32::MAX);
    }

    #[test]
    fn weights_grow_by_quarters_while_one_starts_slowly() {
        let (a, b) = (key("a", "b1"), key("a", "b2"));
        let mut runtime_state = RuntimeState::default();
        let members = [(&a, 3), (&b, 5)];
        assert_eq!(runtime_state.ramped(members.into_iter()), [3, 5]);
        runtime_state.quarters.insert(a.clone(), 1);
        assert_eq!(runtime_state.ramped(members.into_iter()), [3, 20]);
    }
}
