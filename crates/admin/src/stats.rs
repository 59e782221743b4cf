//! What a running balancer counts, at one moment, as plain data: for the admin API, the metrics and the status page.
//!
//! In: the data plane's counters, read by the binary. Out: JSON by serde, metrics by `metrics`.
//! Names of JSON fields are stable; those of single counters stand in the table of the crate `counters`.

use std::collections::BTreeMap;
use std::ops::AddAssign;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Everything that is counted. Counters count from the start of the process.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Stats {
    /// Number of the generation in force.
    pub generation: u64,
    /// The XDP program's counters.
    pub xdp: XdpStats,
    /// How the program is attached: `driver` or `generic`; `ingress` behind packet sockets.
    pub xdp_mode: String,
    /// Socket mode by interface: `zero-copy` or `copy`; `af-packet`: packet sockets.
    pub mode: BTreeMap<String, String>,
    /// What each interface's sockets carried, by its name.
    pub interfaces: BTreeMap<String, InterfaceStats>,
    /// The sum over the threads.
    pub total: ThreadStats,
    /// By thread: packet threads, then the I/O threads of software steering, in the order of their queues.
    pub threads: Vec<ThreadStats>,
    /// How many of them are packet threads.
    #[serde(default)]
    pub packet_threads: usize,
    /// By backend's name, over all its memberships.
    pub backends: BTreeMap<String, TrafficStats>,
    /// By service's name, such as `www tcp 80,443`.
    pub services: BTreeMap<String, TrafficStats>,
}

counters::xdp! {
    counters::stats! [
        /// What the XDP program did, over all processors.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
        #[serde(default)]
        pub struct XdpStats
    ]
}

/// An interface's sockets together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct InterfaceStats {
    /// Queues with a socket.
    pub sockets: u64,
    /// Frames received.
    pub rx: u64,
    /// Frames sent, to backends and as answers.
    pub tx: u64,
    /// Frames that the kernel dropped before a receive ring.
    pub lost: u64,
}

/// Packets of a service or a backend.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct TrafficStats {
    /// Packets decided for it.
    pub packets: u64,
    /// Bytes of those as received.
    pub bytes: u64,
    /// Flows that were new, or reselected, to it.
    pub new_flows: u64,
}

counters::thread! {
    counters::stats! [
        /// One packet thread.
        #[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
        #[serde(default)]
        pub struct ThreadStats {
            /// Batches that were not empty.
            pub batches: u64,
            /// Batches by size: index n counts sizes from 2ⁿ to 2ⁿ⁺¹ - 1.
            pub batch_sizes: Vec<u64>,
            /// Packets that began like a marked one and were not reported, by reason's name; every reason is there.
            pub trace_refused: BTreeMap<String, u64>,
            /// Drops by reason's name; every reason is there.
            pub drops: BTreeMap<String, u64>,
            /// Requests for keyed services that were read, by verb's name; every verb is there.
            pub requests: BTreeMap<String, u64>,
            /// The connection table.
            pub flows: FlowTableStats,
            /// The fragment table.
            pub fragments: FragmentTableStats,
            /// The XDP socket.
            pub socket: SocketStats,
        }
    ]
}

counters::flow_table! {
    counters::stats! [
        /// A connection table.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
        #[serde(default)]
        pub struct FlowTableStats
    ]
}

counters::fragment_table! {
    counters::stats! [
        /// A table of fragmented datagrams.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
        #[serde(default)]
        pub struct FragmentTableStats
    ]
}

counters::socket! {
    counters::stats! [
        /// A thread's XDP sockets (`XDP_STATISTICS`), and their rings.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
        #[serde(default)]
        pub struct SocketStats
    ]
}

impl AddAssign for TrafficStats {
    fn add_assign(&mut self, other: Self) {
        self.packets += other.packets;
        self.bytes += other.bytes;
        self.new_flows += other.new_flows;
    }
}

impl AddAssign<&ThreadStats> for ThreadStats {
    fn add_assign(&mut self, other: &Self) {
        self.add(other);
        self.batches += other.batches;
        self.batch_sizes.resize(self.batch_sizes.len().max(other.batch_sizes.len()), 0);
        for (sum, more) in self.batch_sizes.iter_mut().zip(&other.batch_sizes) {
            *sum += more;
        }
        for (reason, more) in &other.trace_refused {
            *self.trace_refused.entry(reason.clone()).or_default() += more;
        }
        for (reason, more) in &other.drops {
            *self.drops.entry(reason.clone()).or_default() += more;
        }
        for (verb, more) in &other.requests {
            *self.requests.entry(verb.clone()).or_default() += more;
        }
        self.flows.add(&other.flows);
        self.fragments.add(&other.fragments);
        self.socket.add(&other.socket);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    /// Every number of the JSON form is doubled by adding a thread to itself: no field is forgotten.
    #[test]
    fn sums_leave_no_field_out() {
        let one = ThreadStats {
            batch_sizes: vec![1, 2],
            drops: [("no_vip".to_owned(), 7)].into(),
            trace_refused: [("mac".to_owned(), 7)].into(),
            requests: [("get".to_owned(), 7)].into(),
            ..ThreadStats::default()
        };
        let mut value = serde_json::to_value(&one).unwrap();
        let mut next = 1;
        fill(&mut value, &mut next);
        let one: ThreadStats = serde_json::from_value(value.clone()).unwrap();
        let mut sum = one.clone();
        sum += &one;
        double(&mut value);
        assert_eq!(serde_json::to_value(&sum).unwrap(), value);
        assert!(next > 30, "{next} numbers");
    }

    fn fill(value: &mut Value, next: &mut u64) {
        match value {
            Value::Number(_) => {
                *value = json!(*next);
                *next += 1;
            }
            Value::Array(items) => items.iter_mut().for_each(|item| fill(item, next)),
            Value::Object(fields) => fields.values_mut().for_each(|field| fill(field, next)),
            _ => {}
        }
    }

    fn double(value: &mut Value) {
        match value {
            Value::Number(number) => *value = json!(number.as_u64().unwrap() * 2),
            Value::Array(items) => items.iter_mut().for_each(double),
            Value::Object(fields) => fields.values_mut().for_each(double),
            _ => {}
        }
    }
}
