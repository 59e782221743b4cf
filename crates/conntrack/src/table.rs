//! The table: look up, insert, reassign; one owner, no lock.
//!
//! In: hash, signal, tick. Out: hits, and whether a newcomer is tracked.
//! Not here: who gives way when both buckets are full (`room`), listing and purge (`walk`).
//! Invariant: the entry of a hash stands in one of its two buckets, once.
//! Cost: a look-up reads one or two cache lines, and writes one only when tick or state moved.

use core::ops::Range;

use crate::config::{Config, ConfigError};
use crate::counters::Counters;
use crate::entry::{Entry, Packed, Signal, Target, TickLimits};
use crate::layout::{LINE_BYTES, Line, WAYS, first_bucket, other_bucket, tag_of};
use crate::prefetch::prefetch;
use crate::tick::Tick;

/// What the table knows of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hit {
    /// The backend's slot.
    pub slot: u32,
    /// The VIP under which the flow was inserted: the caller compares it with the packet's.
    pub vip: u32,
    /// The packet is a SYN on a flow that was closing: a new connection with the same 5-tuple, which owes its backend nothing.
    pub renewed: bool,
}

/// What became of a newcomer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "an untracked flow is forwarded by hashing alone, and is counted"]
pub enum Inserted {
    /// It has an entry.
    Tracked,
    /// Both buckets are full of live flows off probation; nothing was displaced.
    Untracked,
}

/// One packet of [`FlowTable::lookup_batch`].
#[derive(Clone, Copy, Debug)]
pub struct Query {
    /// Keyed hash of the flow.
    pub hash: u64,
    /// What the packet says.
    pub signal: Signal,
}

/// Where a flow was seen, or where it was not: a look-up that begins there finds what any look-up would.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Glance(u32);

impl Glance {
    /// At nothing.
    pub const NONE: Self = Self(0);

    #[inline(always)]
    const fn place(self) -> Place {
        Place { bucket: self.0 as usize / WAYS, way: self.0 as usize % WAYS }
    }
}

/// A connection table of fixed size for one packet thread.
///
/// `hash` is a keyed 64-bit hash of the flow (SipHash-1-3 with a secret key): two flows are confused only if
/// 48 bits of it agree and a bucket does. Slots and VIPs are below [`crate::ID_LIMIT`].
#[derive(Debug)]
pub struct FlowTable {
    pub(crate) lines: Box<[Line]>, // the header, then the buckets
    pub(crate) limits: TickLimits,
    pub(crate) counters: Counters,
    pub(crate) entries: usize, // places taken, by live or expired flows
    pub(crate) kept: usize,    // those of flows off probation
    pub(crate) hand: usize,    // the bucket at which the next `sweep` begins
}

/// The tag of a hash and its two buckets.
#[derive(Clone, Copy)]
pub(crate) struct Candidates {
    pub(crate) tag: u64,
    pub(crate) buckets: [usize; 2],
}

/// One of the four places of a bucket.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    pub(crate) bucket: usize,
    pub(crate) way: usize,
}

impl FlowTable {
    /// Takes all the memory that the table will ever use, and touches it, so that no packet meets a page fault.
    ///
    /// # Errors
    /// [`ConfigError`]: a value out of range, or not enough memory.
    pub fn new(config: &Config) -> Result<Self, ConfigError> {
        Self::new_advised(config, |_| {})
    }

    /// The same, and tells `advise` the addresses of its memory before it is touched: the kernel may then give it in large pages.
    ///
    /// # Errors
    /// As [`FlowTable::new`].
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
        })
    }

    /// Asks the CPU for both buckets of `hash`. Do it for a whole batch before the first look-up.
    #[inline]
    pub fn prefetch(&self, hash: u64) {
        for bucket in self.candidates(hash).buckets {
            prefetch(self.line(bucket));
        }
    }

    /// Asks the CPU for the first bucket of `hash` alone, where most flows stand.
    #[inline]
    pub fn prefetch_first(&self, hash: u64) {
        prefetch(self.line(first_bucket(hash, self.buckets())));
    }

    /// Looks for `hash` in its first bucket, and asks the CPU for the other where it does not stand there. Changes nothing.
    #[inline]
    #[must_use]
    pub fn glance(&self, hash: u64) -> Glance {
        let (tag, first) = (tag_of(hash), first_bucket(hash, self.buckets()));
        let line = self.line(first);
        let way = line.way_of(tag);
        if line.0[way].tag() != tag {
            prefetch(self.line(other_bucket(tag, first, self.buckets())));
        }
        // Buckets are below 2^30, as `Config` has at most 2^32 places.
        #[expect(clippy::cast_possible_truncation, reason = "below 2^32")]
        let place = (first * WAYS + way) as u32;
        Glance(place)
    }

    /// The live flow of `hash`, moved on by this packet: its tick, its state, its probation.
    ///
    /// An expired entry is freed and is a miss. A SYN on an established flow changes nothing but the tick; on a
    /// closing one it is a hit that says so ([`Hit::renewed`]) and begins a new connection, on probation.
    #[inline]
    pub fn lookup(&mut self, hash: u64, signal: Signal, now: Tick) -> Option<Hit> {
        self.packet_of(self.candidates(hash), signal, now)
    }

    /// The slot of a busy flow that data goes on, where [`FlowTable::glance`] has seen it: nothing is written, and nothing is counted
    /// before [`FlowTable::count_hit`]. `None`: ask [`FlowTable::lookup_again`].
    #[inline(always)]
    #[must_use]
    pub fn busy_slot(&self, glance: Glance, hash: u64, now: Tick) -> Option<u32> {
        let place = glance.place();
        let entry = self.lines.get(1 + place.bucket)?.0[place.way];
        let is_busy = entry.tag() == tag_of(hash) && entry.clock().unmoved_by(Signal::Data, now);
        is_busy.then(|| entry.slot())
    }

    /// Counts what [`FlowTable::busy_slot`] has found, if it was of use.
    #[inline(always)]
    pub fn count_hit(&mut self) {
        self.counters.hit += 1;
    }

    /// As [`FlowTable::lookup`], where [`FlowTable::glance`] has looked before, whatever has become of the place since.
    #[inline]
    pub fn lookup_again(&mut self, glance: Glance, hash: u64, signal: Signal, now: Tick) -> Option<Hit> {
        let place = glance.place();
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

    /// Tick and state after a packet; an unchanged line is not written. `false`: the flow had expired, and is gone.
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

    /// Looks up a batch: prefetches in groups of 64, then looks up. `hits[i]` answers `queries[i]`; the shorter
    /// slice sets the number.
    ///
    /// Two packets of one unknown flow in a batch are two misses.
    pub fn lookup_batch(&mut self, queries: &[Query], now: Tick, hits: &mut [Option<Hit>]) {
        let mut at = [Candidates { tag: 0, buckets: [0; 2] }; PREFETCHED];
        for (queries, hits) in queries.chunks(PREFETCHED).zip(hits.chunks_mut(PREFETCHED)) {
            for (at, query) in at.iter_mut().zip(queries) {
                *at = self.candidates(query.hash);
                for bucket in at.buckets {
                    prefetch(self.line(bucket));
                }
            }
            for ((at, query), hit) in at.iter().zip(queries).zip(hits) {
                *hit = self.packet_of(*at, query.signal, now);
            }
        }
    }

    /// Gives `hash` an entry on probation, in place of any entry with the same tag.
    ///
    /// When both buckets are full of live flows, one of them may be moved to its other bucket; else the oldest
    /// flow on probation gives way; else the newcomer is untracked. No flow off probation is ever displaced.
    ///
    /// # Cost
    /// Two cache lines; up to eight more, prefetched together, when both buckets are full.
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

    /// The same for a hash that [`FlowTable::lookup`] has just not found.
    #[inline]
    pub fn insert_new(&mut self, hash: u64, target: Target, signal: Signal, now: Tick) -> Inserted {
        self.limits.follow(self.kept);
        let at = self.candidates(hash);
        let Some(place) = self.make_room(at, now) else {
            self.counters.untracked += 1;
            return Inserted::Untracked;
        };
        *self.at(place) = Packed::new(at.tag, target, signal, now);
        self.counters.insert += 1;
        self.entries += 1;
        Inserted::Tracked
    }

    /// Puts a live flow on another slot, because its backend takes it no more; tick and state stay. `false`: no such flow.
    pub fn reassign(&mut self, hash: u64, slot: u32, now: Tick) -> bool {
        let Some((place, entry)) = self.live(self.candidates(hash), now) else { return false };
        *self.at(place) = entry.with_slot(slot);
        self.counters.refresh += 1;
        true
    }

    /// Forgets a live flow, because nothing can serve it; it counts as purged. `false`: no such flow.
    pub fn forget(&mut self, hash: u64, now: Tick) -> bool {
        let Some((place, _)) = self.live(self.candidates(hash), now) else { return false };
        self.free(place);
        self.counters.purged += 1;
        true
    }

    /// The live flow of `hash`, unchanged and uncounted.
    #[must_use]
    pub fn peek(&self, hash: u64, now: Tick) -> Option<Entry> {
        self.live_at(hash, now)?.1.read(now)
    }

    pub(crate) fn live_at(&self, hash: u64, now: Tick) -> Option<(Place, Packed)> {
        self.find(self.candidates(hash)).filter(|(_, entry)| !self.has_expired(*entry, now))
    }

    pub(crate) fn has_expired(&self, entry: Packed, now: Tick) -> bool {
        self.limits.expired(entry.clock(), now)
    }

    /// Sums since construction.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// Entries in the table: live flows, and expired ones that nobody has looked at since.
    #[must_use]
    pub fn len(&self) -> usize {
        self.entries
    }

    /// Whether flows off probation take 7/8 of the places: time-outs are then as short as they get, and a flow that the table does not
    /// know may well have been in it.
    #[must_use]
    pub fn is_crowded(&self) -> bool {
        self.limits.are_shortest()
    }

    /// Whether time-outs are shorter than configured, since more than half of the places are taken: it should be swept soon.
    #[must_use]
    pub fn is_filling(&self) -> bool {
        !self.limits.are_whole()
    }

    /// Whether there is no entry at all.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries == 0
    }

    /// Places for flows: what was asked for, rounded up to whole buckets.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.buckets() * WAYS
    }

    /// Number of buckets: what a whole walk of `list`, `purge` or `sweep` visits.
    #[must_use]
    pub fn buckets(&self) -> usize {
        self.lines.len() - 1
    }

    /// Bytes that the table takes, header included.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        self.lines.len() * LINE_BYTES
    }

    /// Line `index` of the table in the documented layout: 0 is the header, `1 + b` is bucket `b`.
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

    /// The place of a live flow; an expired one is freed and counted.
    #[inline]
    fn live(&mut self, at: Candidates, now: Tick) -> Option<(Place, Packed)> {
        let (place, entry) = self.find(at)?;
        if self.limits.expired(entry.clock(), now) {
            self.expire(place);
            return None;
        }
        Some((place, entry))
    }

    /// The first bucket, where most flows stand, then the second.
    #[inline]
    fn find(&self, at: Candidates) -> Option<(Place, Packed)> {
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

    /// Empties a place that is taken.
    #[inline]
    pub(crate) fn free(&mut self, place: Place) {
        let entry = core::mem::replace(self.at(place), Packed::EMPTY);
        self.kept -= usize::from(!entry.on_probation());
        self.entries -= 1;
    }
}

const PREFETCHED: usize = 64; // 128 lines: a sixth of a 48 KiB L1
