//! The connection tables of another process whose threads are others than this one's: with them come flows, not queues one by one.
//!
//! In: each table as it comes. Out: all of them, for every packet thread to ask ([`Former`]).
//! Not here: who asks and when (`forwarder`), which process has which threads (`handover`).
//! Invariant: this has the tables for longer than any thread, and frees them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use forwarder::{FlowConfig, FlowTable, Former, Now, ThreadId};

use super::DataPlane;
use crate::large_pages::advise_large_pages;

/// Tables on their way in.
#[derive(Debug)]
pub(super) struct Gathered {
    /// What each is made of.
    config: FlowConfig,
    /// Threads that are there still.
    left: u16,
    tables: BTreeMap<u16, FlowTable>,
}

impl Gathered {
    /// Of so many threads.
    pub(super) fn new(threads: u16, config: FlowConfig) -> Self {
        Self { config, left: threads, tables: BTreeMap::new() }
    }

    /// The one of this thread, empty at first. `None`: there is no memory for it.
    pub(super) fn table(&mut self, thread: ThreadId) -> Option<&mut FlowTable> {
        if !self.tables.contains_key(&thread.0) {
            let table = FlowTable::new_advised(&self.config, advise_large_pages).ok()?;
            self.tables.insert(thread.0, table);
        }
        self.tables.get_mut(&thread.0)
    }

    /// Notes that so many threads have gone, and their tables have come; whether all have.
    pub(super) fn has_all_after(&mut self, gone: usize) -> bool {
        self.left = self.left.saturating_sub(u16::try_from(gone).unwrap_or(u16::MAX));
        self.left == 0
    }

    /// How long flows can be live in it.
    pub(super) fn longest(&self) -> Duration {
        self.config.timeouts.longest()
    }

    pub(super) fn flows(self) -> Arc<Former> {
        Arc::new(Former::new(self.tables.into_values().collect()))
    }
}

impl DataPlane {
    /// Every packet thread that waits for its queues is to ask for the flows of those that have gone.
    pub(super) fn share_former(&mut self, gathered: Gathered) {
        let until = self
            .now()
            .nanos()
            .saturating_add(u64::try_from(gathered.longest().as_nanos()).unwrap_or(u64::MAX));
        let flows = gathered.flows();
        if let Some(prepared) = &mut self.handover.prepared {
            for pipeline in prepared.pipelines() {
                pipeline.ask_former(Arc::clone(&flows), Now::from_nanos(until.saturating_add(A_TICK)));
            }
        }
        self.handover.former = Some(flows);
    }

    /// Whether flows are looked for in tables of another process, which would be lost with this one.
    #[must_use]
    pub fn has_former(&self) -> bool {
        self.handover.former.is_some()
    }

    /// Frees the tables once no thread asks any more.
    pub(super) fn free_former(&mut self) {
        self.handover.former.take_if(|flows| Arc::strong_count(flows) == 1);
    }
}

/// More than flows are live after their time-out: two ticks.
const A_TICK: u64 = 500_000_000;
