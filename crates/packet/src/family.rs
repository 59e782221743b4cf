//! The IP version of a packet.

use core::fmt;
use core::net::IpAddr;

use crate::protocol;

/// IPv4 or IPv6.
// `bgp` has families of its own, those of MP-BGP: both crates stand alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Family {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

impl Family {
    /// That of an address.
    #[inline]
    #[must_use]
    pub const fn of(address: IpAddr) -> Self {
        match address {
            IpAddr::V4(_) => Self::V4,
            IpAddr::V6(_) => Self::V6,
        }
    }

    /// The Ethernet type, which is also GRE's protocol type.
    #[inline]
    #[must_use]
    pub const fn ethertype(self) -> u16 {
        match self {
            Self::V4 => protocol::ETHERTYPE_IPV4,
            Self::V6 => protocol::ETHERTYPE_IPV6,
        }
    }

    /// The IP protocol number of a packet of this family inside another (RFC 2003, RFC 2473).
    #[inline]
    #[must_use]
    pub const fn protocol(self) -> u8 {
        match self {
            Self::V4 => protocol::IPIP,
            Self::V6 => protocol::IPV6,
        }
    }

    /// Bytes of the IP header without options or extension headers: 20 or 40.
    #[inline]
    #[must_use]
    pub const fn header_len(self) -> u8 {
        match self {
            Self::V4 => 20,
            Self::V6 => 40,
        }
    }
}

impl fmt::Display for Family {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::V4 => "IPv4",
            Self::V6 => "IPv6",
        })
    }
}
