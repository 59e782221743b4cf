//! Views of pools. A view describes a pool as used by one address family of a VIP, or by all VIPs.
//!
//! The result of a check through a VIP applies only to one address family of that VIP. A pool has a
//! separate view for each address family of each VIP if the pool, or a fallback pool that can
//! replace it, has checks through VIPs. Any other pool has one view for all VIPs.
//!
//! Invariant: the results of checks through one VIP do not affect another VIP, or the other address
//! family of the same VIP.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::net::IpAddr;
use std::sync::Arc;

use config::{Config, Machine, Pool, Vip};
use packet::Family;

use crate::keys::{PoolView, VipFamily, is_checked_through_vip};

/// Determines which pool view each VIP of a machine uses.
#[derive(Debug)]
pub struct Views<'a> {
    pub(crate) config: &'a Config,
    pub(crate) machine: &'a Machine,
    vips: HashMap<&'a str, &'a Vip>,
    /// The pools that need separate views: pools with checks through VIPs, and pools from which a
    /// fallback or a key route leads to such a pool.
    apart: HashSet<&'a str>,
}

impl<'a> Views<'a> {
    /// Prepares the views for `machine`.
    ///
    /// # Cost
    /// Visits each member of each pool once.
    #[must_use]
    pub fn new(config: &'a Config, machine: &'a Machine) -> Self {
        let through = |pool: &&Arc<Pool>| pool.members.iter().any(is_checked_through_vip);
        let own: HashSet<&str> = config.pools().iter().filter(through).map(|pool| &*pool.name).collect();
        let names = config.pools().iter().map(|pool| &*pool.name);
        let apart = names.filter(|name| chain(config, name).iter().any(|pool| own.contains(&*pool.name)));
        let vips = config.vips_of(machine).map(|vip| (&*vip.name, vip)).collect();
        Self { config, machine, vips, apart: apart.collect() }
    }

    /// Returns the configuration from which the views were created.
    #[must_use]
    pub fn config(&self) -> &'a Config {
        self.config
    }

    /// Returns the address families of a VIP's addresses.
    #[must_use]
    pub fn families(vip: &Vip) -> BTreeSet<Family> {
        let suffixes = vip.suffixes.iter().map(|suffix| suffix.address());
        vip.addresses.iter().copied().chain(suffixes).map(Family::of).collect()
    }

    /// Returns the view of a pool for one address family of a VIP. A machine without an address of
    /// that family cannot check backends through VIP addresses of that family. Such a machine uses
    /// the view for the other family.
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

    /// Returns the addresses of a VIP in one address family. Health checks can be sent to these
    /// addresses.
    #[must_use]
    pub fn addresses(&self, at: &VipFamily) -> Vec<IpAddr> {
        let addresses = self.vips.get(&*at.vip).map(|vip| vip.reachable_at()).unwrap_or_default();
        addresses.into_iter().filter(|address| Family::of(*address) == at.family).collect()
    }

    /// Returns the view of the fallback pool for the same VIP addresses, or `None` if the pool has
    /// no fallback pool.
    #[must_use]
    pub fn fallback(&self, view: &PoolView) -> Option<PoolView> {
        let fallback = self.config.pool(&view.pool)?.fallback.as_ref()?;
        Some(self.beside(view, &fallback.pool))
    }

    /// Returns the view of `pool` for the VIP addresses of `view`.
    #[must_use]
    pub fn beside(&self, view: &PoolView, pool: &Arc<str>) -> PoolView {
        let vip = view.vip.as_ref().filter(|_| self.apart.contains(&**pool)).cloned();
        PoolView { pool: Arc::clone(pool), vip }
    }

    /// Returns all pools that the VIPs of the machine use, including fallback pools and pools to
    /// which key routes refer.
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

/// Returns a pool, and all pools that can be reached from this pool through fallbacks and key
/// routes. Each pool is returned once, even if key routes form a cycle.
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
