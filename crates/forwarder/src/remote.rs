//! Other clusters that serve the same VIPs: slots like any others, whose packets leave marked.
//!
//! Not here: when another cluster is chosen (`selection`, `pipeline/remote`), the headers (`packet`).
//! Source: paper §4.2.

use std::sync::Arc;

use classifier::width;
use packet::{Family, Template};

use crate::{Forwarding, PoolTable, Prefix, Slot};

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

    /// Where its packets may go: its own address, and for another cluster all that share its first bits.
    #[must_use]
    pub fn reach(&self) -> Prefix {
        let family = if self.address.is_ipv4() { Family::V4 } else { Family::V6 };
        let kept = self.template(family).map_or(0, Template::kept);
        Prefix::of(self.address, width(self.address).saturating_sub(kept))
    }
}
