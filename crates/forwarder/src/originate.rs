//! Encapsulates packets that this machine originates and sends through a tunnel, such as health
//! checks. The hash and the headers are computed by the same functions as for client packets. A
//! health check therefore takes the same path as client traffic. The caller selects the slot. The
//! connection table and the packet counters are not used.

use std::net::{IpAddr, Ipv4Addr};

use packet::{Fragment, parse};

use crate::rewrite::{NO_LIMIT, RewriteParams, rewrite};
use crate::{
    DropReason, Flow, Forwarding, HashPolicy, NextHop, NextHopMode, Packet, Slot, SlotId, Snapshot, TooBig,
};

/// Writes the link header for a packet that this machine sends to `hop` without encapsulation, and
/// moves the frame to the front of its buffer. The TTL is not changed. Returns the length of the
/// new link header in bytes.
///
/// # Errors
/// Returns the reason why the packet path would have dropped the packet.
pub fn address_frame(packet: &mut Packet<'_>, hop: &NextHop) -> Result<usize, DropReason> {
    let parsed = parse(packet.frame()).map_err(|_| DropReason::Malformed)?;
    let slot = Slot {
        backend: "".into(),
        address: IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        forwarding: Forwarding::L2,
        next_hop: Some(hop.clone()),
        spread: None,
        mtu: u16::MAX,
        too_big: TooBig::Drop,
    };
    let params = RewriteParams {
        parsed: &parsed,
        slot: &slot,
        mode: &NextHopMode::Resolve,
        hash: 0,
        identification: 0,
        limit: NO_LIMIT,
        lower_ttl: false,
        redirected: 0,
    };
    rewrite(packet, &params).map(|written| written.link_len.into())
}

impl Snapshot {
    /// Encapsulates a frame for the backend in `slot` and moves the frame to the front of its
    /// buffer. The state of the slot is ignored. The result consists of an Ethernet header to the
    /// slot's next hop, the outer headers, and the inner packet with its TTL decremented. Only the
    /// EtherType of the input's link header must be valid. Returns the length of the new link
    /// header in bytes, which depends on the VLAN tags.
    ///
    /// The flow hash uses the policy of the destination's service. If no service matches, the hash
    /// covers the 5-tuple. Frames always go to the slot's own next hops, even under
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
        self.wrap_own(slot, packet, identification)
    }

    /// Encapsulates a frame like [`Self::originate`], but sends it to `hop` instead of the next hop
    /// that the slot has for the flow.
    ///
    /// # Errors
    /// Returns the errors of [`Self::originate`].
    pub fn originate_by(
        &self,
        slot: SlotId,
        hop: &NextHop,
        packet: &mut Packet<'_>,
        identification: u16,
    ) -> Result<usize, DropReason> {
        let slot = self.slots.get(slot.0 as usize).ok_or(DropReason::NoBackend)?;
        let slot = Slot { next_hop: Some(hop.clone()), spread: None, ..slot.clone() };
        self.wrap_own(&slot, packet, identification)
    }

    fn wrap_own(
        &self,
        slot: &Slot,
        packet: &mut Packet<'_>,
        identification: u16,
    ) -> Result<usize, DropReason> {
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
