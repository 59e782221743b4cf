//! ICMP for a VIP.
//!
//! In: an ICMP packet. Out: an echo request turned round; an error sent on to the backend of the flow that it quotes.
//! Not here: neighbour discovery (XDP leaves it to the kernel), pieces of ICMP (`fragments`), errors that we send (`refusal`), errors
//! about our own outer packets (`outer_error`).
//! Invariant: nothing of a quote is believed but what names a flow of a VIP, and it changes no table.
//! Source: RFC 792, RFC 4443, RFC 1191, RFC 8201; paper §4.3 (tuples of errors are those of the quoted packet, reversed).

use packet::{Addresses, IcmpError, Parsed, Quoted, echo_reply, icmp_error, protocol};

use super::fragments::without_ports;
use super::state::{Batch, PacketState, Stage};
use super::{Core, choose_by_table, remote};
use crate::selection::flow_key;
use crate::{
    DropReason, Flow, HandoffReason, HashPolicy, Origin, Packet, SlotId, SlotState, Snapshot, ThreadId,
    Verdict,
};

impl Core {
    /// Stage 1 for an ICMP packet that is whole. `None`: an error that stage 2 finds a backend for.
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
            None => Some(self.answer_echo(batch, packet, &state.parsed, flow)),
        }
    }

    fn answer_echo(
        &mut self,
        batch: &Batch<'_>,
        packet: &mut Packet<'_>,
        parsed: &Parsed,
        flow: &Flow,
    ) -> Verdict {
        let Some(service) = batch.snapshot.vips.first(&flow.destination) else {
            return Verdict::Drop(DropReason::NoVip);
        };
        let service = batch.snapshot.service(service);
        if let Some(reason) = service.guard.as_ref().and_then(|guard| guard.refusal(flow)) {
            return Verdict::Drop(reason);
        }
        if !echo_reply(packet.frame_mut(), parsed) {
            return Verdict::Drop(DropReason::Icmp);
        }
        if !self.may_reply(batch, &flow.source) {
            return Verdict::Drop(DropReason::ReplyRate);
        }
        // What stood behind the IP packet goes.
        packet.set_bounds(packet.start(), packet.start() + usize::from(parsed.end));
        packet.move_to_front();
        Verdict::Reply
    }

    /// Whether another echo reply or time exceeded may go to `source`.
    pub(super) fn may_reply(&mut self, batch: &Batch<'_>, source: &[u8; 16]) -> bool {
        let key = batch.snapshot.hasher.source(source);
        let rates = self.config.icmp;
        self.limits.admit_source(key, rates.replies_to_source, batch.now)
            && self.meters.replies.admit(rates.replies, batch.now)
    }

    /// Likewise a packet-too-big error, which has a meter of its own: a flood of pings, of any source address, leaves path MTU discovery
    /// alone.
    pub(super) fn may_send_too_big(&mut self, batch: &Batch<'_>, source: &[u8; 16]) -> bool {
        let key = batch.snapshot.hasher.source(source).rotate_left(32);
        let rates = self.config.icmp;
        self.limits.admit_source(key, rates.replies_to_source, batch.now)
            && self.meters.too_big_errors.admit(rates.replies, batch.now)
    }

    /// Whether another error of `source` may be sent on or taken in.
    fn may_take_error(&mut self, batch: &Batch<'_>, source: &[u8; 16]) -> bool {
        let (key, rates) = (!batch.snapshot.hasher.source(source), self.config.icmp);
        self.limits.admit_source(key, rates.errors_of_source, batch.now)
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
        let Addresses { src: router, dst: destination } = state.parsed.addresses(packet.frame());
        // Asked once: not again by the threads that hand it on for their tables' sake.
        let is_handed_on = matches!(packet.origin(), Origin::Thread(_, HandoffReason::IcmpError { .. }));
        if !is_handed_on && !self.may_take_error(batch, &router) {
            return Err(DropReason::IcmpRate);
        }
        if !snapshot.vips.contains(&destination) {
            return self.take_outer_error(batch, packet, error, state);
        }
        // It is for the sender of the quoted packet alone.
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

    /// Stage 2 for an error: the backend that the flow's thread knows, else Maglev's. The threads are asked in turn, each
    /// its own table, and the last decides.
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

    /// The next thread whose table may know the flow that an error quotes; `None`: all were asked.
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

/// The flow that an error is about.
struct QuotedFlow {
    /// Index among the snapshot's services.
    service: u32,
    hash: u64,
    /// Where its backend is found.
    stage: Stage,
}

/// Service and hash of the flow that a packet from a VIP belongs to: the client's, so the quoted tuple reversed. An echo reply is of no flow: its request was given a backend by its addresses (`fragments`).
fn quoted_flow(snapshot: &Snapshot, quoted: &Quoted) -> Result<QuotedFlow, DropReason> {
    let (source, destination) = (quoted.addresses.dst, quoted.addresses.src);
    let is_icmp = matches!(quoted.protocol, protocol::ICMP | protocol::ICMPV6);
    let index = match quoted.ports {
        _ if is_icmp => snapshot.vips.first(&destination),
        Some((vip_port, _)) => snapshot.vips.find(&destination, quoted.protocol, vip_port),
        // Without ports: a protocol that has none, or a service for which they don't matter.
        None => snapshot.vips.sole(&destination, quoted.protocol),
    };
    let index = index.ok_or(DropReason::IcmpQuote)?;
    let service = snapshot.service(index);
    // A keyed request was of no flow: which server its answer came from is not known.
    if service.policy == HashPolicy::Key && !is_icmp {
        return Err(DropReason::IcmpQuote);
    }
    if quoted.ports.is_none() && has_ports(quoted.protocol) && service.policy == HashPolicy::FiveTuple {
        return Err(DropReason::IcmpQuote);
    }
    let (destination_port, source_port) = quoted.ports.unwrap_or((0, 0));
    let flow = Flow { source, destination, source_port, destination_port, protocol: quoted.protocol };
    // The lists are about the client. A router on its way is in none of them.
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
