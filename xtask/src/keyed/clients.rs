//! Implements the load generator of `bench kv`: one thread that sends requests over several sockets
//! and verifies every response.
//!
//! The result of a run is a [`Tally`]. With [`Pace::Full`], a client sends the next request as soon
//! as it receives a response. With [`Pace::PerSecond`], requests are sent at even intervals, and
//! overdue requests are skipped. The measured response time includes the system calls that send the
//! request and read the response. The modules `udp` and `tcp` implement the clients. The module
//! `draw` chooses keys, and `ledger` decides which values are correct.

use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::prctl;
use nix::sys::time::TimeSpec;

use crate::keyed::draw::Draw;
use crate::keyed::ledger::{Asked, Finding, Ledger, Verb};
use crate::keyed::protocol::{Answer, write_get, write_set};
use crate::statistics::{percentile, rate};

/// A client of the load generator, which has one socket.
pub(crate) trait Client {
    /// Returns the file descriptor that becomes readable when a response arrives.
    fn descriptor(&self) -> BorrowedFd<'_>;

    /// Returns how many more requests the client can send now.
    fn room(&self) -> usize;

    /// Returns `true` if the client has no outstanding requests.
    fn is_idle(&self) -> bool;

    /// Queues a request, which the next flush sends. The caller must check [`Self::room`] first.
    fn ask(&mut self, asked: Asked, command: &[u8]);

    /// Sends the queued requests.
    fn flush(&mut self) -> Result<()>;

    /// Passes each response that has arrived to `each`, without waiting for more responses.
    fn take(&mut self, each: &mut dyn FnMut(Asked, Answer<'_>)) -> Result<()>;

    /// Gives up on requests that were sent before the given time, and passes each of them to
    /// `each`.
    fn give_up(&mut self, before: Instant, each: &mut dyn FnMut(Asked)) -> Result<()>;
}

/// The rate at which requests are sent.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Pace {
    /// A client sends a new request whenever its number of unanswered requests is below the limit.
    Full,
    /// The given number of requests per second, over all clients.
    PerSecond(f64),
}

/// The results of a run.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tally {
    /// The time during which requests were sent.
    pub(crate) length: Duration,
    /// The response times, sorted.
    pub(crate) times: Vec<Duration>,
    pub(crate) lost: u64,
    pub(crate) missed: u64,
    pub(crate) old: u64,
    pub(crate) wrong: u64,
}

impl Tally {
    pub(crate) fn answered(&self) -> u64 {
        self.times.len() as u64
    }

    /// Returns the number of responses per second.
    pub(crate) fn per_second(&self) -> f64 {
        rate(self.answered(), self.length)
    }

    /// Returns a percentile of the response times, in microseconds.
    pub(crate) fn micros(&self, per_mille: usize) -> f64 {
        percentile(&self.times, per_mille).as_secs_f64() * 1e6
    }

    /// Returns the mean response time in microseconds.
    pub(crate) fn mean_micros(&self) -> f64 {
        let sum: Duration = self.times.iter().sum();
        1e6 / rate(self.answered(), sum)
    }

    fn count(&mut self, finding: Finding, time: Duration) {
        self.times.push(time);
        match finding {
            Finding::Right => {}
            Finding::Old => self.old += 1,
            Finding::Missed => self.missed += 1,
            Finding::Wrong => self.wrong += 1,
        }
    }
}

/// All clients, and the state that they share.
pub(crate) struct Clients {
    clients: Vec<Box<dyn Client>>,
    draw: Draw,
    /// The fraction of requests that are reads.
    gets: f64,
    pub(crate) ledger: Ledger,
    command: Vec<u8>,
    /// The index of the client that sends the next request at a fixed rate.
    turn: usize,
}

impl Clients {
    /// Creates the load generator. The argument `gets` is the fraction of requests that are reads.
    pub(crate) fn new(clients: Vec<Box<dyn Client>>, draw: Draw, gets: f64, ledger: Ledger) -> Self {
        Self { clients, draw, gets, ledger, command: Vec::new(), turn: 0 }
    }

    /// Sends requests for `length` on the calling thread, and then waits for the last responses.
    pub(crate) fn run(&mut self, pace: Pace, length: Duration) -> Result<Tally> {
        // With the default timer slack, a request at a fixed rate could be late by 50 us.
        prctl::set_timerslack(1)?;
        let begin = Instant::now();
        let (end, mut due, mut look) = (begin + length, begin, begin + LOOK);
        let mut tally = Tally::default();
        loop {
            let now = Instant::now();
            if now >= end {
                break;
            }
            let next = match pace {
                Pace::Full => self.ask_all(now)?,
                Pace::PerSecond(rate) => {
                    due = self.ask_due(due, now, Duration::from_secs_f64(1.0 / rate))?;
                    due
                }
            };
            self.wait_and_take(next.min(end), &mut tally)?;
            if now >= look {
                look = now + LOOK;
                self.give_up(now, &mut tally)?;
            }
        }
        tally.length = begin.elapsed();
        self.settle(&mut tally)?;
        tally.times.sort_unstable();
        ensure!(tally.answered() > 0, "no request was answered within {length:?}");
        Ok(tally)
    }

    /// Sends requests until every client has its maximum number of outstanding requests. Returns
    /// the time of the next check for lost requests.
    fn ask_all(&mut self, now: Instant) -> Result<Instant> {
        for at in 0..self.clients.len() {
            for _ in 0..self.clients[at].room() {
                self.ask(at, now);
            }
            self.clients[at].flush()?;
        }
        Ok(now + LOOK)
    }

    /// Sends all requests that are due. Returns the time at which the next request is due.
    fn ask_due(&mut self, mut due: Instant, now: Instant, interval: Duration) -> Result<Instant> {
        let first = self.turn;
        while due <= now {
            let free = (0..self.clients.len()).map(|n| (self.turn + n) % self.clients.len());
            let Some(at) = free.into_iter().find(|&at| self.clients[at].room() > 0) else { break };
            self.ask(at, now);
            self.turn = at + 1;
            due += interval;
        }
        if self.turn != first {
            self.clients.iter_mut().try_for_each(|client| client.flush())?;
        }
        let is_late = now.saturating_duration_since(due) > MOST_LATE;
        Ok(if is_late { now + interval } else { due })
    }

    fn ask(&mut self, at: usize, now: Instant) {
        let key = self.draw.key();
        self.command.clear();
        let is_get = self.gets >= 1.0 || self.draw.part() < self.gets;
        let asked = if is_get { self.ledger.get(key, now) } else { self.ledger.set(key, now) };
        match asked.verb {
            Verb::Get { .. } => write_get(key, &mut self.command),
            Verb::Set { version } => {
                write_set(key, version, self.ledger.value_bytes(), &mut self.command);
            }
        }
        self.clients[at].ask(asked, &self.command);
    }

    /// Waits for responses until `until`, and reads all responses that arrive.
    fn wait_and_take(&mut self, until: Instant, tally: &mut Tally) -> Result<()> {
        let left = TimeSpec::from_duration(until.saturating_duration_since(Instant::now()));
        let mut polled: Vec<PollFd<'_>> =
            self.clients.iter().map(|client| PollFd::new(client.descriptor(), PollFlags::POLLIN)).collect();
        match ppoll(&mut polled, Some(left), None) {
            Ok(_) | Err(Errno::EINTR) => {}
            Err(error) => return Err(error.into()),
        }
        let ready: Vec<bool> = polled.iter().map(|one| one.any().unwrap_or_default()).collect();
        let Self { clients, ledger, .. } = self;
        for (client, _) in clients.iter_mut().zip(ready).filter(|(_, is_ready)| *is_ready) {
            let mut came = None;
            client.take(&mut |asked, answer| {
                let now = *came.get_or_insert_with(Instant::now);
                tally.count(ledger.judge(&asked, answer, now), now - asked.sent);
            })?;
        }
        Ok(())
    }

    fn give_up(&mut self, now: Instant, tally: &mut Tally) -> Result<()> {
        let Self { clients, ledger, .. } = self;
        let Some(before) = now.checked_sub(PATIENCE) else { return Ok(()) };
        clients.iter_mut().try_for_each(|client| {
            client.give_up(before, &mut |asked| {
                ledger.lost(&asked);
                tally.lost += 1;
            })
        })
    }

    /// Waits for the responses to all outstanding requests.
    fn settle(&mut self, tally: &mut Tally) -> Result<()> {
        while !self.clients.iter().all(|client| client.is_idle()) {
            self.clients.iter_mut().try_for_each(|client| client.flush())?;
            self.wait_and_take(Instant::now() + LOOK, tally)?;
            self.give_up(Instant::now(), tally)?;
        }
        Ok(())
    }
}

/// The interval between two checks for lost requests.
const LOOK: Duration = Duration::from_millis(10);
/// The time after which a request is considered lost. A response takes less than a millisecond on
/// the testbed's links, but other programs may delay the response.
const PATIENCE: Duration = Duration::from_secs(1);
/// The maximum delay of a request at a fixed rate. Requests that are overdue by more are skipped.
const MOST_LATE: Duration = Duration::from_millis(1);

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;
    use std::thread;

    use super::*;
    use crate::keyed::draw::Popularity;
    use crate::keyed::protocol::name;
    use crate::keyed::udp::Udp;

    /// Starts a server on loopback that responds with the result of `answer`. Responses are split
    /// into datagrams with `piece` payload bytes each.
    fn server(
        piece: usize,
        answer: impl Fn(&[u8]) -> Option<Vec<u8>> + Send + 'static,
    ) -> std::net::SocketAddrV4 {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let std::net::SocketAddr::V4(address) = socket.local_addr().unwrap() else { unreachable!() };
        socket.set_read_timeout(Some(20 * PATIENCE)).unwrap();
        thread::spawn(move || {
            let mut room = [0; 4_096];
            while let Ok((bytes, from)) = socket.recv_from(&mut room) {
                let Some(said) = answer(&room[8..bytes]) else { continue };
                let total = u8::try_from(said.len().div_ceil(piece)).unwrap();
                for (part, sequence) in said.chunks(piece).zip(0..) {
                    let frame = [room[0], room[1], 0, sequence, 0, total, 0, 0];
                    socket.send_to(&[&frame, part].concat(), from).unwrap();
                }
            }
        });
        address
    }

    /// Returns memcached's response to a get, for a value with version 1.
    fn get(command: &[u8], value_bytes: usize) -> Option<Vec<u8>> {
        let digits = std::str::from_utf8(command.strip_prefix(b"get key:")?).unwrap().trim();
        let key: u32 = digits.parse().unwrap();
        let mut set = Vec::new();
        write_set(key, 1, value_bytes, &mut set);
        let line = set.iter().position(|&byte| byte == b'\n').unwrap() + 1;
        let head = format!("VALUE {} 0 {value_bytes}\r\n", String::from_utf8_lossy(&name(key)));
        Some([head.as_bytes(), &set[line..], b"END\r\n"].concat())
    }

    fn clients(server: std::net::SocketAddrV4, gets: f64, value_bytes: usize) -> Clients {
        let client = Udp::new(UdpSocket::bind("127.0.0.1:0").unwrap(), &[server], 4);
        let ledger = Ledger::new(50, 1, value_bytes, Duration::ZERO);
        Clients::new(vec![Box::new(client)], Draw::new(Popularity::Even, 50, 9), gets, ledger)
    }

    const SHORT: Duration = Duration::from_millis(200);

    #[test]
    fn each_response_counts_once_and_datagrams_are_joined() {
        for (value_bytes, piece) in [(64, 1_392), (3_000, 100)] {
            let server = server(piece, move |command| get(command, value_bytes));
            let mut clients = clients(server, 1.0, value_bytes);
            for pace in [Pace::Full, Pace::PerSecond(500.0)] {
                let tally = clients.run(pace, SHORT).unwrap();
                assert_eq!((tally.lost, tally.missed, tally.old, tally.wrong), (0, 0, 0, 0));
                assert!(tally.times.is_sorted() && tally.per_second() > 0.0);
                assert!(matches!(pace, Pace::Full) || tally.answered() <= 101, "{}", tally.answered());
            }
        }
    }

    #[test]
    fn missing_response_is_lost_and_false_value_is_wrong() {
        let silent = server(1_392, |command| get(command, 64).filter(|_| !command.ends_with(b"7\r\n")));
        let tally = clients(silent, 1.0, 64).run(Pace::Full, SHORT).unwrap();
        assert!(tally.lost > 0 && tally.wrong == 0, "{tally:?}");
        let other = server(1_392, |_| get(b"get key:00000099\r\n", 64));
        let tally = clients(other, 1.0, 64).run(Pace::Full, SHORT).unwrap();
        assert!(tally.wrong == tally.answered() && tally.lost == 0, "{tally:?}");
        let empty = server(1_392, |_| Some(b"END\r\n".to_vec()));
        let tally = clients(empty, 1.0, 64).run(Pace::Full, SHORT).unwrap();
        assert!(tally.missed == tally.answered(), "{tally:?}");
        let forgetful = server(1_392, |command| get(command, 64).or_else(|| Some(b"STORED\r\n".to_vec())));
        let tally = clients(forgetful, 0.5, 64).run(Pace::Full, SHORT).unwrap();
        assert!(tally.wrong > 0 && tally.missed == 0, "reads older than a write count as wrong: {tally:?}");
    }
}
