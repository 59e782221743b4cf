//! The list of drop reasons, in two sections. The section `pipeline` lists the reasons for which
//! the pipeline decides to drop a packet. The section `driver` lists the reasons for which sending
//! fails after the pipeline has decided to send a packet. A capture records such a packet as sent,
//! although it is dropped.
//!
//! To add a reason, add a doc comment and `Variant = "name",` here, and return the variant where
//! the packet is dropped. The counter, the metric label and the name for `capture --drop` are
//! derived from this entry.

/// Calls the macro `NAME` with the list of drop reasons. The syntax is `drop_reasons! { NAME! }`.
macro_rules! drop_reasons {
    ($name:ident!) => {
        $name! {
            pipeline {
                /// The packet is truncated, its headers contradict each other, or a reply is needed
                /// but a checksum of the packet is wrong.
                Malformed = "malformed",
                /// The packet is neither IPv4 nor IPv6. The XDP filter passes such frames to a
                /// packet thread only if the filter is outdated.
                NotIp = "not_ip",
                /// No service is configured for the destination address, protocol and port of the
                /// packet.
                NoVip = "no_vip",
                /// The source address of the packet is not the address of a host: a loopback,
                /// multicast, unspecified, reserved or IPv4-mapped address, or an IPv6 link-local
                /// address, also of a client on the same link. Only echo requests from a link-local
                /// address are answered. ICMP errors that quote a packet to such an address are
                /// dropped, too.
                Martian = "martian",
                /// The VIP has an allow list that does not contain the source address of the
                /// packet.
                NotAllowed = "not_allowed",
                /// The source address of the packet is on the deny list of the VIP.
                Denied = "denied",
                /// The source address of a new flow is a VIP. Such packets are dropped because two
                /// services could otherwise reply to each other in an endless loop.
                FromVip = "from_vip",
                /// A new flow exceeds the rate limit for its source prefix at the VIP.
                SourceFlowRate = "source_flow_rate",
                /// A new flow exceeds the rate limit of the VIP.
                FlowRate = "flow_rate",
                /// The packet is a TCP SYN above the budget for new flows. A packet thread has this
                /// budget while it is overloaded and flows that are not on probation use 7/8 of its
                /// connection table. At least 1/16 of its packets must belong to established flows.
                /// The SYN is dropped before deny lists and limits are checked.
                Overload = "overload",
                /// No backend of the VIP's pool is serving, and no other cluster is configured to
                /// serve the VIP.
                NoBackend = "no_backend",
                /// The source address of a keyed request is not in kv.clients.
                KvClient = "kv_client",
                /// The source port of a keyed request is a server port (below 1,024, or 11211).
                KvSourcePort = "kv_source_port",
                /// A keyed request contains no data after the header of its protocol, or ends
                /// within that header.
                KvShortFrame = "kv_short_frame",
                /// The header of a keyed request gives a datagram count other than 1, which servers
                /// do not accept.
                KvTotalNotOne = "kv_total_not_one",
                /// A keyed request contains more than one command.
                KvSeveralCommands = "kv_several_commands",
                /// A keyed request contains an unknown command.
                KvUnknownVerb = "kv_unknown_verb",
                /// A keyed request contains an administrative command, which clients may not send
                /// through the load balancer.
                KvAdministrative = "kv_administrative",
                /// A line or value of a keyed request does not end with CR LF.
                KvLineEnd = "kv_line_end",
                /// The line of a keyed request contains a zero byte, which memcached treats as the
                /// end of the line.
                KvZeroByte = "kv_zero_byte",
                /// The first fragment of a keyed request does not contain the whole key.
                KvFirstFragmentTooShort = "kv_first_fragment_too_short",
                /// A keyed request has no key, or its key is empty.
                KvKeyEmpty = "kv_key_empty",
                /// A keyed request has a key of more than 250 bytes.
                KvKeyTooLong = "kv_key_too_long",
                /// A keyed request has more keys than kv.max_keys.
                KvTooManyKeys = "kv_too_many_keys",
                /// A keyed request has too few or too many arguments for its command.
                KvWrongArguments = "kv_wrong_arguments",
                /// A numeric argument of a keyed request is not a number or is out of range.
                KvBadNumber = "kv_bad_number",
                /// A flag of a meta command in a keyed request is unknown, repeated, malformed, or
                /// not allowed. The flag E is not allowed with kv.cache.
                KvBadFlag = "kv_bad_flag",
                /// The base64 key of a keyed request is not in canonical form.
                KvBadBase64 = "kv_bad_base64",
                /// The length fields of a keyed request do not match the length of the datagram. A
                /// server would parse the remaining bytes incorrectly.
                KvWrongLength = "kv_wrong_length",
                /// The key offsets in a keyed request point outside the request.
                KvWrongOffsets = "kv_wrong_offsets",
                /// The header of a keyed request contains the id of a different application.
                KvOtherApplication = "kv_other_application",
                /// The keys of a request belong to several backends, but the request cannot be
                /// split. Either kv.gather is off, or the part of the request for one backend does
                /// not fit into one datagram.
                KvSplit = "kv_split",
                /// This machine must reply to a keyed request itself, but has no return path to the
                /// client. The request arrived in fragments or through a tunnel, or this machine
                /// has no address of the IP version of the request.
                KvNoReturnPath = "kv_no_return_path",
                /// A keyed request stores a value while the primary backend of its key is not
                /// serving, and the time to live of the value cannot be shortened
                /// (kv.failover.ttl). The request arrived in fragments, or has no space for the
                /// change.
                KvShortLife = "kv_short_life",
                /// A keyed request must be proxied, but this thread's table of proxied requests is
                /// full, or the service has no space left in the table.
                KvProxiedFull = "kv_proxied_full",
                /// A request has keys on several backends, but this thread's table of gathered
                /// requests is full, or the service has no space left in the table.
                KvGatherFull = "kv_gather_full",
                /// A request has keys on several backends, but this thread has too few free frames
                /// to send a request to each of these backends.
                KvGatherNoFrame = "kv_gather_no_frame",
                /// A write must be sent to all backends of its key (kv.replicas), but this thread's
                /// table of replicated writes is full.
                KvReplicaFull = "kv_replica_full",
                /// A write must be sent to all backends of its key (kv.replicas), but this thread
                /// has too few free frames to send a request to each of these backends.
                KvReplicaNoFrame = "kv_replica_no_frame",
                /// A write to all backends of its key (kv.replicas) is longer than 1,536 bytes, or
                /// does not fit into one datagram after this machine has added up to 40 bytes.
                KvReplicaTooLong = "kv_replica_too_long",
                /// A request to a pool with kv.replicas depends on the stored value, which is not
                /// supported. The client does not wait for a reply (noreply), so this machine drops
                /// the request instead of replying with an error.
                KvReplicaRefused = "kv_replica_refused",
                /// A datagram arrived at a port of io.source_ports, but no upstream request with
                /// this id is waiting for a reply. The reply is late, duplicated or unsolicited.
                KvAnswerLate = "kv_answer_late",
                /// A reply arrived at a port of io.source_ports from an address other than the
                /// address to which the request was sent.
                KvAnswerSource = "kv_answer_source",
                /// A reply arrived at a port of io.source_ports without the nonce of the upstream
                /// request. The reply is an error message of the server, or it is forged.
                KvAnswerNonce = "kv_answer_nonce",
                /// A server replied with a key that was not requested from it, or replied twice
                /// with the same key.
                KvAnswerUnexpected = "kv_answer_unexpected",
                /// A server sent a reply in several datagrams. The second and later datagrams are
                /// dropped, because a gathered reply cannot contain values that exceed one
                /// datagram.
                KvAnswerContinuation = "kv_answer_continuation",
                /// A datagram arrived at a port of io.source_ports that is not a valid reply of the
                /// protocol, or has a wrong UDP checksum.
                KvAnswerMalformed = "kv_answer_malformed",
                /// A fragment arrived for a VIP that does not accept fragments.
                Fragment = "fragment",
                /// The first fragment of a datagram contains only a part of the transport header
                /// (RFC 1858 §3).
                FragmentTiny = "fragment_tiny",
                /// A TCP fragment has offset 8, and could overwrite the flags in the first fragment
                /// (RFC 1858 §4.2).
                FragmentOverlap = "fragment_overlap",
                /// The first fragment of a datagram arrived again with different contents.
                FragmentConflict = "fragment_conflict",
                /// A held fragment expired because the first fragment of its datagram did not
                /// arrive in time.
                FragmentTimeout = "fragment_timeout",
                /// A fragment arrived before the first fragment of its datagram, and the maximum
                /// number of fragments of that datagram is already held.
                FragmentDatagramFull = "fragment_datagram_full",
                /// A fragment arrived before the first fragment of its datagram, and the maximum
                /// number of fragments from its source is already held.
                FragmentSourceFull = "fragment_source_full",
                /// A fragment arrived before the first fragment of its datagram, and this thread
                /// already holds its maximum number of fragments.
                FragmentBufferFull = "fragment_buffer_full",
                /// An ICMP message to a VIP has a type that this machine neither answers nor
                /// forwards.
                Icmp = "icmp",
                /// An ICMP error quotes a packet that no VIP sent, or the quote does not identify
                /// the flow.
                IcmpQuote = "icmp_quote",
                /// An ICMP error exceeds the rate limit of its source or the total rate limit.
                IcmpRate = "icmp_rate",
                /// An ICMP error concerns a packet that this machine sent through a tunnel. This
                /// machine has processed the error and does not forward it.
                TakenIn = "taken_in",
                /// A tunneled packet from another cluster has no redirection mark. Without the
                /// mark, a loop between clusters could not be detected.
                Unmarked = "unmarked",
                /// A tunneled packet was marked as congested on its path, and the inner packet does
                /// not support ECN (RFC 6040 §4.2).
                Congestion = "congestion",
                /// The TTL or hop limit of the packet expired.
                Ttl = "ttl",
                /// The packet with its outer headers exceeds the path MTU to the backend.
                TooBig = "too_big",
                /// The next hop to the backend is unknown, because the machine has no route or no
                /// neighbor entry.
                NoNextHop = "no_next_hop",
                /// With `next_hop = "reflect"`, the frame came from a MAC address that is not a
                /// known gateway.
                UnknownGateway = "unknown_gateway",
                /// The outgoing interface has no mapping for the VLAN tags of the frame.
                VlanUnmapped = "vlan_unmapped",
                /// The frame has too little space in front of the packet for the outer headers.
                NoHeadRoom = "no_head_room",
                /// The reply to an ICMP echo request would exceed the configured rate limit.
                ReplyRate = "reply_rate",
                /// The packet must be held, but the table of held frames is full.
                HoldFull = "hold_full",
            }
            driver {
                /// The transmit ring was full, even after completed frames were reclaimed.
                TxFull = "tx_full",
                /// The mailbox of the packet thread that must process the packet is full.
                MailboxFull = "mailbox_full",
                /// The packet must be fragmented, but no frame is free for a fragment.
                NoFrame = "no_frame",
            }
        }
    };
}

macro_rules! names {
    (
        pipeline { $($(#[doc = $_found:literal])+ $_pipeline:ident = $found:literal,)+ }
        driver { $($(#[doc = $_late:literal])+ $_driver:ident = $late:literal,)+ }
    ) => {
        /// The names of the reasons for which the pipeline drops packets.
        pub static PIPELINE_DROPS: &[&str] = &[$($found),+];
        /// The names of the reasons for which packets are dropped while they are sent.
        pub static DRIVER_DROPS: &[&str] = &[$($late),+];
    };
}

drop_reasons! { names! }

macro_rules! reasons {
    ($($finder:ident { $($(#[doc = $doc:literal])+ $variant:ident = $name:literal,)+ })+) => {
        /// The reason why a packet was dropped.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        #[repr(u8)]
        pub enum DropReason { $($($(#[doc = $doc])+ $variant,)+)+ }

        impl DropReason {
            /// All drop reasons, ordered by index.
            pub const ALL: &'static [Self] = &[$($(Self::$variant,)+)+];

            /// Returns the name used in metrics, captures and logs.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $($(Self::$variant => $name,)+)+ }
            }

            /// Returns the description of the reason, for the page that lists all drop reasons. The
            /// text begins with a space and contains one or more sentences.
            #[must_use]
            pub const fn description(self) -> &'static str {
                match self { $($(Self::$variant => concat!($($doc),+),)+)+ }
            }
        }
    };
}

drop_reasons! { reasons! }

impl DropReason {
    /// Returns the index of this reason in arrays of drop counters.
    #[must_use]
    pub const fn index(self) -> usize {
        self as usize
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_reason_has_its_own_name() {
        let names: BTreeSet<_> = PIPELINE_DROPS.iter().chain(DRIVER_DROPS).collect();
        assert_eq!(names.len(), PIPELINE_DROPS.len() + DRIVER_DROPS.len());
    }
}
