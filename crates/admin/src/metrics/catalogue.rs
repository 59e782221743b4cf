//! Every metric that is exported: its name, kind, labels, and when it moves.
//!
//! One table: the exposition, `docs/metrics.md`, the alert rules and the dashboard are tested against it.
//! Not here: where a value comes from (`samples`).

use prometheus::core::Desc;
use prometheus::proto::MetricType;

/// One metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Metric {
    /// By Prometheus conventions: `_total` for counters, base units at the end.
    pub name: &'static str,
    /// What its values do.
    pub kind: Kind,
    /// Its labels, in the order in which samples give their values.
    pub labels: &'static [&'static str],
    /// One sentence: when it moves.
    pub help: &'static str,
}

/// What a metric's values do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Grows from 0 at the start of the process.
    Counter,
    /// Is a level.
    Gauge,
    /// Counts by size.
    Histogram,
}

impl Kind {
    /// As the exposition format writes it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
            Self::Histogram => "histogram",
        }
    }

    pub(super) fn field_type(self) -> MetricType {
        match self {
            Self::Counter => MetricType::COUNTER,
            Self::Gauge => MetricType::GAUGE,
            Self::Histogram => MetricType::HISTOGRAM,
        }
    }
}

impl Metric {
    pub(super) fn describe(&self) -> prometheus::Result<Desc> {
        let labels = self.labels.iter().map(|&label| label.to_owned()).collect();
        Desc::new(self.name.to_owned(), self.help.to_owned(), labels, std::collections::HashMap::new())
    }
}

macro_rules! catalogue {
    ($($name:ident: $kind:ident $text:literal [$($label:literal),*] $help:literal;)+) => {
        $(
            #[doc = $help]
            pub(super) static $name: Metric =
                Metric { name: concat!("sluicegate_", $text), kind: Kind::$kind, labels: &[$($label),*], help: $help };
        )+
        /// All of them, in the order of the document.
        pub static ALL: &[&Metric] = &[$(&$name),+];
    };
}

catalogue! {
    // VIPs and backends.
    VIP_PACKETS: Counter "vip_packets_total" ["vip", "protocol", "ports"]
        "Packets decided for a backend of this VIP's service.";
    VIP_BYTES: Counter "vip_bytes_total" ["vip", "protocol", "ports"]
        "Bytes of those packets as received, Ethernet header included.";
    VIP_NEW_FLOWS: Counter "vip_new_flows_total" ["vip", "protocol", "ports"]
        "Flows to this VIP's service that were new, or whose backend was gone so that another was chosen.";
    VIP_SERVING: Gauge "vip_backends_serving" ["vip", "protocol", "ports"]
        "Backends that take new flows of this VIP's service now.";
    VIP_MEMBERS: Gauge "vip_backends" ["vip", "protocol", "ports"]
        "Backends that the configuration in force gives to this VIP's service.";
    BACKEND_PACKETS: Counter "backend_packets_total" ["backend"]
        "Packets decided for this backend, in all its pools.";
    BACKEND_BYTES: Counter "backend_bytes_total" ["backend"]
        "Bytes of those packets as received, Ethernet header included.";
    BACKEND_NEW_FLOWS: Counter "backend_new_flows_total" ["backend"]
        "Flows that were given to this backend: new ones, and those whose backend was gone.";

    // Health.
    HEALTH_UP: Gauge "health_up" ["backend", "pool", "check"]
        "1 while this check's verdict on the backend is up, 0 while it is down, and no series before its first verdict.";
    HEALTH_CHECKS: Gauge "health_checks" ["state"]
        "Checks by verdict (up, down, unknown), those over the bound of sluicegate_health_up included.";
    OWN_FAULT: Gauge "own_fault" []
        "1 while so many backends failed at once that the machine blames itself and keeps the last verdicts.";
    HEALTH_UNABLE: Gauge "health_unable" []
        "Targets of checks that this machine has not been able to ask several times in a row (no port, no permission): their \
         last verdicts stay.";
    READY: Gauge "ready" []
        "1 while traffic would be served: every VIP that must be has a backend, the forwarder is healthy, no drain.";
    FORWARDER_HEALTHY: Gauge "forwarder_healthy" []
        "1 while every packet thread that has packets makes progress, every socket lives and the XDP program is attached.";

    // Routers.
    BGP_UP: Gauge "bgp_session_up" ["peer"]
        "1 while the BGP session with this peer of the machine is established, 0 while it is not.";
    BGP_SESSIONS: Counter "bgp_sessions_total" ["peer"]
        "BGP sessions with this peer that were established.";
    BGP_ROUTES: Gauge "bgp_announced_routes" ["peer", "family"]
        "Routes of this family (ipv4, ipv6) that this peer has from the machine now.";
    BFD_UP: Gauge "bfd_session_up" ["peer"]
        "1 while BFD with this peer is up, 0 while it is not, and no series for a peer without BFD.";
    VIP_ANNOUNCED: Gauge "vip_announced" ["vip"]
        "1 while this VIP qualifies and is announced, 0 while it is not (a drain included), and no series for one that the file \
         does not announce.";
    VIP_WITHDRAWALS: Counter "vip_withdrawals_total" ["vip"]
        "Withdrawals of this VIP because it no longer qualified; those of a drain are not counted.";

    // Drops and the XDP program.
    DROPS: Counter "dropped_packets_total" ["reason"]
        "Packets that a packet thread dropped for this reason.";
    XDP_REDIRECTED: Counter "xdp_redirected_packets_total" []
        "Frames that the XDP program handed to a packet thread's socket.";
    XDP_PASSED: Counter "xdp_passed_packets_total" []
        "Frames that the XDP program left to the kernel.";
    XDP_MULTICAST: Counter "xdp_passed_multicast_packets_total" []
        "Frames that the XDP program left to the kernel because they are multicast.";
    XDP_NEIGHBOUR: Counter "xdp_passed_neighbour_discovery_packets_total" []
        "Frames that the XDP program left to the kernel because they are IPv6 neighbour discovery.";
    XDP_LOST: Counter "xdp_lost_packets_total" ["reason"]
        "Frames for a VIP that reached no packet thread: no_socket on their queue (dropped, or passed by configuration), \
         no_head_room, or socket_gone in mid-redirect.";
    XDP_MODE: Gauge "xdp_mode_info" ["mode"]
        "Always 1: the label says how the XDP program is attached, driver or generic.";
    SOCKET_MODE: Gauge "xdp_socket_mode_info" ["interface", "mode"]
        "Always 1: the label says how this interface's sockets are bound, zero-copy or copy.";
    INTERFACE_UP: Gauge "interface_up" ["interface"]
        "1 while this interface is switched on and has carrier, 0 while not, so that no packet comes in or goes out by it; looked at \
         every second.";
    INTERFACE_MTU: Gauge "interface_mtu_fits" ["interface"]
        "1 while packets as long as this interface's MTU fit into what packet threads take, 0 while longer ones are lost; looked at \
         every second.";
    INTERFACE_RX: Counter "interface_received_packets_total" ["interface"]
        "Frames that packet threads took from this interface's receive rings.";
    INTERFACE_TX: Counter "interface_sent_packets_total" ["interface"]
        "Frames, for backends and answers, that this interface's transmit rings took.";
    INTERFACE_LOST: Counter "interface_lost_packets_total" ["interface"]
        "Frames that the kernel dropped before this interface's receive rings.";

    // XDP sockets.
    SOCKET_RX_DROPPED: Counter "xdp_socket_rx_dropped_packets_total" ["thread"]
        "Frames that the kernel dropped before this thread's receive ring for another reason than a full ring, among \
         them those that found no frame in the fill ring.";
    SOCKET_RX_FULL: Counter "xdp_socket_rx_ring_full_packets_total" ["thread"]
        "Frames that the kernel dropped because this thread's receive ring was full.";
    SOCKET_FILL_EMPTY: Counter "xdp_socket_fill_ring_empty_total" ["thread"]
        "Times that the kernel wanted a frame from this thread's fill ring and found none.";
    SOCKET_RX_INVALID: Counter "xdp_socket_rx_invalid_descriptors_total" ["thread"]
        "Descriptors of this thread's fill ring that the kernel refused.";
    SOCKET_TX_INVALID: Counter "xdp_socket_tx_invalid_descriptors_total" ["thread"]
        "Descriptors of this thread's transmit ring that the kernel refused.";
    SOCKET_TX_EMPTY: Counter "xdp_socket_tx_ring_empty_total" ["thread"]
        "Times that the kernel was woken to send for this thread and found nothing.";
    FILL_STARVED: Counter "xdp_socket_fill_starved_turns_total" ["thread"]
        "Turns in which this thread had no free frame to refill its fill ring with.";

    // Packet threads.
    THREAD_RX: Counter "thread_received_packets_total" ["thread"]
        "Frames that this thread took from its receive ring.";
    THREAD_RX_BYTES: Counter "thread_received_bytes_total" ["thread"]
        "Bytes of those frames, Ethernet header included.";
    THREAD_TX: Counter "thread_sent_packets_total" ["thread"]
        "Frames for a backend that this thread's transmit ring took.";
    THREAD_TX_BYTES: Counter "thread_sent_bytes_total" ["thread"]
        "Bytes of those frames, outer headers included.";
    THREAD_REPLIES: Counter "thread_replied_packets_total" ["thread"]
        "Frames that this thread turned round in place and sent back.";
    THREAD_TO: Counter "thread_handed_over_packets_total" ["thread"]
        "Frames that this thread handed to another thread.";
    THREAD_FROM: Counter "thread_taken_over_packets_total" ["thread"]
        "Frames that this thread took from another thread.";
    THREAD_ORIGINATED: Counter "thread_originated_packets_total" ["thread"]
        "Frames that this thread sent though no packet caused them.";
    THREAD_HELD: Gauge "thread_held_packets" ["thread"]
        "Frames that this thread holds back now.";
    THREAD_BUSY: Counter "thread_busy_seconds_total" ["thread"]
        "Seconds that this thread spent on batches that were not empty.";
    THREAD_TURNS: Counter "thread_turns_total" ["thread"]
        "Turns of this thread's loop, empty ones included.";
    HEAD_ROOM: Counter "thread_head_room_mismatch_packets_total" ["thread"]
        "Packets that were moved once because their backend needs another head room than the XDP program opened.";
    RESELECTED: Counter "thread_reselected_flows_total" ["thread"]
        "Flows whose backend was gone, down, or draining when a new connection reused their 5-tuple, so that another was chosen.";
    REHASHED: Counter "thread_rehashed_packets_total" ["thread"]
        "Choices whose first Maglev entry named a backend that does not serve, so that the hash was hashed again.";
    TIME_EXCEEDED: Counter "thread_time_exceeded_packets_total" ["thread"]
        "Packets without a hop left that this thread turned into a time-exceeded message to their sender.";
    TOO_BIG_TOLD: Counter "thread_too_big_told_packets_total" ["thread"]
        "Packets over the way's MTU that this thread turned into a message to their sender that says which size fits.";
    CUT: Counter "thread_cut_packets_total" ["thread"]
        "Packets over the way's MTU that this thread cut to pieces.";
    OPENED: Counter "thread_opened_packets_total" ["thread"]
        "Tunnelled packets of peers, encapsulators and other clusters whose outer header this thread took off.";
    REDIRECTED: Counter "thread_redirected_fragments_total" ["thread"]
        "Fragments that this thread chose to send to another machine of the cluster, which gathers them.";
    REMOTE_FLOWS: Counter "thread_remote_flows_total" ["thread"]
        "Flows for which this thread chose another cluster, because no backend here serves.";
    REMOTE_ARRIVALS: Counter "thread_remote_arrivals_packets_total" ["thread"]
        "Tunnelled packets of other clusters whose outer header this thread took off.";
    CAPTURED: Counter "thread_captured_packets_total" ["thread"]
        "Packets of which this thread gave a capture a record.";
    CAPTURE_LOST: Counter "thread_capture_lost_packets_total" ["thread"]
        "Packets that a capture wanted of this thread and that found its ring full; they were forwarded all the same.";
    TRACE_REPORTS: Counter "thread_trace_reports_total" ["thread"]
        "Marked packets of the tracer that this thread had reported.";
    TRACE_REFUSED: Counter "thread_trace_refused_packets_total" ["thread", "reason"]
        "Packets that began like a marked one and were forwarded without a report, for this reason.";
    BATCH: Histogram "batch_packets" []
        "Batches that were not empty, over all threads, by the packets in them.";

    // Connection tables.
    FLOW_ENTRIES: Gauge "flow_table_entries" ["thread"]
        "Entries in use in this thread's connection table, expired ones that nobody looked at included.";
    FLOW_CAPACITY: Gauge "flow_table_capacity" ["thread"]
        "Entries that this thread's connection table has room for.";
    FLOW_LOOKUPS: Counter "flow_table_lookups_total" ["thread", "result"]
        "Look-ups in this thread's connection table that found their flow (hit) or did not (miss).";
    FLOW_INSERTS: Counter "flow_table_inserts_total" ["thread"]
        "Flows that were entered into this thread's connection table.";
    FLOW_REFRESHES: Counter "flow_table_refreshes_total" ["thread"]
        "Flows whose time was renewed in this thread's connection table.";
    FLOW_EXPIRED: Counter "flow_table_expired_total" ["thread"]
        "Entries that were found past their time and freed.";
    FLOW_EVICTED: Counter "flow_table_evicted_total" ["thread"]
        "Entries on probation that gave way to a new flow.";
    FLOW_UNTRACKED: Counter "flow_table_untracked_total" ["thread"]
        "Flows that found no room in their buckets and were forwarded by Maglev alone.";

    // Fragment tables.
    FRAGMENT_DATAGRAMS: Gauge "fragment_table_datagrams" ["thread"]
        "Fragmented datagrams whose way this thread knows, expired ones that nobody looked at included.";
    FRAGMENT_HELD: Gauge "fragment_table_held_packets" ["thread"]
        "Fragments that this thread holds until the first one of their datagram comes.";
    FRAGMENT_RECORDED: Counter "fragment_table_recorded_total" ["thread"]
        "First fragments whose decision was recorded in this thread's fragment table.";
    FRAGMENT_DUPLICATES: Counter "fragment_table_duplicates_total" ["thread"]
        "First fragments that came to this thread once more.";
    FRAGMENT_FOLLOWED: Counter "fragment_table_followed_packets_total" ["thread"]
        "Later fragments that found the decision of their datagram as they came.";
    FRAGMENT_WAITED: Counter "fragment_table_waited_packets_total" ["thread"]
        "Later fragments that came before the first one of their datagram and were held.";
    FRAGMENT_RELEASED: Counter "fragment_table_released_packets_total" ["thread"]
        "Held fragments that went on because the first one of their datagram came.";
    FRAGMENT_EVICTED: Counter "fragment_table_evicted_total" ["thread"]
        "Datagrams with a decision that gave way to a newer one before their time.";
    FRAGMENT_SUCCEEDED: Counter "fragment_table_succeeded_total" ["thread"]
        "Whole datagrams whose name, identification included, another one took over before their time.";

    // Configuration.
    GENERATION: Gauge "generation" []
        "Number of the configuration in force, counted from the start of the process; it moves at every reload that \
         changes something, and at every other change of the published snapshot.";
    CONFIG: Gauge "config_info" ["boot_id", "digest"]
        "Always 1: the labels are this start of the process and the first 12 hexadecimal digits of the digest of what is \
         configured and must agree on all machines of a cluster, the hash key included.";
    TABLES_DIGEST: Gauge "tables_digest" ["shard"]
        "The first 52 bits of the digest of the tables in force, as a number: it must agree on all machines of a shard, a few \
         check intervals after a change.";
    TABLE_ALGORITHM: Gauge "table_algorithm" []
        "Version of the table algorithm: machines with different ones choose differently.";
    RELOAD_OK: Gauge "last_reload_success" []
        "1 when the last reload was taken, 0 when it was refused, and no series before the first.";
    RELOAD_SECONDS: Gauge "last_reload_duration_seconds" []
        "How long the last reload took from reading the file to its publication or refusal.";
    RELOAD_TIME: Gauge "last_reload_timestamp_seconds" []
        "When the last reload ended, in seconds since 1970.";
    BUILD: Gauge "build_info" ["version", "commit"]
        "Always 1: the labels are the program's version and the commit that it was built from.";
}
