//! Cuts an IP packet that is too long for a link into pieces.
//!
//! In: a packet, from its IP header on, and an MTU. Out: pieces, each a header of its own and a run of the payload.
//! Not here: whether it may be cut (DF is obeyed, the rest is `forwarder`'s policy), putting pieces together.
//! Invariant: the pieces' payloads, in order, are the packet's; each piece fits the MTU.
//! Source: RFC 791 §2.3, §3.1, §3.2; RFC 8200 §4.5.

use crate::checksum::checksum;
use crate::{Family, Fragment, Ipv4, Ipv6, Malformed, protocol};

/// Cuts an IPv4 packet into pieces of at most `mtu` bytes, headers included. `ip` may be a fragment already; what lies
/// behind its total length is ignored. The pieces carry the packet's identification. A packet that fits is its only
/// piece, unchanged.
///
/// # Errors
/// [`FragmentError`], before anything is cut.
pub fn pieces_v4(ip: &[u8], mtu: u16) -> Result<Pieces<'_>, FragmentError> {
    let packet = Ipv4::parse(ip)?;
    let mtu_bytes = usize::from(mtu);
    let (whole, _) = ip.split_at_checked(packet.header_len()).ok_or(Malformed::Truncated)?;
    let first = Header::new(whole.iter().copied());
    if usize::from(packet.total_len()) <= mtu_bytes {
        return Ok(Pieces::whole(Family::V4, first, packet.payload(), mtu_bytes));
    }
    if packet.dont_fragment() {
        return Err(FragmentError::DontFragment);
    }
    if !packet.checksum_ok() {
        return Err(FragmentError::Checksum); // new headers would hide it
    }
    if mtu_bytes < first.len + 8 {
        return Err(FragmentError::MtuTooSmall { mtu });
    }
    let (offset, more) = match packet.fragment() {
        Fragment::None => (0, false),
        Fragment::First { .. } => (0, true),
        Fragment::Later { offset, more, .. } => (usize::from(offset), more),
    };
    if offset + packet.payload().len() > usize::from(u16::MAX) {
        return Err(FragmentError::Offset);
    }
    let later = later_header(&first, packet.options());
    let rest = packet.payload();
    Ok(Pieces { family: Family::V4, cut: true, next: Some(first), later, rest, offset, more, mtu: mtu_bytes })
}

/// Cuts an IPv6 packet without extension headers into pieces of at most `mtu` bytes, with a fragment header behind the
/// IPv6 header of each. What lies behind the payload length is ignored. A packet that fits is its only piece, unchanged.
///
/// Only a packet's source may do this: it is for outer packets.
///
/// # Errors
/// [`FragmentError`], before anything is cut.
pub fn pieces_v6(ip: &[u8], mtu: u16, identification: u32) -> Result<Pieces<'_>, FragmentError> {
    let packet = Ipv6::parse(ip)?;
    let mtu_bytes = usize::from(mtu);
    let plain = ip.iter().copied().take(40);
    if 40 + packet.payload().len() <= mtu_bytes {
        return Ok(Pieces::whole(Family::V6, Header::new(plain), packet.payload(), mtu_bytes));
    }
    if let protocol::HOP_BY_HOP | protocol::ROUTING | protocol::DESTINATION_OPTIONS | protocol::FRAGMENT =
        packet.next_header()
    {
        return Err(FragmentError::Extensions);
    }
    let fragment = [packet.next_header(), 0, 0, 0].into_iter().chain(identification.to_be_bytes());
    let mut header = Header::new(plain.chain(fragment));
    header.bytes[6] = protocol::FRAGMENT;
    if mtu_bytes < header.len + 8 {
        return Err(FragmentError::MtuTooSmall { mtu });
    }
    let rest = packet.payload();
    let (next, later) = (Some(header), header);
    Ok(Pieces { family: Family::V6, cut: true, next, later, rest, offset: 0, more: false, mtu: mtu_bytes })
}

/// Lets an IPv4 packet be cut: DF cleared, with an identification, the checksum repaired. An IPv6 packet is left as it is.
///
/// Only a packet's source may do this: it is for outer packets.
pub fn allow_cutting(ip: &mut [u8], identification: u16) {
    let Some(header) = ip.first_chunk_mut::<20>().filter(|header| header[0] == 0x45) else { return };
    [header[4], header[5]] = identification.to_be_bytes();
    header[6] &= !0x40;
    [header[10], header[11]] = [0, 0];
    [header[10], header[11]] = checksum(&*header).to_be_bytes();
}

/// The pieces of a packet, in order; never none. Knows how many are left.
#[derive(Clone, Debug)]
pub struct Pieces<'a> {
    family: Family,
    /// Whether there is more than one piece.
    cut: bool,
    /// Header of the next piece, to be filled in; `None` when all are given out.
    next: Option<Header>,
    /// Header of the pieces behind that.
    later: Header,
    rest: &'a [u8],
    /// Offset in bytes of `rest` in the payload of the packet that the source sent.
    offset: usize,
    /// Whether that packet goes on behind this one.
    more: bool,
    /// At least 8 bytes above both headers where `cut`.
    mtu: usize,
}

impl<'a> Pieces<'a> {
    const fn whole(family: Family, header: Header, payload: &'a [u8], mtu: usize) -> Self {
        let (next, later) = (Some(header), header);
        Self { family, cut: false, next, later, rest: payload, offset: 0, more: false, mtu }
    }

    /// Bytes of payload of the next piece with this header.
    fn share(&self, header: &Header) -> usize {
        let room = self.mtu - header.len;
        //= RFC 791 §3.2
        //# NFB <- (MTU-IHL*4)/8;
        if self.rest.len() <= room { self.rest.len() } else { room & !7 }
    }
}

impl<'a> Iterator for Pieces<'a> {
    type Item = Piece<'a>;

    fn next(&mut self) -> Option<Piece<'a>> {
        let mut header = self.next.take()?;
        let (payload, rest) = self.rest.split_at_checked(self.share(&header))?;
        let more = self.more || !rest.is_empty();
        if self.cut {
            match self.family {
                Family::V4 => header.fill_v4(payload.len(), self.offset, more),
                Family::V6 => header.fill_v6(payload.len(), self.offset, more),
            }
        }
        self.offset += payload.len();
        self.rest = rest;
        self.next = (!rest.is_empty()).then_some(self.later);
        Some(Piece { header, payload })
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let len = match &self.next {
            None => 0,
            Some(header) => {
                let behind = self.rest.len() - self.share(header);
                let room = self.mtu.saturating_sub(self.later.len);
                match behind.checked_sub(room) {
                    _ if behind == 0 => 1,
                    None => 2,
                    Some(beyond) => 2 + beyond.div_ceil(room & !7),
                }
            }
        };
        (len, Some(len))
    }
}

impl ExactSizeIterator for Pieces<'_> {}

/// One piece: a header with lengths, offset and checksum filled in, and what it carries.
#[derive(Clone, Copy, Debug)]
pub struct Piece<'a> {
    header: Header,
    payload: &'a [u8],
}

impl<'a> Piece<'a> {
    /// The IP header with options, or with the fragment header: 20 to 60 bytes.
    #[must_use]
    pub fn header(&self) -> &[u8] {
        self.header.bytes.get(..self.header.len).unwrap_or_default()
    }

    /// The run of the packet's payload.
    #[must_use]
    pub const fn payload(&self) -> &'a [u8] {
        self.payload
    }

    /// Bytes of header and payload, at most the MTU.
    #[expect(clippy::len_without_is_empty, reason = "a piece has a header at least")]
    #[must_use]
    pub const fn len(&self) -> usize {
        self.header.len + self.payload.len()
    }

    /// Writes the piece to the start of `out` and says how long it is. `None`, with `out` untouched: no room.
    #[must_use]
    pub fn write(&self, out: &mut [u8]) -> Option<usize> {
        let out = out.get_mut(..self.len())?;
        let (header, payload) = out.split_at_mut_checked(self.header.len)?;
        header.copy_from_slice(self.header());
        payload.copy_from_slice(self.payload);
        Some(self.len())
    }
}

/// Why a packet was not cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FragmentError {
    /// Not a packet.
    #[error(transparent)]
    Malformed(#[from] Malformed),
    /// The IPv4 header checksum is wrong.
    #[error("ipv4 header checksum is wrong")]
    Checksum,
    /// DF is set.
    #[error("df is set")]
    DontFragment,
    /// The MTU does not hold the header and 8 bytes.
    #[error("mtu of {mtu} bytes does not hold the header and 8 bytes")]
    MtuTooSmall {
        /// The MTU in bytes.
        mtu: u16,
    },
    /// The packet is a fragment that reaches beyond 65,535 bytes.
    #[error("fragment reaches beyond 65535 bytes")]
    Offset,
    /// The IPv6 packet has extension headers.
    #[error("ipv6 packet with extension headers")]
    Extensions,
}

/// `len` is at most 60.
#[derive(Clone, Copy, Debug)]
struct Header {
    bytes: [u8; 60],
    len: usize,
}

impl Header {
    /// Of at most 60 bytes.
    fn new(from: impl Iterator<Item = u8>) -> Self {
        let mut header = Self { bytes: [0; 60], len: 0 };
        for (slot, byte) in header.bytes.iter_mut().zip(from) {
            *slot = byte;
            header.len += 1;
        }
        header
    }

    fn fill_v4(&mut self, payload: usize, offset: usize, more: bool) {
        // Both are below 65,536: `pieces_v4` has checked.
        let word = |len: usize| u16::try_from(len).unwrap_or(u16::MAX);
        let flags = u16::from(self.bytes[6] & 0x80) << 8 | u16::from(more) << 13;
        [self.bytes[2], self.bytes[3]] = word(self.len + payload).to_be_bytes();
        [self.bytes[6], self.bytes[7]] = (flags | word(offset / 8)).to_be_bytes();
        [self.bytes[10], self.bytes[11]] = [0, 0];
        let sum = checksum(&self.bytes); // zeros behind `len` add nothing
        [self.bytes[10], self.bytes[11]] = sum.to_be_bytes();
    }

    fn fill_v6(&mut self, payload: usize, offset: usize, more: bool) {
        let word = |len: usize| u16::try_from(len).unwrap_or(u16::MAX);
        [self.bytes[4], self.bytes[5]] = word(payload + 8).to_be_bytes();
        // The offset is a multiple of 8 and stands in the upper 13 bits.
        [self.bytes[42], self.bytes[43]] = (word(offset) | u16::from(more)).to_be_bytes();
    }
}

/// The header of a piece behind the first: the options with the copied flag alone, packed, filled up with zeros.
fn later_header(first: &Header, options: &[u8]) -> Header {
    let mut bytes = [0; 60];
    let mut copied = 0;
    let mut rest = options;
    while let Some((option, behind)) = split_option(rest) {
        rest = behind;
        //= RFC 791 §3.1
        //# The copied flag indicates that this option is copied into all fragments on fragmentation.
        if option.first().is_some_and(|kind| kind & 0x80 != 0) {
            bytes.iter_mut().skip(20 + copied).zip(option).for_each(|(slot, byte)| *slot = *byte);
            copied += option.len();
        }
    }
    bytes.iter_mut().zip(first.bytes.iter().take(20)).for_each(|(slot, byte)| *slot = *byte);
    let words = copied.div_ceil(4);
    bytes[0] = 0x45 + u8::try_from(words).unwrap_or(0); // at most 10: `copied` is a part of the options
    Header { bytes, len: 20 + words * 4 }
}

/// The option at the start of `options`; `None` at their end, and where one lies about its length.
fn split_option(options: &[u8]) -> Option<(&[u8], &[u8])> {
    match *options {
        [] | [END_OF_OPTIONS, ..] => None,
        [NO_OPERATION, ..] => options.split_at_checked(1),
        [_, len, ..] if len >= 2 => options.split_at_checked(usize::from(len)),
        _ => None,
    }
}

const END_OF_OPTIONS: u8 = 0;
const NO_OPERATION: u8 = 1;

#[cfg(test)]
mod tests;
