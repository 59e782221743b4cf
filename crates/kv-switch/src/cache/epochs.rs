//! When each key was last written through this machine, and when each server last lost what it had: shared by all packet threads.
//!
//! In: hashes of keys, numbers of servers, the time in nanoseconds. Out: an [`Epoch`], to be compared with a later one.
//! Not here: copies, leases, which requests write.
//! Invariant: an epoch that was noted before a write is another afterwards, on every thread that has heard of the write's end.
//! Keys that share a cell empty each other's copies, and nothing else.
//!
//! A write whose answer passes by is noted once more, before that is sent on: what was fetched before is never served after it, however
//! long the write was on its way, and what is fetched after it the server read when it had carried the write out.
//! A cell holds the time of the last write, or one more than it held where that is as late: it never stands still at a write, and
//! says how long ago that was. A fetch that leaves right behind a write may overtake it on the way to the server and bring back
//! the value before it: nothing is fetched within [`SETTLE_NS`].

use crate::sync::{AtomicU64, Ordering};

/// Nanoseconds after a write in which its key is not asked for: as long as writes take to their server.
pub const SETTLE_NS: u64 = 2_000_000;

/// The table.
#[derive(Debug)]
pub struct Epochs {
    keys: Box<[AtomicU64]>,
    servers: Box<[AtomicU64]>,
}

/// The state of a key and of its server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Epoch {
    key: u64,
    server: u64,
}

impl Epochs {
    /// No key was written.
    ///
    /// # Cost
    /// 8 MiB.
    #[must_use]
    pub fn new() -> Self {
        Self::with_cells(KEY_CELLS, SERVER_CELLS)
    }

    /// Numbers of cells: powers of two.
    pub(crate) fn with_cells(keys: usize, servers: usize) -> Self {
        let cells = |count: usize| (0..count).map(|_| AtomicU64::new(0)).collect();
        Self { keys: cells(keys), servers: cells(servers) }
    }

    /// A write of a key with this hash comes by, or its answer: to be called before it leaves.
    #[inline]
    pub fn key_written(&self, now: u64, hash: u64) {
        renew(cell(&self.keys, hash), now);
    }

    /// A server may have other values than it had, for any key.
    pub fn server_changed(&self, now: u64, server: u32) {
        renew(cell(&self.servers, server.into()), now);
    }

    /// Loads the cell of a key.
    #[inline]
    pub(crate) fn load(&self, hash: u64) -> u64 {
        cell(&self.keys, hash).map_or(0, |cell| cell.load(Ordering::Relaxed))
    }

    /// The state now.
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
    /// Whether the last write has reached its server by now, as far as time says.
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
    // Release pairs with the Acquire of `read`: who sees the new number sees what was done before the write came by.
    if cell.fetch_max(now, Ordering::Release) >= now {
        cell.fetch_add(1, Ordering::Release);
    }
}

#[inline]
fn read(cell: Option<&AtomicU64>) -> u64 {
    cell.map_or(0, |cell| cell.load(Ordering::Acquire)) // pairs with the Release of `renew`
}

#[inline]
fn cell(cells: &[AtomicU64], number: u64) -> Option<&AtomicU64> {
    #[expect(clippy::cast_possible_truncation, reason = "the mask keeps what fits")]
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

    /// In every interleaving: a thread that has heard that a write was acknowledged serves nothing that it fetched before the write.
    #[test]
    fn nothing_fetched_before_a_write_is_served_after_its_acknowledgement() {
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
                assert!(!(heard && serves && fetched == 0), "an old value is served");
            }
            writes.join().unwrap();
        });
    }

    /// In every interleaving, of a write however slow: a thread that has heard the answer, which was noted before it was sent on, serves
    /// nothing that it fetched before the write, and needs no time to settle.
    #[test]
    fn nothing_fetched_before_a_slow_write_is_served_after_an_answer_that_was_noted() {
        loom::model(|| {
            let shared = Arc::new((Epochs::with_cells(1, 1), AtomicU64::new(0), AtomicU64::new(0)));
            shared.0.key_written(5, KEY); // it came by, and is on its way
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
            assert!(!(heard && serves && fetched == 0), "an old value is served");
            writes.join().unwrap();
        });
    }

    /// In every interleaving: two writes at one time leave two generations.
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
