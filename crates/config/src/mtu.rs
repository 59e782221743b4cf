//! `[cluster.mtu]`: the maximum length of client packets, and the MTU of the links from the
//! machines to backends, peers and remote clusters.
//!
//! This module reads the section, and warns about outer packets that are longer than the MTU. The
//! command `sluicegate doctor` compares the values with the interfaces and routes on a machine.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use config_text::{Place, Report, Section};
use serde::Serialize;

use packet::Family;

use super::encapsulation::Encapsulation;
use super::pool::{Member, Pool};

/// Maximum lengths of IP packets in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Mtu {
    /// The maximum length of packets from clients: 576 to 9,000. Default: 1,500.
    pub clients: u32,
    /// The MTU of the links from the machines to backends, peers and remote clusters: 1,280 to
    /// 65,535. Default: none. Without this value, packet lengths are not checked.
    pub core: Option<u32>,
}

impl Mtu {
    /// Reads the section. Also returns the position of `core`.
    pub(super) fn read(mut section: Section<'_>) -> (Self, Option<Place>) {
        let clients = section.or("clients", Self::default().clients, |node| node.number(576..=9_000));
        let node = section.optional("core");
        let core = node.as_ref().and_then(|node| node.number(1_280..=65_535));
        section.finish();
        (Self { clients, core }, node.map(|node| node.place))
    }
}

impl Default for Mtu {
    fn default() -> Self {
        Self { clients: 1_500, core: None }
    }
}

impl Encapsulation {
    /// Returns the number of bytes that the encapsulation adds to a packet for `to`.
    pub fn encap_overhead(&self, to: IpAddr) -> u32 {
        packet::encap_overhead(&self.kind, if to.is_ipv4() { Family::V4 } else { Family::V6 }).into()
    }
}

/// Warns if the longest outer packet exceeds the MTU. Only the longest packet is reported, because
/// a link that can carry this packet can carry all others.
pub(super) fn warn_of_tight<'a>(
    mtu: &Mtu,
    members: impl Iterator<Item = &'a Member>,
    peers: &'a BTreeMap<Arc<str>, Arc<Pool>>,
    place: &Place,
    report: &Report,
) {
    let Some(core) = mtu.core else { return };
    let members = members.map(|member| ("packets to backend", member));
    let peers = peers.values().flat_map(|pool| &pool.members).map(|member| ("fragments to machine", member));
    let needed = |(_, member): &(&str, &Member)| {
        mtu.clients + member.encapsulation.encap_overhead(member.backend.address)
    };
    // Of the members with the longest outer packets, only the first is reported.
    let worst = members.chain(peers).reduce(|a, b| if needed(&b) > needed(&a) { b } else { a });
    let Some((what, member)) = worst.filter(|worst| needed(worst) > core) else { return };
    let message = format!(
        "cluster.mtu.core is {core}, but {what} \"{}\" need {}",
        &member.backend.name,
        needed(&(what, member)),
    );
    let help = format!(
        "packets of {} bytes in encapsulation \"{}\" to {} exceed the MTU and are fragmented; use a larger MTU",
        mtu.clients, &member.encapsulation.name, member.backend.address,
    );
    report.warning(place, (message, help));
}
