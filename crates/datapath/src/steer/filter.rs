//! What the program takes from the kernel, and what it leaves there although a prefix covers it.
//!
//! In: addresses and prefixes of VIPs with the head room that each wants, the machine's own addresses. Out: entries of the maps.
//! Not here: the maps themselves (`steer`), which prefixes there are (`forwarder`).

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use forwarder::Prefix;

/// A VIP's own address goes before this machine's addresses, and those go before prefixes; of prefixes the longest decides.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Filter {
    pub(super) vips: BTreeMap<IpAddr, u8>,
    pub(super) prefixes: BTreeMap<Prefix, u8>,
    /// Of the machine's addresses those that a prefix covers and no VIP has: no others need an entry.
    pub(super) own: BTreeSet<IpAddr>,
}

impl Filter {
    /// Addresses and prefixes with their encapsulation overhead in bytes (the head room to open), and addresses of this machine. The last
    /// encapsulation overhead of one given twice counts.
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

    /// Of VIPs' own addresses alone.
    pub fn of_vips(vips: impl IntoIterator<Item = (IpAddr, u8)>) -> Self {
        Self::new(vips, [], [])
    }

    /// The encapsulation overhead of an address that is taken; `None`: the kernel has it.
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

    /// The encapsulation overhead of most of its addresses and prefixes; of two that are as many the larger.
    pub(crate) fn usual_encap_overhead(&self) -> u8 {
        let mut counts = BTreeMap::new();
        for encap_overhead in self.vips.values().chain(self.prefixes.values()) {
            *counts.entry(*encap_overhead).or_insert(0usize) += 1;
        }
        counts.into_iter().max_by_key(|(_, count)| *count).map_or(0, |(encap_overhead, _)| encap_overhead)
    }

    /// What both this and `next` take, or more where `next` takes it at another place: nothing that `next` leaves to the
    /// kernel, and everything else as it is.
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

    /// The values of the map of addresses.
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

/// The value of an address that is the machine's own; `OWN` in `bpf/whose.h`.
const OWN: u32 = 64;
