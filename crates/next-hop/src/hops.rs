//! The next hops of one destination. Most destinations have one next hop. A multipath route (ECMP)
//! has several, and each of them can fail without the others.

use std::net::IpAddr;

use crate::{Resolved, Unresolved};

/// The neighbor that receives the frames of a next hop: the index of the interface and the IP
/// address.
pub type NeighbourKey = (u32, IpAddr);

/// One next hop of a multipath route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hop {
    /// The neighbor that receives the frames.
    pub neighbour: NeighbourKey,
    /// The share of the traffic, relative to the other hops of the route. At least 1.
    pub weight: u16,
    /// The next hop, or the reason why packets cannot be sent to it now.
    pub found: Result<Resolved, Unresolved>,
}

/// The next hops of one destination, or the reason why there is none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hops {
    /// The first usable hop. If no hop is usable, the reason why the first hop cannot be used.
    first: Result<Resolved, Unresolved>,
    /// All hops of a multipath route. Empty if the route has a single hop.
    several: Vec<Hop>,
}

impl Hops {
    /// Returns the hops of a route. A route with two or more hops is a multipath route. If the list
    /// of hops is empty, the destination has no route.
    #[must_use]
    pub fn new(hops: Vec<Hop>) -> Self {
        let usable = hops.iter().find(|hop| hop.found.is_ok()).or(hops.first());
        let first = usable.map_or(Err(Unresolved::NoRoute), |hop| hop.found);
        Self { first, several: if hops.len() > 1 { hops } else { Vec::new() } }
    }

    /// Returns the first usable hop. If no hop is usable, returns the reason why the first hop
    /// cannot be used.
    ///
    /// # Errors
    /// Returns the reason why packets to the destination cannot be sent now.
    pub fn first(&self) -> Result<Resolved, Unresolved> {
        self.first
    }

    /// Returns all hops of a multipath route, including hops that cannot be used now. The slice is
    /// empty if the route has a single hop.
    #[must_use]
    pub fn several(&self) -> &[Hop] {
        &self.several
    }

    /// Returns the result of each hop. The iterator has at least one item.
    pub fn results(&self) -> impl Iterator<Item = Result<Resolved, Unresolved>> + '_ {
        let one = self.several.is_empty().then_some(self.first);
        one.into_iter().chain(self.several.iter().map(|hop| hop.found))
    }

    /// Replaces the result of each hop with the result of `change`, which gets the neighbor and the
    /// current result. If the route has a single hop, the neighbor is `None`, because [`Hops`] does
    /// not store it.
    #[must_use]
    pub fn map(
        self,
        mut change: impl FnMut(Option<NeighbourKey>, Result<Resolved, Unresolved>) -> Result<Resolved, Unresolved>,
    ) -> Self {
        if self.several.is_empty() {
            return Self { first: change(None, self.first), several: Vec::new() };
        }
        let changed = |hop: Hop| Hop { found: change(Some(hop.neighbour), hop.found), ..hop };
        Self::new(self.several.into_iter().map(changed).collect())
    }
}

impl From<Result<Resolved, Unresolved>> for Hops {
    fn from(found: Result<Resolved, Unresolved>) -> Self {
        Self { first: found, several: Vec::new() }
    }
}
