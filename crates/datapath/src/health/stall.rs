//! Reads from the kernel why a thread makes no progress.
//!
//! The kernel counts the processor time of each thread, and the time for which the thread was ready
//! to run but had no processor (run delay). The kernel updates the run delay only when the thread
//! gets a processor again. For a thread that is still waiting, the reason is therefore derived from
//! the scheduling state.
//!
//! References: proc_pid_stat(5); Documentation/scheduler/sched-stats.rst.

use std::fmt;
use std::fs;
use std::time::Duration;

/// The reason why a thread makes no progress.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum StallReason {
    /// The thread is ready to run, but other threads use the processors.
    NoProcessor,
    /// The thread uses a processor, but does not finish its iteration.
    Looping,
    /// A signal or a debugger has stopped the thread.
    Stopped,
    /// The thread waits in the kernel and cannot be interrupted.
    Blocked,
    /// The thread waits in a system call.
    Waiting,
    /// The kernel does not report the reason.
    Unknown,
}

impl fmt::Display for StallReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NoProcessor => "it gets no processor time",
            Self::Looping => "it runs in a loop without progress",
            Self::Stopped => "a signal or a debugger has stopped it",
            Self::Blocked => "it is blocked in the kernel",
            Self::Waiting => "it waits in a system call",
            Self::Unknown => "the kernel does not report why",
        })
    }
}

/// The scheduling data that the kernel reports for a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Scheduling {
    /// The scheduling state, such as `R` for a thread that runs or is ready to run.
    state: char,
    on_processor: Duration,
    run_delay: Duration,
}

impl Scheduling {
    /// Reads the scheduling data of a thread of this process. Returns `None` if the thread does not
    /// exist.
    pub(super) fn read(thread: u32) -> Option<Self> {
        let read = |name| fs::read_to_string(format!("/proc/self/task/{thread}/{name}")).ok();
        Self::parse(&read("stat")?, &read("schedstat").unwrap_or_default())
    }

    fn parse(stat: &str, schedstat: &str) -> Option<Self> {
        // The name of the thread is in parentheses and may itself contain parentheses.
        let state = stat.rsplit_once(')')?.1.trim_start().chars().next()?;
        let mut times = schedstat.split_ascii_whitespace().map(|nanos| nanos.parse().unwrap_or(0));
        let mut time = || Duration::from_nanos(times.next().unwrap_or(0));
        Some(Self { state, on_processor: time(), run_delay: time() })
    }

    /// Returns the reason for a stall, derived from the values at an earlier time and the current
    /// values. `between` is the time between the two readings.
    pub(super) fn reason(before: Option<&Self>, now: Option<&Self>, between: Duration) -> StallReason {
        let Some(now) = now else { return StallReason::Unknown };
        let most = |time: fn(&Self) -> Duration| {
            before.map(|before| time(now).saturating_sub(time(before)) >= between / 2)
        };
        match now.state {
            'T' | 't' => StallReason::Stopped,
            'D' => StallReason::Blocked,
            // A kernel without scheduler statistics reports zeros.
            'R' if now.on_processor.is_zero() => StallReason::Unknown,
            'R' => match most(|one| one.on_processor) {
                Some(true) => StallReason::Looping,
                Some(false) => StallReason::NoProcessor,
                None => StallReason::Unknown,
            },
            'S' if most(|one| one.run_delay) == Some(true) => StallReason::NoProcessor,
            'S' => StallReason::Waiting,
            _ => StallReason::Unknown,
        }
    }
}

/// Returns the time for which the calling thread has waited for a processor since its start.
pub(super) fn own_run_delay() -> Duration {
    let times = fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    let nanos = times.split_ascii_whitespace().nth(1).and_then(|nanos| nanos.parse().ok());
    Duration::from_nanos(nanos.unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reason_follows_from_state_and_times() {
        let at = |state: char, on_processor: u64, delay: u64| {
            let schedstat = format!("{} {} 7\n", on_processor * 1_000_000, delay * 1_000_000);
            Scheduling::parse(&format!("12 (packet-0) (x)) {state} 1 12 0"), &schedstat)
        };
        let before = at('R', 100, 50);
        for (now, reason) in [
            (at('R', 340, 50), StallReason::Looping),
            (at('R', 104, 50), StallReason::NoProcessor),
            (at('S', 104, 290), StallReason::NoProcessor),
            (at('S', 104, 50), StallReason::Waiting),
            (at('D', 104, 50), StallReason::Blocked),
            (at('t', 104, 50), StallReason::Stopped),
            (at('T', 104, 50), StallReason::Stopped),
            (at('R', 0, 0), StallReason::Unknown),
            (None, StallReason::Unknown),
        ] {
            let between = Duration::from_millis(250);
            assert_eq!(Scheduling::reason(before.as_ref(), now.as_ref(), between), reason, "{now:?}");
        }
        assert_eq!(Scheduling::reason(None, at('R', 340, 50).as_ref(), Duration::ZERO), StallReason::Unknown);
    }

    #[test]
    fn kernel_reports_the_state_of_this_thread() {
        let own = u32::try_from(rustix::thread::gettid().as_raw_nonzero().get()).unwrap();
        // The kernel counts the processor time of a new thread from its first clock tick on.
        let start = std::time::Instant::now();
        let ran = || Scheduling::read(own).unwrap().on_processor;
        while ran().is_zero() {
            assert!(start.elapsed() < Duration::from_secs(10), "the kernel has no scheduler statistics");
        }
        assert_eq!(Scheduling::read(own).unwrap().state, 'R');
        assert_eq!(Scheduling::read(0), None);
    }
}
