//! What the XDP filter takes from the kernel, and how much head room it opens for each.
//!
//! In: the parts of a snapshot. Out: addresses of VIPs, and prefixes of the groups that have VIPs.
//! Not here: the maps (`datapath`), which of the machine's own addresses are left out (the binary).

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;

use crate::{Parts, Prefix, VipAddress, aggregate};

/// How many prefixes the filter has room for: few enough that all stay in the nearest cache.
pub const FILTER_PREFIXES: usize = 64;
/// What becomes of a packet for a VIP on a queue without a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoSocket {
    /// The kernel gets it, untouched.
    Pass,
    /// Dropped and counted.
    Drop,
}

/// The most head room that the XDP program opens, in bytes.
pub(crate) const MAX_ENCAP_OVERHEAD: usize = 63;

/// By encapsulation overhead, the weight of backends that need it.
#[derive(Clone)]
struct Weights([u64; MAX_ENCAP_OVERHEAD + 1]);

impl Weights {
    const NONE: Self = Self([0; MAX_ENCAP_OVERHEAD + 1]);

    fn add(&mut self, other: &Self) {
        self.0.iter_mut().zip(other.0).for_each(|(sum, more)| *sum = sum.saturating_add(more));
    }

    /// The encapsulation overhead that most weight needs; the smallest on a tie, so that it is the same everywhere.
    fn encap_overhead(&self) -> u8 {
        let most = self.0.iter().copied().max().unwrap_or(0);
        let encap_overhead = self.0.iter().position(|weight| *weight == most).unwrap_or(0);
        u8::try_from(encap_overhead).unwrap_or(0)
    }
}

/// Addresses and prefixes, ascending, each with the encapsulation overhead in bytes that most weight of its pools needs.
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

/// The prefixes of groups that have a VIP, aggregated. One that stands for several groups has the encapsulation overhead of them all together.
fn prefixes(parts: &Parts, groups: &BTreeMap<usize, Weights>) -> Vec<(Prefix, u8)> {
    let of = |group: usize| parts.groups.get(group).into_iter().flat_map(|group| &group.prefixes);
    let all: Vec<Prefix> = groups.keys().flat_map(|group| of(*group)).copied().collect();
    let taken = aggregate(&all, FILTER_PREFIXES).prefixes;
    let mut inside: Vec<BTreeSet<usize>> = vec![BTreeSet::new(); taken.len()];
    for group in groups.keys() {
        for prefix in of(*group) {
            // The aggregate is ascending, as prefixes themselves are.
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
