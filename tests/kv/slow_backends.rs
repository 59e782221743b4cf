//! Simulates a network that delays writes to a memcached server, and the responses to these writes.
//! Reads, health checks and upstream requests are not delayed, so the balancer fetches values while
//! writes are in flight. The test does not use netem, because the kernel on test machines does not
//! include it.

use std::net::{SocketAddr, UdpSocket};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use testbed::Namespace;

/// A simulated network that forwards datagrams until the handle is dropped.
pub(crate) struct SlowBackends {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl SlowBackends {
    /// Starts forwarding between the address `at`, to which clients send, and `server`.
    pub(crate) fn start(ns: &Namespace, at: SocketAddr, server: SocketAddr, seed: u64) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let ends = Arc::clone(&stop);
        let thread = ns.spawn(move || {
            let front = UdpSocket::bind(at).unwrap();
            let behind = UdpSocket::bind((server.ip(), 0)).unwrap();
            behind.connect(server).unwrap();
            behind.set_read_timeout(Some(ANSWERS_WITHIN)).unwrap();
            let mut hop = Hop { front, behind, random: seed | 1, waiting: Vec::new() };
            while !ends.load(Ordering::Relaxed) {
                hop.turn();
            }
        });
        Self { stop, thread: Some(thread) }
    }
}

impl Drop for SlowBackends {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

struct Hop {
    front: UdpSocket,
    behind: UdpSocket,
    random: u64,
    waiting: Vec<Waiting>,
}

struct Waiting {
    until: Instant,
    client: SocketAddr,
    datagram: Vec<u8>,
    /// `true` if the server sent the datagram.
    is_answer: bool,
}

impl Hop {
    fn turn(&mut self) {
        let now = Instant::now();
        while let Some(at) = self.waiting.iter().position(|waiting| waiting.until <= now) {
            let Waiting { client, datagram, is_answer, .. } = self.waiting.swap_remove(at);
            if is_answer {
                // the client may have closed its socket
                let _ = self.front.send_to(&datagram, client);
            } else if let Some(answer) = self.ask(&datagram) {
                self.wait(BACK, client, answer, true);
            }
        }
        let next = self.waiting.iter().map(|waiting| waiting.until.saturating_duration_since(now)).min();
        let patience = next.unwrap_or(TICK).clamp(Duration::from_micros(100), TICK);
        self.front.set_read_timeout(Some(patience)).unwrap();
        let mut room = [0; 2_048];
        let Ok((length, client)) = self.front.recv_from(&mut room) else { return };
        let datagram = &room[..length];
        if [&b"set "[..], b"delete "].iter().any(|verb| datagram[8..].starts_with(verb)) {
            self.wait(THERE, client, datagram.to_vec(), false);
        } else if let Some(answer) = self.ask(datagram) {
            let _ = self.front.send_to(&answer, client);
        }
    }

    fn ask(&self, datagram: &[u8]) -> Option<Vec<u8>> {
        self.behind.send(datagram).unwrap();
        let mut room = [0; 2_048];
        let length = self.behind.recv(&mut room).ok()?;
        Some(room[..length].to_vec())
    }

    fn wait(&mut self, span: Range<u64>, client: SocketAddr, datagram: Vec<u8>, is_answer: bool) {
        // One step of a xorshift64 generator.
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        let millis = span.start + (self.random >> 11) % (span.end - span.start);
        let until = Instant::now() + Duration::from_millis(millis);
        self.waiting.push(Waiting { until, client, datagram, is_answer });
    }
}

/// The delay of a write in milliseconds. The minimum delay is longer than the time that the
/// balancer waits between a write of a key and its next fetch of this key.
const THERE: Range<u64> = 5..60;
const BACK: Range<u64> = 0..30;
const TICK: Duration = Duration::from_millis(5);
const ANSWERS_WITHIN: Duration = Duration::from_secs(2);
