//! Replies to packets that no backend receives, if the VIP rejects them. A TCP segment gets a
//! reset, an SCTP packet gets an ABORT, and other packets get an ICMP error. The source of the
//! reply is the VIP, as if the server behind it had refused the packet. A packet with a wrong
//! checksum gets no reply.
//!
//! For UDP, UDP-Lite and DCCP, the error is always "port unreachable", also if no backend is
//! serving. Clients treat this error as final: a connected UDP socket of Linux reports ECONNREFUSED
//! at once, but ignores "host unreachable". IPVS sends the same error.
//!
//! See RFC 1812 (§4.3.3.1), RFC 4443 (§3.1 and §3.4), RFC 9260 (§8.4) and RFC 9293 (§3.10.7.1).

use packet::{
    Family, Fragment, IcmpErrorKind, Ipv6, Parsed, may_answer, parse, protocol, udp_checksum_ok,
    udp_lite_checksum_ok, write_sctp_abort, write_tcp_reset,
};

use super::Core;
use super::refusal::Answer;
use super::state::Batch;
use crate::{DropReason, Flow, Packet, Rejection, Snapshot, Verdict};

impl Core {
    /// Counts a dropped packet, or sends a reply if the VIP rejects packets with this drop reason.
    #[inline]
    pub(super) fn drop_or_reject(
        &mut self,
        batch: &Batch<'_>,
        packet: &mut Packet<'_>,
        reason: DropReason,
    ) -> Verdict {
        if batch.snapshot.has_rejects
            && matches!(reason, DropReason::NoBackend | DropReason::NoVip)
            && let Some(verdict) = self.reject(batch, packet, reason)
        {
            return verdict;
        }
        self.counters.dropped(reason);
        Verdict::Drop(reason)
    }

    /// Returns `None` if the packet must be dropped without a reply.
    #[cold]
    #[inline(never)]
    fn reject(&mut self, batch: &Batch<'_>, packet: &mut Packet<'_>, reason: DropReason) -> Option<Verdict> {
        let parsed = &parse(packet.frame()).ok()?;
        let flow = Flow::of(packet.frame(), parsed);
        let rejection = rejection(batch.snapshot, parsed, &flow, reason)?;
        // Floods of packets that get no reply must be cheap, and must not use up the rate limits.
        if !may_answer(packet.frame(), parsed) || !self.could_reject(batch, &flow.source) {
            return None;
        }
        let reply = match rejection {
            Rejection::Reset => {
                Some((write_tcp_reset(packet.frame_mut(), parsed)?, &self.counters.resets_sent))
            }
            Rejection::Abort => {
                Some((write_sctp_abort(packet.frame_mut(), parsed)?, &self.counters.aborts_sent))
            }
            _ => None,
        };
        let verdict = if let Some((length, sent)) = reply {
            sent.add(1);
            let _ = self.may_reject(batch, &flow.source);
            packet.set_bounds(packet.start(), packet.start() + length);
            packet.move_to_front();
            Verdict::Reply
        } else {
            if !is_intact(packet.frame(), parsed) {
                return None;
            }
            let kind = icmp_error(rejection, packet.frame(), parsed)?;
            let source = flow.addresses().1;
            let verdict = self.answer(batch, packet, parsed, Answer { kind, source })?;
            self.counters.unreachables_sent.add(1);
            verdict
        };
        match reason {
            DropReason::NoBackend => self.counters.rejected_no_backend.add(1),
            _ => self.counters.rejected_no_vip.add(1),
        }
        Some(verdict)
    }
}

/// Returns `false` if the packet has a wrong checksum. The checksum of a fragment, and of protocols
/// other than UDP and UDP-Lite, is not verified.
fn is_intact(frame: &[u8], parsed: &Parsed) -> bool {
    match (parsed.protocol, parsed.fragment) {
        (protocol::UDP, Fragment::None) => udp_checksum_ok(frame, parsed),
        (protocol::UDP_LITE, Fragment::None) => udp_lite_checksum_ok(frame, parsed),
        _ => true,
    }
}

/// Returns the reply to a packet that is dropped for `reason`, or `None` if its VIP does not reject
/// it. A TCP reset, a fragment of a TCP segment or of an SCTP packet, and an IPv6 packet with
/// IPv4-mapped addresses get no reply.
fn rejection(snapshot: &Snapshot, parsed: &Parsed, flow: &Flow, reason: DropReason) -> Option<Rejection> {
    let is_mapped = parsed.family == Family::V6 && flow.is_v4();
    let is_reset = parsed.protocol == protocol::TCP && parsed.tcp_flags & protocol::TCP_RST != 0;
    // The checksum of a fragment cannot be verified, and neither a reset nor an ABORT may reply to
    // a damaged packet.
    let is_part =
        matches!(parsed.protocol, protocol::TCP | protocol::SCTP) && parsed.fragment != Fragment::None;
    if is_mapped || is_reset || is_part { None } else { snapshot.rejection(flow, reason) }
}

/// Returns the ICMP error of a rejection, or `None` for a reset or an ABORT.
fn icmp_error(rejection: Rejection, frame: &[u8], parsed: &Parsed) -> Option<IcmpErrorKind> {
    let code = match (rejection, parsed.family) {
        (Rejection::Reset | Rejection::Abort, _) => return None,
        (Rejection::Host, Family::V4) => 1,
        (Rejection::Protocol, Family::V4) => 2,
        (Rejection::Port, Family::V4) | (Rejection::Host, Family::V6) => 3,
        (Rejection::Port, Family::V6) => 4,
        (Rejection::Protocol, Family::V6) => return Some(unrecognized(frame, parsed)),
    };
    Some(IcmpErrorKind::Unreachable { code })
}

fn unrecognized(frame: &[u8], parsed: &Parsed) -> IcmpErrorKind {
    //= RFC 4443 §3.4
    //# 1 - unrecognized Next Header type encountered
    IcmpErrorKind::ParameterProblem { code: 1, pointer: next_header_at(frame, parsed) }
}

/// Returns the offset in the IPv6 packet of the field that contains the protocol of the upper
/// layer.
fn next_header_at(frame: &[u8], parsed: &Parsed) -> u32 {
    let ip = frame.get(usize::from(parsed.l3)..usize::from(parsed.end)).unwrap_or_default();
    let last = Ipv6::parse(ip).ok().and_then(|ip| ip.extensions().map_while(Result::ok).last());
    match last {
        Some(last) => {
            let length = u32::try_from(last.bytes.len()).unwrap_or(0);
            u32::from(parsed.l4.saturating_sub(parsed.l3)).saturating_sub(length)
        }
        None => 6,
    }
}
