//! Every metric that is exported: its name, kind, labels, and when it moves.
//!
//! Those of packet threads, sockets and the XDP program come from the table of the crate `counters`, all others stand here. The
//! exposition, `docs/metrics.md`, the alert rules and the dashboard are tested against [`all`].
//! Not here: where a value comes from (`samples`).

use counters::{Kind, Metric};
use prometheus::core::Desc;

pub(super) fn describe(metric: &Metric) -> prometheus::Result<Desc> {
    let labels = metric.labels.iter().map(|&label| label.to_owned()).collect();
    Desc::new(metric.name.to_owned(), metric.help.to_owned(), labels, std::collections::HashMap::new())
}

/// All of them, in the order of the document: first those of this file.
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
    // VIPs and backends.
    VIP_PACKETS: Counter "packets" "vip_packets_total" ["vip", "protocol", "ports"]
        "Packets decided for a backend of this VIP's service.";
    VIP_BYTES: Counter "bytes" "vip_bytes_total" ["vip", "protocol", "ports"]
        "Bytes of those packets as received, Ethernet header included.";
    VIP_NEW_FLOWS: Counter "flows" "vip_new_flows_total" ["vip", "protocol", "ports"]
        "Flows to this VIP's service that were new, or whose backend was gone so that another was chosen.";
    VIP_FLOWS: Gauge "flows" "vip_flows" ["vip", "protocol", "ports"]
        "Flows to this VIP's service that connection tables have, counted at the scrape; no series where that took too long.";
    VIP_SERVING: Gauge "backends" "vip_backends_serving" ["vip", "protocol", "ports"]
        "Backends that take new flows of this VIP's service now.";
    VIP_MEMBERS: Gauge "backends" "vip_backends" ["vip", "protocol", "ports"]
        "Backends that the configuration in force gives to this VIP's service.";
    BACKEND_PACKETS: Counter "packets" "backend_packets_total" ["backend"]
        "Packets decided for this backend, in all its pools.";
    BACKEND_BYTES: Counter "bytes" "backend_bytes_total" ["backend"]
        "Bytes of those packets as received, Ethernet header included.";
    BACKEND_FLOWS: Gauge "flows" "backend_flows" ["backend"]
        "Flows of this backend, in all its pools, that connection tables have, counted at the scrape.";
    BACKEND_NEW_FLOWS: Counter "flows" "backend_new_flows_total" ["backend"]
        "Flows that were given to this backend: new ones, and those whose backend was gone.";

    // Health.
    HEALTH_UP: Gauge "0 or 1" "health_up" ["backend", "pool", "check"]
        "1 while this check's verdict on the backend is up, 0 while it is down, and no series before its first verdict.";
    HEALTH_CHECKS: Gauge "checks" "health_checks" ["state"]
        "Checks by verdict (up, down, unknown), those over the bound of sluicegate_health_up included.";
    LOCAL_FAILURE: Gauge "0 or 1" "local_failure" []
        "1 while so many backends failed at once that the machine blames itself and keeps the last verdicts.";
    HEALTH_UNABLE: Gauge "targets" "health_unable" []
        "Targets of checks that this machine has not been able to ask several times in a row (no port, no permission): their \
         last verdicts stay.";
    READY: Gauge "0 or 1" "ready" []
        "1 while traffic would be served: every VIP that must be has a backend, the forwarder is healthy, no drain.";
    FORWARDER_HEALTHY: Gauge "0 or 1" "forwarder_healthy" []
        "1 while every packet thread that has packets makes progress, every socket lives and the XDP program is attached.";

    // Routers.
    BGP_UP: Gauge "0 or 1" "bgp_session_up" ["peer"]
        "1 while the BGP session with this peer of the machine is established, 0 while it is not.";
    BGP_SESSIONS: Counter "sessions" "bgp_sessions_total" ["peer"]
        "BGP sessions with this peer that were established.";
    BGP_ROUTES: Gauge "routes" "bgp_announced_routes" ["peer", "family"]
        "Routes of this family (ipv4, ipv6) that this peer has from the machine now.";
    BFD_UP: Gauge "0 or 1" "bfd_session_up" ["peer"]
        "1 while BFD with this peer is up, 0 while it is not, and no series for a peer without BFD.";
    VIP_ANNOUNCED: Gauge "0 or 1" "vip_announced" ["vip"]
        "1 while this VIP qualifies and is announced, 0 while it is not (a drain included), and no series for one that the file \
         does not announce.";
    VIP_WITHDRAWALS: Counter "withdrawals" "vip_withdrawals_total" ["vip"]
        "Withdrawals of this VIP because it no longer qualified; those of a drain are not counted.";

    // Drops and the XDP program.
    DROPS: Counter "packets" "dropped_packets_total" ["reason"]
        "Packets that a packet thread dropped for this reason.";
    REQUESTS: Counter "requests" "keyed_requests_total" ["verb"]
        "Requests for keyed services that packet threads read, by their verb: memcached's, or request of protocols whose verbs \
         are not known.";
    XDP_MODE: Gauge "1" "xdp_mode_info" ["mode"]
        "Always 1: the label says how the XDP program is attached, driver or generic; ingress: there is none, and packet sockets.";
    SOCKET_MODE: Gauge "1" "xdp_socket_mode_info" ["interface", "mode"]
        "Always 1: the label says how this interface's sockets are bound, zero-copy or copy, or that they are packet sockets, af-packet.";
    INTERFACE_UP: Gauge "0 or 1" "interface_up" ["interface"]
        "1 while this interface is switched on and has carrier, 0 while not, so that no packet comes in or goes out by it; looked at \
         every second.";
    INTERFACE_MTU: Gauge "0 or 1" "interface_mtu_fits" ["interface"]
        "1 while packets as long as this interface's MTU fit into what packet threads take, 0 while longer ones are lost; looked at \
         every second.";
    INTERFACE_RX: Counter "packets" "interface_received_packets_total" ["interface"]
        "Frames that packet threads took from this interface's receive rings.";
    INTERFACE_TX: Counter "packets" "interface_sent_packets_total" ["interface"]
        "Frames, for backends and answers, that this interface's transmit rings took.";
    INTERFACE_LOST: Counter "packets" "interface_lost_packets_total" ["interface"]
        "Frames that the kernel dropped before this interface's receive rings.";

    // Packet threads.
    TRACE_REFUSED: Counter "packets" "thread_trace_refused_packets_total" ["thread", "reason"]
        "Packets that began like a marked one and were forwarded without a report, for this reason.";
    BATCH: Histogram "packets" "batch_packets" []
        "Batches that were not empty, over all threads, by the packets in them.";

    // Configuration.
    GENERATION: Gauge "number" "generation" []
        "Number of the configuration in force, counted from the start of the process; it moves at every reload that \
         changes something, and at nothing else.";
    CONFIG: Gauge "1" "config_info" ["boot_id", "digest"]
        "Always 1: the labels are this start of the process and the first 12 hexadecimal digits of the digest of what is \
         configured and must agree on all machines of a cluster, the hash key included.";
    TABLES_DIGEST: Gauge "number" "tables_digest" ["shard"]
        "The first 52 bits of the digest of the tables in force, as a number: it must agree on all machines of a shard, a few \
         check intervals after a change.";
    TABLE_ALGORITHM: Gauge "number" "table_algorithm" []
        "Version of the table algorithm: machines with different ones choose differently.";
    RELOAD_OK: Gauge "0 or 1" "last_reload_success" []
        "1 when the last reload was taken, 0 when it was refused, and no series before the first.";
    RELOAD_SECONDS: Gauge "seconds" "last_reload_duration_seconds" []
        "How long the last reload took from reading the file to its publication or refusal.";
    RELOAD_TIME: Gauge "seconds" "last_reload_timestamp_seconds" []
        "When the last reload ended, in seconds since 1970.";
    BUILD: Gauge "1" "build_info" ["version", "commit"]
        "Always 1: the labels are the program's version and the commit that it was built from.";
}

/// Counters of this unit are shown in seconds.
pub(super) const NANOSECONDS: &str = "nanoseconds";
