//! How an I/O thread's frames get to packet threads.
//!
//! In: a frame as it came, and the thread that its flow names. Out: the frame in that thread's mailbox, or in another's, or free.
//! Not here: which thread a flow names (`forwarder`).
//! Source: paper §3.1.

use forwarder::{DropReason, HandoffReason, ThreadId};

use super::Port;
use crate::device::{Device, Received};
use crate::mailbox::{Crossing, Purpose};

/// The packet threads that an I/O thread steers to, each in its turn where its ring was full.
#[derive(Debug)]
pub(super) struct Turns {
    threads: u16,
    next: u16,
}

impl Turns {
    /// Over so many, counted from 0.
    pub(super) fn over(threads: u16) -> Self {
        Self { threads, next: 0 }
    }

    fn next(&mut self) -> ThreadId {
        let next = self.next;
        self.next = if next + 1 < self.threads { next + 1 } else { 0 };
        ThreadId(next)
    }
}

impl<D: Device> Port<D> {
    /// Gives a frame, as it came, to the thread that is to process it.
    #[inline]
    pub(super) fn steer(
        &mut self,
        thread: ThreadId,
        reason: HandoffReason,
        received: Received<D::Frame>,
    ) -> Result<(), DropReason> {
        let Received { frame, interface, start, end } = received;
        let crossing = Crossing { frame, purpose: Purpose::Steered { interface, start, end } };
        match self.mailboxes.put(thread, crossing) {
            Ok(()) => {
                self.counters.steered.add(1);
                self.has_crossed(thread);
                Ok(())
            }
            // A piece is of use to the thread that gathers its datagram alone.
            Err(crossing) if matches!(reason, HandoffReason::Fragment { .. }) => {
                self.release_frame(crossing.frame);
                Err(DropReason::MailboxFull)
            }
            Err(crossing) => self.steer_in_turn(crossing),
        }
    }

    /// Gives a frame to the next thread that has room.
    ///
    /// # Source
    /// Paper §3.1: "In the rare cases where a given receiving queue fills up, the steering module falls back to round-robin
    /// scheduling and spreads packets to other available queues."
    #[cold]
    fn steer_in_turn(&mut self, mut crossing: Crossing<D::Frame>) -> Result<(), DropReason> {
        for _ in 0..self.steering.as_ref().map_or(0, |turns| turns.threads) {
            let Some(thread) = self.steering.as_mut().map(Turns::next) else { break };
            match self.mailboxes.put(thread, crossing) {
                Ok(()) => {
                    self.counters.overflowed.add(1);
                    self.has_crossed(thread);
                    return Ok(());
                }
                Err(back) => crossing = back,
            }
        }
        self.release_frame(crossing.frame);
        Err(DropReason::MailboxFull)
    }
}
