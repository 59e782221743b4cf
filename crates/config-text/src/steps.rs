//! Counts the steps of the scanners in this crate, in tests only.
//!
//! Clients can send large texts with `config put`, so the cost of each scanner must be linear in
//! the length of the text. Tests compare step counts for texts of different lengths. Unlike times,
//! step counts are the same on every machine.

use std::cell::Cell;

thread_local! {
    static STEPS: Cell<usize> = const { Cell::new(0) };
}

/// Adds to the count of this thread.
pub(crate) fn add(count: usize) {
    STEPS.set(STEPS.get() + count);
}

/// Returns the number of steps that `work` takes.
pub(crate) fn of(work: impl FnOnce()) -> usize {
    let before = STEPS.get();
    work();
    STEPS.get() - before
}
