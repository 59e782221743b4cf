//! The tunnel endpoints of this machine, the allowed tunnel sources, and the addresses for replies
//! to upstream requests. All these addresses are stored in two maps of the steering program. The
//! crate `forwarder` decapsulates the packets and handles the ICMP errors.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::ops::RangeInclusive;

use aya::maps::lpm_trie::Key;
use aya::maps::{LpmTrie, MapData};
use forwarder::{Prefix, TunnelProtocols};

use super::SteerError;
use crate::attach::{self, in_map};

/// The tunnel endpoints and allowed tunnel sources of this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TunnelEndpoints {
    /// The addresses at which tunneled packets are received. Outer packets are also sent from these
    /// addresses.
    pub addresses: Vec<Prefix>,
    /// The allowed senders of tunneled packets, with the encapsulations that each may use.
    pub sources: Vec<(Prefix, TunnelProtocols)>,
    /// The addresses at which packet threads receive replies to upstream requests.
    pub answers: Vec<IpAddr>,
    /// The source ports for upstream requests. The range has at most 32,767 ports.
    pub source_ports: RangeInclusive<u16>,
}

impl Default for TunnelEndpoints {
    /// Returns a value with no endpoints and no sources.
    fn default() -> Self {
        Self { addresses: Vec::new(), sources: Vec::new(), answers: Vec::new(), source_ports: 1..=1 }
    }
}

/// The two maps, with a copy of their content.
pub(super) struct EndpointMaps {
    pub(super) ends: Entries,
    pub(super) sources: Entries,
}

pub(super) struct Entries {
    pub(super) map: LpmTrie<MapData, [u8; 16], u32>,
    pub(super) name: &'static str,
    pub(super) most: usize,
    pub(super) held: BTreeMap<Prefix, u32>,
}

impl EndpointMaps {
    pub(super) fn new(
        ends: LpmTrie<MapData, [u8; 16], u32>,
        sources: LpmTrie<MapData, [u8; 16], u32>,
    ) -> Self {
        let entries = |map, name, most| Entries { map, name, most, held: BTreeMap::new() };
        Self {
            ends: entries(ends, "ends", MAX_TUNNEL_ENDPOINTS),
            sources: entries(sources, "sources", MOST_SOURCES),
        }
    }

    /// Updates the maps to match `wanted`. New entries are added before old entries are removed, so
    /// an entry in both sets is never missing.
    pub(super) fn set(&mut self, wanted: &TunnelEndpoints) -> Result<(), SteerError> {
        let mut ends: BTreeMap<Prefix, u32> = wanted.addresses.iter().map(|prefix| (*prefix, ENDS)).collect();
        for address in &wanted.answers {
            let Some(whole) = Prefix::new(*address, if address.is_ipv4() { 32 } else { 128 }) else {
                continue;
            };
            // The program looks up only the longest matching prefix.
            let is_end = wanted.addresses.iter().any(|prefix| prefix.covers(&whole));
            ends.insert(whole, ports(&wanted.source_ports) | if is_end { ENDS } else { 0 });
        }
        let mut sources: BTreeMap<Prefix, u32> = BTreeMap::new();
        for (prefix, carriers) in &wanted.sources {
            *sources.entry(*prefix).or_default() |= u32::from(carriers.bits());
        }
        // The program looks up only the longest matching prefix. The map value of each prefix
        // therefore also allows the encapsulations of all prefixes that contain this prefix. In the
        // sort order, a prefix comes before the prefixes that it contains.
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
            return Err(SteerError::TooManyTunnelEndpoints { wanted: wanted.len(), allowed: self.most });
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

/// Encodes the first port and the number of ports as a map value.
fn ports(own: &RangeInclusive<u16>) -> u32 {
    let count = u32::try_from(own.len()).unwrap_or(0).min(MOST_PORTS);
    u32::from(*own.start()) << 16 | count << 1
}

/// The bit of a map value that marks a tunnel endpoint.
const ENDS: u32 = 1;
const MOST_PORTS: u32 = 0x7fff;
/// The maximum number of entries in a set. The limit is half of the map size, so that a completely
/// different set can be added before the old set is removed.
const MAX_TUNNEL_ENDPOINTS: usize = 256;
const MOST_SOURCES: usize = 1_024;
