//! The index of a compiled configuration.
//!
//! The index maps each pool member to its slot, and each slot to its pool member. A pool member is
//! one backend in one leaf pool. A leaf pool is a pool that lists the backend directly, not through
//! a nested pool. For each configured pool, the index also returns the pool that is currently used,
//! which may be a fallback pool. The module `runtime_state` contains health states and current
//! weights.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use forwarder::{PoolTable, Service, SlotId, SlotState};

use crate::keys::{PoolView, SlotKey};
use crate::runtime_state::RuntimeState;
use config::{Check, Config, Fallback, Member, Pool};

/// A pool member, which is one backend in one leaf pool.
#[derive(Clone, Debug)]
pub struct Membership {
    /// The key of the pool member. The key contains the names of the leaf pool and the backend, the
    /// backend's address and, if a check goes through a VIP, the checked addresses of that VIP.
    pub key: SlotKey,
    /// The slot of the pool member.
    pub slot: SlotId,
    /// The weight of the backend that is configured in the leaf pool.
    pub own_weight: u32,
    /// The name of the configuration section that defines the backend's encapsulation.
    pub encapsulation: Arc<str>,
    /// The health checks of the pool member, including checks inherited from other pools.
    pub checks: Vec<Arc<Check>>,
    /// The names of all pools that contain this backend and are used by VIPs of this machine. The
    /// leaf pool is included only if a VIP uses it directly.
    pub pools: Vec<Arc<str>>,
}

impl Membership {
    /// Adds the name of `pool` to `pools`. All views of a pool are processed consecutively, so
    /// comparing with the last name is enough to avoid duplicates.
    fn join(&mut self, pool: &Pool) {
        if self.pools.last() != Some(&pool.name) {
            self.pools.push(Arc::clone(&pool.name));
        }
    }
}

/// The pool members and pools in a compiled configuration.
#[derive(Clone, Debug, Default)]
pub struct Index {
    memberships: Vec<Membership>,
    by_key: HashMap<SlotKey, usize>,
    /// For each slot number, the index of its entry in `memberships`.
    by_slot: Vec<Option<usize>>,
    pools: BTreeMap<PoolView, InReach>,
    /// The configured pool of each service, in the same order as the services in the snapshot.
    configured: Vec<PoolView>,
    /// For each service, `true` if its flows move immediately when their backend drains.
    moves_flows: Vec<bool>,
    /// For each service, `true` if its VIP rejects packets while no backend is serving.
    rejects_no_backend: Vec<bool>,
    /// For each service, the slots in ascending order that it must not use any longer.
    excluded: Vec<Arc<[SlotId]>>,
    /// The slots of peers, including removed peers that still have a slot.
    peers: HashSet<SlotId>,
}

#[derive(Clone, Debug)]
struct InReach {
    table: Arc<PoolTable>,
    fallback: Option<(Fallback, PoolView)>,
}

impl Index {
    /// Returns each pool member once, including peers.
    #[must_use]
    pub fn memberships(&self) -> &[Membership] {
        &self.memberships
    }

    /// Returns the pool members that are backends, but not peers.
    pub fn backends(&self) -> impl Iterator<Item = &Membership> {
        self.memberships.iter().filter(|membership| !membership.key.is_peer())
    }

    /// Returns the number of backends: each backend is counted once in each leaf pool, however many
    /// pools and VIPs use the leaf pool. All commands and messages use this number.
    #[must_use]
    pub fn backend_count(&self) -> usize {
        let key = |membership: &'_ Membership| -> (Arc<str>, Arc<str>) {
            (Arc::clone(&membership.key.pool), Arc::clone(&membership.key.backend))
        };
        self.backends().map(key).collect::<HashSet<_>>().len()
    }

    /// Returns `true` if the slot belongs to a peer.
    #[must_use]
    pub fn is_peer(&self, slot: SlotId) -> bool {
        self.peers.contains(&slot)
    }

    pub(crate) fn know_peers(&mut self, peers: impl Iterator<Item = SlotId>) {
        self.peers = peers.collect();
    }

    /// Returns the pool member with this key.
    #[must_use]
    pub fn membership(&self, key: &SlotKey) -> Option<&Membership> {
        self.by_key.get(key).and_then(|at| self.memberships.get(*at))
    }

    /// Returns the pool member to which a slot belongs, or `None` if the pool member is no longer
    /// configured.
    #[must_use]
    pub fn of_slot(&self, slot: SlotId) -> Option<&Membership> {
        let at = self.by_slot.get(slot.0 as usize).copied().flatten()?;
        self.memberships.get(at)
    }

    /// Returns the compiled pool for a pool view, or `None` if no VIP of this machine uses the
    /// view.
    #[must_use]
    pub fn pool(&self, view: &PoolView) -> Option<&Arc<PoolTable>> {
        self.pools.get(view).map(|entry| &entry.table)
    }

    /// Returns all pools that VIPs of this machine use, sorted by pool name.
    pub fn pools(&self) -> impl Iterator<Item = (&PoolView, &Arc<PoolTable>)> {
        self.pools.iter().map(|(view, entry)| (view, &entry.table))
    }

    /// Returns `true` if the pool in this view has a fallback pool.
    #[must_use]
    pub fn has_fallback(&self, view: &PoolView) -> bool {
        self.pools.get(view).is_some_and(|entry| entry.fallback.is_some())
    }

    /// Returns all pools that have a fallback pool, with their fallback settings.
    pub fn with_fallback(&self) -> impl Iterator<Item = (&PoolView, &Arc<PoolTable>, &Fallback)> {
        self.pools.iter().filter_map(|(view, entry)| Some((view, &entry.table, &entry.fallback.as_ref()?.0)))
    }

    /// Returns the number of backends in the pool that accept new flows.
    #[must_use]
    pub fn serving(pool: &PoolTable, states: &[SlotState]) -> usize {
        let serves = |slot: &&SlotId| states.get(slot.0 as usize) == Some(&SlotState::Serving);
        pool.slots.iter().filter(serves).count()
    }

    /// Returns the pool that is currently used for the configured pool `view`. The fallback pool is
    /// used if the fallback is active and has a serving backend. Otherwise, the configured pool
    /// itself is used.
    #[must_use]
    pub fn serving_pool(
        &self,
        view: &PoolView,
        runtime_state: &RuntimeState,
        states: &[SlotState],
    ) -> Option<&Arc<PoolTable>> {
        let mut serving = None;
        for (view, entry) in self.chain(view) {
            if serving.is_some() && Self::serving(&entry.table, states) == 0 {
                break;
            }
            serving = Some(&entry.table);
            if !runtime_state.fallbacks.contains(view) {
                break;
            }
        }
        serving
    }

    /// Iterates over a pool view and its chain of fallback pools. The crate `config` rejects
    /// cycles, and `take` would end the iteration even if there were a cycle.
    fn chain<'a>(&'a self, view: &PoolView) -> impl Iterator<Item = (&'a PoolView, &'a InReach)> + use<'a> {
        let next =
            |(_, entry): &(&PoolView, &'a InReach)| self.pools.get_key_value(&entry.fallback.as_ref()?.1);
        std::iter::successors(self.pools.get_key_value(view), next).take(self.pools.len())
    }

    /// Returns all slots that a service with the configured pool `view` can ever choose, including
    /// the slots of fallback pools.
    pub(crate) fn slots_within<'a>(&'a self, view: &PoolView) -> impl Iterator<Item = SlotId> + use<'a> {
        self.chain(view).flat_map(|(_, entry)| entry.table.slots.iter().copied())
    }

    /// Returns the configured pool of each service, in the same order as the services in the
    /// snapshot.
    #[must_use]
    pub fn configured(&self) -> &[PoolView] {
        &self.configured
    }

    pub(crate) fn configure(
        &mut self,
        configured: Vec<PoolView>,
        moves_flows: Vec<bool>,
        services: &[Service],
    ) {
        (self.configured, self.moves_flows) = (configured, moves_flows);
        self.rejects_no_backend = services.iter().map(|service| service.rejects.no_backend).collect();
    }

    /// Returns `true` if any VIP rejects packets while no backend is serving.
    #[must_use]
    pub fn rejects_no_backend(&self) -> bool {
        self.rejects_no_backend.contains(&true)
    }

    /// Returns `true` if a pool that the service uses may get a serving backend at any moment: the
    /// first check results of a member are missing, or the tables do not contain a member yet that
    /// is serving now.
    fn may_serve_soon(
        &self,
        service: &Service,
        configured: &PoolView,
        runtime_state: &RuntimeState,
        states: &[SlotState],
    ) -> bool {
        let may_serve_soon = |pool: &PoolTable| {
            pool.slots.iter().zip(&pool.weights).any(|(slot, weight)| {
                let Some(Membership { key, own_weight, .. }) = self.of_slot(*slot) else { return false };
                let is_missing = *weight == 0
                    && states.get(slot.0 as usize) == Some(&SlotState::Serving)
                    && runtime_state.weight_of_all(key, *own_weight, *own_weight) > 0;
                is_missing || runtime_state.is_awaited(key)
            })
        };
        let keyed = service.keyed.iter().flat_map(|keyed| &keyed.pools);
        let remotes = service.remotes.iter().flat_map(|remotes| remotes.iter()).map(|remote| &remote.pool);
        self.chain(configured).any(|(_, entry)| may_serve_soon(&entry.table))
            || keyed.chain(remotes).any(|pool| may_serve_soon(pool))
    }

    /// Returns `true` if the flows of a service move immediately when their backend drains.
    pub(crate) fn moves_flows(&self, service: usize) -> bool {
        self.moves_flows.get(service) == Some(&true)
    }

    /// Sets the slots that each service must not use any longer.
    pub(crate) fn exclude(&mut self, excluded: Vec<Arc<[SlotId]>>) {
        self.excluded = excluded;
    }

    /// Sets the pool of each service in a snapshot to the pool that is currently used, and the
    /// slots that the service must not use. A service that moves its flows when backends drain must
    /// not use any draining slot.
    ///
    /// Also sets whether each service rejects packets while no backend is serving. While a backend
    /// may serve soon, for example after a restart, packets are dropped instead. A dropped packet
    /// is retransmitted, but a reset would end a connection that continues on that backend.
    pub fn lead(&self, services: &mut [Service], runtime_state: &RuntimeState, states: &[SlotState]) {
        for (service, configured) in services.iter_mut().zip(&self.configured) {
            if let Some(pool) = self.serving_pool(configured, runtime_state, states) {
                service.pool = Arc::clone(pool);
            }
        }
        let places = services.iter_mut().zip(&self.configured).zip(&self.rejects_no_backend);
        for ((service, configured), rejects) in places {
            service.rejects.no_backend =
                *rejects && !self.may_serve_soon(service, configured, runtime_state, states);
        }
        let draining = || {
            let slots = (0..).map(SlotId).zip(states);
            slots.filter(|(_, state)| **state == SlotState::Draining).map(|(slot, _)| slot)
        };
        for (place, (service, excluded)) in services.iter_mut().zip(&self.excluded).enumerate() {
            service.excluded_slots = Arc::clone(excluded);
            if self.moves_flows(place) {
                let all: BTreeSet<SlotId> = excluded.iter().copied().chain(draining()).collect();
                service.excluded_slots = all.into_iter().collect();
            }
        }
    }

    pub(crate) fn member(&self, member: &Member) -> Option<&Membership> {
        self.membership(&SlotKey::of(member, None))
    }

    /// Adds the members of a pool to the index, and returns their slots in the same order. For each
    /// member that is not in the index yet, the method calls `claim` once to get a slot.
    pub(crate) fn enter<E>(
        &mut self,
        config: &Config,
        pool: &Pool,
        view: &PoolView,
        mut claim: impl FnMut(&SlotKey, &Member) -> Result<SlotId, E>,
    ) -> Result<Vec<SlotId>, E> {
        let mut slots = Vec::with_capacity(pool.members.len());
        for member in &pool.members {
            let next = self.memberships.len();
            match self.by_key.entry(view.key(member)) {
                Entry::Occupied(known) => {
                    let known = &mut self.memberships[*known.get()];
                    known.join(pool);
                    slots.push(known.slot);
                }
                Entry::Vacant(new) => {
                    let (key, slot) = (new.key().clone(), claim(new.key(), member)?);
                    new.insert(next);
                    slots.push(slot);
                    self.add(Membership {
                        key,
                        slot,
                        own_weight: own_weight(config, pool, member),
                        encapsulation: Arc::clone(&member.encapsulation.name),
                        checks: member.checks.to_vec(),
                        pools: vec![Arc::clone(&pool.name)],
                    });
                }
            }
        }
        Ok(slots)
    }

    fn add(&mut self, membership: Membership) {
        let place = membership.slot.0 as usize;
        self.by_slot.resize(self.by_slot.len().max(place + 1), None);
        self.by_slot[place] = Some(self.memberships.len());
        self.memberships.push(membership);
    }

    /// Adds the compiled pool of a view to the index. All members of the pool must already have
    /// slots. `fallback` contains the fallback settings and the view of the fallback pool.
    pub(crate) fn complete(
        &mut self,
        view: PoolView,
        table: PoolTable,
        fallback: Option<(Fallback, PoolView)>,
    ) {
        self.pools.insert(view, InReach { table: Arc::new(table), fallback });
    }
}

/// Returns the weight of `member` that is configured in its leaf pool. `pool` is any pool that
/// contains the member.
#[must_use]
pub fn own_weight(config: &Config, pool: &Pool, member: &Member) -> u32 {
    if member.leaf == pool.name {
        return member.weight;
    }
    let own = config.pool(&member.leaf).and_then(|leaf| find(leaf, &member.backend.name));
    own.map_or(1, |member| member.weight)
}

/// Finds a backend by binary search, which requires that members are sorted by name.
fn find<'a>(pool: &'a Pool, backend: &str) -> Option<&'a Member> {
    let at = pool.members.binary_search_by(|member| (*member.backend.name).cmp(backend)).ok()?;
    pool.members.get(at)
}
