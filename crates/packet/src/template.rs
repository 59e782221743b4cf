//! Prepares the outer headers for packets to one backend. Writing the headers then requires only a
//! copy, a length field and a checksum update.
//!
//! A [`Template`] contains the bytes from the outer IP header up to the inner IP header, for GRE,
//! IP-in-IP and GUE. The link header is written by [`crate::rewrite_link`]. If [`Template::write`]
//! succeeds, it writes exactly [`Template::len`] bytes. If the method fails, it changes nothing.
//!
//! The formats are defined in RFC 768, 791, 8200, 6864, 6437, 2784, 1701, 2003, 2473, 4213 and
//! 6936, and in draft-ietf-intarea-gue-09.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::checksum::Sum;
use crate::encapsulation::{Encapsulation, Outer, encap_overhead};
use crate::source_prefix::SourcePrefix;
use crate::{Family, protocol};

/// The outer headers for packets to one backend. All inner packets have the same IP version. A
/// template contains at most 52 bytes of headers and uses no heap memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Template {
    kind: Encapsulation,
    inner: Family,
    len: u8,
    ip: Ip,
    shim: Shim,
    prefix: Option<SourcePrefix>,
    completion: Completion,
}

/// Fields that depend on the bytes of the inner packet, and are therefore set after
/// [`Template::write`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Completion {
    Nothing,
    /// The UDP checksum of GUE is computed.
    Checksum,
    /// The last `kept` bits of the outer destination are copied from the inner destination. The
    /// recursion control is incremented.
    Redirect {
        kept: u8,
    },
}

/// The outer headers as bytes. Fields that depend on the packet are zero.
pub(crate) enum LaidOut {
    Nothing,
    V4 { bytes: [u8; 32], sum: Sum, dont_fragment: bool },
    V6 { bytes: [u8; 52] },
}

/// The fields of an inner packet that are needed to write its outer headers.
#[derive(Clone, Copy, Debug)]
pub struct Inner {
    /// The length of the inner IP packet in bytes.
    pub len: u16,
    /// The TOS or traffic class of the inner packet.
    pub tos: u8,
    /// The flow hash of the inner packet. The flow hash determines the GUE source port, the IPv6
    /// flow label and, with a source prefix, the source address.
    pub flow_hash: u64,
    /// The identification of the outer packet, which is written only into IPv4 headers without DF.
    pub identification: u16,
}

impl Template {
    /// Creates the outer headers for packets of family `inner`. [`Encapsulation::L2`] has no outer
    /// headers and ignores `outer`. `dont_fragment` sets DF in an outer IPv4 header and has no
    /// effect on IPv6.
    #[must_use]
    pub fn new(kind: Encapsulation, outer: Outer, inner: Family, dont_fragment: bool) -> Self {
        let (payload, shim) = match kind {
            Encapsulation::Gre => (protocol::GRE, Shim::gre(inner, 0)),
            Encapsulation::Ipip => (inner.protocol(), Shim::None),
            Encapsulation::Gue { .. } => (protocol::UDP, Shim::gue(inner)),
            Encapsulation::L2 => (0, Shim::None),
        };
        let ip = match (kind, outer) {
            (Encapsulation::L2, _) => Ip::None,
            (_, Outer::V4 { source, destination }) => Ip::v4(source, destination, payload, dont_fragment),
            (_, Outer::V6 { source, destination }) => Ip::v6(source, destination, payload),
        };
        let completion = match kind {
            Encapsulation::Gue { udp_checksum: true } => Completion::Checksum,
            _ => Completion::Nothing,
        };
        Self { kind, inner, len: encap_overhead(&kind, outer.family()), ip, shim, prefix: None, completion }
    }

    /// Chooses the outer source address of each flow from the prefix `network/length`.
    ///
    /// Returns `None` if the template has no outer header of this family, if the length exceeds the
    /// number of bits in an address, or if `network` has bits set after the prefix.
    #[must_use]
    pub fn with_source(self, network: IpAddr, length: u8) -> Option<Self> {
        let fits = match self.ip {
            Ip::None => false,
            Ip::V4 { .. } => network.is_ipv4(),
            Ip::V6 { .. } => network.is_ipv6(),
        };
        let prefix = SourcePrefix::new(network, length).filter(|_| fits)?;
        Some(Self { prefix: Some(prefix), ..self })
    }

    /// Sets the recursion control field of GRE (RFC 1701), 0 to 7. Templates with other
    /// encapsulations stay unchanged. The value is 1 in a packet that is redirected to a peer.
    #[must_use]
    pub fn with_recursion(self, recursion: u8) -> Self {
        match self.shim {
            Shim::Gre(_) => Self { shim: Shim::gre(self.inner, recursion), ..self },
            Shim::None | Shim::Gue(_) => self,
        }
    }

    /// Converts this template into a template for packets that are redirected to another cluster.
    /// The last `kept` bits of the outer destination are copied from the inner destination. The
    /// value of the recursion control is the number of earlier redirects plus one.
    ///
    /// Returns `None` unless the encapsulation is GRE, both headers have the same family, and
    /// `kept` does not exceed the number of bits in an address.
    ///
    /// # References
    /// Eisenbud et al., *Maglev*, NSDI 2016, §4.2, describes how packets are redirected to the same
    /// service's VIP in another cluster.
    #[must_use]
    pub fn to_cluster(self, kept: u8) -> Option<Self> {
        let most = match (&self.ip, self.inner) {
            (Ip::V4 { .. }, Family::V4) => 32,
            (Ip::V6 { .. }, Family::V6) => 128,
            _ => return None,
        };
        let fits = matches!(self.shim, Shim::Gre(_)) && kept <= most;
        fits.then(|| Self { completion: Completion::Redirect { kept }, ..self.with_recursion(1) })
    }

    /// Returns the recursion control field that is written into GRE headers. The result is 0 for
    /// other encapsulations.
    #[inline]
    #[must_use]
    pub const fn recursion(&self) -> u8 {
        match self.shim {
            Shim::Gre(bytes) => bytes[0] & 0x07,
            Shim::None | Shim::Gue(_) => 0,
        }
    }

    /// Returns the number of trailing bits of the outer destination that are copied from the inner
    /// destination. The result is 0 unless the template is for another cluster.
    #[must_use]
    pub const fn kept(&self) -> u8 {
        match self.completion {
            Completion::Redirect { kept } => kept,
            Completion::Nothing | Completion::Checksum => 0,
        }
    }

    /// Returns the number of bytes written by [`Template::write`], which is 0 or 20 to 52.
    #[expect(clippy::len_without_is_empty, reason = "a template is not a collection; only L2 has length 0")]
    #[inline]
    #[must_use]
    pub const fn len(&self) -> usize {
        self.len as usize
    }

    /// Returns the encapsulation of this template.
    #[inline]
    #[must_use]
    pub const fn encapsulation(&self) -> Encapsulation {
        self.kind
    }

    /// Returns the Ethernet type of the outgoing frame. With L2, this is the type of the inner
    /// packet, otherwise the type of the outer packet.
    #[inline]
    #[must_use]
    pub const fn ethertype(&self) -> u16 {
        match self.ip {
            Ip::None => self.inner.ethertype(),
            Ip::V4 { .. } => protocol::ETHERTYPE_IPV4,
            Ip::V6 { .. } => protocol::ETHERTYPE_IPV6,
        }
    }

    /// Returns `true` if the outer header needs [`Inner::identification`], which is the case for
    /// IPv4 headers without DF.
    #[inline]
    #[must_use]
    pub const fn is_identified(&self) -> bool {
        matches!(self.ip, Ip::V4 { dont_fragment: false, .. })
    }

    /// Returns the headers as bytes. Returns `None` if the template has a source prefix, a UDP
    /// checksum or a destination in another cluster.
    pub(crate) fn laid_out(&self) -> Option<LaidOut> {
        if self.prefix.is_some() || self.completion != Completion::Nothing {
            return None;
        }
        Some(match &self.ip {
            Ip::None => LaidOut::Nothing,
            Ip::V4 { header, sum, dont_fragment } => {
                LaidOut::V4 { bytes: self.shim.behind(header), sum: *sum, dont_fragment: *dont_fragment }
            }
            Ip::V6 { header } => LaidOut::V6 { bytes: self.shim.behind(header) },
        })
    }

    /// Writes the headers for an inner packet to `out`. The UDP checksum of GUE stays 0 until
    /// [`Template::finish_checksum`] computes it.
    ///
    /// # Errors
    /// Returns [`WriteError`] and leaves `out` unchanged.
    ///
    /// # Cost
    /// One copy of fixed size and a sum of five words (`cargo xtask bench packet/template`).
    #[inline]
    pub fn write(&self, out: &mut [u8], inner: &Inner) -> Result<(), WriteError> {
        let Inner { len: inner_len, tos, flow_hash, identification } = *inner;
        if out.len() != self.len() {
            return Err(WriteError::Size { found: out.len(), expected: self.len });
        }
        let too_long = WriteError::TooLong { inner_len, encap_overhead: self.len };
        match &self.ip {
            Ip::None => Ok(()),
            Ip::V4 { header, sum, dont_fragment } => {
                let total = inner_len.checked_add(u16::from(self.len)).ok_or(too_long)?;
                let (ip, shim) = out.split_first_chunk_mut::<20>().ok_or(too_long)?;
                *ip = *header;
                let id = if *dont_fragment { 0 } else { identification };
                [ip[4], ip[5]] = id.to_be_bytes();
                fill_v4(ip, sum.add_word(id), self.prefix, total, inner);
                self.shim.write(shim, total - 20, flow_hash);
                Ok(())
            }
            Ip::V6 { header } => {
                let payload = inner_len.checked_add(u16::from(self.len) - 40).ok_or(too_long)?;
                let (ip, shim) = out.split_first_chunk_mut::<40>().ok_or(too_long)?;
                *ip = *header;
                fill_v6(ip, self.prefix, payload, tos, flow_hash);
                self.shim.write(shim, payload, flow_hash);
                Ok(())
            }
        }
    }

    /// Sets the fields that depend on the bytes of the inner packet. `packet` extends from the
    /// outer IP header to the end of the inner packet, and `redirected` is the number of earlier
    /// redirects. Returns `false` if `packet` was not written by this template.
    ///
    /// # Cost
    /// Most templates have no such fields, so the call costs nothing. GUE with a checksum costs one
    /// call to [`Template::finish_checksum`]. Packets to another cluster cost a few loads and
    /// stores.
    #[inline]
    #[must_use]
    pub fn complete(&self, packet: &mut [u8], redirected: u8) -> bool {
        match self.completion {
            Completion::Nothing => true,
            Completion::Checksum => self.finish_checksum(packet),
            Completion::Redirect { kept } => redirect(packet, kept, redirected).is_some(),
        }
    }

    /// Computes the UDP checksum of a GUE packet. `packet` extends from the outer IP header to the
    /// end of the inner packet. The packet stays unchanged unless the template has `udp_checksum`.
    /// Returns `false` if `packet` was not written by this template.
    ///
    /// # Cost
    /// One pass over the whole packet: about 90 ns for 1,500 bytes (`cargo xtask bench
    /// packet/template`).
    #[must_use]
    pub fn finish_checksum(&self, packet: &mut [u8]) -> bool {
        if self.kind != (Encapsulation::Gue { udp_checksum: true }) {
            return true;
        }
        let (sum, udp) = match &self.ip {
            Ip::None => return false,
            Ip::V4 { .. } => {
                let Some((ip, udp)) = packet.split_first_chunk_mut::<20>() else { return false };
                (Sum::new().add_bytes(ip.last_chunk::<8>().unwrap_or(&[0; 8])), udp)
            }
            Ip::V6 { .. } => {
                let Some((ip, udp)) = packet.split_first_chunk_mut::<40>() else { return false };
                (Sum::new().add_bytes(ip.last_chunk::<32>().unwrap_or(&[0; 32])), udp)
            }
        };
        finish_udp(sum, udp)
    }
}

/// The reason why headers could not be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WriteError {
    /// The buffer does not have exactly the length of the headers.
    #[error("buffer has {found} bytes, but the outer headers need {expected}")]
    Size {
        /// The length of the buffer in bytes.
        found: usize,
        /// The length of the headers in bytes.
        expected: u8,
    },
    /// The inner packet and the outer headers together exceed the 16-bit length of the outer IP
    /// header.
    #[error(
        "inner packet of {inner_len} bytes and headers of {encap_overhead} bytes exceed the maximum IP length"
    )]
    TooLong {
        /// The length of the inner packet in bytes.
        inner_len: u16,
        /// The length of the headers in bytes.
        encap_overhead: u8,
    },
}

/// The outer IP header. Fields that depend on the packet are zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ip {
    None,
    /// `sum` is the unfolded sum of the words of `header`.
    V4 {
        header: [u8; 20],
        sum: Sum,
        dont_fragment: bool,
    },
    V6 {
        header: [u8; 40],
    },
}

impl Ip {
    fn v4(source: Ipv4Addr, destination: Ipv4Addr, protocol: u8, dont_fragment: bool) -> Self {
        let flags = if dont_fragment { 0x40 } else { 0 };
        let [s0, s1, s2, s3] = source.octets();
        let [d0, d1, d2, d3] = destination.octets();
        let header = [0x45, 0, 0, 0, 0, 0, flags, 0, HOPS, protocol, 0, 0, s0, s1, s2, s3, d0, d1, d2, d3];
        Self::V4 { header, sum: Sum::new().add_bytes(&header), dont_fragment }
    }

    fn v6(source: Ipv6Addr, destination: Ipv6Addr, protocol: u8) -> Self {
        let mut header = [0; 40];
        let fields = [0x60, 0, 0, 0, 0, 0, protocol, HOPS];
        let bytes = fields.into_iter().chain(source.octets()).chain(destination.octets());
        for (slot, byte) in header.iter_mut().zip(bytes) {
            *slot = byte;
        }
        Self::V6 { header }
    }
}

/// The headers between the outer and the inner IP header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shim {
    None,
    Gre([u8; 4]),
    /// The UDP and GUE headers. The source port and the length are set for each packet.
    Gue([u8; 12]),
}

impl Shim {
    fn gre(inner: Family, recursion: u8) -> Self {
        let [hi, lo] = inner.ethertype().to_be_bytes();
        //= RFC 1701, "Recursion control (bits 5-7)"
        //# Recursion control contains a three bit unsigned integer which contains the number of
        //# additional encapsulations which are permissible.
        Self::Gre([recursion & 0x07, 0, hi, lo])
    }

    fn gue(inner: Family) -> Self {
        let [hi, lo] = protocol::GUE_PORT.to_be_bytes();
        Self::Gue([0, 0, hi, lo, 0, 0, 0, 0, 0, inner.protocol(), 0, 0])
    }

    /// Returns the bytes of `header`, followed by the bytes of this shim header.
    fn behind<const N: usize>(&self, header: &[u8]) -> [u8; N] {
        let shim: &[u8] = match self {
            Self::None => &[],
            Self::Gre(bytes) => bytes,
            Self::Gue(bytes) => bytes,
        };
        let mut bytes = [0; N];
        bytes.iter_mut().zip(header.iter().chain(shim)).for_each(|(to, from)| *to = *from);
        bytes
    }

    /// Writes the shim header to `out`. `len` is the number of bytes from the end of the outer IP
    /// header to the end of the inner packet.
    #[inline]
    fn write(&self, out: &mut [u8], len: u16, flow_hash: u64) {
        match self {
            Self::None => {}
            Self::Gre(bytes) => {
                if let Some(out) = out.first_chunk_mut() {
                    *out = *bytes;
                }
            }
            Self::Gue(bytes) => {
                if let Some(out) = out.first_chunk_mut::<12>() {
                    *out = *bytes;
                    let [.., hi, lo] = flow_hash.to_be_bytes();
                    [out[0], out[1]] = [0xc0 | hi & 0x3f, lo]; // 49152 to 65535, the dynamic ports
                    [out[4], out[5]] = len.to_be_bytes();
                }
            }
        }
    }
}

/// Sets the fields of the outer IPv4 header that depend on the packet. `ip` already contains the
/// header of the template and the identification, and `sum` is the sum of their words.
#[inline]
fn fill_v4(ip: &mut [u8; 20], sum: Sum, prefix: Option<SourcePrefix>, total: u16, inner: &Inner) {
    let mut sum = sum.add_word(u16::from(inner.tos)).add_word(total);
    ip[1] = inner.tos;
    [ip[2], ip[3]] = total.to_be_bytes();
    if let Some(IpAddr::V4(source)) = prefix.map(|prefix| prefix.pick(inner.flow_hash)) {
        let [a, b, c, d] = source.octets();
        // Adding the complement of the template's source address removes this address from the sum,
        // because -x = ~x in ones' complement.
        sum = sum.add_bytes(&[!ip[12], !ip[13], !ip[14], !ip[15]]).add_bytes(&[a, b, c, d]);
        [ip[12], ip[13], ip[14], ip[15]] = [a, b, c, d];
    }
    [ip[10], ip[11]] = sum.finish().to_be_bytes();
}

#[inline]
fn fill_v6(ip: &mut [u8; 40], prefix: Option<SourcePrefix>, payload: u16, tos: u8, flow_hash: u64) {
    let [_, _, _, label, hi, lo, ..] = flow_hash.to_be_bytes();
    [ip[0], ip[1], ip[2], ip[3]] = [0x60 | tos >> 4, tos << 4 | label & 0x0f, hi, lo];
    [ip[4], ip[5]] = payload.to_be_bytes();
    if let Some(IpAddr::V6(source)) = prefix.map(|prefix| prefix.pick(flow_hash))
        && let Some(slot) = ip.last_chunk_mut::<32>().and_then(|both| both.first_chunk_mut::<16>())
    {
        *slot = source.octets();
    }
}

/// Copies the last bits of the inner destination into the outer destination, and increments the
/// recursion control.
#[cold]
fn redirect(packet: &mut [u8], kept: u8, redirected: u8) -> Option<()> {
    let gre = if packet.first()? >> 4 == 4 {
        let (ip, rest) = packet.split_first_chunk_mut::<20>()?;
        let inner = u32::from_be_bytes(*rest.get(20..)?.first_chunk()?);
        let mask = u32::MAX.checked_shr(32_u32.checked_sub(kept.into())?).unwrap_or(0);
        let outer = ip.last_chunk_mut::<4>()?;
        *outer = (u32::from_be_bytes(*outer) & !mask | inner & mask).to_be_bytes();
        [ip[10], ip[11]] = [0, 0];
        [ip[10], ip[11]] = Sum::new().add_bytes(ip).finish().to_be_bytes();
        rest
    } else {
        let (ip, rest) = packet.split_first_chunk_mut::<40>()?;
        let inner = u128::from_be_bytes(*rest.get(28..)?.first_chunk()?);
        let mask = u128::MAX.checked_shr(128_u32.checked_sub(kept.into())?).unwrap_or(0);
        let outer = ip.last_chunk_mut::<16>()?;
        *outer = (u128::from_be_bytes(*outer) & !mask | inner & mask).to_be_bytes();
        rest
    };
    let flags = gre.first_mut()?;
    *flags = *flags & !0x07 | redirected.saturating_add(1).min(0x07);
    Some(())
}

/// Computes the UDP checksum. `addresses` is the sum of the outer addresses, which belong to the
/// pseudo-header.
fn finish_udp(addresses: Sum, udp: &mut [u8]) -> bool {
    let Ok(len) = u16::try_from(udp.len()) else { return false };
    let Some(header) = udp.first_chunk_mut::<12>() else { return false };
    if u16::from_be_bytes([header[4], header[5]]) != len {
        return false;
    }
    [header[6], header[7]] = [0, 0];
    let sum = addresses.add_word(u16::from(protocol::UDP)).add_word(len).add_bytes(udp).finish();
    //= RFC 768
    //# If the computed checksum is zero, it is transmitted as all ones
    let [hi, lo] = if sum == 0 { [0xff, 0xff] } else { sum.to_be_bytes() };
    if let Some(header) = udp.first_chunk_mut::<12>() {
        [header[6], header[7]] = [hi, lo];
    }
    true
}

const HOPS: u8 = 64;

#[cfg(test)]
mod tests;
