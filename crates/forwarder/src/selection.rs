//! The selection of a backend for a flow. The packet path, the `where` command and packet tracing
//! share this code.

use std::net::Ipv6Addr;

use maglev_hash::Table;
use packet::protocol;

use crate::{
    DropReason, Flow, FlowHasher, HashPolicy, PoolTable, Remote, Service, Slot, SlotId, SlotState, Snapshot,
};

/// The result of a lookup in a Maglev table or a consistent-hash ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Selection {
    /// The slot of the selected backend.
    pub slot: SlotId,
    /// The index of the table entry or ring point that refers to the backend.
    pub entry: u32,
    /// The number of table entries that were skipped before this entry, because their backends are
    /// not serving. For a ring, the value is 1 if any point was skipped.
    pub rehashed: u8,
}

/// The decision for a flow that is not in a connection table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// No service matches the address, port and protocol.
    NoVip,
    /// The source lists of the service refuse the source address, or the source address is a VIP or
    /// martian.
    Refused {
        /// The index of the service in [`Snapshot::services`].
        service: usize,
        /// The drop reason: [`DropReason::NotAllowed`], [`DropReason::Denied`],
        /// [`DropReason::Martian`] or [`DropReason::FromVip`].
        reason: DropReason,
    },
    /// A service matches, but all its backends are down.
    NoBackend {
        /// The index of the service in [`Snapshot::services`].
        service: usize,
        /// The flow hash under the service's hash policy.
        hash: u64,
    },
    /// A backend was selected.
    Chosen {
        /// The index of the service in [`Snapshot::services`].
        service: usize,
        /// The flow hash under the service's hash policy.
        hash: u64,
        /// The selected backend.
        selection: Selection,
    },
    /// Another cluster was selected because no local backend is serving.
    Remote {
        /// The index of the service in [`Snapshot::services`].
        service: usize,
        /// The flow hash under the service's hash policy.
        hash: u64,
        /// The selected cluster.
        selection: Selection,
    },
    /// The packet is an ICMP packet to a VIP. ICMP packets to a VIP are not part of a flow.
    Icmp {
        /// `true` if the ICMP version matches the address family. In this case, echo requests are
        /// answered in place, and ICMP errors are forwarded to the backend of the quoted flow. If
        /// the value is `false`, all packets are dropped with the reason [`DropReason::Icmp`].
        ///
        /// [`DropReason::Icmp`]: crate::DropReason::Icmp
        echo: bool,
    },
}

impl Decision {
    /// Returns the index of the service in [`Snapshot::services`]. Returns `None` if no service
    /// matches, or if the decision does not depend on a service.
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
    /// Returns `true` if packets for the slot are sent to another Sluicegate machine.
    #[inline]
    pub(crate) fn is_redirect(&self, slot: SlotId) -> bool {
        self.slots.get(slot.0 as usize).is_some_and(Slot::is_redirect)
    }

    /// Selects another cluster that also serves this address of the service. Clusters that are not
    /// serving are skipped by rehashing.
    ///
    /// # Source
    /// Maglev paper §4.2.
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

    /// Selects a serving backend of a pool.
    ///
    /// If the selected backend is not serving, the hash is rehashed and looked up in the table
    /// again. The result is the same on every machine. After 17 failed tries, all backends are
    /// checked in rank order, starting at the backend of the last try.
    ///
    /// # Source
    /// Maglev paper §3.1, §3.4.
    #[must_use]
    #[inline]
    pub fn select(&self, pool: &PoolTable, hash: u64) -> Option<Selection> {
        self.select_by(pool, hash, |slot| self.state(slot) == SlotState::Serving)
    }

    /// Returns the backend that the first table lookup selects, and the index of its table entry.
    /// Returns `None` in the rare case that this backend is not serving.
    #[inline(always)]
    pub(crate) fn select_first(&self, pool: &PoolTable, hash: u64) -> Option<(SlotId, u32)> {
        let table = pool.table.as_deref()?;
        let entry = table.slot_of(hash);
        let slot = *pool.slots.get(table.get(entry).index_by_name())?;
        (self.state(slot) == SlotState::Serving).then_some((slot, entry))
    }

    /// Does the same as [`Snapshot::select`], but `serves` decides which slots can be selected.
    #[inline]
    pub(crate) fn select_by(
        &self,
        pool: &PoolTable,
        hash: u64,
        serves: impl Fn(SlotId) -> bool,
    ) -> Option<Selection> {
        select_on(pool.table.as_deref()?, pool, hash, serves)
    }

    /// Decides where to send a flow that is not in a connection table. Limits on new flows are
    /// ignored.
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
        if flow.is_unroutable() {
            return Decision::Refused { service: index, reason: DropReason::Martian };
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

    /// Decides what to do with an ICMP packet to a VIP. The source lists of the VIP's first service
    /// apply.
    fn decide_icmp(&self, flow: &Flow, echo: bool) -> Decision {
        let first = self.vips.first(&flow.destination).map(|index| index as usize);
        let Some((index, service)) = first.and_then(|index| Some((index, self.services.get(index)?))) else {
            return Decision::NoVip;
        };
        match service.guard.as_ref().and_then(|guard| guard.refusal(flow)) {
            Some(reason) => Decision::Refused { service: index, reason },
            None if flow.is_martian() => Decision::Refused { service: index, reason: DropReason::Martian },
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

/// Returns the first candidate for a hash that `serves` accepts. The entries of `table` are ranks
/// of the pool's backends.
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
        let slot = *pool.slots.get(table.get(entry).index_by_name())?;
        if serves(slot) {
            return Some(Selection { slot, entry, rehashed });
        }
        hash = hash_again(hash);
    }
    walk(pool, table.slot_of(hash), table.lookup_uniform(hash).index_by_name(), serves)
}

/// Returns the key of a flow in the connection table. Under [`HashPolicy::FiveTuple`] the hash
/// already differs between services. Under the address policies, flows of several services can have
/// the same hash, so the key includes the service ID.
#[inline]
pub(crate) fn flow_key(service: &Service, hash: u64) -> u64 {
    match service.policy {
        HashPolicy::FiveTuple | HashPolicy::Key => hash,
        HashPolicy::Addresses | HashPolicy::Source => hash ^ hash_again(u64::from(service.id.0) + 1),
    }
}

impl Service {
    /// Returns the key under which the connection table stores a flow to this service.
    #[must_use]
    pub fn flow_key(&self, hasher: &FlowHasher, flow: &Flow) -> u64 {
        flow_key(self, hasher.hash(self.policy, flow))
    }
}

/// Rehashes a hash with a bijective function, the finalizer of MurmurHash3.
#[inline]
fn hash_again(hash: u64) -> u64 {
    let hash = (hash ^ (hash >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
    let hash = (hash ^ (hash >> 33)).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    hash ^ (hash >> 33)
}

/// The maximum number of rehashes. If nine of ten backends are down, all tries fail for 17 % of the
/// flows. The sequential search then selects the backend.
const MAX_REHASH: u8 = 16;
