//! The only interface between the planes: control publishes a whole generation, packet threads read it.
//!
//! Invariant: a snapshot is freed on the publisher's side. Replaced ones wait in `retired` until no reader holds them.

use std::sync::{Arc, Mutex, PoisonError};

use arc_swap::{ArcSwap, Cache};

use crate::{Snapshot, WallClock};

/// The current snapshot, shared by everyone. Clones share it.
#[derive(Clone, Debug)]
pub struct Live(Shared);

/// A handle on [`Inner`] that looks like its `ArcSwap`, as `Cache` wants it.
#[derive(Clone, Debug)]
struct Shared(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    current: ArcSwap<Snapshot>,
    retired: Mutex<Vec<Arc<Snapshot>>>,
    clock: WallClock,
}

impl Live {
    /// Starts with `first`.
    #[must_use]
    pub fn new(first: Snapshot) -> Self {
        let retired = Mutex::new(Vec::new());
        let (current, clock) = (ArcSwap::from_pointee(first), WallClock::default());
        Self(Shared(Arc::new(Inner { current, retired, clock })))
    }

    /// Makes `next` the truth. Packet threads see it at their next batch; packets in flight finish under the old one,
    /// which is freed here, at a later `publish` or [`Live::reclaim`], once the last thread has moved on.
    pub fn publish(&self, next: Snapshot) {
        let old = self.0.0.current.swap(Arc::new(next));
        let mut retired = self.0.0.retired.lock().unwrap_or_else(PoisonError::into_inner);
        retired.push(old);
        retired.retain(still_read);
    }

    /// Frees the replaced snapshots that nobody reads any more; gives how many are left.
    pub fn reclaim(&self) -> usize {
        let mut retired = self.0.0.retired.lock().unwrap_or_else(PoisonError::into_inner);
        retired.retain(still_read);
        retired.len()
    }

    /// The current snapshot, for the control plane.
    #[must_use]
    pub fn current(&self) -> Arc<Snapshot> {
        self.0.0.current.load_full()
    }

    /// The time of day, for the packet threads that have none: the control plane sets it several times a minute.
    #[must_use]
    pub fn clock(&self) -> &WallClock {
        &self.0.0.clock
    }

    /// A thread's own view.
    #[must_use]
    pub fn reader(&self) -> Reader {
        Reader(Cache::new(self.0.clone()))
    }
}

/// A packet thread's view of [`Live`].
#[derive(Debug)]
pub struct Reader(Cache<Shared, Arc<Snapshot>>);

impl std::ops::Deref for Shared {
    type Target = ArcSwap<Snapshot>;
    fn deref(&self) -> &Self::Target {
        &self.0.current
    }
}

impl Reader {
    /// The current snapshot.
    ///
    /// # Cost
    /// One atomic load when nothing was published since the last call.
    #[inline]
    pub fn load(&mut self) -> &Arc<Snapshot> {
        self.0.load()
    }
}

/// `retired` holds one count; a second one is a reader that has not moved on. Nobody can take a new one, since the
/// snapshot is no longer current.
fn still_read(snapshot: &Arc<Snapshot>) -> bool {
    Arc::strong_count(snapshot) > 1
}
