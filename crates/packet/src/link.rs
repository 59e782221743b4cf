//! Reads and writes link headers, which contain MAC addresses, VLAN tags and the Ethernet type.

use core::fmt;
use core::str::FromStr;

use crate::{Tag, Tags};

/// A MAC address. `Display` prints the address in the form `02:00:5e:10:00:01`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Mac(pub [u8; 6]);

impl Mac {
    /// Returns `true` if the group bit is set, that is, for multicast and broadcast addresses.
    #[inline]
    #[must_use]
    pub const fn is_group(self) -> bool {
        self.0[0] & 1 != 0
    }
}

impl fmt::Display for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

impl FromStr for Mac {
    type Err = MacError;

    /// Parses six groups of two hexadecimal digits that are separated by `:`.
    fn from_str(text: &str) -> Result<Self, MacError> {
        let mut groups = text.split(':');
        let mut mac = [0; 6];
        for byte in &mut mac {
            let group = groups.next().ok_or(MacError)?;
            // The length and the digits are checked because `from_str_radix` accepts a sign.
            if group.len() != 2 || !group.bytes().all(|digit| digit.is_ascii_hexdigit()) {
                return Err(MacError);
            }
            *byte = u8::from_str_radix(group, 16).map_err(|_| MacError)?;
        }
        groups.next().is_none().then_some(Self(mac)).ok_or(MacError)
    }
}

/// The error for text that is not a MAC address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a MAC address such as 02:00:5e:10:00:01")]
pub struct MacError;

/// The fields of a link header, without its VLAN tags.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkHeader {
    /// The destination MAC address.
    pub dst: Mac,
    /// The source MAC address.
    pub src: Mac,
    /// The Ethernet type after the VLAN tags.
    pub ethertype: u16,
}

/// Moves the link header of `link_len` bytes from offset `from` of `buf` to offset 0. The addresses
/// and the Ethernet type are set from `header`, and the VLAN tags are kept. The old and the new
/// position may overlap. All other bytes stay unchanged.
///
/// The move leaves a gap of `from` bytes between the link header and the inner IP header.
/// [`crate::Template::write`] then fills this gap with the outer headers.
///
/// Returns `false` and leaves `buf` unchanged if `link_len` is not 14, 18 or 22, or if `buf` is too
/// short.
#[inline]
#[must_use]
pub fn rewrite_link(buf: &mut [u8], from: usize, link_len: usize, header: LinkHeader) -> bool {
    let [hi, lo] = header.ethertype.to_be_bytes();
    match link_len {
        14 => rewrite(buf, from, header, |[_, _]| [hi, lo]),
        18 => rewrite(buf, from, header, |[a, b, c, d, _, _]| [a, b, c, d, hi, lo]),
        22 => rewrite(buf, from, header, |[a, b, c, d, e, f, g, h, _, _]| [a, b, c, d, e, f, g, h, hi, lo]),
        _ => false,
    }
}

#[inline]
fn rewrite<const N: usize>(
    buf: &mut [u8],
    from: usize,
    header: LinkHeader,
    retype: impl FnOnce([u8; N]) -> [u8; N],
) -> bool {
    let old = from.checked_add(12).and_then(|at| buf.get(at..)).and_then(|old| old.first_chunk::<N>());
    let Some(&old) = old else { return false };
    let Some((new_dst, rest)) = buf.split_first_chunk_mut() else { return false };
    let Some((new_src, rest)) = rest.split_first_chunk_mut() else { return false };
    let Some(tail) = rest.first_chunk_mut() else { return false };
    (*new_dst, *new_src, *tail) = (header.dst.0, header.src.0, retype(old));
    true
}

/// Writes a link header with `tags` so that it ends at offset `end` of `buf`, where the packet
/// starts. Returns the offset of the link header, which is `end - tags.link_len()`.
///
/// The new header may overwrite the old header, so read the old tags first with [`Tags::read`]. For
/// a frame that keeps its tags, [`rewrite_link`] is faster.
///
/// Returns `None` and leaves `buf` unchanged if there is not enough space in front of `end`, or if
/// `end` is outside `buf`.
#[must_use]
pub fn write_link(buf: &mut [u8], end: usize, header: LinkHeader, tags: &Tags) -> Option<usize> {
    let LinkHeader { dst, src, ethertype } = header;
    let start = end.checked_sub(tags.link_len())?;
    let tagged = tags.outer().into_iter().chain(tags.inner()).flat_map(Tag::bytes);
    let bytes = dst.0.into_iter().chain(src.0).chain(tagged).chain(ethertype.to_be_bytes());
    buf.get_mut(start..end)?.iter_mut().zip(bytes).for_each(|(slot, byte)| *slot = byte);
    Some(start)
}

#[cfg(test)]
mod tests;
