//! Ways to the backends: from what rtnetlink knows to what packet threads need.

use std::net::IpAddr;

use forwarder::{NextHop, NextHopMode, Slot, Snapshot};
use packet::Mac;

use super::CompileError;
use crate::config::{self, Config};
use crate::next_hop;
use crate::path_mtu::PathMtus;

/// The same snapshot with what is now known of next hops and of the paths behind them.
///
/// # Errors
/// Never in fact: the slots are the snapshot's own.
pub fn refresh_next_hops(
    snapshot: &Snapshot,
    config: &Config,
    next_hops: &next_hop::Table,
    path_mtus: &PathMtus,
) -> Result<Snapshot, CompileError> {
    let mut slots = snapshot.slots().to_vec();
    fill_in(&mut slots, next_hops);
    for slot in &mut slots {
        if let Some(learned) = path_mtus.of(&slot.address) {
            slot.mtu = slot.mtu.min(learned);
        }
    }
    Ok(snapshot.with_slots(slots, mode(config, next_hops))?)
}

/// Each slot's next hop and the MTU of its way.
pub(super) fn fill_in(slots: &mut [Slot], next_hops: &next_hop::Table) {
    for slot in slots {
        (slot.next_hop, slot.mtu) = way_to(slot.address, next_hops);
    }
}

/// The next hop and the MTU of the way; without a way the MTU is Ethernet's, and packets are dropped for want of a way.
fn way_to(address: IpAddr, next_hops: &next_hop::Table) -> (Option<NextHop>, u16) {
    match next_hops.next_hops.get(&address) {
        Some(Ok(found)) => {
            let hop = NextHop { destination: Mac(found.destination), source: Mac(found.source) };
            (Some(hop), u16::try_from(found.mtu_bytes).unwrap_or(u16::MAX))
        }
        _ => (None, ETHERNET_MTU),
    }
}

pub(super) fn mode(config: &Config, next_hops: &next_hop::Table) -> NextHopMode {
    match config.io().next_hop() {
        config::NextHop::Resolve => NextHopMode::Resolve,
        config::NextHop::Reflect => NextHopMode::Reflect {
            gateways: next_hops.gateways.iter().map(|gateway| Mac(gateway.mac)).collect(),
        },
    }
}

/// Where no way is known.
pub(super) const ETHERNET_MTU: u16 = 1500;
