//! VIP matching: (destination address, protocol, port) to a service.
//!
//! Built once per snapshot. An exact hash of addresses leads to the address's disjoint port intervals, sorted by
//! (protocol, first port): ranges and `any` are cut by what is more specific when the table is built, so that a look-up
//! is one probe and one search.
//! Not here: prefix groups and suffixes.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

/// One address's claim on ports for a service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Claim {
    pub(crate) address: [u8; 16],
    pub(crate) protocol: u8,
    pub(crate) ports: RangeInclusive<u16>,
    pub(crate) service: u32,
}

#[derive(Clone, Copy, Debug)]
struct Interval {
    /// Protocol in the upper half, first port in the lower.
    first: u32,
    last: u32,
    service: u32,
}

#[derive(Clone, Copy, Debug)]
struct Address {
    bytes: [u8; 16],
    start: u32,
    len: u32,
}

/// The table. At most half full, so that a probe for an unknown address ends soon.
#[derive(Debug)]
pub(crate) struct VipTable {
    places: Box<[u32]>,
    addresses: Box<[Address]>,
    intervals: Box<[Interval]>,
}

impl VipTable {
    /// Two claims of equal width on the same port: gives the services that clash.
    pub(crate) fn build(claims: &[Claim]) -> Result<Self, (u32, u32)> {
        let mut by_address: BTreeMap<[u8; 16], Vec<&Claim>> = BTreeMap::new();
        for claim in claims {
            by_address.entry(claim.address).or_default().push(claim);
        }
        let mut addresses = Vec::with_capacity(by_address.len());
        let mut intervals = Vec::new();
        for (bytes, claims) in by_address {
            let start = index(intervals.len());
            intervals.extend(disjoint(&claims)?);
            addresses.push(Address { bytes, start, len: index(intervals.len()) - start });
        }
        let mut places = vec![EMPTY; (addresses.len() * 2).next_power_of_two().max(2)].into_boxed_slice();
        for (number, address) in addresses.iter().enumerate() {
            let mut place = mix(&address.bytes) & (places.len() - 1);
            while places[place] != EMPTY {
                place = (place + 1) & (places.len() - 1);
            }
            places[place] = index(number);
        }
        Ok(Self { places, addresses: addresses.into(), intervals: intervals.into() })
    }

    /// The service that an address, protocol and port belong to.
    #[inline]
    pub(crate) fn find(&self, address: &[u8; 16], protocol: u8, port: u16) -> Option<u32> {
        let found = self.address(address)?;
        let intervals = self.intervals.get(found.start as usize..)?.get(..found.len as usize)?;
        let wanted = (u32::from(protocol) << 16) | u32::from(port);
        let before = intervals.partition_point(|interval| interval.first <= wanted);
        let interval = intervals.get(before.checked_sub(1)?)?;
        (wanted <= interval.last).then_some(interval.service)
    }

    /// The service that all ports of an address's protocol belong to, as far as they belong to any: what a packet without
    /// ports can be for.
    pub(crate) fn sole(&self, address: &[u8; 16], protocol: u8) -> Option<u32> {
        let mut services = self.intervals_of(address).iter().filter(|i| i.first >> 16 == u32::from(protocol));
        let service = services.next()?.service;
        services.all(|interval| interval.service == service).then_some(service)
    }

    /// A service of this address, the same on every machine that has the same services.
    pub(crate) fn first(&self, address: &[u8; 16]) -> Option<u32> {
        self.intervals_of(address).first().map(|interval| interval.service)
    }

    fn intervals_of(&self, address: &[u8; 16]) -> &[Interval] {
        let Some(found) = self.address(address) else { return &[] };
        let from = self.intervals.get(found.start as usize..).unwrap_or_default();
        from.get(..found.len as usize).unwrap_or_default()
    }

    /// Whether any service has this address.
    #[inline]
    pub(crate) fn contains(&self, address: &[u8; 16]) -> bool {
        self.address(address).is_some()
    }

    #[inline]
    fn address(&self, bytes: &[u8; 16]) -> Option<&Address> {
        let mask = self.places.len() - 1;
        let mut place = mix(bytes) & mask;
        loop {
            let number = *self.places.get(place)?;
            // Half the places are empty, so the walk ends.
            let address = self.addresses.get(number as usize)?;
            if address.bytes == *bytes {
                return Some(address);
            }
            place = (place + 1) & mask;
        }
    }
}

/// Cuts one address's claims into disjoint intervals; the narrower claim wins.
fn disjoint(claims: &[&Claim]) -> Result<Vec<Interval>, (u32, u32)> {
    let mut result = Vec::new();
    let mut protocols: Vec<u8> = claims.iter().map(|claim| claim.protocol).collect();
    protocols.sort_unstable();
    protocols.dedup();
    for protocol in protocols {
        let claims: Vec<&Claim> = claims.iter().copied().filter(|claim| claim.protocol == protocol).collect();
        let mut edges: Vec<u32> = claims.iter().flat_map(|c| [first(c), last(c) + 1]).collect();
        edges.sort_unstable();
        edges.dedup();
        for pair in edges.windows(2) {
            let Some(service) = narrowest(&claims, pair[0])? else { continue };
            let base = u32::from(protocol) << 16;
            let interval = Interval { first: base | pair[0], last: base | (pair[1] - 1), service };
            match result.last_mut() {
                Some(Interval { last, service: same, .. })
                    if *same == service && *last + 1 == interval.first =>
                {
                    *last = interval.last;
                }
                _ => result.push(interval),
            }
        }
    }
    Ok(result)
}

/// The claim of fewest ports that holds `port`. Two of the fewest clash; equals that a narrower one hides do not.
fn narrowest(claims: &[&Claim], port: u32) -> Result<Option<u32>, (u32, u32)> {
    let holds = |claim: &&Claim| (first(claim)..=last(claim)).contains(&port);
    let Some(best) = claims.iter().copied().filter(holds).min_by_key(|claim| width(claim)) else {
        return Ok(None);
    };
    let equal = claims.iter().copied().filter(holds).filter(|claim| width(claim) == width(best)).nth(1);
    equal.map_or(Ok(Some(best.service)), |other| Err((best.service, other.service)))
}

fn first(claim: &Claim) -> u32 {
    u32::from(*claim.ports.start())
}

fn last(claim: &Claim) -> u32 {
    u32::from(*claim.ports.end())
}

fn width(claim: &Claim) -> u32 {
    last(claim) - first(claim)
}

/// Spreads addresses. Not keyed: only configured VIPs are entered, and the filter lets no other address in.
#[inline]
fn mix(bytes: &[u8; 16]) -> usize {
    let all = u128::from_le_bytes(*bytes);
    #[expect(clippy::cast_possible_truncation, reason = "both halves are wanted, one at a time")]
    let folded = (all as u64) ^ ((all >> 64) as u64).rotate_left(29);
    (folded.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 20) as usize
}

fn index(n: usize) -> u32 {
    u32::try_from(n).unwrap_or(EMPTY)
}

const EMPTY: u32 = u32::MAX;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn claim(address: u8, protocol: u8, ports: RangeInclusive<u16>, service: u32) -> Claim {
        Claim { address: [address; 16], protocol, ports, service }
    }

    #[test]
    fn the_narrower_claim_wins_and_the_wider_fills_the_rest() {
        let table = VipTable::build(&[
            claim(1, 6, 0..=65535, 0),
            claim(1, 6, 8000..=8099, 1),
            claim(1, 6, 8050..=8050, 2),
            claim(1, 17, 53..=53, 3),
        ])
        .unwrap();
        let find = |protocol, port| table.find(&[1; 16], protocol, port);
        assert_eq!([7999, 8000, 8049, 8050, 8051, 8100].map(|p| find(6, p)), [0, 1, 1, 2, 1, 0].map(Some));
        assert_eq!((find(17, 53), find(17, 54), find(17, 0), find(1, 0)), (Some(3), None, None, None));
        assert_eq!(table.find(&[2; 16], 6, 80), None);
    }

    #[test]
    fn equal_claims_clash() {
        let clash = VipTable::build(&[claim(1, 6, 80..=80, 4), claim(1, 6, 80..=80, 5)]);
        assert_eq!(clash.err(), Some((4, 5)));
    }

    #[test]
    fn equals_that_a_narrower_claim_hides_do_not_clash_in_any_order() {
        let claims = [claim(1, 6, 23..=39, 0), claim(1, 6, 35..=51, 1), claim(1, 6, 30..=39, 2)];
        for [a, b, c] in [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]] {
            let table = VipTable::build(&[claims[a].clone(), claims[b].clone(), claims[c].clone()]).unwrap();
            assert_eq!([29, 35, 39, 40].map(|port| table.find(&[1; 16], 6, port)), [0, 2, 2, 1].map(Some));
        }
    }

    proptest! {
        /// Against a walk over all claims: the narrowest that holds the port.
        #[test]
        fn agrees_with_a_walk_over_the_claims(
            raw in prop::collection::vec((0u8..4, 0u8..3, 0u16..40, 0u16..20), 0..12),
            probes in prop::collection::vec((0u8..5, 0u8..4, 0u16..70), 40),
        ) {
            let claims: Vec<Claim> = raw.iter().enumerate()
                .map(|(n, &(a, p, from, more))| claim(a, p, from..=from + more, index(n))).collect();
            let matching = |a: u8, p: u8, port: u16| {
                let mut hits: Vec<&Claim> = claims.iter()
                    .filter(|c| c.address == [a; 16] && c.protocol == p && c.ports.contains(&port)).collect();
                hits.sort_by_key(|c| c.ports.end() - c.ports.start());
                hits
            };
            let clash = (0u8..4).any(|a| (0u8..3).any(|p| (0u16..70).any(|port| {
                let hits = matching(a, p, port);
                hits.len() > 1 && hits[0].ports.clone().count() == hits[1].ports.clone().count()
            })));
            match VipTable::build(&claims) {
                Err(_) => prop_assert!(clash),
                Ok(table) => {
                    for (a, p, port) in probes {
                        let expected = matching(a, p, port).first().map(|c| c.service);
                        prop_assert_eq!(table.find(&[a; 16], p, port), expected);
                        prop_assert_eq!(table.contains(&[a; 16]), claims.iter().any(|c| c.address == [a; 16]));
                    }
                }
            }
        }
    }
}
