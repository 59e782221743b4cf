//! Flows that no backend here can serve, and the other clusters that can.
//!
//! In: a packet of a service whose pool has nobody. Out: another cluster's slot, if the packet may still be sent there.
//! Not here: the headers that it leaves with (`packet`), whose tunnelled packets are taken (`decapsulation`).
//! Invariant: what another cluster has sent is served here or dropped, whatever the connection table says of its flow.
//! Source: paper §4.2.

use super::state::FlowPacket;
use crate::{Selection, SlotId, Snapshot, TunnelSourceKind};

/// Another cluster for the flow of a packet to `destination`; `None`: there is none, or it came from there.
#[cold]
pub(super) fn select(
    snapshot: &Snapshot,
    packet: &FlowPacket<'_>,
    destination: &[u8; 16],
) -> Option<Selection> {
    if packet.decapsulated_from == Some(TunnelSourceKind::Cluster) {
        return None;
    }
    snapshot.select_remote(packet.service, destination, packet.hash)
}

/// Whether a packet may not follow its flow to this slot: the slot is in another cluster, and the packet came from one.
#[inline]
pub(super) fn is_barred(
    snapshot: &Snapshot,
    slot: SlotId,
    decapsulated_from: Option<TunnelSourceKind>,
) -> bool {
    decapsulated_from == Some(TunnelSourceKind::Cluster) && snapshot.is_redirect(slot)
}

/// How many machines of ours have redirected a packet before; one that may be redirected again has passed a peer at most.
#[inline]
pub(super) fn redirected(decapsulated_from: Option<TunnelSourceKind>) -> u8 {
    u8::from(decapsulated_from == Some(TunnelSourceKind::Peer))
}
