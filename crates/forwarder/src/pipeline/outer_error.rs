//! ICMP errors about this machine's own outer packets.
//!
//! In: an error that quotes a tunnel of ours. Out: what it says of the path's MTU, for the control plane; the error ends here.
//! Invariant: it is believed only if the flow that it quotes is in a connection table, and on the backend that it quotes. A quote
//! that ends before the inner ports names no flow: then the backend's address is all there is to go by, and the control plane looks
//! at that (`control_plane::Paths::learn`).
//! Source: RFC 792, RFC 1191, RFC 4443, RFC 8201; RFC 2003 §4.

use std::net::{IpAddr, Ipv6Addr};

use classifier::is_v4;
use packet::{
    Family, Fragment, IcmpError, IcmpErrorKind, Quoted, icmp_checksum_ok, icmp_error, quoted_tunnel,
};

use super::Core;
use super::icmp::has_ports;
use super::state::{Batch, PacketState, Stage};
use crate::selection::flow_key;
use crate::{DropReason, Flow, Notice, Packet, SlotId, Snapshot, Verdict};

impl Core {
    /// Stage 1. `Ok`: stage 2 looks for the flow.
    pub(super) fn take_outer_error(
        &mut self,
        batch: &Batch<'_>,
        packet: &Packet<'_>,
        error: &IcmpError,
        state: &mut PacketState,
    ) -> Result<(), DropReason> {
        let snapshot = batch.snapshot;
        let Some(outer) = quoted_tunnel(packet.frame(), &error.quoted) else { return Err(DropReason::NoVip) };
        let destination = state.parsed.addresses(packet.frame()).dst;
        if error.quoted.addresses.src != destination || !icmp_checksum_ok(packet.frame(), &state.parsed) {
            return Err(DropReason::IcmpQuote);
        }
        if [Some(error.quoted), outer.inner].into_iter().flatten().any(|quoted| is_nobodys(&quoted)) {
            return Err(DropReason::IcmpQuote);
        }
        // What is quoted of the inner packet must be one of a client's.
        if outer.inner.is_some_and(|inner| !snapshot.vips.contains(&inner.addresses.dst)) {
            return Err(DropReason::IcmpQuote);
        }
        let Some(flow) = outer.inner.as_ref().and_then(flow_of) else { return Err(self.take_in(error)) };
        let found = snapshot.vips.find(&flow.destination, flow.protocol, flow.destination_port);
        let index = found.ok_or(DropReason::IcmpQuote)?;
        let service = snapshot.service(index);
        state.hash = snapshot.hasher.hash(service.policy, &flow);
        (state.key, state.stage) = (flow_key(service, state.hash), Stage::OuterError);
        self.flows.table.prefetch(state.key);
        Ok(())
    }

    /// Stage 2: the threads are asked in turn, each its own table.
    #[cold]
    pub(super) fn look_for_quoted(
        &mut self,
        batch: &Batch<'_>,
        packet: &Packet<'_>,
        state: &PacketState,
    ) -> Option<Verdict> {
        let known = self.flows.peek(state.key, batch.tick).map(|entry| SlotId(entry.slot));
        let Some(slot) = known else {
            return self.ask_next(packet, state).or(Some(Verdict::Drop(DropReason::IcmpQuote)));
        };
        let reason = match icmp_error(packet.frame(), &state.parsed) {
            Some(Ok(error)) if is_on(batch.snapshot, slot, &error) => self.take_in(&error),
            _ => DropReason::IcmpQuote,
        };
        Some(Verdict::Drop(reason))
    }

    fn take_in(&mut self, error: &IcmpError) -> DropReason {
        if let (IcmpErrorKind::TooBig { mtu }, Some(notices)) = (error.kind, &mut self.notices) {
            let lowest = lowest_mtu(error.quoted.family);
            let mtu = if mtu == 0 { older_router(&error.quoted) } else { mtu };
            let mtu = u16::try_from(mtu).unwrap_or(u16::MAX).max(lowest);
            // Lost when there is no room: routers repeat themselves.
            notices.send(Notice::PathMtu { destination: canonical(&error.quoted.addresses.dst), mtu });
        }
        DropReason::TakenIn
    }
}

/// Whether a quoted packet of IPv6 was sent to an address that stands for one of IPv4: we send none there, and take none.
fn is_nobodys(quoted: &Quoted) -> bool {
    quoted.family == Family::V6 && is_v4(&quoted.addresses.dst)
}

/// The client's flow, where the quote reaches to its ports.
fn flow_of(inner: &Quoted) -> Option<Flow> {
    let (source_port, destination_port) = inner.ports?;
    let is_whole = inner.fragment == Fragment::None && has_ports(inner.protocol);
    is_whole.then_some(Flow {
        source: inner.addresses.src,
        destination: inner.addresses.dst,
        source_port,
        destination_port,
        protocol: inner.protocol,
    })
}

/// Whether the quoted outer packet went to a slot.
fn is_on(snapshot: &Snapshot, slot: SlotId, error: &IcmpError) -> bool {
    let destination = canonical(&error.quoted.addresses.dst);
    snapshot.slots.get(slot.0 as usize).is_some_and(|slot| slot.reach().contains(destination))
}

/// The next plateau below the packet that was too big: a router from before 1990 does not give its MTU.
///
/// # Source
/// RFC 1191 §7.1, table 7-1.
fn older_router(quoted: &Quoted) -> u32 {
    let plateaus = [32_000, 17_914, 8_166, 4_352, 2_002, 1_492, 1_006, 508];
    plateaus.into_iter().find(|plateau| *plateau < quoted.total_len).unwrap_or(508)
}

/// A forged error must not make us cut everything to crumbs. IPv6's is the protocol's own; IPv4's is what every host
/// takes (RFC 1122 §3.3.2), less a margin for what stands in front of it, as Linux's `min_pmtu` has it.
const fn lowest_mtu(family: Family) -> u16 {
    match family {
        Family::V4 => 552,
        Family::V6 => 1280,
    }
}

fn canonical(address: &[u8; 16]) -> IpAddr {
    Ipv6Addr::from(*address).to_canonical()
}
