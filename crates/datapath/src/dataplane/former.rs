//! Connection tables that are no thread's of this process: those of another one whose threads are others than this one's, with which
//! come flows, not queues one by one; and those that it had in that way itself.
//!
//! In: each table as it comes. Out: all of them, for every packet thread to ask ([`Former`]); in records, for the next process.
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
}

/// A table that comes from the process before, which has it from another one.
#[derive(Debug)]
pub(super) struct Expected {
    /// Places.
    capacity: usize,
    /// Once a flow of it has come.
    table: Option<FlowTable>,
}

impl Expected {
    pub(super) fn with_capacity(capacity: usize) -> Self {
        Self { capacity, table: None }
    }
}

/// Tables that threads ask.
#[derive(Debug)]
pub(super) struct Shared {
    flows: Arc<Former>,
    /// By then no flow in them is live.
    until: Now,
}

impl DataPlane {
    /// Where the flows go of the table with this number, from 0, among those that the other process asks on a miss; it takes no memory
    /// before. `None`: there is none with that number, or no memory for it.
    pub fn former_table(&mut self, number: usize) -> Option<&mut FlowTable> {
        let Expected { capacity, table } = self.handover.expected.get_mut(number)?;
        if table.is_none() {
            let config = FlowConfig { capacity: *capacity, timeouts: self.settings.timeouts };
            *table = FlowTable::new_advised(&config, advise_large_pages).ok();
        }
        table.as_mut()
    }

    /// The flows of those tables are there: every packet thread is to ask them, now or, where flows of the other process's threads come
    /// to it too, with these.
    pub fn former_tables_are_there(&mut self) {
        if self.handover.gathered.is_none() {
            self.share(Vec::new());
        }
    }

    /// Every packet thread that waits for its queues is to ask for the flows of those that have gone.
    pub(super) fn share_gathered(&mut self, gathered: Gathered) {
        self.share(gathered.tables.into_values().collect());
    }

    /// Shares these and those that were expected; what had no flow has no table.
    fn share(&mut self, mut tables: Vec<FlowTable>) {
        let expected = std::mem::take(&mut self.handover.expected);
        tables.extend(expected.into_iter().filter_map(|expected| expected.table));
        if tables.is_empty() {
            return;
        }
        let longest = u64::try_from(self.settings.timeouts.longest().as_nanos()).unwrap_or(u64::MAX);
        let until = Now::from_nanos(self.now().nanos().saturating_add(longest).saturating_add(A_TICK));
        self.handover.former = Some(Shared { flows: Arc::new(Former::new(tables)), until });
        self.ask_former();
    }

    /// Has every packet thread that waits for its queues ask the tables that are shared, if there are some.
    pub(super) fn ask_former(&mut self) {
        if let (Some(prepared), Some(Shared { flows, until })) =
            (&mut self.handover.prepared, &self.handover.former)
        {
            for pipeline in prepared.pipelines() {
                pipeline.ask_former(Arc::clone(flows), *until);
            }
        }
    }

    /// Tables in which flows are looked for that no thread's own table has, and for how long yet.
    #[must_use]
    pub fn former(&self) -> Option<(Arc<Former>, Duration)> {
        let Shared { flows, until } = self.handover.former.as_ref()?;
        let left = until.nanos().saturating_sub(self.now().nanos());
        Some((Arc::clone(flows), Duration::from_nanos(left)))
    }

    /// Frees the tables once no thread asks any more.
    pub(super) fn free_former(&mut self) {
        let now = self.now();
        let is_over = |shared: &mut Shared| shared.until < now && Arc::strong_count(&shared.flows) == 1;
        self.handover.former.take_if(is_over);
    }
}

/// More than flows are live after their time-out: two ticks.
const A_TICK: u64 = 500_000_000;
