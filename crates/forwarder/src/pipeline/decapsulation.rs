//! Decapsulates packets that arrive in a GRE, IP-in-IP or GUE tunnel. The outer header is removed
//! in place, and the inner packet is then processed like a packet without a tunnel. The XDP program
//! decides which packets reach a packet thread, and `classifier` decides which senders are allowed.
//!
//! Peers and upstream tunnels must send to an address of this machine, and other clusters must send
//! to a VIP. Only one outer header is removed, so the backend of a nested tunnel receives the inner
//! tunnel packet. Recursion marks limit the redirects of a packet, which prevents forwarding loops
//! between machines.
//!
//! See the Maglev paper (§2.1, §4.2 and §4.3), RFC 1701 (recursion control) and RFC 6040 (ECN).

use classifier::source_kind;
use packet::{
    DecapsulateError, Fragment, Parsed, Tunnelled, decapsulate, decapsulate_in_place, parse, protocol,
};

use super::state::Batch;
use super::threads::thread_of_flow;
use super::{Core, unreadable};
use crate::{DropReason, Flow, HashPolicy, Packet, Snapshot, ThreadId, TunnelSourceKind};

/// A decapsulated packet.
pub(super) struct Inner {
    pub(super) parsed: Parsed,
    /// The kind of tunnel sender configured for the outer source address.
    pub(super) from: TunnelSourceKind,
}

/// Returns `true` if a packet may contain a tunneled packet. The test is cheap and can return false
/// positives.
#[inline]
pub(super) fn may_carry(parsed: &Parsed) -> bool {
    match parsed.protocol {
        protocol::UDP => parsed.dst_port == protocol::GUE_PORT,
        protocol::GRE | protocol::IPIP | protocol::IPV6 => true,
        _ => false,
    }
}

/// Returns the outer headers and the kind of sender, if the packet was sent to this machine by an
/// allowed tunnel sender. Returns `None` for all other packets, which are processed without
/// decapsulation.
pub(super) fn decapsulated_here(
    snapshot: &Snapshot,
    frame: &[u8],
    parsed: &Parsed,
) -> Option<(Tunnelled, TunnelSourceKind)> {
    let tunnelled = decapsulate(frame.get(usize::from(parsed.l3)..usize::from(parsed.end))?)?;
    let from = source_kind(&snapshot.tunnels, &tunnelled)?;
    // Other clusters send their tunneled packets to the VIP itself. Tunnel packets that arrive at a
    // VIP from other senders are intended for the backends of the VIP.
    (from == TunnelSourceKind::Cluster || snapshot.is_own(tunnelled.destination)).then_some((tunnelled, from))
}

impl Core {
    /// Removes the outer header of a tunnel packet from an allowed sender. Returns `None` for all
    /// other packets and leaves them unchanged.
    #[cold]
    pub(super) fn decapsulate(
        &mut self,
        batch: &Batch<'_>,
        packet: &mut Packet<'_>,
        parsed: &Parsed,
    ) -> Result<Option<Inner>, DropReason> {
        let Some((tunnelled, from)) = decapsulated_here(batch.snapshot, packet.frame(), parsed) else {
            return Ok(None);
        };
        if from == TunnelSourceKind::Cluster && tunnelled.recursion == 0 {
            return Err(DropReason::Unmarked);
        }
        let parsed = self.take_off(packet, usize::from(parsed.l3), &tunnelled)?;
        self.counters.remote_decapsulated.add(u64::from(from == TunnelSourceKind::Cluster));
        // If the mark of a packet from a peer shows an earlier redirect, the packet must not be
        // redirected again.
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
        let inner = decapsulate_in_place(packet.frame_mut(), l3, tunnelled).map_err(|error| match error {
            DecapsulateError::Congestion => DropReason::Congestion,
            _ => DropReason::Malformed,
        })?;
        packet.set_bounds(start + inner.start, start + inner.end);
        self.counters.decapsulated.add(1);
        parse(packet.frame()).map_err(unreadable)
    }

    /// Returns the thread that must process an inner packet, or `None` if this thread must process
    /// it. RSS cannot distribute tunneled packets evenly, because there are only a few outer
    /// 5-tuples. This function uses the hash of the inner 5-tuple instead. With software steering,
    /// the I/O thread has already selected the thread by this hash.
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
