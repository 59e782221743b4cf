//! The link header of the frame that leaves: MAC addresses, tags kept, Ethernet type of the outer packet.

use core::fmt;
use core::str::FromStr;

use crate::{Tag, Tags};

/// An Ethernet address. Displays as `02:00:5e:10:00:01`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Mac(pub [u8; 6]);

impl Mac {
    /// Whether the group bit is set: multicast or broadcast.
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

    /// Six groups of two hexadecimal digits with `:` between them.
    fn from_str(text: &str) -> Result<Self, MacError> {
        let mut groups = text.split(':');
        let mut mac = [0; 6];
        for byte in &mut mac {
            let group = groups.next().ok_or(MacError)?;
            // `from_str_radix` alone would take a sign.
            if group.len() != 2 || !group.bytes().all(|digit| digit.is_ascii_hexdigit()) {
                return Err(MacError);
            }
            *byte = u8::from_str_radix(group, 16).map_err(|_| MacError)?;
        }
        groups.next().is_none().then_some(Self(mac)).ok_or(MacError)
    }
}

/// The text is no Ethernet address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not six pairs of hexadecimal digits with ':' between them")]
pub struct MacError;

/// What a link header says beside its tags.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkHeader {
    /// Destination address.
    pub dst: Mac,
    /// Source address.
    pub src: Mac,
    /// The Ethernet type of what follows the tags.
    pub ethertype: u16,
}

/// Moves the link header of `link_len` bytes at offset `from` of `buf` to offset 0, with the addresses
/// and, behind the tags, the Ethernet type of `header`. The two places may overlap; bytes elsewhere stay as they are.
///
/// With head room of `from` bytes in front of the frame this leaves room for outer headers of the same size
/// between the link header and the inner IP header, so it comes before [`crate::Template::write`].
///
/// `false`, with `buf` untouched: `link_len` is not 14, 18 or 22, or `buf` is too short.
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

/// `N`: bytes behind the addresses, tags and Ethernet type.
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

/// Writes a link header with `tags`, whatever tags the frame had, so that it ends at offset `end` of `buf`, where the
/// packet starts. Gives the offset at which it starts: `end - tags.link_len()`.
///
/// For a frame that leaves with the tags it came with, [`rewrite_link`] does it in one move; here they are read first
/// ([`Tags::read`]) and then pushed, popped or replaced. The old header may lie where the new one goes.
///
/// `None`, with `buf` untouched: no room in front of `end`, or `end` lies outside.
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
