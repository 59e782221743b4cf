//! Who is who in a compiled configuration: memberships, the pools that hold them, and which pool serves for which.
//!
//! In: the pools that a machine's VIPs reach. Out: the way from a membership to its slot and back.
//! Not here: states and weights (`runtime_state`).

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use forwarder::{PoolTable, Service, SlotId, SlotState};
use maglev_hash::Table;

use crate::runtime_state::RuntimeState;
use crate::slots::SlotKey;
use config::{Check, Config, Fallback, Machine, Member, Pool};

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
    /// The pools that hold it, the leaf included when a VIP uses that itself.
    pub pools: Vec<Arc<str>>,
}

/// See the room's header.
#[derive(Clone, Debug, Default)]
pub struct Index {
    memberships: Vec<Membership>,
    by_key: HashMap<SlotKey, usize>,
    /// By the slot's number: places in `memberships`.
    by_slot: Vec<Option<usize>>,
    pools: BTreeMap<Arc<str>, InReach>,
    /// The pool that the file gives each service, in the order of the snapshot's services.
    configured: Vec<Arc<str>>,
}

#[derive(Clone, Debug)]
struct InReach {
    table: Arc<PoolTable>,
    fallback: Option<Fallback>,
}

/// The pools that the machine's VIPs use, and those that may serve in their place.
pub(super) fn reach<'a>(config: &'a Config, machine: &Machine) -> BTreeMap<&'a str, &'a Arc<Pool>> {
    let mut reach = BTreeMap::new();
    let services = config.vips_of(machine).flat_map(|vip| &vip.services);
    let mut next: Vec<&str> = services.map(|service| &*service.pool.name).collect();
    while let Some(name) = next.pop() {
        let Some(pool) = config.pool(name) else { continue };
        if reach.insert(&*pool.name, pool).is_none() {
            next.extend(pool.fallback.as_ref().map(|fallback| &*fallback.pool));
        }
    }
    reach
}

impl Index {
    /// All memberships, each once.
    #[must_use]
    pub fn memberships(&self) -> &[Membership] {
        &self.memberships
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
    pub fn pool(&self, name: &str) -> Option<&Arc<PoolTable>> {
        self.pools.get(name).map(|entry| &entry.table)
    }

    /// All pools in reach, in the order of their names.
    pub fn pools(&self) -> impl Iterator<Item = &Arc<PoolTable>> {
        self.pools.values().map(|entry| &entry.table)
    }

    /// The fallback of a pool in reach.
    #[must_use]
    pub fn fallback(&self, pool: &str) -> Option<&Fallback> {
        self.pools.get(pool).and_then(|entry| entry.fallback.as_ref())
    }

    /// Pools that have a fallback.
    pub fn with_fallback(&self) -> impl Iterator<Item = (&Arc<PoolTable>, &Fallback)> {
        self.pools.values().filter_map(|entry| Some((&entry.table, entry.fallback.as_ref()?)))
    }

    /// Backends of a pool that new flows may be given.
    #[must_use]
    pub fn serving(pool: &PoolTable, states: &[SlotState]) -> usize {
        let serves = |slot: &&SlotId| states.get(slot.0 as usize) == Some(&SlotState::Serving);
        pool.slots.iter().filter(serves).count()
    }

    /// The pool that serves where `name` is configured: itself, or its fallback if that is called for and has a backend.
    #[must_use]
    pub fn serving_pool(
        &self,
        name: &str,
        runtime_state: &RuntimeState,
        states: &[SlotState],
    ) -> Option<&Arc<PoolTable>> {
        let mut entry = self.pools.get(name)?;
        // The configuration has no cycle of fallbacks; the bound holds if it had one.
        for _ in 0..self.pools.len() {
            if !runtime_state.fallbacks.contains(&entry.table.name) {
                break;
            }
            let next = entry.fallback.as_ref().and_then(|fallback| self.pools.get(&fallback.pool));
            let Some(next) = next.filter(|next| Self::serving(&next.table, states) > 0) else { break };
            entry = next;
        }
        Some(&entry.table)
    }

    /// All slots that a service may choose under this configuration, whichever serve now.
    pub(super) fn slots_within(&self, name: &str) -> impl Iterator<Item = SlotId> {
        let mut next = self.pools.get(name);
        let mut left = self.pools.len();
        let chain = std::iter::from_fn(move || {
            let entry = next.filter(|_| left > 0)?;
            left -= 1;
            next = entry.fallback.as_ref().and_then(|fallback| self.pools.get(&fallback.pool));
            Some(entry)
        });
        chain.flat_map(|entry| entry.table.slots.iter().copied())
    }

    /// The pool that the file gives a service; by its place among the snapshot's services.
    #[must_use]
    pub fn configured_pool(&self, service: usize) -> Option<&Arc<str>> {
        self.configured.get(service)
    }

    /// Remembers which pool the file gives each service.
    pub(super) fn configure(&mut self, services: &[Service]) {
        self.configured = services.iter().map(|service| Arc::clone(&service.pool.name)).collect();
    }

    /// Leads each service to the pool that serves now.
    pub fn lead(&self, services: &mut [Service], runtime_state: &RuntimeState, states: &[SlotState]) {
        for (service, configured) in services.iter_mut().zip(&self.configured) {
            if let Some(pool) = self.serving_pool(configured, runtime_state, states) {
                service.pool = Arc::clone(pool);
            }
        }
    }

    pub(super) fn member(&self, member: &Member) -> Option<&Membership> {
        self.membership(&SlotKey::of(member))
    }

    /// Enters a pool's memberships, and gives their slots in the pool's order; `claim` is asked once for each membership.
    pub(super) fn enter<E>(
        &mut self,
        config: &Config,
        pool: &Pool,
        mut claim: impl FnMut(&SlotKey, &Member) -> Result<SlotId, E>,
    ) -> Result<Vec<SlotId>, E> {
        let mut slots = Vec::with_capacity(pool.members.len());
        for member in &pool.members {
            let next = self.memberships.len();
            match self.by_key.entry(SlotKey::of(member)) {
                Entry::Occupied(known) => {
                    let known = &mut self.memberships[*known.get()];
                    known.pools.push(Arc::clone(&pool.name));
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

    /// Adds the pool itself, once its memberships have `slots` and its table stands.
    pub(super) fn complete(
        &mut self,
        pool: &Pool,
        slots: Vec<SlotId>,
        table: Option<Arc<Table>>,
        weights: Vec<u32>,
    ) {
        let name = Arc::clone(&pool.name);
        let compiled =
            PoolTable { name: Arc::clone(&name), table, slots: slots.into(), weights: weights.into() };
        self.pools.insert(name, InReach { table: Arc::new(compiled), fallback: pool.fallback.clone() });
    }
}

/// The weight in its leaf pool, by the file, of a member of `pool`.
pub(super) fn own_weight(config: &Config, pool: &Pool, member: &Member) -> u32 {
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
