//! Flows of each backend and service, counted when somebody asks.
//!
//! In: questions that need a count. Out: each is answered from one that is younger than [`FRESH`], of which one at a time is under
//! way; where packet threads do not answer within [`PATIENCE`], without.
//! Not here: how a table is walked (`control_plane::questions`), rows.
//! Invariant: nobody asks, nothing is counted; no answer has a count that began before the last order.

use std::fmt::{self, Debug, Formatter};
use std::time::{Duration, Instant};

use compile::Index;
use control_plane::FlowCounts;
use control_plane::questions::Client;
use forwarder::Snapshot;

use super::turns::Handle;
use super::{Daemon, Inspections};

type Question = Box<dyn FnOnce(&mut Daemon)>;

/// The last count, and who waits for the next.
#[derive(Default)]
pub(super) struct Counting {
    last: Option<(FlowCounts, Instant)>,
    /// A count is under way.
    begun: bool,
    /// The one under way began before the last order.
    outdated: bool,
    waiting: Vec<Question>,
}

impl Counting {
    /// What was counted not long ago.
    pub(super) fn recent(&self) -> Option<&FlowCounts> {
        self.last.as_ref().filter(|(_, at)| at.elapsed() < FRESH + PATIENCE).map(|(counts, _)| counts)
    }

    /// An order changes who gets new flows: what was counted before it says nothing about what is left.
    pub(super) fn forget(&mut self) {
        (self.last, self.outdated) = (None, self.begun);
    }

    fn is_fresh(&self) -> bool {
        self.last.as_ref().is_some_and(|(_, at)| at.elapsed() < FRESH)
    }
}

impl Daemon {
    /// Runs `question` when flows have been counted, at once where they just were.
    pub(super) fn when_counted(&mut self, question: impl FnOnce(&mut Self) + 'static) {
        let counting = &mut self.inspections.counting;
        if counting.is_fresh() {
            return question(self);
        }
        counting.waiting.push(Box::new(question));
        self.count();
        if self.inspections.counting.waiting.len() == 1 {
            let daemon = self.turns.handle();
            tokio::spawn(async move {
                tokio::time::sleep(PATIENCE).await;
                daemon.send(Self::answer_those_who_wait);
            });
        }
    }

    /// Begins a count, unless one is under way.
    fn count(&mut self) {
        let Inspections { counting, questions, .. } = &mut self.inspections;
        if !std::mem::replace(&mut counting.begun, true) {
            questions.count(Box::new(Counted(self.turns.handle())));
        }
    }

    fn take_counts(&mut self, counts: FlowCounts) {
        let counting = &mut self.inspections.counting;
        counting.begun = false;
        if !std::mem::take(&mut counting.outdated) {
            counting.last = Some((counts, Instant::now()));
            self.answer_those_who_wait();
        } else if !counting.waiting.is_empty() {
            self.count();
        }
    }

    fn answer_those_who_wait(&mut self) {
        for question in std::mem::take(&mut self.inspections.counting.waiting) {
            question(self);
        }
    }
}

/// Brings a count to the loop.
struct Counted(Handle<Daemon>);

impl Debug for Counted {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str("Counted")
    }
}

impl Client<FlowCounts> for Counted {
    fn has_gone(&self) -> bool {
        false
    }

    fn answer(self: Box<Self>, found: FlowCounts, _: &Snapshot, _: &Index) {
        self.0.send(move |daemon| daemon.take_counts(found));
    }
}

/// Two who ask within this time have the same count.
const FRESH: Duration = Duration::from_secs(1);
/// A table of 16 million flows is walked in less.
const PATIENCE: Duration = Duration::from_secs(1);
