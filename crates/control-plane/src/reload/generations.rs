//! The last generations, and the one that waits for a confirmation.
//!
//! In: what came into force and why; confirmations; the time since the start. Out: what there is to go back to, and when.
//! One rule for all reloads while one waits: each is taken, none confirms, and the end is the first one's unless it is set anew. So
//! nothing but a confirmation keeps what came since the last generation that was confirmed, and an operator ends the wait otherwise
//! only by going back to that one, or behind it.
//! Not here: the way back itself, which is a reload like any other; the file, which stays what it is.
//! Invariant: at most [`AT_MOST`] generations; of their files and backends at most [`BYTES_AT_MOST`], but for the one in force and
//! the one before. Each is whole, so that going back reads no file: with the keys, certificates and lists of prefixes that it had.
//! They are in memory alone, and end with the process.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use config::{Config, Member, Problems, Source};

use super::Cause;
use crate::refused::Refused;

/// A configuration that came into force.
#[derive(Debug)]
pub struct Kept {
    /// Number of the generation.
    pub generation: u64,
    /// When it came into force.
    pub at: SystemTime,
    /// By what.
    pub cause: Cause,
    /// The operator who asked for it by the API; `None`: it did not come by the API.
    pub by: Option<String>,
    /// As it was read.
    pub config: Arc<Config>,
    /// Its warnings.
    pub warnings: Problems,
}

impl Kept {
    /// Bytes of its files, lists of prefixes included.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.config.sources().iter().map(Source::bytes).sum()
    }

    /// Bytes that it takes, about: its files, and the members of flattened pools, of which a short text may make millions.
    fn weight(&self) -> u64 {
        self.bytes() + (self.config.members().count() * size_of::<Member>()) as u64
    }
}

/// A generation that is taken back unless it is confirmed.
#[derive(Clone, Debug)]
pub struct Pending {
    /// What is gone back to.
    pub to: Arc<Kept>,
    /// When, since the start of the process.
    pub ends: Duration,
    /// The way back has begun.
    pub is_returning: bool,
}

/// See the module's header.
#[derive(Debug)]
pub struct Generations {
    /// Oldest first; never empty.
    kept: VecDeque<Arc<Kept>>,
    pending: Option<Pending>,
    /// What a way back has taken out of force: the file may still say it.
    undone: Vec<Arc<Kept>>,
}

impl Generations {
    /// With the generation of the start.
    #[must_use]
    pub fn new(first: Kept) -> Self {
        Self { kept: [Arc::new(first)].into(), pending: None, undone: Vec::new() }
    }

    /// All that are kept, oldest first.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = &Arc<Kept>> {
        self.kept.iter()
    }

    /// The one in force.
    #[must_use]
    pub fn in_force(&self) -> &Arc<Kept> {
        &self.kept[self.kept.len() - 1]
    }

    /// That of this number; without one, the last that was confirmed while one waits, else that before the one in force.
    ///
    /// # Errors
    /// It is not kept.
    pub fn find(&self, generation: Option<u64>) -> Result<&Arc<Kept>, Refused> {
        let found = match (generation, &self.pending) {
            (Some(number), _) => self.kept.iter().find(|kept| kept.generation == number),
            (None, Some(pending)) => Some(&pending.to),
            (None, None) => self.kept.iter().rev().nth(1),
        };
        found.ok_or_else(|| {
            Refused::NotFound(match generation {
                Some(number) => {
                    format!("generation {number} is not kept: `config history` lists those that are")
                }
                None => "there is no generation before the one in force".to_owned(),
            })
        })
    }

    /// `next` has come into force, to be confirmed within `confirm`.
    pub fn published(&mut self, next: Kept, confirm: Option<Duration>, now: Duration) {
        if next.cause.is_way_back() {
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

    /// A reload found in force what it had read: a way back has arrived, if that is what was confirmed; else a confirmation of its own
    /// sets a waiting one's end anew.
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

    /// The generation in force stays; its number.
    ///
    /// # Errors
    /// None waits, or its time is up.
    pub fn confirm(&mut self) -> Result<u64, Refused> {
        match &self.pending {
            None => Err(Refused::Conflict("no reload waits for a confirmation".to_owned())),
            Some(pending) if pending.is_returning => Err(Refused::Conflict(format!(
                "its time is up: the way back to generation {} has begun",
                pending.to.generation
            ))),
            Some(_) => {
                self.pending = None;
                Ok(self.in_force().generation)
            }
        }
    }

    /// What is to be gone back to now: said once, until the way back has ended.
    pub fn due(&mut self, now: Duration) -> Option<Arc<Kept>> {
        let pending = self.pending.as_mut().filter(|pending| !pending.is_returning && now >= pending.ends)?;
        pending.is_returning = true;
        Some(Arc::clone(&pending.to))
    }

    /// The way back was refused: it is tried again.
    pub fn not_returned(&mut self, now: Duration) {
        if let Some(pending) = &mut self.pending {
            (pending.is_returning, pending.ends) = (false, now + AGAIN);
        }
    }

    /// What waits for a confirmation.
    #[must_use]
    pub fn pending(&self) -> Option<&Pending> {
        self.pending.as_ref()
    }

    /// Whether a way back has taken this out of force, and nothing else came since.
    #[must_use]
    pub fn is_undone(&self, config: &Config) -> bool {
        self.undone.iter().any(|kept| config.is_same_text_as(&kept.config))
    }

    /// Whether `next` says again what came before the last generation that was confirmed. Once the way back has begun, that one comes.
    fn is_behind(&self, pending: &Pending, next: &Kept) -> bool {
        let mut waiting = self.kept.iter().filter(|kept| kept.generation > pending.to.generation);
        !pending.is_returning && !waiting.any(|kept| Arc::ptr_eq(&kept.config, &next.config))
    }

    /// Those that came after the last one with this configuration.
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

/// Generations that are kept.
pub const AT_MOST: usize = 20;
/// Of all their files and backends: twenty of 2 MiB, and two of the largest, whatever they take.
pub const BYTES_AT_MOST: u64 = 48 << 20;
/// After a way back that was refused.
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

    /// A configuration that is another for each number; `bytes` of comment make it long.
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

    /// The next generation, of a text of its own.
    fn publish(all: &mut Generations, cause: Cause, confirm: Option<u64>, now: u64) {
        let number = all.in_force().generation + 1;
        all.published(kept(number, cause, config(number, 0)), confirm.map(at), at(now));
    }

    fn go_back(all: &mut Generations, to: &Arc<Kept>, cause: Cause, now: u64) {
        let number = all.in_force().generation + 1;
        all.published(kept(number, cause, Arc::clone(&to.config)), None, at(now));
    }

    #[test]
    fn what_is_not_confirmed_in_time_is_due_once_and_what_is_confirmed_never() {
        let mut all = start();
        publish(&mut all, Cause::Api, Some(300), 10);
        assert!(all.due(at(309)).is_none());
        assert_eq!(all.due(at(310)).map(|to| to.generation), Some(0));
        assert!(all.due(at(311)).is_none() && all.confirm().is_err(), "it has begun");
        let to = Arc::clone(all.find(Some(0)).unwrap());
        go_back(&mut all, &to, Cause::Unconfirmed, 312);
        assert!(all.pending().is_none() && all.due(at(1_000)).is_none());
        assert_eq!(all.in_force().generation, 2);
        publish(&mut all, Cause::Api, Some(300), 400);
        assert_eq!(all.confirm().unwrap(), 3);
        assert!(all.confirm().is_err() && all.due(at(1_000)).is_none());
    }

    #[test]
    fn a_reload_in_between_neither_confirms_nor_moves_the_end_and_one_with_a_time_sets_it_anew() {
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
        assert!(all.pending().is_none(), "the generation before was put back by hand: it has arrived");
    }

    #[test]
    fn nothing_that_comes_once_the_way_back_has_begun_ends_it_and_one_that_fails_is_tried_again() {
        let mut all = start();
        publish(&mut all, Cause::Api, Some(100), 0);
        assert!(all.due(at(100)).is_some());
        // It had waited before.
        publish(&mut all, Cause::Put, Some(500), 101);
        assert!(all.pending().unwrap().is_returning);
        all.not_returned(at(102));
        assert!(all.due(at(111)).is_none() && all.due(at(112)).is_some());
        all.not_returned(at(112));
        assert_eq!(all.confirm().unwrap(), 2, "in between it may still be confirmed");
    }

    #[test]
    fn backends_that_a_short_text_makes_many_of_count_as_its_bytes_do() {
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
    fn a_rollback_ends_the_wait_only_at_what_was_confirmed_or_behind_it() {
        let mut all = start();
        for confirm in [None, Some(100), None] {
            publish(&mut all, Cause::Api, confirm, 0);
        }
        // 0 and 1 were confirmed, 2 and 3 wait.
        assert_eq!(all.find(None).unwrap().generation, 1);
        let [behind, confirmed, waiting] =
            [0, 1, 2].map(|number| Arc::clone(all.find(Some(number)).unwrap()));
        go_back(&mut all, &waiting, Cause::Rollback, 10);
        all.unchanged(Cause::Rollback, None, at(10));
        assert_eq!(all.pending().map(|one| (one.to.generation, one.ends)), Some((1, at(100))));
        // Behind it on trial: the end is another, and what is gone back to is not.
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
        assert!(all.pending().unwrap().is_returning, "it had waited, and goes with the rest");
    }

    #[test]
    fn a_rollback_may_ask_for_a_confirmation_of_its_own() {
        let mut all = start();
        publish(&mut all, Cause::Api, None, 0);
        let to = Arc::clone(all.find(None).unwrap());
        assert_eq!(to.generation, 0);
        all.published(kept(2, Cause::Rollback, Arc::clone(&to.config)), Some(at(60)), at(10));
        assert_eq!(all.pending().map(|one| (one.to.generation, one.ends)), Some((1, at(70))));
    }

    #[test]
    fn all_that_came_since_is_undone_until_something_else_comes() {
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
    fn what_is_large_goes_first_but_for_two() {
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
        /// Which of those that are kept, from the newest.
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

    /// The whole history in the words of the module's header, where generations are numbers.
    #[derive(Default)]
    struct Model {
        /// What each generation says.
        texts: Vec<usize>,
        /// The last one that an operator stood by.
        good: usize,
        end: Option<u64>,
    }

    impl Model {
        fn newest(&self) -> usize {
            self.texts.len() - 1
        }

        /// Another generation, on trial until `end`.
        fn next(&mut self, text: usize, end: Option<u64>) {
            self.texts.push(text);
            self.end = end;
            if end.is_none() {
                self.good = self.newest();
            }
        }

        /// When the wait ends once an operator has gone back to this text.
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
        #[test]
        fn only_what_was_confirmed_stays(steps in prop::collection::vec(step(), 1..60)) {
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
