//! The connection table with its lookup, insert and reassign operations. One thread owns a table,
//! so there is no lock.
//!
//! Invariant: a hash has at most one entry, in either of its two buckets. A lookup reads one or two
//! cache lines, and writes a line only if the tick or state changed. The module `room` chooses the
//! entries to evict, and the module `walk` lists and purges entries.

use core::ops::Range;

use crate::config::{Config, ConfigError};
use crate::counters::Counters;
use crate::entry::{BusyClocks, Entry, Packed, Signal, TickLimits};
use crate::id::{Id, Target};
use crate::layout::{LINE_BYTES, Line, WAYS, first_bucket, other_bucket, tag_of};
use crate::prefetch::prefetch;
use crate::tick::Tick;

/// The result of a lookup that found the flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hit {
    /// The slot of the backend.
    pub slot: u32,
    /// The VIP for which the flow was inserted. The caller must compare it with the VIP of the
    /// packet.
    pub vip: u32,
    /// `true` if the packet is a SYN and the flow is closing. The packet opens a new connection
    /// with the same 5-tuple, so the caller may choose a different backend.
    pub renewed: bool,
}

/// The result of an insert.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "an untracked flow has no entry, and the caller should count it"]
pub enum Inserted {
    /// The flow has an entry.
    Tracked,
    /// The flow has no entry, because both buckets are full of live flows that are not on
    /// probation. No entry was evicted.
    Untracked,
}

/// A packet to look up with [`FlowTable::lookup_batch`].
#[derive(Clone, Copy, Debug)]
pub struct Query {
    /// The keyed hash of the flow.
    pub hash: u64,
    /// The type of the packet.
    pub signal: Signal,
}

/// The result of a bucket probe. A later lookup of the same hash uses it as a hint, which never
/// changes the result of the lookup.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BucketProbe(u32);

impl BucketProbe {
    /// An empty hint. A lookup with this hint searches both buckets.
    pub const NONE: Self = Self(0);

    #[inline(always)]
    const fn place(self) -> Place {
        Place { bucket: self.0 as usize / WAYS, way: self.0 as usize % WAYS }
    }
}

/// A connection table of fixed size for one packet thread.
///
/// Every `hash` parameter is a keyed 64-bit hash of the flow (SipHash-1-3 with a secret key). The
/// table confuses two flows only if they share a bucket and their hashes agree in the lower 48
/// bits.
#[derive(Debug)]
pub struct FlowTable {
    pub(crate) lines: Box<[Line]>, // The header is followed by the buckets.
    pub(crate) limits: TickLimits,
    pub(crate) counters: Counters,
    pub(crate) entries: usize, // The number of live and expired entries.
    pub(crate) kept: usize,    // The number of entries that are not on probation.
    pub(crate) hand: usize,    // The bucket at which the next `sweep` begins.
    pub(crate) searches: u64,  // The number of searches in other buckets that are still allowed.
}

/// The location for the entry of an unknown flow, as returned by [`FlowTable::lookup_newcomer`].
#[derive(Clone, Copy, Debug)]
pub struct Newcomer(Candidates);

/// The tag of a hash and its two buckets.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Candidates {
    pub(crate) tag: u64,
    pub(crate) buckets: [usize; 2],
}

/// The position of one entry in a bucket.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    pub(crate) bucket: usize,
    pub(crate) way: usize,
}

impl FlowTable {
    /// Builds a table. Allocates all memory and writes to it, so that no packet causes a page fault
    /// later.
    ///
    /// # Errors
    /// Returns [`ConfigError`] if a value is out of range or the allocation fails.
    pub fn new(config: &Config) -> Result<Self, ConfigError> {
        Self::new_advised(config, |_| {})
    }

    /// Builds a table, and passes the address range of its memory to `advise` before writing to it.
    /// For example, `advise` can request huge pages from the kernel.
    ///
    /// # Errors
    /// Returns the same errors as [`FlowTable::new`].
    pub fn new_advised(config: &Config, advise: impl FnOnce(Range<usize>)) -> Result<Self, ConfigError> {
        config.check()?;
        let buckets = config.capacity.div_ceil(WAYS);
        let memory = ConfigError::Memory { bytes: buckets.saturating_add(1).saturating_mul(LINE_BYTES) };
        let mut lines: Vec<Line> = Vec::new();
        lines.try_reserve_exact(buckets + 1).map_err(|_| memory)?;
        let start = lines.as_ptr().addr();
        advise(start..start + lines.capacity() * LINE_BYTES);
        lines.push(Line::header(buckets));
        lines.resize(buckets + 1, Line::EMPTY);
        Ok(Self {
            lines: lines.into_boxed_slice(),
            limits: TickLimits::new(&config.timeouts, buckets * WAYS),
            counters: Counters::default(),
            entries: 0,
            kept: 0,
            hand: 0,
            searches: u64::MAX,
        })
    }

    /// Prefetches both buckets of `hash`. For a batch of packets, prefetch for all packets before
    /// the first lookup.
    #[inline]
    pub fn prefetch(&self, hash: u64) {
        for bucket in self.candidates(hash).buckets {
            prefetch(self.line(bucket));
        }
    }

    /// Prefetches the first bucket of `hash`. Most flows are in their first bucket.
    #[inline]
    pub fn prefetch_first(&self, hash: u64) {
        prefetch(self.line(first_bucket(hash, self.buckets())));
    }

    /// Looks `hash` up in its first bucket, which contains most flows. Returns the flow if the
    /// packet changes at most the tick of its entry. The caller must then call
    /// [`FlowTable::count_hits`].
    ///
    /// The result stays valid until the tick ends, even if other packets are processed first.
    ///
    /// # Errors
    /// Returns a hint for [`FlowTable::lookup_again`] if the first bucket does not contain such an
    /// entry. If the bucket does not contain the flow, prefetches the second bucket.
    #[inline(always)]
    pub fn probe(&mut self, hash: u64, signal: Signal, busy: &BusyClocks) -> Result<Hit, BucketProbe> {
        let (tag, first) = (tag_of(hash), first_bucket(hash, self.buckets()));
        let line = self.line(first);
        let way = line.way_of(tag);
        let entry = line.0[way];
        if entry.tag() != tag {
            prefetch(self.line(other_bucket(tag, first, self.buckets())));
        } else if busy.include(entry.clock(), signal)
            || self.refresh(Place { bucket: first, way }, entry, signal, busy)
        {
            return Ok(Hit { slot: entry.slot(), vip: entry.vip(), renewed: false });
        }
        // Bucket indexes are below 2^30, because `Config` allows at most 2^32 entries.
        #[expect(clippy::cast_possible_truncation, reason = "below 2^32")]
        let place = (first * WAYS + way) as u32;
        Err(BucketProbe(place))
    }

    /// Updates the tick of an entry if the packet changes nothing else. Returns `false` otherwise,
    /// and if the flow has expired.
    #[inline]
    fn refresh(&mut self, place: Place, entry: Packed, signal: Signal, busy: &BusyClocks) -> bool {
        let Some(clock) = busy.refreshed(entry.clock(), signal) else { return false };
        if self.limits.expired(entry.clock(), clock.tick()) {
            return false;
        }
        *self.at(place) = entry.with_clock(clock);
        self.counters.refresh += 1;
        true
    }

    /// Returns the live flow with this hash, and updates its tick, state and probation for this
    /// packet.
    ///
    /// An expired entry is freed, and the lookup is counted as a miss. If an established flow sends
    /// a SYN, only the tick changes. If a closing flow sends a SYN, the lookup is a hit with
    /// [`Hit::renewed`] set. The flow is then treated as a new connection on probation.
    #[inline]
    pub fn lookup(&mut self, hash: u64, signal: Signal, now: Tick) -> Option<Hit> {
        self.packet_of(self.candidates(hash), signal, now)
    }

    /// Counts the hits of [`FlowTable::probe`].
    #[inline(always)]
    pub fn count_hits(&mut self, hits: u64) {
        self.counters.hit += hits;
    }

    /// Looks up `hash` as [`FlowTable::lookup`] does. This method is faster for an unknown flow,
    /// because [`FlowTable::insert_newcomer`] can use the result.
    ///
    /// # Errors
    /// Returns the location for a new entry if the table does not contain the flow.
    #[inline(always)]
    pub fn lookup_newcomer(&mut self, hash: u64, signal: Signal, now: Tick) -> Result<Hit, Newcomer> {
        let at = self.candidates(hash);
        match self.find(at) {
            Some((place, _)) => self.packet_found(place, signal, now).ok_or(Newcomer(at)),
            None => {
                self.counters.miss += 1;
                Err(Newcomer(at))
            }
        }
    }

    /// Returns the location for the entry of a flow that [`FlowTable::lookup`] has just reported as
    /// missing.
    #[inline(always)]
    #[must_use]
    pub fn newcomer(&self, hash: u64) -> Newcomer {
        Newcomer(self.candidates(hash))
    }

    /// Returns `None` if the flow had expired and was freed.
    #[inline(never)]
    fn packet_found(&mut self, place: Place, signal: Signal, now: Tick) -> Option<Hit> {
        let entry = *self.at(place);
        self.packet_at(place, entry, signal, now)
    }

    /// Looks up `hash` as [`FlowTable::lookup`] does, but tests the entry of `bucket_probe` first.
    /// The result is correct even if the table has changed since the probe.
    #[inline]
    pub fn lookup_again(
        &mut self,
        bucket_probe: BucketProbe,
        hash: u64,
        signal: Signal,
        now: Tick,
    ) -> Option<Hit> {
        let place = bucket_probe.place();
        if let Some(line) = self.lines.get(1 + place.bucket)
            && line.0[place.way].tag() == tag_of(hash)
        {
            return self.packet_at(place, line.0[place.way], signal, now);
        }
        self.packet_of(self.candidates(hash), signal, now)
    }

    #[inline(never)]
    fn packet_of(&mut self, at: Candidates, signal: Signal, now: Tick) -> Option<Hit> {
        let Some((place, entry)) = self.find(at) else {
            self.counters.miss += 1;
            return None;
        };
        self.packet_at(place, entry, signal, now)
    }

    #[inline]
    fn packet_at(&mut self, place: Place, entry: Packed, signal: Signal, now: Tick) -> Option<Hit> {
        let mut renewed = false;
        if !entry.clock().unmoved_by(signal, now) {
            if !self.move_on(place, entry, signal, now) {
                self.counters.miss += 1;
                return None;
            }
            renewed = entry.clock().renewed_by(signal);
        }
        self.counters.hit += 1;
        Some(Hit { slot: entry.slot(), vip: entry.vip(), renewed })
    }

    /// Updates the tick and state of an entry after a packet. Does not write an unchanged entry.
    /// Returns `false` if the flow had expired and was freed.
    #[inline]
    fn move_on(&mut self, place: Place, entry: Packed, signal: Signal, now: Tick) -> bool {
        if self.limits.expired(entry.clock(), now) {
            self.expire(place);
            return false;
        }
        let next = entry.clock().after(signal, now);
        if next != entry.clock() {
            *self.at(place) = entry.with_clock(next);
            self.kept += usize::from(entry.on_probation() && !next.on_probation());
            self.kept -= usize::from(!entry.on_probation() && next.on_probation());
            self.counters.refresh += 1;
        }
        true
    }

    /// Looks up a batch of packets, with prefetches in groups of 64. `hits[i]` is the result for
    /// `queries[i]`. If the slices differ in length, the excess elements of the longer slice are
    /// ignored.
    ///
    /// If a batch contains two packets of an unknown flow, both lookups are misses.
    pub fn lookup_batch(&mut self, queries: &[Query], now: Tick, hits: &mut [Option<Hit>]) {
        let (busy, mut probes) = (BusyClocks::at(now), [BucketProbe::NONE; PREFETCHED]);
        for (queries, hits) in queries.chunks(PREFETCHED).zip(hits.chunks_mut(PREFETCHED)) {
            for query in queries {
                self.prefetch_first(query.hash);
            }
            let mut known = 0;
            for ((query, hit), probe) in queries.iter().zip(hits.iter_mut()).zip(&mut probes) {
                let found = self.probe(query.hash, query.signal, &busy);
                known += usize::from(found.is_ok());
                *hit = found.inspect_err(|hint| *probe = *hint).ok();
            }
            self.count_hits(known as u64);
            if known == queries.len() {
                continue;
            }
            for ((query, hit), probe) in queries.iter().zip(hits).zip(probes) {
                if hit.is_none() {
                    *hit = self.lookup_again(probe, query.hash, query.signal, now);
                }
            }
        }
    }

    /// Limits how many inserts may search other buckets until the next call of this method. The
    /// search prefetches and reads up to eight cache lines, and takes most of the time of an insert
    /// into a full table. Inserts above the limit evict a flow on probation in the two buckets of
    /// the new flow. If there is none, the new flow is untracked. The limit does not apply to
    /// [`FlowTable::adopt`], because an adopted flow is not new.
    ///
    /// A new table has no limit in practice (`u64::MAX`).
    #[inline]
    pub fn allow_searches(&mut self, searches: u64) {
        self.searches = searches;
    }

    /// Creates an entry on probation for `hash`. An existing entry with the same tag is replaced.
    ///
    /// If both buckets are full of live flows, the table moves a flow to its other bucket. If no
    /// flow can move, the table evicts the oldest flow on probation. If none of the flows is on
    /// probation, no flow is evicted and the new flow is untracked.
    ///
    /// # Cost
    /// An insert reads two cache lines. If both buckets are full, the insert prefetches and reads
    /// up to eight more.
    pub fn insert(&mut self, hash: u64, target: Target, signal: Signal, now: Tick) -> Inserted {
        self.limits.follow(self.kept);
        let at = self.candidates(hash);
        if let Some((place, entry)) = self.live(at, now) {
            self.kept -= usize::from(!entry.on_probation());
            *self.at(place) = Packed::new(at.tag, target, signal, now);
            self.counters.refresh += 1;
            return Inserted::Tracked;
        }
        self.insert_new(hash, target, signal, now)
    }

    /// Inserts a hash that [`FlowTable::lookup`] has just reported as missing. This method is
    /// faster than [`FlowTable::insert`], because it does not search for an existing entry.
    #[inline(never)]
    pub fn insert_new(&mut self, hash: u64, target: Target, signal: Signal, now: Tick) -> Inserted {
        self.insert_newcomer(self.newcomer(hash), target, signal, now)
    }

    /// Inserts a flow that [`FlowTable::lookup_newcomer`] has just reported as missing. See
    /// [`FlowTable::insert_new`].
    #[inline(always)]
    pub fn insert_newcomer(
        &mut self,
        Newcomer(at): Newcomer,
        target: Target,
        signal: Signal,
        now: Tick,
    ) -> Inserted {
        self.limits.follow(self.kept);
        let Some(place) = self.make_room(at, now) else {
            self.counters.untracked += 1;
            return Inserted::Untracked;
        };
        *self.at(place) = Packed::new(at.tag, target, signal, now);
        self.counters.insert += 1;
        self.entries += 1;
        Inserted::Tracked
    }

    /// Assigns another slot to a live flow, for example because its backend is down. Tick and state
    /// stay unchanged. Returns `false` if the table does not contain the flow.
    pub fn reassign(&mut self, hash: u64, slot: Id, now: Tick) -> bool {
        let Some((place, entry)) = self.live(self.candidates(hash), now) else { return false };
        *self.at(place) = entry.with_slot(slot);
        self.counters.refresh += 1;
        true
    }

    /// Removes a live flow that no backend can serve, and counts it as purged. Returns `false` if
    /// the table does not contain the flow.
    pub fn forget(&mut self, hash: u64, now: Tick) -> bool {
        let Some((place, _)) = self.live(self.candidates(hash), now) else { return false };
        self.free(place);
        self.counters.purged += 1;
        true
    }

    /// Returns the live flow with this hash. The table and its counters are not changed.
    #[must_use]
    pub fn peek(&self, hash: u64, now: Tick) -> Option<Entry> {
        let (_, entry) = self.find(self.candidates(hash))?;
        if self.has_expired(entry, now) { None } else { entry.read(now) }
    }

    pub(crate) fn has_expired(&self, entry: Packed, now: Tick) -> bool {
        self.limits.expired(entry.clock(), now)
    }

    /// Returns the counters since the table was built.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// Returns the number of entries. The number includes expired entries that are not freed yet.
    #[must_use]
    pub fn len(&self) -> usize {
        self.entries
    }

    /// Returns `true` if flows that are not on probation use at least 7/8 of the table. All
    /// timeouts are then at their minimum. A flow without an entry may then have lost its entry
    /// before the configured timeout.
    #[must_use]
    pub fn is_crowded(&self) -> bool {
        self.limits.are_shortest()
    }

    /// Returns `true` if flows that are not on probation use more than half of the table. Timeouts
    /// are then shorter than configured, and the caller should sweep the table soon.
    #[must_use]
    pub fn is_filling(&self) -> bool {
        !self.limits.are_whole()
    }

    /// Returns `true` if the table has no entries.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries == 0
    }

    /// Returns the capacity in entries. The capacity is the configured number of entries, rounded
    /// up to whole buckets.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.buckets() * WAYS
    }

    /// Returns the number of buckets. A complete walk with `list`, `purge` or `sweep` visits this
    /// many buckets.
    #[must_use]
    pub fn buckets(&self) -> usize {
        self.lines.len() - 1
    }

    /// Returns the size of the table in bytes, including the header.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        self.lines.len() * LINE_BYTES
    }

    /// Returns line `index` of the table in the format that the module `layout` documents. Line 0
    /// is the header, and line `1 + b` is bucket `b`. Returns `None` if there is no such line.
    #[must_use]
    pub fn line_bytes(&self, index: usize) -> Option<[u8; LINE_BYTES]> {
        self.lines.get(index).map(Line::bytes)
    }

    #[inline]
    pub(crate) fn candidates(&self, hash: u64) -> Candidates {
        let (tag, first) = (tag_of(hash), first_bucket(hash, self.buckets()));
        Candidates { tag, buckets: [first, other_bucket(tag, first, self.buckets())] }
    }

    #[inline]
    pub(crate) fn line(&self, bucket: usize) -> &Line {
        &self.lines[1 + bucket]
    }

    #[inline]
    pub(crate) fn at(&mut self, place: Place) -> &mut Packed {
        &mut self.lines[1 + place.bucket].0[place.way]
    }

    /// Returns the location of a live flow's entry. An expired entry is freed and counted.
    #[inline]
    fn live(&mut self, at: Candidates, now: Tick) -> Option<(Place, Packed)> {
        let (place, entry) = self.find(at)?;
        if self.limits.expired(entry.clock(), now) {
            self.expire(place);
            return None;
        }
        Some((place, entry))
    }

    /// Searches the first bucket and then the second. Most flows are in their first bucket.
    #[inline]
    pub(crate) fn find(&self, at: Candidates) -> Option<(Place, Packed)> {
        for bucket in at.buckets {
            let line = self.line(bucket);
            let way = line.way_of(at.tag);
            if line.0[way].tag() == at.tag {
                return Some((Place { bucket, way }, line.0[way]));
            }
        }
        None
    }

    #[inline]
    pub(crate) fn expire(&mut self, place: Place) {
        self.free(place);
        self.counters.expired += 1;
    }

    /// Clears an occupied entry.
    #[inline]
    pub(crate) fn free(&mut self, place: Place) {
        let entry = core::mem::replace(self.at(place), Packed::EMPTY);
        self.kept -= usize::from(!entry.on_probation());
        self.entries -= 1;
    }
}

// Prefetching for 64 packets loads 64 cache lines, which is one twelfth of a 48 KiB L1 cache.
const PREFETCHED: usize = 64;
