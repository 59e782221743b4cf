//! Prometheus metrics, whose values are queried at each scrape with the commands of the admin API.
//!
//! `catalogue` defines the metrics, `samples` computes their values, and `listener` serves them
//! over HTTP. A scrape only reads existing counters, so it does not slow down the packet threads.
//! Each metric has a limited number of series.

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
pub use listener::{CONNECTION_LIFE, MAX_CONNECTIONS, Sources, router, serve};

/// The data from which the metrics of one scrape are computed. The admin API returns the same data,
/// so metrics and API are always consistent.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct MetricsInput {
    pub(crate) stats: Stats,
    pub(crate) status: Status,
    pub(crate) vips: Vec<VipRow>,
    pub(crate) backends: Vec<BackendRow>,
    pub(crate) bgp: BgpView,
    pub(crate) build: Build,
}

/// The version and the commit of the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Build {
    pub(crate) version: &'static str,
    /// The commit hash, or `unknown`.
    pub(crate) commit: &'static str,
}

impl Default for Build {
    /// Reads the commit from the environment variable `SLUICEGATE_COMMIT` at build time.
    fn default() -> Self {
        let commit = option_env!("SLUICEGATE_COMMIT").unwrap_or("unknown");
        Self { version: env!("CARGO_PKG_VERSION"), commit }
    }
}

/// Renders the metrics in the Prometheus text format.
///
/// # Errors
/// Returns an error only if the catalogue is invalid. A test checks that the catalogue is valid.
/// # Cost
/// Copies the samples twice, which takes 2 ms for 1,000 services and 5,000 backends.
pub(crate) fn render(input: &MetricsInput) -> prometheus::Result<String> {
    let registry = Registry::new();
    registry.register(Box::new(samples::Samples::new(input)?))?;
    TextEncoder::new().encode_to_string(&registry.gather())
}

/// The maximum number of services with separate series. The traffic of all further services is
/// exported as a sum with `vip="other"`.
pub(crate) const MAX_SERIES_VIPS: usize = 1_000;
/// The maximum number of backends with separate series. All further backends are exported as a sum
/// with `backend="other"`.
pub(crate) const MAX_SERIES_BACKENDS: usize = 5_000;
/// The maximum number of health checks with separate series. Failed checks are exported first, and
/// `sluicegate_health_checks` counts all checks.
pub(crate) const MAX_SERIES_HEALTH: usize = 10_000;
/// The maximum number of peers with separate series. A machine usually has only a few peers.
pub(crate) const MAX_SERIES_PEERS: usize = 256;
/// The label value of the series that sums all objects beyond a limit.
pub(crate) const OTHER: &str = "other";
