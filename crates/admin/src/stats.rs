//! The run loop fills these types from the counters of the data plane. The types are serialized to
//! JSON by serde, and to metrics by the module `metrics`. The names of the JSON fields are stable.
//! A table in the crate `counters` defines the individual counters.

use std::collections::BTreeMap;
use std::ops::AddAssign;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// All counters, which start at 0 when the process starts.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Stats {
    /// The number of the current generation.
    pub generation: u64,
    /// The counters of the XDP program.
    pub xdp: XdpStats,
    /// The attach mode of the XDP program (`driver` or `generic`), or `ingress` with packet
    /// sockets.
    pub xdp_mode: String,
    /// The socket mode of each interface (`zero-copy` or `copy`), or `af-packet` for packet
    /// sockets.
    pub mode: BTreeMap<String, String>,
    /// The packet counters of each interface.
    pub interfaces: BTreeMap<String, InterfaceStats>,
    /// The sums of the counters over all threads.
    pub total: ThreadStats,
    /// The counters of each thread: packet threads first, then the I/O threads of software
    /// steering, in the order of their queues.
    pub threads: Vec<ThreadStats>,
    /// The number of packet threads. The packet threads are the first elements of `threads`.
    #[serde(default)]
    pub packet_threads: usize,
    /// The traffic of each backend, summed over all its pools.
    pub backends: BTreeMap<String, TrafficStats>,
    /// The traffic of each service. The keys are service names such as `www tcp 80,443`.
    pub services: BTreeMap<String, TrafficStats>,
}

counters::xdp! {
    counters::stats! [
        /// The counters of the XDP program, over all processors.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
        #[serde(default)]
        pub struct XdpStats
    ]
}

/// The packet counters of an interface.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct InterfaceStats {
    /// The number of queues with a socket.
    pub sockets: u64,
    /// The number of received frames.
    pub rx: u64,
    /// The number of sent frames, to backends and as replies.
    pub tx: u64,
    /// The number of frames that the kernel dropped before they reached a receive ring.
    pub lost: u64,
}

/// The traffic of a service or a backend.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct TrafficStats {
    /// The number of forwarded packets.
    pub packets: u64,
    /// The total length of the forwarded packets as received, in bytes.
    pub bytes: u64,
    /// The number of flows that were assigned to this backend, or to any backend of this service. A
    /// flow is counted again if it moves to a new backend because its previous backend is
    /// unavailable.
    pub new_flows: u64,
}

counters::thread! {
    counters::stats! [
        /// The counters of one packet thread.
        #[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
        #[serde(default)]
        pub struct ThreadStats {
            /// The number of batches that were not empty.
            pub batches: u64,
            /// The number of batches by size. Element n counts batches of 2ⁿ to 2ⁿ⁺¹ - 1 packets.
            pub batch_sizes: Vec<u64>,
            /// The number of packets that looked like trace packets but were not reported, by
            /// reason. Reasons without packets have the value 0.
            pub trace_refused: BTreeMap<String, u64>,
            /// The number of dropped packets, by reason. Reasons without packets have the value 0.
            pub drops: BTreeMap<String, u64>,
            /// The number of requests to keyed services, by command (verb). Verbs without requests
            /// have the value 0.
            pub requests: BTreeMap<String, u64>,
            /// The counters of the connection table.
            pub flows: FlowTableStats,
            /// The counters of the fragment table.
            pub fragments: FragmentTableStats,
            /// The counters of the XDP sockets.
            pub socket: SocketStats,
        }
    ]
}

counters::flow_table! {
    counters::stats! [
        /// The counters of a connection table.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
        #[serde(default)]
        pub struct FlowTableStats
    ]
}

counters::fragment_table! {
    counters::stats! [
        /// The counters of a fragment table.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
        #[serde(default)]
        pub struct FragmentTableStats
    ]
}

counters::socket! {
    counters::stats! [
        /// The counters of the XDP sockets of a thread (`XDP_STATISTICS`) and of their rings.
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

    /// Adding a thread to itself doubles every number in its JSON form, which shows that the sum
    /// includes all fields.
    #[test]
    fn sums_include_all_fields() {
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
