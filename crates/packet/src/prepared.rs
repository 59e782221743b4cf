//! All that a backend's frames begin with, link header and outer headers, laid out once and written by wide stores.
//!
//! In: a link header without tags, a [`Template`], the way's MTU. Out: the bytes in front of an inner packet.
//! Not here: headers that need more of a packet than its length, TOS and hash (a source prefix, a UDP checksum, another cluster's
//! destination): [`Template::write`] writes all.
//! Invariant: what is written are the bytes of [`crate::rewrite_link`] and [`Template::write`] (`prepared/tests.rs`).
//! Source: as of [`Template`].

use crate::LinkHeader;
use crate::checksum::Sum;
use crate::template::{Inner, LaidOut, Template};

/// The headers of one backend for one inner family: two cache lines, of which outer headers over IPv4 touch the first.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
pub struct Prepared<T> {
    /// Bytes of link header and outer headers; 0: not laid out.
    len: u8,
    /// Whether an outer IPv4 header gets an identification.
    identified: bool,
    /// Bytes of the largest inner packet that fits.
    most: u16,
    /// Of the outer IPv4 header as it is laid out.
    sum: Sum,
    /// What the caller keeps beside.
    pub beside: T,
    bytes: [u8; ROOM],
}

impl<T> Prepared<T> {
    /// Of nothing: it fits no packet.
    pub const fn none(beside: T) -> Self {
        Self { len: 0, identified: false, most: 0, sum: Sum::new(), beside, bytes: [0; ROOM] }
    }

    /// Of `link` and, unless packets leave as they are, `template`. A template that has to see more of its packets gives
    /// [`Prepared::none`]. `mtu` is that of the way, for the outer packet.
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
        let (overhead, len) = (u16::try_from(outer.len()).unwrap_or(u16::MAX), LINK + outer.len());
        let len = u8::try_from(len).unwrap_or(0);
        Self { len, identified, most: mtu.saturating_sub(overhead), sum, beside, bytes }
    }

    /// Bytes that outer headers add in front of an inner packet, if one of `inner_len` bytes fits.
    #[inline(always)]
    #[must_use]
    pub fn overhead(&self, inner_len: u16) -> Option<usize> {
        let overhead = usize::from(self.len).checked_sub(LINK)?;
        (inner_len <= self.most).then_some(overhead)
    }

    /// Writes all headers of an untagged frame at the start of `buffer`, up to the inner packet. `false`, with `buffer`
    /// untouched: it is too short.
    #[inline(always)]
    #[must_use]
    pub fn write(&self, buffer: &mut [u8], inner: &Inner) -> bool {
        let bytes = &self.bytes;
        // GRE over IPv4 without the jump of a table.
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

    /// The same for a frame that starts at `from` with a link header of `link_len` bytes, whose tags it keeps. `false`: `buffer`
    /// is too short, or `link_len` is none of a tagged frame; the frame is garbage then.
    #[inline(never)]
    #[must_use]
    pub fn write_tagged(&self, buffer: &mut [u8], from: usize, link_len: u16, inner: &Inner) -> bool {
        match link_len {
            18 => self.write_behind::<4>(buffer, from, inner).is_some(),
            22 => self.write_behind::<8>(buffer, from, inner).is_some(),
            _ => false,
        }
    }

    /// With `TAGS` bytes of tags.
    #[inline(always)]
    fn write_behind<const TAGS: usize>(&self, buffer: &mut [u8], from: usize, inner: &Inner) -> Option<()> {
        let tags: [u8; TAGS] = *buffer.get(from.checked_add(ADDRESSES)?..)?.first_chunk()?;
        copy::<ADDRESSES>(&self.bytes, buffer)?;
        let behind = buffer.get_mut(ADDRESSES..)?;
        *behind.first_chunk_mut()? = tags;
        let (bytes, behind) = (self.bytes.get(ADDRESSES..)?, behind.get_mut(TAGS..)?);
        // As in `write`.
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

    /// What a packet says, into outer headers over IPv4: as many bytes as those have.
    #[inline(always)]
    #[expect(clippy::cast_possible_truncation, reason = "52 bytes at most")]
    fn fill_v4(&self, outer: &mut [u8], inner: &Inner) -> Option<()> {
        let overhead = outer.len();
        let (ip, behind) = outer.split_first_chunk_mut::<20>()?;
        // `most` leaves room in 16 bits.
        let total = inner.len.wrapping_add(overhead as u16);
        let id = if self.identified { inner.identification } else { 0 };
        let sum = self.sum.add_word(u16::from(inner.tos)).add_word(total).add_word(id);
        let first = u32::from_be_bytes([0x45, inner.tos, 0, 0]) | u32::from(total);
        put(ip, 0, first.to_be_bytes())?;
        put(ip, 4, id.to_be_bytes())?;
        put(ip, 10, sum.finish_short().to_be_bytes())?;
        if behind.len() == GUE {
            fill_gue(behind, total.wrapping_sub(20), inner.flow_hash)?;
        }
        Some(())
    }

    /// The same over IPv6.
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

/// Whole words: bytes that are assigned one by one are stored one by one.
#[inline(always)]
fn put<const N: usize>(header: &mut [u8], at: usize, bytes: [u8; N]) -> Option<()> {
    *header.get_mut(at..)?.first_chunk_mut()? = bytes;
    Some(())
}

/// The first `N` bytes, by stores of fixed size.
#[inline(always)]
fn copy<'a, const N: usize>(from: &[u8], to: &'a mut [u8]) -> Option<&'a mut [u8; N]> {
    let to = to.first_chunk_mut::<N>()?;
    *to = *from.first_chunk::<N>()?;
    Some(to)
}

/// Source port and length of GUE's UDP header.
#[inline(always)]
fn fill_gue(udp: &mut [u8], len: u16, flow_hash: u64) -> Option<()> {
    let [.., hi, lo] = flow_hash.to_be_bytes();
    put(udp, 0, [0xc0 | hi & 0x3f, lo])?;
    put(udp, 4, len.to_be_bytes())
}

/// Bytes of a link header without tags.
const LINK: usize = 14;
/// Of it, the addresses: tags follow.
const ADDRESSES: usize = 12;
/// Of UDP and GUE.
const GUE: usize = 12;
/// The longest are GUE over IPv6: 66 bytes. What is left of two cache lines beside a byte of the caller's.
const ROOM: usize = 108;

#[cfg(test)]
mod tests;
