//! The choice of a backend: one function for the packet path, `where` and `explain`.

use std::net::Ipv6Addr;

use maglev_hash::Table;
use packet::protocol;

use crate::{
    DropReason, Flow, FlowHasher, HashPolicy, PoolTable, Remote, Service, Slot, SlotId, SlotState, Snapshot,
};

/// What Maglev chose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Selection {
    /// The backend's slot.
    pub slot: SlotId,
    /// The table entry that named it.
    pub entry: u32,
    /// How many entries before named a backend that does not serve.
    pub rehashed: u8,
}

/// Where a flow would go by the snapshot alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// No service has this address, port and protocol.
    NoVip,
    /// The service's lists refuse the source, or it is a VIP.
    Refused {
        /// Index of the service.
        service: usize,
        /// [`DropReason::NotAllowed`], [`DropReason::Denied`] or [`DropReason::FromVip`].
        reason: DropReason,
    },
    /// Service found (its index in [`Snapshot::services`]), no backend serves.
    NoBackend {
        /// Index of the service.
        service: usize,
        /// The flow's hash under the service's policy.
        hash: u64,
    },
    /// A backend.
    Chosen {
        /// Index of the service.
        service: usize,
        /// The flow's hash under the service's policy.
        hash: u64,
        /// The choice.
        selection: Selection,
    },
    /// Another cluster, since no backend here serves.
    Remote {
        /// Index of the service.
        service: usize,
        /// The flow's hash under the service's policy.
        hash: u64,
        /// The choice.
        selection: Selection,
    },
    /// ICMP to a VIP, which is no flow of its own.
    Icmp {
        /// Whether an echo request is answered in place, and an error sent to the backend of the flow that it quotes. Not when
        /// the protocol is the other family's: then all is dropped as [`DropReason::Icmp`].
        ///
        /// [`DropReason::Icmp`]: crate::DropReason::Icmp
        echo: bool,
    },
}

impl Decision {
    /// Index of the service among [`Snapshot::services`]; `None`: there is none, or it is not asked for.
    #[must_use]
    pub fn service(&self) -> Option<usize> {
        match *self {
            Self::NoVip | Self::Icmp { .. } => None,
            Self::Refused { service, .. }
            | Self::NoBackend { service, .. }
            | Self::Chosen { service, .. }
            | Self::Remote { service, .. } => Some(service),
        }
    }
}

impl Snapshot {
    /// Whether what is sent to a slot goes to another machine of ours.
    #[inline]
    pub(crate) fn is_redirect(&self, slot: SlotId) -> bool {
        self.slots.get(slot.0 as usize).is_some_and(Slot::is_redirect)
    }

    /// Chooses among the other clusters that serve this address of a service; one that does not serve is hashed around.
    ///
    /// # Source
    /// Paper §4.2.
    #[cold]
    pub(crate) fn select_remote(
        &self,
        service: &Service,
        destination: &[u8; 16],
        hash: u64,
    ) -> Option<Selection> {
        let address = Ipv6Addr::from(*destination).to_canonical();
        let covers = |remote: &&Remote| remote.ours.iter().any(|prefix| prefix.contains(address));
        let remote = service.remotes.as_deref()?.iter().find(covers)?;
        self.select(&remote.pool, hash)
    }

    /// Chooses among a pool's serving backends.
    ///
    /// An entry whose backend does not serve is skipped by hashing the hash again, the same on every machine; after
    /// 17 tries the ranks are walked from where the last try ended.
    ///
    /// # Source
    /// Paper §3.1, §3.4.
    #[must_use]
    #[inline]
    pub fn select(&self, pool: &PoolTable, hash: u64) -> Option<Selection> {
        self.select_by(pool, hash, |slot| self.state(slot) == SlotState::Serving)
    }

    /// The backend that the first try names, and the table entry that named it, if it serves; mostly it does.
    #[inline(always)]
    pub(crate) fn select_first(&self, pool: &PoolTable, hash: u64) -> Option<(SlotId, u32)> {
        let table = pool.table.as_deref()?;
        let entry = table.slot_of(hash);
        let slot = *pool.slots.get(table.get(entry) as usize)?;
        (self.state(slot) == SlotState::Serving).then_some((slot, entry))
    }

    /// As [`Snapshot::select`], among those that `serves` admits.
    #[inline]
    pub(crate) fn select_by(
        &self,
        pool: &PoolTable,
        hash: u64,
        serves: impl Fn(SlotId) -> bool,
    ) -> Option<Selection> {
        select_on(pool.table.as_deref()?, pool, hash, serves)
    }

    /// Where `flow` would go if no connection table knew it. Limits on new flows are not foretold.
    #[must_use]
    pub fn decide(&self, flow: &Flow) -> Decision {
        if matches!(flow.protocol, protocol::ICMP | protocol::ICMPV6) {
            let own = if flow.addresses().1.is_ipv4() { protocol::ICMP } else { protocol::ICMPV6 };
            return self.decide_icmp(flow, flow.protocol == own);
        }
        let found = self.vips.find(&flow.destination, flow.protocol, flow.destination_port);
        let Some(index) = found.map(|index| index as usize) else { return Decision::NoVip };
        let Some(service) = self.services.get(index) else { return Decision::NoVip };
        if let Some(reason) = service.guard.as_ref().and_then(|guard| guard.refusal(flow)) {
            return Decision::Refused { service: index, reason };
        }
        if self.vips.contains(&flow.source) {
            return Decision::Refused { service: index, reason: DropReason::FromVip };
        }
        let hash = self.hasher.hash(service.policy, flow);
        if let Some(selection) = self.select(&service.pool, hash) {
            return Decision::Chosen { service: index, hash, selection };
        }
        match self.select_remote(service, &flow.destination, hash) {
            Some(selection) => Decision::Remote { service: index, hash, selection },
            None => Decision::NoBackend { service: index, hash },
        }
    }

    /// The lists of the VIP's first service ask for the sender.
    fn decide_icmp(&self, flow: &Flow, echo: bool) -> Decision {
        let first = self.vips.first(&flow.destination).map(|index| index as usize);
        let Some((index, service)) = first.and_then(|index| Some((index, self.services.get(index)?))) else {
            return Decision::NoVip;
        };
        match service.guard.as_ref().and_then(|guard| guard.refusal(flow)) {
            Some(reason) => Decision::Refused { service: index, reason },
            None => Decision::Icmp { echo },
        }
    }
}

fn walk(pool: &PoolTable, entry: u32, from: usize, serves: impl Fn(SlotId) -> bool) -> Option<Selection> {
    let ranks = (from..pool.slots.len()).chain(0..from);
    let mut weighted = ranks.filter(|rank| pool.weights.get(*rank).is_some_and(|weight| *weight > 0));
    let rank = weighted.find(|rank| pool.slots.get(*rank).is_some_and(|slot| serves(*slot)))?;
    Some(Selection { slot: *pool.slots.get(rank)?, entry, rehashed: MAX_REHASH + 1 })
}

/// The order of choices of a hash by a table of the pool's ranks: the first that `serves` admits.
#[inline]
pub(crate) fn select_on(
    table: &Table,
    pool: &PoolTable,
    hash: u64,
    serves: impl Fn(SlotId) -> bool,
) -> Option<Selection> {
    let mut hash = hash;
    for rehashed in 0..=MAX_REHASH {
        let entry = table.slot_of(hash);
        let slot = *pool.slots.get(table.get(entry) as usize)?;
        if serves(slot) {
            return Some(Selection { slot, entry, rehashed });
        }
        hash = hash_again(hash);
    }
    walk(pool, table.slot_of(hash), table.lookup(hash) as usize, serves)
}

/// The connection table's key for a flow of `service`.
///
/// Under [`HashPolicy::FiveTuple`] the hash itself says which service it is. Under the others flows of several services
/// share a hash, so the service goes into the key.
#[inline]
pub(crate) fn flow_key(service: &Service, hash: u64) -> u64 {
    match service.policy {
        HashPolicy::FiveTuple | HashPolicy::Key => hash,
        HashPolicy::Addresses | HashPolicy::Source => hash ^ hash_again(u64::from(service.id.0) + 1),
    }
}

impl Service {
    /// The connection table's key for a flow of this service.
    #[must_use]
    pub fn flow_key(&self, hasher: &FlowHasher, flow: &Flow) -> u64 {
        flow_key(self, hasher.hash(self.policy, flow))
    }
}

/// A bijection that scatters (the finalizer of MurmurHash3).
#[inline]
fn hash_again(hash: u64) -> u64 {
    let hash = (hash ^ (hash >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
    let hash = (hash ^ (hash >> 33)).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    hash ^ (hash >> 33)
}

/// With nine of ten backends down, all tries miss for 17 % of flows, which the walk then serves.
const MAX_REHASH: u8 = 16;
