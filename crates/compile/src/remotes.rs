//! Other clusters as slots, and which of a service's addresses they stand for.
//!
//! In: the configuration of a machine's VIPs. Out: pools for the index, and what each service may be redirected to.
//! Not here: when a flow is redirected (`forwarder`).
//! Source: paper §4.2.

use std::sync::Arc;

use forwarder::{Forwarding, Remote, Slot, SlotId};

use crate::keys::PoolView;
use crate::{CompileError, Index};
use config::{Config, Machine, Prefix, RemotePool, Vip};

/// Where the VIPs of a machine are served elsewhere.
pub fn all<'a>(config: &'a Config, machine: &Machine) -> impl Iterator<Item = &'a RemotePool> {
    config.vips_of(machine).flat_map(|vip| &vip.remote_pools)
}

/// Enters the pools of `elsewhere` with their memberships, and gives the slots of each.
pub(crate) fn enter(
    index: &mut Index,
    draft: &mut crate::slots::Draft<'_>,
    config: &Config,
    machine: &Machine,
) -> Result<Vec<Vec<SlotId>>, CompileError> {
    let mut all_slots = Vec::new();
    for remote in all(config, machine) {
        // Members come in their order, each once: the pool is nobody else's.
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

/// What a VIP's services may be redirected to.
pub(crate) fn of(vip: &Vip, index: &Index) -> Option<Arc<Vec<Remote>>> {
    let remote = |remote: &RemotePool| {
        let pool = Arc::clone(index.pool(&PoolView::of_all(&remote.pool.name))?);
        Some(Remote { ours: remote.ours.to_vec(), pool })
    };
    let remotes: Vec<Remote> = vip.remote_pools.iter().filter_map(remote).collect();
    (!remotes.is_empty()).then(|| Arc::new(remotes))
}

/// A packet that is redirected says so, and goes to its own last bits behind `prefix`.
fn to_cluster(slot: Slot, prefix: Prefix) -> Slot {
    let bits: u8 = if prefix.address().is_ipv4() { 32 } else { 128 };
    let kept = bits.saturating_sub(prefix.length());
    let forwarding = match slot.forwarding {
        // Of the other family nothing comes here.
        Forwarding::Tunnel { v4, v6 } => Forwarding::Tunnel {
            v4: v4.to_cluster(kept).unwrap_or_else(|| v4.with_recursion(1)),
            v6: v6.to_cluster(kept).unwrap_or_else(|| v6.with_recursion(1)),
        },
        Forwarding::L2 => Forwarding::L2,
    };
    Slot { forwarding, ..slot }
}
