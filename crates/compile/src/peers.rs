//! The other machines of a shard, and who else may send tunnelled packets here.
//!
//! In: the configuration. Out: the table by which fragments are shared out among machines, and the senders of tunnels.
//! Source: paper §2.1, §4.3.

use std::sync::Arc;

use forwarder::{PoolTable, Prefix, THIS_MACHINE, TunnelProtocols, TunnelSource, TunnelSourceKind};
use maglev_hash::Table;

use crate::Index;
use config::{Config, Machine, Member, Pool};

/// The other machines of the shard; as a pool, so that they are checked like backends.
#[must_use]
pub fn others(config: &Config, machine: &Machine) -> Option<Pool> {
    config.peers(machine).map(|pool| pool.without(machine.name()))
}

/// All of them with this one, over a table that is the same on every machine.
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

/// Peers from every address that they have, other clusters and encapsulators from theirs.
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
    if let Some(arrivals) = &config.cluster().arrivals {
        senders.extend(arrivals.sources.iter().map(|prefix| TunnelSource {
            prefix: *prefix,
            carriers: arrivals.kinds,
            kind: TunnelSourceKind::Encapsulator,
        }));
    }
    senders
}
