//! Computes the input of the XDP filter from the parts of a snapshot. The input contains the VIP
//! addresses, and the prefixes of all prefix groups that have VIPs. The `sluicegate` binary removes
//! the machine's own addresses from the result, and `datapath` writes the remaining entries to BPF
//! maps.

use std::collections::BTreeSet;
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

/// The maximum length of the outer headers of a backend, in bytes. The device provides this much
/// headroom in front of each received packet.
pub const MAX_ENCAP_OVERHEAD: usize = 63;

/// The VIP addresses and prefixes, in ascending order.
#[derive(Debug)]
pub(crate) struct Filter {
    pub(crate) addresses: Vec<IpAddr>,
    pub(crate) prefixes: Vec<Prefix>,
}

pub(crate) fn filter(parts: &Parts) -> Filter {
    let (mut addresses, mut groups) = (BTreeSet::new(), BTreeSet::new());
    for binding in &parts.bindings {
        match binding.address {
            VipAddress::Exact(address) => _ = addresses.insert(address),
            VipAddress::Suffix { group, .. } => _ = groups.insert(group),
        }
    }
    let groups = groups.into_iter().filter_map(|group| parts.groups.get(group));
    let prefixes: Vec<Prefix> = groups.flat_map(|group| &group.prefixes).copied().collect();
    let prefixes = aggregate(&prefixes, FILTER_PREFIXES).prefixes;
    Filter { addresses: addresses.into_iter().collect(), prefixes }
}
