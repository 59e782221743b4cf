//! How a packet travels to its backend, and how many bytes that adds.

use core::fmt;
use core::net::{Ipv4Addr, Ipv6Addr};

use crate::Family;

/// How a packet travels to its backend. Displays as in the configuration: `gre`, `ipip`, `gue`, `l2`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Encapsulation {
    /// GRE without optional fields (RFC 2784).
    Gre,
    /// IP in IP, any mix of families (RFC 2003, RFC 2473, RFC 4213).
    Ipip,
    /// Generic UDP encapsulation, variant 0, port 6080.
    Gue {
        /// Compute the outer UDP checksum; else it is 0 (RFC 6936).
        udp_checksum: bool,
    },
    /// No outer header: the frame gets the backend's MAC address.
    L2,
}

impl Encapsulation {
    /// The word of the configuration.
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

/// Addresses of an outer header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Outer {
    /// The outer header is IPv4.
    V4 {
        /// This machine.
        source: Ipv4Addr,
        /// The backend.
        destination: Ipv4Addr,
    },
    /// The outer header is IPv6.
    V6 {
        /// This machine.
        source: Ipv6Addr,
        /// The backend.
        destination: Ipv6Addr,
    },
}

impl Outer {
    /// The family of the outer header.
    #[inline]
    #[must_use]
    pub const fn family(&self) -> Family {
        match self {
            Self::V4 { .. } => Family::V4,
            Self::V6 { .. } => Family::V6,
        }
    }
}

/// Bytes that stand in front of the inner IP header: 20 or 40 for IP-in-IP, 4 more for GRE, 12 more for GUE
/// (UDP 8, GUE 4), none for L2.
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
