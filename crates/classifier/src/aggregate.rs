//! Aggregates many prefixes into a few, for filters with limited space.
//!
//! Two prefixes that are the halves of a larger prefix are merged into this prefix, and prefixes
//! inside another prefix are dropped. If the result still has too many prefixes, neighboring
//! prefixes are replaced by their common prefix. Neighbors whose common prefix adds the least
//! address space are merged first. The result does not depend on the order of the input.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::Prefix;
use crate::prefix::{bits_of, high};

/// The prefixes that [`aggregate`] returns.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Aggregate {
    /// The resulting prefixes. These prefixes are disjoint, cover the whole input, and are in
    /// ascending order with IPv4 first.
    pub prefixes: Vec<Prefix>,
    /// The prefixes in `prefixes` that also cover addresses outside the input.
    pub widened: Vec<Prefix>,
}

/// Covers `prefixes` with at most `most` disjoint prefixes that add as little address space as
/// possible. If the input contains both IPv4 and IPv6, the result contains at least one prefix of
/// each, even if `most` is 1.
///
/// When added address space is compared, one IPv4 address counts as one IPv6 /64 prefix.
///
/// # Cost
/// The running time is `O(n log n)`. The function is intended for the control plane.
#[must_use]
pub fn aggregate(prefixes: &[Prefix], most: usize) -> Aggregate {
    let ranges: Vec<Range> = prefixes.iter().map(Range::of).collect::<BTreeSet<_>>().into_iter().collect();
    let ranges = without_covered(&ranges);
    let mut joins = joins(&ranges);
    // A join replaces neighboring ranges with their common prefix. A join adds at least as much
    // address space as each join that it contains. Joins inside other joins therefore come first in
    // the sorted order, and each join reduces the number of ranges by one.
    joins.sort_unstable_by_key(|join| (join.loss(), std::cmp::Reverse(join.whole.length), join.whole));
    let free = joins.iter().take_while(|join| join.added == 0).count();
    let taken = joins.get(..free.max(ranges.len().saturating_sub(most))).unwrap_or(&joins);
    let wholes = taken.iter().map(|join| join.whole);
    let all: BTreeSet<Range> = ranges.iter().copied().chain(wholes).collect();
    let left = without_covered(&all.into_iter().collect::<Vec<_>>());
    let wider: BTreeSet<Range> = taken.iter().filter(|join| join.added > 0).map(|join| join.whole).collect();
    Aggregate {
        prefixes: left.iter().filter_map(Range::prefix).collect(),
        widened: left.iter().filter(|range| wider.contains(range)).filter_map(Range::prefix).collect(),
    }
}

/// A prefix as an integer. The 32 or 128 address bits are stored in the most significant bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Range {
    is_v6: bool,
    bits: u128,
    length: u8,
}

/// A range that can replace all ranges that it contains.
#[derive(Clone, Copy, Debug)]
struct Join {
    whole: Range,
    /// The number of addresses in `whole` that the given ranges do not cover.
    added: u128,
}

impl Range {
    fn of(prefix: &Prefix) -> Self {
        let bits = bits_of(prefix.address());
        match prefix.address() {
            IpAddr::V4(_) => Self { is_v6: false, bits: bits << 96, length: prefix.length() },
            IpAddr::V6(_) => Self { is_v6: true, bits, length: prefix.length() },
        }
    }

    fn prefix(&self) -> Option<Prefix> {
        let address = if self.is_v6 {
            IpAddr::V6(Ipv6Addr::from_bits(self.bits))
        } else {
            IpAddr::V4(Ipv4Addr::from_bits(u32::try_from(self.bits >> 96).ok()?))
        };
        Prefix::new(address, self.length)
    }

    /// Returns the number of addresses in the range minus one, because the number itself would
    /// overflow for a prefix of length 0.
    fn last(&self) -> u128 {
        !high(self.length)
    }

    fn covers(&self, other: &Self) -> bool {
        self.is_v6 == other.is_v6
            && self.length <= other.length
            && other.bits & high(self.length) == self.bits
    }

    /// Returns the longest prefix that contains both ranges.
    fn common(&self, other: &Self) -> Self {
        let same = (self.bits ^ other.bits).leading_zeros();
        let length = u8::try_from(same).unwrap_or(u8::MAX).min(self.length).min(other.length);
        Self { is_v6: self.is_v6, bits: self.bits & high(length), length }
    }
}

impl Join {
    /// Returns the added address space, measured in IPv6 addresses. One IPv4 address is counted as
    /// one IPv6 /64 prefix.
    fn loss(&self) -> u128 {
        if self.whole.is_v6 { self.added } else { self.added >> 32 }
    }
}

/// Removes ranges that other ranges cover. The input must be sorted.
fn without_covered(sorted: &[Range]) -> Vec<Range> {
    let mut kept: Vec<Range> = Vec::with_capacity(sorted.len());
    for range in sorted {
        if !kept.last().is_some_and(|last| last.covers(range)) {
            kept.push(*range);
        }
    }
    kept
}

/// For each pair of neighboring ranges in the same address family, returns their common range.
fn joins(ranges: &[Range]) -> Vec<Join> {
    let mut before = Vec::with_capacity(ranges.len() + 1);
    let mut sum = 0_u128;
    for range in ranges {
        before.push(sum);
        sum = sum.wrapping_add(range.last()).wrapping_add(1);
    }
    before.push(sum);
    let join = |pair: &[Range]| {
        let [one, other] = pair else { return None };
        if one.is_v6 != other.is_v6 {
            return None;
        }
        let whole = one.common(other);
        let first = ranges.partition_point(|range| (range.is_v6, range.bits) < (whole.is_v6, whole.bits));
        let end = (whole.is_v6, whole.bits | whole.last());
        let past = ranges.partition_point(|range| (range.is_v6, range.bits) <= end);
        let covered = before.get(past)?.wrapping_sub(*before.get(first)?);
        Some(Join { whole, added: whole.last().wrapping_add(1).wrapping_sub(covered) })
    };
    ranges.windows(2).filter_map(join).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn prefixes(texts: &[&str]) -> Vec<Prefix> {
        let one = |text: &&str| {
            let (address, length) = text.split_once('/').unwrap();
            Prefix::new(address.parse().unwrap(), length.parse().unwrap()).unwrap()
        };
        texts.iter().map(one).collect()
    }

    fn shown(prefixes: &[Prefix]) -> Vec<String> {
        prefixes.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn halves_become_wholes_and_what_lies_inside_goes() {
        let given = prefixes(&[
            "198.51.100.0/26",
            "198.51.100.64/26",
            "198.51.100.128/25",
            "198.51.100.7/32",
            "203.0.113.0/24",
            "2001:db8::/33",
            "2001:db8:8000::/33",
        ]);
        let got = aggregate(&given, 64);
        assert_eq!(shown(&got.prefixes), ["198.51.100.0/24", "203.0.113.0/24", "2001:db8::/32"]);
        assert_eq!(got.widened, []);
    }

    #[test]
    fn where_there_is_no_room_the_smallest_loss_is_taken_and_named() {
        let given = prefixes(&[
            "198.18.0.0/24",
            "198.18.2.0/24",
            "198.18.64.0/24",
            "198.19.0.0/18",
            "2001:db8::/48",
            "2001:db8:2::/48",
        ]);
        let got = aggregate(&given, 5);
        assert_eq!(
            shown(&got.widened),
            ["198.18.0.0/22"],
            "added 512 addresses; merging the /48s would add 2^17 networks"
        );
        assert_eq!(got.prefixes.len(), 5);
        let got = aggregate(&given, 1);
        assert_eq!(
            shown(&got.prefixes),
            ["198.18.0.0/15", "2001:db8::/46"],
            "the result must contain one prefix of each family"
        );
        assert_eq!(got.prefixes, got.widened);
    }

    #[test]
    fn the_whole_space_is_no_loss_when_it_was_given() {
        let mut halves = prefixes(&["::/1", "8000::/1", "0.0.0.0/1"]);
        halves.extend(Prefix::new(Ipv4Addr::from_bits(1 << 31).into(), 1));
        let got = aggregate(&halves, 64);
        assert_eq!((shown(&got.prefixes), got.widened), (vec!["0.0.0.0/0".into(), "::/0".into()], vec![]));
        assert_eq!(aggregate(&[], 64), Aggregate::default());
    }

    proptest! {
        /// Compares the result with a list of all addresses in a /24, for both families.
        #[test]
        fn aggregate_covers_exactly_the_input_while_there_is_room(
            raw in prop::collection::vec((any::<bool>(), any::<u8>(), 0u8..=8), 0..40),
            most in 2usize..12,
        ) {
            let address = |is_v6: bool, host: u8| match is_v6 {
                true => IpAddr::V6((0x2001_0db8_u128 << 96 | u128::from(host)).into()),
                false => IpAddr::V4([198, 51, 100, host].into()),
            };
            let given: Vec<Prefix> = raw.iter().map(|&(is_v6, host, length)| {
                let host = u8::try_from((u16::from(host) >> (8 - length)) << (8 - length)).unwrap_or(0);
                Prefix::new(address(is_v6, host), length + if is_v6 { 120 } else { 24 }).unwrap()
            }).collect();
            let held = |prefixes: &[Prefix]| -> Vec<bool> {
                let all = [true, false].into_iter().flat_map(|is_v6| (0..=255).map(move |host| address(is_v6, host)));
                all.map(|address| prefixes.iter().filter(|prefix| prefix.contains(address)).count()).map(|n| {
                    assert!(n <= 1 || std::ptr::eq(prefixes, given.as_slice()), "disjoint");
                    n > 0
                }).collect()
            };
            let exactly = aggregate(&given, usize::MAX);
            prop_assert_eq!(held(&exactly.prefixes), held(&given));
            prop_assert_eq!(&exactly.widened, &[]);
            for pair in exactly.prefixes.windows(2) {
                let whole = Prefix::new(pair[0].address(), pair[0].length() - 1);
                let halves = whole.is_some_and(|whole| pair[0].length() == pair[1].length() && whole.covers(&pair[1]));
                prop_assert!(!halves, "{} and {} should be merged", pair[0], pair[1]);
            }
            let few = aggregate(&given, most);
            prop_assert!(few.prefixes.len() <= most.max(2));
            let (wanted, got) = (held(&given), held(&few.prefixes));
            prop_assert!(wanted.iter().zip(&got).all(|(wanted, got)| !wanted || *got));
            prop_assert_eq!(few.widened.is_empty(), wanted == got, "{:?}", &few);
            if exactly.prefixes.len() <= most {
                prop_assert_eq!(&few, &exactly);
            }
            let mut turned = given.clone();
            turned.reverse();
            prop_assert_eq!(aggregate(&turned, most), few);
        }
    }
}
