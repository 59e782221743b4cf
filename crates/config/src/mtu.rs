//! `[cluster.mtu]`: what clients send, and what the links behind the machines carry.
//!
//! In: the section. Out: [`Mtu`], and warnings of outer packets that are longer than those links carry.
//! Not here: what a machine's interfaces and routes really carry (`doctor`), what is done with a packet that does not fit.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use config_text::{Place, Report, Section};
use serde::Serialize;

use packet::Family;

use super::encapsulation::Encapsulation;
use super::pool::{Member, Pool};

/// Lengths of IP packets in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Mtu {
    /// The longest packet that clients send: 576 to 9,000. Default 1,500.
    pub clients: u32,
    /// What the links from the machines to backends, to each other and to other clusters carry: 1,280 to 65,535. Default: not
    /// said, and `config check` does not look.
    pub core: Option<u32>,
}

impl Mtu {
    /// The section, and where `core` stands.
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
    /// Bytes that it adds to a packet for `to`.
    pub fn encap_overhead(&self, to: IpAddr) -> u32 {
        packet::encap_overhead(&self.kind, if to.is_ipv4() { Family::V4 } else { Family::V6 }).into()
    }
}

/// One warning, of the longest packet: what raises the links for that one raises them for all.
pub(super) fn warn_of_tight<'a>(
    mtu: &Mtu,
    members: impl Iterator<Item = &'a Member>,
    peers: &'a BTreeMap<Arc<str>, Arc<Pool>>,
    place: &Place,
    report: &Report,
) {
    let Some(core) = mtu.core else { return };
    let members = members.map(|member| ("backend", member));
    let peers = peers.values().flat_map(|pool| &pool.members).map(|member| ("fragments to machine", member));
    let needed = |(_, member): &(&str, &Member)| {
        mtu.clients + member.encapsulation.encap_overhead(member.backend.address)
    };
    // The first of those that need the most.
    let worst = members.chain(peers).reduce(|a, b| if needed(&b) > needed(&a) { b } else { a });
    let Some((what, member)) = worst.filter(|worst| needed(worst) > core) else { return };
    let found = format!(
        "{core}, but {what} \"{}\" need{} {}: {} of a client and {} over {}",
        &member.backend.name,
        if what == "backend" { "s" } else { "" },
        needed(&(what, member)),
        mtu.clients,
        &member.encapsulation.name,
        member.backend.address,
    );
    report.warning(
        place,
        found,
        "links that carry that much; else clients get Packet Too Big, and their packets are fragmented",
    );
}
