//! Counts the flows of each backend and service when an API client requests the counts.
//!
//! A count that is younger than [`FRESH`] is reused for further requests, and at most one count
//! runs at a time. Packet threads count flows only on request. If the packet threads do not reply
//! within [`PATIENCE`], the API response has no flow counts. A count that began before the last
//! override is discarded. `control_plane::questions` walks the connection tables.

use std::fmt::{self, Debug, Formatter};
use std::time::{Duration, Instant};

use compile::Index;
use control_plane::FlowCounts;
use control_plane::questions::Client;
use forwarder::Snapshot;

use super::loop_tasks::Handle;
use super::{Daemon, Inspections};

type Question = Box<dyn FnOnce(&mut Daemon)>;

/// The last count, and the requests that wait for the running count.
#[derive(Default)]
pub(super) struct Counting {
    last: Option<(FlowCounts, Instant)>,
    begun: bool,
    /// `true` if an override was set after the running count had begun.
    outdated: bool,
    waiting: Vec<Question>,
}

impl Counting {
    /// Returns the last count, or `None` if it is too old.
    pub(super) fn recent(&self) -> Option<&FlowCounts> {
        self.last.as_ref().filter(|(_, at)| at.elapsed() < FRESH + PATIENCE).map(|(counts, _)| counts)
    }

    /// Discards the last count, because an override changes the backends of new flows.
    pub(super) fn forget(&mut self) {
        (self.last, self.outdated) = (None, self.begun);
    }

    fn is_fresh(&self) -> bool {
        self.last.as_ref().is_some_and(|(_, at)| at.elapsed() < FRESH)
    }
}

impl Daemon {
    /// Calls `question` as soon as the flow counts are recent enough.
    pub(super) fn when_counted(&mut self, question: impl FnOnce(&mut Self) + 'static) {
        let counting = &mut self.inspections.counting;
        if counting.is_fresh() {
            return question(self);
        }
        counting.waiting.push(Box::new(question));
        self.count();
        if self.inspections.counting.waiting.len() == 1 {
            let daemon = self.tasks.handle();
            tokio::spawn(async move {
                tokio::time::sleep(PATIENCE).await;
                daemon.send(Self::answer_those_who_wait);
            });
        }
    }

    /// Starts a count, unless one is already running.
    fn count(&mut self) {
        let Inspections { counting, questions, .. } = &mut self.inspections;
        if !std::mem::replace(&mut counting.begun, true) {
            questions.count(Box::new(Counted(self.tasks.handle())));
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

/// Receives the flow counts and sends them to the control loop.
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

/// The maximum age of a count that is reused for further requests.
const FRESH: Duration = Duration::from_secs(1);
/// The time limit for a count. This limit is longer than the time to walk a connection table with
/// 16 million flows.
const PATIENCE: Duration = Duration::from_secs(1);
