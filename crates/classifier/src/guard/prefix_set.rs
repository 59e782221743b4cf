//! A set of IPv4 and IPv6 prefixes, stored as sorted disjoint address ranges with an index.
//!
//! A union of prefixes is a union of address ranges, so a lookup needs no longest-prefix match.
//! Adjacent ranges are merged. The index divides the addresses between the first and the last range
//! into at most 65,536 equal parts, about one part per range. A lookup reads one index entry and
//! one or two ranges.

use std::fmt;
use std::net::IpAddr;

use crate::Flow;
use crate::flow::is_v4;

/// An immutable set of IPv4 and IPv6 prefixes.
#[derive(Default, PartialEq, Eq)]
pub struct PrefixSet {
    v4: Ranges<u32>,
    v6: Ranges<u128>,
}

impl PrefixSet {
    /// Builds the union of `prefixes`, which are pairs of an address and a prefix length. Address
    /// bits after the prefix length are ignored. Prefix lengths are capped at 32 for IPv4 and 128
    /// for IPv6.
    ///
    /// # Cost
    /// Building takes `O(n log n)` time. The set uses 8 bytes per IPv4 range, 32 bytes per IPv6
    /// range, and an index of at most 512 KiB. The function is intended for the control plane.
    #[must_use]
    pub fn new(prefixes: impl IntoIterator<Item = (IpAddr, u8)>) -> Self {
        let (mut v4, mut v6) = (Vec::new(), Vec::new());
        for (address, length) in prefixes {
            match address {
                IpAddr::V4(address) => {
                    let host = u32::MAX.checked_shr(u32::from(length)).unwrap_or(0);
                    v4.push((address.to_bits() & !host, address.to_bits() | host));
                }
                IpAddr::V6(address) => {
                    let host = u128::MAX.checked_shr(u32::from(length)).unwrap_or(0);
                    v6.push((address.to_bits() & !host, address.to_bits() | host));
                }
            }
        }
        Self { v4: Ranges::new(v4), v6: Ranges::new(v6) }
    }

    /// Returns `true` if the set contains `address`. An IPv4-mapped IPv6 address is treated as an
    /// IPv6 address.
    ///
    /// # Cost
    /// A lookup reads one index entry, and then searches the few ranges of one part.
    #[must_use]
    pub fn contains(&self, address: IpAddr) -> bool {
        match address {
            IpAddr::V4(address) => self.v4.contains(address.to_bits()),
            IpAddr::V6(address) => self.v6.contains(address.to_bits()),
        }
    }

    /// Returns `true` if the set contains the source address of a flow. The destination, which is a
    /// VIP, determines whether the flow is IPv4 or IPv6. An IPv6 packet with an IPv4-mapped source
    /// address therefore does not match IPv4 prefixes.
    #[inline]
    #[must_use]
    pub fn contains_source(&self, flow: &Flow) -> bool {
        let source = u128::from_be_bytes(flow.source);
        #[expect(clippy::cast_possible_truncation, reason = "the last four bytes are the IPv4 address")]
        if is_v4(&flow.destination) { self.v4.contains(source as u32) } else { self.v6.contains(source) }
    }

    /// Returns `true` if the set is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.v4.ranges.is_empty() && self.v6.ranges.is_empty()
    }

    /// Returns the number of address ranges after merging, for IPv4 and IPv6 together.
    #[must_use]
    pub fn ranges(&self) -> usize {
        self.v4.ranges.len() + self.v6.ranges.len()
    }
}

impl fmt::Debug for PrefixSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (v4, v6) = (self.v4.ranges.len(), self.v6.ranges.len());
        f.debug_struct("PrefixSet").field("v4_ranges", &v4).field("v6_ranges", &v6).finish()
    }
}

/// An IPv4 or IPv6 address as an integer.
trait Bits: Copy + Ord + Default {
    /// Returns the distance from `base`, or `None` if the address is below `base`.
    fn above(self, base: Self) -> Option<Self>;
    /// Returns the next address, or `None` for the last address.
    fn next(self) -> Option<Self>;
    /// Returns the number of significant bits.
    fn bits(self) -> u32;
    fn part(self, shift: u32) -> usize;
}

macro_rules! bits {
    ($($int:ty),*) => {$(
        impl Bits for $int {
            #[inline]
            fn above(self, base: Self) -> Option<Self> {
                self.checked_sub(base)
            }
            fn next(self) -> Option<Self> {
                self.checked_add(1)
            }
            fn bits(self) -> u32 {
                <$int>::BITS - self.leading_zeros()
            }
            #[inline]
            fn part(self, shift: u32) -> usize {
                usize::try_from(self >> shift).unwrap_or(usize::MAX)
            }
        }
    )*};
}

bits!(u32, u128);

#[derive(Default, PartialEq, Eq)]
struct Ranges<T> {
    /// The first and last address of each range, in ascending order. No two ranges overlap or are
    /// adjacent.
    ranges: Box<[(T, T)]>,
    /// The number of ranges that begin before each part. An additional entry at the end contains
    /// the total.
    index: Box<[u32]>,
    /// The address at which the first part begins.
    base: T,
    /// Each part covers 2^`shift` addresses.
    shift: u32,
}

impl<T: Bits> Ranges<T> {
    fn new(ranges: Vec<(T, T)>) -> Self {
        let ranges = merged(ranges);
        let (Some((base, _)), Some((_, last))) = (ranges.first().copied(), ranges.last().copied()) else {
            return Self::default();
        };
        let span = last.above(base).unwrap_or_default();
        // At least two parts are used, because with a single part the shift would be the full width
        // of an address and overflow.
        let parts = ranges.len().next_power_of_two().clamp(2, MAX_PARTS);
        let shift = span.bits().saturating_sub(parts.ilog2());
        let mut index = vec![0u32; span.part(shift) + 2];
        for (first, _) in &ranges {
            let part = first.above(base).unwrap_or_default().part(shift);
            if let Some(count) = index.get_mut(part + 1) {
                *count += 1;
            }
        }
        let mut before = 0;
        for count in &mut index {
            before += *count;
            *count = before;
        }
        Self { ranges: ranges.into(), index: index.into(), base, shift }
    }

    #[inline]
    fn contains(&self, address: T) -> bool {
        self.before_or_at(address).is_some_and(|(_, last)| address <= *last)
    }

    /// Returns the last range that begins at or before `address`. Returns `None` if `address` is
    /// outside all parts.
    #[inline]
    fn before_or_at(&self, address: T) -> Option<&(T, T)> {
        let part = address.above(self.base)?.part(self.shift);
        let [from, to] = *self.index.get(part..)?.first_chunk::<2>()?;
        let here = self.ranges.get(from as usize..to as usize)?;
        let not_behind = here.partition_point(|(first, _)| *first <= address);
        self.ranges.get((from as usize + not_behind).checked_sub(1)?)
    }
}

/// Sorts the ranges, and merges ranges that overlap or touch.
fn merged<T: Bits>(mut ranges: Vec<(T, T)>) -> Vec<(T, T)> {
    ranges.sort_unstable();
    let mut result: Vec<(T, T)> = Vec::with_capacity(ranges.len());
    for (first, last) in ranges {
        match result.last_mut() {
            // If no address follows `end`, the range reaches the last address of the family and
            // includes all later ranges.
            Some((_, end)) if end.next().is_none_or(|next| first <= next) => *end = last.max(*end),
            _ => result.push((first, last)),
        }
    }
    result
}

const MAX_PARTS: usize = 65_536;

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, Ipv6Addr};

    use proptest::prelude::*;

    use super::*;

    fn set(prefixes: &[&str]) -> PrefixSet {
        PrefixSet::new(prefixes.iter().map(|text| {
            let (address, length) = text.split_once('/').unwrap();
            (address.parse().unwrap(), length.parse().unwrap())
        }))
    }

    fn holds(set: &PrefixSet, address: &str) -> bool {
        set.contains(address.parse().unwrap())
    }

    #[test]
    fn a_set_of_nothing_holds_nothing() {
        let set = set(&[]);
        assert!(set.is_empty() && !holds(&set, "0.0.0.0") && !holds(&set, "::"));
        assert!(!holds(&set, "255.255.255.255"));
    }

    #[test]
    fn all_of_a_family_is_one_range_and_says_nothing_of_the_other() {
        for (prefix, inside, outside) in [
            ("0.0.0.0/0", ["0.0.0.0", "192.0.2.1", "255.255.255.255"], ["::", "2001:db8::1"]),
            (
                "::/0",
                ["::", "2001:db8::1", "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff"],
                ["0.0.0.0", "192.0.2.1"],
            ),
        ] {
            let set = set(&[prefix, prefix]);
            assert_eq!(set.ranges(), 1);
            assert!(inside.iter().all(|address| holds(&set, address)), "{prefix}");
            assert!(!outside.iter().any(|address| holds(&set, address)), "{prefix}");
        }
    }

    #[test]
    fn one_address_holds_neither_neighbour() {
        let set = set(&["192.0.2.7/32", "2001:db8::7/128"]);
        assert_eq!(["192.0.2.6", "192.0.2.7", "192.0.2.8"].map(|a| holds(&set, a)), [false, true, false]);
        assert_eq!(
            ["2001:db8::6", "2001:db8::7", "2001:db8::8"].map(|a| holds(&set, a)),
            [false, true, false]
        );
        assert!(!holds(&set, "::ffff:192.0.2.7"), "a v4-mapped IPv6 source is not IPv4");
    }

    #[test]
    fn prefixes_that_touch_or_overlap_become_one_range() {
        let set = set(&["198.18.0.0/16", "198.19.0.0/16", "198.18.3.0/24", "203.0.113.1/32"]);
        assert_eq!(set.ranges(), 2, "the result must be 198.18.0.0/15 and one address");
        let high = super::PrefixSet::new([
            (IpAddr::from([255, 255, 255, 255]), 32),
            (IpAddr::from([255, 255, 255, 254]), 31),
            (IpAddr::from([128, 0, 0, 0]), 1),
        ]);
        assert_eq!((high.ranges(), holds(&high, "255.255.255.255")), (1, true));
    }

    /// Returns `true` if the prefix contains the address. The slow model compares bit by bit.
    fn matches(address: IpAddr, prefix: (IpAddr, u8)) -> bool {
        let bits = |address: IpAddr| -> Vec<bool> {
            let bytes = match address {
                IpAddr::V4(address) => address.octets().to_vec(),
                IpAddr::V6(address) => address.octets().to_vec(),
            };
            bytes.iter().flat_map(|byte| (0..8).rev().map(move |bit| byte >> bit & 1 == 1)).collect()
        };
        let (address_bits, prefix_bits) = (bits(address), bits(prefix.0));
        address_bits.len() == prefix_bits.len()
            && address_bits.iter().zip(&prefix_bits).take(usize::from(prefix.1)).all(|(a, b)| a == b)
    }

    /// Generates random addresses, most of them close to prefix boundaries.
    fn address() -> impl Strategy<Value = IpAddr> {
        let near = |bits: u32| bits & 0x0003_03ff;
        prop_oneof![
            any::<u32>().prop_map(move |bits| IpAddr::V4(Ipv4Addr::from_bits(0xc612_0000 | near(bits)))),
            any::<u32>().prop_map(|bits| IpAddr::V4(Ipv4Addr::from_bits(bits))),
            prop::sample::select(vec![0, 1, u32::MAX - 1, u32::MAX])
                .prop_map(|bits| IpAddr::V4(Ipv4Addr::from_bits(bits))),
            any::<u32>().prop_map(move |bits| {
                IpAddr::V6(Ipv6Addr::from_bits(0x2001_0db8 << 96 | u128::from(near(bits))))
            }),
            any::<u128>().prop_map(|bits| IpAddr::V6(Ipv6Addr::from_bits(bits))),
        ]
    }

    fn prefix() -> impl Strategy<Value = (IpAddr, u8)> {
        let length = prop_oneof![0u8..=128, 22u8..=32, 118u8..=128, Just(0), Just(32), Just(128)];
        (address(), length)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(300))]
        /// Also tests the first and last address of each prefix and their neighbors, which reveal
        /// errors in a range or in the index.
        #[test]
        fn agrees_with_a_walk_over_the_prefixes(
            prefixes in prop::collection::vec(prefix(), 0..40),
            probes in prop::collection::vec(address(), 40),
        ) {
            let set = PrefixSet::new(prefixes.iter().copied());
            let edges = prefixes.iter().flat_map(|(address, length)| match *address {
                IpAddr::V4(address) => {
                    let host = if *length >= 32 { 0 } else { u32::MAX >> length };
                    let (first, last) = (address.to_bits() & !host, address.to_bits() | host);
                    [first, last, first.wrapping_sub(1), last.wrapping_add(1)]
                        .map(|bits| IpAddr::V4(Ipv4Addr::from_bits(bits)))
                }
                IpAddr::V6(address) => {
                    let host = if *length >= 128 { 0 } else { u128::MAX >> length };
                    let (first, last) = (address.to_bits() & !host, address.to_bits() | host);
                    [first, last, first.wrapping_sub(1), last.wrapping_add(1)]
                        .map(|bits| IpAddr::V6(Ipv6Addr::from_bits(bits)))
                }
            });
            for probe in edges.chain(probes) {
                let expected = prefixes.iter().any(|prefix| matches(probe, *prefix));
                prop_assert_eq!(set.contains(probe), expected, "{} in {:?}", probe, prefixes);
            }
        }

        /// Compares `contains_source` with `contains`.
        #[test]
        fn a_flow_s_source_is_looked_up_under_its_family(
            prefixes in prop::collection::vec(prefix(), 0..10),
            source in address(),
        ) {
            let set = PrefixSet::new(prefixes);
            let vip: IpAddr =
                if source.is_ipv4() { [203, 0, 113, 10].into() } else { "2001:db8:f::10".parse().unwrap() };
            let flow = Flow::new((source, 1), (vip, 80), 6).unwrap();
            prop_assert_eq!(set.contains_source(&flow), set.contains(source));
        }
    }

    #[test]
    fn index_of_100000_prefixes_has_at_most_4_ranges_per_part() {
        // Uses every second /24 over a large part of the address space, so that no ranges are
        // merged.
        let set = PrefixSet::new(
            (0..100_000u32).map(|n| (IpAddr::V4(Ipv4Addr::from_bits((1 << 24) + (n << 9))), 24)),
        );
        assert_eq!(set.ranges(), 100_000);
        let longest = set.v4.index.windows(2).map(|pair| pair[1] - pair[0]).max();
        assert!(longest.unwrap() <= 4 && set.v4.index.len() <= MAX_PARTS + 1);
        for n in (0..100_000u32).step_by(997) {
            let inside = Ipv4Addr::from_bits((1 << 24) + (n << 9) + 255);
            assert!(set.contains(inside.into()));
            assert!(!set.contains(Ipv4Addr::from_bits(inside.to_bits() + 1).into()));
        }
    }
}
