//! How what answers a client's request goes back to it: the way that the request came.
//!
//! In: a request as it came in. Out: the frame's ends turned round, with its VLAN tags and interface; the service that it was for.
//! Not here: what is sent (`gather`, `through`, `replicas`).
//! Invariant: nothing goes to a station that sent nothing.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use classifier::is_v4;
use packet::{Family, protocol};

use super::state::{Batch, PacketState};
use crate::{DropReason, Flow, InterfaceId, Keyed, NextHopMode, Packet, Service, Snapshot};

/// Where a request came from.
#[derive(Clone, Copy, Debug)]
pub(super) struct WayBack {
    flow: Flow,
    /// Of the request, and so of all that follows from it.
    pub(super) family: Family,
    /// The address that backends answer to.
    pub(super) own: IpAddr,
    /// Its link header, turned round.
    link: [u8; LONGEST_LINK],
    link_len: u8,
    pub(super) interface: InterfaceId,
}

impl WayBack {
    /// The way back of a request.
    ///
    /// # Errors
    /// [`DropReason::KvNoWayBack`]: it came in a tunnel, so that its router is not known; from no single station; or this machine has
    /// no address of its family, so that nobody could answer it. [`DropReason::UnknownGateway`].
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
        came.flatten().ok_or(DropReason::KvNoWayBack)
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

    /// What a frame on it begins with.
    pub(super) fn link(&self) -> &[u8] {
        self.link.get(..usize::from(self.link_len)).unwrap_or_default()
    }

    /// The service that it came for, as it is now.
    pub(super) fn keyed<'a>(&self, snapshot: &'a Snapshot) -> Option<(&'a Service, &'a Keyed)> {
        let Flow { destination, destination_port, .. } = self.flow;
        let service = snapshot.service(snapshot.vips.find(&destination, protocol::UDP, destination_port)?);
        Some((service, service.keyed.as_deref()?))
    }

    /// The hash of the request's flow.
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

/// An address as packets' fields have it.
#[inline]
pub(super) fn socket(address: [u8; 16], port: u16) -> SocketAddr {
    // Not `to_canonical`, which looks at it byte by byte.
    let [.., a, b, c, d] = address;
    let ip = if is_v4(&address) { Ipv4Addr::new(a, b, c, d).into() } else { Ipv6Addr::from(address).into() };
    SocketAddr::new(ip, port)
}

/// With two tags.
const LONGEST_LINK: usize = 22;
