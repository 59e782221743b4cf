//! The counters of the data plane, and the reasons why packets are dropped. The module `table` has
//! one entry for each counter, with its name, kind, unit, metric and help sentence. The module
//! `drop_reason` has one entry for each drop reason.
//!
//! Each group of counters has a `&'static [Spec]` with the descriptions, and a macro that passes
//! the entries of the group to another macro. The macro [`counters!`] declares a struct of atomic
//! counters, which packet threads update. The macro [`stats!`] declares a struct of plain numbers
//! for sums and output. Both structs have their fields in the same order as the entries of the
//! group, so value *n* of `values()` belongs to entry *n* of the `Spec` slice.
//! # Example
//! ```
//! counters::flow_table! { counters::counters! [#[derive(Debug, Default)] pub struct Table] }
//! counters::flow_table! {
//!     counters::stats! [#[derive(Clone, Debug, Default, PartialEq)] pub struct TableStats]
//! }
//!
//! let table = Table::default();
//! table.hits.add(2);
//! let mut stats = TableStats::from_values(table.values());
//! stats.add(&TableStats { hits: 1, ..TableStats::default() });
//! assert_eq!(stats.hits, 3);
//! let mut metrics = counters::FLOW_TABLE.iter().zip(stats.values());
//! let (spec, value) = metrics.find(|(_, value)| *value > 0).expect("a counter was increased");
//! assert_eq!((spec.metric.name, value), ("sluicegate_flow_table_lookups_total", 3));
//! ```

#![forbid(unsafe_code)]

mod counter;
mod drop_reason;
mod table;

pub use counter::Counter;
pub use drop_reason::{DRIVER_DROPS, DropReason, PIPELINE_DROPS};
pub use table::{FLOW_TABLE, FRAGMENT_TABLE, SOCKET, THREAD, XDP};

/// The description of one counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Spec {
    /// The field name. The API uses the same name for the field.
    pub name: &'static str,
    /// The metric of the counter. When a sample is written, the caller supplies the value of the
    /// first label, such as the thread number.
    pub metric: Metric,
    /// The value of the last label if several counters share one metric, or `None`.
    pub value: Option<&'static str>,
}

/// The description of one metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Metric {
    /// The name according to Prometheus conventions. The names of counters end in `_total`, and
    /// values are in base units.
    pub name: &'static str,
    /// The kind of the metric.
    pub kind: Kind,
    /// The unit of the values, such as `packets`. The unit is `0 or 1` for a flag, and `1` for a
    /// metric whose labels carry all its information.
    pub unit: &'static str,
    /// The names of the labels. Samples list the label values in the same order.
    pub labels: &'static [&'static str],
    /// The help text, which describes the counted event.
    pub help: &'static str,
}

/// The kind of a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A value that starts at 0 with the process and only increases.
    Counter,
    /// A value that can increase and decrease.
    Gauge,
    /// A distribution of values.
    Histogram,
}
