//! Checks that another thread can detect a stuck packet thread. The test uses engines with
//! in-memory queues, and a forwarder that blocks on request.

#![allow(clippy::unwrap_used, reason = "a failed test may panic")]

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use datapath::Progress;
use engine::{Engine, MemoryDevice, MemoryFrame, Pool, mesh};
use forwarder::{DropReason, Forward, Now, Outlet, Packet, ThreadCounters, ThreadId, Verdict};

/// A forwarder that drops all packets. A packet whose first byte is 1 blocks the forwarder until
/// the test releases it.
struct Hook {
    hangs: Sender<()>,
    go_on: Mutex<Receiver<()>>,
}

impl Forward for Hook {
    fn process(&mut self, _: Now, packets: &mut [Packet<'_>], verdicts: &mut [Verdict]) {
        for (packet, verdict) in packets.iter_mut().zip(verdicts) {
            if packet.frame().first() == Some(&1) {
                self.hangs.send(()).unwrap();
                self.go_on.get_mut().unwrap().recv().unwrap();
            }
            *verdict = Verdict::Drop(DropReason::NoVip);
        }
    }

    fn poll(&mut self, _: Now, _: &mut dyn Outlet) {}

    fn failed(&mut self, _: DropReason) {}

    fn max_batch(&self) -> usize {
        8
    }

    fn hold_slots(&self) -> usize {
        0
    }
}

/// The channel that delivers packets to the thread, and the number of packets that wait for the
/// thread.
struct Queue {
    packets: Sender<u8>,
    waiting: Arc<AtomicU64>,
    iterations: Arc<AtomicU64>,
}

impl Queue {
    fn send(&self, kind: u8) {
        self.waiting.fetch_add(1, Ordering::SeqCst);
        self.packets.send(kind).unwrap();
    }

    /// Returns `true` if the thread is stuck. The check uses the same values as the health monitor
    /// of a data plane.
    fn is_stuck(&self, progress: &mut Progress) -> bool {
        let waiting = || self.waiting.load(Ordering::SeqCst) > 0;
        progress.is_stuck(Instant::now(), self.iterations.load(Ordering::SeqCst), Duration::ZERO, waiting)
    }
}

fn queue() -> (Queue, Receiver<()>, Sender<()>, thread::JoinHandle<()>) {
    let (hangs, hung) = channel();
    let (let_go, go_on) = channel();
    let (packets, arriving) = channel();
    let (waiting, iterations) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let (their_waiting, their_turns) = (Arc::clone(&waiting), Arc::clone(&iterations));
    let thread = thread::spawn(move || {
        let frames = (0..8).map(|_| MemoryFrame::new(ThreadId(0), 64)).collect();
        let counters = Arc::new(ThreadCounters::new(1, 1));
        let hook = Hook { hangs, go_on: Mutex::new(go_on) };
        let mailboxes = mesh(1, 8).pop().unwrap();
        let mut engine =
            Engine::new(MemoryDevice::new(8), hook, mailboxes, Pool { frames, in_all: 8 }, counters);
        loop {
            match arriving.try_recv() {
                Ok(kind) => assert!(engine.device_mut().inject(&[kind; 60], 0)),
                Err(TryRecvError::Disconnected) => return,
                // A real packet thread also sleeps briefly when no packets arrive.
                Err(TryRecvError::Empty) => thread::sleep(Duration::from_millis(50)),
            }
            let done = engine.step(Now::from_nanos(0)) as u64;
            their_waiting.fetch_sub(done, Ordering::SeqCst);
            their_turns.fetch_add(1, Ordering::SeqCst);
        }
    });
    (Queue { packets, waiting, iterations }, hung, let_go, thread)
}

/// Checks four times a second until the result is `wanted`. Returns how long this took.
fn until(queue: &Queue, progress: &mut Progress, wanted: bool) -> Duration {
    let start = Instant::now();
    while queue.is_stuck(progress) != wanted {
        assert!(start.elapsed() < BOUND, "not {wanted} in {BOUND:?}");
        thread::sleep(Duration::from_millis(250));
    }
    start.elapsed()
}

#[test]
fn progress_detects_a_hanging_thread_and_its_recovery() {
    let (queue, hung, let_go, thread) = queue();
    let mut progress = Progress::new(Instant::now());
    queue.send(0);
    while queue.waiting.load(Ordering::SeqCst) > 0 {
        thread::sleep(Duration::from_millis(1));
    }
    // The thread is idle for longer than the time after which a thread is considered stuck.
    for _ in 0..4 {
        thread::sleep(Duration::from_millis(250));
        assert!(!queue.is_stuck(&mut progress), "an idle thread is healthy");
    }
    queue.send(1);
    queue.send(0);
    hung.recv_timeout(BOUND).unwrap();
    println!("stuck after {:?}", until(&queue, &mut progress, true));
    let_go.send(()).unwrap();
    println!("free after {:?}", until(&queue, &mut progress, false));
    drop(queue);
    thread.join().unwrap();
}

/// The time limit of the test, which is ten times the promised limit.
const BOUND: Duration = Duration::from_secs(10);
