//! Flows of packet threads that another process had, asked on a miss until they have idled out.
//!
//! In: their tables, shared by all threads. Out: what the connection table would have said. Not here: where they come from (`datapath`).
//! Invariant: this thread is never the last to let go of them, so that it frees nothing: who gave them to it has them for longer.

use std::sync::Arc;

use conntrack::{Entry, Former, Hit, Signal};

use super::state::Batch;
use super::{Core, Pipeline};
use crate::Now;

/// Until when they can be live.
#[derive(Debug)]
pub(super) struct FormerFlows {
    flows: Arc<Former>,
    until: Now,
}

impl Pipeline {
    /// Has it ask for flows that its connection table does not know, before Maglev, up to `until`: the longest time-out after their
    /// last packet. Before the first packet.
    pub fn ask_former(&mut self, flows: Arc<Former>, until: Now) {
        self.core.former = Some(FormerFlows { flows, until });
    }
}

impl Core {
    /// Once a batch.
    #[inline]
    pub(super) fn look_at_former(&mut self, now: Now) {
        if self.former.as_ref().is_some_and(|former| former.until < now) {
            self.former = None;
        }
    }

    /// What was found, else what a former thread knew; the flow is this thread's then.
    #[inline(always)]
    pub(super) fn or_former(
        &mut self,
        hit: Option<Hit>,
        key: u64,
        signal: Signal,
        batch: &Batch<'_>,
    ) -> Option<Hit> {
        match &self.former {
            Some(former) if hit.is_none() => self.flows.adopt(&former.flows, key, signal, batch.tick),
            _ => hit,
        }
    }

    /// The flow, unchanged and uncounted.
    pub(super) fn peek_flow(&self, key: u64, batch: &Batch<'_>) -> Option<Entry> {
        let former = || self.former.as_ref()?.flows.peek(key, batch.tick);
        self.flows.peek(key, batch.tick).or_else(former)
    }
}
