//! What a running balancer counts, at one moment, as plain data: for the admin API, the metrics and the status page.
//!
//! In: whoever owns the data plane fills it in. Out: JSON by serde, metrics by `metrics`.
//! Names of JSON fields are stable.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Everything that is counted. Counters count from the start of the process.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Figures {
    /// Number of the generation in force.
    pub generation: u64,
    /// The XDP program's counters.
    pub xdp: XdpFigures,
    /// How the program is attached: `driver` or `generic`.
    pub xdp_mode: String,
    /// Socket mode by interface: `zero-copy` or `copy`.
    pub mode: BTreeMap<String, String>,
    /// The sum over the threads.
    pub total: ThreadFigures,
    /// By packet thread.
    pub threads: Vec<ThreadFigures>,
    /// By backend's name, over all its memberships.
    pub backends: BTreeMap<String, TrafficFigures>,
    /// By service's name, such as `www tcp 80,443`.
    pub services: BTreeMap<String, TrafficFigures>,
}

/// What the XDP program did, over all processors.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct XdpFigures {
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

/// Packets of a service or a backend.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TrafficFigures {
    /// Packets decided for it.
    pub packets: u64,
    /// Bytes of those as received.
    pub bytes: u64,
    /// Flows that were new, or reselected, to it.
    pub new_flows: u64,
}

/// One packet thread.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ThreadFigures {
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
    /// Flows whose backend was gone or down, so another was chosen.
    pub reselected: u64,
    /// Choices whose first Maglev entry did not serve.
    pub rehashed: u64,
    /// Drops by reason's name; every reason is there.
    pub drops: BTreeMap<String, u64>,
    /// The connection table.
    pub flows: FlowFigures,
    /// The XDP socket.
    pub socket: SocketFigures,
}

/// A connection table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FlowFigures {
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

/// An XDP socket's statistics (`XDP_STATISTICS`), and the rings'.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SocketFigures {
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

impl ThreadFigures {
    /// Adds another thread's; also its levels, and reason by reason.
    pub fn add(&mut self, more: &Self) {
        macro_rules! add {
            ($($field:ident).+) => { self.$($field).+ += more.$($field).+ };
            ($($($field:ident).+),+ $(,)?) => { $( add!($($field).+); )+ };
        }
        add!(rx, rx_bytes, tx, tx_bytes, replies, to_threads, from_threads, originated, held, batches);
        add!(busy_nanos, head_room_mismatch, reselected, rehashed);
        add!(flows.entries, flows.capacity, flows.hits, flows.misses, flows.inserts, flows.refreshes);
        add!(flows.expired, flows.evicted, flows.untracked);
        add!(socket.rx_dropped, socket.rx_ring_full, socket.rx_fill_ring_empty, socket.rx_invalid);
        add!(socket.tx_invalid, socket.tx_ring_empty, socket.fill_low, socket.turns);
        if self.batch_sizes.len() < more.batch_sizes.len() {
            self.batch_sizes.resize(more.batch_sizes.len(), 0);
        }
        for (sum, size) in self.batch_sizes.iter_mut().zip(&more.batch_sizes) {
            *sum += size;
        }
        for (reason, count) in &more.drops {
            *self.drops.entry(reason.clone()).or_default() += count;
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    /// Every number at its own place, whatever fields there are: a field that `add` forgets stays as it was.
    fn numbered(shape: &Value, next: &mut u64) -> Value {
        match shape {
            Value::Object(fields) => {
                fields.iter().map(|(name, field)| (name.clone(), numbered(field, next))).collect()
            }
            Value::Array(items) => items.iter().map(|item| numbered(item, next)).collect(),
            _ => {
                *next += 1;
                (*next).into()
            }
        }
    }

    #[test]
    fn every_field_is_added() {
        let mut shape = serde_json::to_value(ThreadFigures::default()).unwrap();
        shape["batch_sizes"] = json!([0, 0, 0]);
        shape["drops"] = json!({ "no_vip": 0, "ttl": 0 });
        let (mut start, mut more) = (0, 1_000);
        let mut sum: ThreadFigures = serde_json::from_value(numbered(&shape, &mut start)).unwrap();
        let other: ThreadFigures = serde_json::from_value(numbered(&shape, &mut more)).unwrap();
        sum.add(&other);
        fn sums(shape: &Value, next: &mut u64) -> Value {
            match shape {
                Value::Object(fields) => {
                    fields.iter().map(|(name, field)| (name.clone(), sums(field, next))).collect()
                }
                Value::Array(items) => items.iter().map(|item| sums(item, next)).collect(),
                _ => {
                    *next += 1;
                    (*next + *next + 1_000).into()
                }
            }
        }
        assert_eq!(serde_json::to_value(sum).unwrap(), sums(&shape, &mut 0));
    }

    #[test]
    fn a_thread_with_more_batch_sizes_and_reasons_brings_them() {
        let mut sum = ThreadFigures { batch_sizes: vec![1], ..ThreadFigures::default() };
        let more = ThreadFigures {
            batch_sizes: vec![2, 3],
            drops: [("ttl".to_owned(), 4)].into(),
            ..ThreadFigures::default()
        };
        sum.add(&more);
        assert_eq!((sum.batch_sizes, sum.drops["ttl"]), (vec![3, 3], 4));
    }
}
