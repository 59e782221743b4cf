//! The arguments of `sluicegate simulate`, and the function that runs the simulation and returns
//! its report.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use config::{Config, Problems, words};
use config_text::parallel;

use crate::own::{clusters, pools};
use crate::plan::Cluster;
use crate::report::{Report, Run};
use crate::scenario::{Scenario, ScenarioError};
use crate::script::{self, Base};
use crate::{Hashing, svg};

/// Simulate a cluster behind ECMP and count broken connections
///
/// The simulation runs offline. A script sets the traffic and the events. With --config, machines
/// and backends come from a configuration. With --to, the simulated event is the change to a second
/// configuration.
#[derive(Debug, Args)]
pub struct Arguments {
    /// Read traffic, router, flow tables and events from this TOML script
    #[arg(value_name = "SCRIPT.toml", required_unless_present = "config")]
    pub script: Option<PathBuf>,
    /// Take machines, pools, weights, hash key, table size and timeouts from this configuration
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Simulate the change to this configuration, for each pool that it affects
    #[arg(long, value_name = "NEWFILE", requires = "config")]
    pub to: Option<PathBuf>,
    /// Simulate only this pool
    #[arg(long, value_name = "NAME", requires = "config")]
    pub pool: Option<String>,
    /// Skip reading keys and certificates; tables are built with a placeholder key
    #[arg(long, requires = "config")]
    pub without_secrets: bool,
    /// Set the time at which the configuration of --to is loaded, at most 24h
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = time)]
    pub at: Duration,
    /// Let the machines load the new configuration one after another within this time, at most 24h
    #[arg(long, value_name = "TIME", default_value = "2s", value_parser = time)]
    pub skew: Duration,
    /// Set the number of concurrent flows, overriding the script
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u32).range(1..=100_000_000))]
    pub flows: Option<u32>,
    /// Set the seed of the random numbers, overriding the script
    #[arg(long, value_name = "NUMBER")]
    pub seed: Option<u64>,
    /// Write an SVG chart of broken connections over time to this file
    #[arg(long, value_name = "FILE")]
    pub svg: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// The reason why the simulation failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SimulateError {
    /// The script or the configuration has problems.
    #[error("the {what} has problems:\n{problems}")]
    Refused {
        /// The name of the invalid input: the script or the configuration.
        what: &'static str,
        /// The problems that were found.
        problems: Problems,
    },
    /// No service uses the requested pool.
    #[error("no service uses pool {found:?}; the pools in use are {allowed}")]
    NoPool {
        /// The requested pool.
        found: String,
        /// The pools that services use.
        allowed: String,
    },
    /// The scenario that the arguments describe is invalid.
    #[error("cannot simulate {label}: {cause}")]
    Scenario {
        /// The label of the scenario.
        label: String,
        /// The reason why the scenario is invalid.
        cause: ScenarioError,
    },
    /// The SVG file cannot be written.
    #[error("cannot write {file}: {cause}")]
    Drawing {
        /// The path of the file.
        file: String,
        /// The error that occurred when the file was written.
        cause: io::Error,
    },
}

/// Runs the simulations that `arguments` describe. If an SVG chart is requested, the chart is
/// written to its file.
///
/// # Errors
/// Returns [`SimulateError`] if an input is invalid or if the chart cannot be written.
///
/// # Cost
/// For each pool, [`run`](crate::run) is called six times: for three hashing methods, each with and
/// without flow tables. The calls are distributed over all processors.
pub fn simulate(arguments: &Arguments) -> Result<Report, SimulateError> {
    let mut report = Report { runs: Vec::new() };
    for scenario in scenarios(arguments)? {
        let failed = |cause| SimulateError::Scenario { label: scenario.label.clone(), cause };
        let ways = Hashing::ALL.into_iter().flat_map(|hashing| [(hashing, true), (hashing, false)]);
        let outcomes = parallel::map(ways.collect(), true, |(hashing, with_tables)| {
            crate::run(&scenario, hashing, with_tables)
        });
        let outcomes = outcomes.into_iter().collect::<Result<_, _>>().map_err(failed)?;
        report.runs.push(Run::new(&scenario, outcomes));
    }
    if let Some(file) = &arguments.svg {
        let failed = |cause| SimulateError::Drawing { file: file.display().to_string(), cause };
        fs::write(file, svg::svg(&report)).map_err(failed)?;
    }
    Ok(report)
}

fn scenarios(arguments: &Arguments) -> Result<Vec<Scenario>, SimulateError> {
    let mut scenarios = match &arguments.config {
        None => vec![scenario(arguments, None)?],
        Some(file) => {
            let clusters = clusters_of(arguments, file)?;
            clusters.iter().map(|cluster| scenario(arguments, Some(cluster))).collect::<Result<_, _>>()?
        }
    };
    for scenario in &mut scenarios {
        scenario.seed = arguments.seed.unwrap_or(scenario.seed);
        if let Some(flows) = arguments.flows {
            let traffic = &mut scenario.traffic;
            // The rate of new flows is scaled by the same factor as the number of flows.
            traffic.arrivals *= f64::from(flows) / f64::from(traffic.flows.max(1));
            traffic.flows = flows;
        }
    }
    Ok(scenarios)
}

fn clusters_of(arguments: &Arguments, file: &Path) -> Result<Vec<Cluster>, SimulateError> {
    let old = read(file, arguments.without_secrets)?;
    let new = arguments.to.as_deref().map(|to| read(to, arguments.without_secrets)).transpose()?;
    if let Some(found) = &arguments.pool {
        let used = [Some(&old), new.as_ref()].into_iter().flatten().flat_map(pools);
        let used: std::collections::BTreeSet<_> = used.collect();
        if !used.contains(found.as_str()) {
            return Err(SimulateError::NoPool { found: found.clone(), allowed: words::few(&used) });
        }
    }
    Ok(clusters(&old, new.as_ref(), arguments.pool.as_deref()))
}

fn read(file: &Path, without_secrets: bool) -> Result<Config, SimulateError> {
    let read = if without_secrets { config::load_without_secrets(file) } else { config::load(file) };
    let refused = |problems| SimulateError::Refused { what: "configuration", problems };
    read.map(|(config, _)| config).map_err(refused)
}

fn scenario(arguments: &Arguments, cluster: Option<&Cluster>) -> Result<Scenario, SimulateError> {
    let base =
        cluster.map(|cluster| Base { cluster, at_ms: millis(arguments.at), skew_ms: millis(arguments.skew) });
    let read = match &arguments.script {
        Some(file) => script::load(file, base),
        None => script::parse("", Path::new("script"), base),
    };
    read.map_err(|problems| SimulateError::Refused { what: "script", problems })
}

fn millis(time: Duration) -> u32 {
    u32::try_from(time.as_millis()).unwrap_or(u32::MAX)
}

/// Parses a duration of at most one day.
fn time(text: &str) -> Result<Duration, String> {
    let time = config::parse_duration(text).filter(|time| *time <= Duration::from_secs(86_400));
    time.ok_or_else(|| "use a whole number with a unit (us, ms, s, m or h), at most 24h".to_owned())
}
