//! Connection tables from previous processes that no thread of this process owns. Such tables exist
//! after a handover between processes with different numbers of threads: packets of a transferred
//! flow can then arrive on any thread.
//!
//! The tables are collected during the handover. Afterwards every packet thread looks up unknown
//! flows in them ([`PreviousTables`]). As soon as a thread has built an index of all flows, the
//! index selects the one table to search. In the next handover, the flows of these tables are
//! transferred one by one, like all other flows.
//!
//! Invariant: this module keeps the tables until no thread uses them, and then frees them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use forwarder::{FlowConfig, FlowTable, Now, PreviousTables, ThreadId};

use super::DataPlane;
use crate::large_pages::advise_large_pages;

/// The connection tables that the threads of the previous process are transferring.
#[derive(Debug)]
pub(super) struct Gathered {
    /// The settings for each of these tables.
    config: FlowConfig,
    /// The number of threads in the previous process that are still running.
    left: u16,
    tables: BTreeMap<u16, FlowTable>,
}

impl Gathered {
    /// Prepares to receive the connection tables of `threads` threads.
    pub(super) fn new(threads: u16, config: FlowConfig) -> Self {
        Self { config, left: threads, tables: BTreeMap::new() }
    }

    /// Returns the table for a thread of the previous process. The table is created empty at the
    /// first call. Returns `None` if memory for the table cannot be allocated.
    pub(super) fn table(&mut self, thread: ThreadId) -> Option<&mut FlowTable> {
        if !self.tables.contains_key(&thread.0) {
            let table = FlowTable::new_advised(&self.config, advise_large_pages).ok()?;
            self.tables.insert(thread.0, table);
        }
        self.tables.get_mut(&thread.0)
    }

    /// Records that the tables of `gone` more threads have been received. Returns `true` if the
    /// tables of all threads have been received.
    pub(super) fn has_all_after(&mut self, gone: usize) -> bool {
        self.left = self.left.saturating_sub(u16::try_from(gone).unwrap_or(u16::MAX));
        self.left == 0
    }
}

/// A connection table that the previous process received from an earlier process and passes on to
/// this process.
#[derive(Debug)]
pub(super) struct Expected {
    /// The capacity of the table in flows.
    capacity: usize,
    /// The table, or `None` before its first flow is received.
    table: Option<FlowTable>,
}

impl Expected {
    pub(super) fn with_capacity(capacity: usize) -> Self {
        Self { capacity, table: None }
    }
}

/// The tables in which all threads look up unknown flows.
#[derive(Debug)]
pub(super) struct Shared {
    flows: Arc<PreviousTables>,
    /// The time after which every flow in the tables has expired.
    until: Now,
}

impl DataPlane {
    /// Returns one of the tables that the previous process received from earlier processes.
    /// `number` is the index of the table among these tables. The caller adds the transferred flows
    /// to the table. The memory is allocated at the first call. Returns `None` if the table does
    /// not exist, or if memory cannot be allocated.
    pub fn previous_table(&mut self, number: usize) -> Option<&mut FlowTable> {
        let Expected { capacity, table } = self.handover.expected.get_mut(number)?;
        if table.is_none() {
            let config = FlowConfig { capacity: *capacity, timeouts: self.settings.timeouts };
            *table = FlowTable::new_advised(&config, advise_large_pages).ok();
        }
        table.as_mut()
    }

    /// Ends the transfer of the tables that [`DataPlane::previous_table`] returned. Every packet
    /// thread looks up unknown flows in these tables from now on. If the previous process is also
    /// transferring its own tables, packet threads use all these tables once that transfer ends.
    pub fn previous_tables_exist(&mut self) {
        if self.handover.gathered.is_none() {
            self.share(Vec::new());
        }
    }

    /// Makes the packet threads look up unknown flows in the tables in `gathered`. The threads must
    /// still be waiting for their queues when this method is called.
    pub(super) fn share_gathered(&mut self, gathered: Gathered) {
        self.share(gathered.tables.into_values().collect());
    }

    /// Shares the given tables and the tables in `expected` with the threads. A table in `expected`
    /// is skipped if it received no flows.
    fn share(&mut self, mut tables: Vec<FlowTable>) {
        let expected = std::mem::take(&mut self.handover.expected);
        tables.extend(expected.into_iter().filter_map(|expected| expected.table));
        if tables.is_empty() {
            return;
        }
        let longest = u64::try_from(self.settings.timeouts.longest().as_nanos()).unwrap_or(u64::MAX);
        let until = Now::from_nanos(self.now().nanos().saturating_add(longest).saturating_add(A_TICK));
        let flows = Arc::new(PreviousTables::new(tables));
        // The threads start without the index, so that no queue has to wait for it.
        let indexed = Arc::clone(&flows);
        let build = move || indexed.build_index();
        if std::thread::Builder::new().name("flow index".into()).spawn(build).is_err() {
            flows.build_index();
        }
        self.handover.previous = Some(Shared { flows, until });
        self.use_previous_tables();
    }

    /// Makes the packet threads look up unknown flows in the shared tables, if such tables exist.
    /// The threads must still be waiting for their queues.
    pub(super) fn use_previous_tables(&mut self) {
        if let (Some(prepared), Some(Shared { flows, until })) =
            (&mut self.handover.prepared, &self.handover.previous)
        {
            for pipeline in prepared.pipelines() {
                pipeline.use_previous_tables(Arc::clone(flows), *until);
            }
        }
    }

    /// Returns the shared tables of previous processes, and how long they are still needed.
    #[must_use]
    pub fn previous(&self) -> Option<(Arc<PreviousTables>, Duration)> {
        let Shared { flows, until } = self.handover.previous.as_ref()?;
        let left = until.nanos().saturating_sub(self.now().nanos());
        Some((Arc::clone(flows), Duration::from_nanos(left)))
    }

    /// Frees the shared tables once they have expired and no thread uses them.
    pub(super) fn free_previous(&mut self) {
        let now = self.now();
        let is_over = |shared: &mut Shared| shared.until < now && Arc::strong_count(&shared.flows) == 1;
        self.handover.previous.take_if(is_over);
    }
}

/// A safety margin after the longest timeout, in nanoseconds: two ticks of 250 ms.
const A_TICK: u64 = 500_000_000;
