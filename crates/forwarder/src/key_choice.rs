//! The choice of a backend by a request's key: one function for the packet path and `where`.
//!
//! Not here: reading requests (`pipeline/keyed`), rules and pools (`keyed`).
//! Invariant: where a key is depends on the key, the pool's table or rings and the states alone, the same on every machine and thread.

use kv_switch::Ring;

use crate::{
    KeyFailover, KeyPlace, KeyRules, Keyed, Placement, PoolTable, Selection, Service, ServiceId, SlotId,
    SlotState, Snapshot, Step,
};

impl KeyRules {
    /// Where a key is looked for.
    #[inline]
    pub(crate) fn place(&self, key: &[u8]) -> KeyPlace {
        KeyPlace { hash: self.hash.hash(key), route: self.routes.lookup(key) }
    }
}

impl Keyed {
    /// What found a backend. All pools of a service are of one kind.
    #[inline]
    pub(crate) fn step(&self, chosen: &Selection) -> Step {
        let Selection { entry, rehashed, .. } = *chosen;
        match self.placements.first() {
            Some(Placement::Ring(_)) => Step::Ring { point: entry, rehashed: rehashed > 0 },
            _ => Step::Maglev { entry, rehashed, reselected: false },
        }
    }

    /// The pool that a route leads to, and where its keys are; `None`: the service's own.
    #[inline]
    fn pool<'a>(&'a self, service: &'a Service, route: Option<u32>) -> Option<KeyPool<'a>> {
        let (table, place) = match route {
            None => (&service.pool, 0),
            Some(route) => (self.pools.get(route as usize)?, route as usize + 1),
        };
        Some(KeyPool { table, placement: self.placements.get(place)? })
    }
}

/// A pool, and where its keys are.
#[derive(Clone, Copy)]
struct KeyPool<'a> {
    table: &'a PoolTable,
    placement: &'a Placement,
}

impl Snapshot {
    /// The backends that have a service's key now: one, or one for each family of a VIP that its checks pass through.
    pub fn owners_of_key<'a>(
        &'a self,
        service: ServiceId,
        key: &'a [u8],
    ) -> impl Iterator<Item = SlotId> + 'a {
        let of_service = self.services().iter().filter(move |one| one.id == service);
        of_service.filter_map(move |service| {
            let keyed = service.keyed.as_deref()?;
            Some(self.select_key(service, keyed, keyed.rules.place(key))?.slot)
        })
    }

    /// The backend that has a key's place, as states have it now.
    #[inline]
    pub(crate) fn select_key(&self, service: &Service, keyed: &Keyed, place: KeyPlace) -> Option<Selection> {
        let own = keyed.pool(service, place.route)?;
        match keyed.rules.failover {
            KeyFailover::Next => self.select_serving(own, place.hash),
            KeyFailover::Nowhere => self.select_only(own, place.hash),
            KeyFailover::Pool(other) => self
                .select_only(own, place.hash)
                .or_else(|| self.select_serving(keyed.pool(service, Some(other))?, place.hash)),
        }
    }

    /// Whether a key's own backend is another than `slot`: it does not serve.
    pub(crate) fn is_away(&self, service: &Service, keyed: &Keyed, place: KeyPlace, slot: SlotId) -> bool {
        let Some(KeyPool { table, placement }) = keyed.pool(service, place.route) else { return false };
        let rank = match placement {
            Placement::Ring(rings) => rings.all.as_deref().map(|all| all.lookup(place.hash).into()),
            Placement::Maglev { all } => all.as_deref().map(|all| all.lookup(place.hash)),
        };
        rank.is_some_and(|rank: u32| table.slots.get(rank as usize) != Some(&slot))
    }

    /// The first choice that serves.
    #[inline]
    fn select_serving(&self, of: KeyPool<'_>, hash: u64) -> Option<Selection> {
        let KeyPool { table: pool, placement } = of;
        let Placement::Ring(rings) = placement else { return self.select(pool, hash) };
        let live = rings.live.as_deref()?;
        let mut chosen = self.on_ring(live, pool, hash)?;
        // On a ring without those that do not serve even the first choice may be another than the key's own.
        if let Some(all) = rings.all.as_deref().filter(|all| !std::ptr::eq(*all, live)) {
            let own = pool.slots.get(usize::from(all.lookup(hash)));
            chosen.rehashed |= u8::from(own != Some(&chosen.slot));
        }
        Some(chosen)
    }

    /// The first choice alone, if it serves.
    fn select_only(&self, of: KeyPool<'_>, hash: u64) -> Option<Selection> {
        let KeyPool { table: pool, placement } = of;
        let chosen = match placement {
            Placement::Ring(rings) => {
                return self.on_ring(rings.all.as_deref()?, pool, hash).filter(|c| c.rehashed == 0);
            }
            Placement::Maglev { all } => {
                let table = all.as_deref()?;
                let entry = table.slot_of(hash);
                let slot = *pool.slots.get(table.get(entry) as usize)?;
                Selection { slot, entry, rehashed: 0 }
            }
        };
        (self.state(chosen.slot) == SlotState::Serving).then_some(chosen)
    }

    /// The first server of a ring that serves.
    fn on_ring(&self, ring: &Ring, pool: &PoolTable, hash: u64) -> Option<Selection> {
        let (mut serving, mut rehashed) = (SlotId(0), 0);
        let chosen = ring.choose(hash, |server| {
            let slot = pool.slots.get(usize::from(server)).copied();
            let slot = slot.filter(|slot| self.state(*slot) == SlotState::Serving);
            serving = slot.unwrap_or(serving);
            rehashed |= u8::from(slot.is_none());
            slot.is_some()
        })?;
        Some(Selection { slot: serving, entry: chosen.point, rehashed })
    }
}
