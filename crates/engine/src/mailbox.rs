//! Mailboxes: between every pair of packet threads one ring of one producer and one consumer, which carries frames.
//!
//! In: a frame that another thread must process, or that goes home to its pool. Out: the same frame, once.
//! Not here: who gets what (the forwarder's verdict).
//! Invariant: a frame is in one mailbox or in one thread's hands; a full mailbox gives it back.

use forwarder::{HandoffReason, InterfaceId, ThreadId};
use rtrb::{Consumer, Producer, RingBuffer};

/// Why a frame crosses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// The packet in `[start, end)` is for the receiving thread to process.
    Process {
        /// Why it comes.
        reason: HandoffReason,
        /// The interface that it came by.
        interface: InterfaceId,
        /// Where the packet starts.
        start: usize,
        /// Where it ends.
        end: usize,
    },
    /// The packet in `[start, end)` is as it came off the wire: an I/O thread has given it to the receiving thread.
    Steered {
        /// The interface that it came by.
        interface: InterfaceId,
        /// Where the packet starts.
        start: usize,
        /// Where it ends.
        end: usize,
    },
    /// The packet in `[0, end)` is decided: the receiving thread sends it, since the other one has no queue there.
    Send {
        /// The interface that it leaves by.
        interface: InterfaceId,
        /// Where it ends.
        end: usize,
        /// Whether it is an answer.
        is_reply: bool,
    },
    /// The frame belongs to the receiving thread's pool.
    Home,
}

/// A frame on its way.
#[derive(Debug)]
pub struct Crossing<F> {
    /// The frame.
    pub frame: F,
    /// Why it crosses.
    pub purpose: Purpose,
}

/// One thread's ends of all its mailboxes.
#[derive(Debug)]
pub struct Mailboxes<F> {
    me: ThreadId,
    to: Vec<Option<Producer<Crossing<F>>>>,
    from: Vec<Option<Consumer<Crossing<F>>>>,
    /// The thread whose mail is taken first: each in its turn, so that none starves another.
    first: usize,
}

/// The mailboxes of `threads` threads, `capacity` frames each.
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
    /// This thread.
    #[must_use]
    pub fn me(&self) -> ThreadId {
        self.me
    }

    /// How many threads there are.
    #[must_use]
    pub fn threads(&self) -> usize {
        self.to.len()
    }

    /// Hands a frame over.
    ///
    /// # Errors
    /// The frame comes back when the mailbox is full, or there is no such thread.
    pub fn put(&mut self, to: ThreadId, crossing: Crossing<F>) -> Result<(), Crossing<F>> {
        match self.to.get_mut(usize::from(to.0)) {
            Some(Some(producer)) => {
                producer.push(crossing).map_err(|rtrb::PushError::Full(crossing)| crossing)
            }
            _ => Err(crossing),
        }
    }

    /// Takes up to `limit` frames, from all threads in turn.
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

    /// Frames that wait for this thread.
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
        /// Whatever is put in comes out once, in order per pair, at the thread it was put for.
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
