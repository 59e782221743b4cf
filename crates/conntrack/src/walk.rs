//! Lists, purges or sweeps all entries of the table in steps of bounded size.
//!
//! Each call visits a limited number of buckets and returns the cursor of the next step. If no flow
//! is inserted during a walk, the walk visits each entry exactly once. An insert between two steps
//! may move an entry. The walk then visits the entry twice or skips it.

use crate::entry::{Entry, Packed};
use crate::layout::WAYS;
use crate::table::{FlowTable, Place};
use crate::tick::Tick;

/// The position at which the next step of a walk begins.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cursor(pub(crate) usize);

impl Cursor {
    /// The beginning of the table.
    pub const START: Self = Self(0);
}

/// The entries that a walk selects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Filter {
    /// All entries.
    All,
    /// The entries with this VIP.
    Vip(u32),
    /// The entries with this slot.
    Slot(u32),
    /// The entries that have expired by this tick.
    Expired(Tick),
}

impl FlowTable {
    /// Visits the next `buckets` buckets, at least one. Returns the entries that pass the filter,
    /// and the cursor of the next step. The cursor is `None` after the last bucket.
    ///
    /// With [`Filter::Expired`], the result contains expired entries. With other filters, it
    /// contains entries that are live at `now`.
    ///
    /// # Cost
    /// Reads one cache line per bucket, in order.
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

    /// Visits the next `buckets` buckets, at least one, and removes the entries that pass the
    /// filter. Returns the number of removed entries and the cursor of the next step. The cursor is
    /// `None` after the last bucket.
    ///
    /// Entries that [`Filter::Expired`] selects are counted as `expired`, and all others as
    /// `purged`.
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

    /// Frees the expired entries in the next `buckets` buckets. After the last bucket, the sweep
    /// starts again with the first bucket. Returns the number of freed entries.
    ///
    /// Lookups ignore expired entries, so a sweep is only needed because [`Tick`] wraps: an entry
    /// that has been idle for a whole wrap (48.5 days) would appear live again. To prevent this,
    /// sweep the whole table at least once in 47 days, which is one bucket per second for every 4
    /// million buckets. After a sweep of the whole table, `len` is the number of live flows.
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
