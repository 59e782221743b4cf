//! Checks a backend through each of its next hops.
//!
//! If the route of a backend has several next hops, each attempt of a check runs once through each
//! hop. The attempt passes if it passes through any hop, so a fault of one hop never takes a
//! backend down. A hop is failing if the check fails `fall` times in a row through this hop while
//! it passes through another hop. Client packets for this backend then avoid the failing hop. After
//! `rise` passes in a row, the hop is used again. An attempt that passes through no hop does not
//! change the state of any hop, because the backend is then the probable cause.

use std::net::IpAddr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use config::Check;
use futures_util::future::join_all;

use crate::{CheckHop, Dialer, Failure, HopNeighbour, Interim, Pass, attempt, lock};

/// The result of an attempt through one hop, with its duration. The value is `None` while the
/// attempt runs.
type HopResult = Option<(Result<Pass, Failure>, Duration)>;

/// A running attempt through several hops.
#[derive(Debug)]
pub(super) struct HopFlight {
    hops: Arc<[CheckHop]>,
    results: Arc<Mutex<Vec<HopResult>>>,
    /// For each hop, the result that its attempt would have if the time limit expired now.
    interims: Vec<Interim>,
}

impl HopFlight {
    /// Creates the attempt and its future. `dialers` has one dialer for each hop.
    pub(super) fn new(
        hops: Arc<[CheckHop]>,
        dialers: Vec<Dialer>,
        check: Arc<Check>,
        address: IpAddr,
    ) -> (Self, impl Future<Output = Result<Pass, Failure>> + Send + 'static) {
        let results = Arc::new(Mutex::new(vec![None; dialers.len()]));
        let interims: Vec<Interim> = dialers.iter().map(|_| Interim::default()).collect();
        let dialers: Vec<(Dialer, Interim)> = dialers.into_iter().zip(interims.clone()).collect();
        let (shared, started) = (Arc::clone(&results), Instant::now());
        let future = async move {
            let (kind, shared) = (&check.kind, &shared);
            let one = |(place, (dialer, interim)): (usize, (Dialer, Interim))| async move {
                let result = attempt(kind, address, &dialer, &interim).await;
                lock(shared)[place] = Some((result, started.elapsed()));
            };
            join_all(dialers.into_iter().enumerate().map(one)).await;
            // The caller takes the results from the flight, because it also needs the results of an
            // attempt that has timed out.
            Ok(Pass::Silent)
        };
        (Self { hops, results, interims }, future)
    }

    pub(super) fn len(&self) -> usize {
        self.hops.len()
    }

    /// Ends the attempt. Hops without a result have timed out.
    fn results(self) -> Vec<(HopNeighbour, Result<Pass, Failure>, Duration)> {
        let results = std::mem::take(&mut *lock(&self.results));
        let whole = results
            .into_iter()
            .zip(&self.interims)
            .map(|(result, interim)| result.unwrap_or_else(|| (interim.expired(), Duration::MAX)));
        self.hops.iter().zip(whole).map(|(hop, (result, took))| (hop.neighbour, result, took)).collect()
    }
}

/// The hop states of one target.
#[derive(Debug, Default)]
pub(super) struct HopStates(Vec<HopState>);

#[derive(Clone, Debug)]
struct HopState {
    neighbour: HopNeighbour,
    is_failing: bool,
    /// The number of consecutive results that contradict the state.
    contrary: u32,
}

impl HopStates {
    /// Returns states in which the hops `failing` are failing.
    pub(super) fn known(failing: &[HopNeighbour]) -> Self {
        let state = |neighbour: &_| HopState { neighbour: *neighbour, is_failing: true, contrary: 0 };
        Self(failing.iter().map(state).collect())
    }

    /// Counts the results of an attempt. Returns the result of the attempt as a whole and its
    /// duration, which is `None` if the attempt has passed through no hop.
    pub(super) fn take(
        &mut self,
        flight: HopFlight,
        rise: u32,
        fall: u32,
    ) -> (Result<Pass, Failure>, Option<Duration>) {
        let results = flight.results();
        // A pass with a response takes precedence over a silent pass, and the fastest response is
        // reported.
        let passes = results.iter().filter_map(|(_, result, took)| Some((result.as_ref().ok()?, *took)));
        let passed = passes.min_by_key(|(pass, took)| (**pass == Pass::Silent, *took));
        let passed = passed.map(|(pass, took)| (pass.clone(), took));
        let before = std::mem::take(&mut self.0);
        for (neighbour, result, _) in &results {
            let old = before.iter().find(|old| old.neighbour == *neighbour);
            let new = HopState { neighbour: *neighbour, is_failing: false, contrary: 0 };
            let mut state = old.cloned().unwrap_or(new);
            let is_local = result.as_ref().is_err_and(Failure::is_local);
            if passed.is_some() && !is_local {
                state.count(result.is_ok(), rise, fall);
            }
            self.0.push(state);
        }
        match passed {
            Some((pass, took)) => (Ok(pass), (took < Duration::MAX).then_some(took)),
            None => {
                let mut failures = results.into_iter().filter_map(|(_, result, _)| result.err());
                let first = failures.next().unwrap_or(Failure::NoAnswer);
                // If both occurred, a failure of the backend is returned instead of a failure of
                // this machine.
                let remote = failures.find(|failure| first.is_local() && !failure.is_local());
                (Err(remote.unwrap_or(first)), None)
            }
        }
    }

    pub(super) fn failing(&self) -> Vec<HopNeighbour> {
        self.0.iter().filter(|hop| hop.is_failing).map(|hop| hop.neighbour).collect()
    }
}

impl HopState {
    fn count(&mut self, passed: bool, rise: u32, fall: u32) {
        if passed != self.is_failing {
            self.contrary = 0;
            return;
        }
        self.contrary = self.contrary.saturating_add(1);
        if self.contrary >= if self.is_failing { rise } else { fall } {
            (self.is_failing, self.contrary) = (!self.is_failing, 0);
        }
    }
}

#[cfg(test)]
mod tests {
    use forwarder::NextHop;

    use super::*;

    const A: HopNeighbour = (2, IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 2)));
    const B: HopNeighbour = (3, IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 4)));

    const PASS: Result<Pass, Failure> = Ok(Pass::Answered);

    fn flight(results: &[(HopNeighbour, Option<Result<Pass, Failure>>)]) -> HopFlight {
        let next_hop = NextHop::plain(packet::Mac([2; 6]), packet::Mac([4; 6]));
        let hop = |(neighbour, _): &(_, _)| CheckHop {
            neighbour: *neighbour,
            next_hop: next_hop.clone(),
            mtu: 1500,
        };
        let result = |(_, result): &(_, Option<Result<Pass, Failure>>)| {
            result.clone().map(|result| (result, Duration::from_millis(5)))
        };
        let results_ = results.iter().map(result).collect();
        HopFlight {
            hops: results.iter().map(hop).collect(),
            results: Arc::new(Mutex::new(results_)),
            interims: vec![Interim::default(); results.len()],
        }
    }

    #[test]
    fn hop_fails_after_fall_and_returns_after_rise() {
        let mut states = HopStates::default();
        let took = Some(Duration::from_millis(5));
        for n in 1..=3 {
            let found = states.take(flight(&[(A, Some(PASS)), (B, None)]), 2, 3);
            assert_eq!(found, (PASS, took), "the backend is reachable through one hop");
            assert_eq!(states.failing(), if n < 3 { vec![] } else { vec![B] }, "after {n} failures");
        }
        // A single pass does not end the failing state, because a failure follows.
        for (b, failing) in [(true, true), (false, true), (true, true), (true, false)] {
            let b = b.then_some(PASS);
            states.take(flight(&[(A, Some(PASS)), (B, b)]), 2, 3).0.unwrap();
            assert_eq!(!states.failing().is_empty(), failing);
        }
    }

    #[test]
    fn backend_that_fails_through_all_hops_changes_no_hop() {
        let mut states = HopStates::default();
        for _ in 0..9 {
            let found = states.take(flight(&[(A, Some(Err(Failure::Refused))), (B, None)]), 1, 1);
            assert_eq!(found, (Err(Failure::Refused), None));
        }
        assert_eq!(states.failing(), []);
    }

    #[test]
    fn local_failures_change_no_hop() {
        let (mut states, local) = (HopStates::default(), || Some(Err(Failure::Local("no port".into()))));
        states.take(flight(&[(A, Some(PASS)), (B, local())]), 1, 1).0.unwrap();
        assert_eq!(states.failing(), []);
        let (found, _) = states.take(flight(&[(A, local()), (B, Some(Err(Failure::Refused)))]), 1, 1);
        assert_eq!(found, Err(Failure::Refused));
    }

    #[test]
    fn hop_that_failed_in_the_previous_process_returns_after_rise() {
        let mut states = HopStates::known(&[B]);
        assert_eq!(states.failing(), [B]);
        states.take(flight(&[(A, Some(PASS)), (B, None)]), 2, 3).0.unwrap();
        for failing in [true, false] {
            states.take(flight(&[(A, Some(PASS)), (B, Some(PASS))]), 2, 3).0.unwrap();
            assert_eq!(!states.failing().is_empty(), failing);
        }
    }

    #[test]
    fn hop_that_left_the_route_is_forgotten() {
        let mut states = HopStates::default();
        states.take(flight(&[(A, Some(PASS)), (B, None)]), 1, 1).0.unwrap();
        assert_eq!(states.failing(), [B]);
        states.take(flight(&[(A, Some(PASS))]), 1, 1).0.unwrap();
        assert_eq!(states.failing(), []);
    }
}
