//! Builds a machine's pool of peers, and lists the senders from which it accepts tunneled packets.
//!
//! Peers form a pool and are therefore health-checked like backends. A Maglev table over all
//! machines of a shard assigns IP fragments to machines. Source: Maglev paper §2.1 and §4.3.

use std::sync::Arc;

use forwarder::{PoolTable, Prefix, THIS_MACHINE, TunnelProtocols, TunnelSource, TunnelSourceKind};
use maglev_hash::Table;

use crate::Index;
use config::{Config, Machine, Member, Pool};

/// Returns a pool that consists of the other machines in the shard.
#[must_use]
pub fn others(config: &Config, machine: &Machine) -> Option<Pool> {
    config.peers(machine).map(|pool| pool.without(machine.name()))
}

/// Returns the Maglev table of all machines in the shard, including this machine. The content of
/// this table is the same on every machine in the shard.
pub(crate) fn table(pool: &Pool, machine: &Machine, index: &Index, table: Option<Arc<Table>>) -> PoolTable {
    let slot = |member: &Member| {
        if *member.backend.name == *machine.name() {
            return THIS_MACHINE;
        }
        index.member(member).map_or(THIS_MACHINE, |known| known.slot)
    };
    PoolTable {
        name: Arc::clone(&pool.name),
        table,
        slots: pool.members.iter().map(slot).collect(),
        weights: pool.members.iter().map(|member| member.weight).collect(),
    }
}

/// Returns the addresses and prefixes from which tunneled packets are accepted: all addresses of
/// peers, and the configured sources of other clusters and upstream tunnels.
pub(crate) fn senders(config: &Config, machine: &Machine) -> Vec<TunnelSource> {
    let mut senders = Vec::new();
    let peers = config.machines().iter().filter(|other| {
        other.name() != machine.name() && machine.shard().is_some() && other.shard() == machine.shard()
    });
    for address in peers.flat_map(|peer| &peer.addresses) {
        let bits = if address.is_ipv4() { 32 } else { 128 };
        senders.extend(Prefix::new(*address, bits).map(|prefix| TunnelSource {
            prefix,
            carriers: TunnelProtocols::GRE,
            kind: TunnelSourceKind::Peer,
        }));
    }
    for remote in config.remotes() {
        senders.extend(remote.sources.iter().map(|prefix| TunnelSource {
            prefix: *prefix,
            carriers: TunnelProtocols::GRE,
            kind: TunnelSourceKind::Cluster,
        }));
    }
    if let Some(arrivals) = &config.cluster().upstream_tunnels {
        senders.extend(arrivals.sources.iter().map(|prefix| TunnelSource {
            prefix: *prefix,
            carriers: arrivals.kinds,
            kind: TunnelSourceKind::UpstreamTunnel,
        }));
    }
    senders
}
