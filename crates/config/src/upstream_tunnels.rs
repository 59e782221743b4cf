//! `[cluster.upstream_tunnels]`: tunnels through which upstream devices send packets for VIPs to
//! the machines.
//!
//! Peers in the same shard may send fragments even without this section (module `peers`). The crate
//! `forwarder` decapsulates the packets. Source: Eisenbud et al., *Maglev*, NSDI 2016, §2.1.

use config_text::{At, Expected, Node};
use serde::{Serialize, Serializer};

use forwarder::{Prefix, TunnelProtocols};

use super::address::AddressNode;
use super::canonical;

/// The upstream devices that send packets for VIPs through tunnels, and the tunnel protocols.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct UpstreamTunnels {
    /// The source addresses of the tunnel packets.
    #[serde(serialize_with = "canonical::set")]
    pub sources: Vec<Prefix>,
    /// The accepted tunnel protocols. Default: all.
    #[serde(serialize_with = "kinds")]
    pub kinds: TunnelProtocols,
}

impl UpstreamTunnels {
    pub(super) fn read(node: &Node<'_>) -> Option<Self> {
        let mut section = node.section()?;
        let sources = section.required("sources", SOURCES).and_then(|node| read_sources(&node));
        let sources = sources.map(|sources| sources.into_iter().map(|source| source.value).collect());
        let kinds = section.or("kinds", ALL, |node| read_kinds(&node));
        section.finish();
        Some(Self { sources: sources?, kinds })
    }
}

pub(super) fn read_sources(node: &Node<'_>) -> Option<Vec<At<Prefix>>> {
    let items = node.items(SOURCES)?;
    if items.len() > MOST {
        let message = format!("{} has {} entries, and the limit is {MOST}", node.label(), items.len());
        return node.wrong((message, "use prefixes in place of addresses"));
    }
    items.iter().map(|node| Some(node.at(node.source(SOURCE)?))).collect()
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
/// The maximum number of source prefixes, which is a quarter of the capacity of the XDP program's
/// map. The map also contains the peers.
const MOST: usize = 256;
const SOURCES: Expected = Expected::new("a list of prefixes or addresses").example("[\"198.51.100.64/28\"]");
const SOURCE: Expected = Expected::new("an IP prefix or address").example("\"198.51.100.64/28\"");
const KINDS: Expected = Expected::new("a list of tunnel protocols").example("[\"gre\", \"ipip\", \"gue\"]");
