//! The fast parser for common packets: unfragmented TCP or UDP directly after an IP header without
//! options or extension headers.
//!
//! [`FastHeaders::read`] loads each word of the headers once, from a fixed offset, so that the
//! compiler can keep the result in registers. The slower [`crate::parse`] handles all other frames
//! and reports errors. If both parsers accept a frame, they return the same fields.
//!
//! The header formats are defined in RFC 791, 8200, 9293 and 768.

use crate::source::is_martian_v4;
use crate::{Family, Fragment, Parsed, is_unroutable, protocol};

/// The fields of a packet that qualifies for the fast path. Offsets are in bytes from the start of
/// the frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FastHeaders {
    /// The IP version.
    pub family: Family,
    /// The offset of the IP header: 14, 18 or 22.
    pub l3: u16,
    /// The length of the IP packet in bytes, including the header.
    pub ip_len: u16,
    /// The IP protocol number of TCP or UDP.
    pub protocol: u8,
    /// The TCP flags from CWR (0x80) to FIN (0x01), or 0 for UDP.
    pub tcp_flags: u8,
    /// The IPv4 TOS or the IPv6 traffic class.
    pub tos: u8,
    /// The source port in the upper half and the destination port in the lower half.
    pub ports: u32,
    /// The source and destination addresses of an IPv4 packet as 32-bit numbers, or 0 for IPv6.
    pub v4: [u32; 2],
    /// The 16 bytes of the source address as two little-endian words. An IPv4 source is stored as
    /// an IPv4-mapped address.
    pub source: [u64; 2],
    /// The 16 bytes of the destination address as two little-endian words. An IPv4 destination is
    /// stored as an IPv4-mapped address.
    pub destination: [u64; 2],
}

impl FastHeaders {
    /// The offset of the IP header in an untagged frame.
    pub const UNTAGGED: u16 = 14;

    /// Reads a frame. Returns `None` if the packet does not qualify for the fast path. Also returns
    /// `None` if the frame is too short for the loads at fixed offsets, for example an unpadded
    /// IPv4 packet of fewer than 40 bytes.
    ///
    /// # Cost
    /// About 40 instructions (`cargo xtask bench packet/parse`).
    #[inline(always)]
    #[must_use]
    pub fn read(frame: &[u8]) -> Option<Self> {
        match Self::untagged(frame) {
            Some(family) => Self::read_at(frame, family, Self::UNTAGGED),
            None => Self::tagged(frame).and_then(|(family, l3)| Self::read_at(frame, family, l3)),
        }
    }

    #[inline(always)]
    fn read_at(frame: &[u8], family: Family, l3: u16) -> Option<Self> {
        match family {
            Family::V4 => Self::read_v4(frame, l3),
            Family::V6 => Self::read_v6(frame, l3),
        }
    }

    /// Returns the IP version of an untagged frame from its Ethernet type. Returns `None` if the
    /// frame has VLAN tags, is not IP, or is too short.
    #[inline(always)]
    #[must_use]
    pub fn untagged(frame: &[u8]) -> Option<Family> {
        family(kind(frame, 12)?)
    }

    /// Returns the IP version of a frame with one or two VLAN tags, and the offset of its IP
    /// header. Returns `None` if the frame has no tags or more than two, is not IP, or is too
    /// short.
    #[inline(always)]
    #[must_use]
    pub fn tagged(frame: &[u8]) -> Option<(Family, u16)> {
        if !is_tag(kind(frame, 12)?) {
            return None;
        }
        let second = kind(frame, 16)?;
        if is_tag(second) { Some((family(kind(frame, 20)?)?, 22)) } else { Some((family(second)?, 18)) }
    }

    /// Reads a frame as [`FastHeaders::read`] does, if it has an IPv4 header at offset `l3`. The
    /// offset must be [`FastHeaders::UNTAGGED`] or the offset that [`FastHeaders::tagged`]
    /// returned.
    #[inline(always)]
    #[must_use]
    pub fn read_v4(frame: &[u8], l3: u16) -> Option<Self> {
        Self::v4(frame.get(usize::from(l3)..)?, l3)
    }

    /// Reads an untagged IPv4 frame as [`FastHeaders::read`] does.
    ///
    /// # Errors
    /// Returns `true` if the frame is an untagged IPv4 frame that does not qualify for the fast
    /// path, and `false` if the frame has another type or is short.
    #[inline(always)]
    pub fn read_untagged_v4(frame: &[u8]) -> Result<Self, bool> {
        // One length check covers the Ethernet type and the headers.
        let link = frame.first_chunk::<54>().and_then(|headers| headers.first_chunk::<14>()).ok_or(false)?;
        let [.., high, low] = *link;
        if u16::from_be_bytes([high, low]) != protocol::ETHERTYPE_IPV4 {
            return Err(false);
        }
        Self::read_v4(frame, Self::UNTAGGED).ok_or(true)
    }

    /// Returns `true` for an untagged frame with a TCP segment over IPv4 that begins a connection
    /// (SYN without ACK, FIN and RST). Returns `false` for packets with IP options.
    #[inline(always)]
    #[must_use]
    pub fn is_untagged_syn_v4(frame: &[u8]) -> bool {
        let Some(headers) = frame.first_chunk::<54>() else { return false };
        let part = |at: usize| headers.get(at..).and_then(|rest| rest.first_chunk::<4>()).copied();
        let [Some(link), Some(ip), Some(tcp)] = [12, 20, 44].map(part) else { return false };
        let [type_high, type_low, version, _] = link;
        let [fragment_high, fragment_low, _, protocol] = ip;
        let [_, _, _, flags] = tcp;
        // Most packets differ in the flags, which are compared first.
        flags & 0x17 == protocol::TCP_SYN
            && [type_high, type_low, version] == [8, 0, 0x45]
            && (fragment_high & 0x3f | fragment_low) == 0
            && protocol == protocol::TCP
    }

    /// Reads a frame as [`FastHeaders::read_v4`] does, but with an IPv6 header at offset `l3`.
    #[inline(always)]
    #[must_use]
    pub fn read_v6(frame: &[u8], l3: u16) -> Option<Self> {
        Self::v6(frame.get(usize::from(l3)..)?, l3)
    }

    /// Converts the fields to the result that [`crate::parse`] returns for the same frame. `frame`
    /// must be the frame that was read. Returns `None` if `frame` is too short.
    #[inline]
    #[must_use]
    pub fn parsed(&self, frame: &[u8]) -> Option<Parsed> {
        let Self { family, l3, ip_len, protocol, tcp_flags, tos, ports, .. } = *self;
        let ip = frame.get(usize::from(l3)..)?;
        let (header, ttl, dont_fragment) = match family {
            Family::V4 => (20, *ip.get(8)?, ip.get(6)? & 0x40 != 0),
            Family::V6 => (40, *ip.get(7)?, true),
        };
        let [s0, s1, d0, d1] = ports.to_be_bytes();
        let (src_port, dst_port) = (u16::from_be_bytes([s0, s1]), u16::from_be_bytes([d0, d1]));
        let (l4, end) = (l3 + header, l3 + ip_len);
        let fragment = Fragment::None;
        Some(Parsed {
            family,
            l3,
            l4,
            end,
            protocol,
            src_port,
            dst_port,
            tcp_flags,
            fragment,
            tos,
            ttl,
            dont_fragment,
        })
    }

    /// Returns the source address of an IPv4 frame as a 32-bit number, or `None` if no flow can
    /// have this source ([`crate::is_unroutable`]). [`FastHeaders::read`] must have accepted the
    /// frame with the same `l3`.
    #[inline(always)]
    #[must_use]
    pub fn flow_source_v4(frame: &[u8], l3: u16) -> Option<u32> {
        let source = u32::from_be_bytes(*frame.get(usize::from(l3)..)?.get(12..16)?.first_chunk()?);
        (!is_martian_v4(source)).then_some(source)
    }

    /// Does the same as [`FastHeaders::flow_source_v4`] for an IPv6 frame. The address has the
    /// format of [`FastHeaders::source`].
    #[inline]
    #[must_use]
    pub fn flow_source_v6(frame: &[u8], l3: u16) -> Option<[u64; 2]> {
        let (words, _) = frame.get(usize::from(l3)..)?.get(8..24)?.as_chunks::<8>();
        let source = [0, 1].map(|n| words.get(n).map_or(0, |word| u64::from_le_bytes(*word)));
        (!is_unroutable(Family::V6, source)).then_some(source)
    }

    #[inline(always)]
    #[expect(clippy::cast_possible_truncation, reason = "fields are parts of a word")]
    fn v4(ip: &[u8], l3: u16) -> Option<Self> {
        let (header, upper) = ip.first_chunk::<40>()?.split_first_chunk::<24>()?;
        let upper = upper.first_chunk::<16>()?;
        let start = u64::from_le_bytes(*header.first_chunk()?);
        let ip_len = ((start >> 16) as u16).swap_bytes();
        // The packet must have version 4 and a header of five words, must not be a fragment, and
        // must end inside the frame.
        if start & PLAIN_V4.0 != PLAIN_V4.1 || usize::from(ip_len) > ip.len() {
            return None;
        }
        let protocol = *header.get(9)?;
        let addresses = u64::from_be_bytes(*header.get(12..)?.first_chunk()?);
        let [source, destination] = [(addresses >> 32) as u32, addresses as u32];
        Some(Self {
            family: Family::V4,
            l3,
            ip_len: within(l3, ip_len)?,
            protocol,
            tcp_flags: flags(protocol, 20, ip_len, upper)?,
            tos: (start >> 8) as u8,
            ports: u32::from_be_bytes(*header.get(20..)?.first_chunk()?),
            v4: [source, destination],
            source: Self::mapped(source),
            destination: Self::mapped(destination),
        })
    }

    #[inline(always)]
    #[expect(clippy::cast_possible_truncation, reason = "fields are parts of a word")]
    fn v6(ip: &[u8], l3: u16) -> Option<Self> {
        let [start, s0, s1, d0, d1, upper] = words(ip.first_chunk::<48>()?);
        let (segment, protocol) = ((start >> 16) as u16, (start >> 8) as u8);
        let ip_len = segment.checked_add(40)?;
        if start >> 60 != 6 || usize::from(ip_len) > ip.len() {
            return None;
        }
        // Only TCP packets need all of these 16 bytes. UDP packets can be shorter.
        let behind = ip.get(44..60).and_then(|behind| behind.first_chunk::<16>());
        let tcp_flags = match (protocol, behind) {
            (protocol::UDP, _) => udp(40, ip_len, (upper >> 16) as u16)?,
            (_, Some(behind)) => flags(protocol, 40, ip_len, behind)?,
            _ => return None,
        };
        Some(Self {
            family: Family::V6,
            l3,
            ip_len: within(l3, ip_len)?,
            protocol,
            tcp_flags,
            tos: (start >> 52) as u8,
            ports: (upper >> 32) as u32,
            v4: [0; 2],
            source: [s0.swap_bytes(), s1.swap_bytes()],
            destination: [d0.swap_bytes(), d1.swap_bytes()],
        })
    }

    /// Returns an IPv4 address as an IPv4-mapped address in the format of [`FastHeaders::source`].
    #[inline(always)]
    #[must_use]
    pub const fn mapped(address: u32) -> [u64; 2] {
        [0, (0x0000_ffff_0000_0000 | address as u64).swap_bytes()]
    }

    /// Returns the offset of the payload in a frame. [`FastHeaders::read`] must have accepted the
    /// frame with the same `family`, `l3` and `protocol`.
    #[must_use]
    pub fn payload_in(frame: &[u8], family: Family, l3: u16, protocol: u8) -> usize {
        let upper = usize::from(l3) + if family == Family::V4 { 20 } else { 40 };
        if protocol == protocol::UDP {
            return upper + 8;
        }
        upper + frame.get(upper + 12).map_or(20, |byte| usize::from(byte >> 4) * 4)
    }

    /// Returns the source address in network byte order. IPv4 addresses are IPv4-mapped.
    #[inline]
    #[must_use]
    pub fn source_bytes(&self) -> [u8; 16] {
        bytes(self.source)
    }

    /// Returns the destination address in network byte order. IPv4 addresses are IPv4-mapped.
    #[inline]
    #[must_use]
    pub fn destination_bytes(&self) -> [u8; 16] {
        bytes(self.destination)
    }
}

#[inline(always)]
fn kind(frame: &[u8], at: usize) -> Option<u16> {
    frame.get(at..)?.first_chunk().map(|kind| u16::from_be_bytes(*kind))
}

#[inline(always)]
fn is_tag(kind: u16) -> bool {
    matches!(kind, protocol::ETHERTYPE_VLAN | protocol::ETHERTYPE_QINQ)
}

#[inline(always)]
fn family(kind: u16) -> Option<Family> {
    match kind {
        protocol::ETHERTYPE_IPV4 => Some(Family::V4),
        protocol::ETHERTYPE_IPV6 => Some(Family::V6),
        _ => None,
    }
}

/// Reads a header as big-endian 64-bit words.
#[inline(always)]
fn words<const BYTES: usize, const WORDS: usize>(header: &[u8; BYTES]) -> [u64; WORDS] {
    let (chunks, _) = header.as_chunks::<8>();
    let mut words = [0; WORDS];
    for (word, chunk) in words.iter_mut().zip(chunks) {
        *word = u64::from_be_bytes(*chunk);
    }
    words
}

/// Returns the TCP flags, or 0 for UDP. The slice `upper` starts at byte 4 of the TCP segment or
/// UDP datagram, and `header` is the length of the IP header. Returns `None` if the protocol or a
/// length does not qualify for the fast path.
#[inline(always)]
fn flags(protocol: u8, header: u32, ip_len: u16, upper: &[u8; 16]) -> Option<u8> {
    let [_, _, _, _, _, _, _, _, offset, flags, ..] = *upper;
    match protocol {
        protocol::TCP => {
            let own = u32::from(offset >> 4) * 4;
            (own >= 20 && header + own <= u32::from(ip_len)).then_some(flags)
        }
        protocol::UDP => udp(header, ip_len, u16::from_be_bytes([upper[0], upper[1]])),
        _ => None,
    }
}

#[inline(always)]
fn udp(header: u32, ip_len: u16, len: u16) -> Option<u8> {
    (len >= 8 && header + u32::from(len) <= u32::from(ip_len)).then_some(0)
}

/// Returns `ip_len` if the offset of the packet's end fits into 16 bits.
#[inline(always)]
fn within(l3: u16, ip_len: u16) -> Option<u16> {
    l3.checked_add(ip_len).map(|_| ip_len)
}

/// A mask and a value for the first eight bytes of an IPv4 header, in little-endian order. The mask
/// selects the bits that are fixed for packets on the fast path.
const PLAIN_V4: (u64, u64) =
    (u64::from_le_bytes([0xff, 0, 0, 0, 0, 0, 0x3f, 0xff]), u64::from_le_bytes([0x45, 0, 0, 0, 0, 0, 0, 0]));

#[inline]
fn bytes([first, second]: [u64; 2]) -> [u8; 16] {
    (u128::from(first) | u128::from(second) << 64).to_le_bytes()
}

#[cfg(test)]
mod tests;
