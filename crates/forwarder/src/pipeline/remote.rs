//! Flows that no backend here can serve, and the other clusters that can.
//!
//! In: a packet of a service whose pool has nobody. Out: another cluster's slot, if the packet may still be sent there.
//! Not here: the headers that it leaves with (`packet`), whom packets of other clusters are taken from (`opened`).
//! Invariant: what another cluster has sent is served here or dropped, whatever the connection table says of its flow.
//! Source: paper §4.2.

use super::PacketState;
use crate::snapshot::{Service, SlotId, Snapshot};
use crate::{Packet, Selection, TunnelSourceKind};

/// Another cluster for the flow of a packet; `None`: there is none, or it came from there.
#[cold]
pub(super) fn select(
    snapshot: &Snapshot,
    service: &Service,
    packet: &Packet<'_>,
    work: &PacketState,
) -> Option<Selection> {
    if work.decapsulated_from == Some(TunnelSourceKind::Cluster) {
        return None;
    }
    let destination = work.parsed.addresses(packet.frame()).dst;
    snapshot.select_remote(service, &destination, work.hash)
}

/// Whether a packet does not follow its flow to another cluster: it came from one.
#[inline]
pub(super) fn stays(snapshot: &Snapshot, slot: SlotId, decapsulated_from: Option<TunnelSourceKind>) -> bool {
    decapsulated_from == Some(TunnelSourceKind::Cluster) && snapshot.is_redirect(slot)
}

/// How many machines of ours have redirected a packet before; one that may be redirected again has passed a peer at most.
#[inline]
pub(super) fn redirected(decapsulated_from: Option<TunnelSourceKind>) -> u8 {
    u8::from(decapsulated_from == Some(TunnelSourceKind::Peer))
}
