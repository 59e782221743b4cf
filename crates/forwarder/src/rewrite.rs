//! Rewrites a packet in place for its slot: the TTL, the link header and the outer headers. The
//! resulting frame starts at the first byte of its buffer. The inner packet stays the same except
//! for its TTL and header checksum. After an error the content of the frame is undefined, and the
//! caller must drop the packet.

use packet::{
    Family, Inner, LinkHeader, Mac, Parsed, Tags, Template, decrement_ttl, rewrite_link, write_link,
};

use crate::{DropReason, InterfaceId, NextHop, NextHopMode, Packet, Slot, Tagging};

/// The parameters for rewriting a packet.
pub(crate) struct RewriteParams<'a> {
    pub(crate) parsed: &'a Parsed,
    pub(crate) slot: &'a Slot,
    pub(crate) mode: &'a NextHopMode,
    pub(crate) hash: u64,
    pub(crate) identification: u16,
    /// The maximum size of the outer IP packet in bytes. The limit is usually the MTU of the slot.
    pub(crate) limit: usize,
    /// `true` to decrement the TTL. The TTL is decremented where the packet enters the cluster (RFC
    /// 2003 §3.1), but not between Sluicegate machines.
    pub(crate) lower_ttl: bool,
    /// The number of Sluicegate machines that have already redirected the packet.
    pub(crate) redirected: u8,
}

/// The size limit for a packet that will be fragmented after encapsulation.
pub(crate) const NO_LIMIT: usize = usize::MAX;

/// Indicates whether the headroom was sufficient for the outer headers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fit {
    Exact,
    Moved,
}

/// The result of a rewrite.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Written {
    pub(crate) fit: Fit,
    /// The length of the link header in bytes. The length depends on the number of VLAN tags.
    pub(crate) link_len: u16,
}

/// The MAC addresses, interface and VLAN tagging of an outgoing frame.
struct Hop<'a> {
    destination: Mac,
    source: Mac,
    interface: InterfaceId,
    tagging: &'a Tagging,
}

impl<'a> Hop<'a> {
    #[inline(always)]
    fn of(packet: &Packet<'_>, params: &RewriteParams<'a>) -> Result<Self, DropReason> {
        match params.mode {
            NextHopMode::Reflect { gateways, tagging } if params.slot.encap_overhead() > 0 => {
                let Self { destination, source, interface, tagging } = reflect(packet, gateways, tagging)?;
                Ok(Self { destination, source, interface, tagging })
            }
            // Reflection does not apply to L2 backends, because L2 backends are on the same link
            // and not behind the router.
            NextHopMode::Resolve | NextHopMode::Reflect { .. } => {
                let hop = params.slot.hop(params.hash).ok_or(DropReason::NoNextHop)?;
                let NextHop { destination, source, interface, tagging } = hop;
                Ok(Self { destination: *destination, source: *source, interface: *interface, tagging })
            }
        }
    }

    #[inline(always)]
    fn header(&self, family: Family, template: Option<&Template>) -> LinkHeader {
        let ethertype = template.map_or(family.ethertype(), Template::ethertype);
        LinkHeader { dst: self.destination, src: self.source, ethertype }
    }
}

/// The positions of the inner packet in the buffer before and after the rewrite. The link header
/// (`link_len` bytes) and the outer headers precede the new position.
struct Places {
    link_len: usize,
    inner_start: usize,
    inner_len: usize,
    inner_target: usize,
}

impl Places {
    #[inline(always)]
    fn of(packet: &mut Packet<'_>, params: &RewriteParams<'_>, link_len: usize) -> Result<Self, DropReason> {
        let inner_start = packet.start() + usize::from(params.parsed.l3);
        let inner_target = params.slot.encap_overhead() + link_len;
        let spare = inner_start.saturating_sub(inner_target);
        packet.cut_front(spare);
        let inner_len = params.parsed.ip_len().into();
        let places = Self { link_len, inner_start: inner_start - spare, inner_len, inner_target };
        if places.end() > packet.capacity() { Err(DropReason::NoHeadRoom) } else { Ok(places) }
    }

    #[inline(always)]
    fn end(&self) -> usize {
        self.inner_target + self.inner_len
    }

    #[inline(always)]
    fn move_inner(&self, buffer: &mut [u8]) -> Fit {
        if self.inner_start == self.inner_target {
            return Fit::Exact;
        }
        buffer.copy_within(self.inner_start..self.inner_start + self.inner_len, self.inner_target);
        Fit::Moved
    }
}

/// Rewrites a packet for its slot and moves it to the front of the buffer.
#[inline]
pub(crate) fn rewrite(packet: &mut Packet<'_>, params: &RewriteParams<'_>) -> Result<Written, DropReason> {
    let (parsed, family) = (params.parsed, params.parsed.family);
    if usize::from(parsed.ip_len()) + params.slot.encap_overhead() > params.limit {
        return Err(DropReason::TooBig);
    }
    let hop = Hop::of(packet, params)?;
    if !matches!(hop.tagging, Tagging::Keep) {
        return rewrite_tagged(packet, params, &hop);
    }
    lower_ttl(packet, params)?;
    let places = Places::of(packet, params, parsed.l3.into())?;
    let start = packet.start();
    let template = params.slot.template(family);
    let buffer = packet.buffer_mut();
    if !rewrite_link(buffer, start, places.link_len, hop.header(family, template)) {
        return Err(DropReason::NoHeadRoom);
    }
    // The link header has already been written. The link header precedes both the old and the new
    // position of the inner packet, so moving the inner packet does not overwrite it.
    let fit = places.move_inner(buffer);
    wrap(buffer, params, template, &places)?;
    packet.set_bounds(0, places.end());
    packet.set_interface(hop.interface);
    Ok(Written { fit, link_len: parsed.l3 })
}

/// Rewrites a packet whose VLAN tags must change.
#[cold]
#[inline(never)]
fn rewrite_tagged(
    packet: &mut Packet<'_>,
    params: &RewriteParams<'_>,
    hop: &Hop<'_>,
) -> Result<Written, DropReason> {
    let family = params.parsed.family;
    let tags = Tags::read(packet.frame(), params.parsed.l3).ok_or(DropReason::Malformed)?;
    let tags = hop.tagging.after(&tags).ok_or(DropReason::VlanUnmapped)?;
    lower_ttl(packet, params)?;
    let places = Places::of(packet, params, tags.link_len())?;
    let template = params.slot.template(family);
    let buffer = packet.buffer_mut();
    // The inner packet must move first, because the new link header can overlap its old position.
    let fit = places.move_inner(buffer);
    let written = write_link(buffer, places.link_len, hop.header(family, template), &tags);
    written.ok_or(DropReason::NoHeadRoom)?;
    wrap(buffer, params, template, &places)?;
    packet.set_bounds(0, places.end());
    packet.set_interface(hop.interface);
    Ok(Written { fit, link_len: u16::try_from(places.link_len).unwrap_or(u16::MAX) })
}

#[inline(always)]
fn lower_ttl(packet: &mut Packet<'_>, params: &RewriteParams<'_>) -> Result<(), DropReason> {
    let ip = packet.frame_mut().get_mut(usize::from(params.parsed.l3)..).ok_or(DropReason::Malformed)?;
    if params.lower_ttl && !decrement_ttl(ip, params.parsed.family) {
        return Err(DropReason::Ttl);
    }
    Ok(())
}

/// Returns the interface on which frames of a flow for a slot are sent. Returns `None` if frames
/// are sent on the interface that they arrived on, or if the slot has no next hop.
pub(crate) fn leaves_by(mode: &NextHopMode, slot: &Slot, flow_hash: u64) -> Option<InterfaceId> {
    match mode {
        NextHopMode::Reflect { .. } if slot.encap_overhead() > 0 => None,
        _ => slot.hop(flow_hash).map(|hop| hop.interface),
    }
}

/// Writes the outer headers of the slot, if any, between the link header and the inner packet.
#[inline(always)]
fn wrap(
    buffer: &mut [u8],
    params: &RewriteParams<'_>,
    template: Option<&Template>,
    places: &Places,
) -> Result<(), DropReason> {
    let RewriteParams { parsed, hash: flow_hash, identification, .. } = *params;
    let Some(template) = template else { return Ok(()) };
    let room = buffer.get_mut(places.link_len..places.inner_target).ok_or(DropReason::NoHeadRoom)?;
    let inner = Inner { len: parsed.ip_len(), tos: parsed.tos, flow_hash, identification };
    template.write(room, &inner).map_err(|_| DropReason::TooBig)?;
    let outer = buffer.get_mut(places.link_len..places.end()).ok_or(DropReason::NoHeadRoom)?;
    if template.complete(outer, params.redirected) { Ok(()) } else { Err(DropReason::Malformed) }
}

/// Returns the next hop that leads back to the router that sent the frame.
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
