//! Simulates a lossy network in front of a memcached server. The simulated network loses,
//! duplicates, reorders and delays the balancer's upstream requests and the responses to them, and
//! inserts forged responses. Client requests and health checks are forwarded unchanged. The test
//! does not use netem, because the kernel on test machines does not include it.

use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use testbed::Namespace;

/// A simulated network that forwards datagrams until the handle is dropped.
pub(crate) struct LossyNetwork {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl LossyNetwork {
    /// Starts forwarding between the address `at`, to which clients send, and `server`.
    pub(crate) fn start(ns: &Namespace, at: SocketAddr, server: SocketAddr, seed: u64) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let ends = Arc::clone(&stop);
        let thread = ns.spawn(move || {
            let front = UdpSocket::bind(at).unwrap();
            front.set_read_timeout(Some(TICK)).unwrap();
            let other = UdpSocket::bind((at.ip(), 0)).unwrap();
            let behind = UdpSocket::bind((server.ip(), 0)).unwrap();
            behind.connect(server).unwrap();
            behind.set_read_timeout(Some(ANSWERS_WITHIN)).unwrap();
            let mut hop = Hop { front, other, behind, random: seed | 1, late: Vec::new() };
            while !ends.load(Ordering::Relaxed) {
                hop.turn();
            }
        });
        Self { stop, thread: Some(thread) }
    }
}

impl Drop for LossyNetwork {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

struct Hop {
    front: UdpSocket,
    /// A socket with the same address and a different port, which sends forged responses.
    other: UdpSocket,
    behind: UdpSocket,
    random: u64,
    late: Vec<(Instant, SocketAddr, Vec<u8>)>,
}

impl Hop {
    fn turn(&mut self) {
        let now = Instant::now();
        let (due, later) = std::mem::take(&mut self.late).into_iter().partition(|late| late.0 <= now);
        self.late = later;
        let due: Vec<(Instant, SocketAddr, Vec<u8>)> = due;
        for (_, to, datagram) in due {
            self.front.send_to(&datagram, to).unwrap();
        }
        let mut room = [0; 2_048];
        let Ok((length, from)) = self.front.recv_from(&mut room) else { return };
        let is_own = (61_000..=61_255).contains(&from.port());
        if is_own && self.one_in(12) {
            return; // the request is lost
        }
        let twice = is_own && self.one_in(10);
        // The server sends one response per command. Some commands have no response, so the time to
        // wait is limited.
        let commands = if is_own { room[8..length].iter().filter(|byte| **byte == b'\n').count() } else { 1 };
        let (request, mut answers) = (room[..length].to_vec(), Vec::new());
        for _ in 0..=usize::from(twice) {
            self.behind.send(&request).unwrap();
            for _ in 0..commands {
                let Ok(length) = self.behind.recv(&mut room) else { break };
                answers.push(room[..length].to_vec());
            }
        }
        if is_own {
            self.send_noisily(from, answers);
        } else {
            answers.iter().for_each(|answer| drop(self.front.send_to(answer, from)));
        }
    }

    fn send_noisily(&mut self, to: SocketAddr, mut answers: Vec<Vec<u8>>) {
        for at in (1..answers.len()).rev() {
            let other = usize::try_from(self.next() % (at as u64 + 1)).unwrap();
            answers.swap(at, other);
        }
        for answer in answers {
            if self.one_in(15) {
                let mut forged = answer.clone();
                let nonce = forged.windows(2).position(|pair| pair == b" O").map_or(21, |at| at + 4);
                forged[nonce] ^= 1;
                self.front.send_to(&forged, to).unwrap();
            }
            if self.one_in(15) {
                self.other.send_to(&answer, to).unwrap();
            }
            if self.one_in(25) {
                continue; // the response is lost
            }
            if self.one_in(25) {
                // The delay is longer than the balancer waits for a response.
                let wait = Duration::from_millis(210 + self.next() % 2_500);
                self.late.push((Instant::now() + wait, to, answer));
                continue;
            }
            for _ in 0..=u64::from(self.one_in(8)) {
                self.front.send_to(&answer, to).unwrap();
            }
        }
    }

    fn one_in(&mut self, count: u64) -> bool {
        self.next().is_multiple_of(count)
    }

    /// Returns the next number of a xorshift64 generator.
    fn next(&mut self) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random >> 11
    }
}

const TICK: Duration = Duration::from_millis(5);
const ANSWERS_WITHIN: Duration = Duration::from_secs(2);
