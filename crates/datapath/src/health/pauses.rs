//! Measures for how long the process does not run.
//!
//! A thread that only sleeps wakes up four times per second. If this thread wakes up late, the
//! process or the machine was stopped, or the process got no processor time. No thread makes
//! progress in such a pause, so the health monitor measures the progress of threads with
//! [`Pauses::running`], a clock that stands still during pauses.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use nix::time::{ClockId, clock_gettime};

use super::stall::own_run_delay;
use crate::thread::give_up_capabilities;

/// The pauses of the process since the last report.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pause {
    /// The duration of all pauses since the last report, including time in which the machine was
    /// suspended.
    pub lasted: Duration,
    /// The part of `lasted` in which the process waited for a processor.
    pub run_delay: Duration,
}

impl fmt::Display for Pause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.run_delay >= self.lasted / 2 {
            "it got no processor time"
        } else {
            "the process or the machine was stopped"
        })
    }
}

/// The pauses of the process.
#[derive(Debug)]
pub(super) struct Pauses {
    shared: Arc<Mutex<Clock>>,
    reported: Option<Instant>,
}

impl Pauses {
    /// Starts the thread, which ends when this value is dropped.
    pub(super) fn start() -> std::io::Result<Self> {
        let shared = Arc::new(Mutex::new(Clock::new(Instant::now())));
        let theirs = Arc::downgrade(&shared);
        let watch = move || {
            give_up_capabilities();
            let (mut since, mut delay) = (since_boot(), own_run_delay());
            loop {
                std::thread::sleep(EVERY);
                let Some(shared) = theirs.upgrade() else { return };
                let (woken, delayed) = (since_boot(), own_run_delay());
                let pause =
                    Pause { lasted: woken.saturating_sub(since), run_delay: delayed.saturating_sub(delay) };
                lock(&shared).wakes_up(Instant::now(), pause);
                (since, delay) = (woken, delayed);
            }
        };
        std::thread::Builder::new().name("watch".into()).spawn(watch)?;
        Ok(Self { shared, reported: None })
    }

    /// Converts the time `now` to the time of a clock that stands still during pauses.
    pub(super) fn running(&self, now: Instant) -> Instant {
        lock(&self.shared).running(now)
    }

    /// Returns the pauses since the last report. Returns `None` if there were no pauses, or if the
    /// last report is less than ten seconds ago.
    pub(super) fn report(&mut self, now: Instant) -> Option<Pause> {
        if self.reported.is_some_and(|reported| now.saturating_duration_since(reported) < REPORT_EVERY) {
            return None;
        }
        let pause = std::mem::take(&mut lock(&self.shared).unreported);
        if pause.lasted.is_zero() {
            return None;
        }
        self.reported = Some(now);
        Some(pause)
    }
}

#[derive(Debug)]
struct Clock {
    /// The time at which the thread last woke up.
    woken: Instant,
    /// The sum of all pauses.
    paused: Duration,
    unreported: Pause,
}

impl Clock {
    fn new(now: Instant) -> Self {
        Self { woken: now, paused: Duration::ZERO, unreported: Pause::default() }
    }

    fn wakes_up(&mut self, now: Instant, pause: Pause) {
        if pause.lasted >= LATE {
            self.paused += now.saturating_duration_since(self.woken);
            self.unreported.lasted += pause.lasted;
            self.unreported.run_delay += pause.run_delay;
        }
        self.woken = now;
    }

    /// After a pause, other threads may run before the sleeping thread wakes up. The time since the
    /// sleeping thread last woke up may therefore be a pause, too.
    fn running(&self, now: Instant) -> Instant {
        let asleep = now.saturating_duration_since(self.woken);
        let paused = if asleep >= LATE { self.paused + asleep } else { self.paused };
        now.checked_sub(paused).unwrap_or(now)
    }
}

fn lock(shared: &Mutex<Clock>) -> MutexGuard<'_, Clock> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the time since the machine was started, including time in which it was suspended.
fn since_boot() -> Duration {
    clock_gettime(ClockId::CLOCK_BOOTTIME).map(Duration::from).unwrap_or_default()
}

const EVERY: Duration = Duration::from_millis(250);
/// A thread that sleeps for [`EVERY`] and wakes up after this time has not run in between.
const LATE: Duration = Duration::from_millis(500);
/// The minimum time between two reports. A machine with too few processors has many pauses.
const REPORT_EVERY: Duration = Duration::from_secs(10);

#[cfg(test)]
mod tests {
    use super::*;

    const fn millis(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    #[test]
    fn clock_stands_still_during_a_pause() {
        let start = Instant::now();
        let mut clock = Clock::new(start);
        let pause = |lasted| Pause { lasted, run_delay: Duration::ZERO };
        clock.wakes_up(start + millis(250), pause(millis(250)));
        assert_eq!(clock.running(start + millis(600)), start + millis(600));
        // After the pause, other threads run before the sleeping thread.
        assert_eq!(clock.running(start + millis(26_250)), start + millis(250));
        clock.wakes_up(start + millis(26_251), pause(millis(26_001)));
        assert_eq!(clock.running(start + millis(26_251)), start + millis(250));
        clock.wakes_up(start + millis(26_510), pause(millis(259)));
        assert_eq!(clock.running(start + millis(26_600)), start + millis(599));
        assert_eq!(clock.unreported.lasted, millis(26_001));
    }

    #[test]
    fn reports_are_at_least_ten_seconds_apart() {
        let start = Instant::now();
        let mut pauses = Pauses { shared: Arc::new(Mutex::new(Clock::new(start))), reported: None };
        let pause = Pause { lasted: millis(700), run_delay: millis(600) };
        assert_eq!(pauses.report(start), None);
        lock(&pauses.shared).wakes_up(start, pause);
        assert_eq!(pauses.report(start).map(|pause| pause.to_string()).unwrap(), "it got no processor time");
        lock(&pauses.shared).wakes_up(start, pause);
        lock(&pauses.shared).wakes_up(start, Pause { lasted: millis(26_000), ..Pause::default() });
        assert_eq!(pauses.report(start + millis(9_999)), None);
        let both = pauses.report(start + millis(10_000)).unwrap();
        assert_eq!((both.lasted, both.run_delay), (millis(26_700), millis(600)));
        assert_eq!(both.to_string(), "the process or the machine was stopped");
    }
}
