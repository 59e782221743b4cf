//! The drain of this machine, started by an operator's command or by the first SIGTERM or SIGINT.
//!
//! First, the readiness endpoint fails and the routes get the graceful-shutdown community. After
//! the notice time, the routes are withdrawn. Packets are still forwarded until the drain time has
//! passed, or until no packet was forwarded for `QUIET`. A second SIGTERM or SIGINT ends the
//! process immediately. The daemon implements [`Departure`], which applies each step.

use std::fmt;
use std::time::{Duration, Instant};

use admin::MachineAction;

use crate::announce::Stage;
use crate::refused::Refused;

/// The actions of a drain. The daemon implements these actions.
pub trait Departure {
    /// Sets whether `/readyz` reports that the machine is draining.
    fn set_draining(&mut self, draining: bool);
    /// Announces the routes normally, announces them with the graceful-shutdown community, or
    /// withdraws them.
    fn set_stage(&mut self, stage: Stage);
    /// Returns the current stage of the announcer.
    fn stage(&self) -> Stage;
    /// Returns the time between adding the graceful-shutdown community and withdrawing the routes.
    /// The time is zero if no route is announced to any router.
    fn notice(&self) -> Duration;
    /// Notifies the service manager that the process stops within `at_most`.
    fn stopping(&mut self, at_most: Duration, status: &str);
}

/// The state of the machine's drain, if a drain is in progress.
#[derive(Debug, Default)]
pub struct Shutdown {
    drain: Option<Drain>,
}

/// The observations that determine the next step of a drain.
#[derive(Clone, Copy, Debug)]
pub struct Observed {
    /// The current time.
    pub now: Instant,
    /// The value of `cluster.drain_time`.
    pub drain_time: Duration,
    /// The number of packets forwarded since the process started.
    pub forwarded: u64,
}

impl Shutdown {
    /// Returns `true` if the machine is draining.
    #[must_use]
    pub fn is_draining(&self) -> bool {
        self.drain.is_some()
    }

    /// Handles SIGTERM or SIGINT. The first signal starts a drain, and the second signal ends the
    /// drain. Returns `true` if the process must exit now.
    pub fn signal(&mut self, seen: Observed, parts: &mut impl Departure) -> bool {
        let at_most = match &mut self.drain {
            Some(drain) if drain.may_be_taken_back => {
                // The drain that an operator started continues. The service manager is notified of
                // the remaining drain time.
                drain.may_be_taken_back = false;
                drain.longest()
            }
            Some(_) => {
                // log: A second signal ended the drain early. Connections that are still open
                // break, unless another machine takes them over.
                tracing::info!(change = "machine", "drain aborted by second signal");
                return true;
            }
            None => self.begin(false, seen, parts),
        };
        parts.stopping(at_most + AFTER_DRAIN, "draining");
        at_most.is_zero()
    }

    /// Handles the `machine drain` and `machine undrain` commands. Returns notes for the operator.
    ///
    /// # Errors
    /// Returns [`Refused::Conflict`] for `machine undrain` if the machine is not draining, or if a
    /// signal started the drain.
    pub fn command(
        &mut self,
        action: MachineAction,
        seen: Observed,
        parts: &mut impl Departure,
    ) -> Result<Vec<String>, Refused> {
        match (action, &self.drain) {
            (MachineAction::Drain, None) => {
                self.begin(true, seen, parts);
                Ok(Vec::new())
            }
            (MachineAction::Drain, Some(drain)) => {
                let left = drain.left(seen.now);
                let seconds = (left.notice + left.drain).as_secs_f64();
                Ok(vec![format!("already draining; at most {seconds:.0} s left")])
            }
            (MachineAction::Undrain, None) => Err(Refused::conflict("the machine is not draining")),
            (MachineAction::Undrain, Some(drain)) if !drain.may_be_taken_back => {
                Err(Refused::conflict("cannot undrain, because a signal requested the shutdown"))
            }
            (MachineAction::Undrain, Some(_)) => {
                self.drain = None;
                parts.set_draining(false);
                parts.set_stage(Stage::Serving);
                // log: An operator canceled the drain with `machine undrain`. VIPs are announced
                // again.
                tracing::info!(change = "machine", "drain canceled");
                Ok(Vec::new())
            }
        }
    }

    /// Returns the maximum remaining time of the drain, or zero without a drain.
    pub(crate) fn left(&self, now: Instant) -> Left {
        self.drain.as_ref().map_or_else(Left::default, |drain| drain.left(now))
    }

    /// Withdraws the routes if the notice time has passed. Returns `true` if the drain is complete.
    pub fn advance(&mut self, seen: Observed, parts: &mut impl Departure) -> bool {
        let Some(drain) = &mut self.drain else { return false };
        let over = drain.look(seen.now, seen.forwarded);
        if drain.withdraws(seen.now) && parts.stage() == Stage::Leaving {
            // log: During a drain, the time `bgp.graceful_shutdown` has passed, and all routes are
            // withdrawn. Packets of existing flows are still forwarded.
            tracing::info!(change = "machine", "routes withdrawn for drain");
            parts.set_stage(Stage::Left);
        }
        if let Some(why) = over {
            // log: The drain is complete. Either no packet was forwarded for 5 s, or the drain time
            // has passed (see `why`).
            tracing::info!(change = "machine", %why, "drain completed");
            parts.stopping(AFTER_DRAIN, "drained");
        }
        over.is_some()
    }

    /// Starts a drain, and returns its maximum duration.
    fn begin(&mut self, may_be_taken_back: bool, seen: Observed, parts: &mut impl Departure) -> Duration {
        // `/readyz` fails first, so that load balancers in front of this machine stop sending new
        // traffic.
        parts.set_draining(true);
        let at_most = seen.drain_time;
        let notice = if at_most.is_zero() { Duration::ZERO } else { parts.notice() };
        parts.set_stage(if notice.is_zero() { Stage::Left } else { Stage::Leaving });
        let why = if may_be_taken_back { "command" } else { "signal" };
        // log: A drain was started by the `machine drain` command or by a signal (see `why`). A
        // second signal ends the process immediately.
        tracing::info!(change = "machine", why, ?notice, ?at_most, "drain started");
        let mut drain = Drain::begin(seen.now, notice, at_most, seen.forwarded);
        drain.may_be_taken_back = may_be_taken_back;
        self.drain.insert(drain).longest()
    }
}

/// A drain in progress.
#[derive(Debug)]
struct Drain {
    /// `true` if an operator can cancel the drain. A signal makes the drain final.
    may_be_taken_back: bool,
    notice: Duration,
    /// The time at which routes are withdrawn.
    withdraws: Instant,
    at_most: Duration,
    forwarded: u64,
    last_moved: Instant,
}

/// The reason why a drain ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Over {
    Passed,
    /// No packet was forwarded for `QUIET`.
    Quiet,
}

/// The maximum remaining times of the two drain phases.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Left {
    /// The remaining time in which routes are announced with the graceful-shutdown community.
    pub(crate) notice: Duration,
    /// The remaining time after that, in which packets are still forwarded.
    pub(crate) drain: Duration,
}

impl Drain {
    /// Starts a drain whose second phase lasts at most `at_most`, after a first phase of `notice`.
    /// `forwarded` is the current packet count.
    fn begin(now: Instant, notice: Duration, at_most: Duration, forwarded: u64) -> Self {
        let withdraws = now + notice;
        Self { may_be_taken_back: false, notice, withdraws, at_most, forwarded, last_moved: withdraws }
    }

    fn left(&self, now: Instant) -> Left {
        let end = self.withdraws + self.at_most;
        Left {
            notice: self.withdraws.saturating_duration_since(now),
            drain: end.saturating_duration_since(now.max(self.withdraws)),
        }
    }

    /// Returns the maximum duration of both phases together.
    fn longest(&self) -> Duration {
        self.notice + self.at_most
    }

    /// Returns `true` if the routes must be withdrawn at `now`.
    fn withdraws(&self, now: Instant) -> bool {
        now >= self.withdraws
    }

    /// Returns why the drain ended, or `None` while it is in progress.
    fn look(&mut self, now: Instant, forwarded: u64) -> Option<Over> {
        if forwarded != self.forwarded {
            (self.forwarded, self.last_moved) = (forwarded, self.last_moved.max(now));
        }
        if !self.withdraws(now) {
            return None;
        }
        if now.duration_since(self.withdraws) >= self.at_most {
            return Some(Over::Passed);
        }
        (now.duration_since(self.last_moved) >= QUIET).then_some(Over::Quiet)
    }
}

impl fmt::Display for Over {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Passed => f.write_str("drain time passed"),
            Self::Quiet => write!(f, "no packet forwarded for {QUIET:?}"),
        }
    }
}

/// The drain ends after this time without packets. By then, all senders have noticed the withdrawn
/// routes or the failing `/readyz` and use other machines.
const QUIET: Duration = Duration::from_secs(5);
/// The maximum time for detaching from the interfaces, which is reported to the service manager.
const AFTER_DRAIN: Duration = Duration::from_secs(15);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drain_lasts_while_packets_arrive_up_to_drain_time() {
        // Each case has the packet counts with their times in seconds, and when and why the drain
        // is expected to end.
        let steady: Vec<(u64, u64)> = (0..40).map(|s| (s, s * 10)).collect();
        let to_8: Vec<(u64, u64)> = (0..40).map(|s| (s, s.min(8))).collect();
        let none: Vec<(u64, u64)> = (0..40).map(|s| (s, 0)).collect();
        for (at_most, looks, wanted) in [
            (30, &steady, (30, Over::Passed)),
            (30, &to_8, (13, Over::Quiet)),
            (30, &none, (5, Over::Quiet)),
            (3, &none, (3, Over::Passed)),
            (0, &steady, (0, Over::Passed)),
        ] {
            let start = Instant::now();
            let mut drain = Drain::begin(start, Duration::ZERO, Duration::from_secs(at_most), 0);
            let mut over = looks.iter().filter_map(|&(second, packets)| {
                Some((second, drain.look(start + Duration::from_secs(second), packets)?))
            });
            assert_eq!(over.next(), Some(wanted), "at most {at_most} s");
        }
    }

    #[test]
    fn left_decreases_to_zero() {
        let (start, second) = (Instant::now(), Duration::from_secs(1));
        let drain = Drain::begin(start, 10 * second, 30 * second, 0);
        for (after, notice, rest) in
            [(0, 10, 30), (4, 6, 30), (10, 0, 30), (11, 0, 29), (40, 0, 0), (99, 0, 0)]
        {
            let left = drain.left(start + after * second);
            let wanted = Left { notice: notice * second, drain: rest * second };
            assert_eq!(left, wanted, "after {after} s");
        }
    }

    #[test]
    fn drain_time_starts_after_the_notice() {
        let (start, second) = (Instant::now(), Duration::from_secs(1));
        let mut drain = Drain::begin(start, 10 * second, 30 * second, 0);
        let over = (0..60).find_map(|n| {
            let now = start + n * second;
            assert_eq!(drain.withdraws(now), n >= 10);
            Some((n, drain.look(now, 7)?))
        });
        assert_eq!(over, Some((15, Over::Quiet)), "5 s without packets after the notice");
        let mut drain = Drain::begin(start, 10 * second, Duration::ZERO, 0);
        assert_eq!(drain.look(start + 9 * second, 1), None);
        assert_eq!(drain.look(start + 10 * second, 2), Some(Over::Passed));
    }

    /// Records the actions of a drain in call order.
    #[derive(Debug, Default)]
    struct Recorded {
        stage: Stage,
        notice: Duration,
        steps: Vec<String>,
    }

    impl Departure for Recorded {
        fn set_draining(&mut self, draining: bool) {
            self.steps.push(format!("draining {draining}"));
        }

        fn set_stage(&mut self, stage: Stage) {
            self.stage = stage;
            self.steps.push(format!("{stage:?}"));
        }

        fn stage(&self) -> Stage {
            self.stage
        }

        fn notice(&self) -> Duration {
            self.notice
        }

        fn stopping(&mut self, at_most: Duration, status: &str) {
            self.steps.push(format!("{status} {}", at_most.as_secs()));
        }
    }

    fn seen(now: Instant, seconds: u64) -> Observed {
        Observed {
            now: now + Duration::from_secs(seconds),
            drain_time: Duration::from_secs(30),
            forwarded: seconds,
        }
    }

    #[test]
    fn first_signal_drains_in_order_and_second_signal_ends() {
        let (start, mut shutdown) = (Instant::now(), Shutdown::default());
        let mut parts = Recorded { notice: Duration::from_secs(10), ..Recorded::default() };
        assert!(!shutdown.signal(seen(start, 0), &mut parts));
        assert_eq!(parts.steps, ["draining true", "Leaving", "draining 55"]);
        assert!(!shutdown.advance(seen(start, 9), &mut parts) && parts.steps.len() == 3);
        assert!(!shutdown.advance(seen(start, 10), &mut parts));
        assert_eq!(parts.steps[3..], ["Left"]);
        assert!(shutdown.advance(seen(start, 40), &mut parts), "the drain time passed");
        assert_eq!(parts.steps[4..], ["drained 15"]);
        assert!(shutdown.signal(seen(start, 41), &mut parts), "a second signal");
    }

    #[test]
    fn first_signal_ends_without_drain_time() {
        let (mut shutdown, mut parts) = (Shutdown::default(), Recorded::default());
        let none = Observed { drain_time: Duration::ZERO, ..seen(Instant::now(), 0) };
        assert!(shutdown.signal(none, &mut parts));
        assert_eq!(parts.steps, ["draining true", "Left", "draining 15"]);
    }

    #[test]
    fn undrain_cancels_command_drain_but_not_signal_drain() {
        let (start, mut shutdown, mut parts) = (Instant::now(), Shutdown::default(), Recorded::default());
        let order = |shutdown: &mut Shutdown, parts: &mut Recorded, action| {
            shutdown.command(action, seen(start, 3), parts).map_err(|refused| refused.to_string())
        };
        let none = order(&mut shutdown, &mut parts, MachineAction::Undrain);
        assert_eq!(none.unwrap_err(), "the machine is not draining");
        assert!(order(&mut shutdown, &mut parts, MachineAction::Drain).unwrap().is_empty());
        let again = order(&mut shutdown, &mut parts, MachineAction::Drain).unwrap();
        assert_eq!(again, ["already draining; at most 30 s left"]);
        order(&mut shutdown, &mut parts, MachineAction::Undrain).unwrap();
        assert!(!shutdown.is_draining());
        assert_eq!(parts.steps, ["draining true", "Left", "draining false", "Serving"]);
        order(&mut shutdown, &mut parts, MachineAction::Drain).unwrap();
        assert!(!shutdown.signal(seen(start, 4), &mut parts), "the drain of the operator continues");
        let refused = order(&mut shutdown, &mut parts, MachineAction::Undrain);
        assert!(refused.unwrap_err().starts_with("cannot undrain"));
    }
}
