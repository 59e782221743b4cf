//! Connection tables that are no thread's of this process: those of another one whose threads are others than this one's, with which
//! come flows, not queues one by one; and those that it had in that way itself.
//!
//! In: each table as it comes. Out: all of them, for every packet thread to ask ([`Former`]); in records, for the next process.
//! Not here: who asks and when (`forwarder`), which process has which threads (`handover`).
//! Invariant: this has the tables for longer than any thread, and frees them.

use std::collections::BTreeMap;
use std::sync::Arc;

use forwarder::{FlowConfig, FlowTable, Former, Now, ThreadId};

use super::DataPlane;
use crate::error::StartError;
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

/// Tables that threads ask.
#[derive(Debug)]
pub(super) struct Shared {
    flows: Arc<Former>,
    /// By then no flow in them is live.
    until: Now,
}

impl DataPlane {
    /// Makes room for tables that the other process asks itself.
    pub(super) fn expect_former(&mut self, capacities: &[usize]) -> Result<(), StartError> {
        let timeouts = self.settings.timeouts;
        let of_capacity = |&capacity: &usize| {
            let table = FlowTable::new_advised(&FlowConfig { capacity, timeouts }, advise_large_pages);
            table.map_err(|error| StartError::Tables(error.to_string()))
        };
        self.handover.expected = capacities.iter().map(of_capacity).collect::<Result<_, _>>()?;
        Ok(())
    }

    /// The tables that the other process asks itself, each for what it has of them.
    pub fn former_tables(&mut self) -> impl Iterator<Item = &mut FlowTable> {
        self.handover.expected.iter_mut()
    }

    /// Those tables are full; every packet thread is to ask them, now or, where flows of the other process's threads come to it too,
    /// with these.
    pub fn former_tables_are_there(&mut self) {
        if self.handover.gathered.is_none() {
            let tables = std::mem::take(&mut self.handover.expected);
            self.share(tables);
        }
    }

    /// Every packet thread that waits for its queues is to ask for the flows of those that have gone.
    pub(super) fn share_gathered(&mut self, gathered: Gathered) {
        let mut tables = std::mem::take(&mut self.handover.expected);
        tables.extend(gathered.tables.into_values());
        self.share(tables);
    }

    fn share(&mut self, tables: Vec<FlowTable>) {
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

    /// Tables in which flows are looked for that no thread's own table has.
    #[must_use]
    pub fn former(&self) -> Option<Arc<Former>> {
        self.handover.former.as_ref().map(|shared| Arc::clone(&shared.flows))
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
