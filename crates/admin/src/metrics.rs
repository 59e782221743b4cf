//! Prometheus metrics: a snapshot of stats becomes text, when somebody scrapes.
//!
//! In: [`MetricsInput`], made at the scrape from counters that exist anyway. Out: the exposition text.
//! Not here: names and sentences (`catalogue`), the road from stats to samples (`samples`), HTTP (`listener`).
//! Invariant: no packet pays for a metric, and a metric has a bounded number of series.

pub mod catalogue;
mod listener;
mod samples;
#[cfg(test)]
mod shipped;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::time::Duration;

use prometheus::{Registry, TextEncoder};

use crate::stats::Stats;
use crate::view::{
    self, BackendRow, BgpView, CheckState, DigestView, InterfaceRow, ReloadOutcome, ServiceRow, Status,
    VipRow,
};

pub use listener::{CONNECTION_LIFE, MAX_CONNECTIONS, Readiness, Sources, router, serve};

/// What is exported, at one moment.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct MetricsInput {
    /// What the data plane counted.
    pub stats: Stats,
    /// Verdicts of all checks.
    pub health: Vec<CheckVerdict>,
    /// By service's name, as in [`Stats::services`].
    pub vips: BTreeMap<String, VipBackends>,
    /// Different at every start of the process.
    pub boot_id: String,
    /// Digests of the configuration and of the tables in force.
    pub digests: DigestView,
    /// How the last reload went; `None` before the first.
    pub last_reload: Option<LastReload>,
    /// Routers, and what is announced to them.
    pub bgp: BgpView,
    /// Whether traffic would be served.
    pub ready: bool,
    /// Whether the packet threads, sockets and the XDP program are well.
    pub forwarder_healthy: bool,
    /// Whether the machine blames itself for failed checks.
    pub own_fault: bool,
    /// The machine's interfaces.
    pub interfaces: Vec<InterfaceRow>,
    /// Targets that this machine has not been able to ask several times in a row.
    pub checks_unable: u64,
    /// What the program was built from.
    pub build: Build,
}

impl MetricsInput {
    /// From the admin API's answers, so that both say the same.
    #[must_use]
    pub fn new(
        stats: Stats,
        status: &Status,
        vips: &[VipRow],
        backends: &[BackendRow],
        bgp: BgpView,
    ) -> Self {
        let services = vips.iter().flat_map(|vip| &vip.services);
        let count = |service: &ServiceRow| VipBackends {
            serving: service.serving as u64,
            members: service.total as u64,
        };
        Self {
            stats,
            health: backends.iter().flat_map(verdicts).collect(),
            vips: services.map(|service| (service.name.clone(), count(service))).collect(),
            boot_id: status.boot_id.clone(),
            digests: status.digests.clone(),
            last_reload: status.last_reload.as_ref().map(LastReload::from),
            bgp,
            ready: status.ready,
            forwarder_healthy: status.forwarder.healthy,
            own_fault: status.own_fault.is_some(),
            interfaces: status.interfaces.clone(),
            checks_unable: status.checks_unable as u64,
            build: Build::default(),
        }
    }
}

fn verdicts(row: &BackendRow) -> impl Iterator<Item = CheckVerdict> {
    row.checks.iter().map(|check| CheckVerdict {
        backend: row.name.clone(),
        pool: row.pool.clone(),
        check: check.check.clone(),
        verdict: check.state,
    })
}

/// What one check says of one backend.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckVerdict {
    /// The backend's name.
    pub backend: String,
    /// The leaf pool in which it is checked.
    pub pool: String,
    /// The check's name.
    pub check: String,
    /// What it says.
    pub verdict: CheckState,
}

/// How many backends a VIP's service has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VipBackends {
    /// That take new flows now.
    pub serving: u64,
    /// That the configuration gives it.
    pub members: u64,
}

/// How a reload went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LastReload {
    /// Taken, or refused.
    pub taken: bool,
    /// From reading the file to the end.
    pub took: Duration,
    /// When it ended, in seconds since 1970.
    pub ended_unix_seconds: u64,
}

impl From<&view::LastReload> for LastReload {
    fn from(reload: &view::LastReload) -> Self {
        Self {
            taken: reload.outcome != ReloadOutcome::Refused,
            took: Duration::try_from_secs_f64(reload.took_ms / 1e3).unwrap_or_default(),
            ended_unix_seconds: reload.unix_seconds,
        }
    }
}

/// What the program was built from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Build {
    /// Version of the package.
    pub version: &'static str,
    /// The commit, or `unknown`.
    pub commit: &'static str,
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
pub fn render(input: &MetricsInput) -> prometheus::Result<String> {
    let registry = Registry::new();
    registry.register(Box::new(samples::Samples::new(input)?))?;
    TextEncoder::new().encode_to_string(&registry.gather())
}

/// Services with series of their own; the traffic of the rest is summed with `vip="other"`.
pub const MAX_SERIES_VIPS: usize = 1_000;
/// Backends with series of their own; the rest is summed with `backend="other"`.
pub const MAX_SERIES_BACKENDS: usize = 5_000;
/// Checks with series of their own, those that are down first; `sluicegate_health_checks` counts all.
pub const MAX_SERIES_HEALTH: usize = 10_000;
/// Peers with series of their own; a machine has a few.
pub const MAX_SERIES_PEERS: usize = 256;
/// The label's value for what lies past a bound.
pub const OTHER: &str = "other";
