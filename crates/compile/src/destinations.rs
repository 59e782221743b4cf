//! Lists the IP addresses for which the machine needs a next hop.

use std::net::IpAddr;

use forwarder::{SlotState, Snapshot};

use crate::others;
use config::Config;

/// Returns the addresses to which the machine `machine` sends packets with this configuration. The
/// result includes peers, and backends in `current` that are still draining.
#[must_use]
pub fn destinations(config: &Config, machine: &str, current: Option<&Snapshot>) -> Vec<IpAddr> {
    let peers = config.machine(machine).and_then(|machine| others(config, machine));
    let peers = peers.iter().flat_map(|pool| &pool.members);
    let mut addresses: Vec<IpAddr> =
        config.members().chain(peers).map(|member| member.backend.address).collect();
    if let Some(snapshot) = current {
        let in_use =
            snapshot.slots().iter().zip(snapshot.states()).filter(|(_, state)| **state != SlotState::Free);
        addresses.extend(in_use.map(|(slot, _)| slot.address));
    }
    addresses.sort_unstable();
    addresses.dedup();
    addresses
}
