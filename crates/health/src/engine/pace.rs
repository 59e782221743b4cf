//! The clock that schedules attempts.
//!
//! The clock follows the monotonic clock, so changes to the wall clock do not affect it. While the
//! machine is suspended or the loop cannot run, this clock advances by at most [`MOST_LATE`].
//! Attempts that were due in that time start later. These attempts keep their order and the gaps
//! between them, instead of all starting at once. A response that arrived in that time is not
//! treated as late.

use std::time::{Duration, Instant};

#[derive(Debug)]
pub(super) struct Pace {
    seen: Instant,
    elapsed: Duration,
    /// The requested wake-up time of the loop. `None` if the loop waits only for an event.
    asked: Option<Duration>,
}

impl Pace {
    pub(super) fn new(now: Instant) -> Self {
        Self { seen: now, elapsed: Duration::ZERO, asked: None }
    }

    /// Advances the clock and returns the scheduling time.
    pub(super) fn advance(&mut self, now: Instant) -> Duration {
        let passed = self.elapsed + now.saturating_duration_since(self.seen);
        self.seen = now;
        let most = self.asked.map_or(passed, |asked| asked.max(self.elapsed) + MOST_LATE);
        self.elapsed = passed.min(most);
        self.elapsed
    }

    /// Sets the requested wake-up time of the loop. Returns the same time as an instant of the
    /// monotonic clock.
    pub(super) fn ask(&mut self, wake: Option<Duration>) -> Option<Instant> {
        self.asked = wake;
        wake.map(|wake| self.seen + wake.saturating_sub(self.elapsed))
    }
}

/// The maximum time by which the clock advances beyond the requested wake-up time.
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
