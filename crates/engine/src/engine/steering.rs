//! Implements software steering, in which an I/O thread moves received frames to the mailboxes of
//! packet threads. The forwarder selects the packet thread by flow hash. If the mailbox of that
//! thread is full, the frame goes to the next thread with room.
//!
//! See the Maglev paper, §3.1.

use forwarder::{DropReason, HandoffReason, ThreadId};

use super::Port;
use crate::device::{Device, Received};
use crate::mailbox::{Crossing, Purpose};

/// The round-robin state for the packet threads to which an I/O thread steers frames.
#[derive(Debug)]
pub(super) struct Turns {
    threads: u16,
    next: u16,
}

impl Turns {
    /// Creates the round-robin state for `threads` threads, numbered from 0.
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
    /// Moves a frame, unmodified, to the mailbox of the packet thread that the forwarder selected.
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
            // A fragment cannot go to a different thread, because only the selected thread collects
            // the fragments of this datagram.
            Err(crossing) if matches!(reason, HandoffReason::Fragment { .. }) => {
                self.release_frame(crossing.frame);
                Err(DropReason::MailboxFull)
            }
            Err(crossing) => self.steer_in_turn(crossing),
        }
    }

    /// Moves a frame to the mailbox of the next packet thread with room, in round-robin order.
    ///
    /// # Source
    /// Maglev paper §3.1: "In the rare cases where a given receiving queue fills up, the steering
    /// module falls back to round-robin scheduling and spreads packets to other available queues."
    #[cold]
    fn steer_in_turn(&mut self, mut crossing: Crossing<D::Frame>) -> Result<(), DropReason> {
        for _ in 0..self.steering.as_ref().map_or(0, |iterations| iterations.threads) {
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
