//! Stores the most recent generations of the configuration, and tracks whether a generation must be
//! confirmed. A generation is created at startup, and by each reload or rollback that changes the
//! configuration.
//!
//! While a generation waits for its confirmation, further reloads are accepted. Such reloads
//! neither confirm the waiting generation nor change its deadline, unless a reload sets a new
//! deadline. A confirmation makes all changes since the last confirmed generation permanent. The
//! wait also ends if an operator rolls back to the last confirmed generation or an earlier
//! generation. A rollback is a normal reload and does not change the configuration file.
//!
//! Invariant: at most [`AT_MOST`] generations are stored in memory. The stored generations use at
//! most [`BYTES_AT_MOST`], without counting the newest two. A stored generation includes its keys,
//! certificates and prefix lists, so a rollback reads no file.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use config::{Config, Member, Problems, Source};

use super::Cause;
use crate::refused::Refused;

/// A stored generation of the configuration.
#[derive(Debug)]
pub struct Kept {
    /// The generation number.
    pub generation: u64,
    /// The time at which the generation became active.
    pub at: SystemTime,
    /// The event that created the generation.
    pub cause: Cause,
    /// The operator who created the generation through the API, or `None` for other causes.
    pub by: Option<String>,
    /// The configuration, as it was read from files or the API.
    pub config: Arc<Config>,
    /// The warnings about the configuration.
    pub warnings: Problems,
}

impl Kept {
    /// Returns the total size of the configuration files and prefix lists, in bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.config.sources().iter().map(Source::bytes).sum()
    }

    /// Returns the approximate memory use in bytes. The result includes the members of expanded
    /// nested pools, because a short configuration can expand to millions of members.
    fn weight(&self) -> u64 {
        self.bytes() + (self.config.members().count() * size_of::<Member>()) as u64
    }
}

/// A pending confirmation. The active generation is rolled back unless it is confirmed.
#[derive(Clone, Debug)]
pub struct Pending {
    /// The last confirmed generation, which a rollback restores.
    pub to: Arc<Kept>,
    /// The deadline for the confirmation, as time since the process started.
    pub ends: Duration,
    /// `true` if the rollback has started.
    pub is_returning: bool,
}

/// The stored generations, and the pending confirmation if there is one.
#[derive(Debug)]
pub struct Generations {
    /// The stored generations, oldest first. The list always contains the active generation.
    kept: VecDeque<Arc<Kept>>,
    pending: Option<Pending>,
    /// The generations that the last rollback has undone. The configuration file may still contain
    /// one of these generations.
    undone: Vec<Arc<Kept>>,
}

impl Generations {
    /// Creates a history with one generation.
    #[must_use]
    pub fn new(first: Kept) -> Self {
        Self { kept: [Arc::new(first)].into(), pending: None, undone: Vec::new() }
    }

    /// Returns the stored generations, oldest first.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = &Arc<Kept>> {
        self.kept.iter()
    }

    /// Returns the active generation.
    #[must_use]
    pub fn in_force(&self) -> &Arc<Kept> {
        &self.kept[self.kept.len() - 1]
    }

    /// Returns the stored generation with the number `generation`. If `generation` is `None`,
    /// returns the generation to which a rollback goes by default. The default is the last
    /// confirmed generation while a confirmation is pending, and otherwise the generation before
    /// the active one.
    ///
    /// # Errors
    /// Returns [`Refused::NotFound`] if this generation is not stored.
    pub fn find(&self, generation: Option<u64>) -> Result<&Arc<Kept>, Refused> {
        let found = match (generation, &self.pending) {
            (Some(number), _) => self.kept.iter().find(|kept| kept.generation == number),
            (None, Some(pending)) => Some(&pending.to),
            (None, None) => self.kept.iter().rev().nth(1),
        };
        found.ok_or_else(|| {
            Refused::NotFound(match generation {
                Some(number) => {
                    format!(
                        "generation {number} is not stored; `config history` lists the stored generations"
                    )
                }
                None => "no previous generation is stored".to_owned(),
            })
        })
    }

    /// Stores `next` as the active generation. If `confirm` is set, `next` must be confirmed within
    /// that time.
    pub fn published(&mut self, next: Kept, confirm: Option<Duration>, now: Duration) {
        if next.cause.is_return_path() {
            self.undone = self.since(&next.config);
        } else {
            self.undone.clear();
        }
        self.pending = match (self.pending.take(), confirm) {
            (Some(pending), _) if Arc::ptr_eq(&pending.to.config, &next.config) => None,
            (Some(pending), None) if next.cause == Cause::Rollback && self.is_behind(&pending, &next) => None,
            (Some(pending), Some(within)) if !pending.is_returning => {
                Some(Pending { ends: now + within, ..pending })
            }
            (None, Some(within)) => {
                Some(Pending { to: Arc::clone(self.in_force()), ends: now + within, is_returning: false })
            }
            (pending, _) => pending,
        };
        self.kept.push_back(Arc::new(next));
        self.forget(BYTES_AT_MOST);
    }

    /// Handles a reload that did not change the configuration. If the reload was a rollback to the
    /// confirmed configuration, the pending confirmation ends. For any other reload, `confirm` sets
    /// a new deadline for a pending confirmation.
    pub fn unchanged(&mut self, cause: Cause, confirm: Option<Duration>, now: Duration) {
        let Some(pending) = &self.pending else { return };
        let is_there = || self.in_force().config.is_same_text_as(&pending.to.config);
        if cause == Cause::Unconfirmed || cause == Cause::Rollback && is_there() {
            self.pending = None;
        } else if let (Some(pending), Some(within)) = (&mut self.pending, confirm)
            && !pending.is_returning
        {
            pending.ends = now + within;
        }
    }

    /// Confirms the active generation, and returns its number.
    ///
    /// # Errors
    /// Returns [`Refused::Conflict`] if no confirmation is pending or the rollback has started.
    pub fn confirm(&mut self) -> Result<u64, Refused> {
        match &self.pending {
            None => Err(Refused::Conflict("no reload is waiting for a confirmation".to_owned())),
            Some(pending) if pending.is_returning => Err(Refused::Conflict(format!(
                "too late to confirm; the rollback to generation {} has started",
                pending.to.generation
            ))),
            Some(_) => {
                self.pending = None;
                Ok(self.in_force().generation)
            }
        }
    }

    /// Returns the generation to restore if the confirmation deadline has passed. Further calls
    /// return `None`, until [`Generations::not_returned`] is called.
    pub fn due(&mut self, now: Duration) -> Option<Arc<Kept>> {
        let pending = self.pending.as_mut().filter(|pending| !pending.is_returning && now >= pending.ends)?;
        pending.is_returning = true;
        Some(Arc::clone(&pending.to))
    }

    /// Schedules another attempt after a rollback was rejected.
    pub fn not_returned(&mut self, now: Duration) {
        if let Some(pending) = &mut self.pending {
            (pending.is_returning, pending.ends) = (false, now + AGAIN);
        }
    }

    /// Returns the pending confirmation, if any.
    #[must_use]
    pub fn pending(&self) -> Option<&Pending> {
        self.pending.as_ref()
    }

    /// Returns `true` if the last rollback has undone this configuration, and no other generation
    /// has become active since.
    #[must_use]
    pub fn is_undone(&self, config: &Config) -> bool {
        self.undone.iter().any(|kept| config.is_same_text_as(&kept.config))
    }

    /// Returns `true` if `next` restores the last confirmed configuration or an earlier one, and
    /// the automatic rollback has not started.
    fn is_behind(&self, pending: &Pending, next: &Kept) -> bool {
        let mut waiting = self.kept.iter().filter(|kept| kept.generation > pending.to.generation);
        !pending.is_returning && !waiting.any(|kept| Arc::ptr_eq(&kept.config, &next.config))
    }

    /// Returns the generations that were stored after the last generation with this configuration.
    fn since(&self, config: &Arc<Config>) -> Vec<Arc<Kept>> {
        let after = self.kept.iter().rev().take_while(|kept| !Arc::ptr_eq(&kept.config, config));
        after.cloned().collect()
    }

    fn forget(&mut self, bytes_at_most: u64) {
        let bytes = |kept: &VecDeque<Arc<Kept>>| kept.iter().map(|one| one.weight()).sum::<u64>();
        while self.kept.len() > AT_MOST || (self.kept.len() > 2 && bytes(&self.kept) > bytes_at_most) {
            self.kept.pop_front();
        }
    }
}

/// The maximum number of stored generations.
pub const AT_MOST: usize = 20;
/// The maximum memory use of all stored generations in bytes, which is enough for twenty
/// generations of 2 MiB each. The newest two generations are always stored.
pub const BYTES_AT_MOST: u64 = 48 << 20;
/// The time after which a rejected rollback is tried again.
const AGAIN: Duration = Duration::from_secs(10);

#[cfg(test)]
mod tests {
    use std::path::Path;

    use proptest::prelude::*;

    use super::*;

    fn kept(generation: u64, cause: Cause, config: Arc<Config>) -> Kept {
        let (at, warnings) = (SystemTime::UNIX_EPOCH, Problems::default());
        Kept { generation, at, cause, by: None, config, warnings }
    }

    /// Creates a different configuration for each `number`. A comment with `bytes` characters makes
    /// the text longer.
    fn config(number: u64, bytes: usize) -> Arc<Config> {
        let text = format!(
            "[cluster]\nname = \"c{number}\"\nhash_key_file = \"k\"\n[machine.lb1]\naddresses = [\"192.0.2.1\"]\n\
             interfaces = [\"eth0\"]\n#{}\n",
            "x".repeat(bytes)
        );
        let secret = |_: &_| Ok("00112233445566778899aabbccddeeff".to_owned());
        Arc::new(config::parse(&text, Path::new("a.toml"), &secret).unwrap().0)
    }

    fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn start() -> Generations {
        Generations::new(kept(0, Cause::Start, config(0, 0)))
    }

    /// Publishes a generation with a configuration that no other generation has.
    fn publish(all: &mut Generations, cause: Cause, confirm: Option<u64>, now: u64) {
        let number = all.in_force().generation + 1;
        all.published(kept(number, cause, config(number, 0)), confirm.map(at), at(now));
    }

    fn go_back(all: &mut Generations, to: &Arc<Kept>, cause: Cause, now: u64) {
        let number = all.in_force().generation + 1;
        all.published(kept(number, cause, Arc::clone(&to.config)), None, at(now));
    }

    #[test]
    fn unconfirmed_generation_is_due_once_and_confirmed_one_never() {
        let mut all = start();
        publish(&mut all, Cause::Api, Some(300), 10);
        assert!(all.due(at(309)).is_none());
        assert_eq!(all.due(at(310)).map(|to| to.generation), Some(0));
        assert!(all.due(at(311)).is_none() && all.confirm().is_err(), "the rollback has started");
        let to = Arc::clone(all.find(Some(0)).unwrap());
        go_back(&mut all, &to, Cause::Unconfirmed, 312);
        assert!(all.pending().is_none() && all.due(at(1_000)).is_none());
        assert_eq!(all.in_force().generation, 2);
        publish(&mut all, Cause::Api, Some(300), 400);
        assert_eq!(all.confirm().unwrap(), 3);
        assert!(all.confirm().is_err() && all.due(at(1_000)).is_none());
    }

    #[test]
    fn reload_without_time_keeps_the_confirmation_deadline() {
        let mut all = start();
        publish(&mut all, Cause::Api, Some(100), 0);
        publish(&mut all, Cause::Signal, None, 50);
        publish(&mut all, Cause::Watch, None, 60);
        assert_eq!(all.pending().map(|one| (one.to.generation, one.ends)), Some((0, at(100))));
        publish(&mut all, Cause::Put, Some(100), 90);
        assert_eq!(all.pending().map(|one| (one.to.generation, one.ends)), Some((0, at(190))));
        all.unchanged(Cause::Signal, None, at(150));
        assert!(all.due(at(189)).is_none(), "{:?}", all.pending());
        all.unchanged(Cause::Api, Some(at(100)), at(150));
        assert!(all.due(at(249)).is_none() && all.due(at(250)).is_some());
        all.unchanged(Cause::Unconfirmed, None, at(251));
        assert!(all.pending().is_none(), "the confirmed configuration is active again");
    }

    #[test]
    fn started_rollback_cannot_be_stopped_and_is_retried() {
        let mut all = start();
        publish(&mut all, Cause::Api, Some(100), 0);
        assert!(all.due(at(100)).is_some());
        // A reload that waited in the queue when the rollback started.
        publish(&mut all, Cause::Put, Some(500), 101);
        assert!(all.pending().unwrap().is_returning);
        all.not_returned(at(102));
        assert!(all.due(at(111)).is_none() && all.due(at(112)).is_some());
        all.not_returned(at(112));
        assert_eq!(all.confirm().unwrap(), 2, "the generation can still be confirmed before the retry");
    }

    #[test]
    fn weight_includes_members_of_nested_pools() {
        let text = "[cluster]\nname = \"c\"\nhash_key_file = \"k\"\n[machine.lb1]\naddresses = [\"192.0.2.1\"]\n\
                    interfaces = [\"eth0\"]\n[pool.p]\nbackends = [{ name = \"b\", address = \"198.18.0.1\" }]\n\
                    [pool.q]\npools = [{ pool = \"p\" }]\n[pool.r]\npools = [{ pool = \"q\" }]\n";
        let secret = |_: &_| Ok("00112233445566778899aabbccddeeff".to_owned());
        let config = Arc::new(config::parse(text, Path::new("a.toml"), &secret).unwrap().0);
        let one = kept(1, Cause::Api, config);
        assert_eq!(one.bytes(), text.len() as u64);
        assert!(one.weight() >= one.bytes() + 3 * 40, "three members: {}", one.weight());
    }

    #[test]
    fn rollback_to_confirmed_or_earlier_generation_ends_the_wait() {
        let mut all = start();
        for confirm in [None, Some(100), None] {
            publish(&mut all, Cause::Api, confirm, 0);
        }
        // Generations 0 and 1 are confirmed. Generations 2 and 3 wait for their confirmation.
        assert_eq!(all.find(None).unwrap().generation, 1);
        let [behind, confirmed, waiting] =
            [0, 1, 2].map(|number| Arc::clone(all.find(Some(number)).unwrap()));
        go_back(&mut all, &waiting, Cause::Rollback, 10);
        all.unchanged(Cause::Rollback, None, at(10));
        assert_eq!(all.pending().map(|one| (one.to.generation, one.ends)), Some((1, at(100))));
        // If a rollback restores a generation that is not confirmed yet, and sets a confirmation
        // time, then only the deadline changes.
        all.published(kept(5, Cause::Rollback, Arc::clone(&behind.config)), Some(at(60)), at(10));
        assert_eq!(all.pending().map(|one| (one.to.generation, one.ends)), Some((1, at(70))));
        go_back(&mut all, &confirmed, Cause::Rollback, 20);
        assert!(all.pending().is_none() && all.find(None).unwrap().generation == 5);
        publish(&mut all, Cause::Api, Some(100), 30);
        go_back(&mut all, &behind, Cause::Rollback, 40);
        assert!(all.pending().is_none());
        publish(&mut all, Cause::Api, Some(100), 200);
        assert!(all.due(at(300)).is_some());
        go_back(&mut all, &confirmed, Cause::Rollback, 300);
        assert!(all.pending().unwrap().is_returning, "the queued reload is part of the rollback");
    }

    #[test]
    fn rollback_can_require_a_confirmation() {
        let mut all = start();
        publish(&mut all, Cause::Api, None, 0);
        let to = Arc::clone(all.find(None).unwrap());
        assert_eq!(to.generation, 0);
        all.published(kept(2, Cause::Rollback, Arc::clone(&to.config)), Some(at(60)), at(10));
        assert_eq!(all.pending().map(|one| (one.to.generation, one.ends)), Some((1, at(70))));
    }

    #[test]
    fn undone_generations_are_known_until_the_next_reload() {
        let mut all = start();
        publish(&mut all, Cause::Signal, Some(100), 0);
        publish(&mut all, Cause::Put, None, 0);
        let to = all.due(at(100)).unwrap();
        assert!(!all.is_undone(&config(1, 0)));
        go_back(&mut all, &to, Cause::Unconfirmed, 100);
        assert!(all.is_undone(&config(1, 0)) && all.is_undone(&config(2, 0)));
        assert!(!all.is_undone(&config(0, 0)) && !all.is_undone(&config(3, 0)));
        publish(&mut all, Cause::Watch, None, 200);
        assert!(!all.is_undone(&config(1, 0)));
    }

    #[test]
    fn oldest_generations_are_dropped_but_two_remain() {
        let mut all = start();
        let length = kept(1, Cause::Api, config(1, 1_000)).weight();
        for number in 1..=6 {
            all.published(kept(number, Cause::Api, config(number, 1_000)), None, at(0));
        }
        assert_eq!(all.iter().count(), 7);
        all.forget(3 * length);
        assert_eq!(all.iter().map(|one| one.generation).collect::<Vec<_>>(), [4, 5, 6]);
        assert!(all.find(Some(3)).is_err());
        all.forget(1);
        assert_eq!(all.iter().map(|one| one.generation).collect::<Vec<_>>(), [5, 6]);
    }

    #[derive(Clone, Debug)]
    enum Step {
        Reload(Option<u64>),
        Same(Option<u64>),
        /// The position of a stored generation, counted from the newest generation.
        Back(usize, Option<u64>),
        Confirm,
        Tick(u64),
    }

    fn step() -> impl Strategy<Value = Step> {
        let within = || prop::option::of(1_u64..20);
        prop_oneof![
            within().prop_map(Step::Reload),
            within().prop_map(Step::Same),
            (0_usize..20, within()).prop_map(|(which, within)| Step::Back(which, within)),
            Just(Step::Confirm),
            (0_u64..15).prop_map(Step::Tick),
        ]
    }

    /// A model of the documented rules that is compared with `Generations`.
    #[derive(Default)]
    struct Model {
        /// For each generation, the number of its configuration text.
        texts: Vec<usize>,
        /// The number of the last confirmed generation.
        good: usize,
        end: Option<u64>,
    }

    impl Model {
        fn newest(&self) -> usize {
            self.texts.len() - 1
        }

        /// Adds a generation. If `end` is set, the active generation must be confirmed before
        /// `end`.
        fn next(&mut self, text: usize, end: Option<u64>) {
            self.texts.push(text);
            self.end = end;
            if end.is_none() {
                self.good = self.newest();
            }
        }

        /// Returns the confirmation deadline after a rollback to `text`.
        fn end_after(&self, text: usize, within: Option<u64>) -> Option<u64> {
            let Some(end) = self.end else { return within };
            let is_waiting = self.texts[self.good + 1..].contains(&text);
            if text == self.texts[self.good] { None } else { within.or(Some(end).filter(|_| is_waiting)) }
        }

        fn step(&mut self, all: &mut Generations, now: &mut u64, step: &Step) -> Result<(), TestCaseError> {
            let until = |within: Option<u64>| within.map(|within| *now + within);
            match *step {
                Step::Reload(within) => {
                    publish(all, Cause::Api, within, *now);
                    self.next(self.texts.len(), until(within).or(self.end));
                }
                Step::Same(within) => {
                    all.unchanged(Cause::Signal, within.map(at), at(*now));
                    self.end = self.end.map(|end| until(within).unwrap_or(end));
                }
                Step::Back(which, within) => self.back(all, *now, which, within),
                Step::Confirm => {
                    prop_assert_eq!(all.confirm().is_ok(), self.end.take().is_some());
                    self.good = self.newest();
                }
                Step::Tick(seconds) => {
                    *now += seconds;
                    let due = all.due(at(*now));
                    let wanted = self.end.filter(|end| *now >= *end).map(|_| self.good as u64);
                    prop_assert_eq!(due.as_ref().map(|to| to.generation), wanted);
                    if let Some(to) = due {
                        go_back(all, &to, Cause::Unconfirmed, *now);
                        self.next(self.texts[self.good], None);
                    }
                }
            }
            Ok(())
        }

        fn back(&mut self, all: &mut Generations, now: u64, which: usize, within: Option<u64>) {
            let kept = Arc::clone(all.iter().rev().nth(which).unwrap_or(all.in_force()));
            let text = self.texts[usize::try_from(kept.generation).unwrap()];
            let end = self.end_after(text, within.map(|within| now + within));
            if text == self.texts[self.newest()] {
                all.unchanged(Cause::Rollback, within.map(at), at(now));
                self.end = self.end.and(end);
                if self.end.is_none() {
                    self.good = self.newest();
                }
                return;
            }
            let number = all.in_force().generation + 1;
            let next = self::kept(number, Cause::Rollback, Arc::clone(&kept.config));
            all.published(next, within.map(at), at(now));
            self.next(text, end);
        }
    }

    proptest! {
        // Promise: reload-rollback
        #[test]
        fn only_confirmed_generations_stay(steps in prop::collection::vec(step(), 1..60)) {
            let (mut all, mut now) = (start(), 0);
            let mut model = Model { texts: vec![0], ..Model::default() };
            for step in steps {
                model.step(&mut all, &mut now, &step)?;
                let numbers: Vec<u64> = all.iter().map(|one| one.generation).collect();
                let newest = model.newest() as u64;
                prop_assert_eq!(numbers, (newest.saturating_sub(19)..=newest).collect::<Vec<_>>());
                let pending = all.pending().map(|one| (one.to.generation, one.ends));
                prop_assert_eq!(pending, model.end.map(|end| (model.good as u64, at(end))));
            }
        }
    }
}
