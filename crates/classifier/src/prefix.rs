//! Ends of addresses: prefixes name clusters, suffixes name what is served in each of them.
//!
//! Invariant: bits outside the length are zero, so that equal ends are equal values. `ipnet`'s networks may have such bits, and
//! it has no suffixes; `bgp` has a prefix of its own, since it depends on no other crate.
//! Source: Eisenbud et al., *Maglev*, NSDI 2016, §4.2.

use std::fmt;
use std::net::IpAddr;

use crate::flow::mapped;

/// The leading bits of addresses of one family, such as `198.51.100.128/25`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Prefix {
    address: IpAddr,
    length: u8,
}

impl Prefix {
    /// `None` when the length is more than the family has bits, or a bit behind it is set.
    #[must_use]
    pub fn new(address: IpAddr, length: u8) -> Option<Self> {
        let fits = length <= width(address) && bits_of(address) & !high(length + offset(address)) == 0;
        fits.then_some(Self { address, length })
    }

    /// The one of this length that an address has; a length above the family's bits counts as all of them.
    #[must_use]
    pub fn of(address: IpAddr, length: u8) -> Self {
        let length = length.min(width(address));
        let address = match address {
            IpAddr::V4(v4) => IpAddr::V4((v4.to_bits() & !low32(32 - length)).into()),
            IpAddr::V6(v6) => IpAddr::V6((v6.to_bits() & high(length)).into()),
        };
        Self { address, length }
    }

    /// The first address.
    #[must_use]
    pub fn address(&self) -> IpAddr {
        self.address
    }

    /// How many leading bits are fixed.
    #[must_use]
    pub fn length(&self) -> u8 {
        self.length
    }

    /// Whether an address has this prefix; never one of the other family.
    #[must_use]
    pub fn contains(&self, address: IpAddr) -> bool {
        self.address.is_ipv4() == address.is_ipv4()
            && bits_of(address) & high(self.length + offset(address)) == bits_of(self.address)
    }

    /// Whether all addresses of `other` have this prefix.
    #[must_use]
    pub fn covers(&self, other: &Self) -> bool {
        self.length <= other.length && self.contains(other.address)
    }

    /// The address with this prefix and `suffix`, zero between; the suffix has its way where they overlap. `None`:
    /// they are of different families.
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

/// The trailing bits of addresses of one family: `0.0.0.20/7` are those whose last seven bits are 20.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Suffix {
    address: IpAddr,
    length: u8,
}

impl Suffix {
    /// `None` when the length is more than the family has bits, or a bit in front of it is set.
    #[must_use]
    pub fn new(address: IpAddr, length: u8) -> Option<Self> {
        let bits = match address {
            IpAddr::V4(v4) => u128::from(v4.to_bits()),
            IpAddr::V6(v6) => v6.to_bits(),
        };
        (length <= width(address) && bits & !low(length) == 0).then_some(Self { address, length })
    }

    /// The address with this suffix and zeros in front.
    #[must_use]
    pub fn address(&self) -> IpAddr {
        self.address
    }

    /// How many trailing bits are fixed.
    #[must_use]
    pub fn length(&self) -> u8 {
        self.length
    }

    /// Whether an address has this suffix; never one of the other family.
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

/// An address as 128 bits, IPv4 mapped.
pub(crate) fn bits_of(address: IpAddr) -> u128 {
    u128::from_be_bytes(mapped(address))
}

/// The mask of the first `length` of 128 bits.
#[inline]
pub(crate) fn high(length: u8) -> u128 {
    u128::MAX.checked_shl(128 - u32::from(length)).unwrap_or(0)
}

/// The mask of the last `length` of 128 bits.
#[inline]
pub(crate) fn low(length: u8) -> u128 {
    u128::MAX.checked_shr(128 - u32::from(length)).unwrap_or(0)
}

fn low32(length: u8) -> u32 {
    u32::MAX.checked_shr(32 - u32::from(length)).unwrap_or(0)
}

/// How many bits an address has.
pub fn width(address: IpAddr) -> u8 {
    if address.is_ipv4() { 32 } else { 128 }
}

/// How many bits stand in front of a mapped address.
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
        /// Bit by bit, as people count them.
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
