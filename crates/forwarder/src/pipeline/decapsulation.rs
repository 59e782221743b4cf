//! Packets that come in tunnels: their outer header comes off in place, and then they are as if they had come plain.
//!
//! In: a packet of GRE, IP-in-IP or GUE off the wire. Out: the inner packet, and what its sender is.
//! Not here: which of them reach a packet thread (XDP), who may send (`classifier`), how headers come off (`packet`).
//! Invariants: tunnels are opened at the machine's own addresses, and those of other clusters at a VIP; one outer header comes
//! off, so a tunnel in a tunnel is for the backend; each mark takes from where a packet may be sent on to, so that no machines
//! can forward it in a loop.
//! Source: paper §2.1, §4.2, §4.3; RFC 1701 (recursion control), RFC 6040 (ECN).

use classifier::source_kind;
use packet::{Fragment, OpenError, Parsed, Tunnelled, decapsulate, open_in_place, parse, protocol};

use super::state::Batch;
use super::threads::thread_of_flow;
use super::{Core, unreadable};
use crate::{DropReason, Flow, HashPolicy, Packet, Snapshot, ThreadId, TunnelSourceKind};

/// What was in a tunnel.
pub(super) struct Inner {
    pub(super) parsed: Parsed,
    /// What its sender is to this machine.
    pub(super) from: TunnelSourceKind,
}

/// Whether a packet may be carrying another: cheap, and true of much that is not.
#[inline]
pub(super) fn may_carry(parsed: &Parsed) -> bool {
    match parsed.protocol {
        protocol::UDP => parsed.dst_port == protocol::GUE_PORT,
        protocol::GRE | protocol::IPIP | protocol::IPV6 => true,
        _ => false,
    }
}

/// The outer headers of a packet that somebody may send to us in a tunnel, and what its sender is. `None`: it goes its way as it is.
pub(super) fn opened_here(
    snapshot: &Snapshot,
    frame: &[u8],
    parsed: &Parsed,
) -> Option<(Tunnelled, TunnelSourceKind)> {
    let tunnelled = decapsulate(frame.get(usize::from(parsed.l3)..usize::from(parsed.end))?)?;
    let from = source_kind(&snapshot.tunnels, &tunnelled)?;
    // Another cluster sends to the VIP itself; what others send to a VIP is for its backends.
    (from == TunnelSourceKind::Cluster || snapshot.is_own(tunnelled.destination)).then_some((tunnelled, from))
}

impl Core {
    /// Takes the outer header off a packet that somebody may send to us in a tunnel. `None`: it is none, and goes its way as it is.
    #[cold]
    pub(super) fn decapsulate(
        &mut self,
        batch: &Batch<'_>,
        packet: &mut Packet<'_>,
        parsed: &Parsed,
    ) -> Result<Option<Inner>, DropReason> {
        let Some((tunnelled, from)) = opened_here(batch.snapshot, packet.frame(), parsed) else {
            return Ok(None);
        };
        if from == TunnelSourceKind::Cluster && tunnelled.recursion == 0 {
            return Err(DropReason::Unmarked);
        }
        let parsed = self.take_off(packet, usize::from(parsed.l3), &tunnelled)?;
        self.counters.remote_arrivals.add(u64::from(from == TunnelSourceKind::Cluster));
        // What a peer sends that was redirected before may not be sent on either.
        let from = if tunnelled.recursion > 1 { TunnelSourceKind::Cluster } else { from };
        Ok(Some(Inner { parsed, from }))
    }

    fn take_off(
        &mut self,
        packet: &mut Packet<'_>,
        l3: usize,
        tunnelled: &Tunnelled,
    ) -> Result<Parsed, DropReason> {
        let start = packet.start();
        let inner = open_in_place(packet.frame_mut(), l3, tunnelled).map_err(|error| match error {
            OpenError::Congestion => DropReason::Congestion,
            _ => DropReason::Malformed,
        })?;
        packet.set_bounds(start + inner.start, start + inner.end);
        self.counters.decapsulated.add(1);
        parse(packet.frame()).map_err(unreadable)
    }

    /// Another thread that an inner packet goes to: few outer tuples land on one queue, and what RSS can't spread is spread by
    /// the inner tuple. With software steering that has been done.
    pub(super) fn thread_of_inner(
        &self,
        batch: &Batch<'_>,
        packet: &Packet<'_>,
        inner: &Inner,
    ) -> Option<ThreadId> {
        if self.config.is_steered
            || inner.from == TunnelSourceKind::Peer
            || inner.parsed.fragment != Fragment::None
        {
            return None;
        }
        let flow = Flow::of(packet.frame(), &inner.parsed);
        let hash = batch.snapshot.hasher.hash(HashPolicy::FiveTuple, &flow);
        let thread = thread_of_flow(hash, self.config.threads);
        (thread != self.config.thread).then_some(thread)
    }
}
