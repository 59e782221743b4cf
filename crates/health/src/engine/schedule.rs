//! Decides when each target is probed next.
//!
//! The first attempts of new targets start 50 µs apart, so that a large number of new targets does
//! not delay existing targets. The second attempt of a target starts after a random part of its
//! interval, which spreads the targets over the interval.
//!
//! Invariant: a target has at most one timer, which is either its next attempt or the timeout of
//! the running attempt.

use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

use config::Check;

use super::wheel::Wheel;

/// The timers of all targets, and a generator of the random numbers that spread the timers.
pub(super) struct Schedule {
    wheel: Wheel,
    random: u64,
    /// The time for which the first attempt of the most recently added target was scheduled. The
    /// first attempt of the next target starts [`FIRST_GAP`] later.
    first: Duration,
    /// An empty list that is kept to reuse its memory.
    due: Vec<u32>,
}

impl Schedule {
    pub(super) fn new() -> Self {
        let random = RandomState::new().hash_one("jitter") | 1;
        Self { wheel: Wheel::new(), random, first: Duration::ZERO, due: Vec::new() }
    }

    /// Sets the timer of `id`, which replaces an earlier timer of `id`.
    pub(super) fn set(&mut self, id: u32, at: Duration) {
        self.wheel.set(id, tick(at));
    }

    pub(super) fn cancel(&mut self, id: u32) {
        self.wheel.cancel(id);
    }

    /// Schedules the first attempt of `id`. `all` is the number of targets.
    pub(super) fn first_attempt(&mut self, id: u32, all: usize, now: Duration) {
        // The delay is limited by the number of targets. Otherwise, targets that were added and
        // then removed would delay the first attempts of other targets.
        let all = u32::try_from(all).unwrap_or(u32::MAX);
        self.first = (self.first.max(now) + FIRST_GAP).min(now + FIRST_GAP.saturating_mul(all));
        self.set(id, self.first);
    }

    /// Returns a random duration of at most `interval`.
    pub(super) fn part_of(&mut self, interval: Duration) -> Duration {
        interval * (self.draw() % 1000 + 1) / 1000
    }

    /// Returns `interval` changed by the random jitter of the check.
    pub(super) fn jittered(&mut self, interval: Duration, check: &Check) -> Duration {
        let jitter = u32::from(check.jitter_percent);
        interval * (1000 - 10 * jitter.min(100) + self.draw() % (20 * jitter + 1)) / 1000
    }

    /// Returns the IDs of all targets whose timer has expired by `now`, and removes these timers.
    /// The caller must pass the list to [`Schedule::give_back`] afterwards.
    pub(super) fn take_due(&mut self, now: Duration) -> Vec<u32> {
        let mut due = std::mem::take(&mut self.due);
        self.wheel.advance(u64::try_from(now.as_millis()).unwrap_or(u64::MAX), &mut due);
        due
    }

    pub(super) fn give_back(&mut self, mut due: Vec<u32>) {
        due.clear();
        self.due = due;
    }

    /// Returns the time at which the next timer may expire.
    pub(super) fn next(&self) -> Option<Duration> {
        self.wheel.next().map(Duration::from_millis)
    }

    /// Returns a random number. Xorshift is good enough for jitter.
    fn draw(&mut self) -> u32 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        u32::try_from(self.random >> 32).unwrap_or(0)
    }
}

/// Returns the first tick at or after a time.
fn tick(at: Duration) -> u64 {
    u64::try_from(at.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}

/// The gap between first attempts. With this gap, 20,000 attempts start per second, which is a
/// third of the rate that one core can handle.
const FIRST_GAP: Duration = Duration::from_micros(50);
