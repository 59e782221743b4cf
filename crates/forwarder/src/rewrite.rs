//! Writing a decided packet: TTL, link header, outer headers, in place.
//!
//! In: a packet parsed and given a slot. Out: the frame to send, from the first byte of its buffer on.
//! Invariant: the inner packet's bytes change in its TTL (and that checksum) alone; on an error the frame is garbage and
//! only good for the pool.

use packet::{Mac, Parsed, decrement_ttl, rewrite_link};

use crate::snapshot::{NextHop, NextHopMode, Slot};
use crate::{DropReason, Packet};

/// What a packet's rewriting needs besides the packet.
pub(crate) struct Order<'a> {
    pub(crate) parsed: &'a Parsed,
    pub(crate) slot: &'a Slot,
    pub(crate) mode: &'a NextHopMode,
    pub(crate) hash: u64,
    pub(crate) identification: u16,
    /// Bytes of the largest outer IP packet: mostly the slot's MTU.
    pub(crate) limit: usize,
    /// Whether a hop is taken: once, where the packet came in (RFC 2003 §3.1), and not on its way between our machines.
    pub(crate) lower_ttl: bool,
}

/// For a packet that is cut once it is wrapped.
pub(crate) const NO_LIMIT: usize = usize::MAX;

/// Whether the opened head room was the one needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fit {
    Exact,
    Moved,
}

/// Rewrites `packet` for its slot.
#[inline]
pub(crate) fn rewrite(packet: &mut Packet<'_>, order: &Order<'_>) -> Result<Fit, DropReason> {
    let Order { parsed, slot, .. } = *order;
    let growth = slot.growth();
    let inner_len = parsed.ip_len();
    if usize::from(inner_len) + growth > order.limit {
        return Err(DropReason::TooBig);
    }
    let hop = next_hop(packet.frame(), order)?;
    let link_len = usize::from(parsed.l3);
    let ip = packet.frame_mut().get_mut(link_len..).ok_or(DropReason::Malformed)?;
    if order.lower_ttl && !decrement_ttl(ip, parsed.family) {
        return Err(DropReason::Ttl);
    }
    let template = slot.template(parsed.family);
    let ethertype = template.map_or_else(|| parsed.family.ethertype(), |template| template.ethertype());
    let (start, inner_start) = (packet.start(), packet.start() + link_len);
    let inner_target = growth + link_len;
    let end = inner_target + usize::from(inner_len);
    if end > packet.capacity() {
        return Err(DropReason::NoHeadRoom);
    }
    let buffer = packet.buffer_mut();
    if !rewrite_link(buffer, start, link_len, hop.destination, hop.source, ethertype) {
        return Err(DropReason::NoHeadRoom);
    }
    let fit = if start == growth { Fit::Exact } else { Fit::Moved };
    if fit == Fit::Moved {
        // The link header already stands in front, below both places of the inner packet.
        buffer.copy_within(inner_start..inner_start + usize::from(inner_len), inner_target);
    }
    if let Some(template) = template {
        let room = buffer.get_mut(link_len..inner_target).ok_or(DropReason::NoHeadRoom)?;
        let written = template.write(room, inner_len, parsed.tos, order.hash, order.identification);
        written.map_err(|_| DropReason::TooBig)?;
        let outer = buffer.get_mut(link_len..end).ok_or(DropReason::NoHeadRoom)?;
        if !template.finish_checksum(outer) {
            return Err(DropReason::Malformed);
        }
    }
    packet.set_bounds(0, end);
    Ok(fit)
}

#[inline]
fn next_hop(frame: &[u8], order: &Order<'_>) -> Result<NextHop, DropReason> {
    match order.mode {
        NextHopMode::Reflect { gateways } if order.slot.growth() > 0 => reflect(frame, gateways),
        // A backend on the same link, as L2 forwarding has it, is not behind the router.
        NextHopMode::Resolve | NextHopMode::Reflect { .. } => {
            order.slot.next_hop.ok_or(DropReason::NoNextHop)
        }
    }
}

fn reflect(frame: &[u8], gateways: &[Mac]) -> Result<NextHop, DropReason> {
    let (ours, rest) = frame.split_first_chunk::<6>().ok_or(DropReason::Malformed)?;
    let theirs = Mac(*rest.first_chunk::<6>().ok_or(DropReason::Malformed)?);
    if !gateways.contains(&theirs) {
        return Err(DropReason::UnknownGateway);
    }
    Ok(NextHop { destination: theirs, source: Mac(*ours) })
}
