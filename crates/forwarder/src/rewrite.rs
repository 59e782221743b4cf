//! Writing a decided packet: TTL, link header, outer headers, in place.
//!
//! In: a packet parsed and given a slot. Out: the frame to send, from the first byte of its buffer on.
//! Invariant: the inner packet's bytes change in its TTL (and that checksum) alone; on an error the frame is garbage and
//! only good for the pool.

use packet::{Mac, Parsed, Tags, decrement_ttl, rewrite_link, write_link};

use crate::snapshot::{NextHopMode, Slot};
use crate::{DropReason, InterfaceId, Packet, Tagging};

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

/// Rewrites `packet` for its slot.
#[inline]
pub(crate) fn rewrite(packet: &mut Packet<'_>, order: &Order<'_>) -> Result<Written, DropReason> {
    let Order { parsed, slot, .. } = *order;
    let growth = slot.growth();
    let inner_len = parsed.ip_len();
    if usize::from(inner_len) + growth > order.limit {
        return Err(DropReason::TooBig);
    }
    let hop = next_hop(packet, order)?;
    // Nothing to be read where tags stay, as nearly everywhere.
    let tags = match hop.tagging {
        Tagging::Keep => None,
        other => Some(retagged(other, packet.frame(), parsed)?),
    };
    let ip = packet.frame_mut().get_mut(usize::from(parsed.l3)..).ok_or(DropReason::Malformed)?;
    if order.lower_ttl && !decrement_ttl(ip, parsed.family) {
        return Err(DropReason::Ttl);
    }
    let template = slot.template(parsed.family);
    let ethertype = template.map_or_else(|| parsed.family.ethertype(), |template| template.ethertype());
    let (fit, link_len) = match tags {
        None => lay_out(packet, parsed, growth, &hop, ethertype)?,
        Some(tags) => lay_out_tagged(packet, parsed, growth, &hop, ethertype, &tags)?,
    };
    let inner_target = growth + link_len;
    let end = inner_target + usize::from(inner_len);
    if let Some(template) = template {
        let buffer = packet.buffer_mut();
        let room = buffer.get_mut(link_len..inner_target).ok_or(DropReason::NoHeadRoom)?;
        let written = template.write(room, inner_len, parsed.tos, order.hash, order.identification);
        written.map_err(|_| DropReason::TooBig)?;
        let outer = buffer.get_mut(link_len..end).ok_or(DropReason::NoHeadRoom)?;
        if !template.complete(outer, order.redirected) {
            return Err(DropReason::Malformed);
        }
    }
    packet.set_bounds(0, end);
    packet.set_interface(hop.interface);
    Ok(Written { fit, link_len: u16::try_from(link_len).unwrap_or(u16::MAX) })
}

/// Puts the link header, with the tags that it has, to the front of the buffer, and the inner packet `growth` bytes behind it.
#[inline]
fn lay_out(
    packet: &mut Packet<'_>,
    parsed: &Parsed,
    growth: usize,
    hop: &Hop<'_>,
    ethertype: u16,
) -> Result<(Fit, usize), DropReason> {
    let (link_len, inner_len) = (usize::from(parsed.l3), usize::from(parsed.ip_len()));
    let (start, inner_start) = (packet.start(), packet.start() + link_len);
    let inner_target = growth + link_len;
    if inner_target + inner_len > packet.capacity() {
        return Err(DropReason::NoHeadRoom);
    }
    let buffer = packet.buffer_mut();
    if !rewrite_link(buffer, start, link_len, hop.destination, hop.source, ethertype) {
        return Err(DropReason::NoHeadRoom);
    }
    if start == growth {
        return Ok((Fit::Exact, link_len));
    }
    // The link header already stands in front, below both places of the inner packet.
    buffer.copy_within(inner_start..inner_start + inner_len, inner_target);
    Ok((Fit::Moved, link_len))
}

/// As [`lay_out`], with other tags. Where their number is another, the inner packet moves: a frame starts at the front.
#[cold]
fn lay_out_tagged(
    packet: &mut Packet<'_>,
    parsed: &Parsed,
    growth: usize,
    hop: &Hop<'_>,
    ethertype: u16,
    tags: &Tags,
) -> Result<(Fit, usize), DropReason> {
    let (link_len, inner_len) = (tags.link_len(), usize::from(parsed.ip_len()));
    let (inner_start, inner_target) = (packet.start() + usize::from(parsed.l3), growth + link_len);
    if inner_target + inner_len > packet.capacity() {
        return Err(DropReason::NoHeadRoom);
    }
    let buffer = packet.buffer_mut();
    // Before the link header, which may reach into where the inner packet was; the old one is not needed any more.
    let fit = if inner_start == inner_target { Fit::Exact } else { Fit::Moved };
    if fit == Fit::Moved {
        buffer.copy_within(inner_start..inner_start + inner_len, inner_target);
    }
    let written = write_link(buffer, link_len, hop.destination, hop.source, tags, ethertype);
    written.map(|_| (fit, link_len)).ok_or(DropReason::NoHeadRoom)
}

#[cold]
fn retagged(tagging: &Tagging, frame: &[u8], parsed: &Parsed) -> Result<Tags, DropReason> {
    let tags = Tags::read(frame, parsed.l3).ok_or(DropReason::Malformed)?;
    tagging.after(&tags).ok_or(DropReason::VlanUnmapped)
}

/// The interface that frames for a slot leave by; `None`: the one that they came by, or none.
pub(crate) fn leaves_by(mode: &NextHopMode, slot: &Slot) -> Option<InterfaceId> {
    match mode {
        NextHopMode::Reflect { .. } if slot.growth() > 0 => None,
        _ => slot.next_hop.as_ref().map(|hop| hop.interface),
    }
}

#[inline]
fn next_hop<'a>(packet: &Packet<'_>, order: &Order<'a>) -> Result<Hop<'a>, DropReason> {
    match order.mode {
        NextHopMode::Reflect { gateways, tagging } if order.slot.growth() > 0 => {
            reflect(packet, gateways, tagging)
        }
        // A backend on the same link, as L2 forwarding has it, is not behind the router.
        NextHopMode::Resolve | NextHopMode::Reflect { .. } => {
            let hop = order.slot.next_hop.as_ref().ok_or(DropReason::NoNextHop)?;
            let (destination, source, interface) = (hop.destination, hop.source, hop.interface);
            Ok(Hop { destination, source, interface, tagging: &hop.tagging })
        }
    }
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
