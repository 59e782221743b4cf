//! Other clusters that serve the same VIPs: slots like any others, whose packets leave marked.
//!
//! In: a service whose pool has nobody. Out: another cluster that has the address.
//! Not here: when it is asked for (`pipeline/remote`), the headers (`packet`).
//! Source: paper §4.2.

use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;

use packet::{Family, Template};

use crate::prefix::{bits_of, low};
use crate::snapshot::{Forwarding, PoolTable, Service, Slot, SlotId, Snapshot};
use crate::{Prefix, Selection};

/// Other clusters that serve some of a VIP's addresses.
#[derive(Clone, Debug)]
pub struct Remote {
    /// The addresses here.
    pub ours: Vec<Prefix>,
    /// The clusters, each a slot whose headers are made by [`Template::to_cluster`].
    pub pool: Arc<PoolTable>,
}

impl Slot {
    /// Whether its packets go to another machine of ours, marked as redirected: to a peer or to another cluster.
    #[must_use]
    #[inline]
    pub fn is_redirect(&self) -> bool {
        matches!(&self.forwarding, Forwarding::Tunnel { v4, v6 } if v4.recursion() > 0 || v6.recursion() > 0)
    }

    /// Whether packets may be sent to this address: the slot's own, and for another cluster all that share its first bits.
    #[must_use]
    pub fn reaches(&self, address: IpAddr) -> bool {
        let family = if address.is_ipv4() { Family::V4 } else { Family::V6 };
        let kept = self.template(family).map_or(0, Template::kept);
        let (own, other) = (bits_of(self.address), bits_of(address));
        self.address.is_ipv4() == address.is_ipv4() && (own ^ other) & !low(kept) == 0
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
}
