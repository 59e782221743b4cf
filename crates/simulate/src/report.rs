//! The report of a simulation, which can be printed as tables or serialized as JSON. The module
//! `svg` draws the chart.

use std::fmt;

use serde::Serialize;

use crate::outcome::{Counts, Outcome};
use crate::plan::in_words;
use crate::scenario::{Lifetimes, Router, Scenario};

/// The report of `sluicegate simulate`.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    /// One run for each simulated pool. The list is empty if the change affects no flow.
    pub runs: Vec<Run>,
}

/// A scenario and its results.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Run {
    /// The label of the run: a pool, or "the script".
    pub label: String,
    /// The seed of the random numbers.
    pub seed: u64,
    /// The simulated time in seconds.
    pub duration_seconds: f64,
    /// The number of machines, including machines that join later.
    pub machines: usize,
    /// The number of backends, including backends that are added later.
    pub backends: usize,
    /// The number of slots in the lookup table.
    pub table_size: u32,
    /// The router type: `plain`, or `resilient` followed by the number of buckets.
    pub router: String,
    /// The number of live flows at the start.
    pub living_flows: u32,
    /// The number of new flows per second.
    pub arrivals_per_second: f64,
    /// The mean lifetime of a flow in seconds.
    pub lifetime_seconds: f64,
    /// The distribution of the lifetimes.
    pub lifetimes: &'static str,
    /// The time between two packets of a flow in seconds.
    pub packet_interval_seconds: f64,
    /// The maximum number of flows in a machine's flow table. JSON `null` means that the size is
    /// unlimited.
    pub flow_table_places: Option<u32>,
    /// The events of the scenario.
    pub events: Vec<Occurrence>,
    /// The results. Each hashing method has one result with and one result without flow tables.
    pub outcomes: Vec<Outcome>,
}

/// An event in the report.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Occurrence {
    /// The time of the event in seconds from the start.
    pub at_seconds: f64,
    /// The description of the event.
    pub what: String,
}

impl Run {
    /// Creates the report of a scenario. An event without a label belongs to the preceding event,
    /// so its counts are added to that event.
    #[must_use]
    pub fn new(scenario: &Scenario, mut outcomes: Vec<Outcome>) -> Self {
        outcomes.iter_mut().for_each(|outcome| outcome.by_event = joined(scenario, &outcome.by_event));
        let traffic = &scenario.traffic;
        let events = scenario.events.iter().filter(|event| !event.label.is_empty());
        Self {
            label: scenario.label.clone(),
            seed: scenario.seed,
            duration_seconds: seconds(scenario.duration_ms),
            machines: scenario.machines.len(),
            backends: scenario.backends.len(),
            table_size: scenario.versions.first().map_or(0, |version| version.table_size),
            router: match scenario.router {
                Router::Plain => "plain".to_owned(),
                Router::Resilient { buckets } => format!("resilient, {buckets} buckets"),
            },
            living_flows: traffic.flows,
            arrivals_per_second: traffic.arrivals,
            lifetime_seconds: seconds(traffic.lifetime_ms),
            lifetimes: match traffic.lifetimes {
                Lifetimes::Fixed => "fixed",
                Lifetimes::Exponential => "exponential",
                Lifetimes::LogNormal => "log-normal",
            },
            packet_interval_seconds: seconds(traffic.packet_interval_ms),
            flow_table_places: scenario.flow_tables.places,
            events: events
                .map(|event| Occurrence { at_seconds: seconds(event.at_ms), what: event.label.clone() })
                .collect(),
            outcomes,
        }
    }
}

/// Adds the counts of each event without a label to the preceding event.
fn joined(scenario: &Scenario, counts: &[Counts]) -> Vec<Counts> {
    let mut all: Vec<Counts> = counts.iter().take(1).copied().collect();
    for (event, count) in scenario.events.iter().zip(counts.iter().skip(1)) {
        if event.label.is_empty()
            && let Some(last) = all.last_mut()
        {
            last.add(count);
        } else {
            all.push(*count);
        }
    }
    all
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.runs.is_empty() {
            return writeln!(f, "no flow moves: the change affects no pool, hash key, table size or machine");
        }
        for (place, run) in self.runs.iter().enumerate() {
            if place > 0 {
                writeln!(f)?;
            }
            run.fmt(f)?;
        }
        Ok(())
    }
}

impl fmt::Display for Run {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { label, machines, backends, table_size, router, living_flows, lifetimes, seed, .. } = self;
        let time = |seconds: f64| format!("{seconds}s");
        let places =
            self.flow_table_places.map_or("unlimited size".to_owned(), |n| format!("{n} entries each"));
        writeln!(
            f,
            "{label}: {machines} machines ({router} ECMP), {backends} backends, tables of {table_size} slots"
        )?;
        writeln!(
            f,
            "{living_flows} concurrent flows, {lifetimes} lifetimes with a mean of {}, one packet per flow every {}; flow tables: {places}",
            time(self.lifetime_seconds),
            time(self.packet_interval_seconds)
        )?;
        writeln!(f, "seed {seed}, {} simulated\n", time(self.duration_seconds))?;
        f.write_str(&self.totals())?;
        f.write_str(&self.by_event())
    }
}

impl Run {
    fn totals(&self) -> String {
        let head = [
            "hashing",
            "flow tables",
            "flows",
            "moved",
            "broken",
            "share",
            "lost",
            "unserved",
            "untracked",
            "backends",
            "worst",
            "machines",
            "worst",
        ];
        let row = |outcome: &Outcome| {
            let (counts, balances) = (outcome.counts, [outcome.backends, outcome.machines]);
            let [backends, machines] =
                balances.map(|balance| [format!("{:.3}", balance.at_start), format!("{:.3}", balance.worst)]);
            let mut row = vec![outcome.hashing.name().to_owned(), with(outcome.flow_tables).to_owned()];
            row.extend([outcome.flows, counts.moved, counts.broken].map(|n| n.to_string()));
            row.push(format!("{:.3} %", 100.0 * outcome.broken_share()));
            row.extend([counts.lost, counts.unserved, counts.untracked].map(|n| n.to_string()));
            row.extend(backends);
            row.extend(machines);
            row
        };
        table(&head.map(str::to_owned), &self.outcomes.iter().map(row).collect::<Vec<_>>(), 2)
    }

    fn by_event(&self) -> String {
        if self.events.is_empty() {
            return String::new();
        }
        let mut head = vec!["from".to_owned(), "event".to_owned()];
        head.extend(
            self.outcomes.iter().map(|one| format!("{} {}", one.hashing.name(), with(one.flow_tables))),
        );
        let row = |place: usize, event: &Occurrence| {
            let broken =
                self.outcomes.iter().map(|one| one.by_event.get(place + 1).map_or(0, |counts| counts.broken));
            let mut row = vec![format!("{}s", event.at_seconds), event.what.clone()];
            row.extend(broken.map(|broken| broken.to_string()));
            row
        };
        let rows: Vec<Vec<String>> =
            self.events.iter().enumerate().map(|(place, event)| row(place, event)).collect();
        format!("\nbroken connections from each event to the next:\n{}", table(&head, &rows, 2))
    }
}

fn with(flow_tables: bool) -> &'static str {
    if flow_tables { "with" } else { "without" }
}

/// Formats a table. The first `words` columns are left-aligned, the others right-aligned.
fn table(head: &[String], rows: &[Vec<String>], words: usize) -> String {
    let width = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.get(column)).chain(head.get(column));
        cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..head.len()).map(width).collect();
    let head: Vec<String> = head.iter().map(|cell| cell.to_uppercase()).collect();
    let mut text = String::new();
    for row in std::iter::once(&head).chain(rows) {
        let cells = row.iter().zip(&widths).enumerate().map(|(column, (cell, width))| {
            if column < words { format!("{cell:<width$}") } else { format!("{cell:>width$}") }
        });
        text += cells.collect::<Vec<_>>().join("  ").trim_end();
        text += "\n";
    }
    text
}

/// Converts milliseconds to seconds.
fn seconds(time_ms: u32) -> f64 {
    f64::from(time_ms) / 1_000.0
}

/// Formats a time as in a script.
pub(crate) fn at(seconds: f64) -> String {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "the duration of a scenario in milliseconds fits in 32 bits"
    )]
    let time_ms = (seconds * 1_000.0) as u32;
    in_words(time_ms)
}
