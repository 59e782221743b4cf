//! The plain packet, read by fixed places: TCP or UDP right behind an IP header without options or extension headers, whole.
//!
//! In: a frame from Ethernet on, with two VLAN tags at most. Out: [`Plain`], in as few loads as its headers have words, so that a
//! caller can keep it in registers.
//! Not here: what is not plain, and what is wrong with it: [`crate::parse`] says that.
//! Invariant: what is plain [`crate::parse`] reads alike (`plain/tests.rs`).
//! Source: RFC 791, 8200, 9293, 768.

use crate::{Family, protocol};

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
    /// IPv4 TTL or IPv6 hop limit.
    pub ttl: u8,
    /// Source port in the upper half, destination port in the lower.
    pub ports: u32,
    /// The 16 bytes of the source, IPv4 as v4-mapped, as two little-endian words.
    pub source: [u64; 2],
    /// The destination, likewise.
    pub destination: [u64; 2],
}

impl Plain {
    /// Reads a frame. `None`: it is not plain, or so short that fixed places lie behind its end (an unpadded IPv4 packet below
    /// 40 bytes).
    ///
    /// # Cost
    /// Some 40 instructions: `cargo xtask bench packet/parse`.
    #[inline(always)]
    #[must_use]
    pub fn read(frame: &[u8]) -> Option<Self> {
        let kind = frame.get(12..14)?.first_chunk().map(|kind| u16::from_be_bytes(*kind))?;
        match kind {
            protocol::ETHERTYPE_IPV4 => Self::v4(frame.get(14..)?, 14),
            protocol::ETHERTYPE_IPV6 => Self::v6(frame.get(14..)?, 14),
            protocol::ETHERTYPE_VLAN | protocol::ETHERTYPE_QINQ => Self::tagged(frame),
            _ => None,
        }
    }

    #[inline(never)]
    fn tagged(frame: &[u8]) -> Option<Self> {
        let kind = |at: usize| frame.get(at..at + 2)?.first_chunk().map(|kind| u16::from_be_bytes(*kind));
        let (kind, l3) = match kind(16)? {
            protocol::ETHERTYPE_VLAN | protocol::ETHERTYPE_QINQ => (kind(20)?, 22),
            kind => (kind, 18),
        };
        let ip = frame.get(usize::from(l3)..)?;
        match kind {
            protocol::ETHERTYPE_IPV4 => Self::v4(ip, l3),
            protocol::ETHERTYPE_IPV6 => Self::v6(ip, l3),
            _ => None,
        }
    }

    #[inline(always)]
    #[expect(clippy::cast_possible_truncation, reason = "fields are parts of a word")]
    fn v4(ip: &[u8], l3: u16) -> Option<Self> {
        let [start, middle, end] = words(ip.first_chunk::<24>()?);
        let upper = ip.get(24..40)?.first_chunk::<16>()?;
        let ip_len = (start >> 32) as u16;
        let protocol = (middle >> 48) as u8;
        // Version 4, five words, no piece, and not longer than the frame.
        let plain = start >> 56 == 0x45 && start & 0x3fff == 0 && usize::from(ip_len) <= ip.len();
        let segment = ip_len.checked_sub(20).filter(|_| plain)?;
        Some(Self {
            family: Family::V4,
            l3,
            ip_len: within(l3, ip_len)?,
            protocol,
            tcp_flags: flags(protocol, segment, upper)?,
            tos: (start >> 48) as u8,
            ttl: (middle >> 56) as u8,
            ports: end as u32,
            source: mapped(middle as u32),
            destination: mapped((end >> 32) as u32),
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
            (protocol::UDP, _) => udp(segment, (upper >> 16) as u16)?,
            (_, Some(behind)) => flags(protocol, segment, behind)?,
            _ => return None,
        };
        Some(Self {
            family: Family::V6,
            l3,
            ip_len: within(l3, ip_len)?,
            protocol,
            tcp_flags,
            tos: (start >> 52) as u8,
            ttl: start as u8,
            ports: (upper >> 32) as u32,
            source: [s0.swap_bytes(), s1.swap_bytes()],
            destination: [d0.swap_bytes(), d1.swap_bytes()],
        })
    }

    /// Where the payload starts in `frame`, the frame that was read.
    #[must_use]
    pub fn payload(&self, frame: &[u8]) -> usize {
        let upper = usize::from(self.l3) + if self.family == Family::V4 { 20 } else { 40 };
        if self.protocol == protocol::UDP {
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

/// TCP flags; `upper` starts four bytes into the segment. `None`: a protocol or lengths that are not plain.
#[inline(always)]
fn flags(protocol: u8, segment: u16, upper: &[u8; 16]) -> Option<u8> {
    let [_, _, _, _, _, _, _, _, offset, flags, ..] = *upper;
    match protocol {
        protocol::TCP => {
            let header = u16::from(offset >> 4) * 4;
            (header >= 20 && header <= segment).then_some(flags)
        }
        protocol::UDP => udp(segment, u16::from_be_bytes([upper[0], upper[1]])),
        _ => None,
    }
}

#[inline(always)]
fn udp(segment: u16, len: u16) -> Option<u8> {
    (len >= 8 && len <= segment).then_some(0)
}

/// `ip_len`, if the packet ends where an offset of 16 bits can say it.
#[inline(always)]
fn within(l3: u16, ip_len: u16) -> Option<u16> {
    l3.checked_add(ip_len).map(|_| ip_len)
}

#[inline(always)]
fn mapped(address: u32) -> [u64; 2] {
    [0, (0x0000_ffff_0000_0000 | u64::from(address)).swap_bytes()]
}

#[inline]
fn bytes([first, second]: [u64; 2]) -> [u8; 16] {
    (u128::from(first) | u128::from(second) << 64).to_le_bytes()
}

#[cfg(test)]
mod tests;
