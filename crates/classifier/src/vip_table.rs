//! VIP matching: (destination address, protocol, port) to a service.
//!
//! Built once per snapshot. An address of its own goes first, by an exact hash; else the longest prefix says which group the
//! address is in, and the longest suffix within that group says which VIP it is (`longest`), for a whole batch at once
//! (`batch_lookup`). Either leads to disjoint port intervals, sorted by (protocol, first port): ranges and `any` are cut by what is
//! more specific when the table is built (`ports`), so that a look-up is a few steps and one search.
//! Invariant: nothing is tried twice. An address that has a VIP has none besides, whatever its ports; an address in a group has
//! no VIP of a group with a shorter prefix, and none with a shorter suffix. So where a packet goes never depends on a service
//! that another VIP lacks.
//! Source: Eisenbud et al., *Maglev*, NSDI 2016, §4.2.

mod batch_lookup;
mod longest;
mod ports;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicU64, Ordering};

pub use self::batch_lookup::BatchLookup;
use self::longest::{Entry, Halves, Longest, halves};
use self::ports::{Interval, NEARBY, Nearby, disjoint, of_one, search};
use crate::Flow;
use crate::prefix::{bits_of, low};
use crate::{Prefix, Suffix};

/// A VIP's claim on ports for a service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim {
    /// The VIP.
    pub vip: VipKey,
    /// IP protocol number.
    pub protocol: u8,
    /// Its destination ports.
    pub ports: RangeInclusive<u16>,
    /// The caller's number of the service.
    pub service: u32,
}

/// What a VIP is matched by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum VipKey {
    /// One address, v4-mapped for IPv4.
    Exact([u8; 16]),
    /// A suffix within a group, by the group's number.
    Suffix(u32, Suffix),
}

/// A place of the table, a cache line.
#[derive(Clone, Copy, Debug)]
#[repr(align(64))]
struct Address {
    /// The address's bytes, as two little-endian words.
    words: [u64; 2],
    /// The first of its intervals; [`EMPTY`]: the place is.
    ports: u32,
    nearby: Nearby,
}

impl Address {
    const NONE: Self = Self { words: [0; 2], ports: EMPTY, nearby: Nearby::NONE };
}

/// The table. At most half full, so that a probe for an unknown address ends soon.
#[derive(Debug)]
pub struct VipTable {
    places: Box<[Address]>,
    has_exact: bool,
    intervals: Box<[Interval]>,
    groups: Option<Box<Groups>>,
}

/// From an address to its group, and from there to the VIP.
#[derive(Debug)]
struct Groups {
    prefixes: Longest<false>,
    suffixes: Longest<true>,
    /// No other table of this process has it; above 0.
    stamp: u64,
}

impl VipTable {
    /// `groups` are the prefixes of each group, by its number; each prefix stands in one of them. Two claims of equal width on
    /// the same port: gives the services that clash.
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
                continue; // claims of no port
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
        Ok(Self { places, has_exact: !addresses.is_empty(), intervals: intervals.into(), groups })
    }

    /// The service that an address, protocol and port belong to.
    #[inline]
    pub fn find(&self, address: &[u8; 16], protocol: u8, port: u16) -> Option<u32> {
        self.service(self.ports(address)?, protocol, port)
    }

    /// As [`Self::find`], for the packet at `place` of a batch that was looked up ahead.
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

    /// As [`Self::find`], for a table without groups or an address that has a VIP of its own; `None` says nothing of others.
    #[inline(always)]
    pub fn find_exact(&self, address: [u64; 2], protocol: u8, port: u16) -> Option<u32> {
        let found = self.address(address)?;
        match found.nearby.service_of(protocol, port) {
            None => self.find_further(found.ports, protocol, port),
            service => service,
        }
    }

    /// Whether all VIPs have addresses of their own.
    #[inline]
    pub const fn is_exact(&self) -> bool {
        self.groups.is_none()
    }

    /// Whether any VIP has the address of these words.
    #[inline(always)]
    pub fn has(&self, address: [u64; 2]) -> bool {
        self.address(address).is_some() || !self.is_exact() && self.contains(&bytes_of(address))
    }

    /// In the intervals that do not stand beside their address.
    #[inline(never)]
    fn find_further(&self, ports: u32, protocol: u8, port: u16) -> Option<u32> {
        let more = of_one(self.intervals.get(ports as usize..)?).len() > NEARBY;
        if more { self.service(ports, protocol, port) } else { None }
    }

    /// The interval at `ports`; one of no port where there is none.
    #[inline]
    fn interval(&self, ports: u32) -> Interval {
        self.intervals.get(ports as usize).copied().unwrap_or(Interval::EMPTY)
    }

    #[inline]
    fn service(&self, ports: u32, protocol: u8, port: u16) -> Option<u32> {
        search(self.intervals.get(ports as usize..)?, protocol, port)
    }

    /// The service that all ports of an address's protocol belong to, as far as they belong to any: what a packet without
    /// ports can be for.
    pub fn sole(&self, address: &[u8; 16], protocol: u8) -> Option<u32> {
        let mut services = self.intervals_of(address).iter().filter(|i| i.first >> 16 == u32::from(protocol));
        let service = services.next()?.service;
        services.all(|interval| interval.service == service).then_some(service)
    }

    /// The service that every port of an address's protocol belongs to.
    pub fn whole(&self, address: &[u8; 16], protocol: u8) -> Option<u32> {
        self.intervals_of(address).iter().find(|interval| interval.has_all_of(protocol)).map(|i| i.service)
    }

    /// A service of this address, the same on every machine that has the same services.
    pub fn first(&self, address: &[u8; 16]) -> Option<u32> {
        self.intervals_of(address).first().map(|interval| interval.service)
    }

    /// The service of each port range of this address.
    pub fn services(&self, address: &[u8; 16]) -> impl Iterator<Item = u32> {
        self.intervals_of(address).iter().map(|interval| interval.service)
    }

    fn intervals_of(&self, address: &[u8; 16]) -> &[Interval] {
        let Some(ports) = self.ports(address) else { return &[] };
        self.intervals.get(ports as usize..).map(of_one).unwrap_or_default()
    }

    /// Whether any VIP has this address.
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
            // Half the places are empty, so the walk ends.
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

/// Whether an address is one of IPv4, mapped.
#[inline]
fn is_v4(address: &Halves) -> bool {
    address[0] == 0 && address[1] >> 32 == MAPPED
}

/// Those of IPv4 stand behind what a mapped address begins with.
fn prefix_entry(prefix: Prefix, group: u32) -> Entry {
    let (space, before) = match prefix.address() {
        IpAddr::V4(_) => (1, 96),
        IpAddr::V6(_) => (0, 0),
    };
    Entry { space, bits: bits_of(prefix.address()), length: before + prefix.length(), value: group }
}

fn suffix_entry(group: u32, suffix: Suffix, ports: u32) -> Entry {
    let space = group * 2 + u32::from(suffix.address().is_ipv4());
    // What a mapped address has in front of its suffix is masked.
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

/// Spreads addresses. Not keyed: only configured VIPs are entered, and the filter lets no other address in.
#[inline(always)]
const fn mix([first, second]: [u64; 2]) -> usize {
    ((first ^ second.rotate_left(29)).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 20) as usize
}

/// The bytes of an address, as two little-endian words.
#[inline]
fn words_of(address: &[u8; 16]) -> [u64; 2] {
    sip_lanes::halves(address)
}

/// The address of these words.
fn bytes_of([first, second]: [u64; 2]) -> [u8; 16] {
    (u128::from(first) | u128::from(second) << 64).to_le_bytes()
}

fn index(n: usize) -> u32 {
    u32::try_from(n).unwrap_or(EMPTY)
}

const EMPTY: u32 = u32::MAX;

static STAMPS: AtomicU64 = AtomicU64::new(1);
/// What stands in front of a mapped IPv4 address.
const MAPPED: u64 = 0xffff;
