//! Room for a newcomer: which place it gets, and who gives way.
//!
//! In: the two buckets of a hash. Out: an empty place, or none. Not here: what is written there (`table`).
//! Order: a free or expired place, in the first bucket if it has one, because look-ups read that first; a move of one
//! flow to a free place in its other bucket (left out when the table is 7/8 full and a flow on probation is at hand);
//! the oldest flow on probation in both buckets; a move onto the oldest flow on probation one step away; none.
//! Invariant: a live flow off probation may move between its two buckets, and never goes.
//! Bounded: one move, at most eight other buckets read.

use core::hint::select_unpredictable;

use crate::entry::{Clock, PROBATION, Packed, STATES, TickLimits};
use crate::layout::{WAYS, other_bucket};
use crate::prefetch::prefetch;
use crate::table::{Candidates, FlowTable, Place};
use crate::tick::Tick;

impl FlowTable {
    /// Empties a place for a newcomer, or finds it empty; expired flows in both buckets are freed.
    ///
    /// In a table that a flood has filled, moves would fail and cost cache misses, so probation gives way at once.
    #[inline]
    pub(crate) fn make_room(&mut self, at: Candidates, now: Tick) -> Option<Place> {
        let (best, any_expired) = self.best_bid(at, now);
        if any_expired {
            self.expire_all(at, now);
        }
        let place = best.place(at);
        if best.is_free() {
            return place;
        }
        let crowded = self.entries > self.capacity() / 8 * 7;
        match place {
            Some(place) if crowded => Some(self.evict(place)),
            waiting => self.make_room_elsewhere(at, waiting, now),
        }
    }

    /// The best place of both buckets, and whether a flow in them has expired. No branches: in a flood nobody can foretell what stands
    /// in a place.
    #[inline(always)]
    fn best_bid(&self, at: Candidates, now: Tick) -> (Bid, bool) {
        let (mut best, mut left) = (Bid::NONE, 0);
        for (bucket, first) in at.buckets.into_iter().zip([0, WAYS]) {
            for (way, entry) in self.line(bucket).0.iter().enumerate() {
                let (bid, ticks_left) = Bid::of(entry.clock(), first + way, &self.limits, now);
                best = best.max(bid);
                // The sign says that a time-out has passed.
                left |= ticks_left;
            }
        }
        (best, left < 0)
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

    /// Where both buckets are full; `waiting` is the oldest flow on probation there. One flow of the two buckets moves to a free place in
    /// its other bucket, or else, if none waits, onto the oldest flow on probation there. What it leaves is the newcomer's.
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

    /// Frees the expired flows of a bucket, and returns what is free and what may be evicted.
    fn survey(&mut self, bucket: usize, now: Tick) -> Survey {
        let line = *self.line(bucket);
        let (mut free, mut expired, mut oldest) = (0_u32, 0_u32, (0_u32, 0));
        // Selects in place of branches: in a flood nobody can foretell what stands in a place.
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

/// What one bucket has to offer.
#[derive(Clone, Copy)]
struct Survey {
    empty: Option<Place>,
    waiting: Option<Waiting>, // the flow on probation that was created first
}

/// Age in ticks and place of a flow on probation.
type Waiting = (u32, Place);

/// What a place offers a newcomer: the more, the better. A free place is best, then the oldest flow on probation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Bid(u32);

impl Bid {
    /// Of the place with this clock, the `number`th of both buckets; and the ticks that its flow has left.
    #[inline(always)]
    #[expect(clippy::cast_possible_truncation, reason = "eight places")]
    fn of(clock: Clock, number: usize, limits: &TickLimits, now: Tick) -> (Self, i32) {
        let (age, state) = (now.since_with_grace(clock.tick()), clock.index());
        let (left, place) = (limits.left(age, state), (2 * WAYS - number) as u32);
        let (kept, set) = BIDS[state];
        (Self(select_unpredictable(left < 0, Self::FREE | place, (age << 4 | place) & kept | set)), left)
    }

    /// Of a live flow off probation.
    const NONE: Self = Self(0);
    const FREE: u32 = 1 << 31;
    /// Of the lower bits, eight less the number of the place: of equal bids, that of the lowest number wins.
    const PLACE: u32 = 0xf;

    #[inline(always)]
    const fn is_free(self) -> bool {
        self.0 & Self::FREE != 0
    }

    /// Of the places of both buckets; `None`: this is [`Bid::NONE`].
    #[inline(always)]
    fn place(self, at: Candidates) -> Option<Place> {
        let number = (2 * WAYS).checked_sub((self.0 & Self::PLACE) as usize).filter(|n| *n < 2 * WAYS)?;
        Some(Place { bucket: at.buckets[number / WAYS], way: number % WAYS })
    }
}

/// By state, what is kept of age and place for a [`Bid`], and what is set in it.
static BIDS: [(u32, u32); STATES] = {
    // Live flows off probation offer nothing, those on probation their age.
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
