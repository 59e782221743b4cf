//! Computes the input of the XDP filter from the parts of a snapshot. The input contains the VIP
//! addresses, and the prefixes of all prefix groups that have VIPs. Each entry also gives the
//! headroom, in bytes, that the XDP program reserves in front of a packet. The `sluicegate` binary
//! removes the machine's own addresses from the result, and `datapath` writes the remaining entries
//! to BPF maps.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;

use crate::{Parts, Prefix, VipAddress, aggregate};

/// The maximum number of prefixes in the XDP filter. The limit is low so that all prefixes fit into
/// the processor's L1 cache.
pub const FILTER_PREFIXES: usize = 64;
/// The action of the XDP program for a VIP packet on a queue without a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoSocket {
    /// The program passes the packet, unmodified, to the kernel.
    Pass,
    /// The program drops and counts the packet.
    Drop,
}

/// The maximum headroom that the XDP program reserves in front of a packet, in bytes.
pub(crate) const MAX_ENCAP_OVERHEAD: usize = 63;

/// The total backend weight for each encapsulation overhead. The index is the overhead in bytes.
#[derive(Clone)]
struct Weights([u64; MAX_ENCAP_OVERHEAD + 1]);

impl Weights {
    const NONE: Self = Self([0; MAX_ENCAP_OVERHEAD + 1]);

    fn add(&mut self, other: &Self) {
        self.0.iter_mut().zip(other.0).for_each(|(sum, more)| *sum = sum.saturating_add(more));
    }

    /// Returns the encapsulation overhead with the largest total weight. If several overheads have
    /// the same weight, returns the smallest overhead, so that all machines choose the same
    /// overhead.
    fn encap_overhead(&self) -> u8 {
        let most = self.0.iter().copied().max().unwrap_or(0);
        let encap_overhead = self.0.iter().position(|weight| *weight == most).unwrap_or(0);
        u8::try_from(encap_overhead).unwrap_or(0)
    }
}

/// The VIP addresses and prefixes, in ascending order. Each address or prefix is stored with its
/// encapsulation overhead in bytes. If an entry's backends need different overheads, the entry
/// contains the overhead with the largest total weight.
#[derive(Debug)]
pub(crate) struct Filter {
    pub(crate) addresses: Vec<(IpAddr, u8)>,
    pub(crate) prefixes: Vec<(Prefix, u8)>,
}

pub(crate) fn filter(parts: &Parts) -> Filter {
    let mut addresses: HashMap<IpAddr, Weights> = HashMap::new();
    let mut groups: BTreeMap<usize, Weights> = BTreeMap::new();
    for binding in &parts.bindings {
        let weights = match binding.address {
            VipAddress::Exact(address) => addresses.entry(address).or_insert(Weights::NONE),
            VipAddress::Suffix { group, .. } => groups.entry(group).or_insert(Weights::NONE),
        };
        let pool = &parts.services[binding.service].pool;
        for (slot, weight) in pool.slots.iter().zip(&pool.weights) {
            weights.0[parts.slots[slot.0 as usize].encap_overhead()] += u64::from(*weight);
        }
    }
    let mut exact: Vec<(IpAddr, u8)> =
        addresses.into_iter().map(|(address, weights)| (address, weights.encap_overhead())).collect();
    exact.sort_unstable();
    Filter { addresses: exact, prefixes: prefixes(parts, &groups) }
}

/// Returns the aggregated prefixes of the groups that have a VIP. The overhead of an aggregated
/// prefix is computed from the backends of all groups that the prefix covers.
fn prefixes(parts: &Parts, groups: &BTreeMap<usize, Weights>) -> Vec<(Prefix, u8)> {
    let of = |group: usize| parts.groups.get(group).into_iter().flat_map(|group| &group.prefixes);
    let all: Vec<Prefix> = groups.keys().flat_map(|group| of(*group)).copied().collect();
    let taken = aggregate(&all, FILTER_PREFIXES).prefixes;
    let mut inside: Vec<BTreeSet<usize>> = vec![BTreeSet::new(); taken.len()];
    for group in groups.keys() {
        for prefix in of(*group) {
            // Both lists are in ascending order, so binary search finds the aggregated prefix that
            // covers `prefix`.
            let place = taken.partition_point(|whole| whole.address() <= prefix.address());
            inside[place.saturating_sub(1)].insert(*group);
        }
    }
    let encap_overhead = |inside: &BTreeSet<usize>| {
        let mut sum = Weights::NONE;
        inside.iter().filter_map(|group| groups.get(group)).for_each(|weights| sum.add(weights));
        sum.encap_overhead()
    };
    taken.iter().zip(&inside).map(|(prefix, inside)| (*prefix, encap_overhead(inside))).collect()
}
