//! Chooses an outer source address for each flow, so that NICs of backends can spread GRE and
//! IP-in-IP packets over their queues.
//!
//! All host-bit values are used, including all zeros and all ones. The prefix should therefore not
//! be assigned to a link.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct SourcePrefix {
    network: IpAddr,
    len: u8,
}

impl SourcePrefix {
    /// Returns `None` if `len` exceeds the 32 or 128 bits of the family, or if `network` has bits
    /// set after the prefix.
    pub(crate) fn new(network: IpAddr, len: u8) -> Option<Self> {
        let (max, host_bits) = match network {
            IpAddr::V4(address) => (32, address.to_bits() & host_mask_v4(len) != 0),
            IpAddr::V6(address) => (128, address.to_bits() & host_mask_v6(len) != 0),
        };
        (len <= max && !host_bits).then_some(Self { network, len })
    }

    /// Returns the source address for a flow. The host bits come from the flow hash.
    #[inline]
    pub(crate) fn pick(&self, flow_hash: u64) -> IpAddr {
        match self.network {
            IpAddr::V4(network) => IpAddr::V4(pick_v4(network, self.len, flow_hash)),
            IpAddr::V6(network) => IpAddr::V6(pick_v6(network, self.len, flow_hash)),
        }
    }
}

// The host bits are taken from the upper half of the hash. The lower half already determines the
// GUE port and the flow label.
#[inline]
fn pick_v4(network: Ipv4Addr, len: u8, flow_hash: u64) -> Ipv4Addr {
    let [a, b, c, d, ..] = flow_hash.to_be_bytes();
    Ipv4Addr::from_bits(network.to_bits() | u32::from_be_bytes([a, b, c, d]) & host_mask_v4(len))
}

#[inline]
fn pick_v6(network: Ipv6Addr, len: u8, flow_hash: u64) -> Ipv6Addr {
    // The upper 64 bits are needed only for prefixes shorter than /64.
    let upper = flow_hash.wrapping_mul(0x9e37_79b9_7f4a_7c15);
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

    fn prefix(network: &str, len: u8) -> Option<SourcePrefix> {
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
    fn lengths_and_host_bits_are_refused() {
        for (network, len) in [("192.0.2.0", 33), ("2001:db8::", 129), ("192.0.2.1", 24), ("2001:db8::1", 64)]
        {
            assert_eq!(prefix(network, len), None, "{network}/{len}");
        }
    }
}
