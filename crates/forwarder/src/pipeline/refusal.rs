//! Handles packets that cannot be forwarded, for example because they are too big. Either the
//! sender receives an ICMP error, or the packet is held and the next `poll` sends it in fragments.
//! The crate `packet` defines the formats of ICMP errors and fragments.
//!
//! See RFC 1191, RFC 1812 (§4.3.2 and §5.3.1), RFC 8201, RFC 4443 (§3.2), RFC 2473 (§7) and RFC
//! 4459.

use packet::{
    ErrorSpec, Family, FragmentError, FragmentIter, IcmpErrorKind, Parsed, allow_cutting, pieces_v4,
    pieces_v6, write_icmp_error,
};

use super::state::{Batch, PacketState, Stage};
use super::{Core, unreadable};
use crate::rewrite::{NO_LIMIT, RewriteParams, leaves_by, rewrite};
use crate::{DropReason, FragmentStep, HoldSlot, Outlet, Packet, Slot, TooBig, Verdict};

/// A held packet that is waiting to be split into fragments.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cut {
    state: PacketState,
    what: What,
    /// The number of fragments that were sent so far.
    next: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum What {
    /// The client's packet is fragmented, and each fragment is encapsulated.
    Inner,
    /// The encapsulated packet is fragmented. IPv6 fragments need an identification.
    Outer { identification: u32 },
}

/// An ICMP error for the sender of a packet.
pub(super) struct Answer {
    pub(super) kind: IcmpErrorKind,
    pub(super) source: std::net::IpAddr,
}

impl Core {
    /// Returns the verdict for a packet whose rewriting failed for the given reason.
    #[cold]
    pub(super) fn refuse(
        &mut self,
        batch: &Batch<'_>,
        packet: &mut Packet<'_>,
        state: &PacketState,
        reason: DropReason,
    ) -> Verdict {
        // The TTL is checked before the size, because RFC 1812 handles TTL expiry (§5.3.1) before
        // fragmentation (§5.2.7.2).
        let ends = reason == DropReason::TooBig && state.parsed.ttl <= 1 && state.stage != Stage::Redirect;
        match if ends { DropReason::Ttl } else { reason } {
            DropReason::Ttl => {
                let source = batch.snapshot.own_address(state.parsed.family);
                let kind = IcmpErrorKind::TimeExceeded { code: 0 };
                let answered = source
                    .and_then(|source| self.answer(batch, packet, &state.parsed, Answer { kind, source }));
                answered
                    .inspect(|_| self.counters.time_exceeded.add(1))
                    .unwrap_or(Verdict::Drop(DropReason::Ttl))
            }
            DropReason::TooBig => {
                let bytes = packet.frame().len();
                let verdict = self.too_big(batch, packet, state);
                if matches!(verdict, Verdict::Hold(_)) {
                    self.count_forwarded(state, bytes);
                }
                verdict
            }
            reason => Verdict::Drop(reason),
        }
    }

    /// Returns the verdict for a proxied packet whose rewriting failed for the given reason. A
    /// proxied packet is never fragmented, because its fragments would reach the backend with the
    /// client's addresses.
    #[cold]
    pub(super) fn refuse_whole(
        &mut self,
        batch: &Batch<'_>,
        packet: &mut Packet<'_>,
        state: &PacketState,
        reason: DropReason,
    ) -> Verdict {
        let parsed = &state.parsed;
        let is_least = parsed.family == Family::V6 && parsed.ip_len() <= LEAST_V6_MTU;
        match reason {
            DropReason::TooBig if !parsed.dont_fragment || is_least => Verdict::Drop(reason),
            _ => self.refuse(batch, packet, state, reason),
        }
    }

    fn too_big(&mut self, batch: &Batch<'_>, packet: &mut Packet<'_>, state: &PacketState) -> Verdict {
        let drop = Verdict::Drop(DropReason::TooBig);
        let Some(slot) = batch.snapshot.slots.get(state.choice.slot.0 as usize) else { return drop };
        let parsed = &state.parsed;
        match (slot.too_big, parsed.family) {
            //= RFC 2473 §7.1
            //# if the original IPv6 packet is equal or smaller than the IPv6 minimum link MTU,
            //# the tunnel entry-point node encapsulates the original packet, and subsequently
            //# fragments the resulting IPv6 tunnel packet
            (_, Family::V6) if parsed.ip_len() <= LEAST_V6_MTU => self.cut_outer(batch, packet, state, slot),
            _ if parsed.dont_fragment => self.answer_mtu(batch, packet, state, slot),
            (TooBig::FragmentInner, Family::V4) => {
                // The fragments will be sent on the interface that is set in the held packet.
                let interface = leaves_by(&batch.snapshot.next_hop, slot, state.hash);
                packet.set_interface(interface.unwrap_or(packet.interface()));
                self.hold_for_cut(state, What::Inner)
            }
            (TooBig::FragmentOuter, Family::V4) => self.cut_outer(batch, packet, state, slot),
            _ => drop,
        }
    }

    fn answer_mtu(
        &mut self,
        batch: &Batch<'_>,
        packet: &mut Packet<'_>,
        state: &PacketState,
        slot: &Slot,
    ) -> Verdict {
        let room = usize::from(slot.mtu).saturating_sub(slot.encap_overhead());
        let mtu = u32::try_from(room).unwrap_or(u32::MAX);
        let mtu = if state.parsed.family == Family::V6 { mtu.max(LEAST_V6_MTU.into()) } else { mtu };
        let vip = std::net::Ipv6Addr::from(state.parsed.addresses(packet.frame()).dst).to_canonical();
        let answer = Answer { kind: IcmpErrorKind::TooBig { mtu }, source: vip };
        let answered = self.answer(batch, packet, &state.parsed, answer);
        answered
            .inspect(|_| self.counters.packet_too_big_sent.add(1))
            .unwrap_or(Verdict::Drop(DropReason::TooBig))
    }

    /// Turns a packet into an ICMP error for its sender. Returns `None` if an error is not
    /// permitted for this packet or exceeds the rate limits.
    pub(super) fn answer(
        &mut self,
        batch: &Batch<'_>,
        packet: &mut Packet<'_>,
        parsed: &Parsed,
        answer: Answer,
    ) -> Option<Verdict> {
        let client = parsed.addresses(packet.frame()).src;
        let Answer { kind, source } = answer;
        let may_send = packet::may_answer(packet.frame(), parsed)
            && match kind {
                IcmpErrorKind::TooBig { .. } => self.may_send_too_big(batch, &client),
                IcmpErrorKind::Unreachable { .. } | IcmpErrorKind::ParameterProblem { .. } => {
                    self.may_reject(batch, &client)
                }
                _ => self.may_reply(batch, &client),
            };
        if !may_send {
            return None;
        }
        let order = ErrorSpec { kind, source, identification: self.identifications.next_v4() };
        let frame = packet.start()..packet.end();
        let written = write_icmp_error(packet.buffer_mut(), frame, parsed, &order)?;
        packet.set_bounds(written.start, written.end);
        packet.move_to_front();
        Some(Verdict::Reply)
    }

    /// Encapsulates the packet regardless of its size, and holds the result until it is fragmented.
    fn cut_outer(
        &mut self,
        batch: &Batch<'_>,
        packet: &mut Packet<'_>,
        state: &PacketState,
        slot: &Slot,
    ) -> Verdict {
        if slot.encap_overhead() == 0 {
            return Verdict::Drop(DropReason::TooBig);
        }
        let identification = self.identifications.next_v4();
        let params =
            RewriteParams { limit: NO_LIMIT, identification, ..self.rewrite_params(batch, slot, state) };
        let l3 = match rewrite(packet, &params) {
            Ok(written) => written.link_len,
            Err(reason) => return Verdict::Drop(reason),
        };
        // The fragments get the link header of the encapsulated packet, which can be longer or
        // shorter than the received link header.
        let state = &PacketState { parsed: Parsed { l3, ..state.parsed }, ..*state };
        let link_len = usize::from(l3);
        let ip = packet.frame_mut().get_mut(link_len..).unwrap_or_default();
        allow_cutting(ip, identification);
        let identification = self.identifications.next_v6();
        self.hold_for_cut(state, What::Outer { identification })
    }

    fn hold_for_cut(&mut self, state: &PacketState, what: What) -> Verdict {
        if self.cuts.len() == self.cuts.capacity() {
            return Verdict::Drop(DropReason::HoldFull);
        }
        let slot = self.fragments.hold_slots() + self.cuts.len();
        self.cuts.push(Cut { state: *state, what, next: 0 });
        self.counters.fragmented.add(1);
        u32::try_from(slot).map_or(Verdict::Drop(DropReason::HoldFull), |slot| Verdict::Hold(HoldSlot(slot)))
    }

    /// Sends the fragments of all packets that are waiting to be fragmented.
    pub(super) fn send_cuts(&mut self, batch: &Batch<'_>, outlet: &mut dyn Outlet) {
        for number in 0..self.cuts.len() {
            let Some(mut cut) = self.cuts.get(number).copied() else { break };
            let Ok(hold) = u32::try_from(self.fragments.hold_slots() + number) else { break };
            outlet.split(HoldSlot(hold), &mut |packet, out| {
                let fragment = self.cut_one(batch, packet, &cut, out);
                cut.next += 1;
                match fragment {
                    Ok(Some(length)) => FragmentStep::Of(length),
                    Ok(None) => FragmentStep::End,
                    Err(reason) => FragmentStep::Failed(reason),
                }
            });
        }
        self.cuts.clear();
    }

    /// Writes the next fragment of a held packet to the front of `out`. Returns `None` if no
    /// fragment is left.
    fn cut_one(
        &mut self,
        batch: &Batch<'_>,
        packet: &Packet<'_>,
        cut: &Cut,
        out: &mut [u8],
    ) -> Result<Option<usize>, DropReason> {
        let state = &cut.state;
        let slot = batch.snapshot.slots.get(state.choice.slot.0 as usize).ok_or(DropReason::NoBackend)?;
        let link_len = usize::from(state.parsed.l3);
        let (link, ip) = packet.frame().split_at_checked(link_len).ok_or(DropReason::Malformed)?;
        let head_room = if cut.what == What::Inner { slot.encap_overhead() } else { 0 };
        let mut fragments = fragments(ip, slot, cut.what, head_room).map_err(|error| uncuttable(&error))?;
        let Some(fragment) = fragments.nth(cut.next) else { return Ok(None) };
        let start = head_room + link_len;
        out.get_mut(head_room..start).ok_or(DropReason::NoHeadRoom)?.copy_from_slice(link);
        let len = out.get_mut(start..).and_then(|room| fragment.write(room)).ok_or(DropReason::NoHeadRoom)?;
        if cut.what != What::Inner {
            return Ok(Some(start + len));
        }
        let mut inner = Packet::new(out, head_room, start + len, packet.origin()).on(packet.interface());
        let state = PacketState { parsed: packet::parse(inner.frame()).map_err(unreadable)?, ..*state };
        let params = self.rewrite_params(batch, slot, &state);
        rewrite(&mut inner, &params)?;
        // The fragment starts later if its link header has fewer tags than the received one.
        let bounds = inner.bounds();
        let length = bounds.len();
        if bounds.start > 0 {
            out.copy_within(bounds, 0);
        }
        Ok(Some(length))
    }
}

fn uncuttable(error: &FragmentError) -> DropReason {
    match error {
        FragmentError::DontFragment | FragmentError::MtuTooSmall { .. } | FragmentError::Extensions => {
            DropReason::TooBig
        }
        _ => DropReason::Malformed,
    }
}

fn fragments<'a>(
    ip: &'a [u8],
    slot: &Slot,
    what: What,
    encap_overhead: usize,
) -> Result<FragmentIter<'a>, FragmentError> {
    let limit = slot.mtu.saturating_sub(u16::try_from(encap_overhead).unwrap_or(u16::MAX));
    match (what, ip.first().map(|first| first >> 4)) {
        (What::Outer { identification }, Some(6)) => pieces_v6(ip, limit, identification),
        _ => pieces_v4(ip, limit),
    }
}

/// The minimum IPv6 MTU in bytes (RFC 8200 §5).
const LEAST_V6_MTU: u16 = 1280;
