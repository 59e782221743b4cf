//! Handles ICMP errors that quote an outer packet from this machine. The path MTU in such an error
//! is reported to the control plane. The error itself is not forwarded.
//!
//! An error is trusted only if the quoted packet was sent to the backend that the connection tables
//! contain for its flow. If the quote is too short to include the inner ports, the flow is unknown.
//! The control plane then only checks that the address belongs to a backend
//! (`control_plane::Paths::learn`).
//!
//! See RFC 792, RFC 1191, RFC 4443, RFC 8201 and RFC 2003 (§4).

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
    /// Runs stage 1 (classification) for an ICMP error that quotes an outer packet. Returns `Ok` if
    /// stage 2 (backend selection) must look up the quoted flow.
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
        // The quoted inner packet must be a packet from a client to a VIP.
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

    /// Runs stage 2 (backend selection) for an ICMP error that quotes an outer packet: looks the
    /// quoted flow up in the connection table of this thread. If the flow is missing, the error is
    /// passed to the next thread.
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
            // If the ring is full, the notice is lost, but the router will send the error again.
            notices.send(Notice::PathMtu { destination: canonical(&error.quoted.addresses.dst), mtu });
        }
        DropReason::TakenIn
    }
}

/// Returns `true` if a quoted IPv6 packet has an IPv4-mapped destination. Such a quote is forged,
/// because this machine sends no packets to such addresses.
fn is_nobodys(quoted: &Quoted) -> bool {
    quoted.family == Family::V6 && is_v4(&quoted.addresses.dst)
}

/// Returns the client's flow, or `None` if the quote does not include the ports.
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

/// Returns `true` if the quoted outer packet was addressed to the backend in `slot`.
fn is_on(snapshot: &Snapshot, slot: SlotId, error: &IcmpError) -> bool {
    let destination = canonical(&error.quoted.addresses.dst);
    snapshot.slots.get(slot.0 as usize).is_some_and(|slot| slot.reach().contains(destination))
}

/// Returns the path MTU to assume if a router does not report an MTU, as was common before RFC 1191
/// (1990). The result is the next plateau below the size of the quoted packet (RFC 1191 §7.1, table
/// 7-1).
fn older_router(quoted: &Quoted) -> u32 {
    let plateaus = [32_000, 17_914, 8_166, 4_352, 2_002, 1_492, 1_006, 508];
    plateaus.into_iter().find(|plateau| *plateau < quoted.total_len).unwrap_or(508)
}

/// Returns the lowest path MTU that is accepted. The limit prevents forged errors from causing tiny
/// fragments. For IPv6, the limit is the minimum MTU of the protocol. For IPv4, the limit is the
/// packet size that every host accepts (RFC 1122 §3.3.2), minus a margin for headers, like
/// `min_pmtu` in Linux.
const fn lowest_mtu(family: Family) -> u16 {
    match family {
        Family::V4 => 552,
        Family::V6 => 1280,
    }
}

fn canonical(address: &[u8; 16]) -> IpAddr {
    Ipv6Addr::from(*address).to_canonical()
}
