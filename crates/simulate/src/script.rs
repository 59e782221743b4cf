//! The script of a simulation, which is a small TOML file with traffic, router, flow tables and
//! events.
//!
//! [`parse`] returns a [`Scenario`], or all problems in the script with their lines and keys. The
//! cluster is defined by the script or by a configuration.

mod event;

use std::ops::RangeInclusive;
use std::path::Path;
use std::time::Duration;

use config_text::{MAX_BYTES, Node, Problems, Report, Root, Section, gather, read_text};

use crate::plan::{Cluster, Plan, Takeover, key};
use crate::scenario::{
    Backend, BackendState, FlowTables, Lifetimes, MAX_BUCKETS, MAX_FLOWS, MAX_MACHINES, Machine, Router,
    Scenario, Traffic, Version,
};

/// Reads and checks a script file.
///
/// # Errors
/// Returns all [`Problems`] in the script.
pub fn load(file: &Path, from: Option<Base<'_>>) -> Result<Scenario, Problems> {
    let text = read_text(file, MAX_BYTES).map_err(Problems::from)?;
    parse(&text, file, from)
}

/// The cluster and the change that a configuration provides for a script.
#[derive(Clone, Copy, Debug)]
pub struct Base<'a> {
    /// The cluster, which may include a change to its configuration.
    pub cluster: &'a Cluster,
    /// The time in milliseconds at which the first machine applies the change.
    pub at_ms: u32,
    /// The time in milliseconds between the first and the last machine that applies the change.
    pub skew_ms: u32,
}

/// Parses the text of a script. `file` is the file name in messages. If `from` is given, it
/// replaces the section `[cluster]`.
///
/// # Errors
/// Returns all [`Problems`] in the script, sorted by line.
pub fn parse(text: &str, file: &Path, from: Option<Base<'_>>) -> Result<Scenario, Problems> {
    let report = Report::default();
    let parts = gather(&report, file, text.to_owned(), &[], None);
    let scenario = read(Root::new(&report, &parts), from);
    drop(parts);
    report.finish()?;
    Ok(scenario)
}

fn read(mut root: Root<'_>, from: Option<Base<'_>>) -> Scenario {
    let seed = root.once("seed").and_then(|node| node.number(0..=MAX_SEED)).unwrap_or(1);
    let duration = root.once("duration").and_then(|node| millis(&node, SECOND..=DAY));
    let shortest = from.map_or(0, shortest);
    let duration_ms = duration.unwrap_or(DEFAULT_DURATION_MS.max(shortest));
    let section = root.once("cluster");
    let mut cluster = match (from, section) {
        (Some(from), section) => {
            if let Some(node) = section {
                node.refuse(("[cluster] is not allowed with --config", "remove the section from the script"));
            }
            from.cluster.clone()
        }
        (None, section) => read_cluster(section.and_then(|node| node.section()), seed),
    };
    let traffic = read_traffic(root.once("traffic").and_then(|node| node.section()));
    let router = read_router(root.once("router").and_then(|node| node.section()), cluster.machines.len());
    if let Some(section) = root.once("flow_tables").and_then(|node| node.section()) {
        cluster.flow_tables = read_tables(section, cluster.flow_tables, traffic.packet_interval_ms);
    }
    let mut plan = Plan::new(&cluster, seed);
    let events =
        root.once("event").and_then(|node| node.list("a list of tables [[event]]")).unwrap_or_default();
    event::read_all(&events, &mut plan, duration_ms, cluster.change.is_some());
    root.finish();
    if let (Some(from), Some(change)) = (from, &cluster.change) {
        plan.roll_out(Takeover { at_ms: from.at_ms, skew_ms: from.skew_ms }, change);
    }
    plan.events.sort_by_key(|event| event.at_ms);
    let Plan { machines, backends, versions, events, .. } = plan;
    let (label, flow_tables) = (cluster.label, cluster.flow_tables);
    Scenario { label, seed, duration_ms, traffic, router, flow_tables, machines, backends, versions, events }
}

/// Returns the minimum duration of a script: the time until the change is complete, plus one
/// minute.
fn shortest(from: Base<'_>) -> u32 {
    let drain = from.cluster.change.as_ref().map_or(0, |change| change.drain_ms);
    from.at_ms.saturating_add(drain).saturating_add(from.skew_ms).saturating_add(60_000)
}

/// Reads the cluster. The machines are named m1, m2 and so on. The backends are named b1, b2 and so
/// on, and each backend has weight 1.
fn read_cluster(section: Option<Section<'_>>, seed: u64) -> Cluster {
    let (mut machines, mut backends, mut table_size) = (4, 10, maglev_hash::DEFAULT_SIZE);
    if let Some(mut section) = section {
        machines = section.or("machines", machines, |node| node.number(1..=MAX_MACHINES as u64));
        backends = section.or("backends", backends, |node| node.number(1..=MAX_BACKENDS));
        table_size = section.or("table_size", table_size, |node| {
            let size = node.number(101..=maglev_hash::MAX_SIZE)?;
            if is_prime(size) {
                return Some(size);
            }
            node.wrong((format!("\"table_size\" must be a prime, got {size}"), "for example 65537"))
        });
        section.finish();
    }
    let machine = |n| Machine { name: format!("m{n}"), is_there: true };
    let backend = |n| Backend { name: format!("b{n}"), hash_name: format!("b{n}") };
    let backends: Vec<Backend> = (1..=backends).map(backend).collect();
    let states = vec![BackendState::Serving(1); backends.len()];
    Cluster {
        label: "the script".to_owned(),
        machines: (1..=machines).map(machine).collect(),
        version: Version { key: key(seed, 0), table_size, states },
        backends,
        flow_tables: FlowTables { places: None, idle_ms: 900_000, closing_ms: 10_000 },
        change: None,
    }
}

fn read_traffic(section: Option<Section<'_>>) -> Traffic {
    let mut traffic = Traffic {
        flows: 1_000_000,
        arrivals: 0.0,
        lifetime_ms: 120_000,
        lifetimes: Lifetimes::Exponential,
        packet_interval_ms: 1_000,
    };
    let mut arrivals = None;
    if let Some(mut section) = section {
        traffic.flows = section.or("flows", traffic.flows, |node| node.number(0..=MAX_FLOWS));
        traffic.lifetime_ms = section.or("lifetime", traffic.lifetime_ms, |node| millis(&node, MILLI..=DAY));
        traffic.lifetimes = section.or("lifetimes", traffic.lifetimes, |node| node.choice(&LIFETIMES));
        traffic.packet_interval_ms =
            section.or("packet_interval", traffic.packet_interval_ms, |node| millis(&node, MILLI..=HOUR));
        arrivals = section.optional("arrivals").and_then(|node| node.number(0..=MAX_FLOWS));
        section.finish();
    }
    let steady = f64::from(traffic.flows) * 1_000.0 / f64::from(traffic.lifetime_ms);
    traffic.arrivals = arrivals.map_or(steady.min(f64::from(MAX_FLOWS)), f64::from);
    traffic
}

fn read_router(section: Option<Section<'_>>, machines: usize) -> Router {
    let Some(mut section) = section else { return Router::Plain };
    let is_resilient = section.or("hashing", false, |node| node.choice(&ROUTERS));
    let least = u32::try_from(machines).unwrap_or(u32::MAX);
    let buckets = section.optional("buckets");
    if let Some(node) = buckets.as_ref().filter(|_| !is_resilient) {
        node.needs("hashing = \"resilient\"");
    }
    let buckets = buckets.and_then(|node| node.number(least..=MAX_BUCKETS)).unwrap_or(1_024.max(least));
    section.finish();
    if is_resilient { Router::Resilient { buckets } } else { Router::Plain }
}

fn read_tables(mut section: Section<'_>, default: FlowTables, interval_ms: u32) -> FlowTables {
    let places = section.or("places", default.places, |node| node.number(1..=MAX_FLOWS).map(Some));
    let longer = Duration::from_millis(u64::from(interval_ms) + 1);
    let idle_ms = section.or("idle", default.idle_ms, |node| millis(&node, longer..=DAY));
    let closing_ms = section.or("closing", default.closing_ms, |node| millis(&node, Duration::ZERO..=HOUR));
    section.finish();
    FlowTables { places, idle_ms, closing_ms }
}

/// Reads a duration in whole milliseconds.
fn millis(node: &Node<'_>, allowed: RangeInclusive<Duration>) -> Option<u32> {
    u32::try_from(node.duration(allowed)?.as_millis()).ok()
}

fn is_prime(number: u32) -> bool {
    (2..).take_while(|divisor| divisor * divisor <= number).all(|divisor| !number.is_multiple_of(divisor))
}

const LIFETIMES: [(&str, Lifetimes); 3] = [
    ("exponential", Lifetimes::Exponential),
    ("log-normal", Lifetimes::LogNormal),
    ("fixed", Lifetimes::Fixed),
];
const ROUTERS: [(&str, bool); 2] = [("plain", false), ("resilient", true)];
const MILLI: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);
const HOUR: Duration = Duration::from_secs(3_600);
const DAY: Duration = Duration::from_secs(86_400);
const MAX_SEED: u64 = i64::MAX as u64;
const MAX_BACKENDS: u64 = 10_000;
const DEFAULT_DURATION_MS: u32 = 300_000;
