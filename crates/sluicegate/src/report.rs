//! The figures of a running balancer.
//!
//! Sums are made here, when somebody asks; packet threads only add to their own counters.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use control_plane::figures::{
    Figures, FlowFigures, SocketFigures, ThreadFigures, TrafficFigures, XdpFigures,
};
use datapath::steer::SteerCounts;
use datapath::{DataPlane, SocketCounters};
use forwarder::{DropReason, PairCounter, Snapshot, ThreadCounters};

/// Everything that is counted, at one moment.
pub(crate) fn report(plane: &mut DataPlane, snapshot: &Snapshot) -> Figures {
    let counts = plane.steer().counts();
    if let Err(error) = &counts {
        tracing::warn!(%error, "the XDP program's counters can't be read");
    }
    let threads: Vec<ThreadFigures> = plane
        .counters()
        .iter()
        .zip(plane.sockets())
        .map(|(counters, socket)| thread(counters, socket))
        .collect();
    Figures {
        generation: snapshot.generation().0,
        xdp: counts.map(|counts| xdp(&counts)).unwrap_or_default(),
        xdp_mode: plane.attach_mode().name().to_owned(),
        mode: [(plane.interface().name.clone(), plane.socket_mode().name().to_owned())].into(),
        total: sum(&threads),
        threads,
        backends: by_backend(plane.counters(), snapshot),
        services: by_service(plane.counters(), snapshot),
    }
}

fn xdp(counts: &SteerCounts) -> XdpFigures {
    XdpFigures {
        redirected: counts.redirected,
        passed: counts.passed,
        multicast: counts.multicast,
        neighbour_discovery: counts.neighbour_discovery,
        no_socket: counts.no_socket,
        no_head_room: counts.no_head_room,
        socket_gone: counts.socket_gone,
    }
}

fn thread(counters: &ThreadCounters, socket: &SocketCounters) -> ThreadFigures {
    let flows = &counters.flow_table;
    let kernel = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    ThreadFigures {
        rx: counters.rx_packets.read(),
        rx_bytes: counters.rx_bytes.read(),
        tx: counters.tx_packets.read(),
        tx_bytes: counters.tx_bytes.read(),
        replies: counters.replies.read(),
        to_threads: counters.to_threads.read(),
        from_threads: counters.from_threads.read(),
        originated: counters.originated.read(),
        held: counters.held.read(),
        batches: counters.batches.read(),
        busy_nanos: counters.busy_nanos.read(),
        head_room_mismatch: counters.head_room_mismatch.read(),
        reselected: counters.reselected.read(),
        rehashed: counters.rehashed.read(),
        drops: DropReason::ALL.iter().map(|why| (why.name().to_owned(), counters.drops(*why))).collect(),
        flows: FlowFigures {
            entries: flows.flows.read(),
            hits: flows.flow_hits.read(),
            misses: flows.flow_misses.read(),
            inserts: flows.flow_inserts.read(),
            refreshes: flows.flow_refreshes.read(),
            expired: flows.flow_expired.read(),
            evicted: flows.flow_evicted.read(),
            untracked: flows.flow_untracked.read(),
            ..FlowFigures::default()
        },
        socket: SocketFigures {
            rx_dropped: kernel(&socket.rx_dropped),
            rx_ring_full: kernel(&socket.rx_ring_full),
            rx_fill_ring_empty: kernel(&socket.rx_fill_ring_empty),
            rx_invalid: kernel(&socket.rx_invalid),
            tx_invalid: kernel(&socket.tx_invalid),
            tx_ring_empty: kernel(&socket.tx_ring_empty),
            fill_low: kernel(&socket.fill_low),
            turns: kernel(&socket.turns),
        },
        ..ThreadFigures::default()
    }
}

fn sum(threads: &[ThreadFigures]) -> ThreadFigures {
    let mut total = ThreadFigures::default();
    for thread in threads {
        total.add(thread);
    }
    total
}

/// By backend's name, over all its slots.
fn by_backend(counters: &[Arc<ThreadCounters>], snapshot: &Snapshot) -> BTreeMap<String, TrafficFigures> {
    let mut rows = BTreeMap::new();
    for (number, slot) in (0..).zip(snapshot.slots()) {
        add(
            rows.entry(slot.backend.to_string()).or_default(),
            counters.iter().filter_map(|c| c.backend(number)),
        );
    }
    rows
}

fn by_service(counters: &[Arc<ThreadCounters>], snapshot: &Snapshot) -> BTreeMap<String, TrafficFigures> {
    let mut rows = BTreeMap::new();
    for service in snapshot.services() {
        add(
            rows.entry(service.name.to_string()).or_default(),
            counters.iter().filter_map(|c| c.service(service.id.0)),
        );
    }
    rows
}

fn add<'a>(row: &mut TrafficFigures, counters: impl Iterator<Item = &'a PairCounter>) {
    for pair in counters {
        row.packets += pair.packets.read();
        row.bytes += pair.bytes.read();
    }
}
