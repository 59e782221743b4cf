//! Tracks whether a thread is sleeping. Other threads check this state after they have added work
//! for the thread.
//!
//! Before it sleeps, a thread announces the sleep and then checks for work once more. A producer
//! first adds its work, and then checks whether the thread is sleeping. In every interleaving, the
//! thread sees the work or the producer sees the announcement, so work is never missed. A loom
//! model checks all interleavings.

use crate::sync::{AtomicBool, Ordering, fence};

/// The sleep state of a thread.
#[derive(Debug)]
pub(crate) struct Sleeper(AtomicBool);

impl Sleeper {
    pub(crate) fn new() -> Self {
        Self(AtomicBool::new(false))
    }

    /// Announces a sleep. The thread must check for work again after this call. If there is no
    /// work, the thread may sleep.
    pub(crate) fn about_to_sleep(&self) {
        self.0.store(true, Ordering::Relaxed);
        // This fence pairs with the fence in `must_wake`. The thread and the producer each store a
        // value before they load the value of the other side, so at least one of them sees the
        // store of the other.
        fence(Ordering::SeqCst);
    }

    pub(crate) fn awake(&self) {
        self.0.store(false, Ordering::Relaxed);
    }

    /// Returns `true` if the thread must be woken. Call this method after adding work for the
    /// thread. Only the first call after each announcement returns `true`.
    pub(crate) fn must_wake(&self) -> bool {
        fence(Ordering::SeqCst); // pairs with the fence in `about_to_sleep`
        self.0.load(Ordering::Relaxed) && self.0.swap(false, Ordering::Relaxed)
    }
}

#[cfg(all(test, loom))]
mod tests {
    use super::*;
    use loom::sync::Arc;

    /// Checks, in all interleavings, that the thread never stays asleep after the producer has
    /// added work.
    #[test]
    fn sleeper_is_woken_for_work_left_before_its_sleep() {
        loom::model(|| {
            let sleeper = Arc::new(Sleeper::new());
            let left = Arc::new(AtomicBool::new(false));
            let (their_sleeper, their_left) = (Arc::clone(&sleeper), Arc::clone(&left));
            let other = loom::thread::spawn(move || {
                their_left.store(true, Ordering::Release);
                their_sleeper.must_wake()
            });
            sleeper.about_to_sleep();
            let saw = left.load(Ordering::Acquire);
            let rang = other.join().unwrap();
            assert!(saw || rang, "the thread sleeps although it has work");
        });
    }
}
