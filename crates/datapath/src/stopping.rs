//! How threads that hand frames to each other end, so that no frame is left between them.
//!
//! In rounds. In each, every thread works until it finds nothing, says so, and goes on; the next begins when all have said so. What
//! was handed over in one round is found in the next, and after as many as a packet has steps all have nothing.
//! Not here: threads, and how they say it (`thread`, `dataplane`).
//! Invariant: who sees a round begun sees all that was handed over before it; a loom model goes through every interleaving.

use crate::sync::{AtomicU8, Ordering};

/// Which round it is; 0 until threads are to end.
#[derive(Debug)]
pub(crate) struct Rounds(AtomicU8);

impl Rounds {
    pub(crate) fn new() -> Self {
        Self(AtomicU8::new(0))
    }

    /// All threads are through the round before.
    pub(crate) fn begin(&self, round: u8) {
        self.0.store(round, Ordering::Release); // pairs with the load of `current`
    }

    pub(crate) fn current(&self) -> u8 {
        self.0.load(Ordering::Acquire) // pairs with the store of `begin`
    }
}

/// A packet's steps from thread to thread, at most: received; steered, or opened; with the thread that gathers its pieces; sent.
pub(crate) const ROUNDS: u8 = 4;

#[cfg(all(test, loom))]
mod tests {
    use super::*;
    use loom::sync::Arc;

    /// In every interleaving: who is in the second round finds what was left in the first.
    #[test]
    fn what_is_left_in_a_round_is_found_in_the_next() {
        loom::model(|| {
            let rounds = Arc::new(Rounds::new());
            let left = Arc::new(AtomicU8::new(0));
            let (their_rounds, their_left) = (Arc::clone(&rounds), Arc::clone(&left));
            let finder = loom::thread::spawn(move || {
                if their_rounds.current() == 2 {
                    // Whatever the mailbox promises by itself: the round alone has to suffice.
                    assert_eq!(their_left.load(Ordering::Relaxed), 1, "left behind");
                }
            });
            let their_left = Arc::clone(&left);
            let leaver = loom::thread::spawn(move || their_left.store(1, Ordering::Relaxed));
            leaver.join().unwrap(); // it has said that it found nothing more
            rounds.begin(2);
            finder.join().unwrap();
        });
    }
}
