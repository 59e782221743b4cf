//! Prefixes and suffixes of addresses. In a prefix group, the prefix of an address identifies the
//! cluster, and the suffix identifies a VIP that every cluster serves.
//!
//! Bits outside the length are always zero, so two prefixes are equal if they contain the same
//! addresses. The crate `ipnet` is not used because its networks may have bits set after the prefix
//! length, and because it has no suffixes. The crate `bgp` has its own prefix type, because `bgp`
//! depends on no other crate.
//!
//! See §4.2 of Eisenbud et al., *Maglev*, NSDI 2016.

use std::fmt;
use std::net::IpAddr;

use crate::flow::mapped;

/// An address prefix, such as `198.51.100.128/25`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Prefix {
    address: IpAddr,
    length: u8,
}

impl Prefix {
    /// Creates a prefix. Returns `None` if the length is above 32 for IPv4 or 128 for IPv6, or if a
    /// bit after the prefix is set.
    #[must_use]
    pub fn new(address: IpAddr, length: u8) -> Option<Self> {
        let fits = length <= width(address) && bits_of(address) & !high(length + offset(address)) == 0;
        fits.then_some(Self { address, length })
    }

    /// Returns the prefix of `address` with this length. The length is capped at 32 for IPv4 and
    /// 128 for IPv6.
    #[must_use]
    pub fn of(address: IpAddr, length: u8) -> Self {
        let length = length.min(width(address));
        let address = match address {
            IpAddr::V4(v4) => IpAddr::V4((v4.to_bits() & !low32(32 - length)).into()),
            IpAddr::V6(v6) => IpAddr::V6((v6.to_bits() & high(length)).into()),
        };
        Self { address, length }
    }

    /// Returns the first address of the prefix.
    #[must_use]
    pub fn address(&self) -> IpAddr {
        self.address
    }

    /// Returns the length of the prefix in bits.
    #[must_use]
    pub fn length(&self) -> u8 {
        self.length
    }

    /// Returns `true` if the prefix contains the address. IPv4 prefixes never contain IPv6
    /// addresses, and vice versa.
    #[must_use]
    pub fn contains(&self, address: IpAddr) -> bool {
        self.address.is_ipv4() == address.is_ipv4()
            && bits_of(address) & high(self.length + offset(address)) == bits_of(self.address)
    }

    /// Returns `true` if this prefix contains all addresses of `other`.
    #[must_use]
    pub fn covers(&self, other: &Self) -> bool {
        self.length <= other.length && self.contains(other.address)
    }

    /// Returns the address that starts with this prefix and ends with `suffix`. The bits between
    /// the prefix and the suffix are zero. If the prefix and the suffix overlap, the bits of the
    /// suffix are used. Returns `None` if the prefix and the suffix belong to different address
    /// families.
    #[must_use]
    pub fn with(&self, suffix: &Suffix) -> Option<IpAddr> {
        match (self.address, suffix.address) {
            (IpAddr::V4(front), IpAddr::V4(back)) => {
                Some(IpAddr::V4((front.to_bits() & !low32(suffix.length) | back.to_bits()).into()))
            }
            (IpAddr::V6(front), IpAddr::V6(back)) => {
                Some(IpAddr::V6((front.to_bits() & !low(suffix.length) | back.to_bits()).into()))
            }
            _ => None,
        }
    }
}

impl fmt::Display for Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.length)
    }
}

/// An address suffix, which is the last bits of an address. For example, `0.0.0.20/7` matches IPv4
/// addresses whose last seven bits have the value 20.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Suffix {
    address: IpAddr,
    length: u8,
}

impl Suffix {
    /// Creates a suffix. Returns `None` if the length is above 32 for IPv4 or 128 for IPv6, or if a
    /// bit before the suffix is set.
    #[must_use]
    pub fn new(address: IpAddr, length: u8) -> Option<Self> {
        let bits = match address {
            IpAddr::V4(v4) => u128::from(v4.to_bits()),
            IpAddr::V6(v6) => v6.to_bits(),
        };
        (length <= width(address) && bits & !low(length) == 0).then_some(Self { address, length })
    }

    /// Returns the suffix of this length that matches an address. A length that exceeds the width
    /// of the address is reduced to the width.
    #[must_use]
    pub fn of(address: IpAddr, length: u8) -> Self {
        let length = length.min(width(address));
        let address = match address {
            IpAddr::V4(v4) => IpAddr::V4((v4.to_bits() & low32(length)).into()),
            IpAddr::V6(v6) => IpAddr::V6((v6.to_bits() & low(length)).into()),
        };
        Self { address, length }
    }

    /// Returns the suffix as an address whose other bits are zero.
    #[must_use]
    pub fn address(&self) -> IpAddr {
        self.address
    }

    /// Returns the length of the suffix in bits.
    #[must_use]
    pub fn length(&self) -> u8 {
        self.length
    }

    /// Returns `true` if the address ends with this suffix. IPv4 suffixes never match IPv6
    /// addresses, and vice versa.
    #[must_use]
    pub fn matches(&self, address: IpAddr) -> bool {
        self.address.is_ipv4() == address.is_ipv4()
            && (bits_of(address) ^ bits_of(self.address)) & low(self.length) == 0
    }
}

impl fmt::Display for Suffix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.length)
    }
}

/// Returns an address as 128 bits. IPv4 addresses are IPv4-mapped.
pub(crate) fn bits_of(address: IpAddr) -> u128 {
    u128::from_be_bytes(mapped(address))
}

/// Returns a 128-bit mask in which the `length` most significant bits are set.
#[inline]
pub(crate) fn high(length: u8) -> u128 {
    u128::MAX.checked_shl(128 - u32::from(length)).unwrap_or(0)
}

/// Returns a 128-bit mask in which the `length` least significant bits are set.
#[inline]
pub(crate) fn low(length: u8) -> u128 {
    u128::MAX.checked_shr(128 - u32::from(length)).unwrap_or(0)
}

fn low32(length: u8) -> u32 {
    u32::MAX.checked_shr(32 - u32::from(length)).unwrap_or(0)
}

/// Returns the number of bits in an address, which is 32 for IPv4 and 128 for IPv6.
pub fn width(address: IpAddr) -> u8 {
    if address.is_ipv4() { 32 } else { 128 }
}

/// Returns the number of bits that precede an address in its mapped form, which is 96 for IPv4 and
/// 0 for IPv6.
fn offset(address: IpAddr) -> u8 {
    128 - width(address)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn bits_outside_the_length_are_refused() {
        for (address, length, good) in [
            ("198.51.100.128", 25, true),
            ("198.51.100.128", 24, false),
            ("198.51.100.1", 32, true),
            ("0.0.0.0", 0, true),
            ("198.51.100.0", 33, false),
            ("2001:db8::", 32, true),
            ("2001:db8::1", 127, false),
            ("2001:db8::1", 128, true),
            ("2001:db8::", 129, false),
        ] {
            assert_eq!(Prefix::new(ip(address), length).is_some(), good, "{address}/{length}");
        }
        for (address, length, good) in [
            ("0.0.0.20", 5, true),
            ("0.0.0.20", 4, false),
            ("0.0.0.0", 0, true),
            ("0.0.0.1", 0, false),
            ("255.255.255.255", 32, true),
            ("0.0.0.0", 33, false),
            ("::20", 72, true),
            ("1::20", 112, false),
            ("1::20", 113, true),
            ("::", 129, false),
        ] {
            assert_eq!(Suffix::new(ip(address), length).is_some(), good, "{address}/{length}");
        }
    }

    #[test]
    fn a_prefix_and_a_suffix_make_an_address() {
        let with = |prefix: &str, length, suffix: &str, bits| {
            Prefix::new(ip(prefix), length).unwrap().with(&Suffix::new(ip(suffix), bits).unwrap())
        };
        assert_eq!(with("198.51.100.128", 25, "0.0.0.20", 7), Some(ip("198.51.100.148")));
        assert_eq!(with("2001:db8:e::", 56, "::20", 72), Some(ip("2001:db8:e::20")));
        assert_eq!(with("198.51.100.128", 25, "::20", 72), None);
        assert_eq!(with("198.51.100.128", 25, "0.0.0.0", 32), Some(ip("0.0.0.0")));
    }

    proptest! {
        /// Compares the results with operations on strings of binary digits.
        #[test]
        fn ends_agree_with_a_comparison_of_bits(a: u32, b: u32, wide: bool, length in 0u8..=32) {
            let full = |n: u32| match wide {
                true => IpAddr::V6((u128::from(n) << 64 | u128::from(n) << 96 | u128::from(n)).into()),
                false => IpAddr::V4(n.into()),
            };
            let digits = |address: IpAddr| match address {
                IpAddr::V4(v4) => format!("{:032b}", u32::from(v4)),
                IpAddr::V6(v6) => format!("{:0128b}", u128::from(v6)),
            };
            let (one, other) = (full(a), full(b));
            let (n, all) = (usize::from(length), digits(one).len());
            let parse = |text: String| match wide {
                true => IpAddr::V6(u128::from_str_radix(&text, 2).unwrap().into()),
                false => IpAddr::V4(u32::from_str_radix(&text, 2).unwrap().into()),
            };
            let front = parse(format!("{:0<all$}", &digits(one)[..n]));
            let back = parse(format!("{:0>all$}", &digits(one)[all - n..]));
            let (prefix, suffix) = (Prefix::new(front, length).unwrap(), Suffix::new(back, length).unwrap());
            prop_assert!(prefix.contains(one) && suffix.matches(one));
            prop_assert_eq!(prefix.contains(other), digits(one)[..n] == digits(other)[..n]);
            prop_assert_eq!(Prefix::of(one, length), prefix);
            prop_assert_eq!(suffix.matches(other), digits(one)[all - n..] == digits(other)[all - n..]);
            prop_assert_eq!(prefix.covers(&Prefix::new(one, if wide { 128 } else { 32 }).unwrap()), true);
        }
    }
}
