//! The IP version of a packet.

use core::fmt;
use core::net::IpAddr;

use crate::protocol;

/// The IP version: IPv4 or IPv6.
// The `bgp` crate has its own type for the address families of MP-BGP, so that neither crate
// depends on the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Family {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

impl Family {
    /// Returns the family of an address.
    #[inline]
    #[must_use]
    pub const fn of(address: IpAddr) -> Self {
        match address {
            IpAddr::V4(_) => Self::V4,
            IpAddr::V6(_) => Self::V6,
        }
    }

    /// Returns the Ethernet type. GRE uses the same value as its protocol type.
    #[inline]
    #[must_use]
    pub const fn ethertype(self) -> u16 {
        match self {
            Self::V4 => protocol::ETHERTYPE_IPV4,
            Self::V6 => protocol::ETHERTYPE_IPV6,
        }
    }

    /// Returns the protocol number that an outer IP header needs if its payload is a packet of this
    /// family (RFC 2003, RFC 2473).
    #[inline]
    #[must_use]
    pub const fn protocol(self) -> u8 {
        match self {
            Self::V4 => protocol::IPIP,
            Self::V6 => protocol::IPV6,
        }
    }

    /// Returns the length of the IP header without options or extension headers: 20 or 40 bytes.
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
