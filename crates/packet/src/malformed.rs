//! Why bytes are not the packet they claim to be.

use core::fmt;

/// A header that lies or ends too early. Such a packet is dropped as `malformed`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Malformed {
    /// The bytes end before a header, or a length in one, says they do. Also a first fragment without ports.
    Truncated,
    /// A header length below the fixed part: IPv4 IHL or TCP data offset below 5, AH below 12 bytes.
    HeaderLength,
    /// The IPv4 total length is shorter than the header.
    TotalLength,
    /// The IP version contradicts the Ethernet type or is neither 4 nor 6.
    Version,
    /// The UDP length is below 8 bytes.
    UdpLength,
    /// More than 8 extension headers, hop-by-hop options not in first place, or a second fragment header.
    ExtensionChain,
    /// The packet with its link header exceeds 65,535 bytes.
    TooLong,
    /// GRE of a version other than 0, or with source routes.
    Gre,
    /// GUE of a variant other than 0.
    Gue,
}

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Truncated => "packet ends before its headers say it does",
            Self::HeaderLength => "header length below the fixed part of the header",
            Self::TotalLength => "ipv4 total length shorter than the header",
            Self::Version => "ip version contradicts the ethernet type",
            Self::UdpLength => "udp length below 8",
            Self::ExtensionChain => "ipv6 extension headers out of order or more than 8",
            Self::TooLong => "packet and link header exceed 65535 bytes",
            Self::Gre => "gre version is not 0, or source routes are present",
            Self::Gue => "gue variant is not 0",
        })
    }
}

impl core::error::Error for Malformed {}

/// Why [`crate::parse`] has nothing to say about a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ParseError {
    /// The Ethernet type behind at most two tags is neither IPv4 nor IPv6.
    NotIp,
    /// The frame is too short or lies.
    Malformed(Malformed),
}

impl From<Malformed> for ParseError {
    #[inline]
    fn from(reason: Malformed) -> Self {
        Self::Malformed(reason)
    }
}

impl fmt::Display for ParseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotIp => f.write_str("neither ipv4 nor ipv6"),
            Self::Malformed(reason) => reason.fmt(f),
        }
    }
}

impl core::error::Error for ParseError {}
