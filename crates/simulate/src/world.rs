//! A scenario with its lookup tables. [`World`] returns the machine that receives a flow in an
//! epoch, and the backend that the table of a version selects for a flow. Other modules implement
//! flow tables and counters.

use std::sync::Arc;

use crate::owners::{Hashing, owners};
use crate::random::{Stream, draw, mix};
use crate::scenario::{BackendState, Scenario, ScenarioError};
use crate::timeline::Timeline;

/// A scenario with its timeline and its tables.
pub(crate) struct World<'a> {
    pub(crate) scenario: &'a Scenario,
    pub(crate) timeline: Timeline,
    pub(crate) hashing: Hashing,
    views: Vec<View>,
}

/// The table of one version, and the salt for flow hashes.
struct View {
    owners: Arc<[u16]>,
    salt: u64,
}

impl<'a> World<'a> {
    pub(crate) fn new(scenario: &'a Scenario, hashing: Hashing) -> Result<Self, ScenarioError> {
        let mut views: Vec<View> = Vec::with_capacity(scenario.versions.len());
        for (number, version) in scenario.versions.iter().enumerate() {
            // Many versions have the same table, because they differ only in draining and removed
            // backends.
            let same = scenario.versions[..number].iter().position(|before| {
                (before.key, before.table_size) == (version.key, version.table_size)
                    && before.serving().eq(version.serving())
            });
            let owners = match same {
                Some(same) => Arc::clone(&views[same].owners),
                None => owners(hashing, &scenario.backends, version)
                    .map_err(|cause| ScenarioError::Table { version: number, cause })?
                    .into(),
            };
            views.push(View { owners, salt: version.salt() });
        }
        Ok(Self { scenario, timeline: Timeline::new(scenario), hashing, views })
    }

    pub(crate) fn interval_ms(&self) -> u32 {
        self.scenario.traffic.packet_interval_ms
    }

    /// Returns the machine that receives the packets of a flow in an epoch. Returns `None` if no
    /// machine is available.
    #[inline]
    pub(crate) fn machine(&self, number: u32, epoch: usize) -> Option<u16> {
        let hops = &self.timeline.epochs[epoch].hops;
        let hash = draw(self.scenario.seed, Stream::Router, u64::from(number)) >> 32;
        hops.get(usize::try_from(hash.checked_rem(hops.len() as u64)?).ok()?).copied()
    }

    /// Returns the backend that the table of a version selects for a flow. Returns `None` if no
    /// backend is in service.
    #[inline]
    pub(crate) fn choice(&self, number: u32, version: u16) -> Option<u16> {
        let View { owners, salt } = &self.views[usize::from(version)];
        let hash = mix(draw(self.scenario.seed, Stream::Flow, u64::from(number)) ^ salt);
        let slot = (u128::from(hash) * owners.len() as u128) >> 64;
        owners.get(usize::try_from(slot).ok()?).copied()
    }

    pub(crate) fn state(&self, version: u16, backend: u16) -> BackendState {
        self.scenario.versions[usize::from(version)].states[usize::from(backend)]
    }

    /// Returns the weight of each backend for new flows. The weight is 0 for backends that are not
    /// serving.
    pub(crate) fn weights(&self, version: u16) -> Vec<f64> {
        let weight = |state: &BackendState| match state {
            BackendState::Serving(weight) => f64::from(*weight),
            BackendState::Draining | BackendState::Gone => 0.0,
        };
        self.scenario.versions[usize::from(version)].states.iter().map(weight).collect()
    }
}
