//! What has to be checked for each membership, before anything is compiled.
//!
//! In: a configuration and a machine. Out: the targets of each membership, each target once however many want it.
//! Not here: carrying checks out (`health`), what their results mean for a membership (`controller`).
//! Source: paper §2.2 (deduplication).

use std::borrow::Cow;
use std::collections::hash_map::Entry;
use std::collections::{BTreeSet, HashMap};
use std::net::IpAddr;
use std::sync::Arc;

use crate::compile::{Index, others, remote_pools};
use crate::slots::SlotKey;
use config::{Config, Machine, Member, Via, Vip};
use health::{HealthState, TargetKey, ThroughKey, Watched};

/// The targets of all memberships that a machine's VIPs reach.
#[derive(Clone, Debug, Default)]
pub(super) struct Plan {
    by_membership: HashMap<SlotKey, Vec<TargetKey>>,
    by_target: HashMap<TargetKey, Vec<SlotKey>>,
    /// The VIPs that lead to a pool, by its own service or as a fallback.
    vips: HashMap<Arc<str>, Vec<Arc<str>>>,
}

impl Plan {
    pub(super) fn new(config: &Config, machine: &Machine) -> Self {
        let mut plan = Self { vips: vips_by_pool(config, machine), ..Self::default() };
        memberships(config, machine, |key, member, vips| plan.enter(key, targets(member, vips, machine)));
        let others = others(config, machine);
        let remotes = remote_pools(config, machine).flat_map(|remote| &remote.pool.members);
        for member in others.iter().flat_map(|peers| &peers.members).chain(remotes) {
            plan.enter(SlotKey::of(member), targets(member, &BTreeSet::new(), machine));
        }
        plan
    }

    fn enter(&mut self, key: SlotKey, targets: Vec<TargetKey>) {
        for target in &targets {
            self.by_target.entry(target.clone()).or_default().push(key.clone());
        }
        if !targets.is_empty() {
            self.by_membership.insert(key, targets);
        }
    }

    /// Memberships that a target's results count for.
    pub(super) fn memberships_of(&self, target: &TargetKey) -> &[SlotKey] {
        self.by_target.get(target).map_or(&[], Vec::as_slice)
    }

    /// The targets of a membership.
    pub(super) fn targets_of(&self, key: &SlotKey) -> &[TargetKey] {
        self.by_membership.get(key).map_or(&[], Vec::as_slice)
    }

    /// The VIPs that lead to a pool.
    pub(super) fn vips_of(&self, pool: &str) -> &[Arc<str>] {
        self.vips.get(pool).map_or(&[], Vec::as_slice)
    }

    /// Memberships that have a check.
    pub(super) fn checked(&self) -> impl Iterator<Item = &SlotKey> {
        self.by_membership.keys()
    }

    /// What the results say of a membership. While one of several is missing, what was said before stands, unless one fails.
    pub(super) fn health(
        &self,
        key: &SlotKey,
        results: &HashMap<TargetKey, HealthState>,
        before: HealthState,
    ) -> HealthState {
        let of = |target| results.get(target).copied().unwrap_or(HealthState::Unknown);
        let states: Vec<HealthState> = self.targets_of(key).iter().map(of).collect();
        if states.contains(&HealthState::Down) {
            HealthState::Down
        } else if states.contains(&HealthState::Unknown) {
            before
        } else {
            HealthState::Up
        }
    }

    /// What is to be checked, with the slot by whose header a check through the tunnel travels.
    pub(super) fn watched(&self, index: &Index) -> Vec<Watched> {
        let watched = |(target, keys): (&TargetKey, &Vec<SlotKey>)| {
            let first = keys.first()?;
            let pools: BTreeSet<Arc<str>> = keys.iter().map(|key| Arc::clone(&key.pool)).collect();
            Some(Watched {
                key: target.clone(),
                slot: target.through.as_ref().and_then(|_| index.membership(first)).map(|found| found.slot),
                backend: Arc::clone(&first.backend),
                pools: pools.into_iter().collect(),
            })
        };
        self.by_target.iter().filter_map(watched).collect()
    }
}

/// The pools that a VIP leads to: of its services, and their fallbacks.
fn pools_of<'a>(config: &'a Config, vip: &'a Vip) -> BTreeSet<&'a str> {
    let mut pools = BTreeSet::new();
    for service in &vip.services {
        let mut next = Some(&*service.pool.name);
        let mut seen = BTreeSet::new();
        while let Some(name) = next.filter(|name| seen.insert(*name)) {
            pools.insert(name);
            let fallback = config.pool(name).and_then(|pool| pool.fallback.as_ref());
            next = fallback.map(|fallback| &*fallback.pool);
        }
    }
    pools
}

fn vips_by_pool(config: &Config, machine: &Machine) -> HashMap<Arc<str>, Vec<Arc<str>>> {
    let mut vips: HashMap<Arc<str>, Vec<Arc<str>>> = HashMap::new();
    for vip in config.vips_of(machine) {
        for pool in pools_of(config, vip) {
            vips.entry(Arc::from(pool)).or_default().push(Arc::clone(&vip.name));
        }
        for remote in &vip.remote_pools {
            vips.entry(Arc::clone(&remote.pool.name)).or_default().push(Arc::clone(&vip.name));
        }
    }
    vips
}

/// Each membership in reach that has a check, with the addresses of the VIPs that lead to it.
fn memberships<'a>(
    config: &'a Config,
    machine: &Machine,
    mut enter: impl FnMut(SlotKey, &'a Member, &BTreeSet<IpAddr>),
) {
    let mut pools: HashMap<&str, BTreeSet<IpAddr>> = HashMap::new();
    for vip in config.vips_of(machine) {
        for pool in pools_of(config, vip) {
            pools.entry(pool).or_default().extend(vip.reachable_at());
        }
    }
    let mut found: HashMap<SlotKey, (&Member, Cow<'_, BTreeSet<IpAddr>>)> = HashMap::new();
    for (name, vips) in &pools {
        let members = config.pool(name).into_iter().flat_map(|pool| &pool.members);
        for member in members.filter(|member| !member.checks.is_empty()) {
            match found.entry(SlotKey::of(member)) {
                Entry::Vacant(new) => {
                    new.insert((member, Cow::Borrowed(vips)));
                }
                Entry::Occupied(mut known) => known.get_mut().1.to_mut().extend(vips),
            }
        }
    }
    for (key, (member, vips)) in found {
        enter(key, member, &vips);
    }
}

fn targets(member: &Member, vips: &BTreeSet<IpAddr>, machine: &Machine) -> Vec<TargetKey> {
    let address = member.backend.address;
    let mut targets = Vec::new();
    for check in member.checks.iter() {
        let target = |through| TargetKey { address, check: Arc::clone(check), through };
        match check.via {
            Via::Backend => targets.push(target(None)),
            Via::Vip => {
                let own = |vip: &&IpAddr| machine.addresses.iter().any(|own| own.is_ipv4() == vip.is_ipv4());
                let through = |vip: &IpAddr| ThroughKey {
                    vip: *vip,
                    encapsulation: Arc::clone(&member.encapsulation.name),
                };
                targets.extend(vips.iter().filter(own).map(|vip| target(Some(through(vip)))));
            }
        }
    }
    targets
}
