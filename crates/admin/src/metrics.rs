//! Prometheus metrics: a snapshot of stats becomes text, when somebody scrapes.
//!
//! In: `MetricsInput`, made at the scrape from counters that exist anyway. Out: the exposition text.
//! Not here: names and sentences (`catalogue`), the road from stats to samples (`samples`), HTTP (`listener`).
//! Invariant: no packet pays for a metric, and a metric has a bounded number of series.

mod catalogue;
mod hosts;
mod listener;
mod samples;
#[cfg(test)]
mod shipped;
#[cfg(test)]
mod tests;

use prometheus::{Registry, TextEncoder};

use crate::stats::Stats;
use crate::view::{BackendRow, BgpView, Status, VipRow};

pub use hosts::Hosts;
pub use listener::{CONNECTION_LIFE, MAX_CONNECTIONS, Readiness, Sources, router, serve};

/// What is exported, at one moment: the admin API's answers, so that both say the same.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct MetricsInput {
    pub(crate) stats: Stats,
    pub(crate) status: Status,
    pub(crate) vips: Vec<VipRow>,
    pub(crate) backends: Vec<BackendRow>,
    pub(crate) bgp: BgpView,
    pub(crate) build: Build,
}

/// What the program was built from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Build {
    pub(crate) version: &'static str,
    /// The commit, or `unknown`.
    pub(crate) commit: &'static str,
}

impl Default for Build {
    /// `SLUICEGATE_COMMIT` in the environment of the build names the commit.
    fn default() -> Self {
        let commit = option_env!("SLUICEGATE_COMMIT").unwrap_or("unknown");
        Self { version: env!("CARGO_PKG_VERSION"), commit }
    }
}

/// The exposition text.
///
/// # Errors
/// Never, as long as the catalogue is valid, which a test sees to.
/// # Cost
/// Two copies of the samples: 2 ms for 1,000 services and 5,000 backends.
pub(crate) fn render(input: &MetricsInput) -> prometheus::Result<String> {
    let registry = Registry::new();
    registry.register(Box::new(samples::Samples::new(input)?))?;
    TextEncoder::new().encode_to_string(&registry.gather())
}

/// Services with series of their own; the traffic of the rest is summed with `vip="other"`.
pub(crate) const MAX_SERIES_VIPS: usize = 1_000;
/// Backends with series of their own; the rest is summed with `backend="other"`.
pub(crate) const MAX_SERIES_BACKENDS: usize = 5_000;
/// Checks with series of their own, those that are down first; `sluicegate_health_checks` counts all.
pub(crate) const MAX_SERIES_HEALTH: usize = 10_000;
/// Peers with series of their own; a machine has a few.
pub(crate) const MAX_SERIES_PEERS: usize = 256;
/// The label's value for what lies past a bound.
pub(crate) const OTHER: &str = "other";
