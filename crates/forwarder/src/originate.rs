//! Packets that the machine itself sends through a tunnel: a health check's.
//!
//! In: a frame made here, and the slot that it is for. Out: the frame as the packet path would have written it.
//! Not here: the choice of the slot, connection tables, counters.
//! Invariant: hash and bytes come from the very functions that clients' packets go through, so they can't differ.

use packet::{Fragment, parse};

use crate::rewrite::{RewriteParams, rewrite};
use crate::{DropReason, Flow, HashPolicy, NextHopMode, Packet, SlotId, Snapshot};

impl Snapshot {
    /// Wraps a frame for `slot`, in whatever state that is, and leaves it at the front of its buffer: an Ethernet
    /// header to the slot's next hop, the outer headers, the packet with one hop less. The link header that the frame
    /// comes with needs only its Ethernet type. Gives the bytes of the link header: the way may have VLAN tags.
    ///
    /// The flow is hashed as the service of its destination has it, by the 5-tuple where there is none. What is made
    /// here always goes to the slot's own next hop, under [`NextHopMode::Reflect`] too. `identification` is for outer
    /// IPv4 headers without DF.
    ///
    /// # Errors
    /// Why the packet path would have dropped it, [`DropReason::NoBackend`] when there is no such slot; the frame is
    /// garbage then.
    pub fn originate(
        &self,
        slot: SlotId,
        packet: &mut Packet<'_>,
        identification: u16,
    ) -> Result<usize, DropReason> {
        let slot = self.slots.get(slot.0 as usize).ok_or(DropReason::NoBackend)?;
        let parsed = parse(packet.frame()).map_err(|_| DropReason::Malformed)?;
        let flow = Flow::of(packet.frame(), &parsed);
        let service = self.vips.find(&flow.destination, flow.protocol, flow.destination_port);
        let service = service.and_then(|index| self.services.get(index as usize));
        let policy = service.map_or(HashPolicy::FiveTuple, |service| service.policy);
        if parsed.fragment != Fragment::None && policy == HashPolicy::FiveTuple {
            return Err(DropReason::Fragment);
        }
        let hash = self.hasher.hash(policy, &flow);
        let params = RewriteParams {
            parsed: &parsed,
            slot,
            mode: &NextHopMode::Resolve,
            hash,
            identification,
            limit: slot.mtu.into(),
            lower_ttl: true,
            redirected: 0,
        };
        rewrite(packet, &params).map(|written| written.link_len.into())
    }
}
