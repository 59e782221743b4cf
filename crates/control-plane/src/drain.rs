//! The drain of this machine: from the order or the first SIGTERM or SIGINT to the last packet.
//!
//! In: signals, an operator's orders, the drain time, how many packets were forwarded, the time. Out: what the daemon does
//! next, by [`Departure`], and whether the process ends.
//! The order: not ready at once, routes announced as about to go, routes withdrawn when that notice has passed; packets are
//! forwarded as before until the drain time has passed too, or none was forwarded for `QUIET`. A second signal ends at once.
//! Not here: readiness (`liveness` of the binary), routes (`announce`).

use std::fmt;
use std::time::{Duration, Instant};

use admin::MachineAction;

use crate::announce::Stage;
use crate::refused::Refused;

/// What a drain does to the rest of the daemon.
pub trait Departure {
    /// `/readyz` says from now on that the machine drains, or not any more.
    fn set_draining(&mut self, draining: bool);
    /// Routes are marked, withdrawn or announced again.
    fn set_stage(&mut self, stage: Stage);
    /// How far the announcer is.
    fn stage(&self) -> Stage;
    /// How long routers are given between mark and withdrawal; zero: no router has a route.
    fn notice(&self) -> Duration;
    /// The service manager hears that the end takes up to `at_most`.
    fn stopping(&mut self, at_most: Duration, status: &str);
}

/// Whether the machine drains, and how far it is.
#[derive(Debug, Default)]
pub struct Shutdown {
    drain: Option<Drain>,
}

/// What is known when a drain begins or is looked at.
#[derive(Clone, Copy, Debug)]
pub struct Observed {
    /// The time.
    pub now: Instant,
    /// `cluster.drain_time`.
    pub drain_time: Duration,
    /// Packets forwarded since the start.
    pub forwarded: u64,
}

impl Shutdown {
    /// Whether a drain is going on.
    #[must_use]
    pub fn is_draining(&self) -> bool {
        self.drain.is_some()
    }

    /// SIGTERM or SIGINT: the first begins the drain, the second ends it. Whether the process ends now.
    pub fn signal(&mut self, seen: Observed, parts: &mut impl Departure) -> bool {
        let at_most = match &mut self.drain {
            Some(drain) if drain.may_be_taken_back => {
                // The operator's drain goes on; from now on the service manager waits for its end.
                drain.may_be_taken_back = false;
                drain.longest()
            }
            Some(_) => {
                tracing::info!(change = "machine", "a second signal: the drain ends");
                return true;
            }
            None => self.begin(false, seen, parts),
        };
        parts.stopping(at_most + AFTER_DRAIN, "draining");
        at_most.is_zero()
    }

    /// An operator's order. Notes for the answer.
    ///
    /// # Errors
    /// There is no drain to take back, or a signal began it.
    pub fn order(
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
                Ok(vec![format!("it drains already: {seconds:.0} s are left at most")])
            }
            (MachineAction::Undrain, None) => Err(Refused::conflict("the machine does not drain")),
            (MachineAction::Undrain, Some(drain)) if !drain.may_be_taken_back => {
                Err(Refused::conflict("a signal asked for the end: it can't be taken back"))
            }
            (MachineAction::Undrain, Some(_)) => {
                self.drain = None;
                parts.set_draining(false);
                parts.set_stage(Stage::Serving);
                tracing::info!(change = "machine", "the drain is taken back");
                Ok(Vec::new())
            }
        }
    }

    /// What is left of it at most; nothing when there is no drain.
    pub(crate) fn left(&self, now: Instant) -> Left {
        self.drain.as_ref().map_or_else(Left::default, |drain| drain.left(now))
    }

    /// Takes the next step of a drain that is due. Whether it is over.
    pub fn advance(&mut self, seen: Observed, parts: &mut impl Departure) -> bool {
        let Some(drain) = &mut self.drain else { return false };
        let over = drain.look(seen.now, seen.forwarded);
        if drain.withdraws(seen.now) && parts.stage() == Stage::Leaving {
            tracing::info!(change = "machine", "routes are withdrawn");
            parts.set_stage(Stage::Left);
        }
        if let Some(why) = over {
            tracing::info!(change = "machine", %why, "drained");
            parts.stopping(AFTER_DRAIN, "drained");
        }
        over.is_some()
    }

    /// How long it takes at most.
    fn begin(&mut self, may_be_taken_back: bool, seen: Observed, parts: &mut impl Departure) -> Duration {
        // Before anything else, so that clients of `/readyz` send no new traffic.
        parts.set_draining(true);
        let at_most = seen.drain_time;
        let notice = if at_most.is_zero() { Duration::ZERO } else { parts.notice() };
        parts.set_stage(if notice.is_zero() { Stage::Left } else { Stage::Leaving });
        let (why, end) = match may_be_taken_back {
            true => ("an operator's order", ""),
            false => ("a signal", "; a second signal ends at once"),
        };
        tracing::info!(change = "machine", why, ?notice, ?at_most, "not ready any more, draining{end}");
        let mut drain = Drain::begin(seen.now, notice, at_most, seen.forwarded);
        drain.may_be_taken_back = may_be_taken_back;
        self.drain.insert(drain).longest()
    }
}

/// A drain that is going on.
#[derive(Debug)]
struct Drain {
    /// Whether an operator may take it back: no signal has asked for the end.
    may_be_taken_back: bool,
    notice: Duration,
    /// When routes are withdrawn.
    withdraws: Instant,
    at_most: Duration,
    forwarded: u64,
    last_moved: Instant,
}

/// Why a drain is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Over {
    /// The drain time has passed.
    Passed,
    /// No packet was forwarded for `QUIET`.
    Quiet,
}

/// What is left of a drain at most.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Left {
    /// Routes are announced as about to go.
    pub(crate) notice: Duration,
    /// Packets are forwarded after that.
    pub(crate) drain: Duration,
}

impl Drain {
    /// A drain of at most `at_most` once `notice` has passed; `forwarded` counts all packets up to now.
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

    /// From its begin to its end at most.
    fn longest(&self) -> Duration {
        self.notice + self.at_most
    }

    /// Whether routes are to be withdrawn by now.
    fn withdraws(&self, now: Instant) -> bool {
        now >= self.withdraws
    }

    /// Whether it is over.
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
            Self::Passed => f.write_str("the drain time has passed"),
            Self::Quiet => write!(f, "no packet was forwarded for {QUIET:?}"),
        }
    }
}

/// Senders that follow routes or `/readyz` have gone elsewhere by then.
const QUIET: Duration = Duration::from_secs(5);
/// What detaching takes at most, for the service manager.
const AFTER_DRAIN: Duration = Duration::from_secs(15);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_lasts_while_packets_come_and_no_longer_than_the_drain_time() {
        // Seconds since the signal and packets forwarded by then; when it is over, and why.
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
    fn what_is_left_of_it_falls_to_nothing() {
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
    fn while_routes_are_announced_as_about_to_go_no_time_counts() {
        let (start, second) = (Instant::now(), Duration::from_secs(1));
        let mut drain = Drain::begin(start, 10 * second, 30 * second, 0);
        let over = (0..60).find_map(|n| {
            let now = start + n * second;
            assert_eq!(drain.withdraws(now), n >= 10);
            Some((n, drain.look(now, 7)?))
        });
        assert_eq!(over, Some((15, Over::Quiet)), "five quiet seconds after the notice");
        let mut drain = Drain::begin(start, 10 * second, Duration::ZERO, 0);
        assert_eq!(drain.look(start + 9 * second, 1), None);
        assert_eq!(drain.look(start + 10 * second, 2), Some(Over::Passed));
    }

    /// Writes down what a drain does, in order.
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
    fn a_signal_is_not_ready_first_marks_routes_withdraws_them_and_a_second_one_ends() {
        let (start, mut shutdown) = (Instant::now(), Shutdown::default());
        let mut parts = Recorded { notice: Duration::from_secs(10), ..Recorded::default() };
        assert!(!shutdown.signal(seen(start, 0), &mut parts));
        assert_eq!(parts.steps, ["draining true", "Leaving", "draining 55"]);
        assert!(!shutdown.advance(seen(start, 9), &mut parts) && parts.steps.len() == 3);
        assert!(!shutdown.advance(seen(start, 10), &mut parts));
        assert_eq!(parts.steps[3..], ["Left"]);
        assert!(shutdown.advance(seen(start, 40), &mut parts), "the drain time has passed");
        assert_eq!(parts.steps[4..], ["drained 15"]);
        assert!(shutdown.signal(seen(start, 41), &mut parts), "a second signal");
    }

    #[test]
    fn without_a_drain_time_the_first_signal_ends() {
        let (mut shutdown, mut parts) = (Shutdown::default(), Recorded::default());
        let none = Observed { drain_time: Duration::ZERO, ..seen(Instant::now(), 0) };
        assert!(shutdown.signal(none, &mut parts));
        assert_eq!(parts.steps, ["draining true", "Left", "draining 15"]);
    }

    #[test]
    fn an_operator_takes_back_his_own_drain_and_not_that_of_a_signal() {
        let (start, mut shutdown, mut parts) = (Instant::now(), Shutdown::default(), Recorded::default());
        let order = |shutdown: &mut Shutdown, parts: &mut Recorded, action| {
            shutdown.order(action, seen(start, 3), parts).map_err(|refused| refused.to_string())
        };
        let none = order(&mut shutdown, &mut parts, MachineAction::Undrain);
        assert_eq!(none.unwrap_err(), "the machine does not drain");
        assert!(order(&mut shutdown, &mut parts, MachineAction::Drain).unwrap().is_empty());
        let again = order(&mut shutdown, &mut parts, MachineAction::Drain).unwrap();
        assert_eq!(again, ["it drains already: 30 s are left at most"]);
        order(&mut shutdown, &mut parts, MachineAction::Undrain).unwrap();
        assert!(!shutdown.is_draining());
        assert_eq!(parts.steps, ["draining true", "Left", "draining false", "Serving"]);
        order(&mut shutdown, &mut parts, MachineAction::Drain).unwrap();
        assert!(!shutdown.signal(seen(start, 4), &mut parts), "the operator's drain goes on");
        let refused = order(&mut shutdown, &mut parts, MachineAction::Undrain);
        assert!(refused.unwrap_err().starts_with("a signal asked for the end"));
    }
}
