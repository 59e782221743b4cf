//! Computes the health check targets of each pool member from the configuration.
//!
//! A target that several pool members need is checked only once (Maglev paper §2.2). The crate
//! `health` runs the checks. This module also applies `max_down`, which limits how many backends of
//! a pool failing checks may take down.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use super::emptied::{Emptied, emptied};
use compile::{Index, PoolView, RuntimeState, SlotKey, Views, VipFamily, chain, others, remote_pools};
use config::{Config, Machine, Member, Via, Vip};
use forwarder::SlotId;
use health::{HealthState, ProxiedTargetKey, TargetKey, Watched};

/// The health check targets of all pool members that a machine's VIPs use.
#[derive(Clone, Debug, Default)]
pub(super) struct Plan {
    pub(super) by_membership: HashMap<SlotKey, Vec<TargetKey>>,
    pub(super) by_target: HashMap<TargetKey, Vec<SlotKey>>,
    /// The names of the VIPs that use each pool, directly or as a fallback.
    vips: HashMap<Arc<str>, Vec<Arc<str>>>,
    /// The pools with a `max_down` limit.
    bounded: BTreeMap<PoolView, Bounded>,
    /// For each pool member, the pools with a `max_down` limit that contain this member.
    bounds: HashMap<SlotKey, Vec<PoolView>>,
    /// The pool members whose servers must be flushed after they were unavailable.
    emptied: HashMap<SlotKey, Emptied>,
    /// The pool members that a reload removed, and that are checked until their drain ends.
    pub(super) leaving: HashMap<SlotKey, SlotId>,
}

/// A pool with a `max_down` limit. Failing checks may take down at most `most` of its members.
#[derive(Clone, Debug)]
struct Bounded {
    most: usize,
    keys: Vec<SlotKey>,
}

/// A pool in which more backends fail than `max_down` allows. The backends of such a pool keep
/// their last health states.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeldPool {
    /// The pool, or the view of the pool for one address family of a VIP.
    pub view: PoolView,
    /// The number of backends whose checks fail.
    pub failing: usize,
    /// The number of backends that failing checks may take down.
    pub most: usize,
    /// The number of backends in the pool.
    pub total: usize,
}

impl fmt::Display for HeldPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { view, failing, most, total } = self;
        write!(f, "pool {}", view.pool)?;
        if let Some(VipFamily { vip, family }) = &view.vip {
            write!(f, " for vip {vip} {family}")?;
        }
        write!(
            f,
            ": {failing} of {total} backends fail, but max_down allows {most}; last health states stay in effect"
        )
    }
}

impl Plan {
    pub(super) fn new(config: &Config, machine: &Machine) -> Self {
        let views = Views::new(config, machine);
        let emptied = emptied(&views, config.vips_of(machine));
        let mut plan = Self { vips: vips_by_pool(config, machine), emptied, ..Self::default() };
        let mut seen = HashSet::new();
        for (view, pool) in views.reach() {
            let addresses = view.vip.as_ref().map(|at| views.addresses(at)).unwrap_or_default();
            for member in pool.members.iter().filter(|member| !member.checks.is_empty()) {
                let key = view.key(member);
                if seen.insert(key.clone()) {
                    plan.enter(key, targets(member, &addresses, machine));
                }
            }
            if let Some(percent) = pool.max_down {
                let keys: Vec<SlotKey> = pool.members.iter().map(|member| view.key(member)).collect();
                for key in &keys {
                    plan.bounds.entry(key.clone()).or_default().push(view.clone());
                }
                let most = keys.len() * usize::from(percent) / 100;
                plan.bounded.insert(view, Bounded { most, keys });
            }
        }
        let others = others(config, machine);
        let remotes = remote_pools(config, machine).flat_map(|remote| &remote.pool.members);
        for member in others.iter().flat_map(|peers| &peers.members).chain(remotes) {
            plan.enter(SlotKey::of(member, None), targets(member, &[], machine));
        }
        plan
    }

    pub(super) fn enter(&mut self, key: SlotKey, targets: Vec<TargetKey>) {
        for target in &targets {
            self.by_target.entry(target.clone()).or_default().push(key.clone());
        }
        if !targets.is_empty() {
            self.by_membership.insert(key, targets);
        }
    }

    /// Returns the pool members whose health state depends on a target.
    pub(super) fn memberships_of(&self, target: &TargetKey) -> &[SlotKey] {
        self.by_target.get(target).map_or(&[], Vec::as_slice)
    }

    /// Returns the health check targets of a pool member.
    pub(super) fn targets_of(&self, key: &SlotKey) -> &[TargetKey] {
        self.by_membership.get(key).map_or(&[], Vec::as_slice)
    }

    /// Returns the names of the VIPs that use a pool.
    pub(super) fn vips_of(&self, pool: &str) -> &[Arc<str>] {
        self.vips.get(pool).map_or(&[], Vec::as_slice)
    }

    /// Returns the pool members whose servers must be flushed before they receive requests again,
    /// with their flush settings.
    pub(super) fn emptied(&self) -> &HashMap<SlotKey, Emptied> {
        &self.emptied
    }

    /// Returns `true` if the VIP uses at least one of these pools.
    pub(super) fn leads(&self, vip: &str, pools: &[Arc<str>]) -> bool {
        pools.iter().flat_map(|pool| self.vips_of(pool)).any(|name| **name == *vip)
    }

    /// Returns the pool members that have at least one check.
    pub(super) fn checked(&self) -> impl Iterator<Item = &SlotKey> {
        self.by_membership.keys()
    }

    /// Computes the health states of the pool members in `keys`. If one of these members belongs to
    /// a pool with `max_down`, the result includes all other members of this pool, because the
    /// limit may no longer keep the other members up.
    pub(super) fn judge_with_others<'a>(
        &'a self,
        keys: Vec<&'a SlotKey>,
        results: &HashMap<TargetKey, HealthState>,
        before: impl Fn(&SlotKey) -> HealthState,
    ) -> Vec<(&'a SlotKey, HealthState)> {
        let bounds: BTreeSet<&PoolView> =
            keys.iter().filter_map(|key| self.bounds.get(key)).flatten().collect();
        let others = bounds.into_iter().filter_map(|view| self.bounded.get(view)).flat_map(|pool| &pool.keys);
        let checked = others.filter(|key| self.by_membership.contains_key(key));
        let all: HashSet<&SlotKey> = keys.iter().copied().chain(checked).collect();
        self.judge(all.into_iter(), results, before)
    }

    /// Computes the health states of the pool members in `keys`. A pool member that is up stays up
    /// while one of its pools has more failing members than `max_down` allows.
    pub(super) fn judge<'a>(
        &self,
        keys: impl Iterator<Item = &'a SlotKey>,
        results: &HashMap<TargetKey, HealthState>,
        before: impl Fn(&SlotKey) -> HealthState,
    ) -> Vec<(&'a SlotKey, HealthState)> {
        let mut exceeded: HashMap<&PoolView, bool> = HashMap::new();
        let mut is_held = |key: &SlotKey| {
            let bounds = self.bounds.get(key).into_iter().flatten();
            let mut pools = bounds.filter_map(|view| Some((view, self.bounded.get(view)?)));
            pools.any(|(view, pool)| {
                *exceeded.entry(view).or_insert_with(|| self.failing(pool, results) > pool.most)
            })
        };
        keys.map(|key| {
            let before = before(key);
            let found = self.health(key, results, before);
            let goes = before == HealthState::Up && found == HealthState::Down;
            (key, if goes && is_held(key) { HealthState::Up } else { found })
        })
        .collect()
    }

    /// Returns the pools in which more members fail than `max_down` allows.
    pub(super) fn held(&self, results: &HashMap<TargetKey, HealthState>) -> Vec<HeldPool> {
        let row = |(view, pool): (&PoolView, &Bounded)| {
            let (failing, most, total) = (self.failing(pool, results), pool.most, pool.keys.len());
            (failing > most).then(|| HeldPool { view: view.clone(), failing, most, total })
        };
        self.bounded.iter().filter_map(row).collect()
    }

    fn failing(&self, pool: &Bounded, results: &HashMap<TargetKey, HealthState>) -> usize {
        let fails = |key: &&SlotKey| self.health(key, results, HealthState::Unknown) == HealthState::Down;
        pool.keys.iter().filter(fails).count()
    }

    /// Computes the health state of a pool member. A pool member is down if one of its checks
    /// fails. Otherwise, the previous state applies while a check has no result.
    fn health(
        &self,
        key: &SlotKey,
        results: &HashMap<TargetKey, HealthState>,
        before: HealthState,
    ) -> HealthState {
        let of = |target| results.get(target).copied().unwrap_or(HealthState::Unknown);
        let mut found = HealthState::Up;
        for state in self.targets_of(key).iter().map(of) {
            match state {
                HealthState::Down => return HealthState::Down,
                HealthState::Unknown => found = before,
                HealthState::Up => {}
            }
        }
        found
    }

    /// Returns the targets to check. For a check through a tunnel, the result includes the slot
    /// that provides the outer headers.
    pub(super) fn watched(&self, index: &Index, runtime_state: &RuntimeState) -> Vec<Watched> {
        let watched = |(target, keys): (&TargetKey, &Vec<SlotKey>)| {
            let first = keys.first()?;
            let pools: BTreeSet<Arc<str>> = keys.iter().map(|key| Arc::clone(&key.pool)).collect();
            Some(Watched {
                key: target.clone(),
                slot: target.through.as_ref().and_then(|_| self.slot_of(first, index)),
                backend: Arc::clone(&first.backend),
                pools: pools.into_iter().collect(),
                serving: keys.iter().any(|key| runtime_state.health(key) == HealthState::Up),
            })
        };
        self.by_target.iter().filter_map(watched).collect()
    }
}

/// Returns the names of the pools that a VIP uses. Fallback pools and pools of key routes are
/// included.
fn pools_of<'a>(config: &'a Config, vip: &'a Vip) -> BTreeSet<&'a Arc<str>> {
    let chains = vip.services.iter().flat_map(|service| chain(config, &service.pool.name));
    chains.map(|pool| &pool.name).collect()
}

fn vips_by_pool(config: &Config, machine: &Machine) -> HashMap<Arc<str>, Vec<Arc<str>>> {
    let mut vips: HashMap<Arc<str>, Vec<Arc<str>>> = HashMap::new();
    for vip in config.vips_of(machine) {
        for pool in pools_of(config, vip) {
            vips.entry(Arc::clone(pool)).or_default().push(Arc::clone(&vip.name));
        }
        for remote in &vip.remote_pools {
            vips.entry(Arc::clone(&remote.pool.name)).or_default().push(Arc::clone(&vip.name));
        }
    }
    vips
}

/// Returns the health check targets of a member. Checks through the VIP use the VIP addresses
/// `vips`.
fn targets(member: &Member, vips: &[IpAddr], machine: &Machine) -> Vec<TargetKey> {
    let address = member.backend.address;
    let mut targets = Vec::new();
    for check in member.checks.iter() {
        let target = |through| TargetKey { address, check: Arc::clone(check), through };
        match check.via {
            Via::Backend => targets.push(target(None)),
            Via::Vip => {
                let own = |vip: &&IpAddr| machine.addresses.iter().any(|own| own.is_ipv4() == vip.is_ipv4());
                let through = |vip: &IpAddr| ProxiedTargetKey {
                    vip: *vip,
                    encapsulation: Arc::clone(&member.encapsulation.name),
                };
                targets.extend(vips.iter().filter(own).map(|vip| target(Some(through(vip)))));
            }
        }
    }
    targets
}
