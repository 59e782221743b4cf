//! The time by which attempts are planned.
//!
//! In: the monotonic clock, and when the loop asked to be woken. Out: time since the start, less what was lost.
//! The wall clock has no part in it. While the machine was suspended or the loop could not run, this time stands still but for
//! [`MOST_LATE`]: what was due then comes later in the same order and at the same distances, not in a burst, and no answer is
//! late that came while the loop could not run.

use std::time::{Duration, Instant};

/// Planned time.
#[derive(Debug)]
pub(super) struct Pace {
    seen: Instant,
    elapsed: Duration,
    /// When the loop asked to be woken; `None`: by an event alone.
    asked: Option<Duration>,
}

impl Pace {
    pub(super) fn new(now: Instant) -> Self {
        Self { seen: now, elapsed: Duration::ZERO, asked: None }
    }

    /// Takes note of the time.
    pub(super) fn advance(&mut self, now: Instant) -> Duration {
        let passed = self.elapsed + now.saturating_duration_since(self.seen);
        self.seen = now;
        let most = self.asked.map_or(passed, |asked| asked.max(self.elapsed) + MOST_LATE);
        self.elapsed = passed.min(most);
        self.elapsed
    }

    /// Takes note of when the loop wants to go on, and says when that is by the monotonic clock.
    pub(super) fn ask(&mut self, wake: Option<Duration>) -> Option<Instant> {
        self.asked = wake;
        wake.map(|wake| self.seen + wake.saturating_sub(self.elapsed))
    }
}

/// What a late loop makes up for.
pub(super) const MOST_LATE: Duration = Duration::from_millis(100);

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn a_sleep_that_was_asked_for_counts_whole() {
        let start = Instant::now();
        let mut pace = Pace::new(start);
        assert_eq!(pace.ask(Some(5 * SECOND)), Some(start + 5 * SECOND));
        assert_eq!(pace.advance(start + 5 * SECOND), 5 * SECOND);
    }

    #[test]
    fn an_hour_of_suspension_counts_as_a_tenth_of_a_second() {
        let start = Instant::now();
        let mut pace = Pace::new(start);
        pace.ask(Some(SECOND));
        assert_eq!(pace.advance(start + 3_600 * SECOND), SECOND + MOST_LATE);
        assert_eq!(pace.ask(Some(2 * SECOND)), Some(start + 3_600 * SECOND + SECOND - MOST_LATE));
    }

    #[test]
    fn a_wake_before_its_time_is_what_the_clock_says() {
        let start = Instant::now();
        let mut pace = Pace::new(start);
        pace.ask(Some(5 * SECOND));
        assert_eq!(pace.advance(start + SECOND), SECOND);
        assert_eq!(pace.advance(start), SECOND);
    }
}
