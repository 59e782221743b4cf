//! Encapsulates packets that this machine originates and sends through a tunnel, such as health
//! checks. The hash and the headers are computed by the same functions as for client packets. A
//! health check therefore takes the same path as client traffic. The caller selects the slot. The
//! connection table and the packet counters are not used.

use packet::{Fragment, parse};

use crate::rewrite::{RewriteParams, rewrite};
use crate::{DropReason, Flow, HashPolicy, NextHopMode, Packet, SlotId, Snapshot};

impl Snapshot {
    /// Encapsulates a frame for the backend in `slot` and moves the frame to the front of its
    /// buffer. The state of the slot is ignored. The result consists of an Ethernet header to the
    /// slot's next hop, the outer headers, and the inner packet with its TTL decremented. Only the
    /// EtherType of the input's link header must be valid. Returns the length of the new link
    /// header in bytes, which depends on the VLAN tags.
    ///
    /// The flow hash uses the policy of the destination's service. If no service matches, the hash
    /// covers the 5-tuple. Frames always go to the slot's own next hop, even under
    /// [`NextHopMode::Reflect`]. `identification` is the IPv4 identification for outer headers
    /// without the DF flag.
    ///
    /// # Errors
    /// Returns the reason why the packet path would have dropped the packet, or
    /// [`DropReason::NoBackend`] if the slot does not exist. After an error, the content of the
    /// frame is undefined.
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
