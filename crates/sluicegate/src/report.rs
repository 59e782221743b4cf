//! The figures of a running balancer, as JSON.
//!
//! Sums are made here, when somebody asks; packet threads only add to their own counters.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use datapath::steer::SteerCounts;
use datapath::{DataPlane, SocketCounters};
use forwarder::{DropReason, PairCounter, Snapshot, ThreadCounters};
use serde_json::{Map, Value, json};

/// Everything that is counted, at one moment.
pub(crate) fn report(plane: &mut DataPlane, snapshot: &Snapshot) -> Value {
    let xdp = match plane.steer().counts() {
        Ok(counts) => xdp(&counts),
        Err(error) => json!({ "error": error.to_string() }),
    };
    let threads: Vec<Value> = plane
        .counters()
        .iter()
        .zip(plane.sockets())
        .map(|(counters, socket)| thread(counters, socket))
        .collect();
    let name = plane.interface().name.clone();
    let mut mode = Map::new();
    mode.insert(name, plane.socket_mode().name().into());
    json!({
        "generation": snapshot.generation().0,
        "xdp": xdp,
        "xdp_mode": plane.attach_mode().name(),
        "mode": mode,
        "total": sum(&threads),
        "threads": threads,
        "backends": by_backend(plane.counters(), snapshot),
        "services": by_service(plane.counters(), snapshot),
    })
}

fn xdp(counts: &SteerCounts) -> Value {
    json!({
        "redirected": counts.redirected,
        "passed": counts.passed,
        "multicast": counts.multicast,
        "neighbour_discovery": counts.neighbour_discovery,
        "no_socket": counts.no_socket,
        "no_head_room": counts.no_head_room,
        "socket_gone": counts.socket_gone,
    })
}

fn thread(counters: &ThreadCounters, socket: &SocketCounters) -> Value {
    let drops: Map<String, Value> = DropReason::ALL
        .iter()
        .map(|reason| (reason.name().to_owned(), counters.drops(*reason).into()))
        .collect();
    let flows = &counters.flow_table;
    let kernel = |counter: &std::sync::atomic::AtomicU64| counter.load(Ordering::Relaxed);
    json!({
        "rx": counters.rx_packets.read(),
        "rx_bytes": counters.rx_bytes.read(),
        "tx": counters.tx_packets.read(),
        "tx_bytes": counters.tx_bytes.read(),
        "replies": counters.replies.read(),
        "to_threads": counters.to_threads.read(),
        "from_threads": counters.from_threads.read(),
        "originated": counters.originated.read(),
        "held": counters.held.read(),
        "batches": counters.batches.read(),
        "busy_nanos": counters.busy_nanos.read(),
        "head_room_mismatch": counters.head_room_mismatch.read(),
        "reselected": counters.reselected.read(),
        "rehashed": counters.rehashed.read(),
        "drops": drops,
        "flows": {
            "entries": flows.flows.read(),
            "hits": flows.flow_hits.read(),
            "misses": flows.flow_misses.read(),
            "inserts": flows.flow_inserts.read(),
            "refreshes": flows.flow_refreshes.read(),
            "expired": flows.flow_expired.read(),
            "evicted": flows.flow_evicted.read(),
            "untracked": flows.flow_untracked.read(),
        },
        "socket": {
            "rx_dropped": kernel(&socket.rx_dropped),
            "rx_ring_full": kernel(&socket.rx_ring_full),
            "rx_fill_ring_empty": kernel(&socket.rx_fill_ring_empty),
            "rx_invalid": kernel(&socket.rx_invalid),
            "tx_invalid": kernel(&socket.tx_invalid),
            "tx_ring_empty": kernel(&socket.tx_ring_empty),
            "fill_low": kernel(&socket.fill_low),
            "turns": kernel(&socket.turns),
        },
    })
}

/// Adds numbers of the same name, in nested objects too.
fn sum(threads: &[Value]) -> Value {
    let mut total = Map::new();
    for thread in threads {
        add(&mut total, thread);
    }
    total.into()
}

fn add(total: &mut Map<String, Value>, more: &Value) {
    for (key, value) in more.as_object().into_iter().flatten() {
        if value.is_object() {
            let inner = total.entry(key).or_insert_with(|| Value::Object(Map::new()));
            if let Some(inner) = inner.as_object_mut() {
                add(inner, value);
            }
        } else {
            let before = total.get(key).and_then(Value::as_u64).unwrap_or(0);
            total.insert(key.clone(), (before + value.as_u64().unwrap_or(0)).into());
        }
    }
}

/// By backend's name, over all its slots.
fn by_backend(counters: &[Arc<ThreadCounters>], snapshot: &Snapshot) -> Value {
    let mut rows: BTreeMap<&str, (u64, u64)> = BTreeMap::new();
    for (number, slot) in (0..).zip(snapshot.slots()) {
        pairs(rows.entry(&slot.backend).or_default(), counters.iter().filter_map(|c| c.backend(number)));
    }
    named(rows)
}

fn by_service(counters: &[Arc<ThreadCounters>], snapshot: &Snapshot) -> Value {
    let mut rows: BTreeMap<&str, (u64, u64)> = BTreeMap::new();
    for service in snapshot.services() {
        pairs(
            rows.entry(&service.name).or_default(),
            counters.iter().filter_map(|c| c.service(service.id.0)),
        );
    }
    named(rows)
}

fn pairs<'a>(row: &mut (u64, u64), counters: impl Iterator<Item = &'a PairCounter>) {
    for pair in counters {
        row.0 += pair.packets.read();
        row.1 += pair.bytes.read();
    }
}

fn named(rows: BTreeMap<&str, (u64, u64)>) -> Value {
    let row = |(name, (packets, bytes)): (&str, (u64, u64))| {
        (name.to_owned(), json!({ "packets": packets, "bytes": bytes }))
    };
    Value::Object(rows.into_iter().map(row).collect())
}
