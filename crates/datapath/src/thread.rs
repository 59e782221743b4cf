//! A packet thread, or an I/O thread: pinned, runs its engine until the plane ends it, and sleeps when nothing comes.
//!
//! In: an engine over the sockets of its queues. Out: its counters. The only place that reads the clock, once a turn.
//! Invariant: a batch is what has arrived; nothing waits for a batch to fill.

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use arrayvec::ArrayVec;
use engine::Engine;
use forwarder::{FlowTable, Forward, Now, ThreadCounters};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use rustix::thread::{CapabilitySet, CapabilitySets, set_capabilities};

use crate::interface::MAX_INTERFACES;
use crate::placement::move_to;
use crate::sockets::{SocketCounters, Sockets};
use crate::stopping::Rounds;
use crate::sync::{AtomicBool, Ordering};
use crate::umem::RING;
use crate::wake::Waker;

/// What a thread does while nothing arrives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Idle {
    /// How long it looks at its rings without sleeping.
    pub spin: Duration,
    /// Whether it sleeps after that, or spins on.
    pub sleep: bool,
}

/// How a thread is ordered to leave alone, while others go on.
#[derive(Debug)]
pub(crate) struct Leave {
    ordered: Arc<AtomicBool>,
    flows: Sender<Option<FlowTable>>,
}

/// Who orders it.
#[derive(Debug)]
pub(crate) struct LeaveOrder {
    ordered: Arc<AtomicBool>,
    flows: Receiver<Option<FlowTable>>,
}

impl Leave {
    pub(crate) fn new() -> (Self, LeaveOrder) {
        let (ordered, (flows, left)) = (Arc::new(AtomicBool::new(false)), channel());
        (Self { ordered: Arc::clone(&ordered), flows }, LeaveOrder { ordered, flows: left })
    }

    fn is_ordered(&self) -> bool {
        self.ordered.load(Ordering::Relaxed) // what it is to find lies in rings, which order themselves
    }
}

impl LeaveOrder {
    /// From its next turn on the thread takes nothing more than what is in its rings; wake it.
    pub(crate) fn give(&self) {
        self.ordered.store(true, Ordering::Relaxed);
    }

    /// Waits for its connection table: it has done its last packet then, and closes its sockets. `None`: it has no table, or had
    /// ended before.
    pub(crate) fn flows(&self) -> Option<FlowTable> {
        self.flows.recv().ok().flatten()
    }
}

pub(crate) struct PacketThread<D: Sockets, F: Forward> {
    pub(crate) engine: Engine<D, F>,
    pub(crate) counters: Arc<ThreadCounters>,
    pub(crate) socket: Arc<SocketCounters>,
    pub(crate) wakers: Arc<[Waker]>,
    pub(crate) number: usize,
    /// Where it runs; `None`: where the kernel likes.
    pub(crate) processor: Option<u32>,
    pub(crate) idle: Idle,
    pub(crate) rounds: Arc<Rounds>,
    pub(crate) origin: Instant,
    /// Let go once the thread is on its processor and has given up its capabilities.
    pub(crate) born: Option<Sender<()>>,
    /// One for each round of the end, let go once the thread finds nothing.
    pub(crate) through: Vec<Sender<()>>,
    pub(crate) leave: Leave,
    /// Since when nothing has come.
    pub(crate) idle_since: Option<Instant>,
    pub(crate) next_statistics: Instant,
}

impl<D: Sockets, F: Forward> PacketThread<D, F> {
    /// Until the rounds of the end are over. What is in the rings and mailboxes then is still sent.
    pub(crate) fn run(mut self) {
        if let Some(processor) = self.processor {
            pin(self.number, processor);
        }
        give_up_capabilities();
        self.born = None;
        for (round, through) in (1..).zip(std::mem::take(&mut self.through)) {
            while self.rounds.current() < round && !self.leave.is_ordered() {
                self.turn();
            }
            self.send_what_is_left();
            if self.leave.is_ordered() {
                return self.leave();
            }
            drop(through);
        }
        self.copy_statistics();
    }

    /// The table goes first: closing a socket takes its time.
    fn leave(mut self) {
        self.copy_statistics();
        let (device, forward) = self.engine.into_parts();
        let _ = self.leave.flows.send(forward.into_flows()); // nobody waits for it any more
        drop(device);
    }

    /// One turn of the engine, or a sleep.
    fn turn(&mut self) {
        let begin = Instant::now();
        let count = self.step(begin);
        // One writer: a load and a store, no locked instruction.
        self.socket.turns.add(1);
        if begin >= self.next_statistics {
            self.copy_statistics();
            self.next_statistics = begin + STATISTICS_EVERY;
        }
        if count > 0 {
            self.idle_since = None;
            let busy = u64::try_from(begin.elapsed().as_nanos()).unwrap_or(u64::MAX);
            self.counters.busy_nanos.add(busy);
            return;
        }
        self.engine.device_mut().run_drivers();
        let since = *self.idle_since.get_or_insert(begin);
        if self.idle.sleep && begin.duration_since(since) >= self.idle.spin {
            self.sleep();
        } else {
            std::hint::spin_loop();
        }
    }

    /// How many packets there were.
    fn step(&mut self, begin: Instant) -> usize {
        if let Some(own) = self.wakers.get(self.number) {
            own.turn_begins();
        }
        let count = self.engine.step(now(begin, self.origin));
        self.wake_others();
        count
    }

    /// The rings are bounded, so this ends, even if packets keep coming.
    fn send_what_is_left(&mut self) {
        let mut left = RING;
        while left > 0 && self.step(Instant::now()) > 0 {
            left -= 1;
        }
    }

    fn wake_others(&mut self) {
        let wakers = &self.wakers;
        self.engine.notify().drain(|thread| {
            if let Some(waker) = wakers.get(usize::from(thread.0)) {
                waker.wake_for_mail();
            }
        });
    }

    /// Until a packet, a frame from another thread, a request, or the time-out by which held things move on.
    fn sleep(&mut self) {
        let Some(waker) = self.wakers.get(self.number) else { return };
        waker.sleeper.about_to_sleep();
        if self.engine.has_work() {
            waker.sleeper.awake();
            return;
        }
        let due = self.millis_until_due();
        let device = self.engine.device_mut();
        // What is being sent comes back without a bell: with packets in the transmit ring, or on the wire and so not with
        // the receive side, the rings are looked at again soon.
        let sending = device.is_sending();
        let at_most = if sending { RETRY_SEND_MS } else { SLEEP_AT_MOST_MS };
        let at_most = at_most.min(due);
        let mut wanted = ArrayVec::<PollFd<'_>, MOST_FDS>::new();
        wanted.push(PollFd::new(waker.fd(), PollFlags::POLLIN));
        for (_, socket) in device.sockets().take(wanted.remaining_capacity()) {
            // SAFETY: the socket belongs to the engine, which outlives this borrow.
            let socket = unsafe { BorrowedFd::borrow_raw(socket) };
            wanted.push(PollFd::new(socket, PollFlags::POLLIN));
        }
        // An interrupted or failed poll is a turn of the loop like any other.
        let _ = poll(&mut wanted, PollTimeout::from(at_most));
        waker.sleeper.awake();
        waker.silence();
    }

    /// Until the forwarder has something to do by itself: whole milliseconds, the last one begun counts.
    fn millis_until_due(&self) -> u8 {
        let Some(due) = self.engine.next_due() else { return SLEEP_AT_MOST_MS };
        let left = due.nanos().saturating_sub(now(Instant::now(), self.origin).nanos());
        u8::try_from(left.div_ceil(1_000_000)).unwrap_or(SLEEP_AT_MOST_MS)
    }

    fn copy_statistics(&mut self) {
        let device = self.engine.device_mut();
        self.socket.fill_low.add(u64::from(device.is_short_of_frames()));
        // Where a socket does not answer, the last numbers stand.
        let _ = device.copy_statistics(&self.socket);
    }
}

fn now(moment: Instant, origin: Instant) -> Now {
    let nanos = moment.duration_since(origin).as_nanos();
    Now::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
}

/// Puts the calling thread on a processor.
fn pin(thread: usize, processor: u32) {
    match move_to(std::iter::once(processor)) {
        Ok(()) => tracing::debug!(thread, processor, "packet thread pinned"),
        Err(error) => tracing::warn!(thread, processor, %error, "packet thread not pinned"),
    }
}

/// All that a packet thread uses is open: an attacker who took it over could do nothing more.
fn give_up_capabilities() {
    let none = CapabilitySet::empty();
    let sets = CapabilitySets { effective: none, permitted: none, inheritable: none };
    if let Err(error) = set_capabilities(None, sets) {
        tracing::warn!(%error, "a packet thread keeps its capabilities");
    }
}

const STATISTICS_EVERY: Duration = Duration::from_secs(1);
/// Also bounds how long what time alone causes waits on a thread that nobody wakes.
const SLEEP_AT_MOST_MS: u8 = 100;
const RETRY_SEND_MS: u8 = 1;
/// A socket for each interface, and the bell.
const MOST_FDS: usize = MAX_INTERFACES + 1;

#[cfg(test)]
mod tests {
    use std::os::fd::RawFd;
    use std::sync::mpsc::channel;

    use engine::{MemoryDevice, MemoryFrame, Pool, TxOwner, mesh};
    use forwarder::{DropReason, HandoffReason, InterfaceId, Outlet, Packet, ThreadId, Verdict};

    use super::*;
    use crate::stopping::ROUNDS;

    impl Sockets for MemoryDevice {
        fn sockets(&self) -> impl Iterator<Item = (InterfaceId, RawFd)> {
            std::iter::empty()
        }

        fn is_sending(&mut self) -> bool {
            false
        }

        fn is_short_of_frames(&self) -> bool {
            false
        }

        fn copy_statistics(&mut self, _: &SocketCounters) -> std::io::Result<()> {
            Ok(())
        }
    }

    /// Hands packets to the thread that they name, and sends those that name this one.
    struct Named {
        me: ThreadId,
        due: Option<Now>,
    }

    impl Forward for Named {
        fn process(&mut self, _: Now, packets: &mut [Packet<'_>], verdicts: &mut [Verdict]) {
            for (packet, verdict) in packets.iter().zip(verdicts) {
                let named = ThreadId(packet.frame()[0].into());
                let reason = HandoffReason::Steered { decapsulated_from: None };
                *verdict = if named == self.me { Verdict::Tx } else { Verdict::ToThread(named, reason) };
            }
        }

        fn poll(&mut self, _: Now, _: &mut dyn Outlet) {}

        fn next_due(&self) -> Option<Now> {
            self.due
        }

        fn failed(&mut self, reason: DropReason) {
            panic!("{reason:?}: there is room");
        }

        fn max_batch(&self) -> usize {
            16
        }

        fn hold_slots(&self) -> usize {
            0
        }
    }

    const PACKET_THREADS: u16 = 3;
    const PACKETS: u16 = 900;

    type Frames = engine::Mailboxes<MemoryFrame>;

    /// The engine of a packet thread, or that of the I/O thread, which is the last and where all packets wait.
    fn engine(
        mailboxes: Frames,
        counters: &Arc<ThreadCounters>,
        due: Option<Now>,
    ) -> Engine<MemoryDevice, Named> {
        let me = mailboxes.me();
        let is_io = me.0 == PACKET_THREADS;
        let owner = if is_io { TxOwner::Own } else { TxOwner::Other(ThreadId(PACKET_THREADS)) };
        let count = if is_io { PACKETS } else { 0 };
        let frames = (0..count).map(|_| MemoryFrame::new(me, 64)).collect();
        let pool = Pool { frames, in_all: PACKETS.into() };
        let device = MemoryDevice::with_tx_owners(PACKETS.into(), [owner]);
        let mut engine = Engine::new(device, Named { me, due }, mailboxes, pool, Arc::clone(counters));
        for packet in 0..count {
            let named = u8::try_from(packet % PACKET_THREADS).unwrap();
            assert!(engine.device_mut().inject(&[named; 20], 0));
        }
        if is_io { engine.steering_to(PACKET_THREADS) } else { engine.with_mail_alone() }
    }

    fn thread(
        mailboxes: Frames,
        wakers: &Arc<[Waker]>,
        rounds: &Arc<Rounds>,
        due: Option<Now>,
    ) -> PacketThread<MemoryDevice, Named> {
        let (number, origin) = (mailboxes.me().0.into(), Instant::now());
        let counters = Arc::new(ThreadCounters::new(0, 0));
        PacketThread {
            engine: engine(mailboxes, &counters, due),
            counters,
            socket: Arc::new(SocketCounters::default()),
            wakers: Arc::clone(wakers),
            number,
            processor: None,
            idle: Idle { spin: Duration::ZERO, sleep: true },
            rounds: Arc::clone(rounds),
            origin,
            born: None,
            through: Vec::new(),
            leave: Leave::new().0,
            idle_since: None,
            next_statistics: origin,
        }
    }

    #[test]
    fn a_thread_sleeps_no_longer_than_until_the_millisecond_in_which_something_is_due() {
        let wakers: Arc<[Waker]> = (0..=PACKET_THREADS).map(|_| Waker::new().unwrap()).collect();
        let rounds = Arc::new(Rounds::new());
        let sleeps = |due: Option<u64>| {
            let mailboxes = mesh(PACKET_THREADS + 1, 1).remove(0);
            thread(mailboxes, &wakers, &rounds, due.map(Now::from_nanos)).millis_until_due()
        };
        assert_eq!(sleeps(None), SLEEP_AT_MOST_MS);
        assert_eq!(sleeps(Some(0)), 0);
        assert_eq!(sleeps(Some(3_600_000_000_000)), SLEEP_AT_MOST_MS);
        // It was made a moment ago.
        assert!((1..=50).contains(&sleeps(Some(50_000_000))));
    }

    #[test]
    fn what_waits_when_the_end_begins_goes_from_thread_to_thread_and_is_sent() {
        let wakers: Arc<[Waker]> = (0..=PACKET_THREADS).map(|_| Waker::new().unwrap()).collect();
        let rounds = Arc::new(Rounds::new());
        let (through, ends): (Vec<_>, Vec<_>) = (0..ROUNDS).map(|_| channel::<()>()).unzip();
        let mailboxes = mesh(PACKET_THREADS + 1, PACKETS.into()).into_iter();
        let mut threads: Vec<_> = mailboxes.map(|own| thread(own, &wakers, &rounds, None)).collect();
        threads.iter_mut().for_each(|thread| thread.through.clone_from(&through));
        drop(through);
        let counters: Vec<_> = threads.iter().map(|thread| Arc::clone(&thread.counters)).collect();
        rounds.begin(1);
        let running: Vec<_> =
            threads.into_iter().map(|thread| std::thread::spawn(move || thread.run())).collect();
        for (round, through) in (1..).zip(&ends) {
            rounds.begin(round);
            wakers.iter().for_each(Waker::ring);
            assert!(through.recv().is_err(), "nobody sends");
        }
        running.into_iter().for_each(|thread| thread.join().unwrap());
        let counted: Vec<u64> = counters.iter().map(|counters| counters.from_threads.read()).collect();
        assert_eq!(counted, [300, 300, 300, u64::from(PACKETS)]);
        assert_eq!(counters[usize::from(PACKET_THREADS)].tx.read(), u64::from(PACKETS));
    }
}
