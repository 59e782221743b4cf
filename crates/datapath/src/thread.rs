//! A packet thread: pinned, runs its engine until the stop flag is set, and sleeps when nothing comes.
//!
//! In: an engine over the sockets of its queues. Out: its counters. The only place that reads the clock, once a turn.
//! Invariant: a batch is what has arrived; nothing waits for a batch to fill.

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};

use arrayvec::ArrayVec;
use forwarder::{Now, Pipeline, ThreadCounters};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;
use rustix::thread::{CapabilitySet, CapabilitySets, set_capabilities};

use crate::engine::Engine;
use crate::interface::MAX_INTERFACES;
use crate::sockets::{SocketCounters, Sockets};
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

pub(crate) struct PacketThread<D: Sockets> {
    pub(crate) engine: Engine<D, Pipeline>,
    pub(crate) counters: Arc<ThreadCounters>,
    pub(crate) socket: Arc<SocketCounters>,
    pub(crate) wakers: Arc<[Waker]>,
    pub(crate) number: usize,
    pub(crate) idle: Idle,
    pub(crate) stop: Arc<AtomicBool>,
    pub(crate) origin: Instant,
    /// Let go once the thread is on its processor and has given up its capabilities.
    pub(crate) born: Option<Sender<()>>,
}

impl<D: Sockets> PacketThread<D> {
    /// Until `stop`. What is in the rings then is still sent.
    pub(crate) fn run(mut self) {
        pin(self.number);
        give_up_capabilities();
        self.born = None;
        let mut idle_since: Option<Instant> = None;
        let mut next_statistics = self.origin;
        while !self.stop.load(Ordering::Relaxed) {
            let begin = Instant::now();
            let count = self.engine.step(now(begin, self.origin));
            self.wake_others();
            // One writer: a load and a store, no locked instruction.
            self.socket.turns.add(1);
            if begin >= next_statistics {
                self.copy_statistics();
                next_statistics = begin + STATISTICS_EVERY;
            }
            if count > 0 {
                idle_since = None;
                let busy = u64::try_from(begin.elapsed().as_nanos()).unwrap_or(u64::MAX);
                self.counters.busy_nanos.add(busy);
                continue;
            }
            let since = *idle_since.get_or_insert(begin);
            if self.idle.sleep && begin.duration_since(since) >= self.idle.spin {
                self.sleep();
            } else {
                std::hint::spin_loop();
            }
        }
        self.send_what_is_left();
        self.copy_statistics();
    }

    /// The rings are bounded, so this ends, even if packets keep coming.
    fn send_what_is_left(&mut self) {
        let mut left = RING;
        while left > 0 && self.engine.step(now(Instant::now(), self.origin)) > 0 {
            left -= 1;
        }
    }

    fn wake_others(&mut self) {
        let wakers = &self.wakers;
        self.engine.notify().drain(|thread| {
            if let Some(waker) = wakers.get(usize::from(thread.0)) {
                waker.wake();
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
        let device = self.engine.device_mut();
        // What is being sent comes back without a bell: with packets in the transmit ring, or on the wire and so not with
        // the receive side, the rings are looked at again soon.
        let sending = device.is_sending();
        let at_most = if sending { RETRY_SEND_MS } else { SLEEP_AT_MOST_MS };
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

/// Puts the thread on the `number`th of the processors that the process may use, round again when there are fewer.
fn pin(number: usize) {
    let me = Pid::from_raw(0);
    let Ok(allowed) = sched_getaffinity(me) else { return };
    let cpus: Vec<usize> = (0..CpuSet::count()).filter(|cpu| allowed.is_set(*cpu).unwrap_or(false)).collect();
    let Some(cpu) = cpus.get(number % cpus.len().max(1)) else { return };
    let mut one = CpuSet::new();
    let pinned = one.set(*cpu).and_then(|()| sched_setaffinity(me, &one));
    match pinned {
        Ok(()) => tracing::debug!(thread = number, cpu, "packet thread pinned"),
        Err(error) => tracing::warn!(thread = number, cpu, %error, "packet thread not pinned"),
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
