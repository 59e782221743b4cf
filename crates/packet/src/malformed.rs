//! Why bytes are not the packet they claim to be.

/// A header that lies or ends too early. Such a packet is dropped as `malformed`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum Malformed {
    /// The bytes end before a header, or a length in one, says they do. Also a first fragment without ports.
    #[error("packet ends before its headers say it does")]
    Truncated,
    /// A header length below the fixed part: IPv4 IHL or TCP data offset below 5, AH below 12 bytes.
    #[error("header length below the fixed part of the header")]
    HeaderLength,
    /// The IPv4 total length is shorter than the header.
    #[error("ipv4 total length shorter than the header")]
    TotalLength,
    /// The IP version contradicts the Ethernet type or is neither 4 nor 6.
    #[error("ip version contradicts the ethernet type")]
    Version,
    /// The UDP length is below 8 bytes.
    #[error("udp length below 8")]
    UdpLength,
    /// More than 8 extension headers, hop-by-hop options not in first place, or a second fragment header.
    #[error("ipv6 extension headers out of order or more than 8")]
    ExtensionChain,
    /// The packet with its link header exceeds 65,535 bytes.
    #[error("packet and link header exceed 65535 bytes")]
    TooLong,
    /// GRE of a version other than 0, or with source routes.
    #[error("gre version is not 0, or source routes are present")]
    Gre,
    /// GUE of a variant other than 0.
    #[error("gue variant is not 0")]
    Gue,
}

/// Why [`crate::parse`] has nothing to say about a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum ParseError {
    /// The Ethernet type behind at most two tags is neither IPv4 nor IPv6.
    #[error("neither ipv4 nor ipv6")]
    NotIp,
    /// The frame is too short or lies.
    #[error(transparent)]
    Malformed(#[from] Malformed),
}
