//! Parses captured frames, and formats frames as text for test output.
//!
//! [`Frame::parse`] parses a frame, and [`Frame::outer`] splits an encapsulated packet. The parser
//! is independent of the balancer's code, so that tests can use it to verify the balancer's
//! packets.
//!
//! References: RFC 791, 8200, 2784 (GRE), 2003 (IPIP), draft-ietf-intarea-gue-09 §3 (variant 0).

use std::fmt::Write;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// An Ethernet frame that contains an IP packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    /// The destination MAC address.
    pub to: [u8; 6],
    /// The source MAC address.
    pub from: [u8; 6],
    /// The VLAN IDs, outermost first.
    pub vlans: Vec<u16>,
    /// The IP packet.
    pub ip: Ip,
}

/// An IPv4 or IPv6 packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ip {
    /// The source address.
    pub source: IpAddr,
    /// The destination address.
    pub destination: IpAddr,
    /// The protocol of the payload. For IPv6, this is the protocol after the extension headers
    /// (hop-by-hop, routing, destination, fragment).
    pub protocol: u8,
    /// The TTL or hop limit.
    pub ttl: u8,
    /// The TOS or traffic class.
    pub tos: u8,
    /// The DF flag, which is always `true` for IPv6.
    pub dont_fragment: bool,
    /// The fragment offset in bytes and the more-fragments flag, or `None` if the packet is not a
    /// fragment.
    pub fragment: Option<(u16, bool)>,
    /// `true` if the IPv4 header checksum is correct, and always for IPv6, which has no header
    /// checksum.
    pub checksum_ok: bool,
    /// The bytes of the packet, including the header and without padding.
    pub bytes: Vec<u8>,
    /// The length of the headers before the payload, in bytes.
    pub header_bytes: usize,
}

/// The type of encapsulation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Kind {
    /// GRE without options.
    Gre,
    /// An IPv4 or IPv6 packet inside an IPv4 or IPv6 packet.
    Ipip,
    /// GUE variant 0 over UDP.
    Gue,
}

/// An encapsulated packet and the packet inside.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outer {
    /// The kind of encapsulation.
    pub kind: Kind,
    /// The outer packet.
    pub outer: Ip,
    /// The inner packet.
    pub inner: Ip,
}

impl Frame {
    /// Parses a frame. Returns `None` if the frame does not contain a whole IP packet.
    #[must_use]
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let (to, rest) = bytes.split_first_chunk::<6>()?;
        let (from, mut rest) = rest.split_first_chunk::<6>()?;
        let mut vlans = Vec::new();
        loop {
            let (ethertype, after) = rest.split_first_chunk::<2>()?;
            match u16::from_be_bytes(*ethertype) {
                0x8100 | 0x88a8 => {
                    let (tag, after) = after.split_first_chunk::<2>()?;
                    vlans.push(u16::from_be_bytes(*tag) & 0x0fff);
                    rest = after;
                }
                0x0800 | 0x86dd => {
                    return Some(Self { to: *to, from: *from, vlans, ip: Ip::parse(after)? });
                }
                _ => return None,
            }
        }
    }

    /// Decapsulates the packet. Returns `None` if the packet is not encapsulated or the
    /// encapsulation is not supported.
    #[must_use]
    pub fn outer(&self) -> Option<Outer> {
        let payload = self.ip.payload();
        let (kind, inner) = match self.ip.protocol {
            47 => match payload {
                // GRE version 0 without checksum and key. The last two bytes are the EtherType of
                // the inner packet.
                [0, 0, 0x08, 0x00, inner @ ..] | [0, 0, 0x86, 0xdd, inner @ ..] => (Kind::Gre, inner),
                _ => return None,
            },
            4 | 41 => (Kind::Ipip, payload),
            17 if self.ip.ports()?.1 == GUE_PORT => {
                let gue = payload.get(8..)?;
                let [first, 4 | 41, _, _, ..] = *gue else { return None };
                // A data message of GUE variant 0. The low five bits are the length of the options
                // in 32-bit words.
                let words = if first & 0xe0 == 0 { usize::from(first & 0x1f) } else { return None };
                (Kind::Gue, gue.get(4 + 4 * words..)?)
            }
            _ => return None,
        };
        Some(Outer { kind, outer: self.ip.clone(), inner: Ip::parse(inner)? })
    }
}

impl Ip {
    /// Parses an IPv4 or IPv6 packet. Returns `None` if the packet is truncated or is not IP.
    #[must_use]
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        match bytes.first()? >> 4 {
            4 => Self::parse_v4(bytes),
            6 => Self::parse_v6(bytes),
            _ => None,
        }
    }

    fn parse_v4(bytes: &[u8]) -> Option<Self> {
        let head = bytes.first_chunk::<20>()?;
        let header_bytes = usize::from(head[0] & 15) * 4;
        let bytes = bytes.get(..usize::from(u16::from_be_bytes([head[2], head[3]])))?;
        let header = bytes.get(..header_bytes).filter(|_| header_bytes >= 20)?;
        let flags = u16::from_be_bytes([head[6], head[7]]);
        let (offset, more) = ((flags & 0x1fff) * 8, flags & 0x2000 != 0);
        Some(Self {
            source: Ipv4Addr::new(head[12], head[13], head[14], head[15]).into(),
            destination: Ipv4Addr::new(head[16], head[17], head[18], head[19]).into(),
            protocol: head[9],
            ttl: head[8],
            tos: head[1],
            dont_fragment: flags & 0x4000 != 0,
            fragment: (offset > 0 || more).then_some((offset, more)),
            checksum_ok: checksum(&[header]) == 0,
            bytes: bytes.to_vec(),
            header_bytes,
        })
    }

    fn parse_v6(bytes: &[u8]) -> Option<Self> {
        let head = bytes.first_chunk::<40>()?;
        let bytes = bytes.get(..40 + usize::from(u16::from_be_bytes([head[4], head[5]])))?;
        let address = |at: usize| -> Option<Ipv6Addr> {
            Some(bytes.get(at..at + 16)?.first_chunk::<16>().copied()?.into())
        };
        let (mut protocol, mut header_bytes, mut fragment) = (head[6], 40, None);
        while let 0 | 43 | 44 | 60 = protocol {
            let extension = bytes.get(header_bytes..)?.first_chunk::<8>()?;
            if protocol == 44 {
                let word = u16::from_be_bytes([extension[2], extension[3]]);
                fragment = Some((word & 0xfff8, word & 1 != 0));
            }
            header_bytes += if protocol == 44 { 8 } else { 8 * (1 + usize::from(extension[1])) };
            protocol = extension[0];
        }
        Some(Self {
            source: address(8)?.into(),
            destination: address(24)?.into(),
            protocol,
            ttl: head[7],
            tos: (head[0] << 4) | (head[1] >> 4),
            dont_fragment: true,
            fragment,
            checksum_ok: true,
            bytes: bytes.to_vec(),
            header_bytes,
        })
    }

    /// Returns the payload of the packet.
    #[must_use]
    pub fn payload(&self) -> &[u8] {
        self.bytes.get(self.header_bytes..).unwrap_or_default()
    }

    /// Returns the TCP or UDP source and destination ports. Returns `None` for other protocols and
    /// for fragments without the ports.
    #[must_use]
    pub fn ports(&self) -> Option<(u16, u16)> {
        let first = self.fragment.is_none_or(|(offset, _)| offset == 0);
        let [a, b, c, d, ..] = *self.payload() else { return None };
        (first && matches!(self.protocol, 6 | 17))
            .then(|| (u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d])))
    }

    /// Returns `true` if the TCP or UDP checksum is correct. Returns `None` if the packet is a
    /// fragment or has no such checksum.
    #[must_use]
    pub fn transport_checksum_ok(&self) -> Option<bool> {
        self.ports().filter(|_| self.fragment.is_none())?;
        let payload = self.payload();
        if self.protocol == 17 && payload.get(6..8)? == [0, 0] {
            return None;
        }
        let pseudo = pseudo_header(self.source, self.destination, self.protocol, payload.len());
        Some(checksum(&[&pseudo, payload]) == 0)
    }

    /// Returns a one-line description: address family, addresses, protocol and ports.
    #[must_use]
    pub fn words(&self) -> String {
        let (source, destination) = (self.source, self.destination);
        let family = if source.is_ipv4() { "IPv4" } else { "IPv6" };
        let protocol = match self.protocol {
            1 => "ICMP".into(),
            4 => "an IPv4 packet".into(),
            6 => format!("TCP {}", tcp_words(self.payload())),
            17 => "UDP".into(),
            41 => "an IPv6 packet".into(),
            47 => "GRE".into(),
            58 => "ICMPv6".into(),
            other => format!("protocol {other}"),
        };
        let mut line =
            format!("{family} {source} -> {destination}, TTL {}, {} bytes", self.ttl, self.bytes.len());
        if source.is_ipv4() {
            line += if self.dont_fragment { ", DF" } else { "" };
            line += if self.checksum_ok { ", header checksum correct" } else { ", header checksum WRONG" };
        }
        let _ = write!(line, ", carries {protocol}");
        if let Some((from, to)) = self.ports() {
            let _ = write!(line, " from port {from} to port {to}");
        }
        match self.transport_checksum_ok() {
            Some(true) => line += ", checksum correct",
            Some(false) => line += ", checksum WRONG",
            None => {}
        }
        line
    }
}

impl Outer {
    /// Returns three lines of text: the outer packet, the encapsulation, and the inner packet.
    #[must_use]
    pub fn words(&self) -> [String; 3] {
        let encap_overhead = self.outer.bytes.len() - self.inner.bytes.len();
        let kind = match self.kind {
            Kind::Gre => "GRE, flags 0, version 0",
            Kind::Ipip => "IP in IP",
            Kind::Gue => "GUE, variant 0",
        };
        [
            format!("outer packet: {}", self.outer.words()),
            format!("encapsulation: {kind}, {encap_overhead} bytes"),
            format!("inner packet: {}", self.inner.words()),
        ]
    }
}

/// Returns the Internet checksum over `parts`. The result is 0 if the parts include a correct
/// checksum. Only the last part may have an odd length.
pub(crate) fn checksum(parts: &[&[u8]]) -> u16 {
    let words = parts.iter().flat_map(|part| part.chunks(2));
    let sum: u64 = words.map(|w| u64::from(w[0]) << 8 | w.get(1).map_or(0, |&low| u64::from(low))).sum();
    let mut sum = sum;
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !u16::try_from(sum).expect("the folded sum has 16 bits")
}

/// Returns the pseudo-header, which TCP and UDP checksums cover in addition to the segment or
/// datagram.
pub(crate) fn pseudo_header(source: IpAddr, destination: IpAddr, protocol: u8, length: usize) -> Vec<u8> {
    let length = u32::try_from(length).expect("the length exceeds an IP packet").to_be_bytes();
    let octets = |ip: IpAddr| match ip {
        IpAddr::V4(ip) => ip.octets().to_vec(),
        IpAddr::V6(ip) => ip.octets().to_vec(),
    };
    // The fields have the order of the IPv6 pseudo-header. The sum is the same for IPv4, because
    // the order does not affect the sum and the additional bytes are zero.
    [octets(source), octets(destination), length.to_vec(), vec![0, 0, 0, protocol]].concat()
}

/// Formats bytes in rows of sixteen.
pub fn hex(bytes: &[u8]) -> String {
    let row = |(n, row): (usize, &[u8])| {
        let cells: Vec<String> = row.iter().map(|byte| format!("{byte:02x}")).collect();
        format!("{:04x}  {}\n", n * 16, cells.join(" "))
    };
    bytes.chunks(16).enumerate().map(row).collect()
}

fn tcp_words(segment: &[u8]) -> String {
    let flags = segment.get(13).copied().unwrap_or_default();
    let names = [(2, "SYN"), (16, "ACK"), (8, "PSH"), (1, "FIN"), (4, "RST")];
    let set: Vec<&str> = names.iter().filter(|(bit, _)| flags & bit != 0).map(|&(_, name)| name).collect();
    set.join("+")
}

const GUE_PORT: u16 = 6080;

#[cfg(test)]
#[path = "decode_tests.rs"]
mod tests;
