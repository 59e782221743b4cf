//! Creates slots for other clusters. Flows of a VIP can be redirected to these clusters.
//!
//! Each remote cluster of a VIP becomes a pool in the index. `forwarder` decides when to redirect a
//! flow. Source: Maglev paper §4.2.

use std::sync::Arc;

use forwarder::{Forwarding, Remote, Slot, SlotId};

use crate::keys::PoolView;
use crate::{CompileError, Index};
use config::{Config, Machine, Prefix, RemotePool, Vip};

/// Returns the remote cluster pools that a machine's VIPs use.
pub fn all<'a>(config: &'a Config, machine: &Machine) -> impl Iterator<Item = &'a RemotePool> {
    config.vips_of(machine).flat_map(|vip| &vip.remote_pools)
}

/// Adds the pools of remote clusters to the index. Returns the slots of each pool.
pub(crate) fn enter(
    index: &mut Index,
    draft: &mut crate::slots::Draft<'_>,
    config: &Config,
    machine: &Machine,
) -> Result<Vec<Vec<SlotId>>, CompileError> {
    let mut all_slots = Vec::new();
    for remote in all(config, machine) {
        // Only one VIP uses the pool, so `Index::enter` visits each member once and in order.
        let mut theirs = remote.theirs.iter();
        let view = PoolView::of_all(&remote.pool.name);
        let slots = index.enter(config, &remote.pool, &view, |key, member| {
            let slot = crate::slot(member, machine)?;
            let slot = theirs.next().map_or(slot.clone(), |prefix| to_cluster(slot, *prefix));
            draft.claim(key, slot).ok_or(CompileError::TooMany)
        })?;
        all_slots.push(slots);
    }
    Ok(all_slots)
}

/// Returns the remote clusters to which flows of a VIP may be redirected.
pub(crate) fn of(vip: &Vip, index: &Index) -> Option<Arc<Vec<Remote>>> {
    let remote = |remote: &RemotePool| {
        let pool = Arc::clone(index.pool(&PoolView::of_all(&remote.pool.name))?);
        Some(Remote { ours: remote.ours.to_vec(), pool })
    };
    let remotes: Vec<Remote> = vip.remote_pools.iter().filter_map(remote).collect();
    (!remotes.is_empty()).then(|| Arc::new(remotes))
}

/// Changes the tunnel headers of a slot so that packets are redirected to a cluster. The outer
/// destination address consists of `prefix` and the last bits of the inner destination address. The
/// GRE recursion control field marks the packet as redirected.
fn to_cluster(slot: Slot, prefix: Prefix) -> Slot {
    let bits: u8 = if prefix.address().is_ipv4() { 32 } else { 128 };
    let kept = bits.saturating_sub(prefix.length());
    let forwarding = match slot.forwarding {
        // Packets of the other IP version never reach this slot.
        Forwarding::Tunnel { v4, v6 } => Forwarding::Tunnel {
            v4: v4.to_cluster(kept).unwrap_or_else(|| v4.with_recursion(1)),
            v6: v6.to_cluster(kept).unwrap_or_else(|| v6.with_recursion(1)),
        },
        Forwarding::L2 => Forwarding::L2,
    };
    Slot { forwarding, ..slot }
}
