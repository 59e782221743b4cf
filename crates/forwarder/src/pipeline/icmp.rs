//! Handles ICMP and ICMPv6 packets to a VIP. Echo requests are answered in place. ICMP errors quote
//! a packet, and are forwarded to the backend of the quoted flow. The XDP program leaves neighbor
//! discovery to the kernel. The module `fragments` handles fragmented ICMP packets, the module
//! `refusal` sends ICMP errors, and the module `outer_error` handles errors about outer packets.
//!
//! The quoted packet is used only to identify a flow of a VIP, and never changes a table.
//!
//! See RFC 792, RFC 4443, RFC 1191, RFC 8201, and §4.3 of the Maglev paper (the flow is the
//! reversed 5-tuple of the quoted packet).

use packet::{IcmpError, Quoted, echo_reply, icmp_error, ip_checksum_ok, protocol};

use super::choice::choose_by_table;
use super::fragments::without_ports;
use super::state::{Batch, PacketState, Stage};
use super::{Core, remote};
use crate::selection::flow_key;
use crate::{
    DropReason, Flow, HandoffReason, HashPolicy, Origin, Packet, SlotId, SlotState, Snapshot, ThreadId,
    Verdict,
};

impl Core {
    /// Runs stage 1 (classification) for an unfragmented ICMP packet. Returns `None` for an ICMP
    /// error, because stage 2 (backend selection) chooses its backend.
    #[cold]
    pub(super) fn classify_icmp(
        &mut self,
        batch: &Batch<'_>,
        packet: &mut Packet<'_>,
        flow: &Flow,
        state: &mut PacketState,
    ) -> Option<Verdict> {
        match icmp_error(packet.frame(), &state.parsed) {
            Some(Err(_)) => Some(Verdict::Drop(DropReason::Malformed)),
            Some(Ok(error)) => self.take_error(batch, packet, &error, state).err().map(Verdict::Drop),
            None => Some(self.answer_echo(batch, packet, state, flow)),
        }
    }

    fn answer_echo(
        &mut self,
        batch: &Batch<'_>,
        packet: &mut Packet<'_>,
        state: &PacketState,
        flow: &Flow,
    ) -> Verdict {
        let parsed = &state.parsed;
        let Some(service) = batch.snapshot.vips.first(&flow.destination) else {
            return Verdict::Drop(DropReason::NoVip);
        };
        let service = batch.snapshot.service(service);
        if let Some(reason) = service.guard.as_ref().and_then(|guard| guard.refusal(flow)) {
            return Verdict::Drop(reason);
        }
        if is_martian_sender(flow, state) {
            return Verdict::Drop(DropReason::Martian);
        }
        if !ip_checksum_ok(packet.frame(), parsed) {
            return Verdict::Drop(DropReason::Malformed);
        }
        if !echo_reply(packet.frame_mut(), parsed) {
            return Verdict::Drop(DropReason::Icmp);
        }
        if !self.may_reply(batch, &flow.source) {
            return Verdict::Drop(DropReason::ReplyRate);
        }
        // The new bounds exclude the Ethernet padding after the IP packet.
        packet.set_bounds(packet.start(), packet.start() + usize::from(parsed.end));
        packet.move_to_front();
        Verdict::Reply
    }

    /// Returns `true` if the rate limits allow another echo reply or time-exceeded error to
    /// `source`.
    pub(super) fn may_reply(&mut self, batch: &Batch<'_>, source: &[u8; 16]) -> bool {
        let key = batch.snapshot.hasher.source(source);
        let rates = self.config.icmp;
        self.limits.admit_source(key, rates.replies_per_source, batch.now)
            && self.meters.replies.admit(rates.replies, batch.now)
    }

    /// Returns `true` if the rate limits allow another packet-too-big error to `source`. These
    /// errors have a separate meter, so a flood of pings does not disturb path MTU discovery.
    pub(super) fn may_send_too_big(&mut self, batch: &Batch<'_>, source: &[u8; 16]) -> bool {
        let key = batch.snapshot.hasher.source(source).rotate_left(32);
        let rates = self.config.icmp;
        self.limits.admit_source(key, rates.replies_per_source, batch.now)
            && self.meters.too_big_errors.admit(rates.replies, batch.now)
    }

    /// Returns `true` if the rate limits allow another reset or ICMP error about a rejected packet
    /// to `source`. These replies have a separate meter, so a port scan does not disturb other
    /// replies.
    pub(super) fn may_reject(&mut self, batch: &Batch<'_>, source: &[u8; 16]) -> bool {
        let key = batch.snapshot.hasher.source(source).rotate_left(48);
        let rates = self.config.icmp;
        self.limits.admit_source(key, rates.replies_per_source, batch.now)
            && self.meters.rejections.admit(rates.replies, batch.now)
    }

    /// Returns the result of [`Self::may_reject`] without counting a reply.
    pub(super) fn could_reject(&self, batch: &Batch<'_>, source: &[u8; 16]) -> bool {
        let key = batch.snapshot.hasher.source(source).rotate_left(48);
        let rates = self.config.icmp;
        self.meters.rejections.would_admit(rates.replies, batch.now)
            && self.limits.would_admit_source(key, rates.replies_per_source, batch.now)
    }

    /// Returns `true` if the rate limits allow another ICMP error from `source` to be forwarded or
    /// processed.
    fn may_take_error(&mut self, batch: &Batch<'_>, source: &[u8; 16]) -> bool {
        let (key, rates) = (!batch.snapshot.hasher.source(source), self.config.icmp);
        self.limits.admit_source(key, rates.errors_per_source, batch.now)
            && self.meters.errors.admit(rates.errors, batch.now)
    }

    fn take_error(
        &mut self,
        batch: &Batch<'_>,
        packet: &Packet<'_>,
        error: &IcmpError,
        state: &mut PacketState,
    ) -> Result<(), DropReason> {
        let snapshot = batch.snapshot;
        let flow = Flow::of(packet.frame(), &state.parsed);
        let Flow { source: router, destination, .. } = flow;
        if is_martian_sender(&flow, state) {
            return Err(DropReason::Martian);
        }
        // Each ICMP error counts once against the rate limit. If another thread handed the error
        // over, that thread has already counted the error.
        let is_handed_on = matches!(packet.origin(), Origin::Thread(_, HandoffReason::IcmpError { .. }));
        if !is_handed_on && !self.may_take_error(batch, &router) {
            return Err(DropReason::IcmpRate);
        }
        if !snapshot.vips.contains(&destination) {
            return self.take_outer_error(batch, packet, error, state);
        }
        // An ICMP error is sent to the sender of the quoted packet, so its destination must be the
        // quoted source.
        if error.quoted.addresses.src != destination {
            return Err(DropReason::IcmpQuote);
        }
        let quoted = quoted_flow(snapshot, &error.quoted)?;
        let service = snapshot.service(quoted.service);
        (state.service, state.counted) = (quoted.service, service.id);
        (state.hash, state.key, state.stage) = (quoted.hash, flow_key(service, quoted.hash), quoted.stage);
        self.flows.table.prefetch(state.key);
        Ok(())
    }

    /// Runs stage 2 (backend selection) for an ICMP error: looks the quoted flow up in the
    /// connection table of this thread. If the flow is missing, the error is passed to the next
    /// thread. The last thread chooses the backend by Maglev.
    #[cold]
    pub(super) fn choose_for_error(
        &mut self,
        batch: &Batch<'_>,
        packet: &Packet<'_>,
        state: &mut PacketState,
    ) -> Option<Verdict> {
        let snapshot = batch.snapshot;
        let known = self.flows.peek(state.key, batch.tick).map(|entry| SlotId(entry.slot));
        let serves = |slot: &SlotId| {
            matches!(snapshot.state(*slot), SlotState::Serving | SlotState::Draining)
                && !remote::is_barred(snapshot, *slot, state.decapsulated_from)
        };
        if let Some(slot) = known.filter(serves) {
            state.choice.slot = slot;
            return None;
        }
        if known.is_none()
            && let Some(next) = self.ask_next(packet, state)
        {
            return Some(next);
        }
        choose_by_table(batch, packet, state).err().map(Verdict::Drop)
    }

    /// Returns a verdict that passes the packet to the next thread, which searches its own
    /// connection table for the quoted flow. Returns `None` if all threads have searched their
    /// tables.
    pub(super) fn ask_next(&self, packet: &Packet<'_>, state: &PacketState) -> Option<Verdict> {
        let asked = match packet.origin() {
            Origin::Thread(_, HandoffReason::IcmpError { asked, .. }) => asked.saturating_add(1),
            Origin::Wire | Origin::Thread(..) => 1,
        };
        let threads = self.config.threads.max(1);
        let next = ThreadId((self.config.thread.0 + 1) % threads);
        let reason = HandoffReason::IcmpError { asked, decapsulated_from: state.decapsulated_from };
        (asked < threads).then_some(Verdict::ToThread(next, reason))
    }
}

/// Returns `true` if the source of an ICMP packet is martian. A link-local source is accepted if
/// the packet arrived without a tunnel, because its sender is on the same link. The reply to an
/// echo request is sent to that link. A router without another address sends ICMP errors from its
/// link-local address, and the loss of its packet-too-big errors would block connections.
fn is_martian_sender(flow: &Flow, state: &PacketState) -> bool {
    match state.decapsulated_from {
        Some(_) => flow.is_unroutable(),
        None => flow.is_martian(),
    }
}

/// The client flow that an ICMP error refers to.
struct QuotedFlow {
    /// The index of the service in the snapshot.
    service: u32,
    hash: u64,
    /// The action that stage 2 (backend selection) takes for the ICMP error.
    stage: Stage,
}

/// Returns the service and the hash of the quoted flow. A backend sent the quoted packet, so the
/// client's flow has the reversed 5-tuple. A quoted echo reply belongs to no flow, so its backend
/// is chosen by the hash of the quoted addresses.
fn quoted_flow(snapshot: &Snapshot, quoted: &Quoted) -> Result<QuotedFlow, DropReason> {
    let (source, destination) = (quoted.addresses.dst, quoted.addresses.src);
    let is_icmp = matches!(quoted.protocol, protocol::ICMP | protocol::ICMPV6);
    let index = match quoted.ports {
        _ if is_icmp => snapshot.vips.first(&destination),
        Some((vip_port, _)) => snapshot.vips.find(&destination, quoted.protocol, vip_port),
        // A quote without ports is sufficient if the protocol has no ports or the service ignores
        // ports.
        None => snapshot.vips.sole(&destination, quoted.protocol),
    };
    let index = index.ok_or(DropReason::IcmpQuote)?;
    let service = snapshot.service(index);
    // Keyed requests are not tracked as flows, so the backend that sent the quoted reply is
    // unknown.
    if service.policy == HashPolicy::Key && !is_icmp {
        return Err(DropReason::IcmpQuote);
    }
    if quoted.ports.is_none() && has_ports(quoted.protocol) && service.policy == HashPolicy::FiveTuple {
        return Err(DropReason::IcmpQuote);
    }
    let (destination_port, source_port) = quoted.ports.unwrap_or((0, 0));
    let flow = Flow { source, destination, source_port, destination_port, protocol: quoted.protocol };
    if flow.is_unroutable() {
        return Err(DropReason::Martian);
    }
    // The source lists apply to the client's address, not to the address of the router that sent
    // the error.
    if let Some(reason) = service.guard.as_ref().and_then(|guard| guard.refusal(&flow)) {
        return Err(reason);
    }
    let (policy, stage) = if is_icmp {
        (without_ports(service.policy), Stage::Select)
    } else {
        (service.policy, Stage::IcmpError)
    };
    Ok(QuotedFlow { service: index, hash: snapshot.hasher.hash(policy, &flow), stage })
}

pub(super) const fn has_ports(protocol: u8) -> bool {
    matches!(protocol, protocol::TCP | protocol::UDP | protocol::SCTP | protocol::DCCP | protocol::UDP_LITE)
}
