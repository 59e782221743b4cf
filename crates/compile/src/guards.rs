//! Builds the guard of each VIP from its `allow`, `deny` and `limits` keys.
//!
//! A [`forwarder::Guard`] contains the accepted source prefixes and the rate limits of a VIP. A VIP
//! without these keys has no guard. VIPs with identical prefix lists share one prefix set, also
//! across generations.
//!
//! Invariant: a VIP keeps its guard number while the VIP has limits. Packet threads store token
//! buckets by guard number, so a reload does not refill the buckets. New VIPs get the smallest free
//! numbers.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use forwarder::{Guard, GuardId, PrefixSet, SourceLimit};

use config::{Limits, PerSource, SourceList, Vip};

/// The guards of one generation.
#[derive(Debug, Default)]
pub(crate) struct Guards {
    /// The prefix sets. The key contains the digests of the source lists from which the set was
    /// built.
    sets: HashMap<Vec<[u8; 32]>, Arc<PrefixSet>>,
    numbers: HashMap<Arc<str>, GuardId>,
    guards: HashMap<Arc<str>, Arc<Guard>>,
}

impl Guards {
    /// Returns the guards of the next generation, built for `vips`.
    ///
    /// # Cost
    /// Linear in the total length of all lists. A prefix set is built only if `self` does not
    /// contain an identical set.
    pub(crate) fn after<'a>(&self, vips: impl Iterator<Item = &'a Vip>) -> Self {
        let guarded: Vec<&Vip> = vips.filter(|vip| vip.guard != config::Guard::default()).collect();
        let mut next = Self { numbers: self.numbers_of(&guarded), ..Self::default() };
        for vip in guarded {
            let from = &vip.guard;
            let limits = from.limits;
            let guard = Guard {
                id: next.numbers.get(&vip.name).copied().unwrap_or_default(),
                allow: from.allow.as_ref().map(|list| next.set(self, list)),
                deny: from.deny.as_ref().map(|list| next.set(self, list)),
                new_flows_per_second: limits.new_flows_per_second,
                per_source: limits.per_source.map(source_limit),
            };
            next.guards.insert(Arc::clone(&vip.name), Arc::new(guard));
        }
        next
    }

    /// Returns the guard of a VIP, or `None` if all sources are accepted without limits.
    pub(crate) fn of(&self, vip: &Vip) -> Option<Arc<Guard>> {
        self.guards.get(&vip.name).cloned()
    }

    /// Keeps the existing guard numbers of VIPs, and gives the smallest free numbers to the other
    /// VIPs.
    fn numbers_of(&self, vips: &[&Vip]) -> HashMap<Arc<str>, GuardId> {
        let limited = || vips.iter().filter(|vip| vip.guard.limits != Limits::default());
        let kept = limited().filter_map(|vip| Some((Arc::clone(&vip.name), *self.numbers.get(&vip.name)?)));
        let mut numbers: HashMap<_, _> = kept.collect();
        let taken: BTreeSet<GuardId> = numbers.values().copied().collect();
        let mut free = (0..).map(GuardId).filter(|id| !taken.contains(id));
        for vip in limited() {
            if !numbers.contains_key(&vip.name)
                && let Some(id) = free.next()
            {
                numbers.insert(Arc::clone(&vip.name), id);
            }
        }
        numbers
    }

    fn set(&mut self, before: &Self, list: &SourceList) -> Arc<PrefixSet> {
        let digests = list.digests();
        if let Some(set) = self.sets.get(&digests) {
            return Arc::clone(set);
        }
        let known = before.sets.get(&digests).cloned();
        let set = known.unwrap_or_else(|| Arc::new(PrefixSet::new(list.prefixes())));
        self.sets.insert(digests, Arc::clone(&set));
        set
    }
}

fn source_limit(from: PerSource) -> SourceLimit {
    SourceLimit {
        new_flows_per_second: from.new_flows_per_second,
        v4_prefix: from.v4_prefix,
        v6_prefix: from.v6_prefix,
    }
}
