//! Simulates a load balancer cluster behind ECMP routers, offline. The result shows how many
//! connections break when machines and backends change.
//!
//! A [`Scenario`] describes machines, backends, flows and events. [`run`] returns an [`Outcome`]
//! for one hashing method, with or without flow tables. Runs with the same seed produce the same
//! results. Individual packets are not simulated. For each flow, the simulation computes only which
//! machine receives the flow and which backend this machine selects.
//!
//! References: Eisenbud et al., *Maglev*, NSDI 2016, §3.3, §3.4, §5.3.
//!
//! ```
//! use simulate::{Hashing, script};
//!
//! let text = "
//!     duration = \"20s\"
//!     [cluster]
//!     machines = 4
//!     backends = 10
//!     [traffic]
//!     flows = 1_000
//!     lifetime = \"1h\"
//!     [[event]]
//!     at = \"5s\"
//!     machine_leaves = \"m2\"
//!     [[event]]
//!     at = \"5s\"
//!     backend_drains = \"b7\"
//! ";
//! let scenario = script::parse(text, "both.toml".as_ref(), None)?;
//! let with_tables = simulate::run(&scenario, Hashing::Maglev, true)?;
//! let without = simulate::run(&scenario, Hashing::Maglev, false)?;
//! // One flow in ten belongs to b7, and three of four of these moved to another machine.
//! assert!((50..100).contains(&with_tables.counts.broken), "{with_tables:?}");
//! assert!(without.counts.broken > with_tables.counts.broken);
//! # Ok::<_, Box<dyn std::error::Error>>(())
//! ```
#![forbid(unsafe_code)]

mod arguments;
mod flow;
mod load;
mod outcome;
mod own;
mod owners;
mod places;
mod plan;
mod random;
mod report;
mod router;
mod run;
mod scenario;
pub mod script;
mod svg;
mod timeline;
mod world;

pub use arguments::{Arguments, SimulateError, simulate};
pub use outcome::{Balance, Counts, Outcome, SPANS};
pub use own::{clusters, pools};
pub use owners::Hashing;
pub use plan::{Cluster, Rollout};
pub use report::{Occurrence, Report, Run};
pub use scenario::{
    Backend, BackendState, Change, Event, FlowTables, Lifetimes, MAX_MACHINES, Machine, Router, SIGMA,
    Scenario, ScenarioError, Traffic, Version,
};
pub use svg::svg;

/// Runs a scenario with one hashing method.
///
/// # Errors
/// Returns [`ScenarioError`] if the scenario is invalid.
///
/// # Cost
/// Processing a flow takes about 50 ns for each epoch in which the flow sends packets. An epoch is
/// the time between two changes to the cluster. If the size of the flow tables is limited, each
/// live flow takes 40 bytes of memory. Otherwise flows take no memory.
pub fn run(scenario: &Scenario, hashing: Hashing, with_tables: bool) -> Result<Outcome, ScenarioError> {
    scenario.check()?;
    Ok(run::run(&world::World::new(scenario, hashing)?, with_tables))
}
