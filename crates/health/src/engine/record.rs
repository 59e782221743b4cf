//! The history of one target's attempts, for display.
//!
//! Health states do not depend on this history. A record also detects when this machine can no
//! longer probe the target, and when it can probe the target again.
//!
//! The memory use of a record is bounded, because the record stores the text of the last failure
//! only.

use std::time::{Duration, Instant, SystemTime};

use super::health_states::Count;
use super::target::{HealthState, TargetReport, Watched};
use crate::Failure;

#[derive(Debug)]
pub(super) struct Record {
    since: Instant,
    since_wall: SystemTime,
    /// The number of finished attempts.
    pub(super) attempts: u64,
    failures: u64,
    /// The last 16 results. The lowest bit is the latest result, and 1 means that the attempt
    /// passed.
    history: u16,
    latency: Duration,
    failure: Option<Failure>,
    /// The time of the last failure.
    failed: Option<Instant>,
    /// The number of consecutive attempts that this machine could not make.
    local: u32,
}

/// A change in the ability of this machine to probe a target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Ability {
    /// The last [`LOST_AFTER`] attempts failed locally. The string is the reason for the last
    /// failure.
    Lost(String),
    /// This machine can probe the target again.
    Back,
}

impl Record {
    pub(super) fn new() -> Self {
        Self {
            since: Instant::now(),
            since_wall: SystemTime::now(),
            attempts: 0,
            failures: 0,
            history: 0,
            latency: Duration::ZERO,
            failure: None,
            failed: None,
            local: 0,
        }
    }

    /// Returns `true` if the last attempts failed locally and [`Ability::Lost`] was published.
    pub(super) fn is_lost(&self) -> bool {
        self.local >= LOST_AFTER
    }

    pub(super) fn note(&mut self, result: Result<(), Failure>, latency: Duration) -> Option<Ability> {
        self.attempts += 1;
        self.latency = latency;
        self.history = self.history << 1 | u16::from(result.is_ok());
        let was_lost = self.is_lost();
        let local = result.as_ref().is_err_and(Failure::is_local);
        self.local = if local { self.local.saturating_add(1) } else { 0 };
        if let Err(failure) = result {
            self.failures += 1;
            (self.failure, self.failed) = (Some(failure), Some(Instant::now()));
        }
        match (was_lost, self.is_lost()) {
            (false, true) => self.failure.as_ref().map(|failure| Ability::Lost(failure.to_string())),
            (true, false) => Some(Ability::Back),
            _ => None,
        }
    }

    /// Sets the time of the last health state change to the current time.
    pub(super) fn turn(&mut self) {
        (self.since, self.since_wall) = (Instant::now(), SystemTime::now());
    }

    /// Returns the reason for the last failed attempt, if the target is down.
    pub(super) fn why(&self, state: HealthState) -> Option<String> {
        let failure = self.failure.as_ref().filter(|_| state == HealthState::Down);
        failure.map(ToString::to_string)
    }

    pub(super) fn report(&self, watched: &Watched, count: &Count) -> TargetReport {
        let known = u16::BITS.min(u32::try_from(self.attempts).unwrap_or(u32::MAX));
        TargetReport {
            key: watched.key.clone(),
            backend: watched.backend.clone(),
            pools: watched.pools.clone(),
            state: count.state,
            since: self.since,
            since_wall: self.since_wall,
            last: (known > 0).then_some(self.history & 1 == 1),
            last_error: self.failure.as_ref().map(ToString::to_string),
            last_error_at: self.failed,
            last_reason: self.failure.as_ref().map(Failure::reason),
            last_latency: (known > 0).then_some(self.latency),
            history: (0..known).rev().map(|age| self.history >> age & 1 == 1).collect(),
            passes: count.passes,
            fails: count.fails,
            held: count.held,
            attempts: self.attempts,
            failures: self.failures,
        }
    }
}

/// The number of consecutive local failures after which [`Ability::Lost`] is published. A single
/// local failure may be a coincidence. This number is therefore the same as the default number of
/// failures after which a backend is down.
const LOST_AFTER: u32 = 3;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ability_is_lost_after_three_local_failures() {
        let mut record = Record::new();
        let mut note = |result| record.note(result, Duration::ZERO);
        let local = || Err(Failure::Local("no port".into()));
        assert_eq!(
            [note(local()), note(local()), note(Ok(())), note(local()), note(local())],
            [const { None }; 5]
        );
        let lost = Some(Ability::Lost("this machine could not send the check: no port".into()));
        assert_eq!([note(local()), note(local())], [lost.clone(), None]);
        assert_eq!([note(Err(Failure::Refused)), note(Ok(()))], [Some(Ability::Back), None]);
        assert_eq!([note(local()), note(local()), note(local())], [None, None, lost]);
    }

    #[test]
    fn the_history_is_of_the_last_sixteen_results_oldest_first() {
        let mut record = Record::new();
        for n in 0..20 {
            let _ = record.note(if n % 3 == 0 { Err(Failure::Refused) } else { Ok(()) }, Duration::ZERO);
        }
        assert_eq!((record.attempts, record.failures), (20, 7));
        let history: Vec<bool> = (0..16).rev().map(|age| record.history >> age & 1 == 1).collect();
        assert_eq!(history, (4..20).map(|n| n % 3 != 0).collect::<Vec<_>>());
    }
}
