//! The encapsulations that can be used for packets to backends, and their overhead in bytes.

use core::fmt;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::Family;

/// The encapsulation of packets to a backend. `Display` prints the name that the configuration
/// uses, such as `gre`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Encapsulation {
    /// GRE without optional fields (RFC 2784).
    Gre,
    /// IP in IP, with any combination of inner and outer family (RFC 2003, RFC 2473, RFC 4213).
    Ipip,
    /// Generic UDP Encapsulation, variant 0, on UDP port 6080.
    Gue {
        /// `true` to compute the outer UDP checksum. If `false`, the checksum is 0 (RFC 6936).
        udp_checksum: bool,
    },
    /// No outer headers: the frame is sent to the MAC address of the backend.
    L2,
}

impl Encapsulation {
    /// Returns the name of this encapsulation in the configuration.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Gre => "gre",
            Self::Ipip => "ipip",
            Self::Gue { .. } => "gue",
            Self::L2 => "l2",
        }
    }
}

impl fmt::Display for Encapsulation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The source and destination addresses of an outer header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Outer {
    /// The outer header is IPv4.
    V4 {
        /// The address of this machine.
        source: Ipv4Addr,
        /// The address of the backend.
        destination: Ipv4Addr,
    },
    /// The outer header is IPv6.
    V6 {
        /// The address of this machine.
        source: Ipv6Addr,
        /// The address of the backend.
        destination: Ipv6Addr,
    },
}

impl Outer {
    /// Returns the family of the outer header.
    #[inline]
    #[must_use]
    pub const fn family(&self) -> Family {
        match self {
            Self::V4 { .. } => Family::V4,
            Self::V6 { .. } => Family::V6,
        }
    }

    /// Returns the source address.
    #[must_use]
    pub const fn source(&self) -> IpAddr {
        match *self {
            Self::V4 { source, .. } => IpAddr::V4(source),
            Self::V6 { source, .. } => IpAddr::V6(source),
        }
    }

    /// Returns the destination address.
    #[must_use]
    pub const fn destination(&self) -> IpAddr {
        match *self {
            Self::V4 { destination, .. } => IpAddr::V4(destination),
            Self::V6 { destination, .. } => IpAddr::V6(destination),
        }
    }
}

/// Converts a source and a destination, which must have the same family.
impl TryFrom<(IpAddr, IpAddr)> for Outer {
    type Error = MixedFamilies;

    fn try_from(addresses: (IpAddr, IpAddr)) -> Result<Self, MixedFamilies> {
        match addresses {
            (IpAddr::V4(source), IpAddr::V4(destination)) => Ok(Self::V4 { source, destination }),
            (IpAddr::V6(source), IpAddr::V6(destination)) => Ok(Self::V6 { source, destination }),
            (source, destination) => Err(MixedFamilies { source, destination }),
        }
    }
}

/// Returns the source and the destination.
impl From<Outer> for (IpAddr, IpAddr) {
    fn from(outer: Outer) -> Self {
        (outer.source(), outer.destination())
    }
}

/// The error for outer headers whose addresses have different families.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MixedFamilies {
    source: IpAddr,
    destination: IpAddr,
}

impl fmt::Display for MixedFamilies {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} and {} are addresses of different families", self.source, self.destination)
    }
}

impl core::error::Error for MixedFamilies {}

/// Returns the length of the outer headers in bytes.
///
/// IP-in-IP needs 20 bytes over IPv4 and 40 bytes over IPv6. GRE needs 4 more bytes, and GUE needs
/// 12 more (8 for UDP and 4 for GUE). L2 needs 0 bytes.
#[inline]
#[must_use]
pub const fn encap_overhead(kind: &Encapsulation, outer: Family) -> u8 {
    match kind {
        Encapsulation::Gre => outer.header_len() + 4,
        Encapsulation::Ipip => outer.header_len(),
        Encapsulation::Gue { .. } => outer.header_len() + 12,
        Encapsulation::L2 => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outer_addresses_convert_both_ways() {
        for (source, destination) in [("192.0.2.1", "198.51.100.2"), ("2001:db8::1", "2001:db8::2")] {
            let pair: (IpAddr, IpAddr) = (source.parse().unwrap(), destination.parse().unwrap());
            let outer = Outer::try_from(pair).unwrap();
            assert_eq!(outer.family(), Family::of(pair.0));
            assert_eq!(<(IpAddr, IpAddr)>::from(outer), pair);
        }
        let mixed = ("192.0.2.1".parse().unwrap(), "2001:db8::2".parse().unwrap());
        let error = Outer::try_from(mixed).unwrap_err();
        assert_eq!(error.to_string(), "192.0.2.1 and 2001:db8::2 are addresses of different families");
    }
}
