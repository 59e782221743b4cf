//! The addresses and prefixes that the steering program redirects. Packets to addresses of this
//! machine inside these prefixes still go to the kernel.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use forwarder::Prefix;

/// The addresses that the steering program redirects. VIP entries take precedence over addresses of
/// the machine, and these addresses take precedence over prefixes. If several prefixes match, the
/// longest prefix is used.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Filter {
    pub(super) vips: BTreeMap<IpAddr, u8>,
    pub(super) prefixes: BTreeMap<Prefix, u8>,
    /// The addresses of this machine that are inside a prefix but are not VIPs. Other addresses of
    /// the machine need no entry.
    pub(super) own: BTreeSet<IpAddr>,
}

impl Filter {
    /// Creates a filter from VIP addresses, VIP prefixes and the addresses of this machine. Each
    /// VIP address and prefix has an encapsulation overhead, which is the headroom in bytes that
    /// the program reserves in front of the packet. If an address appears twice, the last overhead
    /// is used.
    pub fn new(
        vips: impl IntoIterator<Item = (IpAddr, u8)>,
        prefixes: impl IntoIterator<Item = (Prefix, u8)>,
        own: impl IntoIterator<Item = IpAddr>,
    ) -> Self {
        let vips =
            vips.into_iter().map(|(vip, encap_overhead)| (vip.to_canonical(), encap_overhead)).collect();
        let filter = Self { vips, prefixes: prefixes.into_iter().collect(), own: BTreeSet::new() };
        filter.with_own(own)
    }

    /// Creates a filter that contains only VIP addresses.
    pub fn of_vips(vips: impl IntoIterator<Item = (IpAddr, u8)>) -> Self {
        Self::new(vips, [], [])
    }

    /// Returns the encapsulation overhead for an address. Returns `None` if packets to the address
    /// are not redirected.
    #[must_use]
    pub fn encap_overhead(&self, address: IpAddr) -> Option<u8> {
        let address = address.to_canonical();
        match self.vips.get(&address) {
            Some(encap_overhead) => Some(*encap_overhead),
            None if self.own.contains(&address) => None,
            None => {
                let covering = self.prefixes.iter().filter(|(prefix, _)| prefix.contains(address));
                covering.max_by_key(|(prefix, _)| prefix.length()).map(|(_, encap_overhead)| *encap_overhead)
            }
        }
    }

    /// Returns the most frequent encapsulation overhead in the filter. If two values are equally
    /// frequent, returns the larger value.
    pub(crate) fn usual_encap_overhead(&self) -> u8 {
        let mut counts = BTreeMap::new();
        for encap_overhead in self.vips.values().chain(self.prefixes.values()) {
            *counts.entry(*encap_overhead).or_insert(0usize) += 1;
        }
        counts.into_iter().max_by_key(|(_, count)| *count).map_or(0, |(encap_overhead, _)| encap_overhead)
    }

    /// Returns the intersection of this filter and `next`.
    pub(super) fn narrowed_to(&self, next: &Self) -> Self {
        let kept = self.vips.iter().filter(|(vip, _)| next.encap_overhead(**vip).is_some());
        let early = next.vips.iter().filter(|(vip, _)| self.encap_overhead(**vip).is_some());
        let mut prefixes = BTreeMap::new();
        for (ours, encap_overhead) in &self.prefixes {
            for (theirs, new_growth) in &next.prefixes {
                if theirs.covers(ours) {
                    prefixes.insert(*ours, *encap_overhead);
                } else if ours.covers(theirs) {
                    prefixes.insert(*theirs, *new_growth);
                }
            }
        }
        let vips = early.chain(kept).map(|(vip, encap_overhead)| (*vip, *encap_overhead)).collect();
        let own = self.own.union(&next.own).copied().collect::<Vec<_>>();
        Self { vips, prefixes, own: BTreeSet::new() }.with_own(own)
    }

    /// Returns the entries of the address map.
    pub(super) fn entries(&self) -> impl Iterator<Item = (IpAddr, u32)> {
        let own = self.own.iter().map(|address| (*address, OWN));
        own.chain(self.vips.iter().map(|(vip, encap_overhead)| (*vip, u32::from(*encap_overhead))))
    }

    pub(super) fn entry(&self, address: IpAddr) -> Option<u32> {
        let encap_overhead = self.vips.get(&address).map(|encap_overhead| u32::from(*encap_overhead));
        encap_overhead.or_else(|| self.own.contains(&address).then_some(OWN))
    }

    pub(super) fn set_entry(&mut self, address: IpAddr, value: Option<u32>) {
        self.vips.remove(&address);
        self.own.remove(&address);
        match value {
            Some(OWN) => _ = self.own.insert(address),
            Some(encap_overhead) => {
                _ = self.vips.insert(address, u8::try_from(encap_overhead).unwrap_or(u8::MAX))
            }
            None => {}
        }
    }

    fn with_own(mut self, own: impl IntoIterator<Item = IpAddr>) -> Self {
        let own = own.into_iter().map(|address| address.to_canonical());
        let covered =
            own.filter(|address| self.encap_overhead(*address).is_some() && !self.vips.contains_key(address));
        self.own = covered.collect();
        self
    }
}

/// The map value for an address of this machine. `OWN` in `bpf/whose.h` must have the same value.
const OWN: u32 = 64;
