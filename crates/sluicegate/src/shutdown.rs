//! The end that an operator asked for: from the first SIGTERM or SIGINT to the last packet.
//!
//! In: the drain time, how many packets were forwarded, the time. Out: whether it is over, and why.
//! Nobody is told here; `liveness` says at once that the balancer is not ready, so that whoever asks `/readyz` sends traffic
//! elsewhere, and routes are announced as about to go. When that notice has passed they are withdrawn, and the drain time
//! begins. Packets are forwarded as ever, since routers and clients take time.
//! It is over when the drain time has passed, or earlier when no packet was forwarded for [`QUIET`]: then nobody sends
//! any more. A second signal ends at once.

use std::fmt;
use std::time::{Duration, Instant};

/// A drain that is going on.
#[derive(Debug)]
pub(crate) struct Drain {
    /// Whether an operator may have it back: no signal has asked for the end.
    pub(crate) may_be_taken_back: bool,
    notice: Duration,
    /// When routes are withdrawn.
    withdraws: Instant,
    at_most: Duration,
    forwarded: u64,
    last_moved: Instant,
}

/// Why a drain is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Over {
    /// The drain time has passed.
    Passed,
    /// No packet was forwarded for [`QUIET`].
    Quiet,
}

impl Drain {
    /// A drain of at most `at_most` once `notice` has passed; `forwarded` counts all packets up to now.
    pub(crate) fn begin(now: Instant, notice: Duration, at_most: Duration, forwarded: u64) -> Self {
        let withdraws = now + notice;
        Self { may_be_taken_back: false, notice, withdraws, at_most, forwarded, last_moved: withdraws }
    }

    /// How long routes are still announced as about to go, and how long packets are still forwarded after that at most.
    pub(crate) fn left(&self, now: Instant) -> (Duration, Duration) {
        let end = self.withdraws + self.at_most;
        let notice = self.withdraws.saturating_duration_since(now);
        (notice, end.saturating_duration_since(now.max(self.withdraws)))
    }

    /// From its begin to its end at most.
    pub(crate) fn longest(&self) -> Duration {
        self.notice + self.at_most
    }

    /// Whether routes are to be withdrawn by now.
    pub(crate) fn withdraws(&self, now: Instant) -> bool {
        now >= self.withdraws
    }

    /// Whether it is over.
    pub(crate) fn look(&mut self, now: Instant, forwarded: u64) -> Option<Over> {
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

/// Whoever was told has gone elsewhere by then, and nobody else sends.
const QUIET: Duration = Duration::from_secs(5);

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
            assert_eq!(left, (notice * second, rest * second), "after {after} s");
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
}
