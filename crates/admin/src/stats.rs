//! What a running balancer counts, at one moment, as plain data: for the admin API, the metrics and the status page.
//!
//! In: whoever owns the data plane fills it in. Out: JSON by serde, metrics by `metrics`.
//! Names of JSON fields are stable.

use std::collections::BTreeMap;
use std::ops::AddAssign;

use serde::{Deserialize, Serialize};

/// Everything that is counted. Counters count from the start of the process.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Stats {
    /// Number of the generation in force.
    pub generation: u64,
    /// The XDP program's counters.
    pub xdp: XdpStats,
    /// How the program is attached: `driver` or `generic`.
    pub xdp_mode: String,
    /// Socket mode by interface: `zero-copy` or `copy`.
    pub mode: BTreeMap<String, String>,
    /// What each interface's sockets carried, by its name.
    pub interfaces: BTreeMap<String, InterfaceStats>,
    /// The sum over the threads.
    pub total: ThreadStats,
    /// By packet thread.
    pub threads: Vec<ThreadStats>,
    /// By backend's name, over all its memberships.
    pub backends: BTreeMap<String, TrafficStats>,
    /// By service's name, such as `www tcp 80,443`.
    pub services: BTreeMap<String, TrafficStats>,
}

/// What the XDP program did, over all processors.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct XdpStats {
    /// Frames handed to a packet thread's socket.
    pub redirected: u64,
    /// Frames left to the kernel.
    pub passed: u64,
    /// Of those, multicast.
    pub multicast: u64,
    /// Of those, IPv6 neighbour discovery.
    pub neighbour_discovery: u64,
    /// Frames for a VIP on a queue without a socket.
    pub no_socket: u64,
    /// Frames for a VIP in front of which no room could be opened.
    pub no_head_room: u64,
    /// Frames whose socket went away in mid-redirect.
    pub socket_gone: u64,
}

/// An interface's sockets together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
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
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TrafficStats {
    /// Packets decided for it.
    pub packets: u64,
    /// Bytes of those as received.
    pub bytes: u64,
    /// Flows that were new, or reselected, to it.
    pub new_flows: u64,
}

/// One packet thread.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ThreadStats {
    /// Frames received.
    pub rx: u64,
    /// Bytes of those.
    pub rx_bytes: u64,
    /// Frames sent to backends.
    pub tx: u64,
    /// Bytes of those, outer headers included.
    pub tx_bytes: u64,
    /// Frames turned round in place.
    pub replies: u64,
    /// Frames handed to other threads.
    pub to_threads: u64,
    /// Frames taken from other threads.
    pub from_threads: u64,
    /// Frames that no packet caused.
    pub originated: u64,
    /// Frames held now (a level).
    pub held: u64,
    /// Batches that were not empty.
    pub batches: u64,
    /// Batches by size: index n counts sizes from 2ⁿ to 2ⁿ⁺¹ - 1.
    pub batch_sizes: Vec<u64>,
    /// Nanoseconds spent on batches that were not empty.
    pub busy_nanos: u64,
    /// Frames moved once because their backend needs another head room.
    pub head_room_mismatch: u64,
    /// Flows whose backend was gone, down, or draining when a new connection reused their 5-tuple, so another was chosen.
    pub reselected: u64,
    /// Choices whose first Maglev entry did not serve.
    pub rehashed: u64,
    /// Frames turned into a time-exceeded message to their sender.
    pub time_exceeded: u64,
    /// Frames turned into a message to their sender that says which size fits.
    pub too_big_told: u64,
    /// Packets cut to pieces because they were too large for the way.
    pub cut: u64,
    /// Tunnelled packets whose outer header was taken off here.
    pub opened: u64,
    /// Fragments sent to another machine of the cluster, which gathers them.
    pub redirected: u64,
    /// Flows for which another cluster was chosen, because no backend here serves.
    pub remote_flows: u64,
    /// Tunnelled packets of other clusters whose outer header was taken off here.
    pub remote_arrivals: u64,
    /// Packets of which a capture was given a record.
    pub captured: u64,
    /// Packets that a capture wanted and that found no room.
    pub capture_lost: u64,
    /// Marked packets that the tracer's receiver was told of.
    pub trace_reports: u64,
    /// Packets that began like a marked one and were not told of, by reason's name; every reason is there.
    pub trace_refused: BTreeMap<String, u64>,
    /// Drops by reason's name; every reason is there.
    pub drops: BTreeMap<String, u64>,
    /// The connection table.
    pub flows: FlowTableStats,
    /// The fragment table.
    pub fragments: FragmentTableStats,
    /// The XDP socket.
    pub socket: SocketStats,
}

/// A connection table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FlowTableStats {
    /// Entries in use (a level).
    pub entries: u64,
    /// Entries that it has room for (a level).
    pub capacity: u64,
    /// Look-ups that found a flow.
    pub hits: u64,
    /// Look-ups that did not.
    pub misses: u64,
    /// Flows entered.
    pub inserts: u64,
    /// Flows whose time was renewed.
    pub refreshes: u64,
    /// Entries found past their time.
    pub expired: u64,
    /// Entries on probation that gave way.
    pub evicted: u64,
    /// Flows forwarded without an entry, for want of room.
    pub untracked: u64,
}

/// A table of fragmented datagrams.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FragmentTableStats {
    /// Datagrams whose first fragment has come (a level).
    pub datagrams: u64,
    /// Frames held for a first fragment that has not come (a level).
    pub held: u64,
    /// First fragments whose decision was recorded.
    pub recorded: u64,
    /// First fragments that came once more.
    pub duplicates: u64,
    /// Later fragments that found a decision.
    pub followed: u64,
    /// Later fragments that were held.
    pub waited: u64,
    /// Held fragments that went on because their first came.
    pub released: u64,
    /// Datagrams with a decision that gave way to a newer one before their time.
    pub evicted: u64,
    /// Whole datagrams whose name another one took over before their time.
    pub succeeded: u64,
}

/// An XDP socket's statistics (`XDP_STATISTICS`), and the rings'.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SocketStats {
    /// Dropped by the kernel for other reasons.
    pub rx_dropped: u64,
    /// Dropped because the receive ring was full.
    pub rx_ring_full: u64,
    /// The kernel found no frame in the fill ring.
    pub rx_fill_ring_empty: u64,
    /// Invalid descriptors given to receive.
    pub rx_invalid: u64,
    /// Invalid descriptors given to transmit.
    pub tx_invalid: u64,
    /// The kernel found nothing to send.
    pub tx_ring_empty: u64,
    /// Turns that found no free frame to refill with.
    pub fill_low: u64,
    /// Turns of the thread's loop.
    pub turns: u64,
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
        self.rx += other.rx;
        self.rx_bytes += other.rx_bytes;
        self.tx += other.tx;
        self.tx_bytes += other.tx_bytes;
        self.replies += other.replies;
        self.to_threads += other.to_threads;
        self.from_threads += other.from_threads;
        self.originated += other.originated;
        self.held += other.held;
        self.batches += other.batches;
        self.batch_sizes.resize(self.batch_sizes.len().max(other.batch_sizes.len()), 0);
        for (sum, more) in self.batch_sizes.iter_mut().zip(&other.batch_sizes) {
            *sum += more;
        }
        self.busy_nanos += other.busy_nanos;
        self.head_room_mismatch += other.head_room_mismatch;
        self.reselected += other.reselected;
        self.rehashed += other.rehashed;
        self.time_exceeded += other.time_exceeded;
        self.too_big_told += other.too_big_told;
        self.cut += other.cut;
        self.opened += other.opened;
        self.redirected += other.redirected;
        self.remote_flows += other.remote_flows;
        self.remote_arrivals += other.remote_arrivals;
        self.captured += other.captured;
        self.capture_lost += other.capture_lost;
        self.trace_reports += other.trace_reports;
        for (reason, more) in &other.trace_refused {
            *self.trace_refused.entry(reason.clone()).or_default() += more;
        }
        for (reason, more) in &other.drops {
            *self.drops.entry(reason.clone()).or_default() += more;
        }
        self.flows += &other.flows;
        self.fragments += &other.fragments;
        self.socket += &other.socket;
    }
}

impl AddAssign<&FlowTableStats> for FlowTableStats {
    fn add_assign(&mut self, other: &Self) {
        self.entries += other.entries;
        self.capacity += other.capacity;
        self.hits += other.hits;
        self.misses += other.misses;
        self.inserts += other.inserts;
        self.refreshes += other.refreshes;
        self.expired += other.expired;
        self.evicted += other.evicted;
        self.untracked += other.untracked;
    }
}

impl AddAssign<&FragmentTableStats> for FragmentTableStats {
    fn add_assign(&mut self, other: &Self) {
        self.datagrams += other.datagrams;
        self.held += other.held;
        self.recorded += other.recorded;
        self.duplicates += other.duplicates;
        self.followed += other.followed;
        self.waited += other.waited;
        self.released += other.released;
        self.evicted += other.evicted;
        self.succeeded += other.succeeded;
    }
}

impl AddAssign<&SocketStats> for SocketStats {
    fn add_assign(&mut self, other: &Self) {
        self.rx_dropped += other.rx_dropped;
        self.rx_ring_full += other.rx_ring_full;
        self.rx_fill_ring_empty += other.rx_fill_ring_empty;
        self.rx_invalid += other.rx_invalid;
        self.tx_invalid += other.tx_invalid;
        self.tx_ring_empty += other.tx_ring_empty;
        self.fill_low += other.fill_low;
        self.turns += other.turns;
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
