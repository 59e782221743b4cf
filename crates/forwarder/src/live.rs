//! Publishes snapshots from the control plane to the packet threads. A snapshot is always replaced
//! as a whole. Only the publisher frees snapshots: replaced snapshots stay in `retired` until no
//! reader uses them.

use std::sync::{Arc, Mutex, PoisonError};

use arc_swap::{ArcSwap, Cache};

use crate::{Snapshot, WallClock};

/// The current snapshot, shared between the control plane and the packet threads. Clones share the
/// same state.
#[derive(Clone, Debug)]
pub struct Live(Shared);

/// Dereferences to the `ArcSwap` in [`Inner`], as `Cache` requires.
#[derive(Clone, Debug)]
struct Shared(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    current: ArcSwap<Snapshot>,
    retired: Mutex<Vec<Arc<Snapshot>>>,
    clock: WallClock,
}

impl Live {
    /// Creates the shared state with the first snapshot.
    #[must_use]
    pub fn new(first: Snapshot) -> Self {
        let retired = Mutex::new(Vec::new());
        let (current, clock) = (ArcSwap::from_pointee(first), WallClock::default());
        Self(Shared(Arc::new(Inner { current, retired, clock })))
    }

    /// Replaces the current snapshot. Packet threads finish the current batch with the old snapshot
    /// and use the new snapshot from the next batch on. A later call to `publish` or
    /// [`Live::reclaim`] frees the old snapshot once no thread uses it.
    pub fn publish(&self, next: Snapshot) {
        let old = self.0.0.current.swap(Arc::new(next));
        let mut retired = self.0.0.retired.lock().unwrap_or_else(PoisonError::into_inner);
        retired.push(old);
        retired.retain(still_read);
    }

    /// Frees replaced snapshots that no thread uses anymore. Returns the number of replaced
    /// snapshots that are still in use.
    pub fn reclaim(&self) -> usize {
        let mut retired = self.0.0.retired.lock().unwrap_or_else(PoisonError::into_inner);
        retired.retain(still_read);
        retired.len()
    }

    /// Returns the current snapshot. Only the control plane should call this method.
    #[must_use]
    pub fn current(&self) -> Arc<Snapshot> {
        self.0.0.current.load_full()
    }

    /// Returns the clock with the time of day. Packet threads do not read the system time, so the
    /// control plane updates this clock several times a minute.
    #[must_use]
    pub fn clock(&self) -> &WallClock {
        &self.0.0.clock
    }

    /// Creates a reader for one packet thread.
    #[must_use]
    pub fn reader(&self) -> Reader {
        Reader(Cache::new(self.0.clone()))
    }
}

/// A packet thread's access to the current snapshot.
#[derive(Debug)]
pub struct Reader(Cache<Shared, Arc<Snapshot>>);

impl std::ops::Deref for Shared {
    type Target = ArcSwap<Snapshot>;
    fn deref(&self) -> &Self::Target {
        &self.0.current
    }
}

impl Reader {
    /// Returns the current snapshot.
    ///
    /// # Cost
    /// One atomic load if no snapshot was published since the last call.
    #[inline]
    pub fn load(&mut self) -> &Arc<Snapshot> {
        self.0.load()
    }
}

/// Returns `true` if a reader still uses the snapshot. `retired` holds one reference, so all other
/// references belong to readers. Readers cannot obtain new references, because the snapshot is no
/// longer current.
fn still_read(snapshot: &Arc<Snapshot>) -> bool {
    Arc::strong_count(snapshot) > 1
}
