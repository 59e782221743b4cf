//! Where packets of a configuration are sent: what next hops are wanted for.

use std::net::IpAddr;

use forwarder::{SlotState, Snapshot};

use crate::config::Config;

/// The addresses that packets of this configuration are sent to, and those of `current`'s slots that still drain.
#[must_use]
pub fn destinations(config: &Config, current: Option<&Snapshot>) -> Vec<IpAddr> {
    let mut addresses: Vec<IpAddr> = config.members().map(|member| member.backend().address()).collect();
    if let Some(snapshot) = current {
        let in_use =
            snapshot.slots().iter().zip(snapshot.states()).filter(|(_, state)| **state != SlotState::Free);
        addresses.extend(in_use.map(|(slot, _)| slot.address));
    }
    addresses.sort_unstable();
    addresses.dedup();
    addresses
}
