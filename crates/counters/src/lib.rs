//! Every counter of the data plane, once: its name, kind, unit, metric and sentence stand in one line of `table`; and every
//! reason to drop a packet, in one line of `drop_reason`.
//!
//! Out: for each group a `&'static [Spec]`, and a macro that hands the group's lines to another macro: the atomic fields
//! that count ([`counters!`]), and the rows that show ([`stats!`]), are made of the same lines in the same order.
//! Not here: where something is counted, how it is shown, counters by name of a backend or a VIP.
//! Invariant: place *n* of `values()` is counted for spec *n* of its group.
//!
//! # Example
//! ```
//! counters::flow_table! { counters::counters! [#[derive(Debug, Default)] pub struct Table] }
//! counters::flow_table! { counters::stats! [#[derive(Clone, Debug, Default, PartialEq)] pub struct TableStats] }
//!
//! let table = Table::default();
//! table.hits.add(2);
//! let mut stats = TableStats::from_values(table.values());
//! stats.add(&TableStats { hits: 1, ..TableStats::default() });
//! assert_eq!(stats.hits, 3);
//! let metrics: Vec<_> = counters::FLOW_TABLE.iter().zip(stats.values()).filter(|(_, value)| *value > 0).collect();
//! assert_eq!((metrics[0].0.metric.name, metrics[0].1), ("sluicegate_flow_table_lookups_total", 3));
//! ```

#![forbid(unsafe_code)]

mod counter;
mod drop_reason;
mod table;

pub use counter::Counter;
pub use drop_reason::{DRIVER_DROPS, DropReason, PIPELINE_DROPS};
pub use table::{FLOW_TABLE, FRAGMENT_TABLE, SOCKET, THREAD, XDP};

/// What is said of one counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Spec {
    /// Its field, and its name in the API.
    pub name: &'static str,
    /// Its metric; the caller gives the first label, such as the thread's number.
    pub metric: Metric,
    /// The last label's value, where it distinguishes lines of one metric.
    pub value: Option<&'static str>,
}

/// One metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Metric {
    /// By Prometheus conventions: `_total` for counters, base units at the end.
    pub name: &'static str,
    /// What its values do.
    pub kind: Kind,
    /// What it counts, or `0 or 1`, or `1` where the labels say all.
    pub unit: &'static str,
    /// Its labels, in the order in which samples give their values.
    pub labels: &'static [&'static str],
    /// One sentence: when it moves.
    pub help: &'static str,
}

/// What a metric's values do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Grows from 0 at the start of the process.
    Counter,
    /// Is a level.
    Gauge,
    /// Counts by size.
    Histogram,
}
