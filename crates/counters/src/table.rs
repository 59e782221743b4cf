//! The table of counters, in groups with common labels. Each entry consists of a doc comment, which
//! is the help text of the metric, and a line `name: kind "unit" "metric" ["label" = "value"];`.
//! All entries of one metric must have the same help text.
//!
//! To add a counter, add an entry here and increase the counter where the event happens. The struct
//! field, the sum over all threads, the Prometheus sample, the field in the API and the line of the
//! metrics reference are derived from this entry.

macro_rules! groups {
    ($($(#[doc = $what:literal])+ $group:ident $specs:ident $labels:tt { $($line:tt)+ })+) => {
        $(groups! { @one [$] $(#[doc = $what])+ $group $specs $labels { $($line)+ } })+
    };
    (@one [$d:tt] $(#[doc = $what:literal])+ $group:ident $specs:ident $labels:tt { $($line:tt)+ }) => {
        #[doc = concat!("Calls the given macro with the arguments in brackets, followed by all lines of this group. Contents of the group:", $($what),+)]
        #[macro_export]
        macro_rules! $group {
            ($d($d path:ident)::+! [$d($d arguments:tt)*]) => {
                $d($d path)::+! { [$d($d arguments)*] $($line)+ }
            };
        }

        specs! { [$(#[doc = $what])+ $specs $labels] $($line)+ }
    };
}

macro_rules! specs {
    (
        [$(#[doc = $what:literal])+ $specs:ident $labels:tt]
        $($(#[doc = $help:literal])+ $name:ident: $kind:ident $unit:literal $metric:literal [$($label:literal = $value:literal)?];)+
    ) => {
        $(#[doc = $what])+
        pub static $specs: &[crate::Spec] = &[$(crate::Spec {
            name: stringify!($name),
            metric: crate::Metric {
                name: concat!("sluicegate_", $metric),
                kind: kind!($kind),
                unit: $unit,
                labels: labels!($labels $($label)?),
                help: concat!($($help),+).trim_ascii(),
            },
            value: value!($($value)?),
        }),+];
    };
}

macro_rules! kind {
    (counter) => {
        crate::Kind::Counter
    };
    (gauge) => {
        crate::Kind::Gauge
    };
}

macro_rules! labels {
    ([$($common:literal)?] $($own:literal)?) => {
        &[$($common,)? $($own)?]
    };
}

macro_rules! value {
    () => {
        None
    };
    ($value:literal) => {
        Some($value)
    };
}

groups! {
    /// The counters of one packet thread.
    thread THREAD ["thread"] {
        /// Frames that this thread received from its receive ring.
        rx: counter "packets" "thread_received_packets_total" [];
        /// Bytes in frames that this thread received from its receive ring, including Ethernet
        /// headers.
        rx_bytes: counter "bytes" "thread_received_bytes_total" [];
        /// Frames to backends that this thread put into its transmit ring.
        tx: counter "packets" "thread_sent_packets_total" [];
        /// Bytes in frames to backends that this thread put into its transmit ring, including outer
        /// headers.
        tx_bytes: counter "bytes" "thread_sent_bytes_total" [];
        /// Frames that this thread turned into a reply and sent back.
        replies: counter "packets" "thread_replied_packets_total" [];
        /// Frames that this thread processed without forwarding them, such as gathered requests and
        /// replies to upstream requests.
        taken: counter "packets" "thread_taken_packets_total" [];
        /// Frames that this thread passed to another thread.
        to_threads: counter "packets" "thread_handed_over_packets_total" [];
        /// Frames that this I/O thread passed to a packet thread (io.steering = "software"), by
        /// method: flow (to the thread of the flow), or turn (to another thread in round-robin
        /// order, because the ring of the flow's thread was full).
        steered: counter "packets" "thread_steered_packets_total" ["by" = "flow"];
        /// Frames that this I/O thread passed to a packet thread (io.steering = "software"), by
        /// method: flow (to the thread of the flow), or turn (to another thread in round-robin
        /// order, because the ring of the flow's thread was full).
        overflowed: counter "packets" "thread_steered_packets_total" ["by" = "turn"];
        /// Frames that this thread received from another thread.
        from_threads: counter "packets" "thread_taken_over_packets_total" [];
        /// Frames that this thread created itself and sent, such as upstream requests, gathered
        /// replies and fragments.
        originated: counter "packets" "thread_originated_packets_total" [];
        /// Frames that this thread currently holds, such as fragments that arrived before the first
        /// fragment of their datagram.
        held: gauge "packets" "thread_held_packets" [];
        /// Seconds that this thread spent on batches with at least one packet.
        busy_nanos: counter "nanoseconds" "thread_busy_seconds_total" [];
        /// Packets that this thread processed on the fast path, which reads headers at fixed
        /// offsets and hashes several flows together.
        fast_path: counter "packets" "thread_fast_path_packets_total" [];
        /// Packets that this thread had to move in memory, because the frame had too little space
        /// for the outer headers of their backend and for additional VLAN tags.
        head_room_mismatch: counter "packets" "thread_head_room_mismatch_packets_total" [];
        /// Flows that moved to another backend because their previous backend was removed, was
        /// down, or was draining when a new connection reused the 5-tuple.
        reselected: counter "flows" "thread_reselected_flows_total" [];
        /// Backend selections in which the packet was hashed again, because the first choice in the
        /// Maglev table was not serving.
        rehashed: counter "packets" "thread_rehashed_packets_total" [];
        /// Packets with an expired TTL or hop limit that this thread answered with an ICMP
        /// time-exceeded message.
        time_exceeded: counter "packets" "thread_time_exceeded_packets_total" [];
        /// Packets larger than the path MTU that this thread answered with an ICMP message that
        /// reports the usable MTU.
        packet_too_big_sent: counter "packets" "thread_packet_too_big_sent_packets_total" [];
        /// TCP segments that this thread rejected with a TCP reset (vip.*.on_no_backend and
        /// vip.*.on_unserved_port).
        resets_sent: counter "packets" "thread_resets_sent_packets_total" [];
        /// SCTP packets that this thread rejected with an ABORT or a SHUTDOWN COMPLETE
        /// (vip.*.on_no_backend and vip.*.on_unserved_port).
        aborts_sent: counter "packets" "thread_aborts_sent_packets_total" [];
        /// Packets that this thread rejected with an ICMP error (vip.*.on_no_backend and
        /// vip.*.on_unserved_port).
        unreachables_sent: counter "packets" "thread_unreachables_sent_packets_total" [];
        /// Packets that this thread rejected with a TCP reset, an SCTP ABORT or an ICMP error, by
        /// the reason for which they would be dropped otherwise: no_backend or no_vip (the protocol
        /// or port has no service). Packets above the limits of io.icmp are dropped and counted as
        /// drops.
        rejected_no_backend: counter "packets" "thread_rejected_packets_total" ["reason" = "no_backend"];
        /// Packets that this thread rejected with a TCP reset, an SCTP ABORT or an ICMP error, by
        /// the reason for which they would be dropped otherwise: no_backend or no_vip (the protocol
        /// or port has no service). Packets above the limits of io.icmp are dropped and counted as
        /// drops.
        rejected_no_vip: counter "packets" "thread_rejected_packets_total" ["reason" = "no_vip"];
        /// Packets larger than the path MTU that this thread fragmented.
        fragmented: counter "packets" "thread_fragmented_packets_total" [];
        /// Tunneled packets from peers, upstream tunnels and other clusters that this thread
        /// decapsulated.
        decapsulated: counter "packets" "thread_decapsulated_packets_total" [];
        /// Fragments that this thread redirected to the peer that handles their datagram.
        redirected: counter "fragments" "thread_redirected_fragments_total" [];
        /// Flows that this thread sent to another cluster because no local backend was serving.
        remote_flows: counter "flows" "thread_remote_flows_total" [];
        /// Keyed requests that this thread parsed, by their effect on the key: read, write (set,
        /// delete or touch), change (depends on the stored value, such as add, cas, append or
        /// incr), or none (the request has no key).
        keyed_reads: counter "requests" "thread_keyed_requests_total" ["effect" = "read"];
        /// Keyed requests that this thread parsed, by their effect on the key: read, write (set,
        /// delete or touch), change (depends on the stored value, such as add, cas, append or
        /// incr), or none (the request has no key).
        keyed_writes: counter "requests" "thread_keyed_requests_total" ["effect" = "write"];
        /// Keyed requests that this thread parsed, by their effect on the key: read, write (set,
        /// delete or touch), change (depends on the stored value, such as add, cas, append or
        /// incr), or none (the request has no key).
        keyed_changes: counter "requests" "thread_keyed_requests_total" ["effect" = "change"];
        /// Keyed requests that this thread parsed, by their effect on the key: read, write (set,
        /// delete or touch), change (depends on the stored value, such as add, cas, append or
        /// incr), or none (the request has no key).
        keyed_others: counter "requests" "thread_keyed_requests_total" ["effect" = "none"];
        /// Client requests that this thread split among several backends, because the keys are on
        /// different backends.
        gathers_begun: counter "requests" "thread_gathers_begun_total" [];
        /// Finished requests with keys on several backends, by result: answered, incomplete (some
        /// keys are missing because a backend was late), timed_out (no reply because a backend was
        /// late), too_long (a value exceeds one datagram), or unsent (no frame, no next hop, or the
        /// service was removed).
        gathers_answered: counter "requests" "thread_gathers_ended_total" ["result" = "answered"];
        /// Finished requests with keys on several backends, by result: answered, incomplete (some
        /// keys are missing because a backend was late), timed_out (no reply because a backend was
        /// late), too_long (a value exceeds one datagram), or unsent (no frame, no next hop, or the
        /// service was removed).
        gathers_incomplete: counter "requests" "thread_gathers_ended_total" ["result" = "incomplete"];
        /// Finished requests with keys on several backends, by result: answered, incomplete (some
        /// keys are missing because a backend was late), timed_out (no reply because a backend was
        /// late), too_long (a value exceeds one datagram), or unsent (no frame, no next hop, or the
        /// service was removed).
        gathers_timed_out: counter "requests" "thread_gathers_ended_total" ["result" = "timed_out"];
        /// Finished requests with keys on several backends, by result: answered, incomplete (some
        /// keys are missing because a backend was late), timed_out (no reply because a backend was
        /// late), too_long (a value exceeds one datagram), or unsent (no frame, no next hop, or the
        /// service was removed).
        gathers_too_long: counter "requests" "thread_gathers_ended_total" ["result" = "too_long"];
        /// Finished requests with keys on several backends, by result: answered, incomplete (some
        /// keys are missing because a backend was late), timed_out (no reply because a backend was
        /// late), too_long (a value exceeds one datagram), or unsent (no frame, no next hop, or the
        /// service was removed).
        gathers_unsent: counter "requests" "thread_gathers_ended_total" ["result" = "unsent"];
        /// Writes that this thread began to send to all backends of their key (kv.replicas).
        replicas_begun: counter "requests" "thread_replica_writes_begun_total" [];
        /// Finished writes to all backends of a key, by result: acknowledged (enough backends
        /// stored the value), failed (too many backends reported an error), or unanswered (too many
        /// backends did not reply in time or could not be reached, or no frame was free).
        replicas_acknowledged: counter "requests" "thread_replica_writes_ended_total" ["result" = "acknowledged"];
        /// Finished writes to all backends of a key, by result: acknowledged (enough backends
        /// stored the value), failed (too many backends reported an error), or unanswered (too many
        /// backends did not reply in time or could not be reached, or no frame was free).
        replicas_failed: counter "requests" "thread_replica_writes_ended_total" ["result" = "failed"];
        /// Finished writes to all backends of a key, by result: acknowledged (enough backends
        /// stored the value), failed (too many backends reported an error), or unanswered (too many
        /// backends did not reply in time or could not be reached, or no frame was free).
        replicas_unanswered: counter "requests" "thread_replica_writes_ended_total" ["result" = "unanswered"];
        /// Writes to all backends of a key after which the backends may differ until the key is
        /// written again, because two backends replied differently or one did not reply in time.
        replicas_disagreed: counter "requests" "thread_replica_writes_disagreed_total" [];
        /// Requests to a pool with kv.replicas that this thread answered with a protocol error,
        /// because they depend on the stored value (add, cas, append, incr and similar).
        replicas_refused: counter "requests" "thread_replica_requests_refused_total" [];
        /// Keyed requests that this thread proxied to their backend with a new request id (kv.path
        /// = "proxied", or writes with kv.cache.strict).
        proxied_begun: counter "requests" "thread_proxied_requests_total" [];
        /// Reply datagrams of proxied requests that this thread sent to clients.
        proxied_answers: counter "packets" "thread_proxied_replies_total" [];
        /// Proxied requests that received no reply in time. The limit is kv.answer_timeout, or one
        /// second for writes with kv.cache.strict and kv.path = "direct".
        proxied_unanswered: counter "requests" "thread_proxied_unanswered_total" [];
        /// Keyed requests whose time to live this thread shortened (kv.failover.ttl), because the
        /// primary backend of their key was not serving.
        short_lived: counter "requests" "thread_short_lived_requests_total" [];
        /// Reads that this thread answered from its cache (kv.cache).
        cache_hits: counter "requests" "thread_cache_hits_total" [];
        /// Reads that this thread forwarded although the value was in the cache, because the source
        /// had used up its budget of bytes per second (kv.cache.source_bytes).
        cache_over_budget: counter "requests" "thread_cache_over_budget_total" [];
        /// Requests that this thread sent to backends to fill its cache or to renew cached values
        /// (kv.cache).
        cache_fetches: counter "requests" "thread_cache_fetches_total" [];
        /// Requests that this thread sent to fill its cache, and that received no reply within 20
        /// ms. If the rate is high and the cache is never filled, the servers probably do not
        /// support meta commands.
        cache_unanswered: counter "requests" "thread_cache_unanswered_total" [];
        /// Values that this thread stored in its cache.
        cache_fills: counter "values" "thread_cache_fills_total" [];
        /// Cached values whose lease this thread renewed because the backend still had the same
        /// version of the value.
        cache_renewals: counter "values" "thread_cache_renewals_total" [];
        /// Cached or fetched values that this thread did not serve because a later write through
        /// this machine had made them outdated.
        cache_stale_avoided: counter "values" "thread_cache_stale_avoided_total" [];
        /// Cached values that this thread evicted because the cache memory was full
        /// (kv.cache.memory).
        cache_evictions: counter "values" "thread_cache_evictions_total" [];
        /// Bytes of keys and values in this thread's cache.
        cache_bytes: gauge "bytes" "thread_cache_bytes" [];
        /// Tunneled packets from other clusters that this thread decapsulated.
        remote_decapsulated: counter "packets" "thread_remote_decapsulated_packets_total" [];
        /// Packets that this thread recorded for a capture.
        captured: counter "packets" "thread_captured_packets_total" [];
        /// Packets that this thread forwarded but could not record because the ring of the capture
        /// was full.
        capture_lost: counter "packets" "thread_capture_lost_packets_total" [];
        /// Reports that this thread sent about packets with a trace mark.
        trace_reports: counter "reports" "thread_trace_reports_total" [];
    }

    /// The counters of a connection table.
    flow_table FLOW_TABLE ["thread"] {
        /// Entries in use in the connection table of this thread, including expired entries that
        /// have not been freed yet.
        entries: gauge "entries" "flow_table_entries" [];
        /// Capacity of this thread's connection table.
        capacity: gauge "entries" "flow_table_capacity" [];
        /// Lookups in the connection table of this thread, by result: hit (the flow was found) or
        /// miss.
        hits: counter "look-ups" "flow_table_lookups_total" ["result" = "hit"];
        /// Lookups in the connection table of this thread, by result: hit (the flow was found) or
        /// miss.
        misses: counter "look-ups" "flow_table_lookups_total" ["result" = "miss"];
        /// Flows that were inserted into the connection table of this thread.
        inserts: counter "flows" "flow_table_inserts_total" [];
        /// Updates of existing entries in the connection table of this thread.
        refreshes: counter "flows" "flow_table_refreshes_total" [];
        /// Expired entries that were freed in the connection table of this thread.
        expired: counter "entries" "flow_table_expired_total" [];
        /// Entries on probation (flows without a second packet) that were evicted from the
        /// connection table of this thread to make room for a new flow.
        evicted: counter "entries" "flow_table_evicted_total" [];
        /// Flows that received no entry because their buckets in the connection table were full.
        /// The Maglev table selects the backend for each of their packets.
        untracked: counter "flows" "flow_table_untracked_total" [];
    }

    /// The counters of a fragment table.
    fragment_table FRAGMENT_TABLE ["thread"] {
        /// Fragmented datagrams for which this thread stores a forwarding decision, including
        /// expired decisions that have not been freed yet.
        datagrams: gauge "datagrams" "fragment_table_datagrams" [];
        /// Fragments that this thread holds until the first fragment of their datagram arrives.
        held: gauge "packets" "fragment_table_held_packets" [];
        /// First fragments for which this thread stored a forwarding decision.
        recorded: counter "datagrams" "fragment_table_recorded_total" [];
        /// First fragments that arrived again after this thread had stored their forwarding
        /// decision.
        duplicates: counter "packets" "fragment_table_duplicates_total" [];
        /// Later fragments whose datagram already had a forwarding decision when they arrived.
        followed: counter "packets" "fragment_table_followed_packets_total" [];
        /// Later fragments that arrived before the first fragment of their datagram and were held.
        waited: counter "packets" "fragment_table_waited_packets_total" [];
        /// Held fragments that were forwarded because the first fragment of their datagram arrived.
        released: counter "packets" "fragment_table_released_packets_total" [];
        /// Forwarding decisions of fragmented datagrams that were evicted before they expired, to
        /// make room for a newer datagram.
        evicted: counter "datagrams" "fragment_table_evicted_total" [];
        /// Completely received datagrams whose stored forwarding decision was replaced before it
        /// expired, because a new datagram had the same addresses, protocol and identification.
        replaced: counter "datagrams" "fragment_table_replaced_total" [];
    }

    /// The socket counters of a thread.
    socket SOCKET ["thread"] {
        /// Frames that the kernel dropped before they reached the receive ring of this thread, for
        /// a reason other than a full ring, for example an empty fill ring.
        rx_dropped: counter "packets" "xdp_socket_rx_dropped_packets_total" [];
        /// Frames that the kernel dropped because the receive ring of this thread was full.
        rx_ring_full: counter "packets" "xdp_socket_rx_ring_full_packets_total" [];
        /// Packets that the packet sockets of this thread (io.mode = "af-packet") dropped, because
        /// the packets were merged from several packets (GRO, LRO, segmentation offload) or longer
        /// than a frame.
        rx_merged: counter "packets" "packet_socket_rx_merged_packets_total" [];
        /// Number of times that the kernel needed a frame from the fill ring of this thread and
        /// found the ring empty.
        rx_fill_ring_empty: counter "times" "xdp_socket_fill_ring_empty_total" [];
        /// Invalid descriptors that the kernel found in the fill ring of this thread.
        rx_invalid: counter "descriptors" "xdp_socket_rx_invalid_descriptors_total" [];
        /// Invalid descriptors that the kernel found in the transmit ring of this thread.
        tx_invalid: counter "descriptors" "xdp_socket_tx_invalid_descriptors_total" [];
        /// Number of times that the kernel was woken to send frames of this thread and found the
        /// transmit ring empty.
        tx_ring_empty: counter "times" "xdp_socket_tx_ring_empty_total" [];
        /// Loop iterations in which this thread had no free frame to put into its fill ring.
        fill_low: counter "iterations" "xdp_socket_fill_starved_iterations_total" [];
        /// Loop iterations of this thread, including iterations without packets.
        iterations: counter "iterations" "thread_iterations_total" [];
    }

    /// The counters of the XDP program. The order of these counters must match `enum count` in
    /// `whose.h`.
    xdp XDP [] {
        /// Frames that the XDP program redirected to the socket of a packet thread, or that the
        /// ingress program took from the kernel for a packet thread (io.mode = "af-packet").
        redirected: counter "packets" "xdp_redirected_packets_total" [];
        /// Frames that the XDP program passed to the kernel.
        passed: counter "packets" "xdp_passed_packets_total" [];
        /// Multicast frames that the XDP program passed to the kernel.
        multicast: counter "packets" "xdp_passed_multicast_packets_total" [];
        /// IPv6 neighbor discovery frames that the XDP program passed to the kernel.
        neighbour_discovery: counter "packets" "xdp_passed_neighbour_discovery_packets_total" [];
        /// Frames for a VIP that reached no packet thread, by reason: no_socket (the receive queue
        /// has no socket; io.no_socket sets whether the frame is dropped or passed to the kernel).
        no_socket: counter "packets" "xdp_lost_packets_total" ["reason" = "no_socket"];
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::Kind;

    #[test]
    fn each_series_has_one_line_and_each_metric_one_sentence() {
        let all = || [THREAD, FLOW_TABLE, FRAGMENT_TABLE, SOCKET, XDP].into_iter().flatten();
        let series: BTreeSet<_> = all().map(|spec| (spec.metric.name, spec.value)).collect();
        assert_eq!(series.len(), all().count());
        let metrics: BTreeSet<_> = all().map(|spec| spec.metric.name).collect();
        let said: BTreeSet<_> = all().map(|spec| (spec.metric.name, spec.metric.help)).collect();
        assert_eq!(metrics.len(), said.len());
        for spec in all() {
            assert!(spec.metric.name.starts_with("sluicegate_"), "{spec:?}");
            assert_eq!(spec.metric.name.ends_with("_total"), spec.metric.kind == Kind::Counter, "{spec:?}");
            assert!(spec.metric.help.ends_with('.') && !spec.metric.help.starts_with(' '), "{spec:?}");
        }
    }
}
