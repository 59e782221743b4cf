//! Measures for how long the process does not run.
//!
//! A thread that only sleeps wakes up ten times per second, and the control loop reads the clock of
//! this module at least four times per second. If neither of them runs for a time, the process or
//! the machine was stopped, or the process got no processor time. No thread makes progress in such
//! a pause, so the health monitor measures the progress of threads with [`Pauses::running`], a
//! clock that does not advance during pauses.

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

    /// Converts the time `now` to the time of a clock that does not advance during pauses.
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
    /// The last time at which the sleeping thread or the control loop ran.
    ran: Instant,
    /// The sum of all pauses.
    paused: Duration,
    /// The time at which the sleeping thread last woke up, and the value of `paused` at that time.
    woken: (Instant, Duration),
    unreported: Pause,
}

impl Clock {
    fn new(now: Instant) -> Self {
        let none = Duration::ZERO;
        Self { ran: now, paused: none, woken: (now, none), unreported: Pause::default() }
    }

    /// Counts the sleep that has ended at `now` as a pause, unless another thread ran in the
    /// meantime. The clock of `pause` also runs while the machine is suspended.
    fn wakes_up(&mut self, now: Instant, pause: Pause) {
        self.running(now);
        let (woken, before) = std::mem::replace(&mut self.woken, (now, self.paused));
        let suspended = pause.lasted.saturating_sub(now.saturating_duration_since(woken));
        let stopped = self.paused.saturating_sub(before) + suspended;
        if pause.lasted >= REPORT_FROM && stopped >= LATE {
            self.unreported.lasted += pause.lasted;
            self.unreported.run_delay += pause.run_delay;
        }
    }

    /// Returns the time without pauses. The caller is running at `now`, so the next pause starts
    /// later. After a pause, the control loop may run before the sleeping thread wakes up.
    fn running(&mut self, now: Instant) -> Instant {
        let stopped = now.saturating_duration_since(self.ran);
        if stopped >= LATE {
            self.paused += stopped;
        }
        self.ran = self.ran.max(now);
        now.checked_sub(self.paused).unwrap_or(now)
    }
}

fn lock(shared: &Mutex<Clock>) -> MutexGuard<'_, Clock> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the time since the machine was started, including time in which it was suspended.
fn since_boot() -> Duration {
    clock_gettime(ClockId::CLOCK_BOOTTIME).map(Duration::from).unwrap_or_default()
}

const EVERY: Duration = Duration::from_millis(100);
/// If no thread has run for this time, the process was stopped. A busy machine delays the wake-up
/// of a sleeping thread for a shorter time.
pub(super) const LATE: Duration = Duration::from_millis(250);
/// The minimum length of a pause that is reported.
const REPORT_FROM: Duration = Duration::from_millis(500);
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
        clock.wakes_up(start + millis(100), pause(millis(100)));
        assert_eq!(clock.running(start + millis(250)), start + millis(250));
        // After the pause, the control loop runs before the sleeping thread.
        assert_eq!(clock.running(start + millis(26_250)), start + millis(250));
        clock.wakes_up(start + millis(26_251), pause(millis(26_151)));
        assert_eq!(clock.running(start + millis(26_251)), start + millis(251));
        clock.wakes_up(start + millis(26_360), pause(millis(109)));
        assert_eq!(clock.running(start + millis(26_600)), start + millis(600));
        assert_eq!(clock.unreported.lasted, millis(26_151));
        // The machine was suspended for an hour. The clock of the process stood still.
        clock.wakes_up(start + millis(26_700), pause(millis(3_600_340)));
        assert_eq!(clock.running(start + millis(26_700)), start + millis(700));
        assert_eq!(clock.unreported.lasted, millis(3_626_491));
    }

    /// The sleeping thread gets no processor time, but the control loop runs.
    #[test]
    fn clock_runs_on_while_only_the_sleeping_thread_is_late() {
        let start = Instant::now();
        let mut clock = Clock::new(start);
        for look in (0..=3_000).step_by(240).map(millis) {
            assert_eq!(clock.running(start + look), start + look);
        }
        let pause = Pause { lasted: millis(3_000), run_delay: millis(2_900) };
        clock.wakes_up(start + millis(3_000), pause);
        assert_eq!(
            (clock.running(start + millis(3_000)), clock.unreported),
            (start + millis(3_000), Pause::default())
        );
    }

    #[test]
    fn reports_are_at_least_ten_seconds_apart() {
        let start = Instant::now();
        let mut pauses = Pauses { shared: Arc::new(Mutex::new(Clock::new(start))), reported: None };
        let pause = Pause { lasted: millis(700), run_delay: millis(600) };
        assert_eq!(pauses.report(start), None);
        lock(&pauses.shared).wakes_up(start + pause.lasted, pause);
        assert_eq!(pauses.report(start).map(|pause| pause.to_string()).unwrap(), "it got no processor time");
        lock(&pauses.shared).wakes_up(start + 2 * pause.lasted, pause);
        lock(&pauses.shared)
            .wakes_up(start + 3 * pause.lasted, Pause { lasted: millis(26_000), ..Pause::default() });
        assert_eq!(pauses.report(start + millis(9_999)), None);
        let both = pauses.report(start + millis(10_000)).unwrap();
        assert_eq!((both.lasted, both.run_delay), (millis(26_700), millis(600)));
        assert_eq!(both.to_string(), "the process or the machine was stopped");
    }
}
