//! Indexes of machines, VIPs and backends.
//!
//! Clients can send large configurations with `config put`. Checks between sections therefore look
//! up names and addresses here, because a search in the list of sections for each reference would
//! take quadratic time. If several sections have an address, the first of these sections is found.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::sync::Arc;

use super::machine::MachineDraft;
use super::pool::PoolDraft;
use super::sections::Sections;
use super::vip::VipDraft;

/// The numbers of machines and VIPs in their lists, and the names of backends.
pub(super) struct Index {
    machines: HashMap<Arc<str>, usize>,
    of_machines: HashMap<IpAddr, usize>,
    vips: HashMap<Arc<str>, usize>,
    of_vips: HashMap<IpAddr, usize>,
    of_backends: HashMap<IpAddr, Arc<str>>,
    /// The first machine of each shard, or of all machines, that has no address of a family.
    lacking: HashMap<(Option<Arc<str>>, bool), usize>,
}

impl Index {
    pub(super) fn new(
        machines: &[MachineDraft],
        vips: &[VipDraft],
        pools: &BTreeMap<Arc<str>, PoolDraft>,
    ) -> Self {
        let mut lacking = HashMap::new();
        for (number, machine) in machines.iter().enumerate() {
            for ipv4 in [true, false] {
                if !machine.addresses.iter().any(|own| own.value.is_ipv4() == ipv4) {
                    lacking.entry((machine.shard.clone(), ipv4)).or_insert(number);
                    lacking.entry((None, ipv4)).or_insert(number);
                }
            }
        }
        let own = machines.iter().enumerate();
        let own =
            own.flat_map(|(number, machine)| machine.addresses.iter().map(move |at| (at.value, number)));
        let served = vips.iter().enumerate();
        let served = served.flat_map(|(number, vip)| vip.addresses.iter().map(move |at| (at.value, number)));
        let backends = pools.values().flat_map(|pool| &pool.backends);
        Self {
            machines: firsts(machines.iter().map(|one| Arc::clone(&one.name)).zip(0..)),
            of_machines: firsts(own),
            vips: firsts(vips.iter().map(|one| Arc::clone(&one.name)).zip(0..)),
            of_vips: firsts(served),
            of_backends: firsts(backends.map(|one| (one.address.value, Arc::clone(&one.name.value)))),
            lacking,
        }
    }
}

fn firsts<K: std::hash::Hash + Eq, V>(all: impl Iterator<Item = (K, V)>) -> HashMap<K, V> {
    let mut found = HashMap::new();
    all.for_each(|(key, value)| {
        found.entry(key).or_insert(value);
    });
    found
}

impl Sections<'_> {
    /// Returns the number of the machine with this name.
    pub(super) fn machine_named(&self, name: &str) -> Option<usize> {
        self.index.machines.get(name).copied()
    }

    /// Returns the number of the machine with this address.
    pub(super) fn machine_at(&self, address: IpAddr) -> Option<usize> {
        self.index.of_machines.get(&address).copied()
    }

    pub(super) fn vip_named(&self, name: &str) -> Option<&VipDraft> {
        self.vips.get(*self.index.vips.get(name)?)
    }

    pub(super) fn vip_at(&self, address: IpAddr) -> Option<&VipDraft> {
        self.vips.get(*self.index.of_vips.get(&address)?)
    }

    /// Returns the name of the backend with this address.
    pub(super) fn backend_at(&self, address: IpAddr) -> Option<&Arc<str>> {
        self.index.of_backends.get(&address)
    }

    /// Returns the first machine of the shard, or of all machines, that has no address of the
    /// family.
    pub(super) fn machine_without(&self, shard: Option<&Arc<str>>, ipv4: bool) -> Option<&MachineDraft> {
        self.machines.get(*self.index.lacking.get(&(shard.cloned(), ipv4))?)
    }
}
