//! The return path of a client's request consists of the link header and the interface for the
//! reply. Replies carry the VLAN tags of the request. The modules `gather`, `proxied` and
//! `replicas` send these replies.
//!
//! A reply is sent only to the source MAC address of a request.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use classifier::is_v4;
use packet::{Family, protocol};

use super::state::{Batch, PacketState};
use crate::{DropReason, Flow, InterfaceId, Keyed, NextHopMode, Packet, Service, Snapshot};

/// The return path of one request.
#[derive(Clone, Copy, Debug)]
pub(super) struct ReturnPath {
    flow: Flow,
    /// The IP version of the request, its upstream requests and the reply.
    pub(super) family: Family,
    /// The address of this machine to which backends send their replies.
    pub(super) own: IpAddr,
    /// The link header of the request, with swapped MAC addresses.
    link: [u8; LONGEST_LINK],
    link_len: u8,
    pub(super) interface: InterfaceId,
}

impl ReturnPath {
    /// Returns the return path of a request.
    ///
    /// # Errors
    /// Returns [`DropReason::KvNoReturnPath`] if the request arrived in a tunnel, if one of its MAC
    /// addresses is a group address, or if this machine has no address of the request's IP version.
    /// Returns [`DropReason::UnknownGateway`] if the sender is not a known gateway.
    pub(super) fn of(
        batch: &Batch<'_>,
        packet: &Packet<'_>,
        state: &PacketState,
    ) -> Result<Self, DropReason> {
        if let NextHopMode::Reflect { gateways, .. } = &batch.snapshot.next_hop {
            let from = packet.frame().get(6..12);
            if !gateways.iter().any(|gateway| Some(&gateway.0[..]) == from) {
                return Err(DropReason::UnknownGateway);
            }
        }
        let came = state.decapsulated_from.is_none().then(|| Self::turned_round(batch, packet, state));
        came.flatten().ok_or(DropReason::KvNoReturnPath)
    }

    fn turned_round(batch: &Batch<'_>, packet: &Packet<'_>, state: &PacketState) -> Option<Self> {
        let (frame, parsed) = (packet.frame(), &state.parsed);
        let mut link = [0; LONGEST_LINK];
        let header = frame.get(..usize::from(parsed.l3))?;
        link.get_mut(..header.len())?.copy_from_slice(header);
        let (ends, _) = link.split_first_chunk_mut::<12>()?;
        ends.rotate_left(6);
        Some(Self {
            flow: Flow::of(frame, parsed),
            family: parsed.family,
            own: batch.snapshot.own_address(parsed.family).filter(|_| (ends[0] | ends[6]) & 1 == 0)?,
            link,
            link_len: u8::try_from(header.len()).ok()?,
            interface: packet.interface(),
        })
    }

    /// Returns the link header for the reply.
    pub(super) fn link(&self) -> &[u8] {
        self.link.get(..usize::from(self.link_len)).unwrap_or_default()
    }

    /// Returns the service that the request was sent to, looked up in the given snapshot.
    pub(super) fn keyed<'a>(&self, snapshot: &'a Snapshot) -> Option<(&'a Service, &'a Keyed)> {
        let Flow { destination, destination_port, .. } = self.flow;
        let service = snapshot.service(snapshot.vips.find(&destination, protocol::UDP, destination_port)?);
        Some((service, service.keyed.as_deref()?))
    }

    /// Returns the flow hash of the request under the service's hash policy.
    pub(super) fn flow_hash(&self, snapshot: &Snapshot, service: &Service) -> u64 {
        snapshot.hasher.hash(service.policy, &self.flow)
    }

    pub(super) fn client(&self) -> SocketAddr {
        socket(self.flow.source, self.flow.source_port)
    }

    pub(super) fn vip(&self) -> SocketAddr {
        socket(self.flow.destination, self.flow.destination_port)
    }
}

/// Returns the socket address for a port and an address in 16-byte form.
#[inline]
pub(super) fn socket(address: [u8; 16], port: u16) -> SocketAddr {
    // `is_v4` is used because `to_canonical` compares the address byte by byte, which is slower.
    let [.., a, b, c, d] = address;
    let ip = if is_v4(&address) { Ipv4Addr::new(a, b, c, d).into() } else { Ipv6Addr::from(address).into() };
    SocketAddr::new(ip, port)
}

/// The maximum length of a link header with two VLAN tags, in bytes.
const LONGEST_LINK: usize = 22;
