//! Writing a decided packet: TTL, link header, outer headers, in place.
//!
//! In: a packet parsed and given a slot. Out: the frame to send, from the first byte of its buffer on.
//! Invariant: the inner packet's bytes change in its TTL (and that checksum) alone; on an error the frame is garbage and
//! only good for the pool.

use packet::{
    Family, Inner, LinkHeader, Mac, Parsed, Tags, Template, decrement_ttl, rewrite_link, write_link,
};

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

/// The ends of a frame's way on its link, and its interface.
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
            // A backend on the same link, as L2 forwarding has it, is not behind the router.
            NextHopMode::Resolve | NextHopMode::Reflect { .. } => {
                let hop = params.slot.next_hop.as_ref().ok_or(DropReason::NoNextHop)?;
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

/// Where the inner packet is in the buffer, and where it goes: behind `link_len` bytes of link header and the outer headers.
struct Places {
    link_len: usize,
    inner_start: usize,
    inner_len: usize,
    inner_target: usize,
}

impl Places {
    #[inline(always)]
    fn of(packet: &Packet<'_>, params: &RewriteParams<'_>, link_len: usize) -> Result<Self, DropReason> {
        let places = Self {
            link_len,
            inner_start: packet.start() + usize::from(params.parsed.l3),
            inner_len: params.parsed.ip_len().into(),
            inner_target: params.slot.encap_overhead() + link_len,
        };
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

/// Rewrites `packet` for its slot.
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
    // The link header already stands in front, below both places of the inner packet.
    let fit = places.move_inner(buffer);
    wrap(buffer, params, template, &places)?;
    packet.set_bounds(0, places.end());
    packet.set_interface(hop.interface);
    Ok(Written { fit, link_len: parsed.l3 })
}

/// The same with other tags. Where their number is another, the inner packet moves: a frame starts at the front.
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
    // Before the link header, which may reach into where the inner packet was; the old one is not needed any more.
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

/// The interface that frames for a slot leave by; `None`: the one that they came by, or none.
pub(crate) fn leaves_by(mode: &NextHopMode, slot: &Slot) -> Option<InterfaceId> {
    match mode {
        NextHopMode::Reflect { .. } if slot.encap_overhead() > 0 => None,
        _ => slot.next_hop.as_ref().map(|hop| hop.interface),
    }
}

/// Writes the slot's outer headers, if it has any, between link header and inner packet.
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
