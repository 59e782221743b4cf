//! Complete headers for frames to a backend, which are prepared once and then written with wide
//! stores.
//!
//! [`Prepared`] contains the link header and the outer headers of a [`Template`]. Writing prepared
//! headers is faster than [`crate::rewrite_link`] and [`Template::write`], and produces the same
//! bytes. A template with a source prefix, a UDP checksum or a destination in another cluster
//! cannot be prepared, so its headers are written by [`Template::write`].

use crate::LinkHeader;
use crate::checksum::Sum;
use crate::template::{Inner, LaidOut, Template};

/// The link header and outer headers for packets to one backend. All inner packets have the same IP
/// version. The value occupies two cache lines, of which IPv4 outer headers use only the first.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
pub struct Prepared<T> {
    /// The total length of the link header and the outer headers in bytes, or 0 if the headers are
    /// not prepared.
    len: u8,
    /// The length of the outer headers in bytes.
    overhead: u8,
    /// `true` if an outer IPv4 header needs an identification.
    identified: bool,
    /// A value that the caller stores in the same cache lines.
    pub beside: T,
    /// The length of the shortest inner packet that exceeds the MTU, in bytes, or 0 if the headers
    /// are not prepared.
    too_long: u32,
    /// The ones' complement sum of the prepared outer IPv4 header without its first byte. The words
    /// are little-endian, so that the packet path swaps no bytes of the sum (RFC 1071 §2(B)).
    sum: u32,
    bytes: [u8; ROOM],
}

impl<T> Prepared<T> {
    /// Creates a value without headers. [`Prepared::overhead`] then returns `None` for every
    /// packet.
    pub const fn none(beside: T) -> Self {
        Self { len: 0, overhead: 0, identified: false, beside, too_long: 0, sum: 0, bytes: [0; ROOM] }
    }

    /// Prepares `link` and the outer headers of `template`. If `template` is `None`, packets get no
    /// outer headers. `mtu` is the maximum length of the outer packet in bytes.
    ///
    /// Returns [`Prepared::none`] if the template has a source prefix, a UDP checksum or a
    /// destination in another cluster.
    #[must_use]
    pub fn new(link: LinkHeader, template: Option<&Template>, mtu: u16, beside: T) -> Self {
        let headers = match template {
            None => LaidOut::Nothing,
            Some(template) => match template.laid_out() {
                Some(headers) => headers,
                None => return Self::none(beside),
            },
        };
        let (identified, sum, outer): (_, _, &[u8]) = match &headers {
            LaidOut::Nothing => (false, Sum::new(), &[]),
            LaidOut::V4 { bytes, sum, dont_fragment } => (!dont_fragment, *sum, bytes),
            LaidOut::V6 { bytes } => (false, Sum::new(), bytes),
        };
        let outer = outer.get(..template.map_or(0, Template::len)).unwrap_or_default();
        let mut bytes = [0; ROOM];
        let front = link.dst.0.into_iter().chain(link.src.0).chain(link.ethertype.to_be_bytes());
        for (to, from) in bytes.iter_mut().zip(front.chain(outer.iter().copied())) {
            *to = from;
        }
        let lengths = [outer.len(), LINK + outer.len()].map(u8::try_from);
        let [Ok(overhead), Ok(len)] = lengths else { return Self::none(beside) };
        let too_long = u32::from(mtu.saturating_sub(overhead.into())) + 1;
        // Adding the complement of a word removes the word from the sum.
        let [hi, lo] = sum.add_word(!VERSION).fold().to_be_bytes();
        let sum = u16::from_le_bytes([hi, lo]).into();
        Self { len, overhead, identified, beside, too_long, sum, bytes }
    }

    /// Returns the length of the outer headers in bytes. Returns `None` if an inner packet of
    /// `inner_len` bytes is too long.
    #[inline(always)]
    #[must_use]
    pub fn overhead(&self, inner_len: u16) -> Option<usize> {
        (u32::from(inner_len) < self.too_long).then_some(usize::from(self.overhead))
    }

    /// Returns `true` if the outer header needs [`Inner::identification`].
    #[inline(always)]
    #[must_use]
    pub const fn is_identified(&self) -> bool {
        self.identified
    }

    /// Writes all headers of an untagged frame at the start of `buffer`, up to the inner packet.
    /// Returns `false` and leaves `buffer` unchanged if it is too short.
    #[inline(always)]
    #[must_use]
    pub fn write(&self, buffer: &mut [u8], inner: &Inner) -> bool {
        let bytes = &self.bytes;
        // This branch handles GRE over IPv4, the most common case, without a jump table.
        if self.len == 38 {
            let out = copy::<38>(bytes, buffer);
            return out.and_then(|out| self.fill_v4(out.get_mut(LINK..)?, inner)).is_some();
        }
        match self.len {
            34 => copy::<34>(bytes, buffer).and_then(|out| self.fill_v4(out.get_mut(LINK..)?, inner)),
            46 => copy::<46>(bytes, buffer).and_then(|out| self.fill_v4(out.get_mut(LINK..)?, inner)),
            54 => copy::<54>(bytes, buffer).and_then(|out| self.fill_v6(out.get_mut(LINK..)?, inner)),
            58 => copy::<58>(bytes, buffer).and_then(|out| self.fill_v6(out.get_mut(LINK..)?, inner)),
            66 => copy::<66>(bytes, buffer).and_then(|out| self.fill_v6(out.get_mut(LINK..)?, inner)),
            14 => copy::<14>(bytes, buffer).map(|_| ()),
            _ => None,
        }
        .is_some()
    }

    /// Writes all headers of a frame with VLAN tags, and keeps the tags. The frame starts at `from`
    /// with a link header of `link_len` bytes.
    ///
    /// Returns `false` if `buffer` is too short or if `link_len` is not 18 or 22. The frame may
    /// then be partly overwritten.
    #[inline(never)]
    #[must_use]
    pub fn write_tagged(&self, buffer: &mut [u8], from: usize, link_len: u16, inner: &Inner) -> bool {
        match link_len {
            18 => self.write_behind::<4>(buffer, from, inner).is_some(),
            22 => self.write_behind::<8>(buffer, from, inner).is_some(),
            _ => false,
        }
    }

    /// Writes the headers after `TAGS` bytes of VLAN tags.
    #[inline(always)]
    fn write_behind<const TAGS: usize>(&self, buffer: &mut [u8], from: usize, inner: &Inner) -> Option<()> {
        let tags: [u8; TAGS] = *buffer.get(from.checked_add(ADDRESSES)?..)?.first_chunk()?;
        copy::<ADDRESSES>(&self.bytes, buffer)?;
        let behind = buffer.get_mut(ADDRESSES..)?;
        *behind.first_chunk_mut()? = tags;
        let (bytes, behind) = (self.bytes.get(ADDRESSES..)?, behind.get_mut(TAGS..)?);
        // This branch avoids the jump table, as in [`Prepared::write`].
        if self.len == 38 {
            return self.fill_v4(copy::<26>(bytes, behind)?.get_mut(2..)?, inner);
        }
        match self.len {
            34 => self.fill_v4(copy::<22>(bytes, behind)?.get_mut(2..)?, inner),
            46 => self.fill_v4(copy::<34>(bytes, behind)?.get_mut(2..)?, inner),
            54 => self.fill_v6(copy::<42>(bytes, behind)?.get_mut(2..)?, inner),
            58 => self.fill_v6(copy::<46>(bytes, behind)?.get_mut(2..)?, inner),
            66 => self.fill_v6(copy::<54>(bytes, behind)?.get_mut(2..)?, inner),
            14 => copy::<2>(bytes, behind).map(|_| ()),
            _ => None,
        }
    }

    /// Sets the fields of outer IPv4 headers that depend on the inner packet. `outer` contains
    /// exactly the outer headers.
    #[inline(always)]
    #[expect(clippy::cast_possible_truncation, reason = "52 bytes at most")]
    fn fill_v4(&self, outer: &mut [u8], inner: &Inner) -> Option<()> {
        let overhead = outer.len();
        let (ip, behind) = outer.split_first_chunk_mut::<20>()?;
        // The limit `too_long` ensures that the total length fits into 16 bits.
        let total = inner.len.wrapping_add(overhead as u16);
        let [hi, lo] = total.to_be_bytes();
        let first = u32::from_le_bytes([0x45, inner.tos, hi, lo]);
        put(ip, 0, first.to_le_bytes())?;
        let mut sum = u64::from(first) + u64::from(self.sum);
        if self.identified {
            let id = inner.identification.to_be_bytes();
            put(ip, 4, id)?;
            sum += u64::from(u16::from_le_bytes(id));
        }
        put(ip, 10, (!folded(sum)).to_le_bytes())?;
        if behind.len() == GUE {
            fill_gue(behind, total.wrapping_sub(20), inner.flow_hash)?;
        }
        Some(())
    }

    /// Sets the fields of outer IPv6 headers that depend on the inner packet.
    #[inline(always)]
    #[expect(clippy::cast_possible_truncation, reason = "52 bytes at most")]
    fn fill_v6(&self, outer: &mut [u8], inner: &Inner) -> Option<()> {
        let overhead = outer.len();
        let (ip, behind) = outer.split_first_chunk_mut::<40>()?;
        let payload = inner.len.wrapping_add(overhead as u16 - 40);
        let [_, _, _, label, hi, lo, ..] = inner.flow_hash.to_be_bytes();
        put(ip, 0, [0x60 | inner.tos >> 4, inner.tos << 4 | label & 0x0f, hi, lo])?;
        put(ip, 4, payload.to_be_bytes())?;
        if behind.len() == GUE {
            fill_gue(behind, payload, inner.flow_hash)?;
        }
        Some(())
    }
}

/// Folds a sum below 2^33 - 2^16 to 16 bits.
#[inline(always)]
#[expect(clippy::cast_possible_truncation, reason = "the carries are added before each cast")]
const fn folded(sum: u64) -> u16 {
    let sum = (sum as u32).wrapping_add((sum >> 32) as u32);
    // Adding the rotated sum adds both halves, with the carry of the lower addition.
    (sum.wrapping_add(sum.rotate_left(16)) >> 16) as u16
}

/// Writes `N` bytes with one store, because the compiler would generate separate stores for bytes
/// that are assigned one by one.
#[inline(always)]
fn put<const N: usize>(header: &mut [u8], at: usize, bytes: [u8; N]) -> Option<()> {
    *header.get_mut(at..)?.first_chunk_mut()? = bytes;
    Some(())
}

/// Copies the first `N` bytes with stores of fixed size.
#[inline(always)]
fn copy<'a, const N: usize>(from: &[u8], to: &'a mut [u8]) -> Option<&'a mut [u8; N]> {
    let to = to.first_chunk_mut::<N>()?;
    *to = *from.first_chunk::<N>()?;
    Some(to)
}

/// Writes the source port and the length into the UDP header of a GUE packet.
#[inline(always)]
fn fill_gue(udp: &mut [u8], len: u16, flow_hash: u64) -> Option<()> {
    let [.., hi, lo] = flow_hash.to_be_bytes();
    put(udp, 0, [0xc0 | hi & 0x3f, lo])?;
    put(udp, 4, len.to_be_bytes())
}

/// The length of a link header without tags, in bytes.
const LINK: usize = 14;
/// The first word of an IPv4 header without options, with TOS 0.
const VERSION: u16 = 0x4500;
/// The length of both MAC addresses, after which the tags follow.
const ADDRESSES: usize = 12;
/// The length of the UDP and GUE headers together, in bytes.
const GUE: usize = 12;
/// The space for headers in two cache lines, if the caller's value is one byte long. The longest
/// headers, Ethernet and GUE over IPv6, need 66 bytes.
const ROOM: usize = 108;

#[cfg(test)]
mod tests;
