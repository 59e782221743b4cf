//! Fragmentation of IP packets that are longer than the MTU of a link.
//!
//! [`pieces_v4`] and [`pieces_v6`] return an iterator over fragments. Each fragment has its own
//! header and borrows a part of the payload. The fragments' payloads, joined in order, are
//! identical to the payload of the packet. A packet with DF set is not fragmented. The crate does
//! not reassemble fragments.
//!
//! The rules are in RFC 791 §2.3, §3.1 and §3.2, and in RFC 8200 §4.5.

use crate::checksum::checksum;
use crate::{Family, Fragment, Ipv4, Ipv6, Malformed, protocol};

/// Splits an IPv4 packet into fragments of at most `mtu` bytes, including headers. `ip` may already
/// be a fragment. Bytes after its total length are ignored. The fragments keep the identification
/// of the packet. A packet that fits the MTU is returned unchanged as the only item.
///
/// # Errors
/// Returns [`FragmentError`] if the packet cannot be fragmented.
pub fn pieces_v4(ip: &[u8], mtu: u16) -> Result<FragmentIter<'_>, FragmentError> {
    let packet = Ipv4::parse(ip)?;
    let mtu_bytes = usize::from(mtu);
    let (whole, _) = ip.split_at_checked(packet.header_len()).ok_or(Malformed::Truncated)?;
    let first = Header::new(whole.iter().copied());
    if usize::from(packet.total_len()) <= mtu_bytes {
        return Ok(FragmentIter::whole(Family::V4, first, packet.payload(), mtu_bytes));
    }
    if packet.dont_fragment() {
        return Err(FragmentError::DontFragment);
    }
    // A packet with a wrong checksum is not fragmented, because the valid checksums of its
    // fragments would hide the damage.
    if !packet.checksum_ok() {
        return Err(FragmentError::Checksum);
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
    Ok(FragmentIter {
        family: Family::V4,
        cut: true,
        next: Some(first),
        later,
        rest,
        offset,
        more,
        mtu: mtu_bytes,
    })
}

/// Splits an IPv6 packet without extension headers into fragments of at most `mtu` bytes. Each
/// fragment has a fragment header after the IPv6 header. Bytes after the payload length are
/// ignored. A packet that fits the MTU is returned unchanged as the only item.
///
/// Only the sender of an IPv6 packet may fragment it. Use this function only for packets that this
/// machine creates, such as the outer packets of a tunnel.
///
/// # Errors
/// Returns [`FragmentError`] if the packet cannot be fragmented.
pub fn pieces_v6(ip: &[u8], mtu: u16, identification: u32) -> Result<FragmentIter<'_>, FragmentError> {
    let packet = Ipv6::parse(ip)?;
    let mtu_bytes = usize::from(mtu);
    let plain = ip.iter().copied().take(40);
    if 40 + packet.payload().len() <= mtu_bytes {
        return Ok(FragmentIter::whole(Family::V6, Header::new(plain), packet.payload(), mtu_bytes));
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
    Ok(FragmentIter {
        family: Family::V6,
        cut: true,
        next,
        later,
        rest,
        offset: 0,
        more: false,
        mtu: mtu_bytes,
    })
}

/// Allows routers to fragment an IPv4 packet: clears DF, sets the identification, and updates the
/// checksum. Leaves an IPv6 packet unchanged.
///
/// Only the sender of a packet may clear DF. Use this function only for packets that this machine
/// creates, such as the outer packets of a tunnel.
pub fn allow_cutting(ip: &mut [u8], identification: u16) {
    let Some(header) = ip.first_chunk_mut::<20>().filter(|header| header[0] == 0x45) else { return };
    [header[4], header[5]] = identification.to_be_bytes();
    header[6] &= !0x40;
    [header[10], header[11]] = [0, 0];
    [header[10], header[11]] = checksum(&*header).to_be_bytes();
}

/// An iterator over the fragments of a packet, in order. The iterator yields at least one fragment,
/// and reports its exact length.
#[derive(Clone, Debug)]
pub struct FragmentIter<'a> {
    family: Family,
    /// `true` if there is more than one fragment.
    cut: bool,
    /// The header of the next fragment without lengths and offset, or `None` at the end.
    next: Option<Header>,
    /// The header of all fragments after the next fragment.
    later: Header,
    rest: &'a [u8],
    /// The offset of `rest` in the payload of the original datagram, in bytes.
    offset: usize,
    /// `true` if this packet is itself a fragment and is not the last fragment of its datagram.
    more: bool,
    /// The MTU in bytes. If `cut` is `true`, the MTU exceeds the length of each header by at least
    /// 8.
    mtu: usize,
}

impl<'a> FragmentIter<'a> {
    const fn whole(family: Family, header: Header, payload: &'a [u8], mtu: usize) -> Self {
        let (next, later) = (Some(header), header);
        Self { family, cut: false, next, later, rest: payload, offset: 0, more: false, mtu }
    }

    /// Returns the number of payload bytes in the next fragment with this header.
    fn share(&self, header: &Header) -> usize {
        let room = self.mtu - header.len;
        //= RFC 791 §3.2
        //# NFB <- (MTU-IHL*4)/8;
        if self.rest.len() <= room { self.rest.len() } else { room & !7 }
    }
}

impl<'a> Iterator for FragmentIter<'a> {
    type Item = FragmentParts<'a>;

    fn next(&mut self) -> Option<FragmentParts<'a>> {
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
        Some(FragmentParts { header, payload })
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

impl ExactSizeIterator for FragmentIter<'_> {}

/// One fragment, which consists of a complete header and a part of the payload.
#[derive(Clone, Copy, Debug)]
pub struct FragmentParts<'a> {
    header: Header,
    payload: &'a [u8],
}

impl<'a> FragmentParts<'a> {
    /// Returns the IP header with its options or its fragment header, 20 to 60 bytes.
    #[must_use]
    pub fn header(&self) -> &[u8] {
        self.header.bytes.get(..self.header.len).unwrap_or_default()
    }

    /// Returns the payload bytes of this fragment.
    #[must_use]
    pub const fn payload(&self) -> &'a [u8] {
        self.payload
    }

    /// Returns the length of header and payload in bytes, at most the MTU.
    #[expect(clippy::len_without_is_empty, reason = "a fragment always has a header")]
    #[must_use]
    pub const fn len(&self) -> usize {
        self.header.len + self.payload.len()
    }

    /// Writes the fragment to the start of `out` and returns its length in bytes. Returns `None`
    /// and leaves `out` unchanged if there is not enough room.
    #[must_use]
    pub fn write(&self, out: &mut [u8]) -> Option<usize> {
        let out = out.get_mut(..self.len())?;
        let (header, payload) = out.split_at_mut_checked(self.header.len)?;
        header.copy_from_slice(self.header());
        payload.copy_from_slice(self.payload);
        Some(self.len())
    }
}

/// The reason why a packet was not fragmented.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FragmentError {
    /// The bytes are not a valid packet.
    #[error(transparent)]
    Malformed(#[from] Malformed),
    /// The IPv4 header checksum is wrong.
    #[error("the IPv4 header checksum is wrong")]
    Checksum,
    /// The packet is too long for the MTU, and its DF flag is set.
    #[error("packet exceeds the MTU, but its DF flag forbids fragmentation")]
    DontFragment,
    /// The MTU is too small for the header and 8 bytes of payload.
    #[error("MTU of {mtu} bytes is too small for the header and 8 bytes of payload")]
    MtuTooSmall {
        /// The MTU that is too small, in bytes.
        mtu: u16,
    },
    /// The packet is a fragment that ends after byte 65,535 of its datagram.
    #[error("fragment ends after byte 65535 of its datagram")]
    Offset,
    /// The IPv6 packet has extension headers.
    #[error("cannot fragment an IPv6 packet that has extension headers")]
    Extensions,
}

/// A header of `len` bytes, at most 60.
#[derive(Clone, Copy, Debug)]
struct Header {
    bytes: [u8; 60],
    len: usize,
}

impl Header {
    /// Creates a header from the first 60 bytes of `from`.
    fn new(from: impl Iterator<Item = u8>) -> Self {
        let mut header = Self { bytes: [0; 60], len: 0 };
        for (slot, byte) in header.bytes.iter_mut().zip(from) {
            *slot = byte;
            header.len += 1;
        }
        header
    }

    fn fill_v4(&mut self, payload: usize, offset: usize, more: bool) {
        // Both values are below 65,536, because `pieces_v4` has checked them.
        let word = |len: usize| u16::try_from(len).unwrap_or(u16::MAX);
        let flags = u16::from(self.bytes[6] & 0x80) << 8 | u16::from(more) << 13;
        [self.bytes[2], self.bytes[3]] = word(self.len + payload).to_be_bytes();
        [self.bytes[6], self.bytes[7]] = (flags | word(offset / 8)).to_be_bytes();
        [self.bytes[10], self.bytes[11]] = [0, 0];
        let sum = checksum(&self.bytes); // The zeros after `len` do not change the sum.
        [self.bytes[10], self.bytes[11]] = sum.to_be_bytes();
    }

    fn fill_v6(&mut self, payload: usize, offset: usize, more: bool) {
        let word = |len: usize| u16::try_from(len).unwrap_or(u16::MAX);
        [self.bytes[4], self.bytes[5]] = word(payload + 8).to_be_bytes();
        // The offset is a multiple of 8, so its value is already in the upper 13 bits.
        [self.bytes[42], self.bytes[43]] = (word(offset) | u16::from(more)).to_be_bytes();
    }
}

/// Returns the header for all fragments after the first fragment. The header keeps only the options
/// that have the copied flag. The options are padded with zeros to a multiple of 4 bytes.
fn later_header(first: &Header, options: &[u8]) -> Header {
    let mut bytes = [0; 60];
    let mut copied = 0;
    let mut rest = options;
    while let Some((option, behind)) = split_option(rest) {
        rest = behind;
        //= RFC 791 §3.1
        //# The copied flag indicates that this option is copied into all fragments on
        //# fragmentation.
        if option.first().is_some_and(|kind| kind & 0x80 != 0) {
            bytes.iter_mut().skip(20 + copied).zip(option).for_each(|(slot, byte)| *slot = *byte);
            copied += option.len();
        }
    }
    bytes.iter_mut().zip(first.bytes.iter().take(20)).for_each(|(slot, byte)| *slot = *byte);
    let words = copied.div_ceil(4);
    // The options are at most 40 bytes long, so the number of words is at most 10.
    bytes[0] = 0x45 + u8::try_from(words).unwrap_or(0);
    Header { bytes, len: 20 + words * 4 }
}

/// Splits off the first option. Returns `None` at the end of the options, or if the length of the
/// option is invalid.
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
