//! Redirects flows to other clusters while no backend of the pool is serving. The crate `packet`
//! defines the headers of redirected packets, and the module `decapsulation` accepts packets from
//! other clusters.
//!
//! A packet from another cluster is sent to a local backend or dropped. Such a packet is never
//! redirected again, even if the connection table maps its flow to another cluster.
//!
//! See the Maglev paper, §4.2.

use super::state::FlowPacket;
use crate::{Selection, SlotId, Snapshot, TunnelSourceKind};

/// Selects another cluster for a packet to `destination`. Returns `None` if no other cluster is
/// available, or if the packet came from another cluster.
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

/// Returns `true` if a packet came from another cluster and `slot` would redirect it again. Such a
/// packet must not be sent to `slot`.
#[inline]
pub(super) fn is_barred(
    snapshot: &Snapshot,
    slot: SlotId,
    decapsulated_from: Option<TunnelSourceKind>,
) -> bool {
    decapsulated_from == Some(TunnelSourceKind::Cluster) && snapshot.is_redirect(slot)
}

/// Returns how many times a packet was redirected within this cluster before it reached this
/// machine. The result is at most 1, because a packet is redirected at most twice.
#[inline]
pub(super) fn redirected(decapsulated_from: Option<TunnelSourceKind>) -> u8 {
    u8::from(decapsulated_from == Some(TunnelSourceKind::Peer))
}
