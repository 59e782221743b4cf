//! Pools as the addresses of VIPs see them.
//!
//! What a check through a VIP finds is said of that VIP's addresses of one family alone. So a pool that has such checks, or whose
//! fallback has, stands once for each family of each VIP that uses it; any other stands once for all.
//! In: a configuration, a machine. Out: the views in reach, and which of them serves in place of which.
//! Invariant: what one VIP's checks find changes nothing for another VIP, nor for the addresses of its other family.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::net::IpAddr;
use std::sync::Arc;

use config::{Config, Machine, Pool, Vip};
use packet::Family;

use crate::keys::{PoolView, VipFamily, is_checked_through_vip};

/// Which views a machine's VIPs have.
#[derive(Debug)]
pub struct Views<'a> {
    pub(crate) config: &'a Config,
    pub(crate) machine: &'a Machine,
    vips: HashMap<&'a str, &'a Vip>,
    /// Pools with checks through VIPs, and those that such a pool may serve for.
    apart: HashSet<&'a str>,
}

impl<'a> Views<'a> {
    /// Those of a machine.
    ///
    /// # Cost
    /// A look at each member of each pool.
    #[must_use]
    pub fn new(config: &'a Config, machine: &'a Machine) -> Self {
        let through = |pool: &&Arc<Pool>| pool.members.iter().any(is_checked_through_vip);
        let own: HashSet<&str> = config.pools().iter().filter(through).map(|pool| &*pool.name).collect();
        let names = config.pools().iter().map(|pool| &*pool.name);
        let apart = names.filter(|name| chain(config, name).iter().any(|pool| own.contains(&*pool.name)));
        let vips = config.vips_of(machine).map(|vip| (&*vip.name, vip)).collect();
        Self { config, machine, vips, apart: apart.collect() }
    }

    /// Of which.
    #[must_use]
    pub fn config(&self) -> &'a Config {
        self.config
    }

    /// The families that the addresses of a VIP are of.
    #[must_use]
    pub fn families(vip: &Vip) -> BTreeSet<Family> {
        let suffixes = vip.suffixes.iter().map(|suffix| suffix.address());
        vip.addresses.iter().copied().chain(suffixes).map(Family::of).collect()
    }

    /// As what the addresses of a VIP see a pool. Through a family that the machine has no address of nothing can be asked: what
    /// is found through the other holds.
    #[must_use]
    pub fn of(&self, vip: &Vip, family: Family, pool: &Arc<str>) -> PoolView {
        let asks = |family: &Family| self.machine.addresses.iter().any(|own| Family::of(*own) == *family);
        let vip = self.apart.contains(&**pool).then(|| {
            let other = || Self::families(vip).into_iter().find(asks);
            let family = Some(family).filter(asks).or_else(other).unwrap_or(family);
            VipFamily { vip: Arc::clone(&vip.name), family }
        });
        PoolView { pool: Arc::clone(pool), vip }
    }

    /// Where these addresses of a VIP can be asked.
    #[must_use]
    pub fn addresses(&self, at: &VipFamily) -> Vec<IpAddr> {
        let addresses = self.vips.get(&*at.vip).map(|vip| vip.reachable_at()).unwrap_or_default();
        addresses.into_iter().filter(|address| Family::of(*address) == at.family).collect()
    }

    /// What may serve in place of a view, as the same addresses see it.
    #[must_use]
    pub fn fallback(&self, view: &PoolView) -> Option<PoolView> {
        let fallback = self.config.pool(&view.pool)?.fallback.as_ref()?;
        Some(self.beside(view, &fallback.pool))
    }

    /// Another pool, as the addresses of a view see it.
    #[must_use]
    pub fn beside(&self, view: &PoolView, pool: &Arc<str>) -> PoolView {
        let vip = view.vip.as_ref().filter(|_| self.apart.contains(&**pool)).cloned();
        PoolView { pool: Arc::clone(pool), vip }
    }

    /// The pools that the machine's VIPs use, and those that may serve in their place or have some of their keys.
    #[must_use]
    pub fn reach(&self) -> BTreeMap<PoolView, &'a Arc<Pool>> {
        let mut reach = BTreeMap::new();
        for vip in self.config.vips_of(self.machine) {
            let families = Self::families(vip);
            let pools: BTreeSet<&Arc<str>> = vip.services.iter().map(|service| &service.pool.name).collect();
            for pool in pools {
                for family in &families {
                    let mut open = vec![self.of(vip, *family, pool)];
                    while let Some(view) = open.pop() {
                        let Some(pool) = self.config.pool(&view.pool) else { continue };
                        if reach.insert(view.clone(), pool).is_none() {
                            open.extend(pool.others().map(|other| self.beside(&view, other)));
                        }
                    }
                }
            }
        }
        reach
    }
}

/// A pool and those that may serve in its place or have some of its keys, each once. Keys may go round in a circle of pools.
#[must_use]
pub fn chain<'a>(config: &'a Config, pool: &str) -> Vec<&'a Arc<Pool>> {
    let mut chain: Vec<&Arc<Pool>> = Vec::new();
    let mut open: Vec<&Arc<Pool>> = config.pool(pool).into_iter().collect();
    while let Some(pool) = open.pop() {
        if chain.iter().all(|known| known.name != pool.name) {
            chain.push(pool);
            open.extend(pool.others().filter_map(|other| config.pool(other)));
        }
    }
    chain
}
