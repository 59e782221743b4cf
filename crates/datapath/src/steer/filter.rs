//! The addresses and prefixes that the steering program redirects. Packets to addresses of this
//! machine inside these prefixes still go to the kernel.

use std::collections::BTreeSet;
use std::net::IpAddr;

use forwarder::Prefix;

use super::Changed;

/// The addresses that the steering program redirects. VIP entries take precedence over addresses of
/// the machine, and these addresses take precedence over prefixes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Filter {
    pub(super) vips: BTreeSet<IpAddr>,
    pub(super) prefixes: BTreeSet<Prefix>,
    /// The addresses of this machine that are inside a prefix but are not VIPs. Other addresses of
    /// the machine need no entry.
    pub(super) own: BTreeSet<IpAddr>,
}

/// The filter that the maps of a program contain.
#[derive(Debug, Default)]
pub(super) struct HeldFilter {
    filter: Filter,
    /// `false` if a change failed, so that the maps may contain another filter.
    is_known: bool,
}

impl HeldFilter {
    /// Creates the value for maps that another process has written.
    pub(super) fn handed(filter: Filter) -> Self {
        Self { filter, is_known: false }
    }

    /// Returns the filter of the last successful change.
    pub(super) const fn get(&self) -> &Filter {
        &self.filter
    }

    /// Changes the filter to `wanted`. `write` writes a filter to the maps, and is not called if
    /// the maps are known to contain the filter.
    ///
    /// # Errors
    /// Returns the error of `write`. In this case, the next change calls `write` for any filter.
    pub(super) fn change<E>(
        &mut self,
        wanted: &Filter,
        write: impl FnOnce(&Filter) -> Result<(), E>,
    ) -> Result<Changed, E> {
        if self.is_known && *wanted == self.filter {
            return Ok(Changed::default());
        }
        self.is_known = false;
        write(wanted)?;
        let changed = self.filter.changes_to(wanted);
        self.filter.clone_from(wanted);
        self.is_known = true;
        Ok(changed)
    }
}

impl Filter {
    /// Creates a filter from VIP addresses, VIP prefixes and the addresses of this machine.
    pub fn new(
        vips: impl IntoIterator<Item = IpAddr>,
        prefixes: impl IntoIterator<Item = Prefix>,
        own: impl IntoIterator<Item = IpAddr>,
    ) -> Self {
        let vips = vips.into_iter().map(|vip| vip.to_canonical()).collect();
        let filter = Self { vips, prefixes: prefixes.into_iter().collect(), own: BTreeSet::new() };
        filter.with_own(own)
    }

    /// Creates a filter that contains only VIP addresses.
    pub fn of_vips(vips: impl IntoIterator<Item = IpAddr>) -> Self {
        Self::new(vips, [], [])
    }

    /// Returns `true` if packets to an address are redirected.
    #[must_use]
    pub fn takes(&self, address: IpAddr) -> bool {
        let address = address.to_canonical();
        let is_in_prefix = || self.prefixes.iter().any(|prefix| prefix.contains(address));
        self.vips.contains(&address) || !self.own.contains(&address) && is_in_prefix()
    }

    /// Returns the intersection of this filter and `next`.
    pub(super) fn narrowed_to(&self, next: &Self) -> Self {
        let kept = self.vips.iter().filter(|vip| next.takes(**vip));
        let early = next.vips.iter().filter(|vip| self.takes(**vip));
        let mut prefixes = BTreeSet::new();
        for ours in &self.prefixes {
            for theirs in &next.prefixes {
                if theirs.covers(ours) {
                    prefixes.insert(*ours);
                } else if ours.covers(theirs) {
                    prefixes.insert(*theirs);
                }
            }
        }
        let vips = early.chain(kept).copied().collect();
        let own = self.own.union(&next.own).copied().collect::<Vec<_>>();
        Self { vips, prefixes, own: BTreeSet::new() }.with_own(own)
    }

    /// Counts the differences between this filter and `next`.
    pub(super) fn changes_to(&self, next: &Self) -> Changed {
        fn missing<T: Ord>(from: &BTreeSet<T>, of: &BTreeSet<T>) -> usize {
            of.difference(from).count()
        }
        let missing = |from: &Self, of: &Self| {
            missing(&from.vips, &of.vips)
                + missing(&from.prefixes, &of.prefixes)
                + missing(&from.own, &of.own)
        };
        Changed { added: missing(self, next), removed: missing(next, self) }
    }

    fn with_own(mut self, own: impl IntoIterator<Item = IpAddr>) -> Self {
        let own = own.into_iter().map(|address| address.to_canonical());
        let covered = own.filter(|address| self.takes(*address) && !self.vips.contains(address));
        self.own = covered.collect();
        self
    }
}
