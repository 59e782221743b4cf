//! The runtime state, which is not part of the configuration: health states, overrides, slow start,
//! advice of agents and active fallbacks.
//!
//! The controller updates [`RuntimeState`]. The compiler reads the state and the weight of each
//! pool member (one backend in one leaf pool) from this runtime state. In the default value, every
//! backend serves with its configured weight. The commands `config check`, `where` and `replay` use
//! this default value.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use forwarder::SlotState;
use health::{Advice, HealthState};

use crate::keys::{PoolView, SlotKey};

/// An operator's override for a backend. Overrides are lost when the process restarts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Override {
    /// The state that the operator forces, if any.
    pub mode: Option<Mode>,
    /// The weight that replaces the weight configured in the leaf pool, if any.
    pub weight: Option<u32>,
}

/// A state that an operator can force.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// The backend gets no new flows; existing flows continue.
    Drain,
    /// The backend gets no packets.
    Down,
}

/// The backend to which an override applies, and optionally a leaf pool. An override for one pool
/// takes precedence over an override for all pools.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OverrideKey {
    /// The name of the backend.
    pub backend: Arc<str>,
    /// The leaf pool, or `None` for all pools.
    pub pool: Option<Arc<str>>,
}

impl OverrideKey {
    /// Returns the keys of the overrides that apply to a pool member: for all pools, and for its
    /// leaf pool.
    #[must_use]
    pub fn of(member: &SlotKey) -> [Self; 2] {
        [None, Some(&member.pool)]
            .map(|pool| Self { backend: Arc::clone(&member.backend), pool: pool.cloned() })
    }
}

/// The runtime state of all pool members and pools.
#[derive(Clone, Debug, Default)]
pub struct RuntimeState {
    /// The combined check result of each pool member. A pool member is up if all its checks pass,
    /// down if one fails, and unknown while a check has no result yet. A pool member without checks
    /// has no entry and is treated as up.
    pub health: HashMap<SlotKey, HealthState>,
    /// The overrides of operators.
    pub overrides: BTreeMap<OverrideKey, Override>,
    /// The weight of each pool member in slow start, in quarters of its full weight (1 to 3).
    pub quarters: HashMap<SlotKey, u8>,
    /// The pools that are currently replaced by their fallback pools.
    pub fallbacks: BTreeSet<PoolView>,
    /// The advice of the agents on the backends. Pool members without an entry have their full
    /// weight.
    pub advice: HashMap<SlotKey, Advice>,
    /// The servers of keyed pools that were unavailable and must be flushed before they receive
    /// requests again.
    pub flushing: HashSet<SlotKey>,
}

impl Mode {
    /// Returns the name of the mode as used in commands and reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Drain => "draining",
            Self::Down => "down",
        }
    }
}

impl RuntimeState {
    /// Returns the health state of a pool member. The result is `Up` for a pool member without
    /// checks.
    #[must_use]
    pub fn health(&self, key: &SlotKey) -> HealthState {
        self.health.get(key).copied().unwrap_or(HealthState::Up)
    }

    /// Returns the override that applies to a pool member. The mode and the weight are determined
    /// separately. For each, an override for the member's pool takes precedence over an override
    /// for all pools.
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

    /// Returns the slot state of a pool member. `Down` takes precedence over `Draining`, because a
    /// failed backend has lost its flows. A server that must still be flushed is `Draining`: its
    /// existing flows continue, but requests for new keys go to other servers.
    #[must_use]
    pub fn state(&self, key: &SlotKey) -> SlotState {
        match (self.override_of(key).mode, self.health(key)) {
            (Some(Mode::Down), _) | (_, HealthState::Down | HealthState::Unknown) => SlotState::Down,
            (Some(Mode::Drain), HealthState::Up) => SlotState::Draining,
            (None, HealthState::Up) if self.flushing.contains(key) || self.drains(key) => SlotState::Draining,
            (None, HealthState::Up) => SlotState::Serving,
        }
    }

    /// Returns `true` if the first check results of a pool member are missing, and no operator has
    /// taken it down.
    pub(crate) fn is_awaited(&self, key: &SlotKey) -> bool {
        self.health(key) == HealthState::Unknown && self.override_of(key).mode != Some(Mode::Down)
    }

    /// Returns `true` if the agent of a pool member has requested that the pool member gets no new
    /// flows.
    #[must_use]
    pub fn drains(&self, key: &SlotKey) -> bool {
        self.advice.get(key).is_some_and(|advice| advice.drains)
    }

    /// Returns the weight that the agent of a pool member requests, in tenths of the full weight.
    #[must_use]
    pub fn tenths(&self, key: &SlotKey) -> u8 {
        self.advice.get(key).map_or(10, |advice| advice.tenths)
    }

    /// Returns the weight of a backend in a pool, or 0 if the backend is not serving. `weight`
    /// is the configured weight in that pool, and `own` is the configured weight in the leaf pool.
    /// The method ignores slow start.
    #[must_use]
    pub fn weight(&self, key: &SlotKey, weight: u32, own: u32) -> u32 {
        if self.state(key) == SlotState::Serving { self.weight_of_all(key, weight, own) } else { 0 }
    }

    /// Returns the weight of a backend in a pool regardless of its state. The arguments are the
    /// same as for [`RuntimeState::weight`].
    #[must_use]
    pub fn weight_of_all(&self, key: &SlotKey, weight: u32, own: u32) -> u32 {
        match self.override_of(key).weight {
            None => weight,
            // A pool that contains pools scales a backend's weight by `weight / own`. If `own` is
            // 0, this factor is undefined, and the override is not scaled.
            Some(wanted) if own == 0 => wanted,
            Some(wanted) => {
                let scaled = u64::from(weight) * u64::from(wanted) / u64::from(own);
                u32::try_from(scaled).unwrap_or(u32::MAX)
            }
        }
    }

    /// Returns the weights from which the Maglev table of a pool is built. If a member is in slow
    /// start, all weights are multiplied by 4, and that member gets 1 to 3 times its weight. If an
    /// agent changes the weight of a member, all weights are multiplied by 10, and that member gets
    /// 1 to 20 times its weight. Only the ratios of the weights affect the table.
    pub fn ramped<'a>(&self, members: impl Iterator<Item = (&'a SlotKey, u32)> + Clone) -> Vec<u32> {
        let any = |found: &dyn Fn(&SlotKey) -> bool| members.clone().any(|(key, _)| found(key));
        let ramping = !self.quarters.is_empty() && any(&|key| self.quarters.contains_key(key));
        let advised = !self.advice.is_empty() && any(&|key| self.tenths(key) != 10);
        let part = |(key, weight): (&SlotKey, u32)| {
            let quarters = if ramping { self.quarters.get(key).copied().unwrap_or(4) } else { 1 };
            let tenths = if advised { self.tenths(key) } else { 1 };
            weight.saturating_mul(u32::from(quarters) * u32::from(tenths))
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
    fn override_narrow_scope_and_down_take_precedence() {
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
            "the weight comes from the override for all pools"
        );
        runtime_state.health.insert(a.clone(), HealthState::Down);
        assert_eq!(runtime_state.state(&a), SlotState::Down);
        runtime_state.overrides.clear();
        runtime_state.health.insert(a.clone(), HealthState::Unknown);
        assert_eq!((runtime_state.state(&a), runtime_state.weight(&a, 6, 3)), (SlotState::Down, 0));
    }

    #[test]
    fn override_weight_is_scaled_by_nested_pools() {
        let (a, mut runtime_state) = (key("a", "b1"), RuntimeState::default());
        runtime_state.overrides.insert(of("b1", None), Override { mode: None, weight: Some(5) });
        assert_eq!(runtime_state.weight(&a, 6, 3), 10);
        assert_eq!(runtime_state.weight(&a, 0, 0), 5);
        assert_eq!(runtime_state.weight(&a, u32::MAX, 1), u32::MAX);
    }

    #[test]
    fn ramped_scales_weights_during_slow_start() {
        let (a, b) = (key("a", "b1"), key("a", "b2"));
        let mut runtime_state = RuntimeState::default();
        let members = [(&a, 3), (&b, 5)];
        assert_eq!(runtime_state.ramped(members.into_iter()), [3, 5]);
        runtime_state.quarters.insert(a.clone(), 1);
        assert_eq!(runtime_state.ramped(members.into_iter()), [3, 20]);
    }

    #[test]
    fn ramped_scales_weights_by_advice() {
        let (a, b) = (key("a", "b1"), key("a", "b2"));
        let mut runtime_state = RuntimeState::default();
        let members = [(&a, 3), (&b, 5)];
        runtime_state.advice.insert(a.clone(), Advice { drains: false, tenths: 10 });
        assert_eq!(runtime_state.ramped(members.into_iter()), [3, 5]);
        runtime_state.advice.insert(a.clone(), Advice { drains: false, tenths: 7 });
        assert_eq!(runtime_state.ramped(members.into_iter()), [21, 50]);
        runtime_state.quarters.insert(b.clone(), 1);
        assert_eq!(runtime_state.ramped(members.into_iter()), [84, 50]);
        runtime_state.advice.insert(a.clone(), Advice { drains: true, tenths: 7 });
        assert_eq!(runtime_state.state(&a), SlotState::Draining);
        runtime_state.health.insert(a.clone(), HealthState::Down);
        assert_eq!(runtime_state.state(&a), SlotState::Down);
    }
}
