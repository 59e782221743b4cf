//! What the stages share: what holds for a batch, and what is known of a packet between two stages.
//!
//! Not here: what the stages do. Invariant: stage 1 begins a packet's state anew, so that nothing of an earlier batch is left.

use conntrack::Tick;
use packet::{Fragment, Parsed};

use crate::{Now, ServiceId, SlotId, Snapshot, Step, TunnelSourceKind, Verdict};

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
    pub(super) hash: u64,
    pub(super) key: u64,
    /// Index among the snapshot's services; of a piece without ports, [`NO_SERVICE`].
    pub(super) service: u32,
    /// The number by which it is counted.
    pub(super) counted: ServiceId,
    pub(super) slot: SlotId,
    /// What found the slot.
    pub(super) step: Option<Step>,
    pub(super) stage: Stage,
    /// The connection table was asked, and did not know it.
    pub(super) is_new_flow: bool,
    /// Who sent it in a tunnel.
    pub(super) decapsulated_from: Option<TunnelSourceKind>,
    /// `None`: not yet decided.
    pub(super) verdict: Option<Verdict>,
}

/// What stage 2 has to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// Ask the connection table, then Maglev.
    Flow,
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
            service: NO_SERVICE,
            counted: ServiceId(NO_SERVICE),
            slot: NO_SLOT,
            step: None,
            stage: Stage::Flow,
            is_new_flow: false,
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

    /// The service by which it is counted.
    pub(super) fn service_id(&self) -> Option<ServiceId> {
        (self.counted.0 != NO_SERVICE).then_some(self.counted)
    }

    /// The slot that was chosen.
    pub(super) fn chosen(&self) -> Option<SlotId> {
        (self.slot != NO_SLOT).then_some(self.slot)
    }
}

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
/// No service has this index, and none is counted under this number.
const NO_SERVICE: u32 = u32::MAX;
const NO_SLOT: SlotId = SlotId(u32::MAX);
