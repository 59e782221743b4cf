//! The stats of a running balancer, read when somebody asks; packet threads only add to their own counters.
//!
//! In: the data plane's counters, the snapshot that names slots and services. Out: [`Stats`].

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use admin::stats::{
    FlowTableStats, FragmentTableStats, InterfaceStats, SocketStats, Stats, ThreadStats, TrafficStats,
    XdpStats,
};
use datapath::steer::SteerCounts;
use datapath::{DataPlane, SocketCounters};
use forwarder::{Counter, DropReason, FragmentGauges, PairCounter, Snapshot, ThreadCounters, TraceRefusal};

/// Everything that is counted, at one moment.
pub(crate) fn stats(plane: &mut DataPlane, snapshot: &Snapshot) -> Stats {
    let xdp = plane.steer().counts().map(|counts| xdp(&counts)).unwrap_or_else(|error| {
        tracing::warn!(%error, "the XDP program's counters can't be read");
        XdpStats::default()
    });
    let threads: Vec<ThreadStats> = plane
        .counters()
        .iter()
        .zip(plane.sockets())
        .map(|(counters, socket)| thread(counters, socket))
        .collect();
    let mut total = ThreadStats::default();
    for thread in &threads {
        total += thread;
    }
    let mode = plane.socket_mode().name();
    let mut stats = Stats {
        generation: snapshot.generation().0,
        xdp,
        xdp_mode: plane.attach_mode().name().to_owned(),
        mode: plane.interfaces().iter().map(|one| (one.name.clone(), mode.to_owned())).collect(),
        interfaces: interfaces(plane),
        total,
        threads,
        ..Stats::default()
    };
    for (number, slot) in (0..).zip(snapshot.slots()) {
        let traffic = of_slot(plane.counters(), number);
        let row = stats.backends.entry(slot.backend.to_string()).or_default();
        *row += traffic;
    }
    for service in snapshot.services() {
        let traffic = of_service(plane.counters(), service.id.0);
        stats.services.insert(service.name.to_string(), traffic);
    }
    stats
}

/// What the sockets of each interface carried, over all threads.
fn interfaces(plane: &DataPlane) -> BTreeMap<String, InterfaceStats> {
    let sum = |place: usize| {
        let links = plane.sockets().iter().flat_map(|thread| &thread.links);
        let own = links.filter(|link| usize::from(link.interface.0) == place);
        own.fold(InterfaceStats::default(), |sum, link| InterfaceStats {
            sockets: sum.sockets + 1,
            rx: sum.rx + link.rx.load(Ordering::Relaxed),
            tx: sum.tx + link.tx.load(Ordering::Relaxed),
            lost: sum.lost + link.lost.load(Ordering::Relaxed),
        })
    };
    plane.interfaces().iter().enumerate().map(|(place, one)| (one.name.clone(), sum(place))).collect()
}

/// Packets of a slot, over all threads.
pub(crate) fn of_slot(threads: &[Arc<ThreadCounters>], slot: u32) -> TrafficStats {
    traffic(threads.iter().filter_map(|counters| counters.backend(slot)))
}

/// Packets of a service, over all threads.
pub(crate) fn of_service(threads: &[Arc<ThreadCounters>], service: u32) -> TrafficStats {
    traffic(threads.iter().filter_map(|counters| counters.service(service)))
}

fn traffic<'a>(pairs: impl Iterator<Item = &'a PairCounter>) -> TrafficStats {
    let mut sum = TrafficStats::default();
    for pair in pairs {
        sum += TrafficStats {
            packets: pair.packets.read(),
            bytes: pair.bytes.read(),
            new_flows: pair.flows.read(),
        };
    }
    sum
}

fn xdp(counts: &SteerCounts) -> XdpStats {
    XdpStats {
        redirected: counts.redirected,
        passed: counts.passed,
        multicast: counts.multicast,
        neighbour_discovery: counts.neighbour_discovery,
        no_socket: counts.no_socket,
        no_head_room: counts.no_head_room,
        socket_gone: counts.socket_gone,
    }
}

/// One thread's.
pub(crate) fn thread(counters: &ThreadCounters, socket: &SocketCounters) -> ThreadStats {
    let kernel = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    let flows = &counters.flow_table;
    ThreadStats {
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
        batch_sizes: counters.batch_sizes.iter().map(Counter::read).collect(),
        busy_nanos: counters.busy_nanos.read(),
        head_room_mismatch: counters.head_room_mismatch.read(),
        reselected: counters.reselected.read(),
        rehashed: counters.rehashed.read(),
        time_exceeded: counters.time_exceeded.read(),
        too_big_told: counters.too_big_told.read(),
        opened: counters.opened.read(),
        redirected: counters.redirected.read(),
        remote_flows: counters.remote_flows.read(),
        remote_arrivals: counters.remote_arrivals.read(),
        cut: counters.cut.read(),
        captured: counters.captured.read(),
        capture_lost: counters.capture_lost.read(),
        trace_reports: counters.trace_reports.read(),
        trace_refused: TraceRefusal::ALL
            .iter()
            .map(|refusal| (refusal.name().to_owned(), counters.trace_refusals(*refusal)))
            .collect(),
        drops: DropReason::ALL
            .iter()
            .map(|reason| (reason.name().to_owned(), counters.drops(*reason)))
            .collect(),
        flows: FlowTableStats {
            entries: flows.flows.read(),
            capacity: flows.capacity.read(),
            hits: flows.flow_hits.read(),
            misses: flows.flow_misses.read(),
            inserts: flows.flow_inserts.read(),
            refreshes: flows.flow_refreshes.read(),
            expired: flows.flow_expired.read(),
            evicted: flows.flow_evicted.read(),
            untracked: flows.flow_untracked.read(),
        },
        fragments: fragments(&counters.fragment_table),
        socket: SocketStats {
            rx_dropped: kernel(&socket.rx_dropped),
            rx_ring_full: kernel(&socket.rx_ring_full),
            rx_fill_ring_empty: kernel(&socket.rx_fill_ring_empty),
            rx_invalid: kernel(&socket.rx_invalid),
            tx_invalid: kernel(&socket.tx_invalid),
            tx_ring_empty: kernel(&socket.tx_ring_empty),
            fill_low: kernel(&socket.fill_low),
            turns: kernel(&socket.turns),
        },
    }
}

fn fragments(table: &FragmentGauges) -> FragmentTableStats {
    FragmentTableStats {
        datagrams: table.datagrams.read(),
        held: table.held.read(),
        recorded: table.recorded.read(),
        duplicates: table.duplicates.read(),
        followed: table.followed.read(),
        waited: table.waited.read(),
        released: table.released.read(),
        evicted: table.evicted.read(),
        succeeded: table.succeeded.read(),
    }
}
