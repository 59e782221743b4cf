//! Finds the service for a destination address, protocol and port.
//!
//! The table is built once per snapshot. An exact VIP address is found by a hash lookup. For other
//! addresses, the longest matching prefix selects the prefix group, and the longest matching suffix
//! in this group selects the VIP (module `longest`). Prefix and suffix lookups are performed for a
//! whole batch at a time (module `batch_lookup`). Each VIP has disjoint port intervals (module
//! `ports`). The fast path has shorter lookups for IPv4 (module `v4`).
//!
//! Each address matches at most one VIP. If this VIP does not serve the port, the packet has no
//! service, even if another VIP with a shorter suffix or prefix serves the port.
//!
//! See §4.2 of Eisenbud et al., *Maglev*, NSDI 2016.

mod batch_lookup;
mod longest;
mod ports;
#[cfg(test)]
mod tests;
mod v4;

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicU64, Ordering};

use packet::FastHeaders;

pub use self::batch_lookup::BatchLookup;
use self::longest::{Entry, Halves, Longest, halves};
use self::ports::{Interval, NEARBY, Nearby, disjoint, of_one, search};
use self::v4::{AddressFilter, SinglePorts};
use crate::Flow;
use crate::prefix::{bits_of, low};
use crate::{Prefix, Suffix};

/// Assigns ports of a VIP to a service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim {
    /// The VIP to which the ports belong.
    pub vip: VipKey,
    /// The IP protocol number.
    pub protocol: u8,
    /// The destination ports that the service receives.
    pub ports: RangeInclusive<u16>,
    /// The service number, which the caller assigns.
    pub service: u32,
}

/// The addresses that belong to a VIP.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum VipKey {
    /// One address. IPv4 addresses are IPv4-mapped.
    Exact([u8; 16]),
    /// All addresses in the prefix group with this number that end with this suffix.
    Suffix(u32, Suffix),
}

/// An entry of the hash table, which fills one cache line.
#[derive(Clone, Copy, Debug)]
#[repr(align(64))]
struct Address {
    /// The bytes of the address as two little-endian words.
    words: [u64; 2],
    /// The index of the address's first port interval, or [`EMPTY`] if the entry is unused.
    ports: u32,
    nearby: Nearby,
}

impl Address {
    const NONE: Self = Self { words: [0; 2], ports: EMPTY, nearby: Nearby::NONE };
}

/// The VIP table of a snapshot. The hash table is at most half full, so lookups of addresses that
/// are not in the table end quickly.
#[derive(Debug)]
pub struct VipTable {
    places: Box<[Address]>,
    has_exact: bool,
    intervals: Box<[Interval]>,
    groups: Option<Box<Groups>>,
    single_ports: SinglePorts,
    /// The addresses of all VIPs.
    v4_filter: AddressFilter,
}

/// The lookup of VIPs in prefix groups.
#[derive(Debug)]
struct Groups {
    prefixes: Longest<false>,
    suffixes: Longest<true>,
    /// A nonzero number that uniquely identifies this table within the process.
    stamp: u64,
}

impl VipTable {
    /// Builds the table. `groups` yields the prefixes of each prefix group, ordered by group
    /// number. A prefix must belong to only one group.
    ///
    /// # Errors
    /// Returns the two conflicting services if their claims overlap and contain the same number of
    /// ports. An overlap is not an error if a third, narrower claim covers the overlap.
    pub fn build<'a>(
        claims: &[Claim],
        groups: impl ExactSizeIterator<Item = &'a [Prefix]>,
    ) -> Result<Self, (u32, u32)> {
        let mut by_vip: BTreeMap<VipKey, Vec<&Claim>> = BTreeMap::new();
        for claim in claims {
            by_vip.entry(claim.vip).or_default().push(claim);
        }
        let (mut addresses, mut intervals): (Vec<([u8; 16], u32)>, _) = (Vec::new(), Vec::new());
        let mut suffixes = Vec::new();
        for (vip, claims) in by_vip {
            let ports = index(intervals.len());
            intervals.extend(disjoint(&claims)?);
            if intervals.len() == ports as usize {
                continue; // The claims contain no ports.
            }
            match vip {
                VipKey::Exact(bytes) => addresses.push((bytes, ports)),
                VipKey::Suffix(group, suffix) => suffixes.push(suffix_entry(group, suffix, ports)),
            }
        }
        let spaces = groups.len() * 2;
        let prefixes: Vec<Entry> = (0..)
            .zip(groups)
            .flat_map(|(group, prefixes)| prefixes.iter().map(move |prefix| prefix_entry(*prefix, group)))
            .collect();
        let groups = (!prefixes.is_empty() && !suffixes.is_empty()).then(|| {
            let prefixes = Longest::build(2, prefixes);
            let (suffixes, stamp) =
                (Longest::build(spaces, suffixes), STAMPS.fetch_add(1, Ordering::Relaxed));
            Box::new(Groups { prefixes, suffixes, stamp })
        });
        let places = places(&addresses, &intervals);
        let of_address = |(bytes, ports): &([u8; 16], u32)| (*bytes, of_one(&intervals[*ports as usize..]));
        let single_ports = SinglePorts::build(addresses.iter().map(of_address));
        let v4_filter = match &groups {
            Some(_) => AddressFilter::of_all(),
            None => AddressFilter::build(addresses.iter().map(|(bytes, _)| *bytes)),
        };
        let (has_exact, intervals) = (!addresses.is_empty(), intervals.into());
        Ok(Self { places, has_exact, intervals, groups, single_ports, v4_filter })
    }

    /// Returns the service for an address, protocol and port.
    #[inline]
    pub fn find(&self, address: &[u8; 16], protocol: u8, port: u16) -> Option<u32> {
        self.service(self.ports(address)?, protocol, port)
    }

    /// Returns the same result as [`Self::find`] for the packet at index `place` of a batch. Uses
    /// the result in `ahead` if it belongs to the same address.
    #[inline]
    pub fn find_ahead(&self, ahead: &BatchLookup, place: usize, flow: &Flow) -> Option<u32> {
        let Flow { destination: address, protocol, destination_port: port, .. } = flow;
        let (protocol, port) = (*protocol, *port);
        let known = self.groups.as_ref().and_then(|groups| ahead.get(place, groups.stamp, address));
        match known {
            Some(place) if place.first.is_only() => place.first.service_of(protocol, port),
            Some(place) => self.service(place.ports, protocol, port),
            None => self.find(address, protocol, port),
        }
    }

    /// Looks up a service only among exact VIP addresses. Returns `None` for an address that
    /// belongs to a VIP of a prefix group.
    #[inline(always)]
    pub fn find_exact(&self, address: [u64; 2], protocol: u8, port: u16) -> Option<u32> {
        let found = self.address(address)?;
        match found.nearby.service_of(protocol, port) {
            None => self.find_further(found.ports, protocol, port),
            service => service,
        }
    }

    /// Looks up the service of an IPv4 packet to an exact VIP address, given the hash input of the
    /// packet for [`HashPolicy::FiveTuple`](crate::HashPolicy::FiveTuple). Returns `None` if the
    /// packet has no service, and for some packets that have a service. In both cases, the caller
    /// must use [`Self::find_exact`] or [`Self::find_ahead`].
    #[inline(always)]
    pub fn find_single_port(&self, message: [u64; 2]) -> Option<u32> {
        self.single_ports.find(message)
    }

    /// Returns `true` if the table has no prefix groups, so every VIP is an exact address.
    #[inline]
    pub const fn is_exact(&self) -> bool {
        self.groups.is_none()
    }

    /// Returns `true` if the address belongs to a VIP. `address` consists of two little-endian
    /// words.
    #[inline(always)]
    pub fn has(&self, address: [u64; 2]) -> bool {
        self.address(address).is_some() || !self.is_exact() && self.contains(&bytes_of(address))
    }

    /// Does the same as [`Self::has`] for an IPv4 address. Most addresses that do not belong to a
    /// VIP take one memory access.
    #[inline(always)]
    pub fn has_v4(&self, address: u32) -> bool {
        self.v4_filter.may_have(address) && self.has_mapped(address)
    }

    #[inline(never)]
    fn has_mapped(&self, address: u32) -> bool {
        self.has(FastHeaders::mapped(address))
    }

    /// Searches the intervals that are not stored in the hash table entry.
    #[inline(never)]
    fn find_further(&self, ports: u32, protocol: u8, port: u16) -> Option<u32> {
        let more = of_one(self.intervals.get(ports as usize..)?).len() > NEARBY;
        if more { self.service(ports, protocol, port) } else { None }
    }

    /// Returns the interval with index `ports`, or an empty interval if the index is out of range.
    #[inline]
    fn interval(&self, ports: u32) -> Interval {
        self.intervals.get(ports as usize).copied().unwrap_or(Interval::EMPTY)
    }

    #[inline]
    fn service(&self, ports: u32, protocol: u8, port: u16) -> Option<u32> {
        search(self.intervals.get(ports as usize..)?, protocol, port)
    }

    /// Returns the service for packets without ports, given their protocol. Returns `None` if
    /// several services share the ports of this protocol.
    pub fn sole(&self, address: &[u8; 16], protocol: u8) -> Option<u32> {
        let mut services = self.intervals_of(address).iter().filter(|i| i.first >> 16 == u32::from(protocol));
        let service = services.next()?.service;
        services.all(|interval| interval.service == service).then_some(service)
    }

    /// Returns the service that owns all 65,536 ports of a protocol at this address.
    pub fn whole(&self, address: &[u8; 16], protocol: u8) -> Option<u32> {
        self.intervals_of(address).iter().find(|interval| interval.has_all_of(protocol)).map(|i| i.service)
    }

    /// Returns one of the services at this address, which is the same on all machines with the same
    /// configuration.
    pub fn first(&self, address: &[u8; 16]) -> Option<u32> {
        self.intervals_of(address).first().map(|interval| interval.service)
    }

    /// Returns the service of each port range at this address.
    pub fn services(&self, address: &[u8; 16]) -> impl Iterator<Item = u32> {
        self.intervals_of(address).iter().map(|interval| interval.service)
    }

    fn intervals_of(&self, address: &[u8; 16]) -> &[Interval] {
        let Some(ports) = self.ports(address) else { return &[] };
        self.intervals.get(ports as usize..).map(of_one).unwrap_or_default()
    }

    /// Returns `true` if the address belongs to a VIP.
    #[inline]
    pub fn contains(&self, address: &[u8; 16]) -> bool {
        self.ports(address).is_some()
    }

    #[inline]
    fn ports(&self, address: &[u8; 16]) -> Option<u32> {
        match self.address(words_of(address)) {
            Some(found) => Some(found.ports),
            None => self.groups.as_ref()?.ports(address),
        }
    }

    #[inline(always)]
    fn address(&self, words: [u64; 2]) -> Option<&Address> {
        let mask = self.places.len() - 1;
        let mut place = mix(words) & mask;
        loop {
            let address = self.places.get(place)?;
            // The loop ends because at least half of the entries are unused.
            if address.ports == EMPTY {
                return None;
            }
            if address.words == words {
                return Some(address);
            }
            place = (place + 1) & mask;
        }
    }
}

impl Groups {
    #[inline]
    fn ports(&self, address: &[u8; 16]) -> Option<u32> {
        let address = halves(u128::from_be_bytes(*address));
        let is_v4 = u32::from(is_v4(&address));
        let group = self.prefixes.find(is_v4, &address)?;
        self.suffixes.find(group * 2 + is_v4, &address)
    }
}

/// Returns `true` for an IPv4-mapped address.
#[inline]
fn is_v4(address: &Halves) -> bool {
    address[0] == 0 && address[1] >> 32 == MAPPED
}

/// Converts a prefix to an entry of the longest-match lookup. The bits of an IPv4 prefix start
/// after the 96 leading bits of the mapped address.
fn prefix_entry(prefix: Prefix, group: u32) -> Entry {
    let (space, before) = match prefix.address() {
        IpAddr::V4(_) => (1, 96),
        IpAddr::V6(_) => (0, 0),
    };
    Entry { space, bits: bits_of(prefix.address()), length: before + prefix.length(), value: group }
}

fn suffix_entry(group: u32, suffix: Suffix, ports: u32) -> Entry {
    let space = group * 2 + u32::from(suffix.address().is_ipv4());
    // The mask removes the leading bits of an IPv4-mapped address.
    let bits = bits_of(suffix.address()) & low(suffix.length());
    Entry { space, bits, length: suffix.length(), value: ports }
}

fn places(addresses: &[([u8; 16], u32)], intervals: &[Interval]) -> Box<[Address]> {
    let mut places = vec![Address::NONE; (addresses.len() * 2).next_power_of_two().max(2)].into_boxed_slice();
    for (bytes, ports) in addresses {
        let words = words_of(bytes);
        let mut place = mix(words) & (places.len() - 1);
        while places[place].ports != EMPTY {
            place = (place + 1) & (places.len() - 1);
        }
        let nearby = Nearby::of(intervals.get(*ports as usize..).unwrap_or_default());
        places[place] = Address { words, ports: *ports, nearby };
    }
    places
}

/// Hashes an address without a secret key. No key is needed, because the table contains only
/// configured VIPs, which attackers cannot choose.
#[inline(always)]
const fn mix([first, second]: [u64; 2]) -> usize {
    ((first ^ second.rotate_left(29)).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 20) as usize
}

/// Returns the bytes of an address as two little-endian words.
#[inline]
fn words_of(address: &[u8; 16]) -> [u64; 2] {
    sip_lanes::halves(address)
}

/// Builds an address from two little-endian words.
fn bytes_of([first, second]: [u64; 2]) -> [u8; 16] {
    (u128::from(first) | u128::from(second) << 64).to_le_bytes()
}

fn index(n: usize) -> u32 {
    u32::try_from(n).unwrap_or(EMPTY)
}

const EMPTY: u32 = u32::MAX;

static STAMPS: AtomicU64 = AtomicU64::new(1);
/// The leading bits of an IPv4-mapped address.
const MAPPED: u64 = 0xffff;
