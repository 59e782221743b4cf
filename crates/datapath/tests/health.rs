//! A packet thread that hangs is seen from outside: engines over queues in memory, one forwarder that stands still on demand.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use datapath::Progress;
use engine::{Engine, MemoryDevice, MemoryFrame, Pool, mesh};
use forwarder::{DropReason, Forward, Now, Outlet, Packet, ThreadCounters, ThreadId, Verdict};

/// Drops all. A packet that starts with 1 holds it up until the test lets it go.
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

/// Packets that are on their way to the queue, and how many of them wait for the thread.
struct Queue {
    packets: Sender<u8>,
    waiting: Arc<AtomicU64>,
    turns: Arc<AtomicU64>,
}

impl Queue {
    fn send(&self, kind: u8) {
        self.waiting.fetch_add(1, Ordering::SeqCst);
        self.packets.send(kind).unwrap();
    }

    /// What the monitor of a real data plane reads.
    fn is_stuck(&self, progress: &mut Progress) -> bool {
        let waiting = || self.waiting.load(Ordering::SeqCst) > 0;
        progress.is_stuck(Instant::now(), self.turns.load(Ordering::SeqCst), waiting)
    }
}

fn queue() -> (Queue, Receiver<()>, Sender<()>, thread::JoinHandle<()>) {
    let (hangs, hung) = channel();
    let (let_go, go_on) = channel();
    let (packets, arriving) = channel();
    let (waiting, turns) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let (their_waiting, their_turns) = (Arc::clone(&waiting), Arc::clone(&turns));
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
                // As a real one it sleeps, and not for long.
                Err(TryRecvError::Empty) => thread::sleep(Duration::from_millis(50)),
            }
            let done = engine.step(Now::from_nanos(0)) as u64;
            their_waiting.fetch_sub(done, Ordering::SeqCst);
            their_turns.fetch_add(1, Ordering::SeqCst);
        }
    });
    (Queue { packets, waiting, turns }, hung, let_go, thread)
}

/// Looks four times a second until a look says `wanted`: how long that took.
fn until(queue: &Queue, progress: &mut Progress, wanted: bool) -> Duration {
    let start = Instant::now();
    while queue.is_stuck(progress) != wanted {
        assert!(start.elapsed() < BOUND, "not {wanted} in {BOUND:?}");
        thread::sleep(Duration::from_millis(250));
    }
    start.elapsed()
}

#[test]
fn a_thread_that_hangs_on_a_packet_is_seen_and_so_is_that_it_goes_on() {
    let (queue, hung, let_go, thread) = queue();
    let mut progress = Progress::new(Instant::now());
    queue.send(0);
    while queue.waiting.load(Ordering::SeqCst) > 0 {
        thread::sleep(Duration::from_millis(1));
    }
    // Idle for longer than a thread that hangs is given.
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

/// Ten times the promise.
const BOUND: Duration = Duration::from_secs(10);
