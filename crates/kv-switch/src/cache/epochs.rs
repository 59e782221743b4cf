//! Write epochs of keys and servers, shared by all packet threads.
//!
//! The [`Epoch`] of a key changes when the key is written through this machine, or when its server
//! may have lost data. The cache does not serve a value that was cached in an older epoch. A thread
//! that has observed the end of a write sees a different epoch than before the write. The epochs
//! are stored in cells, and several keys can share a cell. A write to one key then invalidates the
//! cached values of all keys in the same cell.
//!
//! The value of a cell is the time of the last write. Each write increases the value by at least
//! one. A write is recorded a second time when its answer arrives, before the answer is forwarded.
//! A value that was fetched before a slow write has taken effect is therefore not served. A fetch
//! directly after a write could overtake the write on the way to the server, so a key is not
//! fetched within [`SETTLE_NS`] after a write.

use crate::sync::{AtomicU64, Ordering};

/// The time after a write during which the key is not fetched, in nanoseconds. The write is
/// expected to reach the server within this time.
pub const SETTLE_NS: u64 = 2_000_000;

/// A table of write epochs.
#[derive(Debug)]
pub struct Epochs {
    keys: Box<[AtomicU64]>,
    servers: Box<[AtomicU64]>,
}

/// The write epochs of a key and its server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Epoch {
    key: u64,
    server: u64,
}

impl Epochs {
    /// Creates a table in which no key has been written.
    ///
    /// # Cost
    /// Allocates 8 MiB.
    #[must_use]
    pub fn new() -> Self {
        Self::with_cells(KEY_CELLS, SERVER_CELLS)
    }

    /// Creates a table with `keys` cells for keys and `servers` cells for servers. Both numbers
    /// must be powers of two.
    pub(crate) fn with_cells(keys: usize, servers: usize) -> Self {
        let cells = |count: usize| (0..count).map(|_| AtomicU64::new(0)).collect();
        Self { keys: cells(keys), servers: cells(servers) }
    }

    /// Records that a key with this hash is written, or that the answer to such a write has
    /// arrived. Call this method before the packet is sent.
    #[inline]
    pub fn key_written(&self, now: u64, hash: u64) {
        renew(cell(&self.keys, hash), now);
    }

    /// Records that all values of a server may have changed.
    pub fn server_changed(&self, now: u64, server: u32) {
        renew(cell(&self.servers, server.into()), now);
    }

    /// Loads the cell of a key into the CPU cache.
    #[inline]
    pub(crate) fn load(&self, hash: u64) -> u64 {
        cell(&self.keys, hash).map_or(0, |cell| cell.load(Ordering::Relaxed))
    }

    /// Returns the current epoch of a key on a server.
    #[inline]
    #[must_use]
    pub fn of(&self, hash: u64, server: u32) -> Epoch {
        Epoch { key: read(cell(&self.keys, hash)), server: read(cell(&self.servers, server.into())) }
    }
}

impl Default for Epochs {
    fn default() -> Self {
        Self::new()
    }
}

impl Epoch {
    /// Returns `true` if no key of this cell was written between the two epochs.
    pub(crate) fn is_unwritten_since(&self, earlier: &Self) -> bool {
        self.key == earlier.key
    }

    /// Returns `true` if the last write was at least [`SETTLE_NS`] ago.
    #[inline]
    #[must_use]
    pub fn is_settled(&self, now: u64) -> bool {
        let last = self.key.max(self.server);
        last == 0 || now >= last.saturating_add(SETTLE_NS)
    }
}

fn renew(cell: Option<&AtomicU64>, now: u64) {
    let Some(cell) = cell else { return };
    let now = now.max(1);
    // This Release store pairs with the Acquire load in `read`. A thread that reads the new value
    // sees all memory operations that precede the store.
    if cell.fetch_max(now, Ordering::Release) >= now {
        cell.fetch_add(1, Ordering::Release);
    }
}

#[inline]
fn read(cell: Option<&AtomicU64>) -> u64 {
    cell.map_or(0, |cell| cell.load(Ordering::Acquire)) // Pairs with the Release store in `renew`.
}

#[inline]
fn cell(cells: &[AtomicU64], number: u64) -> Option<&AtomicU64> {
    #[expect(clippy::cast_possible_truncation, reason = "the mask limits the value to the length")]
    let place = number as usize & cells.len().wrapping_sub(1);
    cells.get(place)
}

const KEY_CELLS: usize = 1 << 20;
const SERVER_CELLS: usize = 1 << 12;

#[cfg(all(test, loom))]
mod tests {
    use loom::sync::Arc;

    use super::*;

    const KEY: u64 = 3;

    /// In every interleaving, a thread that has received the acknowledgment of a write never serves
    /// a value fetched before the write.
    #[test]
    fn epochs_acknowledged_write_ends_older_copies() {
        loom::model(|| {
            let shared = Arc::new((Epochs::with_cells(1, 1), AtomicU64::new(0), AtomicU64::new(0)));
            let writer = Arc::clone(&shared);
            let writes = loom::thread::spawn(move || {
                let (epochs, server, acknowledged) = &*writer;
                epochs.key_written(5, KEY);
                server.store(1, Ordering::Release);
                acknowledged.store(1, Ordering::Release);
            });
            let (epochs, server, acknowledged) = &*shared;
            let noted = epochs.of(KEY, 0);
            if noted.is_settled(6) {
                let fetched = server.load(Ordering::Acquire);
                let heard = acknowledged.load(Ordering::Acquire) == 1;
                let serves = epochs.of(KEY, 0) == noted;
                assert!(!(heard && serves && fetched == 0), "an outdated value is served");
            }
            writes.join().unwrap();
        });
    }

    /// In every interleaving, a thread that has received the answer to a write, which the epochs
    /// record, never serves a value fetched before the write. This guarantee does not depend on the
    /// settling time, so it also holds for slow writes.
    #[test]
    fn epochs_recorded_answer_of_slow_write_ends_older_copies() {
        loom::model(|| {
            let shared = Arc::new((Epochs::with_cells(1, 1), AtomicU64::new(0), AtomicU64::new(0)));
            shared.0.key_written(5, KEY); // the write is on its way to the server
            let writer = Arc::clone(&shared);
            let writes = loom::thread::spawn(move || {
                let (epochs, server, acknowledged) = &*writer;
                server.store(1, Ordering::Release);
                epochs.key_written(5, KEY);
                acknowledged.store(1, Ordering::Release);
            });
            let (epochs, server, acknowledged) = &*shared;
            let noted = epochs.of(KEY, 0);
            let fetched = server.load(Ordering::Acquire);
            let heard = acknowledged.load(Ordering::Acquire) == 1;
            let serves = epochs.of(KEY, 0) == noted;
            assert!(!(heard && serves && fetched == 0), "an outdated value is served");
            writes.join().unwrap();
        });
    }

    /// In every interleaving, two concurrent writes result in two new epochs.
    #[test]
    fn each_write_leaves_another_generation() {
        loom::model(|| {
            let epochs = Arc::new(Epochs::with_cells(1, 1));
            let other = Arc::clone(&epochs);
            let writes = loom::thread::spawn(move || other.key_written(5, KEY));
            let before = epochs.of(KEY, 0);
            epochs.key_written(5, KEY);
            let between = epochs.of(KEY, 0);
            writes.join().unwrap();
            let after = epochs.of(KEY, 0);
            assert!(before != between && after == Epoch { key: 6, server: 0 });
        });
    }
}
