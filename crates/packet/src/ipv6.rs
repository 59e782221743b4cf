//! A checked view of an IPv6 packet and an iterator over its extension headers (RFC 8200, RFC
//! 4302).

use core::net::Ipv6Addr;

use crate::fragment::Fragment;
use crate::{Malformed, protocol};

/// A borrowed IPv6 packet. [`Ipv6::parse`] checks every length, so the accessors cannot panic.
#[derive(Clone, Copy, Debug)]
pub struct Ipv6<'a> {
    header: &'a [u8; 40],
    payload: &'a [u8],
}

/// One extension header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extension<'a> {
    /// The type of the header: hop-by-hop options, routing, fragment, AH or destination options.
    pub kind: u8,
    /// The protocol number of the header that follows.
    pub next: u8,
    /// The whole header, including its first two bytes.
    pub bytes: &'a [u8],
}

/// The upper layer of a packet, after its extension headers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Upper<'a> {
    /// The protocol number of the upper layer. For a later fragment, this is the next-header value
    /// of the fragment header.
    pub protocol: u8,
    /// The length of all extension headers in bytes.
    pub offset: u16,
    /// The fragment information of the packet.
    pub fragment: Fragment,
    /// The bytes of the upper layer.
    pub payload: &'a [u8],
}

impl<'a> Ipv6<'a> {
    /// Parses the packet at the start of `bytes`. Bytes after its payload length are ignored.
    /// Jumbograms (RFC 2675) are not supported: a payload length of 0 means that there is no
    /// payload.
    ///
    /// # Errors
    /// Returns [`Malformed`] if the packet is too short, its version is not 6, or its payload
    /// length exceeds `bytes`.
    #[inline]
    pub fn parse(bytes: &'a [u8]) -> Result<Self, Malformed> {
        let (header, rest) = bytes.split_first_chunk::<40>().ok_or(Malformed::Truncated)?;
        if header[0] >> 4 != 6 {
            return Err(Malformed::Version);
        }
        let len = usize::from(u16::from_be_bytes([header[4], header[5]]));
        let payload = rest.get(..len).ok_or(Malformed::Truncated)?;
        Ok(Self { header, payload })
    }

    /// Returns the traffic class, which contains DSCP and ECN.
    #[inline]
    #[must_use]
    pub const fn traffic_class(&self) -> u8 {
        self.header[0] << 4 | self.header[1] >> 4
    }

    /// Returns the number of bytes after the fixed header of 40 bytes, including extension headers.
    #[inline]
    #[must_use]
    pub const fn payload_len(&self) -> u16 {
        u16::from_be_bytes([self.header[4], self.header[5]])
    }

    /// Returns the next-header value of the fixed header. The value identifies an extension header
    /// or the upper-layer protocol.
    #[inline]
    #[must_use]
    pub const fn next_header(&self) -> u8 {
        self.header[6]
    }

    /// Returns the hop limit.
    #[inline]
    #[must_use]
    pub const fn hop_limit(&self) -> u8 {
        self.header[7]
    }

    /// Returns the source address.
    #[inline]
    #[must_use]
    pub fn source(&self) -> Ipv6Addr {
        let source = self.header.last_chunk::<32>().and_then(|both| both.first_chunk::<16>());
        Ipv6Addr::from(*source.unwrap_or(&[0; 16]))
    }

    /// Returns the destination address.
    #[inline]
    #[must_use]
    pub fn destination(&self) -> Ipv6Addr {
        Ipv6Addr::from(*self.header.last_chunk::<16>().unwrap_or(&[0; 16]))
    }

    /// Returns the bytes after the fixed header of 40 bytes, including extension headers.
    #[inline]
    #[must_use]
    pub const fn payload(&self) -> &'a [u8] {
        self.payload
    }

    /// Returns an iterator over the extension headers, in order. The iterator ends after the first
    /// error. In a later fragment, the iterator ends after the fragment header.
    #[inline]
    #[must_use]
    pub const fn extensions(&self) -> Extensions<'a> {
        Extensions { next: self.next_header(), rest: self.payload, seen: 0, fragment: None }
    }

    /// Skips the extension headers and returns the upper layer.
    ///
    /// # Errors
    /// Returns [`Malformed`] in the same cases as [`Extensions`].
    #[inline]
    pub fn upper(&self) -> Result<Upper<'a>, Malformed> {
        match self.next_header() {
            protocol::TCP | protocol::UDP => Ok(Upper {
                protocol: self.next_header(),
                offset: 0,
                fragment: Fragment::None,
                payload: self.payload,
            }),
            _ => self.upper_behind_extensions(),
        }
    }

    /// Returns the offset of the first byte after the fragment header, in bytes from the start of
    /// the packet. Returns `None` if there is no fragment header.
    pub(crate) fn behind_fragment_header(&self) -> Option<u16> {
        let mut chain = self.extensions();
        chain.by_ref().map_while(Result::ok).find(|extension| extension.kind == protocol::FRAGMENT)?;
        u16::try_from(40 + self.payload.len() - chain.rest.len()).ok()
    }

    fn upper_behind_extensions(&self) -> Result<Upper<'a>, Malformed> {
        let mut chain = self.extensions();
        for extension in chain.by_ref() {
            extension?;
        }
        let offset = self.payload.len() - chain.rest.len();
        Ok(Upper {
            protocol: chain.next,
            offset: u16::try_from(offset).map_err(|_| Malformed::TooLong)?,
            fragment: chain.fragment.unwrap_or(Fragment::None),
            payload: chain.rest,
        })
    }
}

/// Skips the extension headers at the start of a quoted payload. If the quote ends inside an
/// extension header, returns this header as the upper layer.
///
/// # Errors
/// Returns [`Malformed::ExtensionChain`] or [`Malformed::HeaderLength`], but never
/// [`Malformed::Truncated`].
pub(crate) fn quoted_upper(next: u8, payload: &[u8]) -> Result<Upper<'_>, Malformed> {
    let mut chain = Extensions { next, rest: payload, seen: 0, fragment: None };
    loop {
        match chain.step() {
            Ok(Some(_)) => {}
            Ok(None) | Err(Malformed::Truncated) => break,
            Err(reason) => return Err(reason),
        }
    }
    Ok(Upper {
        protocol: chain.next,
        offset: u16::try_from(payload.len() - chain.rest.len()).map_err(|_| Malformed::TooLong)?,
        fragment: chain.fragment.unwrap_or(Fragment::None),
        payload: chain.rest,
    })
}

/// An iterator over extension headers. The iterator accepts at most 8 headers and one fragment
/// header. Hop-by-hop options must come first.
///
/// # References
/// RFC 8200 §4.1 defines the order of extension headers. RFC 8504 §5.3 permits a limit on their
/// number, which is 8 in this crate.
#[derive(Clone, Debug)]
pub struct Extensions<'a> {
    next: u8,
    rest: &'a [u8],
    seen: u8,
    fragment: Option<Fragment>,
}

impl<'a> Extensions<'a> {
    fn step(&mut self) -> Result<Option<Extension<'a>>, Malformed> {
        let kind = self.next;
        let (next, len) = match kind {
            _ if matches!(self.fragment, Some(Fragment::Later { .. })) => return Ok(None),
            protocol::HOP_BY_HOP if self.seen > 0 => return Err(Malformed::ExtensionChain),
            protocol::HOP_BY_HOP | protocol::ROUTING | protocol::DESTINATION_OPTIONS => {
                let &[next, units] = self.rest.first_chunk().ok_or(Malformed::Truncated)?;
                (next, (u16::from(units) + 1) * 8)
            }
            protocol::AH => authentication(self.rest)?,
            protocol::FRAGMENT => {
                let (next, fragment) = fragment_header(self.rest)?;
                if self.fragment.replace(fragment).is_some() {
                    return Err(Malformed::ExtensionChain);
                }
                (next, 8)
            }
            _ => return Ok(None),
        };
        if self.seen == MAX_EXTENSIONS {
            return Err(Malformed::ExtensionChain);
        }
        let (bytes, rest) = self.rest.split_at_checked(usize::from(len)).ok_or(Malformed::Truncated)?;
        (self.next, self.rest, self.seen) = (next, rest, self.seen + 1);
        Ok(Some(Extension { kind, next, bytes }))
    }
}

impl<'a> Iterator for Extensions<'a> {
    type Item = Result<Extension<'a>, Malformed>;

    fn next(&mut self) -> Option<Self::Item> {
        let item = self.step().transpose();
        if let Some(Err(_)) = item {
            // Ends the iteration, so that the next call does not return the same error again.
            self.next = NO_NEXT_HEADER;
        }
        item
    }
}

impl Upper<'_> {
    /// Skips the authentication header at the start of an IPv4 payload. A later fragment does not
    /// contain that header.
    #[cold]
    pub(crate) fn behind_authentication(self) -> Result<Self, Malformed> {
        if matches!(self.fragment, Fragment::Later { .. }) {
            return Ok(self);
        }
        let (protocol, offset) = authentication(self.payload)?;
        let payload = self.payload.get(usize::from(offset)..).ok_or(Malformed::Truncated)?;
        Ok(Self { protocol, offset, payload, ..self })
    }
}

/// Returns the next header and the length in bytes of the authentication header at the start of
/// `bytes`.
fn authentication(bytes: &[u8]) -> Result<(u8, u16), Malformed> {
    let &[next, words] = bytes.first_chunk().ok_or(Malformed::Truncated)?;
    //= RFC 4302 §2.2
    //# the length of AH in 32-bit words (4-byte units), minus "2"
    if words == 0 {
        return Err(Malformed::HeaderLength); // The authentication header has at least 12 bytes.
    }
    Ok((next, (u16::from(words) + 2) * 4))
}

fn fragment_header(bytes: &[u8]) -> Result<(u8, Fragment), Malformed> {
    let &[next, _, hi, lo, a, b, c, d] = bytes.first_chunk().ok_or(Malformed::Truncated)?;
    let word = u16::from_be_bytes([hi, lo]);
    //= RFC 6946 §4
    //# A host that receives an IPv6 packet that includes a Fragment Header with the "Fragment
    //# Offset" equal to 0 and the "M" flag equal to 0 MUST process that packet in isolation
    Ok((next, Fragment::from_parts(u32::from_be_bytes([a, b, c, d]), word & 0xfff8, word & 1 != 0)))
}

const MAX_EXTENSIONS: u8 = 8;
const NO_NEXT_HEADER: u8 = 59;
