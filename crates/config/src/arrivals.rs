//! `[cluster.arrivals]`: who may send packets for VIPs to the machines in tunnels.
//!
//! In: the section. Out: [`Arrivals`].
//! Not here: peers, which may always send fragments (`peers`); opening tunnels (`forwarder`).
//! Source: paper §2.1.

use config_text::{At, Node};
use serde::{Serialize, Serializer};

use forwarder::{Prefix, TunnelProtocols};

use super::address::AddressNode;
use super::canonical;

/// Encapsulators between routers and balancers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Arrivals {
    /// Their addresses.
    #[serde(serialize_with = "canonical::set")]
    pub sources: Vec<Prefix>,
    /// How they may carry packets. Default: every way.
    #[serde(serialize_with = "kinds")]
    pub kinds: TunnelProtocols,
}

impl Arrivals {
    pub(super) fn read(node: &Node<'_>) -> Option<Self> {
        let mut section = node.section()?;
        let sources = section.required("sources", SOURCES).and_then(|node| read_sources(&node));
        let sources = sources.map(|sources| sources.into_iter().map(|source| source.value).collect());
        let kinds = section.or("kinds", ALL, |node| read_kinds(&node));
        section.finish();
        Some(Self { sources: sources?, kinds })
    }
}

/// The list of those who may send.
pub(super) fn read_sources(node: &Node<'_>) -> Option<Vec<At<Prefix>>> {
    let items = node.items(SOURCES)?;
    if items.len() > MOST {
        return node.wrong(SOURCES);
    }
    items.iter().map(|node| Some(node.at(node.source(SOURCES)?))).collect()
}

fn read_kinds(node: &Node<'_>) -> Option<TunnelProtocols> {
    let read: Option<Vec<TunnelProtocols>> =
        node.items(KINDS)?.iter().map(|node| node.choice(&NAMES)).collect();
    Some(read?.into_iter().fold(TunnelProtocols::NONE, TunnelProtocols::and))
}

fn kinds<S: Serializer>(kinds: &TunnelProtocols, to: S) -> Result<S::Ok, S::Error> {
    let taken = NAMES.iter().filter(|(_, kind)| kinds.bits() & kind.bits() != 0);
    to.collect_seq(taken.map(|(name, _)| name))
}

const NAMES: [(&str, TunnelProtocols); 3] =
    [("gre", TunnelProtocols::GRE), ("ipip", TunnelProtocols::IPIP), ("gue", TunnelProtocols::GUE)];
const ALL: TunnelProtocols = TunnelProtocols::GRE.and(TunnelProtocols::IPIP).and(TunnelProtocols::GUE);
/// A quarter of what the XDP program has room for: the peers are there too.
const MOST: usize = 256;
const SOURCES: &str = "a list of 1 to 256 prefixes or addresses";
const KINDS: &str = "a list of \"gre\", \"ipip\" and \"gue\"";
