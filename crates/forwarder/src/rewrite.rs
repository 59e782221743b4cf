//! Writing a decided packet: TTL, link header, outer headers, in place.
//!
//! In: a packet parsed and given a slot. Out: the frame to send, from the first byte of its buffer on.
//! Invariant: the inner packet's bytes change in its TTL (and that checksum) alone; on an error the frame is garbage and
//! only good for the pool.

use std::ops::Range;

use packet::{Inner, LinkHeader, Mac, Parsed, Tags, Template, decrement_ttl, rewrite_link, write_link};

use crate::{DropReason, InterfaceId, NextHop, NextHopMode, Packet, Slot, Tagging};

/// What a packet's rewriting needs besides the packet.
pub(crate) struct RewriteParams<'a> {
    pub(crate) parsed: &'a Parsed,
    pub(crate) slot: &'a Slot,
    pub(crate) mode: &'a NextHopMode,
    pub(crate) hash: u64,
    pub(crate) identification: u16,
    /// Bytes of the largest outer IP packet: mostly the slot's MTU.
    pub(crate) limit: usize,
    /// Whether a hop is taken: once, where the packet came in (RFC 2003 §3.1), and not on its way between our machines.
    pub(crate) lower_ttl: bool,
    /// How many machines of ours have redirected it before.
    pub(crate) redirected: u8,
}

/// For a packet that is cut once it is wrapped.
pub(crate) const NO_LIMIT: usize = usize::MAX;

/// Whether the opened head room was the one needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fit {
    Exact,
    Moved,
}

/// What was written.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Written {
    pub(crate) fit: Fit,
    /// Bytes of the link header: other tags are another length.
    pub(crate) link_len: u16,
}

/// The way that a frame takes.
struct Hop<'a> {
    destination: Mac,
    source: Mac,
    interface: InterfaceId,
    tagging: &'a Tagging,
}

impl<'a> Hop<'a> {
    fn of(hop: &'a NextHop) -> Self {
        let NextHop { destination, source, interface, tagging } = hop;
        Self { destination: *destination, source: *source, interface: *interface, tagging }
    }
}

/// Rewrites `packet` for its slot.
#[inline]
pub(crate) fn rewrite(packet: &mut Packet<'_>, order: &RewriteParams<'_>) -> Result<Written, DropReason> {
    let RewriteParams { parsed, slot, .. } = *order;
    let encap_overhead = slot.encap_overhead();
    let inner_len = parsed.ip_len();
    if usize::from(inner_len) + encap_overhead > order.limit {
        return Err(DropReason::TooBig);
    }
    let (destination, source, interface) = match order.mode {
        NextHopMode::Reflect { gateways, tagging } if encap_overhead > 0 => {
            let hop = reflect(packet, gateways, tagging)?;
            if !matches!(hop.tagging, Tagging::Keep) {
                return rewrite_tagged(packet, order, &hop);
            }
            (hop.destination, hop.source, hop.interface)
        }
        // A backend on the same link, as L2 forwarding has it, is not behind the router.
        NextHopMode::Resolve | NextHopMode::Reflect { .. } => {
            let hop = slot.next_hop.as_ref().ok_or(DropReason::NoNextHop)?;
            if !matches!(hop.tagging, Tagging::Keep) {
                return rewrite_tagged(packet, order, &Hop::of(hop));
            }
            (hop.destination, hop.source, hop.interface)
        }
    };
    let link_len = usize::from(parsed.l3);
    lower_ttl(packet, order)?;
    let (start, inner_start) = (packet.start(), packet.start() + link_len);
    let inner_target = encap_overhead + link_len;
    let end = inner_target + usize::from(inner_len);
    if end > packet.capacity() {
        return Err(DropReason::NoHeadRoom);
    }
    let template = slot.template(parsed.family);
    let link = LinkHeader { dst: destination, src: source, ethertype: ethertype(parsed, template) };
    let buffer = packet.buffer_mut();
    if !rewrite_link(buffer, start, link_len, link) {
        return Err(DropReason::NoHeadRoom);
    }
    let fit = if start == encap_overhead { Fit::Exact } else { Fit::Moved };
    if fit == Fit::Moved {
        // The link header already stands in front, below both places of the inner packet.
        buffer.copy_within(inner_start..inner_start + usize::from(inner_len), inner_target);
    }
    if let Some(template) = template {
        wrap(buffer, order, template, link_len..inner_target, end)?;
    }
    packet.set_bounds(0, end);
    packet.set_interface(interface);
    Ok(Written { fit, link_len: parsed.l3 })
}

/// The same with other tags. Where their number is another, the inner packet moves: a frame starts at the front.
#[cold]
#[inline(never)]
fn rewrite_tagged(
    packet: &mut Packet<'_>,
    order: &RewriteParams<'_>,
    hop: &Hop<'_>,
) -> Result<Written, DropReason> {
    let RewriteParams { parsed, slot, .. } = *order;
    let tags = Tags::read(packet.frame(), parsed.l3).ok_or(DropReason::Malformed)?;
    let tags = hop.tagging.after(&tags).ok_or(DropReason::VlanUnmapped)?;
    lower_ttl(packet, order)?;
    let (link_len, inner_len) = (tags.link_len(), usize::from(parsed.ip_len()));
    let inner_start = packet.start() + usize::from(parsed.l3);
    let inner_target = slot.encap_overhead() + link_len;
    let end = inner_target + inner_len;
    if end > packet.capacity() {
        return Err(DropReason::NoHeadRoom);
    }
    let buffer = packet.buffer_mut();
    // Before the link header, which may reach into where the inner packet was; the old one is not needed any more.
    let fit = if inner_start == inner_target { Fit::Exact } else { Fit::Moved };
    if fit == Fit::Moved {
        buffer.copy_within(inner_start..inner_start + inner_len, inner_target);
    }
    let template = slot.template(parsed.family);
    let link = LinkHeader { dst: hop.destination, src: hop.source, ethertype: ethertype(parsed, template) };
    let written = write_link(buffer, link_len, link, &tags);
    written.ok_or(DropReason::NoHeadRoom)?;
    if let Some(template) = template {
        wrap(buffer, order, template, link_len..inner_target, end)?;
    }
    packet.set_bounds(0, end);
    packet.set_interface(hop.interface);
    Ok(Written { fit, link_len: u16::try_from(link_len).unwrap_or(u16::MAX) })
}

#[inline(always)]
fn lower_ttl(packet: &mut Packet<'_>, order: &RewriteParams<'_>) -> Result<(), DropReason> {
    let ip = packet.frame_mut().get_mut(usize::from(order.parsed.l3)..).ok_or(DropReason::Malformed)?;
    if order.lower_ttl && !decrement_ttl(ip, order.parsed.family) {
        return Err(DropReason::Ttl);
    }
    Ok(())
}

/// The interface that frames for a slot leave by; `None`: the one that they came by, or none.
pub(crate) fn leaves_by(mode: &NextHopMode, slot: &Slot) -> Option<InterfaceId> {
    match mode {
        NextHopMode::Reflect { .. } if slot.encap_overhead() > 0 => None,
        _ => slot.next_hop.as_ref().map(|hop| hop.interface),
    }
}

/// Of the packet as it leaves.
#[inline]
fn ethertype(parsed: &Parsed, template: Option<&Template>) -> u16 {
    template.map_or_else(|| parsed.family.ethertype(), |template| template.ethertype())
}

/// Writes the outer headers into `room`, in front of the inner packet, which ends at `end`.
#[inline(always)]
fn wrap(
    buffer: &mut [u8],
    order: &RewriteParams<'_>,
    template: &Template,
    room: Range<usize>,
    end: usize,
) -> Result<(), DropReason> {
    let (parsed, link_len) = (order.parsed, room.start);
    let room = buffer.get_mut(room).ok_or(DropReason::NoHeadRoom)?;
    let inner = Inner {
        len: parsed.ip_len(),
        tos: parsed.tos,
        flow_hash: order.hash,
        identification: order.identification,
    };
    let written = template.write(room, &inner);
    written.map_err(|_| DropReason::TooBig)?;
    let outer = buffer.get_mut(link_len..end).ok_or(DropReason::NoHeadRoom)?;
    if template.complete(outer, order.redirected) { Ok(()) } else { Err(DropReason::Malformed) }
}

/// Back by the interface that the frame came by.
fn reflect<'a>(packet: &Packet<'_>, gateways: &[Mac], tagging: &'a [Tagging]) -> Result<Hop<'a>, DropReason> {
    let (ours, rest) = packet.frame().split_first_chunk::<6>().ok_or(DropReason::Malformed)?;
    let theirs = Mac(*rest.first_chunk::<6>().ok_or(DropReason::Malformed)?);
    if !gateways.contains(&theirs) {
        return Err(DropReason::UnknownGateway);
    }
    let interface = packet.interface();
    let tagging = tagging.get(usize::from(interface.0)).unwrap_or(&Tagging::Keep);
    Ok(Hop { destination: theirs, source: Mac(*ours), interface, tagging })
}
