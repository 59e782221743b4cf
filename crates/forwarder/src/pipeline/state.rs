//! What the stages share: what holds for a batch, and what is known of a packet between two stages.
//!
//! Not here: what the stages do. Invariant: stage 1 begins a packet's state anew, so that nothing of an earlier batch is left.

use conntrack::{Signal, Tick};
use kv_switch::{Item, Plan};
use packet::{Fragment, Parsed, protocol};

use crate::{
    CacheRules, HashPolicy, Keyed, Now, Service, ServiceId, SlotId, Snapshot, Step, TunnelSourceKind, Verdict,
};

/// What holds for a whole batch.
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

/// What is known of a packet between two stages.
#[derive(Clone, Copy, Debug)]
pub(super) struct PacketState {
    /// Its place in the batch; the only thing that outlives one.
    pub(super) place: usize,
    pub(super) parsed: Parsed,
    /// The flow's, or of a keyed request its key's.
    pub(super) hash: u64,
    /// The connection table's; of a request for a key with replicas, its flow's hash; of a write that no copy may be older than, its key's
    /// hash for the cache.
    pub(super) key: u64,
    /// The place among a keyed service's pools of the one that has the request's key; `None`: the service's own.
    pub(super) route: Option<u32>,
    /// How a keyed service's request is served.
    pub(super) plan: Plan,
    /// Such a request may store something.
    pub(super) may_store: bool,
    /// What it stores is not for its key's own backend, and lives no longer than that may be away.
    pub(super) is_away: bool,
    /// A keyed service's request that a copy may answer.
    pub(super) cached: Option<CachedRead>,
    /// Index among the snapshot's services; of a piece without ports, [`NO_SERVICE`].
    pub(super) service: u32,
    /// The number by which it is counted.
    pub(super) counted: ServiceId,
    pub(super) choice: Choice,
    pub(super) stage: Stage,
    /// Who sent it in a tunnel.
    pub(super) decapsulated_from: Option<TunnelSourceKind>,
    /// `None`: not yet decided.
    pub(super) verdict: Option<Verdict>,
}

/// A request that a copy may answer.
#[derive(Clone, Copy, Debug)]
pub(super) struct CachedRead {
    /// Its key's hash for the cache.
    pub(super) hash: u64,
    pub(super) key: Item,
    pub(super) verb: u8,
    /// The copy that stage 2 has found.
    pub(super) copy: Option<u32>,
}

/// A service with a cache.
#[derive(Clone, Copy)]
pub(super) struct CachedService<'a> {
    pub(super) keyed: &'a Keyed,
    pub(super) rules: &'a CacheRules,
}

/// A packet of a flow, as stage 2 looks at it.
#[derive(Clone, Copy)]
pub(super) struct FlowPacket<'a> {
    pub(super) service: &'a Service,
    pub(super) hash: u64,
    /// The connection table's.
    pub(super) key: u64,
    pub(super) protocol: u8,
    pub(super) tcp_flags: u8,
    /// Who sent it in a tunnel.
    pub(super) decapsulated_from: Option<TunnelSourceKind>,
}

/// What stage 2 has found.
#[derive(Clone, Copy, Debug)]
pub(super) struct Choice {
    pub(super) slot: SlotId,
    /// What found the slot.
    pub(super) step: Option<Step>,
    /// The connection table was asked, and did not know it.
    pub(super) is_new_flow: bool,
}

impl Choice {
    /// Nothing yet.
    pub(super) const NONE: Self = Self { slot: NO_SLOT, step: None, is_new_flow: false };
}

impl FlowPacket<'_> {
    /// What it says to the connection table. Flows of address policies have no TCP state: many connections share one.
    #[inline(always)]
    pub(super) fn signal(&self) -> Signal {
        Self::signal_of(self.service.policy, self.protocol, self.tcp_flags)
    }

    /// The same of a packet's fields.
    #[inline(always)]
    pub(super) fn signal_of(policy: HashPolicy, protocol: u8, tcp_flags: u8) -> Signal {
        if protocol != protocol::TCP || policy != HashPolicy::FiveTuple {
            return Signal::Datagram;
        }
        SIGNALS[usize::from(tcp_flags) % SIGNALS.len()]
    }

    /// Whether it asks for a new connection, if it is of TCP.
    #[inline(always)]
    pub(super) fn begins(&self) -> bool {
        self.tcp_flags & (protocol::TCP_SYN | protocol::TCP_ACK) == protocol::TCP_SYN
    }
}

/// What stage 2 has to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// Ask the connection table, then Maglev.
    Flow,
    /// Ask the table of the key's pool: a request of a keyed service.
    Keyed,
    /// The same, of a service whose requests pass both ways.
    Through,
    /// Ask several backends, by requests of our own.
    Gather,
    /// Have all backends of the key carry it out, by requests of our own.
    Replicate,
    /// Nothing: its client is answered that it is not served.
    Refuse,
    /// Ask Maglev alone: the ICMP packets of a VIP are no flow.
    Select,
    /// As `Flow`, and record it for the pieces that follow.
    FirstPiece,
    /// Ask the fragment table.
    LaterPiece,
    /// Ask the connection tables of all threads, then Maglev.
    IcmpError,
    /// Ask the connection tables of all threads for the flow that an error about our own outer packet quotes.
    OuterError,
    /// Nothing: it goes to the machine that gathers its datagram.
    Redirect,
}

impl PacketState {
    /// Of nothing, at `place`.
    pub(super) const fn at(place: usize) -> Self {
        Self {
            place,
            parsed: NOT_PARSED,
            hash: 0,
            key: 0,
            route: None,
            plan: Plan::One,
            may_store: false,
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

    /// Of a packet that was parsed, and nothing more.
    #[inline]
    pub(super) const fn of(
        place: usize,
        parsed: Parsed,
        decapsulated_from: Option<TunnelSourceKind>,
    ) -> Self {
        Self { parsed, decapsulated_from, ..Self::at(place) }
    }

    /// What stage 2 looks at, if it is of a flow.
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

    /// The service by which it is counted.
    pub(super) fn service_id(&self) -> Option<ServiceId> {
        (self.counted.0 != NO_SERVICE).then_some(self.counted)
    }

    /// The slot that was chosen.
    pub(super) fn chosen(&self) -> Option<SlotId> {
        (self.choice.slot != NO_SLOT).then_some(self.choice.slot)
    }
}

/// By TCP's flags from FIN to ACK.
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
/// No service has this index, and none is counted under this number.
pub(super) const NO_SERVICE: u32 = u32::MAX;
