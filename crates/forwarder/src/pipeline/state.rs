//! State that all stages share: the data of a batch, and the state of each packet between two
//! stages. Stage 1 (classification) resets the state of a packet, so that no data from an earlier
//! batch remains.

use conntrack::{Signal, Tick};
use kv_switch::{Item, Plan};
use packet::{Fragment, Parsed, protocol};

use crate::{
    CacheRules, HashPolicy, Keyed, Now, Service, ServiceId, SlotId, Snapshot, Step, TunnelSourceKind, Verdict,
};

/// The data that applies to all packets of a batch.
#[derive(Clone, Copy)]
pub(super) struct Batch<'a> {
    pub(super) snapshot: &'a Snapshot,
    pub(super) now: Now,
    pub(super) tick: Tick,
}

impl<'a> Batch<'a> {
    pub(super) fn new(snapshot: &'a Snapshot, now: Now) -> Self {
        Self { snapshot, now, tick: now.tick() }
    }
}

/// The state of one packet between two stages.
#[derive(Clone, Copy, Debug)]
pub(super) struct PacketState {
    /// The index of the packet in the batch. All other fields are reset for each batch.
    pub(super) place: usize,
    pub(super) parsed: Parsed,
    /// The flow hash or, for a request to a keyed service, the hash of the request key.
    pub(super) hash: u64,
    /// The key of the flow in the connection table. For a request to a replicated key, this field
    /// contains the flow hash. For a write with a strict cache, this field contains the cache hash
    /// of the request key.
    pub(super) key: u64,
    /// The index in [`Keyed::pools`] of the pool that the request key is routed to. `None` means
    /// the service's own pool.
    pub(super) route: Option<u32>,
    pub(super) plan: Plan,
    /// `true` if the request may store a value.
    pub(super) may_store: bool,
    /// `true` if the limits of the VIP have already admitted the request.
    pub(super) is_admitted: bool,
    /// `true` if the backend sends no reply to a proxied request.
    pub(super) is_unanswered: bool,
    /// `true` if the request stores a value on a failover backend. The lifetime of such a value is
    /// limited.
    pub(super) is_away: bool,
    /// The cache lookup data of a request that may be answered from the cache.
    pub(super) cached: Option<CachedRead>,
    /// The index of the service in the snapshot, or [`NO_SERVICE`] for a fragment without ports.
    pub(super) service: u32,
    /// The service ID, which selects the counters of the service.
    pub(super) counted: ServiceId,
    pub(super) choice: Choice,
    pub(super) stage: Stage,
    /// The kind of tunnel sender, or `None` if the packet was not decapsulated.
    pub(super) decapsulated_from: Option<TunnelSourceKind>,
    /// The verdict, or `None` until it is known.
    pub(super) verdict: Option<Verdict>,
}

/// A request that may be answered from the cache.
#[derive(Clone, Copy, Debug)]
pub(super) struct CachedRead {
    /// The hash of the key for the cache.
    pub(super) hash: u64,
    pub(super) key: Item,
    pub(super) verb: u8,
    /// The index of the cached value found by stage 2 (backend selection), if any.
    pub(super) copy: Option<u32>,
}

/// For a service with a cache, its keyed state and its cache rules.
#[derive(Clone, Copy)]
pub(super) struct CachedService<'a> {
    pub(super) keyed: &'a Keyed,
    pub(super) rules: &'a CacheRules,
}

/// The packet data that stage 2 (backend selection) needs for a packet of a flow.
#[derive(Clone, Copy)]
pub(super) struct FlowPacket<'a> {
    pub(super) service: &'a Service,
    pub(super) hash: u64,
    /// The key of the flow in the connection table.
    pub(super) key: u64,
    pub(super) protocol: u8,
    pub(super) tcp_flags: u8,
    /// The kind of tunnel sender, or `None` if the packet was not decapsulated.
    pub(super) decapsulated_from: Option<TunnelSourceKind>,
}

/// The backend choice that stage 2 (backend selection) makes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Choice {
    pub(super) slot: SlotId,
    /// The step that selected the slot.
    pub(super) step: Option<Step>,
    /// `true` if the connection table had no entry for the flow.
    pub(super) is_new_flow: bool,
}

impl Choice {
    /// The value before stage 2 (backend selection) has made a choice.
    pub(super) const NONE: Self = Self { slot: NO_SLOT, step: None, is_new_flow: false };
}

impl FlowPacket<'_> {
    /// Returns the TCP state signal of the packet for the connection table. Under address policies,
    /// many connections share one flow, so flows have no TCP state.
    #[inline(always)]
    pub(super) fn signal(&self) -> Signal {
        Self::signal_of(self.service.policy, self.protocol, self.tcp_flags)
    }

    /// Returns the TCP state signal for the connection table, given the header fields of a packet.
    #[inline(always)]
    pub(super) fn signal_of(policy: HashPolicy, protocol: u8, tcp_flags: u8) -> Signal {
        if protocol != protocol::TCP || policy != HashPolicy::FiveTuple {
            return Signal::Datagram;
        }
        SIGNALS[usize::from(tcp_flags) % SIGNALS.len()]
    }

    /// Returns `true` if the TCP flags request a new connection (SYN without ACK).
    #[inline(always)]
    pub(super) fn begins(&self) -> bool {
        self.tcp_flags & (protocol::TCP_SYN | protocol::TCP_ACK) == protocol::TCP_SYN
    }
}

/// The action of stage 2 (backend selection) for a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// Look the flow up in the connection table, then use Maglev.
    Flow,
    /// Choose the backend by request key.
    Keyed,
    /// Choose the backend by request key, and proxy the request.
    Through,
    /// Send upstream requests to several backends and combine their replies.
    Gather,
    /// Send upstream requests to all backends of the key.
    Replicate,
    /// Send the client an error reply, because the request is not supported.
    Refuse,
    /// Use only the Maglev table. This action applies to ICMP packets to a VIP, which belong to no
    /// flow.
    Select,
    /// Choose the backend as for `Flow`, and record the decision for later fragments.
    FirstFragment,
    /// Look the datagram up in the fragment table.
    LaterFragment,
    /// Search the connection tables of all threads for the quoted flow, then use Maglev.
    IcmpError,
    /// Search the connection tables of all threads for the flow in a quoted outer packet.
    OuterError,
    /// Send the fragment to the machine that collects all fragments of this datagram.
    Redirect,
}

impl PacketState {
    /// Returns an empty state for the packet with index `place` in the batch.
    pub(super) const fn at(place: usize) -> Self {
        Self {
            place,
            parsed: NOT_PARSED,
            hash: 0,
            key: 0,
            route: None,
            plan: Plan::One,
            may_store: false,
            is_admitted: false,
            is_unanswered: false,
            is_away: false,
            cached: None,
            service: NO_SERVICE,
            counted: ServiceId(NO_SERVICE),
            choice: Choice::NONE,
            stage: Stage::Flow,
            decapsulated_from: None,
            verdict: None,
        }
    }

    /// Returns the initial state of a parsed packet.
    #[inline]
    pub(super) const fn of(
        place: usize,
        parsed: Parsed,
        decapsulated_from: Option<TunnelSourceKind>,
    ) -> Self {
        Self { parsed, decapsulated_from, ..Self::at(place) }
    }

    /// Returns the packet data that stage 2 (backend selection) needs for a packet of a flow.
    #[inline]
    pub(super) fn flow_packet<'a>(&self, batch: &Batch<'a>) -> FlowPacket<'a> {
        FlowPacket {
            service: batch.snapshot.service(self.service),
            hash: self.hash,
            key: self.key,
            protocol: self.parsed.protocol,
            tcp_flags: self.parsed.tcp_flags,
            decapsulated_from: self.decapsulated_from,
        }
    }

    /// Returns the service ID, or `None` if the service is not known.
    pub(super) fn service_id(&self) -> Option<ServiceId> {
        (self.counted.0 != NO_SERVICE).then_some(self.counted)
    }

    /// Returns the slot that stage 2 (backend selection) chose, or `None` if no slot was chosen.
    pub(super) fn chosen(&self) -> Option<SlotId> {
        (self.choice.slot != NO_SLOT).then_some(self.choice.slot)
    }
}

/// The TCP state signal for each combination of the lowest five TCP flags (FIN, SYN, RST, PSH and
/// ACK).
static SIGNALS: [Signal; 32] = {
    let (mut signals, mut flags) = ([Signal::Data; 32], 0_u8);
    while flags < 32 {
        signals[flags as usize] = if flags & (protocol::TCP_FIN | protocol::TCP_RST) != 0 {
            Signal::FinOrRst
        } else if flags & (protocol::TCP_SYN | protocol::TCP_ACK) == protocol::TCP_SYN {
            Signal::Syn
        } else {
            Signal::Data
        };
        flags += 1;
    }
    signals
};

const NOT_PARSED: Parsed = Parsed {
    family: packet::Family::V4,
    l3: 0,
    l4: 0,
    end: 0,
    protocol: 0,
    src_port: 0,
    dst_port: 0,
    tcp_flags: 0,
    fragment: Fragment::None,
    tos: 0,
    ttl: 0,
    dont_fragment: false,
};
const NO_SLOT: SlotId = SlotId(u32::MAX);
/// A placeholder for a missing service. No service has this index or this ID.
pub(super) const NO_SERVICE: u32 = u32::MAX;
