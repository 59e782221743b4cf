//! Finds a free entry for a new flow, and evicts flows on probation if necessary.
//!
//! Each hash has two buckets with four entries each. The search prefers a free or expired entry.
//! If there are several, the search uses one in the first bucket, because lookups read that bucket
//! first, and does not examine the second bucket. If there is none, the search looks for a flow
//! that can move to a free entry in its other bucket, and uses the old entry of that flow. If no
//! flow can move, the search evicts the oldest flow on probation in the two buckets. If these
//! buckets contain no flow on probation, the search moves a flow to its other bucket and evicts
//! the oldest flow on probation there. When the table is 7/8 full, or above the limit of
//! [`FlowTable::allow_searches`], the search evicts a flow on probation without trying to move a
//! flow first. Above the limit, the search also ends if the two buckets contain no flow on
//! probation.
//!
//! Invariant: a live flow that is not on probation may move between its two buckets, but is never
//! evicted. A search moves at most one flow and reads at most eight other buckets.

use core::hint::select_unpredictable;

use crate::entry::{Clock, PROBATION, Packed, STATES, TickLimits};
use crate::layout::{WAYS, other_bucket};
use crate::prefetch::prefetch;
use crate::table::{Candidates, FlowTable, Place};
use crate::tick::Tick;

impl FlowTable {
    /// Returns a free entry for a new flow. Evicts a flow if necessary, and frees the expired flows
    /// in the buckets that it examines. The second bucket is examined only if the first bucket has
    /// no free entry.
    #[inline(always)]
    pub(crate) fn make_room(&mut self, at: Candidates, now: Tick) -> Option<Place> {
        let first = self.best_bid(at, 0, now);
        match first.bid.place(at) {
            Some(place) if first.bid.is_free() && !first.has_expired() => Some(place),
            _ => self.make_room_in_both(at, first, now),
        }
    }

    /// Returns an entry in one of the two buckets, where `first` is the result for the first
    /// bucket.
    ///
    /// When a flood has filled the table, an attempt to move a flow would probably fail and cause
    /// cache misses. In this case, a flow on probation is evicted without such an attempt.
    #[inline(never)]
    fn make_room_in_both(&mut self, at: Candidates, first: Best, now: Tick) -> Option<Place> {
        let second = self.best_bid(at, 1, now);
        let place = first.bid.max(second.bid).place(at);
        if first.has_expired() || second.has_expired() {
            self.expire_all(at, now);
        }
        if first.bid.max(second.bid).is_free() {
            return place;
        }
        let crowded = self.entries > self.capacity() / 8 * 7;
        match place {
            Some(place) if crowded || self.searches == 0 => Some(self.evict(place)),
            None if self.searches == 0 => None,
            waiting => {
                self.searches -= 1;
                self.make_room_elsewhere(at, waiting, now)
            }
        }
    }

    /// Returns the highest rank of an entry in one of the two buckets. The code has no branches,
    /// because the CPU cannot predict them during a flood.
    #[inline(always)]
    fn best_bid(&self, at: Candidates, bucket: usize, now: Tick) -> Best {
        let mut best = Best { bid: Bid::NONE, left: 0 };
        for (way, entry) in self.line(at.buckets[bucket]).0.iter().enumerate() {
            let (bid, left) = Bid::of(entry.clock(), bucket * WAYS + way, &self.limits, now);
            best = Best { bid: best.bid.max(bid), left: best.left | left };
        }
        best
    }

    #[inline(never)]
    fn expire_all(&mut self, at: Candidates, now: Tick) {
        for place in places(at) {
            let entry = *self.at(place);
            if !entry.is_empty() && self.limits.expired(entry.clock(), now) {
                self.expire(place);
            }
        }
    }

    /// Makes room when both buckets are full. `waiting` is the oldest flow on probation in the two
    /// buckets.
    ///
    /// Moves a flow to a free entry in its other bucket, if possible. If no flow can move, evicts
    /// `waiting`. If `waiting` is `None`, moves a flow to its other bucket, and evicts the oldest
    /// flow on probation there.
    #[inline(never)]
    fn make_room_elsewhere(&mut self, at: Candidates, waiting: Option<Place>, now: Tick) -> Option<Place> {
        for from in places(at) {
            prefetch(self.line(self.other_of(from)));
        }
        let mut oldest: Option<(Place, Waiting)> = None;
        for from in places(at) {
            let survey = self.survey(self.other_of(from), now);
            if let Some(to) = survey.empty {
                return Some(self.relocate(from, to));
            }
            let older = survey.waiting.filter(|(age, _)| oldest.is_none_or(|(_, (most, _))| *age > most));
            oldest = older.map(|found| (from, found)).or(oldest);
        }
        if let Some(place) = waiting {
            return Some(self.evict(place));
        }
        let (from, (_, to)) = oldest?;
        let to = self.evict(to);
        Some(self.relocate(from, to))
    }

    /// Frees the expired flows of a bucket. Returns a free entry and the oldest flow on probation,
    /// if any.
    fn survey(&mut self, bucket: usize, now: Tick) -> Survey {
        let line = *self.line(bucket);
        let (mut free, mut expired, mut oldest) = (0_u32, 0_u32, (0_u32, 0));
        // The code uses conditional moves instead of branches, because the CPU cannot predict
        // branches during a flood.
        for (way, entry) in line.0.into_iter().enumerate() {
            let age = now.since(entry.tick());
            let (is_empty, is_over) = (entry.is_empty(), self.limits.expired(entry.clock(), now));
            let is_free = is_empty | is_over;
            free |= u32::from(is_free) << way;
            expired |= u32::from(is_over & !is_empty) << way;
            let rank = select_unpredictable(entry.on_probation() & !is_free, age + 1, 0);
            oldest = select_unpredictable(rank > oldest.0, (rank, way), oldest);
        }
        if expired != 0 {
            (0..WAYS)
                .filter(|way| expired >> way & 1 == 1)
                .for_each(|way| self.expire(Place { bucket, way }));
        }
        Survey {
            empty: (free != 0).then(|| Place { bucket, way: free.trailing_zeros() as usize }),
            waiting: oldest.0.checked_sub(1).map(|age| (age, Place { bucket, way: oldest.1 })),
        }
    }

    fn other_of(&self, place: Place) -> usize {
        let tag = self.line(place.bucket).0[place.way].tag();
        other_bucket(tag, place.bucket, self.buckets())
    }

    fn relocate(&mut self, from: Place, to: Place) -> Place {
        *self.at(to) = core::mem::replace(self.at(from), Packed::EMPTY);
        self.counters.moved += 1;
        from
    }

    fn evict(&mut self, place: Place) -> Place {
        self.free(place);
        self.counters.evicted_from_probation += 1;
        place
    }
}

#[derive(Clone, Copy)]
struct Survey {
    empty: Option<Place>,
    waiting: Option<Waiting>, // The oldest flow on probation, if any.
}

/// The age of a flow on probation in ticks, and the location of its entry.
type Waiting = (u32, Place);

/// The highest rank of an entry in a bucket.
#[derive(Clone, Copy)]
struct Best {
    bid: Bid,
    /// Negative if a flow in the bucket has expired.
    left: i32,
}

impl Best {
    #[inline(always)]
    const fn has_expired(self) -> bool {
        self.left < 0
    }
}

/// The rank of an entry when a new flow needs one. The entry with the highest rank is used. Free
/// entries have the highest ranks, followed by flows on probation, with older flows before younger
/// flows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Bid(u32);

impl Bid {
    /// Computes the rank of entry `number` of the eight entries, and the number of ticks until its
    /// flow expires.
    #[inline(always)]
    #[expect(clippy::cast_possible_truncation, reason = "there are eight entries")]
    fn of(clock: Clock, number: usize, limits: &TickLimits, now: Tick) -> (Self, i32) {
        let (age, state) = (now.since_with_grace(clock.tick()), clock.index());
        let (left, place) = (limits.left(age, state), (2 * WAYS - number) as u32);
        let (kept, set) = BIDS[state];
        (Self(select_unpredictable(left < 0, Self::FREE | place, (age << 4 | place) & kept | set)), left)
    }

    /// The rank of an entry with a live flow that is not on probation. Such an entry is never
    /// chosen.
    const NONE: Self = Self(0);
    const FREE: u32 = 1 << 31;
    /// The bits that contain eight minus the index of the entry. If ranks are otherwise equal, the
    /// entry with the lowest index is chosen.
    const PLACE: u32 = 0xf;

    #[inline(always)]
    const fn is_free(self) -> bool {
        self.0 & Self::FREE != 0
    }

    /// Returns the location of the entry with this rank, or `None` for [`Bid::NONE`].
    #[inline(always)]
    fn place(self, at: Candidates) -> Option<Place> {
        let number = (2 * WAYS).checked_sub((self.0 & Self::PLACE) as usize).filter(|n| *n < 2 * WAYS)?;
        Some(Place { bucket: at.buckets[number / WAYS], way: number % WAYS })
    }
}

/// The mask and the fixed bits of a [`Bid`] for each state. The mask selects which bits of the age
/// and of the entry index are used.
static BIDS: [(u32, u32); STATES] = {
    // A flow that is not on probation gets rank 0. The rank of a flow on probation depends on its
    // age.
    let mut bids = [(0, 0); STATES];
    let mut state = PROBATION as usize;
    while state < STATES {
        bids[state] = (u32::MAX, 0);
        state += 1;
    }
    bids[0] = (Bid::PLACE, Bid::FREE);
    bids
};

fn places(at: Candidates) -> impl Iterator<Item = Place> {
    at.buckets.into_iter().flat_map(|bucket| (0..WAYS).map(move |way| Place { bucket, way }))
}
