//! The definitions of all exported metrics: name, kind, unit, labels and help text.
//!
//! Metrics of packet threads, sockets and the XDP program are defined in the tables of the crate
//! `counters`, and all other metrics in this file. Tests compare the exposition,
//! `docs/reference/metrics.md`, the alert rules and the dashboard with [`all`]. The module
//! `samples` computes the values of the metrics.

use counters::{Kind, Metric};
use prometheus::core::Desc;

pub(super) fn describe(metric: &Metric) -> prometheus::Result<Desc> {
    let labels = metric.labels.iter().map(|&label| label.to_owned()).collect();
    Desc::new(metric.name.to_owned(), metric.help.to_owned(), labels, std::collections::HashMap::new())
}

/// Returns all metrics in the order of the reference page, starting with the metrics of this file.
pub(super) fn all() -> Vec<Metric> {
    let groups =
        [counters::XDP, counters::SOCKET, counters::THREAD, counters::FLOW_TABLE, counters::FRAGMENT_TABLE];
    let mut all = OWN.to_vec();
    all.extend(groups.into_iter().flatten().map(|spec| match spec.metric {
        metric @ Metric { unit: NANOSECONDS, .. } => Metric { unit: "seconds", ..metric },
        metric => metric,
    }));
    all.dedup_by_key(|metric| metric.name);
    all
}

macro_rules! catalogue {
    ($($name:ident: $kind:ident $unit:literal $text:literal [$($label:literal),*] $help:literal;)+) => {
        $(
            #[doc = $help]
            pub(super) const $name: Metric = Metric {
                name: concat!("sluicegate_", $text),
                kind: Kind::$kind,
                unit: $unit,
                labels: &[$($label),*],
                help: $help,
            };
        )+
        const OWN: &[Metric] = &[$($name),+];
    };
}

catalogue! {
    VIP_PACKETS: Counter "packets" "vip_packets_total" ["vip", "protocol", "ports"]
        "Packets forwarded to a backend of this service.";
    VIP_BYTES: Counter "bytes" "vip_bytes_total" ["vip", "protocol", "ports"]
        "Bytes in packets that were forwarded for this service, as received, including Ethernet headers.";
    VIP_NEW_FLOWS: Counter "flows" "vip_new_flows_total" ["vip", "protocol", "ports"]
        "Flows of this service that were assigned to a backend: new flows, and flows whose previous backend was unavailable.";
    VIP_FLOWS: Gauge "flows" "vip_flows" ["vip", "protocol", "ports"]
        "Flows of this service in the connection tables, counted at the scrape (no series if counting took too long).";
    VIP_SERVING: Gauge "backends" "vip_backends_serving" ["vip", "protocol", "ports"]
        "Backends of this service that currently accept new flows.";
    VIP_MEMBERS: Gauge "backends" "vip_backends" ["vip", "protocol", "ports"]
        "Backends of this service in the current configuration.";
    BACKEND_PACKETS: Counter "packets" "backend_packets_total" ["backend"]
        "Packets forwarded to this backend, over all its pools.";
    BACKEND_BYTES: Counter "bytes" "backend_bytes_total" ["backend"]
        "Bytes in packets that were forwarded to this backend, as received, including Ethernet headers.";
    BACKEND_FLOWS: Gauge "flows" "backend_flows" ["backend"]
        "Flows of this backend in the connection tables, over all its pools, counted at the scrape.";
    BACKEND_NEW_FLOWS: Counter "flows" "backend_new_flows_total" ["backend"]
        "Flows that were assigned to this backend: new flows, and flows whose previous backend was unavailable.";

    HEALTH_UP: Gauge "0 or 1" "health_up" ["backend", "pool", "check"]
        "1 if this health check of the backend passes, 0 if it fails (no series before the first result).";
    HEALTH_CHECKS: Gauge "checks" "health_checks" ["state"]
        "Health checks by state (up, down, unknown), including checks above the limit of sluicegate_health_up.";
    LOCAL_FAILURE: Gauge "0 or 1" "local_failure" []
        "1 if so many backends failed at once that the machine assumes a local failure and freezes all health states.";
    HEALTH_UNABLE: Gauge "targets" "health_unable" []
        "Check targets that this machine could not check several times in a row (for example for lack of ports or permissions), \
         so that their health states are frozen.";
    READY: Gauge "0 or 1" "ready" []
        "1 if the machine is ready for traffic: forwarding works, an interface has a link, no drain is active, and at least one VIP is announced if the machine announces any.";
    FORWARDER_HEALTHY: Gauge "0 or 1" "forwarder_healthy" []
        "1 if every packet thread with pending packets makes progress, all sockets work, and the XDP program is attached.";
    FORWARDER_UNHEALTHY: Counter "seconds" "forwarder_unhealthy_seconds_total" []
        "Time for which the forwarder was unhealthy. It includes stalls between two scrapes.";

    BGP_UP: Gauge "0 or 1" "bgp_session_up" ["peer"]
        "1 if the BGP session with this peer is established, otherwise 0.";
    BGP_SESSIONS: Counter "sessions" "bgp_sessions_total" ["peer"]
        "BGP sessions that were established with this peer.";
    BGP_ROUTES: Gauge "routes" "bgp_announced_routes" ["peer", "family"]
        "Routes of this address family (ipv4 or ipv6) that are currently announced to this peer.";
    BFD_UP: Gauge "0 or 1" "bfd_session_up" ["peer"]
        "1 if the BFD session with this peer is up, otherwise 0 (no series for peers without BFD).";
    VIP_ANNOUNCED: Gauge "0 or 1" "vip_announced" ["vip", "family"]
        "1 if the routes of this VIP in this address family (ipv4 or ipv6) were sent to a peer that negotiated the family, \
         otherwise 0 (no series for VIPs that the configuration does not announce).";
    VIP_NOT_ANNOUNCED: Counter "seconds" "vip_not_announced_seconds_total" ["vip", "family"]
        "Time for which this VIP did not qualify for an announcement, not counting drains. It includes outages between two scrapes. \
         The label family is empty, unless backends are checked through the VIP and the families are therefore decided separately.";
    VIP_WITHDRAWALS: Counter "withdrawals" "vip_withdrawals_total" ["vip", "family"]
        "Withdrawals of this VIP because it no longer met the conditions for an announcement, not counting drains and withdrawals by an operator. \
         The label family is empty, unless backends are checked through the VIP and the families are therefore decided separately.";

    DROPS: Counter "packets" "dropped_packets_total" ["reason"]
        "Packets that a packet thread dropped for this reason.";
    REQUESTS: Counter "requests" "keyed_requests_total" ["verb"]
        "Requests to keyed services by verb: the memcached command, or the word request for other protocols.";
    XDP_MODE: Gauge "1" "xdp_mode_info" ["mode"]
        "Always 1, with the attach mode of the XDP program as a label: driver or generic, or ingress for packet sockets.";
    SOCKET_MODE: Gauge "1" "xdp_socket_mode_info" ["interface", "mode"]
        "Always 1, with the socket mode of the interface as a label: zero-copy or copy, or af-packet for packet sockets.";
    INTERFACE_UP: Gauge "0 or 1" "interface_up" ["interface"]
        "1 if this interface is up and has carrier, otherwise 0 (checked every second).";
    INTERFACE_MTU: Gauge "0 or 1" "interface_mtu_fits" ["interface"]
        "1 if packet threads accept packets up to the MTU of this interface, 0 if the largest packets are lost (checked \
         every second).";
    INTERFACE_RX: Counter "packets" "interface_received_packets_total" ["interface"]
        "Frames that packet threads received on this interface.";
    INTERFACE_TX: Counter "packets" "interface_sent_packets_total" ["interface"]
        "Frames that packet threads sent on this interface, to backends and as replies.";
    INTERFACE_LOST: Counter "packets" "interface_lost_packets_total" ["interface"]
        "Frames on this interface that the kernel dropped before they reached a receive ring.";

    TRACE_REFUSED: Counter "packets" "thread_trace_refused_packets_total" ["thread", "reason"]
        "Packets that looked like trace packets, but were forwarded without a trace report for this reason.";
    BATCH: Histogram "packets" "batch_packets" []
        "Non-empty batches of all threads, by number of packets.";

    GENERATION: Gauge "number" "generation" []
        "Number of the current configuration generation, which increases with every reload that changes something.";
    CONFIG: Gauge "1" "config_info" ["boot_id", "digest"]
        "Always 1, with the ID of this process and the first 12 hexadecimal digits of the configuration digest as labels \
         (the digest must be the same on all machines of a cluster, and covers the hash key).";
    TABLES_DIGEST: Gauge "number" "tables_digest" ["shard"]
        "First 52 bits of the digest of the current tables, which becomes the same on all machines of a shard within a few check \
         intervals after a change.";
    TABLE_ALGORITHM: Gauge "number" "table_algorithm" []
        "Version of the Maglev table algorithm, which must be the same on all machines of a cluster.";
    RELOAD_OK: Gauge "0 or 1" "last_reload_success" []
        "1 if the last reload was accepted, 0 if it was rejected (no series before the first reload).";
    RELOAD_SECONDS: Gauge "seconds" "last_reload_duration_seconds" []
        "Duration of the last reload, from reading the configuration to its publication or rejection.";
    RELOAD_TIME: Gauge "seconds" "last_reload_timestamp_seconds" []
        "Time when the last reload ended, in seconds since 1970.";
    BUILD: Gauge "1" "build_info" ["version", "commit"]
        "Always 1, with the version of the program and its commit as labels.";
}

/// The unit of counters that are exported in seconds.
pub(super) const NANOSECONDS: &str = "nanoseconds";
