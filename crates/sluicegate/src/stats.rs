//! Reads all counters of the running balancer when an API client requests them. Each packet thread
//! only increments its own counters.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::Arc;

use admin::stats::{
    FlowTableStats, FragmentTableStats, InterfaceStats, SocketStats, Stats, ThreadStats, TrafficStats,
    XdpStats,
};
use compile::Index;
use config::words::few;
use datapath::{DataPlane, SocketCounters};
use forwarder::{Counter, DropReason, PairCounter, Service, SlotId, Snapshot, ThreadCounters, TraceRefusal};

/// Collects all counters. The names of slots and services come from the snapshot.
pub(crate) fn stats(plane: &mut DataPlane, snapshot: &Snapshot, index: &Index) -> Stats {
    let xdp =
        plane.steers.counts().map(|counts| XdpStats::from_values(counts.values())).unwrap_or_else(|error| {
            // log: The counters of the XDP program cannot be read, so its metrics are reported as
            // 0. Report a bug if the line is repeated.
            tracing::warn!(%error, "XDP counters not readable");
            XdpStats::default()
        });
    let threads: Vec<ThreadStats> = plane
        .counters
        .iter()
        .zip(&plane.sockets)
        .map(|(counters, socket)| thread(counters, socket))
        .collect();
    let mut total = ThreadStats::default();
    threads.iter().for_each(|thread| total += thread);
    let mode = plane.socket_mode.name();
    Stats {
        generation: snapshot.generation().0,
        xdp,
        xdp_mode: plane.steers.mode().name().to_owned(),
        mode: plane.interfaces.iter().map(|one| (one.name.clone(), mode.to_owned())).collect(),
        interfaces: interfaces(plane),
        total,
        threads,
        packet_threads: plane.packet_threads(),
        backends: backends(&plane.counters, snapshot, index),
        services: services(&plane.counters, snapshot),
    }
}

/// Describes the most frequent drop reasons with their counts.
pub(crate) fn most_drops(total: &ThreadStats) -> String {
    let mut drops: Vec<_> = total.drops.iter().filter(|(_, count)| **count > 0).collect();
    drops.sort_by_key(|(_, count)| Reverse(**count));
    few(drops.into_iter().map(|(reason, count)| format!("{reason} {count}")))
}

/// Sums the traffic by backend name, because one backend may have several slots. Slots that
/// redirect to other machines of the shard are left out.
fn backends(
    threads: &[Arc<ThreadCounters>],
    snapshot: &Snapshot,
    index: &Index,
) -> BTreeMap<String, TrafficStats> {
    let mut backends = BTreeMap::new();
    for (number, slot) in (0..).zip(snapshot.slots()).filter(|(number, _)| !index.is_peer(SlotId(*number))) {
        let row: &mut TrafficStats = backends.entry(slot.backend.to_string()).or_default();
        *row += of_slot(threads, number);
    }
    backends
}

fn services(threads: &[Arc<ThreadCounters>], snapshot: &Snapshot) -> BTreeMap<String, TrafficStats> {
    let row = |service: &Service| (service.name.to_string(), of_service(threads, service.id.0));
    snapshot.services().iter().map(row).collect()
}

/// Sums each interface's traffic over the sockets of all threads.
fn interfaces(plane: &DataPlane) -> BTreeMap<String, InterfaceStats> {
    let sum = |place: usize| {
        let links = plane.sockets.iter().flat_map(|thread| &thread.links);
        let own = links.filter(|link| usize::from(link.interface.0) == place);
        own.fold(InterfaceStats::default(), |sum, link| InterfaceStats {
            sockets: sum.sockets + 1,
            rx: sum.rx + link.rx.read(),
            tx: sum.tx + link.tx.read(),
            lost: sum.lost + link.lost.read(),
        })
    };
    plane.interfaces.iter().enumerate().map(|(place, one)| (one.name.clone(), sum(place))).collect()
}

/// Returns the traffic of one slot, summed over all threads.
pub(crate) fn of_slot(threads: &[Arc<ThreadCounters>], slot: u32) -> TrafficStats {
    traffic(threads.iter().filter_map(|counters| counters.backend(slot)))
}

/// Returns the traffic of one service, summed over all threads.
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

pub(crate) fn thread(counters: &ThreadCounters, socket: &SocketCounters) -> ThreadStats {
    let by_name = |name: &str, count| (name.to_owned(), count);
    ThreadStats {
        batches: counters.batches.read(),
        batch_sizes: counters.batch_sizes.iter().map(Counter::read).collect(),
        trace_refused: TraceRefusal::ALL
            .iter()
            .map(|refusal| by_name(refusal.name(), counters.trace_refusals(*refusal)))
            .collect(),
        drops: DropReason::ALL.iter().map(|reason| by_name(reason.name(), counters.drops(*reason))).collect(),
        requests: counters.requests().map(|(verb, count)| by_name(verb, count)).collect(),
        flows: FlowTableStats::from_values(counters.flow_table.values()),
        fragments: FragmentTableStats::from_values(counters.fragment_table.values()),
        socket: SocketStats::from_values(socket.values()),
        ..ThreadStats::from_values(counters.values())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_line_names_the_largest_drops_however_many_there_are() {
        let all = DropReason::ALL.iter().zip(0..).map(|(reason, n)| (reason.name().to_owned(), u64::MAX - n));
        let mut total = ThreadStats { drops: all.collect(), ..ThreadStats::default() };
        let said = most_drops(&total);
        assert!(said.starts_with(&format!("{} {}, ", DropReason::ALL[0].name(), u64::MAX)), "{said}");
        assert!(
            said.ends_with(&format!(" and {} more", DropReason::ALL.len() - 3)) && said.len() < 200,
            "{said}"
        );
        total.drops = [("ttl".to_owned(), 0), ("no_vip".to_owned(), 2)].into();
        assert_eq!(most_drops(&total), "no_vip 2");
        assert_eq!(most_drops(&ThreadStats::default()), "none");
    }
}
