//! Flows that no backend here can serve, and the other clusters that can.
//!
//! In: a packet of a service whose pool has nobody. Out: another cluster's slot, if the packet may still be sent there.
//! Not here: the headers that it leaves with (`packet`), whose tunnelled packets are taken (`decapsulation`).
//! Invariant: what another cluster has sent is served here or dropped, whatever the connection table says of its flow.
//! Source: paper §4.2.

use super::state::PacketState;
use crate::{Packet, Selection, Service, SlotId, Snapshot, TunnelSourceKind};

/// Another cluster for the flow of a packet; `None`: there is none, or it came from there.
#[cold]
pub(super) fn select(
    snapshot: &Snapshot,
    service: &Service,
    packet: &Packet<'_>,
    state: &PacketState,
) -> Option<Selection> {
    if state.decapsulated_from == Some(TunnelSourceKind::Cluster) {
        return None;
    }
    let destination = state.parsed.addresses(packet.frame()).dst;
    snapshot.select_remote(service, &destination, state.hash)
}

/// Whether a packet may not follow its flow to this slot: the slot is in another cluster, and the packet came from one.
#[inline]
pub(super) fn is_barred(snapshot: &Snapshot, slot: SlotId, state: &PacketState) -> bool {
    state.decapsulated_from == Some(TunnelSourceKind::Cluster) && snapshot.is_redirect(slot)
}

/// How many machines of ours have redirected a packet before; one that may be redirected again has passed a peer at most.
#[inline]
pub(super) fn redirected(decapsulated_from: Option<TunnelSourceKind>) -> u8 {
    u8::from(decapsulated_from == Some(TunnelSourceKind::Peer))
}
