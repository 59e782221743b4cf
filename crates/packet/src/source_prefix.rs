//! Outer source addresses chosen per flow, so that backends' NICs spread GRE and IP-in-IP over their queues.

use core::fmt;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::Family;

/// A prefix of outer source addresses.
///
/// Every host part is used, all zeros and all ones too, so it should not be the prefix of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SourcePrefix {
    network: IpAddr,
    len: u8,
}

impl SourcePrefix {
    /// The prefix `network/len`.
    ///
    /// # Errors
    /// [`PrefixError`]: `len` exceeds the family's 32 or 128 bits, or `network` has bits behind it.
    pub fn new(network: IpAddr, len: u8) -> Result<Self, PrefixError> {
        let (max, host_bits) = match network {
            IpAddr::V4(address) => (32, address.to_bits() & host_mask_v4(len) != 0),
            IpAddr::V6(address) => (128, address.to_bits() & host_mask_v6(len) != 0),
        };
        if len > max {
            return Err(PrefixError::Length { found: len, max });
        }
        if host_bits {
            return Err(PrefixError::HostBits { network, len });
        }
        Ok(Self { network, len })
    }

    /// The family of its addresses.
    #[inline]
    #[must_use]
    pub const fn family(&self) -> Family {
        match self.network {
            IpAddr::V4(_) => Family::V4,
            IpAddr::V6(_) => Family::V6,
        }
    }

    /// The source address of a flow: network bits kept, host bits from its hash.
    #[inline]
    #[must_use]
    pub fn pick(&self, flow_hash: u64) -> IpAddr {
        match self.network {
            IpAddr::V4(network) => IpAddr::V4(pick_v4(network, self.len, flow_hash)),
            IpAddr::V6(network) => IpAddr::V6(pick_v6(network, self.len, flow_hash)),
        }
    }
}

impl fmt::Display for SourcePrefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.network, self.len)
    }
}

/// Why an address and a length are no prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PrefixError {
    /// More bits than the family has.
    Length {
        /// Bits asked for.
        found: u8,
        /// Bits of the family.
        max: u8,
    },
    /// The address has bits behind the prefix.
    HostBits {
        /// The address.
        network: IpAddr,
        /// Bits of the prefix.
        len: u8,
    },
}

impl fmt::Display for PrefixError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Length { found, max } => write!(f, "prefix length {found} exceeds {max}"),
            Self::HostBits { network, len } => write!(f, "{network} has bits set behind /{len}"),
        }
    }
}

impl core::error::Error for PrefixError {}

// The upper half of the hash serves IPv4: the lower bits already make the GUE port and the flow label.
#[inline]
fn pick_v4(network: Ipv4Addr, len: u8, flow_hash: u64) -> Ipv4Addr {
    let [a, b, c, d, ..] = flow_hash.to_be_bytes();
    Ipv4Addr::from_bits(network.to_bits() | u32::from_be_bytes([a, b, c, d]) & host_mask_v4(len))
}

#[inline]
fn pick_v6(network: Ipv6Addr, len: u8, flow_hash: u64) -> Ipv6Addr {
    let upper = flow_hash.wrapping_mul(0x9e37_79b9_7f4a_7c15); // only prefixes shorter than /64 show it
    let host = u128::from(upper) << 64 | u128::from(flow_hash.rotate_left(32));
    Ipv6Addr::from_bits(network.to_bits() | host & host_mask_v6(len))
}

#[inline]
const fn host_mask_v4(len: u8) -> u32 {
    match u32::MAX.checked_shr(len as u32) {
        Some(mask) => mask,
        None => 0,
    }
}

#[inline]
const fn host_mask_v6(len: u8) -> u128 {
    match u128::MAX.checked_shr(len as u32) {
        Some(mask) => mask,
        None => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prefix(network: &str, len: u8) -> Result<SourcePrefix, PrefixError> {
        SourcePrefix::new(network.parse().unwrap(), len)
    }

    #[test]
    fn network_bits_stay_and_host_bits_vary() {
        let picks = |network, len| {
            let prefix = prefix(network, len).unwrap();
            (0..4096u64).map(|i| prefix.pick(i.wrapping_mul(0x9e37_79b9_7f4a_7c15))).collect::<Vec<_>>()
        };
        let v4 = picks("198.18.4.0", 24);
        assert!(v4.iter().all(|a| a.to_string().starts_with("198.18.4.")));
        assert_eq!(v4.iter().collect::<std::collections::HashSet<_>>().len(), 256);
        let v6 = picks("2001:db8:7::", 48);
        assert!(v6.iter().all(|a| a.to_string().starts_with("2001:db8:7:")));
        assert_eq!(v6.iter().collect::<std::collections::HashSet<_>>().len(), 4096);
    }

    #[test]
    fn a_host_prefix_has_one_address_and_the_empty_prefix_all() {
        assert_eq!(prefix("192.0.2.7", 32).unwrap().pick(u64::MAX), "192.0.2.7".parse::<IpAddr>().unwrap());
        assert_eq!(
            prefix("2001:db8::7", 128).unwrap().pick(u64::MAX),
            "2001:db8::7".parse::<IpAddr>().unwrap()
        );
        assert_eq!(prefix("0.0.0.0", 0).unwrap().pick(u64::MAX), IpAddr::V4(Ipv4Addr::BROADCAST));
    }

    #[test]
    fn lengths_and_host_bits_are_refused_in_words() {
        assert_eq!(prefix("192.0.2.0", 33).unwrap_err().to_string(), "prefix length 33 exceeds 32");
        assert_eq!(prefix("2001:db8::", 129).unwrap_err().to_string(), "prefix length 129 exceeds 128");
        assert_eq!(prefix("192.0.2.1", 24).unwrap_err().to_string(), "192.0.2.1 has bits set behind /24");
        assert_eq!(prefix("2001:db8::1", 64).unwrap_err().to_string(), "2001:db8::1 has bits set behind /64");
    }
}
