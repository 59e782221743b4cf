//! Mailboxes that carry frames between packet threads. Each pair of threads has two rings, one per
//! direction, with a single producer and a single consumer. At any time, a frame is either in one
//! mailbox or owned by one thread. If a mailbox is full, the sender keeps the frame.

use forwarder::{HandoffReason, InterfaceId, ThreadId};
use rtrb::{Consumer, Producer, RingBuffer};

/// The reason why a frame is handed over to another thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// The receiving thread processes the packet in `[start, end)`.
    Process {
        /// The forwarder's reason for handing the packet over.
        reason: HandoffReason,
        /// The interface that received the packet.
        interface: InterfaceId,
        /// The start offset of the packet.
        start: usize,
        /// The end offset of the packet.
        end: usize,
    },
    /// The receiving thread processes the packet in `[start, end)` as if the packet had arrived
    /// from the wire. The sender is an I/O thread.
    Steered {
        /// The interface that received the packet.
        interface: InterfaceId,
        /// The start offset of the packet.
        start: usize,
        /// The end offset of the packet.
        end: usize,
    },
    /// The receiving thread sends the packet in `[start, end)`. The thread that processed the
    /// packet has no queue on the outgoing interface.
    Send {
        /// The interface to send from.
        interface: InterfaceId,
        /// The start offset of the packet.
        start: usize,
        /// The end offset of the packet.
        end: usize,
        /// `true` if the packet is a reply that this machine generated.
        is_reply: bool,
    },
    /// The frame returns to its pool, which the receiving thread owns.
    Home,
}

/// A frame in a mailbox.
#[derive(Debug)]
pub struct Crossing<F> {
    /// The frame that is handed over.
    pub frame: F,
    /// The reason why the frame is handed over.
    pub purpose: Purpose,
}

/// The mailboxes of one thread, to and from all other threads.
#[derive(Debug)]
pub struct Mailboxes<F> {
    me: ThreadId,
    to: Vec<Option<Producer<Crossing<F>>>>,
    from: Vec<Option<Consumer<Crossing<F>>>>,
    /// The index of the thread whose frames are taken first. The index rotates so that no thread is
    /// starved.
    first: usize,
}

/// Creates the mailboxes between `threads` threads. Each mailbox has room for `capacity` frames.
#[must_use]
pub fn mesh<F>(threads: u16, capacity: usize) -> Vec<Mailboxes<F>> {
    let mut ends: Vec<Mailboxes<F>> = (0..threads)
        .map(|me| Mailboxes { me: ThreadId(me), to: Vec::new(), from: Vec::new(), first: 0 })
        .collect();
    for from in 0..usize::from(threads) {
        for to in 0..usize::from(threads) {
            let (producer, consumer) = if from == to {
                (None, None)
            } else {
                let (producer, consumer) = RingBuffer::new(capacity.max(1));
                (Some(producer), Some(consumer))
            };
            ends[from].to.push(producer);
            ends[to].from.push(consumer);
        }
    }
    ends
}

impl<F> Mailboxes<F> {
    /// Returns the number of this thread.
    #[must_use]
    pub fn me(&self) -> ThreadId {
        self.me
    }

    /// Returns the number of threads.
    #[must_use]
    pub fn threads(&self) -> usize {
        self.to.len()
    }

    /// Puts a frame into the mailbox of another thread.
    ///
    /// # Errors
    /// Returns the frame if the mailbox is full or the thread does not exist.
    pub fn put(&mut self, to: ThreadId, crossing: Crossing<F>) -> Result<(), Crossing<F>> {
        match self.to.get_mut(usize::from(to.0)) {
            Some(Some(producer)) => {
                producer.push(crossing).map_err(|rtrb::PushError::Full(crossing)| crossing)
            }
            _ => Err(crossing),
        }
    }

    /// Takes up to `limit` frames and passes them to `each` with the number of the sending thread.
    /// Successive calls start with different threads.
    pub fn take(&mut self, limit: usize, mut each: impl FnMut(ThreadId, Crossing<F>)) {
        let mut left = limit;
        let threads = self.from.len();
        for number in (self.first..threads).chain(0..self.first) {
            let Some(Some(consumer)) = self.from.get_mut(number) else { continue };
            let from = ThreadId(u16::try_from(number).unwrap_or(u16::MAX));
            while left > 0 {
                let Ok(crossing) = consumer.pop() else { break };
                left -= 1;
                each(from, crossing);
            }
        }
        self.first = if self.first + 1 < threads { self.first + 1 } else { 0 };
    }

    /// Returns the number of frames that are waiting for this thread in all mailboxes.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.from.iter().flatten().map(Consumer::slots).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Checks that each frame arrives exactly once, at the right thread, and that frames from
        /// one thread to another stay in order.
        #[test]
        fn nothing_is_lost_doubled_or_misdelivered(ops in prop::collection::vec((0u16..3, 0u16..4, 0usize..4), 0..200)) {
            let mut ends = mesh::<usize>(3, 4);
            let mut queues = vec![vec![std::collections::VecDeque::new(); 3]; 3];
            for (number, (who, to, limit)) in ops.into_iter().enumerate() {
                let crossing = Crossing { frame: number, purpose: Purpose::Home };
                let taken = ends[usize::from(who)].put(ThreadId(to), crossing).is_ok();
                let fits = to < 3 && to != who && queues[usize::from(who)][usize::from(to)].len() < 4;
                prop_assert_eq!(taken, fits);
                if taken {
                    queues[usize::from(who)][usize::from(to)].push_back(number);
                }
                let mut got = Vec::new();
                ends[usize::from(who)].take(limit, |from, crossing| got.push((from, crossing.frame)));
                prop_assert!(got.len() <= limit);
                for (from, frame) in got {
                    prop_assert_eq!(queues[usize::from(from.0)][usize::from(who)].pop_front(), Some(frame));
                }
                let waiting: usize = (0..3).map(|from| queues[from][usize::from(who)].len()).sum();
                prop_assert_eq!(ends[usize::from(who)].waiting(), waiting);
            }
        }
    }

    #[test]
    fn a_thread_that_always_has_more_starves_no_other() {
        let mut ends = mesh::<usize>(3, 8);
        let mut receiver = ends.pop().unwrap();
        let mail = |frame| Crossing { frame, purpose: Purpose::Home };
        ends[1].put(ThreadId(2), mail(99)).unwrap();
        let mut seen = Vec::new();
        for _ in 0..3 {
            while ends[0].put(ThreadId(2), mail(0)).is_ok() {}
            receiver.take(4, |from, crossing| seen.push((from.0, crossing.frame)));
        }
        assert!(seen.contains(&(1, 99)), "{seen:?}");
        assert_eq!(seen.len(), 12);
    }

    #[test]
    fn a_million_frames_cross_between_running_threads_in_order() {
        let mut ends = mesh::<usize>(2, 64);
        let mut receiver = ends.pop().unwrap();
        let mut sender = ends.pop().unwrap();
        let thread = std::thread::spawn(move || {
            let mut next = 0;
            while next < 1_000_000 {
                match sender.put(ThreadId(1), Crossing { frame: next, purpose: Purpose::Home }) {
                    Ok(()) => next += 1,
                    Err(_) => std::thread::yield_now(),
                }
            }
        });
        let mut expected = 0;
        while expected < 1_000_000 {
            let before = expected;
            receiver.take(64, |_, crossing| {
                assert_eq!(crossing.frame, expected);
                expected += 1;
            });
            if expected == before {
                std::thread::yield_now();
            }
        }
        thread.join().unwrap();
        assert_eq!(receiver.waiting(), 0);
    }
}
