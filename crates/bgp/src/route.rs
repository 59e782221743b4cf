//! What is to be announced: prefixes with their attributes, for everyone or for one peer.
//!
//! Not here: what depends on the session (next hop, AS path), which [`crate::PeerConfig`] and the session say.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::prefix::Prefix;

/// A standard community (RFC 1997): two halves of 16 bits, written `65000:1`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Community(pub u16, pub u16);

impl Community {
    /// "About to go away: prefer others" (RFC 8326).
    pub const GRACEFUL_SHUTDOWN: Self = Self(0xffff, 0);

    pub(crate) fn bits(self) -> u32 {
        u32::from(self.0) << 16 | u32::from(self.1)
    }
}

/// A large community (RFC 8092): an AS number and two numbers of its choice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LargeCommunity(pub u32, pub u32, pub u32);

/// What a route says beside its prefix.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Attributes {
    /// Multi-exit discriminator: lower is preferred.
    pub med: Option<u32>,
    /// Preference within our AS, sent to internal peers alone: higher is preferred. `None`: 100.
    pub local_pref: Option<u32>,
    /// How often our AS number is said once more to external peers.
    pub prepend: u8,
    /// Standard communities, at most [`Attributes::MAX_COMMUNITIES`].
    pub communities: Vec<Community>,
    /// Large communities, at most [`Attributes::MAX_COMMUNITIES`].
    pub large_communities: Vec<LargeCommunity>,
}

impl Attributes {
    /// Of each kind: with them and 255 prepends an UPDATE still has room for prefixes.
    pub const MAX_COMMUNITIES: usize = 64;

    /// The same, marked as about to go away: the community of RFC 8326, and within our AS the preference 0.
    #[must_use]
    pub fn graceful_shutdown(mut self) -> Self {
        self.local_pref = Some(0);
        if !self.communities.contains(&Community::GRACEFUL_SHUTDOWN) {
            self.communities.push(Community::GRACEFUL_SHUTDOWN);
        }
        self
    }

    fn check(&self) -> Result<(), TooManyCommunities> {
        // One more for the mark of a graceful shutdown.
        let most = Self::MAX_COMMUNITIES + 1;
        let found = self.communities.len().max(self.large_communities.len());
        if found > most { Err(TooManyCommunities { found }) } else { Ok(()) }
    }
}

/// A route has more communities than an UPDATE is sure to hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{found} communities at a route, at most {most} are allowed", most = Attributes::MAX_COMMUNITIES)]
pub struct TooManyCommunities {
    /// How many there are.
    pub found: usize,
}

/// A table of routes. Clones of a table share its attributes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Routes(BTreeMap<Prefix, Arc<Attributes>>);

impl Routes {
    /// An empty table.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds or replaces a route. Routes that share one `Arc` share its memory.
    ///
    /// # Errors
    /// More communities than [`Attributes::MAX_COMMUNITIES`].
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

    /// Removes a route; whether it was there.
    pub fn remove(&mut self, prefix: Prefix) -> bool {
        self.0.remove(&prefix).is_some()
    }

    /// The attributes of a route.
    #[must_use]
    pub fn get(&self, prefix: Prefix) -> Option<&Arc<Attributes>> {
        self.0.get(&prefix)
    }

    /// Routes in the order of their prefixes.
    pub fn iter(&self) -> impl Iterator<Item = (Prefix, &Arc<Attributes>)> {
        self.0.iter().map(|(&prefix, attributes)| (prefix, attributes))
    }

    /// How many routes it holds.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether it holds none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Those that somebody is still to have: what a peer keeps that `desired` has no table for any more.
    pub(crate) fn kept_by(&self, desired: &Desired) -> Self {
        let mut kept = self.0.clone();
        kept.retain(|&prefix, _| {
            let mut tables = desired.peers.values().chain([&desired.everyone]);
            tables.any(|table| table.get(prefix).is_some())
        });
        Self(kept)
    }

    /// The same routes, each marked by [`Attributes::graceful_shutdown`].
    #[must_use]
    pub fn graceful_shutdown(&self) -> Self {
        let mark = |(&prefix, attributes): (&Prefix, &Arc<Attributes>)| {
            (prefix, Arc::new(Attributes::clone(attributes).graceful_shutdown()))
        };
        Self(self.0.iter().map(mark).collect())
    }
}

/// All that is to be announced: one table for every peer that has none of its own.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Desired {
    /// For peers that `peers` does not name.
    pub everyone: Arc<Routes>,
    /// For a peer, by its name.
    pub peers: BTreeMap<String, Arc<Routes>>,
}

impl Desired {
    /// The same table for all.
    #[must_use]
    pub fn everyone(routes: Routes) -> Self {
        Self { everyone: Arc::new(routes), peers: BTreeMap::new() }
    }

    /// The table of a peer.
    #[must_use]
    pub fn of(&self, peer: &str) -> &Arc<Routes> {
        self.peers.get(peer).unwrap_or(&self.everyone)
    }

    /// The same routes, each marked by [`Attributes::graceful_shutdown`].
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
        routes.insert(prefix, Attributes { local_pref: Some(200), ..Attributes::default() }).unwrap();
        let mut desired = Desired::everyone(routes.clone());
        desired.peers.insert("spare".into(), Arc::new(routes));
        let marked = desired.graceful_shutdown().graceful_shutdown();
        for table in [marked.of("spare"), marked.of("main")] {
            let attributes = table.get(prefix).unwrap();
            assert_eq!(attributes.communities, [Community::GRACEFUL_SHUTDOWN]);
            assert_eq!(attributes.local_pref, Some(0));
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
