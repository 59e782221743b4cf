//! The verb: what the operator types, and the report that it gives.
//!
//! In: words of the command line. Out: a [`Report`], and the drawing's file. Not here: printing, exit codes.

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

/// Simulates a cluster behind ECMP, offline: what breaks when machines or backends change. A script says what changes when; with
/// --config the cluster is that of the file, and with --to its change is the question.
#[derive(Debug, Args)]
pub struct Arguments {
    /// The script, TOML: traffic, router, flow tables, events.
    #[arg(value_name = "SCRIPT.toml", required_unless_present = "config")]
    pub script: Option<PathBuf>,
    /// A configuration: its machines, pools, weights, key, table size and timeouts.
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// The configuration as it would be: each pool that it changes is simulated.
    #[arg(long, value_name = "NEWFILE", requires = "config")]
    pub to: Option<PathBuf>,
    /// Only this pool.
    #[arg(long, value_name = "NAME", requires = "config")]
    pub pool: Option<String>,
    /// Do not read keys and certificates: tables are then built under a stand-in key.
    #[arg(long, requires = "config")]
    pub without_secrets: bool,
    /// When the change of --to is reloaded.
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = time)]
    pub at: Duration,
    /// How far the machines are apart when they reload.
    #[arg(long, value_name = "TIME", default_value = "2s", value_parser = time)]
    pub skew: Duration,
    /// Flows that live at once, in place of the script's.
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u32).range(1..=100_000_000))]
    pub flows: Option<u32>,
    /// The seed, in place of the script's.
    #[arg(long, value_name = "NUMBER")]
    pub seed: Option<u64>,
    /// Draw broken connections over the time.
    #[arg(long, value_name = "FILE")]
    pub svg: Option<PathBuf>,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// Why there is no report.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SimulateError {
    /// A file is refused.
    #[error("the {what} has problems:\n{problems}")]
    Refused {
        /// The script, or the configuration.
        what: &'static str,
        /// All of them.
        problems: Problems,
    },
    /// No service uses such a pool.
    #[error("no service uses a pool {found:?}, allowed {allowed}")]
    NoPool {
        /// What was asked for.
        found: String,
        /// Those that are used.
        allowed: String,
    },
    /// It cannot be run.
    #[error("{label}: {cause}")]
    Scenario {
        /// Whose scenario.
        label: String,
        /// Why.
        cause: ScenarioError,
    },
    /// The drawing cannot be written.
    #[error("{file}: {cause}")]
    Drawing {
        /// The file.
        file: String,
        /// Why.
        cause: io::Error,
    },
}

/// Simulates, and draws where that is asked for.
///
/// # Errors
/// [`SimulateError`].
/// # Cost
/// See [`run`](crate::run), six times for each pool, on all processors: three ways of hashing, with flow tables and without.
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
            // As many more arrive.
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

/// `60s`, to a day.
fn time(text: &str) -> Result<Duration, String> {
    let time = config::parse_duration(text).filter(|time| *time <= Duration::from_secs(86_400));
    time.ok_or_else(|| "a whole number with us, ms, s, m or h, to 24h".to_owned())
}
