//! Stops threads that pass frames to each other, without losing frames that are in transit between
//! them.
//!
//! The shutdown consists of rounds. In each round, every thread works until it finds no packet,
//! then signals this and keeps running. The next round begins when all threads have signaled. If a
//! frame is passed on in one round, the receiving thread finds it in the next round. The number of
//! rounds is therefore the maximum number of threads that handle one packet.
//!
//! Invariant: a thread that sees a new round also sees all frames that were passed on before that
//! round. A loom model checks all interleavings.

use crate::sync::{AtomicU8, Ordering};

/// The number of the current round. The number is 0 before the shutdown.
#[derive(Debug)]
pub(crate) struct Rounds(AtomicU8);

impl Rounds {
    pub(crate) fn new() -> Self {
        Self(AtomicU8::new(0))
    }

    /// Begins a round. All threads must have finished the previous round.
    pub(crate) fn begin(&self, round: u8) {
        self.0.store(round, Ordering::Release); // pairs with the load in `current`
    }

    pub(crate) fn current(&self) -> u8 {
        self.0.load(Ordering::Acquire) // pairs with the store in `begin`
    }
}

/// The number of shutdown rounds: one for each thread that may handle the same packet. A packet can
/// pass through the receiving thread, the thread selected by software steering, the thread that
/// collects fragments, and the sending thread.
pub(crate) const ROUNDS: u8 = 4;

#[cfg(all(test, loom))]
mod tests {
    use super::*;
    use loom::sync::Arc;

    /// Checks, in all interleavings, that frames passed on in the first round are found in the
    /// second round.
    #[test]
    fn rounds_show_what_was_left_in_the_previous_round() {
        loom::model(|| {
            let rounds = Arc::new(Rounds::new());
            let left = Arc::new(AtomicU8::new(0));
            let (their_rounds, their_left) = (Arc::clone(&rounds), Arc::clone(&left));
            let finder = loom::thread::spawn(move || {
                if their_rounds.current() == 2 {
                    // The load uses relaxed ordering. The assertion therefore passes only if the
                    // release and acquire operations on the round number make the other thread's
                    // store visible.
                    assert_eq!(their_left.load(Ordering::Relaxed), 1, "frame left behind");
                }
            });
            let their_left = Arc::clone(&left);
            let leaver = loom::thread::spawn(move || their_left.store(1, Ordering::Relaxed));
            leaver.join().unwrap(); // this thread has signaled that it found no more packets
            rounds.begin(2);
            finder.join().unwrap();
        });
    }
}
