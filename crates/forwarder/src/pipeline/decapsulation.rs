//! Packets that come in tunnels: opened in place, and then as if they had come plain.
//!
//! In: a packet of GRE, IP-in-IP or GUE off the wire. Out: the inner packet's road, by what its sender is.
//! Not here: which of them reach a packet thread (XDP), who may send (`tunnels`), how headers come off (`packet`).
//! Invariants: a packet is opened once, so a tunnel in a tunnel is for the backend; each mark takes from where a packet may be
//! sent on to, so that no machines can play ball with it.
//! Source: paper §2.1, §4.2, §4.3; RFC 1701 (recursion control), RFC 6040 (ECN).

use packet::{Fragment, OpenError, Parsed, Tunnelled, decapsulate, open_in_place, parse, protocol};

use super::{Core, flow_of, unreadable};
use crate::snapshot::Snapshot;
use crate::tunnels::{TunnelSourceKind, source_kind};
use crate::{DropReason, HandoffReason, HashPolicy, Now, Origin, Packet, Verdict};

/// Whether a packet may be carrying another: cheap, and true of much that is not.
#[inline]
pub(super) fn may_carry(parsed: &Parsed) -> bool {
    match parsed.protocol {
        protocol::UDP => parsed.dst_port == protocol::GUE_PORT,
        protocol::GRE | protocol::IPIP | protocol::IPV6 => true,
        _ => false,
    }
}

impl Core {
    /// Opens a packet that somebody may send to us in a tunnel. `None`: it is none, and goes its way as it is.
    #[cold]
    pub(super) fn open(
        &mut self,
        snapshot: &Snapshot,
        now: Now,
        packet: &mut Packet<'_>,
        place: usize,
        parsed: &Parsed,
    ) -> Option<Option<Verdict>> {
        let l3 = usize::from(parsed.l3);
        let tunnelled = decapsulate(packet.frame().get(l3..usize::from(parsed.end))?)?;
        let from = source_kind(&snapshot.tunnels, &tunnelled)?;
        if from == TunnelSourceKind::Cluster && tunnelled.recursion == 0 {
            return Some(Some(Verdict::Drop(DropReason::Unmarked)));
        }
        Some(match self.take_off(packet, l3, &tunnelled) {
            Ok(inner) => {
                self.counters.remote_arrivals.add(u64::from(from == TunnelSourceKind::Cluster));
                // What a peer sends that was redirected before may not be sent on either.
                let from = if tunnelled.recursion > 1 { TunnelSourceKind::Cluster } else { from };
                self.classify_inner(snapshot, now, packet, place, inner, from)
            }
            Err(reason) => Some(Verdict::Drop(reason)),
        })
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

    fn classify_inner(
        &mut self,
        snapshot: &Snapshot,
        now: Now,
        packet: &mut Packet<'_>,
        place: usize,
        parsed: Parsed,
        from: TunnelSourceKind,
    ) -> Option<Verdict> {
        let decapsulated_from = Some(from);
        // Few outer tuples land on one queue: what RSS can't spread is spread by the inner tuple.
        if from != TunnelSourceKind::Peer && parsed.fragment == Fragment::None {
            let hash = snapshot.hasher.hash(HashPolicy::FiveTuple, &flow_of(packet.frame(), &parsed));
            let thread = self.thread_of(hash);
            if thread != self.config.thread && packet.origin() == Origin::Wire {
                return Some(Verdict::ToThread(thread, HandoffReason::Steered { decapsulated_from }));
            }
        }
        self.classify_parsed(snapshot, now, packet, place, parsed, decapsulated_from)
    }
}
