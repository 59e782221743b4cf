//! The plain packet, read by fixed places: TCP or UDP right behind an IP header without options or extension headers, whole.
//!
//! In: a frame from Ethernet on, with two VLAN tags at most. Out: [`Plain`], in as few loads as its headers have words, so that a
//! caller can keep it in registers.
//! Not here: what is not plain, and what is wrong with it: [`crate::parse`] says that.
//! Invariant: what is plain [`crate::parse`] reads alike (`plain/tests.rs`).
//! Source: RFC 791, 8200, 9293, 768.

use crate::{Family, Fragment, Parsed, protocol};

/// A plain packet. Offsets are in bytes from the start of the frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plain {
    /// IP version.
    pub family: Family,
    /// Where the IP header starts: 14, 18 or 22.
    pub l3: u16,
    /// Bytes of the IP packet, header included.
    pub ip_len: u16,
    /// TCP or UDP.
    pub protocol: u8,
    /// TCP flags from CWR (0x80) to FIN (0x01); 0 for UDP.
    pub tcp_flags: u8,
    /// IPv4 TOS or IPv6 traffic class.
    pub tos: u8,
    /// Source port in the upper half, destination port in the lower.
    pub ports: u32,
    /// The addresses of an IPv4 packet as numbers, source and destination; 0 for IPv6.
    pub v4: [u32; 2],
    /// The 16 bytes of the source, IPv4 as v4-mapped, as two little-endian words.
    pub source: [u64; 2],
    /// The destination, likewise.
    pub destination: [u64; 2],
}

impl Plain {
    /// Where the IP header of a frame without tags starts.
    pub const UNTAGGED: u16 = 14;

    /// Reads a frame. `None`: it is not plain, or so short that fixed places lie behind its end (an unpadded IPv4 packet below
    /// 40 bytes).
    ///
    /// # Cost
    /// Some 40 instructions: `cargo xtask bench packet/parse`.
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

    /// What an untagged frame says that it carries; `None`: tags, another protocol, or it is too short to say.
    #[inline(always)]
    #[must_use]
    pub fn untagged(frame: &[u8]) -> Option<Family> {
        family(kind(frame, 12)?)
    }

    /// What a frame with one tag or two says that it carries, and where that starts; `None`: no tags, more of them, another protocol,
    /// or it is too short to say.
    #[inline(always)]
    #[must_use]
    pub fn tagged(frame: &[u8]) -> Option<(Family, u16)> {
        if !is_tag(kind(frame, 12)?) {
            return None;
        }
        let second = kind(frame, 16)?;
        if is_tag(second) { Some((family(kind(frame, 20)?)?, 22)) } else { Some((family(second)?, 18)) }
    }

    /// As [`Plain::read`], of a frame whose header of IPv4 starts at `l3`: [`Plain::UNTAGGED`], or as [`Plain::tagged`] says.
    #[inline(always)]
    #[must_use]
    pub fn read_v4(frame: &[u8], l3: u16) -> Option<Self> {
        Self::v4(frame.get(usize::from(l3)..)?, l3)
    }

    /// The same of IPv6.
    #[inline(always)]
    #[must_use]
    pub fn read_v6(frame: &[u8], l3: u16) -> Option<Self> {
        Self::v6(frame.get(usize::from(l3)..)?, l3)
    }

    /// What [`crate::parse`] says of `frame`, the frame that was read; `None`: it is another one.
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

    /// The source alone, of a frame that was read as plain with this family and place of its IP header.
    #[inline(always)]
    #[must_use]
    pub fn source_in(frame: &[u8], family: Family, l3: u16) -> Option<[u64; 2]> {
        let ip = frame.get(usize::from(l3)..)?;
        match family {
            Family::V4 => Some(Self::mapped(u32::from_be_bytes(*ip.get(12..)?.first_chunk()?))),
            Family::V6 => {
                let (words, _) = ip.get(8..24)?.as_chunks::<8>();
                Some([0, 1].map(|n| words.get(n).map_or(0, |word| u64::from_le_bytes(*word))))
            }
        }
    }

    #[inline(always)]
    #[expect(clippy::cast_possible_truncation, reason = "fields are parts of a word")]
    fn v4(ip: &[u8], l3: u16) -> Option<Self> {
        let (header, upper) = ip.first_chunk::<40>()?.split_first_chunk::<24>()?;
        let [start, middle, end] = words(header);
        let upper = upper.first_chunk::<16>()?;
        let ip_len = (start >> 32) as u16;
        let protocol = (middle >> 48) as u8;
        // Version 4, five words, no piece, and not longer than the frame.
        let plain = start >> 56 == 0x45 && start & 0x3fff == 0 && usize::from(ip_len) <= ip.len();
        if !plain {
            return None;
        }
        let addresses = [middle as u32, (end >> 32) as u32];
        Some(Self {
            family: Family::V4,
            l3,
            ip_len: within(l3, ip_len)?,
            protocol,
            tcp_flags: flags(protocol, 20, ip_len, upper)?,
            tos: (start >> 48) as u8,
            ports: end as u32,
            v4: addresses,
            source: Self::mapped(addresses[0]),
            destination: Self::mapped(addresses[1]),
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
        // UDP may be shorter than what TCP is asked for.
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

    /// The 16 bytes of an IPv4 address as v4-mapped, as [`Plain::source`] has them.
    #[inline(always)]
    #[must_use]
    pub const fn mapped(address: u32) -> [u64; 2] {
        [0, (0x0000_ffff_0000_0000 | address as u64).swap_bytes()]
    }

    /// Where the payload starts in a frame that was read as plain with this family, place of its IP header and protocol.
    #[must_use]
    pub fn payload_in(frame: &[u8], family: Family, l3: u16, protocol: u8) -> usize {
        let upper = usize::from(l3) + if family == Family::V4 { 20 } else { 40 };
        if protocol == protocol::UDP {
            return upper + 8;
        }
        upper + frame.get(upper + 12).map_or(20, |byte| usize::from(byte >> 4) * 4)
    }

    /// Source address in memory order, v4-mapped for IPv4.
    #[inline]
    #[must_use]
    pub fn source_bytes(&self) -> [u8; 16] {
        bytes(self.source)
    }

    /// Destination address in memory order, v4-mapped for IPv4.
    #[inline]
    #[must_use]
    pub fn destination_bytes(&self) -> [u8; 16] {
        bytes(self.destination)
    }
}

/// The EtherType at a place of a frame.
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

/// The big-endian words of a header.
#[inline(always)]
fn words<const BYTES: usize, const WORDS: usize>(header: &[u8; BYTES]) -> [u64; WORDS] {
    let (chunks, _) = header.as_chunks::<8>();
    let mut words = [0; WORDS];
    for (word, chunk) in words.iter_mut().zip(chunks) {
        *word = u64::from_be_bytes(*chunk);
    }
    words
}

/// TCP flags; `upper` starts four bytes into the segment, which stands `header` bytes into the packet of `ip_len`. `None`: a protocol
/// or lengths that are not plain.
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

/// `ip_len`, if the packet ends where an offset of 16 bits can say it.
#[inline(always)]
fn within(l3: u16, ip_len: u16) -> Option<u16> {
    l3.checked_add(ip_len).map(|_| ip_len)
}

#[inline]
fn bytes([first, second]: [u64; 2]) -> [u8; 16] {
    (u128::from(first) | u128::from(second) << 64).to_le_bytes()
}

#[cfg(test)]
mod tests;
