//! Selects a backend by the key of a request. The packet path and the `where` command share this
//! code. The result depends only on the key, the pool's Maglev table or rings, and the slot states.
//! All machines and threads therefore select the same backend.

use kv_switch::{MAX_REPLICAS, Ring};

use crate::selection::select_on;
use crate::{
    Flow, KeyFailover, KeyPlace, KeyRules, Keyed, Placement, PoolTable, Selection, Service, ServiceId,
    SlotId, SlotState, Snapshot, Step,
};

impl KeyRules {
    /// Returns the hash of a key and the pool that the key is routed to.
    #[inline]
    pub(crate) fn place(&self, key: &[u8]) -> KeyPlace {
        KeyPlace { hash: self.hash.hash(key), route: self.routes.lookup(key) }
    }
}

impl Keyed {
    /// Returns the explanation step for a selected backend: a ring step or a Maglev step. Either
    /// all pools of a service use rings, or all of them use Maglev tables.
    #[inline]
    pub(crate) fn step(&self, chosen: &Selection) -> Step {
        let Selection { entry, rehashed, .. } = *chosen;
        match self.placements.first() {
            Some(Placement::Ring(_)) => Step::Ring { point: entry, rehashed: rehashed > 0 },
            _ => Step::Maglev { entry, rehashed, reselected: false },
        }
    }

    /// Returns the pool that a route refers to. `None` refers to the service's own pool.
    #[inline]
    fn pool<'a>(&'a self, service: &'a Service, route: Option<u32>) -> Option<KeyPool<'a>> {
        let (table, place) = match route {
            None => (&service.pool, 0),
            Some(route) => (self.pools.get(route as usize)?, route as usize + 1),
        };
        Some(KeyPool { table, placement: self.placements.get(place)? })
    }
}

/// The backends that store a key, most preferred first.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Holders {
    each: [Holder; MAX_REPLICAS],
    count: usize,
}

/// A backend that stores a key.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Holder {
    pub(crate) selection: Selection,
    /// `true` if the key is assigned to this backend. The value is `false` for a failover backend.
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

    /// Returns the backend for the flow's read requests. Failover backends are used only if all
    /// backends that the key is assigned to are down.
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

/// A pool, and the structure that assigns keys to its backends.
#[derive(Clone, Copy)]
struct KeyPool<'a> {
    table: &'a PoolTable,
    placement: &'a Placement,
}

impl Snapshot {
    /// Returns the backends that currently store a key of a service. If the VIP has separate health
    /// checks for IPv4 and IPv6, the result can contain one backend for each address family.
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

    /// Returns the backends that currently store a key, most preferred first. The service is found
    /// by the destination of `flow`. For services without replicas the result is empty.
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

    /// Returns the backends that currently store a key. For services without replicas the result is
    /// empty.
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

    /// Returns the backend for a read request of a flow.
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

    /// Returns the first candidate that `admits` accepts. The candidates are taken from the table
    /// or ring of the serving backends.
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

    /// Returns the backend for a key under the current slot states.
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

    /// Returns `true` if `slot` is a failover backend for the key: the key is assigned to another
    /// backend, which is not serving.
    pub(crate) fn is_away(&self, service: &Service, keyed: &Keyed, place: KeyPlace, slot: SlotId) -> bool {
        let Some(KeyPool { table, placement }) = keyed.pool(service, place.route) else { return false };
        let rank = match placement {
            Placement::Ring(rings) => rings.all.as_deref().map(|all| usize::from(all.lookup(place.hash))),
            Placement::Maglev { all } => {
                all.as_deref().map(|all| all.lookup_uniform(place.hash).index_by_name())
            }
        };
        rank.is_some_and(|rank| table.slots.get(rank) != Some(&slot))
    }

    /// Returns the first serving backend among the candidates for a hash.
    #[inline]
    fn select_serving(&self, of: KeyPool<'_>, hash: u64) -> Option<Selection> {
        let KeyPool { table: pool, placement } = of;
        let Placement::Ring(rings) = placement else { return self.select(pool, hash) };
        let live = rings.live.as_deref()?;
        let serves = |slot| self.state(slot) == SlotState::Serving;
        let mut chosen = on_ring(live, pool, hash, serves)?;
        // The first candidate on the ring of serving backends can already be a failover backend.
        if let Some(all) = rings.all.as_deref().filter(|all| !std::ptr::eq(*all, live)) {
            let own = pool.slots.get(usize::from(all.lookup(hash)));
            chosen.rehashed |= u8::from(own != Some(&chosen.slot));
        }
        Some(chosen)
    }

    /// Returns the backend that the key is assigned to, if that backend is serving. Never returns a
    /// failover backend.
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
                let slot = *pool.slots.get(table.get(entry).index_by_name())?;
                Selection { slot, entry, rehashed: 0 }
            }
        };
        (self.state(chosen.slot) == SlotState::Serving).then_some(chosen)
    }
}

/// Returns the backends to which a key is assigned when all backends are serving. Returns `None` if
/// no table or ring of all backends exists.
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

/// Returns the first backend on a ring that `admits` accepts.
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
