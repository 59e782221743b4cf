//! Tunnels that end at the machine's own addresses, and errors about what it sends from them.
//!
//! In: own addresses and prefixes of outer sources, who may send tunnelled packets and how. Out: entries of two maps.
//! Not here: opening tunnels, reading errors (`forwarder`).

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::ops::RangeInclusive;

use aya::maps::lpm_trie::Key;
use aya::maps::{LpmTrie, MapData};
use forwarder::{Prefix, TunnelProtocols};

use super::SteerError;
use crate::attach::{self, in_map};

/// See the module's header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ends {
    /// Where outer packets come from and tunnels end.
    pub addresses: Vec<Prefix>,
    /// Who may send tunnelled packets there, and how they may be carried.
    pub sources: Vec<(Prefix, TunnelProtocols)>,
    /// Addresses at which packet threads await answers to requests of their own.
    pub answers: Vec<IpAddr>,
    /// The ports there, 32,767 at most.
    pub own_ports: RangeInclusive<u16>,
}

impl Default for Ends {
    /// Nothing.
    fn default() -> Self {
        Self { addresses: Vec::new(), sources: Vec::new(), answers: Vec::new(), own_ports: 1..=1 }
    }
}

/// The two maps, and what they hold.
pub(super) struct EndMaps {
    pub(super) ends: Entries,
    pub(super) sources: Entries,
}

pub(super) struct Entries {
    pub(super) map: LpmTrie<MapData, [u8; 16], u32>,
    pub(super) name: &'static str,
    pub(super) most: usize,
    pub(super) held: BTreeMap<Prefix, u32>,
}

impl EndMaps {
    pub(super) fn new(
        ends: LpmTrie<MapData, [u8; 16], u32>,
        sources: LpmTrie<MapData, [u8; 16], u32>,
    ) -> Self {
        let entries = |map, name, most| Entries { map, name, most, held: BTreeMap::new() };
        Self { ends: entries(ends, "ends", MOST_ENDS), sources: entries(sources, "sources", MOST_SOURCES) }
    }

    /// What is new comes first, so that nothing that remains is missing in between.
    pub(super) fn set(&mut self, wanted: &Ends) -> Result<(), SteerError> {
        let mut ends: BTreeMap<Prefix, u32> = wanted.addresses.iter().map(|prefix| (*prefix, ENDS)).collect();
        for address in &wanted.answers {
            let Some(whole) = Prefix::new(*address, if address.is_ipv4() { 32 } else { 128 }) else {
                continue;
            };
            // The program asks the longest prefix alone.
            let is_end = wanted.addresses.iter().any(|prefix| prefix.covers(&whole));
            ends.insert(whole, ports(&wanted.own_ports) | if is_end { ENDS } else { 0 });
        }
        let mut sources: BTreeMap<Prefix, u32> = BTreeMap::new();
        for (prefix, carriers) in &wanted.sources {
            *sources.entry(*prefix).or_default() |= u32::from(carriers.bits());
        }
        // The program asks the longest prefix alone: it allows what those around it do, which come right before it.
        let mut around: Vec<(Prefix, u32)> = Vec::new();
        for (prefix, by) in &mut sources {
            while around.last().is_some_and(|(outer, _)| !outer.covers(prefix)) {
                around.pop();
            }
            *by |= around.last().map_or(0, |(_, by)| *by);
            around.push((*prefix, *by));
        }
        self.ends.set(ends)?;
        self.sources.set(sources)
    }
}

impl Entries {
    fn set(&mut self, wanted: BTreeMap<Prefix, u32>) -> Result<(), SteerError> {
        if wanted.len() > self.most {
            return Err(SteerError::TooManyEnds { wanted: wanted.len(), allowed: self.most });
        }
        for (prefix, value) in &wanted {
            if self.held.get(prefix) != Some(value) {
                self.map.insert(&prefix_key(*prefix), *value, 0).map_err(in_map(self.name))?;
                self.held.insert(*prefix, *value);
            }
        }
        let gone: Vec<Prefix> = self.held.keys().filter(|held| !wanted.contains_key(held)).copied().collect();
        for prefix in gone {
            self.map.remove(&prefix_key(prefix)).map_err(in_map(self.name))?;
            self.held.remove(&prefix);
        }
        Ok(())
    }
}

fn prefix_key(prefix: Prefix) -> Key<[u8; 16]> {
    let in_front = if prefix.address().is_ipv4() { 96 } else { 0 };
    Key::new(u32::from(prefix.length()) + in_front, attach::key(prefix.address()))
}

/// In an end's value: the first, and how many.
fn ports(own: &RangeInclusive<u16>) -> u32 {
    let count = u32::try_from(own.len()).unwrap_or(0).min(MOST_PORTS);
    u32::from(*own.start()) << 16 | count << 1
}

/// The other bit of an end's value: tunnels end there.
const ENDS: u32 = 1;
const MOST_PORTS: u32 = 0x7fff;
/// Half of what the maps have room for, so that a wholly other set can come before the old one goes.
const MOST_ENDS: usize = 256;
const MOST_SOURCES: usize = 1_024;
