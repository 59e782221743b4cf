//! Runs the loop of a packet thread or an I/O thread. The thread is pinned to a processor and runs
//! its engine until the data plane stops it. The thread sleeps while no packets arrive.
//!
//! Only this module reads the clock, once in each iteration. A batch contains the packets that have
//! already arrived; the thread never waits for further packets to fill a batch.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use engine::Engine;
use forwarder::{FlowTable, Forward, Now, ThreadCounters};
use rustix::thread::{CapabilitySet, CapabilitySets, set_capabilities};

use crate::placement::move_to;
use crate::sockets::{SocketCounters, Sockets};
use crate::spin::AdaptiveSpin;
use crate::stopping::Rounds;
use crate::sync::{AtomicBool, Ordering};
use crate::umem::RING;
use crate::wait::{Events, Woken};
use crate::wake::Waker;

/// The behavior of a thread while no packets arrive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Idle {
    /// The longest time for which an idle thread polls its rings before it sleeps. The thread polls
    /// only as long as polling recently paid off.
    pub spin: Duration,
    /// The polling time that is acceptable for each avoided wake-up.
    pub wake_up_price: Duration,
    /// `true` if the thread sleeps after polling. `false` if it never stops polling.
    pub sleep: bool,
}

/// The receiving side of a [`LeaveCommand`].
#[derive(Debug)]
pub(crate) struct Leave {
    ordered: Arc<AtomicBool>,
    flows: Sender<Option<FlowTable>>,
}

/// A command that makes one thread stop while the other threads continue.
#[derive(Debug)]
pub(crate) struct LeaveCommand {
    ordered: Arc<AtomicBool>,
    flows: Receiver<Option<FlowTable>>,
}

impl Leave {
    pub(crate) fn new() -> (Self, LeaveCommand) {
        let (ordered, (flows, left)) = (Arc::new(AtomicBool::new(false)), channel());
        (Self { ordered: Arc::clone(&ordered), flows }, LeaveCommand { ordered, flows: left })
    }

    fn is_ordered(&self) -> bool {
        // Relaxed ordering is sufficient, because the rings order the remaining packets.
        self.ordered.load(Ordering::Relaxed)
    }
}

impl LeaveCommand {
    /// Makes the thread stop at its next iteration. The thread first sends the packets that are in
    /// its rings. The caller must wake the thread.
    pub(crate) fn give(&self) {
        self.ordered.store(true, Ordering::Relaxed);
    }

    /// Waits for the connection table of the thread. By that time the thread has processed its last
    /// packet and is closing its sockets. Returns `None` if the thread has no table or had already
    /// ended.
    pub(crate) fn flows(&self) -> Option<FlowTable> {
        self.flows.recv().ok().flatten()
    }
}

pub(crate) struct PacketThread<D: Sockets, F: Forward> {
    pub(crate) engine: Engine<D, F>,
    pub(crate) counters: Arc<ThreadCounters>,
    pub(crate) socket: Arc<SocketCounters>,
    pub(crate) wakers: Arc<[Waker]>,
    pub(crate) events: Events,
    pub(crate) number: usize,
    /// The processor to which the thread is pinned. If `None`, the kernel chooses the processor.
    pub(crate) processor: Option<u32>,
    /// `false` if the thread never stops polling.
    pub(crate) sleeps: bool,
    pub(crate) spin: AdaptiveSpin,
    pub(crate) rounds: Arc<Rounds>,
    pub(crate) origin: Instant,
    /// The thread drops this value after it is pinned and has given up its capabilities. This
    /// signals the data plane that the thread has started.
    pub(crate) born: Option<Sender<()>>,
    /// One sender for each round of the shutdown. A sender is dropped when the thread has finished
    /// the round.
    pub(crate) through: Vec<Sender<()>>,
    pub(crate) leave: Leave,
    /// The time at which the thread became idle.
    pub(crate) idle_since: Option<Instant>,
    /// The start of the previous iteration if that iteration processed packets.
    pub(crate) busy_since: Option<Instant>,
    pub(crate) next_statistics: Instant,
}

impl<D: Sockets, F: Forward> PacketThread<D, F> {
    /// Runs the thread until the last round of the shutdown is finished, or until a
    /// [`LeaveCommand`] stops the thread. Packets that are still in rings and mailboxes at that
    /// time are sent.
    pub(crate) fn run(mut self) {
        if let Some(processor) = self.processor {
            pin(self.number, processor);
        }
        give_up_capabilities();
        if let Some(own) = self.wakers.get(self.number) {
            own.thread_begins();
        }
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

    /// Hands over the connection table before the sockets are closed, because closing sockets takes
    /// time.
    fn leave(mut self) {
        self.copy_statistics();
        let (device, forward) = self.engine.into_parts();
        // The receiver may already have been dropped.
        let _ = self.leave.flows.send(forward.into_flows());
        drop(device);
    }

    /// Runs one iteration of the engine. Sleeps if the thread has been idle for long enough.
    fn turn(&mut self) {
        let begin = Instant::now();
        if let Some(since) = self.busy_since.take() {
            self.counters.busy_nanos.add(nanos(begin.duration_since(since)));
        }
        let count = self.step(begin);
        // The counter has only one writer, so it is updated with a load and a store instead of an
        // atomic addition.
        self.socket.iterations.add(1);
        if begin >= self.next_statistics {
            self.copy_statistics();
            self.next_statistics = begin + STATISTICS_EVERY;
        }
        if count > 0 {
            if let Some(since) = self.idle_since.take() {
                self.spin.pause_ended(begin.duration_since(since));
            }
            self.busy_since = Some(begin);
            return;
        }
        self.engine.device_mut().run_drivers();
        let since = *self.idle_since.get_or_insert(begin);
        if self.sleeps && begin.duration_since(since) >= self.spin.limit() {
            self.sleep();
        } else {
            std::hint::spin_loop();
        }
    }

    /// Runs one iteration of the engine. Returns the number of processed packets.
    fn step(&mut self, begin: Instant) -> usize {
        if let Some(own) = self.wakers.get(self.number) {
            own.turn_begins();
        }
        let now = now(begin, self.origin);
        let count = self.engine.step(now);
        self.socket.last_iteration.set(now.nanos());
        self.wake_others();
        count
    }

    /// Sends the remaining packets. The number of packets is limited to the ring size, so that the
    /// loop ends even if packets keep arriving.
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

    /// Sleeps until a packet, a frame from another thread or a request arrives, or until a timeout
    /// of the forwarder is due.
    fn sleep(&mut self) {
        let Some(waker) = self.wakers.get(self.number) else { return };
        waker.sleeper.about_to_sleep();
        if self.engine.has_work() {
            waker.sleeper.awake();
            return;
        }
        let due = self.millis_until_due();
        // The end of a transmission does not wake the thread. While the kernel must still take
        // packets, or other threads need the frames that it is sending, the thread therefore sleeps
        // only briefly before it checks the rings again.
        let borrows = self.engine.is_sending_for_others();
        let device = self.engine.device_mut();
        device.wake_receivers();
        let sending = device.is_sending() || borrows;
        let at_most = if sending { RETRY_SEND_MS } else { SLEEP_AT_MOST_MS };
        let at_most = at_most.min(due);
        let woken = self.events.wait(at_most);
        waker.sleeper.awake();
        if sending && woken == Woken::Timeout {
            self.engine.device_mut().wake_again();
        }
    }

    /// Returns the time until the forwarder's next scheduled work, in milliseconds, rounded up.
    fn millis_until_due(&self) -> u8 {
        let Some(due) = self.engine.next_due() else { return SLEEP_AT_MOST_MS };
        let left = due.nanos().saturating_sub(now(Instant::now(), self.origin).nanos());
        u8::try_from(left.div_ceil(1_000_000)).unwrap_or(SLEEP_AT_MOST_MS)
    }

    fn copy_statistics(&mut self) {
        let device = self.engine.device_mut();
        device.wake_again();
        device.wake_receivers();
        self.socket.fill_low.add(u64::from(device.is_short_of_frames()));
        // If the socket statistics cannot be read, the previous values are kept.
        let _ = device.copy_statistics(&self.socket);
    }
}

fn now(moment: Instant, origin: Instant) -> Now {
    Now::from_nanos(nanos(moment.duration_since(origin)))
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// Pins the calling thread to a processor.
fn pin(thread: usize, processor: u32) {
    match move_to(std::iter::once(processor)) {
        Ok(()) => tracing::debug!(thread, processor, "packet thread pinned"),
        // log: The process is not allowed to use this processor. Check `CPUAffinity` in the systemd
        // unit, or the processor set of the container.
        Err(error) => tracing::warn!(thread, processor, %error, "packet thread not pinned"),
    }
}

/// Gives up all capabilities of the thread. The thread has already opened everything that it needs.
/// An attacker who takes control of the thread therefore gains no privileges.
pub(crate) fn give_up_capabilities() {
    let none = CapabilitySet::empty();
    let sets = CapabilitySets { effective: none, permitted: none, inheritable: none };
    if let Err(error) = set_capabilities(None, sets) {
        // log: The kernel refused to drop the capabilities of a data plane thread. The thread
        // works, but with more privileges than it needs.
        tracing::warn!(%error, "capabilities of a data plane thread not dropped");
    }
}

const STATISTICS_EVERY: Duration = Duration::from_secs(1);
/// The longest sleep in milliseconds. This is also the maximum delay of a timer in a thread that is
/// not woken.
const SLEEP_AT_MOST_MS: u8 = 100;
const RETRY_SEND_MS: u8 = 1;

#[cfg(test)]
mod tests {
    use std::os::fd::RawFd;
    use std::sync::mpsc::channel;

    use engine::{MemoryDevice, MemoryFrame, Pool, TxOwner, mesh};
    use forwarder::{DropReason, HandoffReason, InterfaceId, Outlet, Packet, ThreadId, Verdict};

    use super::*;
    use crate::stopping::ROUNDS;
    use crate::wait::Trigger;

    impl Sockets for MemoryDevice {
        const TRIGGER: Trigger = Trigger::Waiting;

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

    /// A test forwarder. The first byte of each test packet is a thread number. The forwarder sends
    /// packets with its own thread number, and passes all other packets to the thread with that
    /// number.
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
            panic!("{reason:?}: mailbox or ring full");
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

    /// Returns the engine of a packet thread or of the I/O thread. The last thread is the I/O
    /// thread, which receives all packets.
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
            events: Events::new(&wakers[number], std::iter::empty()).unwrap(),
            number,
            processor: None,
            sleeps: true,
            spin: AdaptiveSpin::new(Duration::ZERO, Duration::ZERO),
            rounds: Arc::clone(rounds),
            origin,
            born: None,
            through: Vec::new(),
            leave: Leave::new().0,
            idle_since: None,
            busy_since: None,
            next_statistics: origin,
        }
    }

    #[test]
    fn thread_sleeps_until_the_millisecond_of_its_next_timer() {
        let wakers: Arc<[Waker]> = (0..=PACKET_THREADS).map(|_| Waker::new().unwrap()).collect();
        let rounds = Arc::new(Rounds::new());
        let sleeps = |due: Option<u64>| {
            let mailboxes = mesh(PACKET_THREADS + 1, 1).remove(0);
            thread(mailboxes, &wakers, &rounds, due.map(Now::from_nanos)).millis_until_due()
        };
        assert_eq!(sleeps(None), SLEEP_AT_MOST_MS);
        assert_eq!(sleeps(Some(0)), 0);
        assert_eq!(sleeps(Some(3_600_000_000_000)), SLEEP_AT_MOST_MS);
        // The thread was created just before this check, so almost no time has elapsed.
        assert!((1..=50).contains(&sleeps(Some(50_000_000))));
    }

    // Promise: clean-stop
    #[test]
    fn threads_send_all_waiting_packets_before_they_end() {
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
            assert!(through.recv().is_err(), "the channel carries no messages");
            // In each round, the packets move on by one thread.
            let [packet_threads @ .., io] = &counters[..] else { panic!("there is an I/O thread") };
            let moved = match round {
                1 => io.rx.read(),
                2 => packet_threads.iter().map(|counters| counters.from_threads.read()).sum(),
                _ => io.tx.read(),
            };
            assert_eq!(moved, u64::from(PACKETS), "round {round}");
        }
        running.into_iter().for_each(|thread| thread.join().unwrap());
        let counted: Vec<u64> = counters.iter().map(|counters| counters.from_threads.read()).collect();
        assert_eq!(counted, [300, 300, 300, u64::from(PACKETS)]);
        assert_eq!(counters[usize::from(PACKET_THREADS)].tx.read(), u64::from(PACKETS));
    }
}
