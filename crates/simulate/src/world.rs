//! What a run asks: which machine a flow meets in an epoch, and which backend a version's tables give it.
//!
//! In: a checked [`Scenario`] and a way of hashing. Out: pure answers. Not here: flow tables, counts.

use std::sync::Arc;

use crate::owners::{Hashing, owners};
use crate::random::{Stream, draw, mix};
use crate::scenario::{BackendState, Scenario, ScenarioError};
use crate::timeline::Timeline;

/// A scenario with its tables built.
pub(crate) struct World<'a> {
    pub(crate) scenario: &'a Scenario,
    pub(crate) timeline: Timeline,
    pub(crate) hashing: Hashing,
    views: Vec<View>,
}

/// A version's table, and what it makes of a flow's hash.
struct View {
    owners: Arc<[u16]>,
    salt: u64,
}

impl<'a> World<'a> {
    pub(crate) fn new(scenario: &'a Scenario, hashing: Hashing) -> Result<Self, ScenarioError> {
        let mut views: Vec<View> = Vec::with_capacity(scenario.versions.len());
        for (number, version) in scenario.versions.iter().enumerate() {
            // Many differ by what is not in tables: who drains, who is gone.
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

    /// The machine that a flow's packets meet in an epoch; `None`: there is none.
    #[inline]
    pub(crate) fn machine(&self, number: u32, epoch: usize) -> Option<u16> {
        let hops = &self.timeline.epochs[epoch].hops;
        let hash = draw(self.scenario.seed, Stream::Router, u64::from(number)) >> 32;
        hops.get(usize::try_from(hash.checked_rem(hops.len() as u64)?).ok()?).copied()
    }

    /// The backend that a version's table gives a flow; `None`: nobody serves.
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

    /// The weights by which backends share new flows.
    pub(crate) fn weights(&self, version: u16) -> Vec<f64> {
        let weight = |state: &BackendState| match state {
            BackendState::Serving(weight) => f64::from(*weight),
            BackendState::Draining | BackendState::Gone => 0.0,
        };
        self.scenario.versions[usize::from(version)].states.iter().map(weight).collect()
    }
}
