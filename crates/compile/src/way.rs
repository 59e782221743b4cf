//! Sets the next hops, MTU and VLAN tags of each slot, from the next-hop table and the VLAN
//! settings of the machine.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::IpAddr;
use std::sync::Arc;

use forwarder::{HopTable, InterfaceId, NextHop, NextHopMode, Slot, Snapshot, Spread, Tagging, Translation};
use health::CheckHop;
use next_hop::{NeighbourKey, Resolved};
use packet::{Mac, Tag, Tags};

use crate::path_mtu::PathMtus;
use crate::{CompileError, find_machine};
use config::{self, Config, Machine, Vlan, VlanRule};

/// Returns a copy of `snapshot` with the current next hops and learned path MTUs.
///
/// # Errors
/// Returns [`CompileError::NoMachine`] if the configuration has no machine with this name.
pub fn refresh_next_hops(
    snapshot: &Snapshot,
    config: &Config,
    machine: &str,
    next_hops: &next_hop::Table,
    path_mtus: &PathMtus,
) -> Result<Snapshot, CompileError> {
    let machine = find_machine(config, machine)?;
    let mut slots = snapshot.slots().to_vec();
    fill_in(&mut slots, machine, next_hops);
    for slot in &mut slots {
        slot.mtu = path_mtus.of(slot).map_or(slot.mtu, |learned| slot.mtu.min(learned));
    }
    Ok(snapshot.with_slots(slots, mode(config, machine, next_hops))?)
}

/// Sets the next hops and the link MTU of each slot in `slots`.
pub(crate) fn fill_in(slots: &mut [Slot], machine: &Machine, next_hops: &next_hop::Table) {
    let mut ways = Ways { taggings: taggings(machine), next_hops, tables: HashMap::new() };
    for slot in slots {
        let usable = ways.usable(slot.address);
        slot.next_hop = usable.first().map(|(_, _, way)| ways.hop(way));
        slot.spread = ways.spread(&usable);
        slot.mtu = usable.iter().map(|(_, _, way)| mtu(way)).min().unwrap_or(ETHERNET_MTU);
    }
}

/// Returns the next hops through which the backends with multipath routes must be checked. Backends
/// without a usable next hop are not included.
///
/// # Errors
/// Returns [`CompileError::NoMachine`] if the configuration has no machine with this name.
pub fn check_hops(
    config: &Config,
    machine: &str,
    next_hops: &next_hop::Table,
) -> Result<HashMap<IpAddr, Arc<[CheckHop]>>, CompileError> {
    let taggings = taggings(find_machine(config, machine)?);
    let ways = Ways { taggings, next_hops, tables: HashMap::new() };
    let several = next_hops.next_hops.iter().filter(|(_, hops)| !hops.several().is_empty());
    let of = |address: IpAddr| {
        let check_hop = |(neighbour, _, way): &(NeighbourKey, u16, Resolved)| CheckHop {
            neighbour: *neighbour,
            next_hop: ways.hop(way),
            mtu: mtu(way),
        };
        ways.usable(address).iter().map(check_hop).collect::<Arc<_>>()
    };
    Ok(several.map(|(address, _)| (*address, of(*address))).filter(|(_, hops)| !hops.is_empty()).collect())
}

/// The next hops of the machine, in the form that the packet path uses.
struct Ways<'a> {
    taggings: Vec<Tagging>,
    next_hops: &'a next_hop::Table,
    /// The hop table for each list of hops and weights.
    tables: HashMap<Vec<(u64, u16)>, HopTable>,
}

impl Ways<'_> {
    /// Returns the usable next hops for packets to `address`, with their weights. If there is none,
    /// packets are dropped.
    fn usable(&self, address: IpAddr) -> Vec<(NeighbourKey, u16, Resolved)> {
        let Some(hops) = self.next_hops.next_hops.get(&address) else { return Vec::new() };
        if hops.several().is_empty() {
            return hops.first().into_iter().map(|way| ((way.interface, address), 1, way)).collect();
        }
        let usable =
            hops.several().iter().filter_map(|hop| Some((hop.neighbour, hop.weight, hop.found.ok()?)));
        usable.take(MAX_HOPS).collect()
    }

    fn hop(&self, way: &Resolved) -> NextHop {
        let interfaces = &self.next_hops.interfaces;
        let place = interfaces.iter().position(|index| *index == way.leaves_by).unwrap_or(0);
        NextHop {
            destination: Mac(way.destination),
            source: Mac(way.source),
            interface: InterfaceId(u8::try_from(place).unwrap_or(u8::MAX)),
            // A route through a VLAN device determines the VLAN tags.
            tagging: match way.tags {
                Tags::NONE => self.taggings.get(place).cloned().unwrap_or_default(),
                tags => Tagging::Set(tags),
            },
        }
    }

    /// Returns the data for distributing packets over several hops, or `None` if there is at most
    /// one hop.
    fn spread(&mut self, usable: &[(NeighbourKey, u16, Resolved)]) -> Option<Spread> {
        if usable.len() < 2 {
            return None;
        }
        let set: Vec<(u64, u16)> = usable.iter().map(|(key, weight, _)| (id(key), *weight)).collect();
        let table = self.tables.entry(set).or_insert_with_key(|set| HopTable::new(set)).clone();
        Some(Spread::new(usable.iter().map(|(_, _, way)| self.hop(way)).collect(), table))
    }
}

/// Returns an ID for a neighbor. The ID does not depend on the other hops of a route.
fn id(neighbour: &NeighbourKey) -> u64 {
    let mut hasher = DefaultHasher::new();
    neighbour.hash(&mut hasher);
    hasher.finish()
}

fn mtu(way: &Resolved) -> u16 {
    u16::try_from(way.mtu_bytes).unwrap_or(u16::MAX)
}

pub(crate) fn mode(config: &Config, machine: &Machine, next_hops: &next_hop::Table) -> NextHopMode {
    match config.io().next_hop {
        config::NextHop::Resolve => NextHopMode::Resolve,
        config::NextHop::Reflect => NextHopMode::Reflect {
            gateways: next_hops.gateways.iter().map(|gateway| Mac(gateway.mac)).collect(),
            tagging: taggings(machine).into(),
        },
    }
}

/// Returns the VLAN tagging of each interface of the machine, in the same order as in the
/// configuration.
fn taggings(machine: &Machine) -> Vec<Tagging> {
    machine.interfaces.iter().map(|interface| tagging(machine.vlan(interface))).collect()
}

fn tagging(vlan: &Vlan) -> Tagging {
    match vlan {
        Vlan::Keep => Tagging::Keep,
        Vlan::Strip => Tagging::Set(Tags::NONE),
        Vlan::Translate(rules) => Tagging::Translate(rules.iter().map(translation).collect::<Arc<_>>()),
    }
}

fn translation(rule: &VlanRule) -> Translation {
    let from = rule.from.as_ref().map(|vlans| [vlans.first().copied(), vlans.get(1).copied()]);
    let last = rule.to.len().saturating_sub(1);
    let innermost_first = rule.to.iter().rev().enumerate();
    let to = innermost_first.fold(Tags::NONE, |tags, (place, id)| {
        let is_service = place == last && rule.is_service;
        let tag = if is_service { Tag::service(*id, 0) } else { Tag::customer(*id, 0) };
        tag.and_then(|tag| tags.push(tag)).unwrap_or(tags)
    });
    Translation { from, to }
}

/// The maximum number of next hops of a slot.
const MAX_HOPS: usize = 256;
/// The MTU of a slot with an unknown next hop, in bytes.
pub(crate) const ETHERNET_MTU: u16 = 1500;
