//! Who is who in a compiled configuration: memberships, the pools that hold them, and which pool serves for which.
//!
//! In: the pools that a machine's VIPs reach. Out: the way from a membership to its slot and back.
//! Not here: states and weights (`runtime_state`).

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use forwarder::{PoolTable, Service, SlotId, SlotState};

use crate::keys::{PoolView, SlotKey};
use crate::runtime_state::RuntimeState;
use config::{Check, Config, Fallback, Member, Pool};

/// A backend in a leaf pool.
#[derive(Clone, Debug)]
pub struct Membership {
    /// Leaf pool, backend, address.
    pub key: SlotKey,
    /// Its number.
    pub slot: SlotId,
    /// Its weight in the leaf pool, by the file.
    pub own_weight: u32,
    /// The name of the encapsulation.
    pub encapsulation: Arc<str>,
    /// Its checks, those handed down included.
    pub checks: Vec<Arc<Check>>,
    /// The pools in reach that hold it, the leaf included when a VIP uses that itself.
    pub pools: Vec<Arc<str>>,
}

impl Membership {
    /// A pool in reach holds it: another one, or another view of the last one, as views of one pool follow each other.
    fn join(&mut self, pool: &Pool) {
        if self.pools.last() != Some(&pool.name) {
            self.pools.push(Arc::clone(&pool.name));
        }
    }
}

/// See the module's header.
#[derive(Clone, Debug, Default)]
pub struct Index {
    memberships: Vec<Membership>,
    by_key: HashMap<SlotKey, usize>,
    /// By the slot's number: places in `memberships`.
    by_slot: Vec<Option<usize>>,
    pools: BTreeMap<PoolView, InReach>,
    /// The pool that the file gives each service, in the order of the snapshot's services.
    configured: Vec<PoolView>,
    /// The other machines of the shard, those that went included while they have their slots.
    peers: HashSet<SlotId>,
}

#[derive(Clone, Debug)]
struct InReach {
    table: Arc<PoolTable>,
    fallback: Option<(Fallback, PoolView)>,
}

impl Index {
    /// All memberships, each once, those of the other machines of the shard among them.
    #[must_use]
    pub fn memberships(&self) -> &[Membership] {
        &self.memberships
    }

    /// Those of backends: without the other machines of the shard.
    pub fn backends(&self) -> impl Iterator<Item = &Membership> {
        self.memberships.iter().filter(|membership| !membership.key.is_peer())
    }

    /// Whether a slot is another machine's of the shard.
    #[must_use]
    pub fn is_peer(&self, slot: SlotId) -> bool {
        self.peers.contains(&slot)
    }

    pub(crate) fn know_peers(&mut self, peers: impl Iterator<Item = SlotId>) {
        self.peers = peers.collect();
    }

    /// The membership of that key.
    #[must_use]
    pub fn membership(&self, key: &SlotKey) -> Option<&Membership> {
        self.by_key.get(key).and_then(|at| self.memberships.get(*at))
    }

    /// The membership that has a slot; `None` of one that is no longer configured.
    #[must_use]
    pub fn of_slot(&self, slot: SlotId) -> Option<&Membership> {
        let at = self.by_slot.get(slot.0 as usize).copied().flatten()?;
        self.memberships.get(at)
    }

    /// A pool in reach.
    #[must_use]
    pub fn pool(&self, view: &PoolView) -> Option<&Arc<PoolTable>> {
        self.pools.get(view).map(|entry| &entry.table)
    }

    /// All pools in reach, in the order of their names.
    pub fn pools(&self) -> impl Iterator<Item = (&PoolView, &Arc<PoolTable>)> {
        self.pools.iter().map(|(view, entry)| (view, &entry.table))
    }

    /// Whether a pool in reach has a fallback.
    #[must_use]
    pub fn has_fallback(&self, view: &PoolView) -> bool {
        self.pools.get(view).is_some_and(|entry| entry.fallback.is_some())
    }

    /// Pools that have a fallback.
    pub fn with_fallback(&self) -> impl Iterator<Item = (&PoolView, &Arc<PoolTable>, &Fallback)> {
        self.pools.iter().filter_map(|(view, entry)| Some((view, &entry.table, &entry.fallback.as_ref()?.0)))
    }

    /// Backends of a pool that new flows may be given.
    #[must_use]
    pub fn serving(pool: &PoolTable, states: &[SlotState]) -> usize {
        let serves = |slot: &&SlotId| states.get(slot.0 as usize) == Some(&SlotState::Serving);
        pool.slots.iter().filter(serves).count()
    }

    /// The pool that serves where `view` is configured: itself, or its fallback if that is called for and has a backend.
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

    /// A view and those that may serve in its place. The configuration has no cycle of fallbacks; this ends if it had one.
    fn chain<'a>(&'a self, view: &PoolView) -> impl Iterator<Item = (&'a PoolView, &'a InReach)> + use<'a> {
        let next =
            |(_, entry): &(&PoolView, &'a InReach)| self.pools.get_key_value(&entry.fallback.as_ref()?.1);
        std::iter::successors(self.pools.get_key_value(view), next).take(self.pools.len())
    }

    /// All slots that a service may choose under this configuration, whichever serve now.
    pub(crate) fn slots_within<'a>(&'a self, view: &PoolView) -> impl Iterator<Item = SlotId> + use<'a> {
        self.chain(view).flat_map(|(_, entry)| entry.table.slots.iter().copied())
    }

    /// The pool that the file gives each service, in the order of the snapshot's services.
    #[must_use]
    pub fn configured(&self) -> &[PoolView] {
        &self.configured
    }

    /// Remembers which pool the file gives each service.
    pub(crate) fn configure(&mut self, configured: Vec<PoolView>) {
        self.configured = configured;
    }

    /// Leads each service to the pool that serves now.
    pub fn lead(&self, services: &mut [Service], runtime_state: &RuntimeState, states: &[SlotState]) {
        for (service, configured) in services.iter_mut().zip(&self.configured) {
            if let Some(pool) = self.serving_pool(configured, runtime_state, states) {
                service.pool = Arc::clone(pool);
            }
        }
    }

    pub(crate) fn member(&self, member: &Member) -> Option<&Membership> {
        self.membership(&SlotKey::of(member, None))
    }

    /// Enters a pool's memberships, and gives their slots in the pool's order; `claim` is asked once for each membership.
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

    /// Adds the pool itself, once its memberships have their slots and its table stands; `fallback` may serve in its place.
    pub(crate) fn complete(
        &mut self,
        view: PoolView,
        table: PoolTable,
        fallback: Option<(Fallback, PoolView)>,
    ) {
        self.pools.insert(view, InReach { table: Arc::new(table), fallback });
    }
}

/// The weight in its leaf pool, by the file, of a member of `pool`.
#[must_use]
pub fn own_weight(config: &Config, pool: &Pool, member: &Member) -> u32 {
    if member.leaf == pool.name {
        return member.weight;
    }
    let own = config.pool(&member.leaf).and_then(|leaf| find(leaf, &member.backend.name));
    own.map_or(1, |member| member.weight)
}

/// Members are in the order of their names.
fn find<'a>(pool: &'a Pool, backend: &str) -> Option<&'a Member> {
    let at = pool.members.binary_search_by(|member| (*member.backend.name).cmp(backend)).ok()?;
    pool.members.get(at)
}
