//! The choice of a backend by a request's key: one function for the packet path and `where`.
//!
//! Not here: reading requests (`pipeline/keyed`), rules and pools (`keyed`).
//! Invariant: where a key is depends on the key, the pool's table and the states alone, the same on every machine and thread.

use crate::{KeyFailover, KeyPlace, KeyRules, Keyed, PoolTable, Selection, Service, Snapshot};

impl KeyRules {
    /// Where a key is looked for.
    #[inline]
    pub(crate) fn place(&self, key: &[u8]) -> KeyPlace {
        KeyPlace { hash: self.hash.hash(key), route: self.routes.lookup(key) }
    }
}

impl Snapshot {
    /// The backend that has a key's place, as states have it now.
    #[inline]
    pub(crate) fn select_key(&self, service: &Service, keyed: &Keyed, place: KeyPlace) -> Option<Selection> {
        let pool = |route: u32| keyed.pools.get(route as usize).map(|pool| &**pool);
        let own = place.route.map_or(Some(&*service.pool), pool)?;
        match keyed.rules.failover {
            KeyFailover::Next => self.select(own, place.hash),
            KeyFailover::Nowhere => self.select_only(own, place.hash),
            KeyFailover::Pool(other) => {
                self.select_only(own, place.hash).or_else(|| self.select(pool(other)?, place.hash))
            }
        }
    }

    /// The first choice alone, if it serves.
    fn select_only(&self, pool: &PoolTable, hash: u64) -> Option<Selection> {
        let (slot, entry) = self.select_first(pool, hash)?;
        Some(Selection { slot, entry, rehashed: 0 })
    }
}
