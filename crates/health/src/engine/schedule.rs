//! When each target is probed next.
//!
//! In: a target's check, and how its last attempt ended. Out: the targets that are due.
//! First attempts follow each other by 50 µs, however many targets come at once: what is watched already must not wait for
//! them. The second of a target comes at a random part of its interval, so that they spread over it.
//! Not here: what the time is (`pace`), attempts (`runner`).
//! Invariant: a target has at most one timer: its next attempt, or the time-out of the one under way.

use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

use config::Check;

use super::wheel::Wheel;

/// The timers of all targets, and the randomness that spreads them.
pub(super) struct Schedule {
    wheel: Wheel,
    random: u64,
    /// When the next first attempt may start.
    first: Duration,
    /// Kept for its memory.
    due: Vec<u32>,
}

impl Schedule {
    pub(super) fn new() -> Self {
        let random = RandomState::new().hash_one("jitter") | 1;
        Self { wheel: Wheel::new(), random, first: Duration::ZERO, due: Vec::new() }
    }

    /// Sets `id`'s timer, in place of the one that it has.
    pub(super) fn set(&mut self, id: u32, at: Duration) {
        self.wheel.set(id, tick(at));
    }

    pub(super) fn cancel(&mut self, id: u32) {
        self.wheel.cancel(id);
    }

    /// Plans the first attempt of `id`, one of `all` targets.
    pub(super) fn first_attempt(&mut self, id: u32, all: usize, now: Duration) {
        // The limit: targets that came and were removed again delay no others.
        let all = u32::try_from(all).unwrap_or(u32::MAX);
        self.first = (self.first.max(now) + FIRST_GAP).min(now + FIRST_GAP.saturating_mul(all));
        self.set(id, self.first);
    }

    /// Any part of `interval`.
    pub(super) fn part_of(&mut self, interval: Duration) -> Duration {
        interval * (self.draw() % 1000 + 1) / 1000
    }

    /// `interval` with the check's jitter.
    pub(super) fn jittered(&mut self, interval: Duration, check: &Check) -> Duration {
        let jitter = u32::from(check.jitter_percent);
        interval * (1000 - 10 * jitter.min(100) + self.draw() % (20 * jitter + 1)) / 1000
    }

    /// All whose timer has run out by `now`; it is taken away. They come back by [`Schedule::give_back`].
    pub(super) fn take_due(&mut self, now: Duration) -> Vec<u32> {
        let mut due = std::mem::take(&mut self.due);
        self.wheel.advance(u64::try_from(now.as_millis()).unwrap_or(u64::MAX), &mut due);
        due
    }

    pub(super) fn give_back(&mut self, mut due: Vec<u32>) {
        due.clear();
        self.due = due;
    }

    /// When the next timer may run out.
    pub(super) fn next(&self) -> Option<Duration> {
        self.wheel.next().map(Duration::from_millis)
    }

    /// Xorshift: the spread of jitter needs no more.
    fn draw(&mut self) -> u32 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        u32::try_from(self.random >> 32).unwrap_or(0)
    }
}

/// The tick at or after a time.
fn tick(at: Duration) -> u64 {
    u64::try_from(at.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}

/// Between first attempts: 20,000 targets take a second, at a third of what a core can start.
const FIRST_GAP: Duration = Duration::from_micros(50);
