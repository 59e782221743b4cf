//! The choice of a backend by a request's key: one function for the packet path and `where`.
//!
//! Not here: reading requests (`pipeline/keyed`), rules and pools (`keyed`).
//! Invariant: where a key is depends on the key, the pool's table or rings and the states alone, the same on every machine and thread.

use kv_switch::{MAX_REPLICAS, Ring};

use crate::selection::select_on;
use crate::{
    Flow, KeyFailover, KeyPlace, KeyRules, Keyed, Placement, PoolTable, Selection, Service, ServiceId,
    SlotId, SlotState, Snapshot, Step,
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

/// The backends that have a key, in the order of its choices.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Holders {
    each: [Holder; MAX_REPLICAS],
    count: usize,
}

/// A backend that has a key.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Holder {
    pub(crate) selection: Selection,
    /// It has the key while all serve: it stands in for nobody.
    pub(crate) is_own: bool,
}

impl Holders {
    pub(crate) fn each(&self) -> &[Holder] {
        self.each.get(..self.count).unwrap_or_default()
    }

    fn none() -> Self {
        let selection = Selection { slot: SlotId(u32::MAX), entry: 0, rehashed: 0 };
        Self { each: [Holder { selection, is_own: false }; MAX_REPLICAS], count: 0 }
    }

    fn push(&mut self, holder: Holder) {
        if let Some(place) = self.each.get_mut(self.count) {
            *place = holder;
            self.count += 1;
        }
    }

    fn has(&self, slot: SlotId) -> bool {
        self.each().iter().any(|holder| holder.selection.slot == slot)
    }

    /// The one that a flow's reads go to: of those that have had the key all the time, if one of them serves.
    fn for_reads(&self, flow: u64) -> Option<Selection> {
        let own = self.each().iter().filter(|holder| holder.is_own);
        let has_own = own.clone().count() > 0;
        let usable = self.each().iter().filter(|holder| holder.is_own || !has_own);
        let nth = (flow >> 32).checked_rem(usable.clone().count() as u64)?;
        let first = self.each().first()?.selection.rehashed;
        let mut chosen = usable.skip(usize::try_from(nth).ok()?).map(|holder| holder.selection).next()?;
        chosen.rehashed = first;
        Some(chosen)
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
        let placed = of_service.filter_map(move |service| {
            let keyed = service.keyed.as_deref()?;
            Some((service, keyed, keyed.rules.place(key)))
        });
        placed.flat_map(|(service, keyed, place)| {
            let one = keyed.rules.replicas.is_none().then(|| self.select_key(service, keyed, place));
            let holders = self.holders(service, keyed, place);
            let all = (0..MAX_REPLICAS).filter_map(move |nth| holders.each().get(nth).copied());
            one.flatten().into_iter().chain(all.map(|holder| holder.selection)).map(|chosen| chosen.slot)
        })
    }

    /// The backends that have the key of a request in this flow now, in the order of its choices; none where keys have no replicas.
    pub fn replicas_of_key(&self, flow: &Flow, key: &[u8]) -> impl Iterator<Item = SlotId> {
        let service = self.decide(flow).service().and_then(|index| self.services().get(index));
        let keyed = service.and_then(|service| Some((service, service.keyed.as_deref()?)));
        let holders = keyed.map_or_else(Holders::none, |(service, keyed)| {
            self.holders(service, keyed, keyed.rules.place(key))
        });
        (0..MAX_REPLICAS)
            .filter_map(move |nth| holders.each().get(nth).copied())
            .map(|holder| holder.selection.slot)
    }

    /// The backends that have a key's place now; none where keys have no replicas.
    pub(crate) fn holders(&self, service: &Service, keyed: &Keyed, place: KeyPlace) -> Holders {
        let mut holders = Holders::none();
        let (Some(rules), Some(of)) = (keyed.rules.replicas, keyed.pool(service, place.route)) else {
            return holders;
        };
        let own = own_of(of, place.hash, rules.count);
        for _ in 0..rules.count {
            let admits = |slot| self.state(slot) == SlotState::Serving && !holders.has(slot);
            let Some(selection) = self.select_among(of, place.hash, admits) else { break };
            let is_own = own.is_none_or(|own| own.has(selection.slot));
            holders.push(Holder { selection, is_own });
        }
        holders
    }

    /// The backend that a read in this flow goes to.
    #[inline]
    pub(crate) fn select_read(
        &self,
        service: &Service,
        keyed: &Keyed,
        place: KeyPlace,
        flow: u64,
    ) -> Option<Selection> {
        match keyed.rules.replicas {
            None => self.select_key(service, keyed, place),
            Some(_) => self.holders(service, keyed, place).for_reads(flow),
        }
    }

    /// The first choice that `admits`, by the tables that follow states.
    fn select_among(
        &self,
        KeyPool { table, placement }: KeyPool<'_>,
        hash: u64,
        admits: impl Fn(SlotId) -> bool,
    ) -> Option<Selection> {
        match placement {
            Placement::Maglev { .. } => self.select_by(table, hash, admits),
            Placement::Ring(rings) => on_ring(rings.live.as_deref()?, table, hash, admits),
        }
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
        let serves = |slot| self.state(slot) == SlotState::Serving;
        let mut chosen = on_ring(live, pool, hash, serves)?;
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
                let serves = |slot| self.state(slot) == SlotState::Serving;
                return on_ring(rings.all.as_deref()?, pool, hash, serves).filter(|c| c.rehashed == 0);
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
}

/// The backends that have a key while all serve; `None`: nobody knows.
fn own_of(KeyPool { table, placement }: KeyPool<'_>, hash: u64, count: u8) -> Option<Holders> {
    let mut own = Holders::none();
    for _ in 0..count {
        let admits = |slot| !own.has(slot);
        let selection = match placement {
            Placement::Ring(rings) => on_ring(rings.all.as_deref()?, table, hash, admits),
            Placement::Maglev { all } => select_on(all.as_deref()?, table, hash, admits),
        };
        let Some(selection) = selection else { break };
        own.push(Holder { selection, is_own: true });
    }
    Some(own)
}

/// The first server of a ring that `admits`.
fn on_ring(ring: &Ring, pool: &PoolTable, hash: u64, admits: impl Fn(SlotId) -> bool) -> Option<Selection> {
    let (mut found, mut rehashed) = (SlotId(0), 0);
    let chosen = ring.choose(hash, |server| {
        let slot = pool.slots.get(usize::from(server)).copied().filter(|slot| admits(*slot));
        found = slot.unwrap_or(found);
        rehashed |= u8::from(slot.is_none());
        slot.is_some()
    })?;
    Some(Selection { slot: found, entry: chosen.point, rehashed })
}
