//! What changes of machines and backends break: a cluster behind ECMP, simulated offline and the same by the same seed.
//!
//! In: a [`Scenario`]: machines, backends, flows, a script of events. Out: an [`Outcome`] for each way of hashing, with flow tables
//! and without: connections that break, and how even the load is.
//! Not here: packets. What matters of a flow is which machine sees it, and which backend that machine chooses when asked.
//! Source: Eisenbud et al., *Maglev*, NSDI 2016, §3.3, §3.4, §5.3.
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
//! // Of the flows of b7, a tenth, those break that came to another machine: three of four.
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

/// Runs a scenario.
///
/// # Errors
/// [`ScenarioError`]: it cannot be run.
/// # Cost
/// Some 50 ns for each flow and epoch (moment at which something changes) in which it sends. No memory a flow; where places of flow
/// tables are limited, 40 bytes a living flow.
pub fn run(scenario: &Scenario, hashing: Hashing, with_tables: bool) -> Result<Outcome, ScenarioError> {
    scenario.check()?;
    Ok(run::run(&world::World::new(scenario, hashing)?, with_tables))
}
