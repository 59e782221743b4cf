//! The table of drop reasons. A line: the sentence, then `Variant = "name",`, under what finds it: the pipeline, or a driver
//! after the verdict, when a capture has the packet as sent.
//!
//! Add a line here, and return it where the packet stops: variant, counter, label and name for `capture --drop` follow.

/// Hands the reasons to a macro: `drop_reasons! { NAME! }`.
macro_rules! drop_reasons {
    ($name:ident!) => {
        $name! {
            pipeline {
                /// The frame is cut short, or its headers contradict each other.
                Malformed = "malformed",
                /// Neither IPv4 nor IPv6: only a stale XDP filter lets such a frame in.
                NotIp = "not_ip",
                /// The address may be a VIP's, but no service has this port and protocol.
                NoVip = "no_vip",
                /// The VIP has an allow list, and the source is not on it.
                NotAllowed = "not_allowed",
                /// The source is on the VIP's deny list.
                Denied = "denied",
                /// The source of a new flow is a VIP: two services would answer each other for ever.
                FromVip = "from_vip",
                /// A new flow over the limit that its source prefix has at the VIP.
                SourceFlowRate = "source_flow_rate",
                /// A new flow over the VIP's limit.
                FlowRate = "flow_rate",
                /// The VIP is ours, but no backend of its pool serves, and no other cluster may.
                NoBackend = "no_backend",
                /// A keyed request whose source is none of kv.clients.
                KvClient = "kv_client",
                /// A keyed request from a port of servers: below 1,024, or 11211.
                KvSourcePort = "kv_source_port",
                /// A keyed request that ends within its protocol's header, or right behind it.
                KvShortFrame = "kv_short_frame",
                /// A keyed request that says that it has more or fewer than one datagram, which servers drop.
                KvTotalNotOne = "kv_total_not_one",
                /// A keyed request with more than one command.
                KvSeveralCommands = "kv_several_commands",
                /// A keyed request with a verb that is not known.
                KvUnknownVerb = "kv_unknown_verb",
                /// A keyed request with a command of administrators.
                KvAdministrative = "kv_administrative",
                /// A keyed request with a line or a value that does not end in CR LF.
                KvLineEnd = "kv_line_end",
                /// A keyed request with a zero byte in its line, which memcached takes for the line's end.
                KvZeroByte = "kv_zero_byte",
                /// A keyed request in fragments whose first one does not hold the whole key.
                KvFirstPieceTooShort = "kv_first_piece_too_short",
                /// A keyed request without a key, or with an empty one.
                KvKeyEmpty = "kv_key_empty",
                /// A keyed request with a key of more than 250 bytes.
                KvKeyTooLong = "kv_key_too_long",
                /// A keyed request with more keys than kv.max_keys.
                KvTooManyKeys = "kv_too_many_keys",
                /// A keyed request with too few or too many words for its verb.
                KvWrongArguments = "kv_wrong_arguments",
                /// A keyed request in which a word that must be a number is none, or is out of its range.
                KvBadNumber = "kv_bad_number",
                /// A keyed request in which a flag of a meta command is unknown, given twice or malformed.
                KvBadFlag = "kv_bad_flag",
                /// A keyed request whose key is to be base64 and is not canonical.
                KvBadBase64 = "kv_bad_base64",
                /// A keyed request whose lengths do not give that of the datagram: a server would misread what follows.
                KvWrongLength = "kv_wrong_length",
                /// A keyed request whose key lies outside of it by its own offsets.
                KvWrongOffsets = "kv_wrong_offsets",
                /// A keyed request with the preamble of another application.
                KvOtherApplication = "kv_other_application",
                /// A keyed request whose keys are of several backends, and that cannot be gathered: kv.gather is off, or one of its keys is longer than one datagram to its backend takes.
                KvSplit = "kv_split",
                /// A keyed request that this machine would answer, or pass both ways, and has no way back to its client for: it came in fragments or in a tunnel, or this machine has no address of its family.
                KvNoWayBack = "kv_no_way_back",
                /// A keyed request that would store something while its key's own backend does not serve, and whose time to live cannot be made shorter (kv.failover.ttl): it came in fragments, or there is no room.
                KvShortLife = "kv_short_life",
                /// A keyed request that would pass both ways, while as many wait for their answers as the thread has room for.
                KvThroughFull = "kv_through_full",
                /// A keyed request for several backends, while as many are gathered as the thread has room for.
                KvGatherFull = "kv_gather_full",
                /// A keyed request for several backends, while the thread has too few free frames to ask them.
                KvGatherNoFrame = "kv_gather_no_frame",
                /// A write for all backends of its key (kv.replicas), while as many are under way as the thread has room for.
                KvReplicaFull = "kv_replica_full",
                /// A write for all backends of its key, while the thread has too few free frames to ask them.
                KvReplicaNoFrame = "kv_replica_no_frame",
                /// A write for all backends of its key that one datagram to each does not hold with what this machine adds, 40 bytes at most, or of more than 1,536 bytes.
                KvReplicaTooLong = "kv_replica_too_long",
                /// A keyed request that depends on what a backend has, of a pool with kv.replicas, and whose client waits for no answer that could say so (noreply).
                KvReplicaRefused = "kv_replica_refused",
                /// A datagram to a port of io.own_ports that no request of this machine waits for: an answer too late, or a second time, or never asked for.
                KvAnswerLate = "kv_answer_late",
                /// A datagram to a port of io.own_ports from another address than was asked.
                KvAnswerSource = "kv_answer_source",
                /// A datagram to a port of io.own_ports without the request's nonce: a server's error, or forged.
                KvAnswerNonce = "kv_answer_nonce",
                /// A server's answer about a key that its part of the request does not wait for, or not any more.
                KvAnswerUnasked = "kv_answer_unasked",
                /// A second or later datagram of a server's answer: values that one datagram does not hold are not gathered.
                KvAnswerContinuation = "kv_answer_continuation",
                /// A datagram to a port of io.own_ports that is no answer of the protocol, or has a wrong UDP checksum.
                KvAnswerMalformed = "kv_answer_malformed",
                /// A fragment for a VIP that takes none.
                Fragment = "fragment",
                /// The first fragment of a datagram ends before its transport header does (RFC 1858 §3).
                FragmentTiny = "fragment_tiny",
                /// A fragment of TCP at offset 8, which could replace the first one's flags (RFC 1858 §4.2).
                FragmentOverlap = "fragment_overlap",
                /// A second first fragment of a datagram, other than the one that came before.
                FragmentConflict = "fragment_conflict",
                /// Held until its time was over: the first fragment of the datagram did not come.
                FragmentTimeout = "fragment_timeout",
                /// The first fragment has not come, and as many of the datagram's pieces are held as may be.
                FragmentDatagramFull = "fragment_datagram_full",
                /// The first fragment has not come, and as many of the source's pieces are held as may be.
                FragmentSourceFull = "fragment_source_full",
                /// The first fragment has not come, and as many pieces are held as may be.
                FragmentBufferFull = "fragment_buffer_full",
                /// An ICMP message to a VIP that is not answered and not passed on.
                Icmp = "icmp",
                /// An ICMP error whose quote is not of a packet that a VIP sent, or does not name its flow.
                IcmpQuote = "icmp_quote",
                /// An ICMP error over the rate, of its source or in all.
                IcmpRate = "icmp_rate",
                /// An ICMP error about an outer packet of this machine: taken in, and not passed on.
                TakenIn = "taken_in",
                /// A tunnelled packet of another cluster that is not marked as redirected, so that a loop could not be detected.
                Unmarked = "unmarked",
                /// A tunnelled packet met congestion, and its sender does not know ECN (RFC 6040 §4.2).
                Congestion = "congestion",
                /// The TTL or hop limit ends here.
                Ttl = "ttl",
                /// With its outer headers the packet is larger than the path to the backend takes.
                TooBig = "too_big",
                /// The way to the backend's address is not known (no route, or no neighbour).
                NoNextHop = "no_next_hop",
                /// `next_hop = "reflect"`, and the frame came from a MAC address that is no known gateway.
                UnknownGateway = "unknown_gateway",
                /// The VLAN tags of the frame are none that the interface it would leave by translates.
                VlanUnmapped = "vlan_unmapped",
                /// The frame leaves too little room for the outer headers.
                NoHeadRoom = "no_head_room",
                /// An answer in place (ICMP echo) over the configured rate.
                ReplyRate = "reply_rate",
                /// The table of held frames is full.
                HoldFull = "hold_full",
            }
            driver {
                /// The transmit ring stayed full after completions were reaped.
                TxFull = "tx_full",
                /// The mailbox of the thread that should have had it is full.
                MailboxFull = "mailbox_full",
                /// No frame was free for a piece of a packet that had to be split.
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
        /// Names of reasons that the pipeline finds: they are verdicts.
        pub static PIPELINE_DROPS: &[&str] = &[$($found),+];
        /// Names of reasons that drivers find after the verdict.
        pub static DRIVER_DROPS: &[&str] = &[$($late),+];
    };
}

drop_reasons! { names! }

macro_rules! reasons {
    ($($finder:ident { $($(#[doc = $doc:literal])+ $variant:ident = $name:literal,)+ })+) => {
        /// Why a packet stopped here. There is no "other".
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        #[repr(u8)]
        pub enum DropReason { $($($(#[doc = $doc])+ $variant,)+)+ }

        impl DropReason {
            /// Every reason, in the order of its number.
            pub const ALL: &'static [Self] = &[$($(Self::$variant,)+)+];

            /// The name in metrics, captures and logs.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $($(Self::$variant => $name,)+)+ }
            }
        }
    };
}

drop_reasons! { reasons! }

impl DropReason {
    /// Place of its counter.
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
