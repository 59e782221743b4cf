//! Other clusters that serve the same VIPs. Each cluster is represented by a slot, whose packets
//! carry a redirect mark. The modules `selection` and `pipeline/remote` select another cluster for
//! a flow.
//!
//! See the Maglev paper, §4.2.

use std::sync::Arc;

use classifier::width;
use packet::{Family, Template};

use crate::{Forwarding, PoolTable, Prefix, Slot};

/// A subset of a VIP's addresses, and the other clusters that also serve these addresses.
#[derive(Clone, Debug)]
pub struct Remote {
    /// This cluster's prefixes that contain these addresses.
    pub ours: Vec<Prefix>,
    /// The other clusters that serve these addresses. The headers of each cluster's slot are built
    /// by [`Template::to_cluster`].
    pub pool: Arc<PoolTable>,
}

impl Slot {
    /// Returns `true` if packets for this slot are sent to another Sluicegate machine in any
    /// cluster. These packets carry a redirect mark.
    #[must_use]
    #[inline]
    pub fn is_redirect(&self) -> bool {
        matches!(&self.forwarding, Forwarding::Tunnel { v4, v6 } if v4.recursion() > 0 || v6.recursion() > 0)
    }

    /// Returns the prefix that contains all possible destination addresses of packets for this
    /// slot. If the slot represents another cluster, the prefix contains that cluster's addresses.
    /// Otherwise, it contains only the slot's address.
    #[must_use]
    pub fn reach(&self) -> Prefix {
        let family = if self.address.is_ipv4() { Family::V4 } else { Family::V6 };
        let kept = self.template(family).map_or(0, Template::kept);
        Prefix::of(self.address, width(self.address).saturating_sub(kept))
    }
}
