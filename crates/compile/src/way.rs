//! Sets the next hop, MTU and VLAN tags of each slot, from the next-hop table and the VLAN settings
//! of the machine.

use std::net::IpAddr;
use std::sync::Arc;

use forwarder::{InterfaceId, NextHop, NextHopMode, Slot, Snapshot, Tagging, Translation};
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

/// Sets the next hop and the link MTU of each slot in `slots`.
pub(crate) fn fill_in(slots: &mut [Slot], machine: &Machine, next_hops: &next_hop::Table) {
    let taggings = taggings(machine);
    for slot in slots {
        (slot.next_hop, slot.mtu) = way_to(slot.address, &taggings, next_hops);
    }
}

/// Returns the next hop and the link MTU for packets to `address`. If the next hop is unknown,
/// returns the Ethernet MTU, and packets to the address are dropped.
fn way_to(address: IpAddr, taggings: &[Tagging], next_hops: &next_hop::Table) -> (Option<NextHop>, u16) {
    let Some(Ok(found)) = next_hops.next_hops.get(&address) else { return (None, ETHERNET_MTU) };
    let place = next_hops.interfaces.iter().position(|index| *index == found.leaves_by).unwrap_or(0);
    let hop = NextHop {
        destination: Mac(found.destination),
        source: Mac(found.source),
        interface: InterfaceId(u8::try_from(place).unwrap_or(u8::MAX)),
        // If the route goes through a VLAN device, this device determines the VLAN tags.
        tagging: match found.tags {
            Tags::NONE => taggings.get(place).cloned().unwrap_or_default(),
            tags => Tagging::Set(tags),
        },
    };
    (Some(hop), u16::try_from(found.mtu_bytes).unwrap_or(u16::MAX))
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

/// The MTU of a slot with an unknown next hop, in bytes.
pub(crate) const ETHERNET_MTU: u16 = 1500;
