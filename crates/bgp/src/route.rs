//! The routes to announce. A route is a prefix with attributes.
//!
//! The next hop, the AS path and other session-dependent attributes are determined by
//! [`crate::PeerConfig`] and by the session.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::prefix::Prefix;

/// A standard community (RFC 1997), which consists of two 16-bit halves and is written `65000:1`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Community(pub u16, pub u16);

impl Community {
    /// The graceful-shutdown community (RFC 8326), which makes routers prefer other routes.
    pub const GRACEFUL_SHUTDOWN: Self = Self(0xffff, 0);

    pub(crate) fn bits(self) -> u32 {
        u32::from(self.0) << 16 | u32::from(self.1)
    }
}

/// A large community (RFC 8092): an AS number and two numbers that the AS chooses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LargeCommunity(pub u32, pub u32, pub u32);

/// The attributes of a route.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Attributes {
    /// The multi-exit discriminator. Lower values are preferred.
    pub med: Option<u32>,
    /// The local preference, sent only to internal peers. Higher values are preferred. `None` means
    /// 100.
    pub local_pref: Option<u32>,
    /// The number of times that the local AS number is additionally prepended to the AS path for
    /// external peers.
    pub prepend: u8,
    /// The number of copies of the local AS number that [`Attributes::graceful_shutdown`] adds to
    /// the AS path.
    pub shutdown_prepend: u8,
    /// The standard communities, at most [`Attributes::MAX_COMMUNITIES`].
    pub communities: Vec<Community>,
    /// The large communities, at most [`Attributes::MAX_COMMUNITIES`].
    pub large_communities: Vec<LargeCommunity>,
}

impl Attributes {
    /// The maximum number of communities of each kind (standard or large). With this many
    /// communities and 255 prepended AS numbers, an UPDATE still has room for prefixes.
    pub const MAX_COMMUNITIES: usize = 64;

    /// Gives the route the lowest preference: adds the graceful-shutdown community (RFC 8326), sets
    /// the local preference to 0 and the MED to its maximum, and adds
    /// [`shutdown_prepend`](Self::shutdown_prepend) copies of the local AS number to the AS path.
    #[must_use]
    pub fn graceful_shutdown(mut self) -> Self {
        (self.local_pref, self.med) = (Some(0), Some(u32::MAX));
        self.prepend = self.prepend.saturating_add(std::mem::take(&mut self.shutdown_prepend));
        if !self.communities.contains(&Community::GRACEFUL_SHUTDOWN) {
            self.communities.push(Community::GRACEFUL_SHUTDOWN);
        }
        self
    }

    fn check(&self) -> Result<(), TooManyCommunities> {
        // One more community is allowed, because the graceful-shutdown community may have been
        // added.
        let most = Self::MAX_COMMUNITIES + 1;
        let found = self.communities.len().max(self.large_communities.len());
        if found > most { Err(TooManyCommunities { found }) } else { Ok(()) }
    }
}

/// The error for a route that has more than [`Attributes::MAX_COMMUNITIES`] communities of one
/// kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a route has {found} communities, but at most {most} are allowed", most = Attributes::MAX_COMMUNITIES)]
pub struct TooManyCommunities {
    /// The number of communities that the route has.
    pub found: usize,
}

/// A table of routes. Clones of a table share the memory of the attributes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Routes(pub(crate) BTreeMap<Prefix, Arc<Attributes>>);

impl Routes {
    /// Creates an empty table.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds or replaces a route. Routes that are inserted with the same `Arc` share the memory of
    /// the attributes.
    ///
    /// # Errors
    /// Returns an error if the route has more than [`Attributes::MAX_COMMUNITIES`] communities of
    /// one kind.
    pub fn insert(
        &mut self,
        prefix: Prefix,
        attributes: impl Into<Arc<Attributes>>,
    ) -> Result<(), TooManyCommunities> {
        let attributes = attributes.into();
        attributes.check()?;
        self.0.insert(prefix, attributes);
        Ok(())
    }

    /// Removes a route. Returns `true` if the table contained the route.
    pub fn remove(&mut self, prefix: Prefix) -> bool {
        self.0.remove(&prefix).is_some()
    }

    /// Returns the attributes of a route.
    #[must_use]
    pub fn get(&self, prefix: Prefix) -> Option<&Arc<Attributes>> {
        self.0.get(&prefix)
    }

    /// Returns the routes, sorted by prefix.
    pub fn iter(&self) -> impl Iterator<Item = (Prefix, &Arc<Attributes>)> {
        self.0.iter().map(|(&prefix, attributes)| (prefix, attributes))
    }

    /// Returns the number of routes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns `true` if the table is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the routes whose prefix is in at least one table of `desired`. A removed peer keeps
    /// only these routes.
    pub(crate) fn kept_by(&self, desired: &Desired) -> Self {
        let mut kept = self.0.clone();
        kept.retain(|&prefix, _| {
            let mut tables = desired.peers.values().chain([&desired.everyone]);
            tables.any(|table| table.get(prefix).is_some())
        });
        Self(kept)
    }

    /// Returns a copy of the table in which [`Attributes::graceful_shutdown`] is applied to each
    /// route.
    #[must_use]
    pub fn graceful_shutdown(&self) -> Self {
        let mark = |(&prefix, attributes): (&Prefix, &Arc<Attributes>)| {
            (prefix, Arc::new(Attributes::clone(attributes).graceful_shutdown()))
        };
        Self(self.0.iter().map(mark).collect())
    }
}

/// All routes to announce: a common table, and separate tables for some peers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Desired {
    /// The table for peers that are not in `peers`.
    pub everyone: Arc<Routes>,
    /// Separate tables, keyed by peer name.
    pub peers: BTreeMap<String, Arc<Routes>>,
}

impl Desired {
    /// Creates a set with one common table for all peers.
    #[must_use]
    pub fn everyone(routes: Routes) -> Self {
        Self { everyone: Arc::new(routes), peers: BTreeMap::new() }
    }

    /// Returns the table of a peer.
    #[must_use]
    pub fn of(&self, peer: &str) -> &Arc<Routes> {
        self.peers.get(peer).unwrap_or(&self.everyone)
    }

    /// Returns a copy of all tables in which [`Attributes::graceful_shutdown`] is applied to each
    /// route.
    #[must_use]
    pub fn graceful_shutdown(&self) -> Self {
        let mark =
            |(name, routes): (&String, &Arc<Routes>)| (name.clone(), Arc::new(routes.graceful_shutdown()));
        Self {
            everyone: Arc::new(self.everyone.graceful_shutdown()),
            peers: self.peers.iter().map(mark).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_with_a_table_of_its_own_gets_that_one_alone() {
        let mut routes = Routes::new();
        routes.insert("203.0.113.10/32".parse().unwrap(), Attributes::default()).unwrap();
        let mut desired = Desired::everyone(routes);
        desired.peers.insert("spare".into(), Arc::default());
        assert_eq!(desired.of("spare").len(), 0);
        assert_eq!(desired.of("main").len(), 1);
    }

    #[test]
    fn the_mark_of_a_graceful_shutdown_is_set_once_on_every_table() {
        let mut routes = Routes::new();
        let prefix = "203.0.113.10/32".parse().unwrap();
        let own =
            Attributes { local_pref: Some(200), prepend: 1, shutdown_prepend: 2, ..Attributes::default() };
        routes.insert(prefix, own).unwrap();
        let mut desired = Desired::everyone(routes.clone());
        desired.peers.insert("spare".into(), Arc::new(routes));
        let marked = desired.graceful_shutdown().graceful_shutdown();
        for table in [marked.of("spare"), marked.of("main")] {
            let attributes = table.get(prefix).unwrap();
            assert_eq!(attributes.communities, [Community::GRACEFUL_SHUTDOWN]);
            assert_eq!((attributes.local_pref, attributes.med), (Some(0), Some(u32::MAX)));
            assert_eq!(attributes.prepend, 3);
        }
    }

    #[test]
    fn a_table_keeps_what_any_table_still_has() {
        let prefixes =
            ["203.0.113.1/32", "203.0.113.2/32", "203.0.113.3/32"].map(|text| text.parse().unwrap());
        let table = |of: &[Prefix]| {
            let mut routes = Routes::new();
            of.iter().for_each(|&prefix| routes.insert(prefix, Attributes::default()).unwrap());
            routes
        };
        let mut desired = Desired::everyone(table(&prefixes[..1]));
        desired.peers.insert("b".into(), Arc::new(table(&prefixes[1..2])));
        assert_eq!(table(&prefixes).kept_by(&desired), table(&prefixes[..2]));
        assert_eq!(table(&prefixes).kept_by(&Desired::default()), Routes::new());
    }

    #[test]
    fn a_route_with_more_communities_than_fit_is_refused() {
        let communities = vec![Community(1, 1); 66];
        let full = Attributes { communities, ..Attributes::default() };
        let refused = Routes::new().insert("203.0.113.10/32".parse().unwrap(), full);
        assert_eq!(refused, Err(TooManyCommunities { found: 66 }));
    }
}
