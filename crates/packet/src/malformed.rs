//! The errors that the parsers return.

/// The error for a header with invalid lengths or fields, or for a truncated packet. The load
/// balancer drops such packets with the drop reason `malformed`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum Malformed {
    /// The packet is shorter than one of its headers, or shorter than a length field indicates. A
    /// first fragment without ports is also considered truncated.
    #[error("packet is shorter than the lengths in its headers")]
    Truncated,
    /// A header length is below the fixed part of the header (IPv4 IHL or TCP data offset below 5,
    /// AH below 12 bytes).
    #[error("header length is below the fixed part of the header")]
    HeaderLength,
    /// The IPv4 total length is shorter than the header.
    #[error("IPv4 total length is shorter than the header")]
    TotalLength,
    /// The IP version does not match the Ethernet type, or is neither 4 nor 6.
    #[error("IP version does not match the Ethernet type")]
    Version,
    /// The UDP length is below 8 bytes.
    #[error("UDP length is below 8 bytes")]
    UdpLength,
    /// There are more than 8 extension headers, hop-by-hop options that do not come first, or a
    /// second fragment header.
    #[error("IPv6 extension headers are out of order, or there are more than 8")]
    ExtensionChain,
    /// The packet with its link header exceeds 65,535 bytes.
    #[error("packet and link header exceed 65535 bytes")]
    TooLong,
    /// The GRE version is not 0, or the GRE header has source routes.
    #[error("GRE version is not 0, or source routes are present")]
    Gre,
    /// The GUE variant is not 0.
    #[error("GUE variant is not 0")]
    Gue,
}

/// The reason why [`crate::parse`] rejected a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum ParseError {
    /// The Ethernet type is neither IPv4 nor IPv6. At most two VLAN tags may precede the Ethernet
    /// type.
    #[error("frame is neither IPv4 nor IPv6")]
    NotIp,
    /// A header is invalid, or the frame is too short.
    #[error(transparent)]
    Malformed(#[from] Malformed),
}
