//! The table of drop reasons. A line: the sentence, then `Variant = "name" finder;`, where the finder is `pipeline`, or
//! `driver` for what is found after the verdict.
//!
//! Add a line here, and return it where the packet stops: variant, counter, label and name for `capture --drop` follow.

/// Hands the reasons to a macro: `counters::drop_reasons! { NAME! }`.
#[macro_export]
macro_rules! drop_reasons {
    ($name:ident!) => {
        $name! {
            /// The frame is cut short, or its headers contradict each other.
            Malformed = "malformed" pipeline;
            /// Neither IPv4 nor IPv6: only a stale XDP filter lets such a frame in.
            NotIp = "not_ip" pipeline;
            /// The address may be a VIP's, but no service has this port and protocol.
            NoVip = "no_vip" pipeline;
            /// The VIP has an allow list, and the source is not on it.
            NotAllowed = "not_allowed" pipeline;
            /// The source is on the VIP's deny list.
            Denied = "denied" pipeline;
            /// A new flow over the limit that its source prefix has at the VIP.
            SourceFlowRate = "source_flow_rate" pipeline;
            /// A new flow over the VIP's limit.
            FlowRate = "flow_rate" pipeline;
            /// The VIP is ours, but no backend of its pool serves, and no other cluster may.
            NoBackend = "no_backend" pipeline;
            /// A fragment for a VIP that takes none.
            Fragment = "fragment" pipeline;
            /// The first fragment of a datagram ends before its transport header does (RFC 1858 §3).
            FragmentTiny = "fragment_tiny" pipeline;
            /// A fragment of TCP at offset 8, which could replace the first one's flags (RFC 1858 §4.2).
            FragmentOverlap = "fragment_overlap" pipeline;
            /// A second first fragment of a datagram, other than the one that came before.
            FragmentConflict = "fragment_conflict" pipeline;
            /// Held until its time was over: the first fragment of the datagram did not come.
            FragmentTimeout = "fragment_timeout" pipeline;
            /// The first fragment has not come, and as many of the datagram's pieces are held as may be.
            FragmentDatagramFull = "fragment_datagram_full" pipeline;
            /// The first fragment has not come, and as many of the source's pieces are held as may be.
            FragmentSourceFull = "fragment_source_full" pipeline;
            /// The first fragment has not come, and as many pieces are held as may be.
            FragmentBufferFull = "fragment_buffer_full" pipeline;
            /// An ICMP message to a VIP that is not answered and not passed on.
            Icmp = "icmp" pipeline;
            /// An ICMP error whose quote is not of a packet that a VIP sent, or does not tell which flow it is of.
            IcmpQuote = "icmp_quote" pipeline;
            /// An ICMP error over the rate, of its source or in all.
            IcmpRate = "icmp_rate" pipeline;
            /// An ICMP error about an outer packet of this machine: taken in, and not passed on.
            TakenIn = "taken_in" pipeline;
            /// A tunnelled packet of another cluster that is not marked as redirected, so that nobody could tell a loop.
            Unmarked = "unmarked" pipeline;
            /// A tunnelled packet met congestion, and its sender does not know ECN (RFC 6040 §4.2).
            Congestion = "congestion" pipeline;
            /// The TTL or hop limit ends here.
            Ttl = "ttl" pipeline;
            /// With its outer headers the packet is larger than the path to the backend takes.
            TooBig = "too_big" pipeline;
            /// The way to the backend's address is not known (no route, or no neighbour).
            NoNextHop = "no_next_hop" pipeline;
            /// `next_hop = "reflect"`, and the frame came from a MAC address that is no known gateway.
            UnknownGateway = "unknown_gateway" pipeline;
            /// The VLAN tags of the frame are none that the interface it would leave by translates.
            VlanUnmapped = "vlan_unmapped" pipeline;
            /// The frame leaves too little room for the outer headers.
            NoHeadRoom = "no_head_room" pipeline;
            /// An answer in place (ICMP echo) over the configured rate.
            ReplyRate = "reply_rate" pipeline;
            /// The transmit ring stayed full after completions were reaped.
            TxFull = "tx_full" driver;
            /// The mailbox of the thread that should have had it is full.
            MailboxFull = "mailbox_full" driver;
            /// The table of held frames is full.
            HoldFull = "hold_full" pipeline;
            /// No frame was free for a piece of a packet that had to be split.
            NoFrame = "no_frame" driver;
        }
    };
}

macro_rules! specs {
    ($(#[doc = $help:literal] $variant:ident = $name:literal $finder:ident;)+) => {
        /// Why packets are dropped.
        pub static DROP_REASONS: &[DropSpec] = &[$(DropSpec { name: $name, finder: finder!($finder) }),+];
    };
}

macro_rules! finder {
    (pipeline) => {
        Finder::Pipeline
    };
    (driver) => {
        Finder::Driver
    };
}

/// What is said of one drop reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DropSpec {
    /// Its name in metrics, captures and logs.
    pub name: &'static str,
    /// What finds it.
    pub finder: Finder,
}

/// What finds a reason to drop a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finder {
    /// The pipeline: it is the packet's verdict.
    Pipeline,
    /// A driver, after the verdict: a capture has the packet as sent.
    Driver,
}

drop_reasons! { specs! }

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_reason_has_its_own_name() {
        let names: BTreeSet<_> = DROP_REASONS.iter().map(|reason| reason.name).collect();
        assert_eq!(names.len(), DROP_REASONS.len());
    }
}
