//! Indexes of machines, VIPs and backends.
//!
//! Clients can send large configurations with `config put`. Checks between sections therefore look
//! up names and addresses here, because a search in the list of sections for each reference would
//! take quadratic time. If several sections have the same address, a lookup returns the first
//! section.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::sync::Arc;

use super::machine::MachineDraft;
use super::pool::PoolDraft;
use super::vip::VipDraft;

/// The numbers of machines and VIPs in their lists, and the names of backends.
pub(super) struct Index {
    pub(super) machines: HashMap<Arc<str>, usize>,
    pub(super) of_machines: HashMap<IpAddr, usize>,
    pub(super) vips: HashMap<Arc<str>, usize>,
    pub(super) of_vips: HashMap<IpAddr, usize>,
    pub(super) of_backends: HashMap<IpAddr, Arc<str>>,
    /// The first machine of each shard, or of all machines, that has no address of a family.
    pub(super) lacking: HashMap<(Option<Arc<str>>, bool), usize>,
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
