//! The lookups of the VIP table that the fast path performs for each IPv4 packet: the service at a
//! single port of an exact address, and a filter that rules out that a source is a VIP.
//!
//! A lookup reads one bucket or one word, so its running time does not depend on the addresses and
//! ports that a client chooses. Both structures are incomplete: the caller must use the general
//! lookup for a port that is not found, and for a source that the filter does not rule out.

use super::ports::Interval;
use super::words_of;
use crate::{Ends, HashPolicy, is_v4};

/// A port of an exact IPv4 address. An unused entry contains zeros, which match no packet.
#[derive(Clone, Copy, Debug, Default)]
struct Port {
    tail: u64,
    address: u32,
    service: u32,
}

/// The services at ports of exact IPv4 addresses. A bucket has two entries, and fewer than half of
/// the buckets contain a port. A port whose bucket is full is left out.
#[derive(Debug)]
pub(super) struct SinglePorts {
    buckets: Box<[[Port; 2]]>,
}

impl SinglePorts {
    /// Builds the table. `addresses` contains each address with its intervals. Intervals of more
    /// than [`SHORT`] ports are left out.
    pub(super) fn build<'a>(addresses: impl Iterator<Item = ([u8; 16], &'a [Interval])>) -> Self {
        let ports: Vec<Port> = addresses
            .filter(|(address, _)| is_v4(address))
            .flat_map(|(address, intervals)| intervals.iter().map(move |interval| (address, *interval)))
            .filter(|(_, interval)| interval.last - interval.first < SHORT)
            .flat_map(|(address, interval)| {
                (interval.first..=interval.last)
                    .map(move |number| Port::new(&address, number, interval.service))
            })
            .collect();
        let buckets = (ports.len() * 2).next_power_of_two();
        let mut table = Self { buckets: vec![[Port::default(); 2]; buckets].into() };
        for port in ports {
            let bucket = &mut table.buckets[mix(port.address, port.tail) & (buckets - 1)];
            if let Some(free) = bucket.iter_mut().find(|entry| entry.tail == 0) {
                *free = port;
            }
        }
        table
    }

    /// Returns the service for a packet, or `None` if the table does not contain its port.
    /// `message` is the hash input of the packet for [`HashPolicy::FiveTuple`].
    #[inline(always)]
    pub(super) fn find(&self, message: [u64; 2]) -> Option<u32> {
        let (address, tail) = key(message);
        let mask = self.buckets.len().wrapping_sub(1);
        let [first, second] = self.buckets.get(mix(address, tail) & mask)?;
        if first.tail == tail && first.address == address {
            return Some(first.service);
        }
        (second.tail == tail && second.address == address).then_some(second.service)
    }
}

impl Port {
    /// `number` is the protocol number in the upper 16 bits, and the port in the lower 16 bits.
    fn new(address: &[u8; 16], number: u32, service: u32) -> Self {
        let ends = Ends { source: [0; 2], destination: words_of(address), ports: number & 0xffff };
        #[expect(clippy::cast_possible_truncation, reason = "protocol numbers are below 256")]
        let (address, tail) = key(ends.message_v4(HashPolicy::FiveTuple, (number >> 16) as u8));
        Self { tail, address, service }
    }
}

/// Returns the destination address and the other fields of a hash input that identify a port. The
/// shift removes the source port.
#[inline(always)]
#[expect(clippy::cast_possible_truncation, reason = "the destination is the lower half")]
const fn key([addresses, tail]: [u64; 2]) -> (u32, u64) {
    (addresses as u32, tail << 16)
}

/// Returns a hash whose lowest bits depend on all bits of the key. These are the highest bits of
/// the product, because the port is in the highest bits of `tail`.
#[inline(always)]
#[expect(clippy::cast_possible_truncation, reason = "the caller uses only the lowest bits")]
const fn mix(address: u32, tail: u64) -> usize {
    (tail ^ address as u64).wrapping_mul(FACTOR).swap_bytes() as usize
}

/// A set of IPv4 addresses that may contain other addresses too: a Bloom filter with one hash
/// function. At least 15 of 16 addresses that are not VIPs are ruled out.
#[derive(Debug)]
pub(super) struct AddressFilter {
    words: Box<[u64]>,
}

impl AddressFilter {
    pub(super) fn build(addresses: impl ExactSizeIterator<Item = [u8; 16]>) -> Self {
        let words = (addresses.len().div_ceil(4)).next_power_of_two();
        let mut filter = Self { words: vec![0; words].into() };
        for address in addresses.filter(is_v4) {
            let [.., a, b, c, d] = address;
            let (word, bit) = position(u32::from_be_bytes([a, b, c, d]));
            filter.words[word & (words - 1)] |= 1 << bit;
        }
        filter
    }

    /// Returns a set of all addresses.
    pub(super) fn of_all() -> Self {
        Self { words: [u64::MAX].into() }
    }

    /// Returns `false` if the set does not contain the address.
    #[inline(always)]
    pub(super) fn may_have(&self, address: u32) -> bool {
        let (word, bit) = position(address);
        let mask = self.words.len().wrapping_sub(1);
        self.words.get(word & mask).is_some_and(|word| word >> bit & 1 == 1)
    }
}

/// Returns the word and the bit for an address. The caller must reduce the word modulo the length.
#[inline(always)]
const fn position(address: u32) -> (usize, u32) {
    let mixed = (address as u64).wrapping_mul(FACTOR);
    ((mixed >> 32) as usize, (mixed >> 58) as u32)
}

/// The longest port interval whose ports are entered one by one.
const SHORT: u32 = 8;
/// 2^64 divided by the golden ratio.
const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::{Claim, VipKey, VipTable, mapped};

    proptest! {
        /// Compares the table with the general lookup. The few addresses and ports cause full
        /// buckets and ports next to each other.
        #[test]
        fn single_ports_and_sources_agree_with_the_general_lookup(
            claims in prop::collection::vec((0..6_u8, any::<bool>(), 0..40_u16, 0..12_u16, 0..9_u32), 0..60),
            asked in prop::collection::vec((0..6_u8, any::<bool>(), any::<u16>(), 0..50_u16), 0..100),
        ) {
            let address = |host: u8| mapped(std::net::Ipv4Addr::new(192, 0, 2, host).into());
            let protocol = |udp: bool| if udp { 17 } else { 6 };
            let claims: Vec<Claim> = claims.into_iter().map(|(host, udp, first, more, service)| Claim {
                vip: VipKey::Exact(address(host)),
                protocol: protocol(udp),
                ports: first..=first + more,
                service,
            }).collect();
            let Ok(table) = VipTable::build(&claims, [].into_iter()) else { return Ok(()) };
            for (host, udp, source_port, port) in asked {
                let (to, protocol) = (address(host), protocol(udp));
                let ports = u32::from(source_port) << 16 | u32::from(port);
                let ends = Ends { source: words_of(&address(9)), destination: words_of(&to), ports };
                let found = table.find_single_port(ends.message_v4(HashPolicy::FiveTuple, protocol));
                let expected = table.find(&to, protocol, port);
                prop_assert!(found.is_none() || found == expected, "{:?} {:?}", found, expected);
                prop_assert_eq!(table.has_v4(0xc000_0200 | u32::from(host)), table.contains(&to));
            }
        }
    }

    #[test]
    fn most_single_ports_are_found_without_the_general_lookup() {
        let claims: Vec<Claim> = (0..200_u8)
            .flat_map(|host| [80, 443, 8080].map(|port| (host, port)))
            .map(|(host, port)| Claim {
                vip: VipKey::Exact(mapped(std::net::Ipv4Addr::new(198, 51, 100, host).into())),
                protocol: 6,
                ports: port..=port,
                service: u32::from(host) << 16 | u32::from(port),
            })
            .collect();
        let table = VipTable::build(&claims, [].into_iter()).expect("no overlap");
        let found = claims.iter().filter(|claim| {
            let VipKey::Exact(bytes) = claim.vip else { unreachable!("all VIPs are exact") };
            let ends =
                Ends { source: [0; 2], destination: words_of(&bytes), ports: (*claim.ports.start()).into() };
            let service = table.find_single_port(ends.message_v4(HashPolicy::FiveTuple, 6));
            assert!(service.is_none_or(|service| service == claim.service));
            service.is_some()
        });
        assert!(found.count() > claims.len() * 9 / 10);
        let others = (0..16_000_u32).filter(|n| table.has_v4(0xcb00_7100 + n * 7919));
        assert_eq!(others.count(), 0);
    }
}
