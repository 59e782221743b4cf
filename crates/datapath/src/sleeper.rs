//! Whether a thread sleeps, seen by those who leave something for it.
//!
//! The sleeper says that it will sleep, looks once more, and then sleeps; a producer leaves its item and looks afterwards
//! whether the thread sleeps. Either the sleeper sees the thing, or the other sees the sleeper.
//! Invariant: nothing that was left before a sleep is slept over; a loom model goes through every interleaving.

use crate::sync::{AtomicBool, Ordering, fence};

/// Whether a thread sleeps.
#[derive(Debug)]
pub(crate) struct Sleeper(AtomicBool);

impl Sleeper {
    pub(crate) fn new() -> Self {
        Self(AtomicBool::new(false))
    }

    /// The thread will sleep if it finds nothing when it looks after this call.
    pub(crate) fn about_to_sleep(&self) {
        self.0.store(true, Ordering::Relaxed);
        // Pairs with the fence of `must_wake`: store then load here, store then load there; not both loads are stale.
        fence(Ordering::SeqCst);
    }

    pub(crate) fn awake(&self) {
        self.0.store(false, Ordering::Relaxed);
    }

    /// After leaving something: whether the thread has to be woken. True once per sleep.
    pub(crate) fn must_wake(&self) -> bool {
        fence(Ordering::SeqCst); // pairs with the one of `about_to_sleep`
        self.0.load(Ordering::Relaxed) && self.0.swap(false, Ordering::Relaxed)
    }
}

#[cfg(all(test, loom))]
mod tests {
    use super::*;
    use loom::sync::Arc;

    /// In every interleaving: if the thread sleeps though something was left for it, the producer rang.
    #[test]
    fn nothing_is_slept_over() {
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
            assert!(saw || rang, "asleep with mail, and nobody rang");
        });
    }
}
