//! The table. A group has the labels that all its metrics have. A line: the sentence, then
//! `name: kind "unit" "metric" [label of its own];`. All lines of a metric have its sentence.
//!
//! Add a line here, and count it where it happens: field, sum, sample, row of the API and document follow.

macro_rules! groups {
    ($($(#[doc = $what:literal])+ $group:ident $specs:ident $labels:tt { $($line:tt)+ })+) => {
        $(groups! { @one [$] $(#[doc = $what])+ $group $specs $labels { $($line)+ } })+
    };
    (@one [$d:tt] $(#[doc = $what:literal])+ $group:ident $specs:ident $labels:tt { $($line:tt)+ }) => {
        #[doc = concat!("Hands the lines of this group to a macro, after its arguments in brackets:", $($what),+)]
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
        $(#[doc = $help:literal] $name:ident: $kind:ident $unit:literal $metric:literal [$($label:literal = $value:literal)?];)+
    ) => {
        $(#[doc = $what])+
        pub static $specs: &[crate::Spec] = &[$(crate::Spec {
            name: stringify!($name),
            metric: crate::Metric {
                name: concat!("sluicegate_", $metric),
                kind: kind!($kind),
                unit: $unit,
                labels: labels!($labels $($label)?),
                help: $help.trim_ascii(),
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
    /// What is counted of one packet thread.
    thread THREAD ["thread"] {
        /// Frames that this thread took from its receive ring.
        rx: counter "packets" "thread_received_packets_total" [];
        /// Bytes of those frames, Ethernet header included.
        rx_bytes: counter "bytes" "thread_received_bytes_total" [];
        /// Frames for a backend that this thread's transmit ring took.
        tx: counter "packets" "thread_sent_packets_total" [];
        /// Bytes of those frames, outer headers included.
        tx_bytes: counter "bytes" "thread_sent_bytes_total" [];
        /// Frames that this thread turned round in place and sent back.
        replies: counter "packets" "thread_replied_packets_total" [];
        /// Frames that were for this machine and that this thread took in: requests that it gathers, and answers to requests of its own.
        taken: counter "packets" "thread_taken_packets_total" [];
        /// Frames that this thread handed to another thread.
        to_threads: counter "packets" "thread_handed_over_packets_total" [];
        /// Frames that this I/O thread handed to a packet thread (io.steering = "software"): to the one that their flow names, or in turn to another because that one's ring was full.
        steered: counter "packets" "thread_steered_packets_total" ["by" = "flow"];
        /// Frames that this I/O thread handed to a packet thread (io.steering = "software"): to the one that their flow names, or in turn to another because that one's ring was full.
        overflowed: counter "packets" "thread_steered_packets_total" ["by" = "turn"];
        /// Frames that this thread took from another thread.
        from_threads: counter "packets" "thread_taken_over_packets_total" [];
        /// Frames that this thread sent though no packet caused them.
        originated: counter "packets" "thread_originated_packets_total" [];
        /// Frames that this thread holds back now.
        held: gauge "packets" "thread_held_packets" [];
        /// Seconds that this thread spent on batches that were not empty.
        busy_nanos: counter "nanoseconds" "thread_busy_seconds_total" [];
        /// Packets of flows that were read by fixed places and hashed side by side; all others are read step by step.
        plain: counter "packets" "thread_plain_packets_total" [];
        /// Packets that were moved once because their backend needs another head room than the XDP program opened.
        head_room_mismatch: counter "packets" "thread_head_room_mismatch_packets_total" [];
        /// Flows whose backend was gone, down, or draining when a new connection reused their 5-tuple, so that another was chosen.
        reselected: counter "flows" "thread_reselected_flows_total" [];
        /// Choices whose first Maglev entry named a backend that does not serve, so that the hash was hashed again.
        rehashed: counter "packets" "thread_rehashed_packets_total" [];
        /// Packets without a hop left that this thread turned into a time-exceeded message to their sender.
        time_exceeded: counter "packets" "thread_time_exceeded_packets_total" [];
        /// Packets over the path's MTU that this thread turned into a message to their sender with the size that fits.
        packet_too_big_sent: counter "packets" "thread_packet_too_big_sent_packets_total" [];
        /// Packets over the path's MTU that this thread fragmented.
        fragmented: counter "packets" "thread_fragmented_packets_total" [];
        /// Tunnelled packets of peers, encapsulators and other clusters whose outer header this thread took off.
        decapsulated: counter "packets" "thread_decapsulated_packets_total" [];
        /// Fragments that this thread chose to send to another machine of the cluster, which gathers them.
        redirected: counter "fragments" "thread_redirected_fragments_total" [];
        /// Flows for which this thread chose another cluster, because no backend here serves.
        remote_flows: counter "flows" "thread_remote_flows_total" [];
        /// Requests for keyed services that this thread read, by what they do to their key: read it, write it (set, delete, touch), change it by what was there (add, cas, append, incr), or nothing (no key).
        keyed_reads: counter "requests" "thread_keyed_requests_total" ["effect" = "read"];
        /// Requests for keyed services that this thread read, by what they do to their key: read it, write it (set, delete, touch), change it by what was there (add, cas, append, incr), or nothing (no key).
        keyed_writes: counter "requests" "thread_keyed_requests_total" ["effect" = "write"];
        /// Requests for keyed services that this thread read, by what they do to their key: read it, write it (set, delete, touch), change it by what was there (add, cas, append, incr), or nothing (no key).
        keyed_changes: counter "requests" "thread_keyed_requests_total" ["effect" = "change"];
        /// Requests for keyed services that this thread read, by what they do to their key: read it, write it (set, delete, touch), change it by what was there (add, cas, append, incr), or nothing (no key).
        keyed_others: counter "requests" "thread_keyed_requests_total" ["effect" = "none"];
        /// Requests for keys of several backends that this thread began to gather.
        gathers_begun: counter "requests" "thread_gathers_begun_total" [];
        /// Requests for keys of several backends that this thread gathered, by how they ended: answered, incomplete (answered, and a key that nobody spoke of in time as missing), timed_out (no reply), too_long (no reply: a value does not fit into one datagram), unsent (no reply: no frame, no way, or a reload took the service).
        gathers_answered: counter "requests" "thread_gathers_ended_total" ["result" = "answered"];
        /// Requests for keys of several backends that this thread gathered, by how they ended: answered, incomplete (answered, and a key that nobody spoke of in time as missing), timed_out (no reply), too_long (no reply: a value does not fit into one datagram), unsent (no reply: no frame, no way, or a reload took the service).
        gathers_incomplete: counter "requests" "thread_gathers_ended_total" ["result" = "incomplete"];
        /// Requests for keys of several backends that this thread gathered, by how they ended: answered, incomplete (answered, and a key that nobody spoke of in time as missing), timed_out (no reply), too_long (no reply: a value does not fit into one datagram), unsent (no reply: no frame, no way, or a reload took the service).
        gathers_timed_out: counter "requests" "thread_gathers_ended_total" ["result" = "timed_out"];
        /// Requests for keys of several backends that this thread gathered, by how they ended: answered, incomplete (answered, and a key that nobody spoke of in time as missing), timed_out (no reply), too_long (no reply: a value does not fit into one datagram), unsent (no reply: no frame, no way, or a reload took the service).
        gathers_too_long: counter "requests" "thread_gathers_ended_total" ["result" = "too_long"];
        /// Requests for keys of several backends that this thread gathered, by how they ended: answered, incomplete (answered, and a key that nobody spoke of in time as missing), timed_out (no reply), too_long (no reply: a value does not fit into one datagram), unsent (no reply: no frame, no way, or a reload took the service).
        gathers_unsent: counter "requests" "thread_gathers_ended_total" ["result" = "unsent"];
        /// Writes that this thread began to have carried out by all backends of their key (kv.replicas).
        replicas_begun: counter "requests" "thread_replica_writes_begun_total" [];
        /// Writes for all backends of a key, by how they ended: acknowledged (as many as kv.replicas wants carried it out), failed (so many cannot, and the client has a backend's error), unanswered (no answer to the client: so many did not say anything in time, could not be asked, or there was no frame).
        replicas_acknowledged: counter "requests" "thread_replica_writes_ended_total" ["result" = "acknowledged"];
        /// Writes for all backends of a key, by how they ended: acknowledged (as many as kv.replicas wants carried it out), failed (so many cannot, and the client has a backend's error), unanswered (no answer to the client: so many did not say anything in time, could not be asked, or there was no frame).
        replicas_failed: counter "requests" "thread_replica_writes_ended_total" ["result" = "failed"];
        /// Writes for all backends of a key, by how they ended: acknowledged (as many as kv.replicas wants carried it out), failed (so many cannot, and the client has a backend's error), unanswered (no answer to the client: so many did not say anything in time, could not be asked, or there was no frame).
        replicas_unanswered: counter "requests" "thread_replica_writes_ended_total" ["result" = "unanswered"];
        /// Such writes of which two backends said different things, as stored and not stored, or one said nothing in time: they may differ until the key is written again.
        replicas_disagreed: counter "requests" "thread_replica_writes_disagreed_total" [];
        /// Requests that depend on what a backend has (add, cas, append, incr and the like), of a pool with kv.replicas, that this thread answered with the protocol's error.
        replicas_refused: counter "requests" "thread_replica_requests_refused_total" [];
        /// Keyed requests that this thread passed to their backend under an id of its own, to pass the answer back (kv.path = "through", or writes under kv.cache.strict).
        through_begun: counter "requests" "thread_through_requests_total" [];
        /// Datagrams of answers to such requests that this thread passed back to clients.
        through_answers: counter "packets" "thread_through_answers_total" [];
        /// Such requests that had no answer in their time (kv.answer_timeout; a second for writes under kv.cache.strict of a pool with kv.path = "direct").
        through_unanswered: counter "requests" "thread_through_unanswered_total" [];
        /// Keyed requests whose time to live this thread made shorter, because their key's own backend did not serve (kv.failover.ttl).
        short_lived: counter "requests" "thread_short_lived_requests_total" [];
        /// Reads that this thread answered from a copy (kv.cache).
        cache_hits: counter "requests" "thread_cache_hits_total" [];
        /// Reads that a copy could have answered and that this thread forwarded, because the source had its bytes for this second (kv.cache.source_bytes).
        cache_over_budget: counter "requests" "thread_cache_over_budget_total" [];
        /// Values and versions that this thread asked backends for, to make copies or renew them (kv.cache).
        cache_fetches: counter "requests" "thread_cache_fetches_total" [];
        /// Such requests that had no answer within 20 ms: many, and no fill, are those of servers without meta commands.
        cache_unanswered: counter "requests" "thread_cache_unanswered_total" [];
        /// Values that this thread made a copy of.
        cache_fills: counter "values" "thread_cache_fills_total" [];
        /// Copies of this thread whose version was still that of their backend.
        cache_renewals: counter "values" "thread_cache_renewals_total" [];
        /// Copies and fetched values of this thread that a write through this machine kept from being served.
        cache_stale_avoided: counter "values" "thread_cache_stale_avoided_total" [];
        /// Copies of this thread that gave way to others because memory was used up (kv.cache.memory).
        cache_evictions: counter "values" "thread_cache_evictions_total" [];
        /// Bytes of keys and values that this thread has copies of.
        cache_bytes: gauge "bytes" "thread_cache_bytes" [];
        /// Tunnelled packets of other clusters whose outer header this thread took off.
        remote_arrivals: counter "packets" "thread_remote_arrivals_packets_total" [];
        /// Packets of which this thread gave a capture a record.
        captured: counter "packets" "thread_captured_packets_total" [];
        /// Packets that a capture wanted of this thread and that found its ring full; they were forwarded all the same.
        capture_lost: counter "packets" "thread_capture_lost_packets_total" [];
        /// Marked packets of the tracer that this thread had reported.
        trace_reports: counter "reports" "thread_trace_reports_total" [];
    }

    /// What is counted of a connection table.
    flow_table FLOW_TABLE ["thread"] {
        /// Entries in use in this thread's connection table, expired ones that were not looked at since included.
        entries: gauge "entries" "flow_table_entries" [];
        /// Entries that this thread's connection table has room for.
        capacity: gauge "entries" "flow_table_capacity" [];
        /// Look-ups in this thread's connection table that found their flow (hit) or did not (miss).
        hits: counter "look-ups" "flow_table_lookups_total" ["result" = "hit"];
        /// Look-ups in this thread's connection table that found their flow (hit) or did not (miss).
        misses: counter "look-ups" "flow_table_lookups_total" ["result" = "miss"];
        /// Flows that were entered into this thread's connection table.
        inserts: counter "flows" "flow_table_inserts_total" [];
        /// Flows whose time was renewed in this thread's connection table.
        refreshes: counter "flows" "flow_table_refreshes_total" [];
        /// Entries that were found past their time and freed.
        expired: counter "entries" "flow_table_expired_total" [];
        /// Entries on probation that gave way to a new flow.
        evicted: counter "entries" "flow_table_evicted_total" [];
        /// Flows that found no room in their buckets and were forwarded by Maglev alone.
        untracked: counter "flows" "flow_table_untracked_total" [];
    }

    /// What is counted of a table of fragmented datagrams.
    fragment_table FRAGMENT_TABLE ["thread"] {
        /// Fragmented datagrams whose way this thread knows, expired ones that were not looked at since included.
        datagrams: gauge "datagrams" "fragment_table_datagrams" [];
        /// Fragments that this thread holds until the first one of their datagram comes.
        held: gauge "packets" "fragment_table_held_packets" [];
        /// First fragments whose decision was recorded in this thread's fragment table.
        recorded: counter "datagrams" "fragment_table_recorded_total" [];
        /// First fragments that came to this thread once more.
        duplicates: counter "packets" "fragment_table_duplicates_total" [];
        /// Later fragments that found the decision of their datagram as they came.
        followed: counter "packets" "fragment_table_followed_packets_total" [];
        /// Later fragments that came before the first one of their datagram and were held.
        waited: counter "packets" "fragment_table_waited_packets_total" [];
        /// Held fragments that went on because the first one of their datagram came.
        released: counter "packets" "fragment_table_released_packets_total" [];
        /// Datagrams with a decision that gave way to a newer one before their time.
        evicted: counter "datagrams" "fragment_table_evicted_total" [];
        /// Whole datagrams whose name, identification included, another one took over before their time.
        succeeded: counter "datagrams" "fragment_table_succeeded_total" [];
    }

    /// What is counted of a thread's sockets.
    socket SOCKET ["thread"] {
        /// Frames that the kernel dropped before this thread's receive ring for another reason than a full ring, among them those that found no frame in the fill ring.
        rx_dropped: counter "packets" "xdp_socket_rx_dropped_packets_total" [];
        /// Frames that the kernel dropped because this thread's receive ring was full.
        rx_ring_full: counter "packets" "xdp_socket_rx_ring_full_packets_total" [];
        /// Packets that this thread's packet sockets got merged from several (GRO, LRO, segmentation left to a device), or longer than a frame, and dropped (io.mode = "af-packet").
        rx_merged: counter "packets" "packet_socket_rx_merged_packets_total" [];
        /// Times that the kernel wanted a frame from this thread's fill ring and found none.
        rx_fill_ring_empty: counter "times" "xdp_socket_fill_ring_empty_total" [];
        /// Descriptors of this thread's fill ring that the kernel refused.
        rx_invalid: counter "descriptors" "xdp_socket_rx_invalid_descriptors_total" [];
        /// Descriptors of this thread's transmit ring that the kernel refused.
        tx_invalid: counter "descriptors" "xdp_socket_tx_invalid_descriptors_total" [];
        /// Times that the kernel was woken to send for this thread and found nothing.
        tx_ring_empty: counter "times" "xdp_socket_tx_ring_empty_total" [];
        /// Turns in which this thread had no free frame to refill its fill ring with.
        fill_low: counter "turns" "xdp_socket_fill_starved_turns_total" [];
        /// Turns of this thread's loop, empty ones included.
        turns: counter "turns" "thread_turns_total" [];
    }

    /// What is counted of the XDP program, in the order of `enum count` in `whose.h`.
    xdp XDP [] {
        /// Frames that the XDP program handed to a packet thread's socket, or that the ingress program beside packet sockets took from the kernel.
        redirected: counter "packets" "xdp_redirected_packets_total" [];
        /// Frames that the XDP program left to the kernel.
        passed: counter "packets" "xdp_passed_packets_total" [];
        /// Frames that the XDP program left to the kernel because they are multicast.
        multicast: counter "packets" "xdp_passed_multicast_packets_total" [];
        /// Frames that the XDP program left to the kernel because they are IPv6 neighbour discovery.
        neighbour_discovery: counter "packets" "xdp_passed_neighbour_discovery_packets_total" [];
        /// Frames for a VIP that reached no packet thread: no_socket on their queue (dropped, or passed by configuration), no_head_room, or socket_gone in mid-redirect.
        no_socket: counter "packets" "xdp_lost_packets_total" ["reason" = "no_socket"];
        /// Frames for a VIP that reached no packet thread: no_socket on their queue (dropped, or passed by configuration), no_head_room, or socket_gone in mid-redirect.
        no_head_room: counter "packets" "xdp_lost_packets_total" ["reason" = "no_head_room"];
        /// Frames for a VIP that reached no packet thread: no_socket on their queue (dropped, or passed by configuration), no_head_room, or socket_gone in mid-redirect.
        socket_gone: counter "packets" "xdp_lost_packets_total" ["reason" = "socket_gone"];
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::Kind;

    #[test]
    fn each_series_has_one_line_and_each_metric_one_kind_and_sentence() {
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
