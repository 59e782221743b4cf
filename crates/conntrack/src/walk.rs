//! Walks over the whole table in bounded steps: list, purge, sweep.
//!
//! In: a cursor, a filter, how many buckets this step may visit. Out: entries, and the cursor of the next step.
//! Not here: requests and replies of the control plane (`forwarder`).
//! Invariant: while nothing is inserted, a walk visits each entry exactly once. An insert between two steps may
//! move an entry across the cursor: it is then visited twice, or not at all.

use crate::entry::{Entry, Packed};
use crate::layout::WAYS;
use crate::table::{FlowTable, Place};
use crate::tick::Tick;

/// Where the next step of a walk begins.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cursor(pub(crate) usize);

impl Cursor {
    /// The beginning of the table.
    pub const START: Self = Self(0);
}

/// Which entries a walk is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Filter {
    /// Every entry.
    All,
    /// The entries of this VIP.
    Vip(u32),
    /// The entries of this slot.
    Slot(u32),
    /// The entries that have expired at this tick.
    Expired(Tick),
}

impl FlowTable {
    /// The entries of the next `buckets` buckets that pass the filter and are live at `now`, or have expired with
    /// [`Filter::Expired`]; and the cursor of the next step, `None` when the walk is done. It is at least one bucket.
    ///
    /// # Cost
    /// One cache line a bucket, in order.
    pub fn list<'a>(
        &'a self,
        from: Cursor,
        filter: &'a Filter,
        buckets: usize,
        now: Tick,
    ) -> (impl Iterator<Item = Entry>, Option<Cursor>) {
        let (start, end, next) = self.step(from, buckets);
        let passes = move |entry: Packed| {
            let wanted = matches!(filter, Filter::Expired(_)) || !self.limits.expired(entry.clock(), now);
            (wanted && self.passes(entry, filter)).then(|| entry.read(now)).flatten()
        };
        ((start..end).flat_map(|bucket| self.line(bucket).0).filter_map(passes), next)
    }

    /// Removes the entries of the next `buckets` buckets that pass the filter. Returns how many, and the cursor
    /// of the next step, `None` when the walk is done. At least one bucket is visited.
    ///
    /// [`Filter::Expired`] counts as `expired`, every other filter as `purged`.
    pub fn purge(&mut self, from: Cursor, filter: &Filter, buckets: usize) -> (usize, Option<Cursor>) {
        let (start, end, next) = self.step(from, buckets);
        let before = self.entries;
        for bucket in start..end {
            for way in 0..WAYS {
                if self.passes(self.line(bucket).0[way], filter) {
                    self.remove(Place { bucket, way }, filter);
                }
            }
        }
        (before - self.entries, next)
    }

    /// Frees the expired entries of the next `buckets` buckets, going round the table from call to call. Returns
    /// how many.
    ///
    /// Expired entries need no sweep to be harmless, but for the wrap: an entry that nobody looks at for a whole
    /// wrap of [`Tick`], 48.5 days, would count as live again. One round in 47 days, that is one bucket a second
    /// for every 4 million buckets, rules that out. It also makes `len` the number of live flows.
    pub fn sweep(&mut self, buckets: usize, now: Tick) -> usize {
        self.limits.follow(self.kept);
        let (freed, next) = self.purge(Cursor(self.hand), &Filter::Expired(now), buckets);
        self.hand = next.unwrap_or_default().0;
        freed
    }

    pub(crate) fn step(&self, from: Cursor, buckets: usize) -> (usize, usize, Option<Cursor>) {
        let start = from.0.min(self.buckets());
        let end = start.saturating_add(buckets.max(1)).min(self.buckets());
        (start, end, (end < self.buckets()).then_some(Cursor(end)))
    }

    pub(crate) fn passes(&self, entry: Packed, filter: &Filter) -> bool {
        !entry.is_empty()
            && match *filter {
                Filter::All => true,
                Filter::Vip(vip) => entry.vip() == vip,
                Filter::Slot(slot) => entry.slot() == slot,
                Filter::Expired(now) => self.limits.expired(entry.clock(), now),
            }
    }

    fn remove(&mut self, place: Place, filter: &Filter) {
        if matches!(filter, Filter::Expired(_)) {
            return self.expire(place);
        }
        self.free(place);
        self.counters.purged += 1;
    }
}
