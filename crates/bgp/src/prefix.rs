//! IP prefixes, and the two address families that the speaker supports.
//!
//! Invariant: no bit beyond the length of a [`Prefix`] is set, so each network has exactly one
//! representation. The types of the crate `ipnet` do not guarantee this.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

/// A unicast address family of MP-BGP.
// The crate `packet` has a separate type, so that both crates can be used independently.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Family {
    /// IPv4 unicast (AFI 1, SAFI 1).
    Ipv4,
    /// IPv6 unicast (AFI 2, SAFI 1).
    Ipv6,
}

impl Family {
    /// Both address families.
    pub const ALL: [Self; 2] = [Self::Ipv4, Self::Ipv6];

    /// Returns the family of an address.
    #[must_use]
    pub fn of(address: IpAddr) -> Self {
        if address.is_ipv4() { Self::Ipv4 } else { Self::Ipv6 }
    }

    pub(crate) fn index(self) -> usize {
        usize::from(self == Self::Ipv6)
    }
}

impl fmt::Display for Family {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if *self == Self::Ipv4 { "ipv4" } else { "ipv6" })
    }
}

/// A network: an address without host bits, and a prefix length in bits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Prefix {
    address: IpAddr,
    len: u8,
}

impl Prefix {
    /// Creates a network from an address and a length. Host bits are cleared.
    ///
    /// # Errors
    /// Returns an error if the length is above 32 for IPv4 or above 128 for IPv6.
    pub fn new(address: IpAddr, len: u8) -> Result<Self, BadPrefix> {
        let address = match address {
            IpAddr::V4(v4) if len <= 32 => {
                let mask = u32::MAX.checked_shl(32 - u32::from(len)).unwrap_or(0);
                IpAddr::V4(Ipv4Addr::from(u32::from(v4) & mask))
            }
            IpAddr::V6(v6) if len <= 128 => {
                let mask = u128::MAX.checked_shl(128 - u32::from(len)).unwrap_or(0);
                IpAddr::V6(Ipv6Addr::from(u128::from(v6) & mask))
            }
            _ => return Err(BadPrefix),
        };
        Ok(Self { address, len })
    }

    /// Returns the network that contains only this address.
    #[must_use]
    pub fn host(address: IpAddr) -> Self {
        Self { address, len: if address.is_ipv4() { 32 } else { 128 } }
    }

    /// Returns the first address of the network.
    #[must_use]
    pub fn address(self) -> IpAddr {
        self.address
    }

    /// Returns the prefix length in bits.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "the length is a number of bits, not a number of items")]
    pub fn len(self) -> u8 {
        self.len
    }

    /// Returns the family of the network.
    #[must_use]
    pub fn family(self) -> Family {
        Family::of(self.address)
    }

    /// Returns the encoded length of the prefix in an UPDATE, in bytes (RFC 4271 §4.3).
    pub(crate) fn encoded_bytes(self) -> usize {
        1 + usize::from(self.len).div_ceil(8)
    }
}

/// Converts an address to the network that contains only this address.
impl From<IpAddr> for Prefix {
    fn from(address: IpAddr) -> Self {
        Self::host(address)
    }
}

impl fmt::Display for Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.len)
    }
}

impl fmt::Debug for Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for Prefix {
    type Err = BadPrefix;

    fn from_str(text: &str) -> Result<Self, BadPrefix> {
        let (address, len) = text.split_once('/').ok_or(BadPrefix)?;
        let address = address.parse().map_err(|_| BadPrefix)?;
        Self::new(address, len.parse().map_err(|_| BadPrefix)?)
    }
}

/// The error for an invalid prefix string or prefix length.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid prefix: use ADDRESS/LENGTH, with a length of at most 32 for IPv4 or 128 for IPv6")]
pub struct BadPrefix;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn host_bits_are_cleared_at_every_length() {
        for (text, meant) in [
            ("203.0.113.77/24", "203.0.113.0/24"),
            ("203.0.113.77/32", "203.0.113.77/32"),
            ("203.0.113.77/0", "0.0.0.0/0"),
            ("2001:db8::ffff/112", "2001:db8::/112"),
            ("2001:db8::1/128", "2001:db8::1/128"),
            ("2001:db8::1/0", "::/0"),
        ] {
            let prefix: Prefix = text.parse().unwrap();
            assert_eq!(prefix.to_string(), meant);
        }
        assert_eq!("203.0.113.0/33".parse::<Prefix>(), Err(BadPrefix));
        assert_eq!("2001:db8::/129".parse::<Prefix>(), Err(BadPrefix));
        assert_eq!("203.0.113.0".parse::<Prefix>(), Err(BadPrefix));
    }
}
