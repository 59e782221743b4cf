//! Simulates several threads with one cache each, a server, and clients, in virtual time. Some
//! clients write through the load balancer, and others write directly to the server.
//!
//! Every value that a cache serves is compared with the history of the server. A served value must
//! not be older than one lease. If a write through the load balancer reaches the server within
//! [`SETTLE_NS`], the old value must not be served afterwards. With strict writes, a value must not
//! be served after the answer to a write has passed through the load balancer, even if the write
//! was slow. A seeded generator orders the events, so failures can be reproduced.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use proptest::prelude::*;

use super::server::{Change, Server};
use super::*;

#[derive(Debug)]
struct World {
    rules: Rules,
    random: u64,
    now: u64,
    /// The pending events, sorted by time and then by order of creation.
    events: BinaryHeap<Reverse<(u64, u64)>>,
    happening: Vec<Option<Event>>,
    epochs: Arc<Epochs>,
    threads: Vec<Thread>,
    server: Server,
    /// The time of the last relevant write of each key through the load balancer. For a quick
    /// write, this is the time when the write reaches the server. For a strict write, this is the
    /// time when its answer is forwarded.
    written: [u64; KEYS.len()],
    hits: u64,
}

#[derive(Debug)]
struct Thread {
    cache: Cache<u16>,
    /// The fetch that belongs to each request id.
    under_way: Vec<Option<u32>>,
}

#[derive(Debug)]
enum Event {
    Reads,
    Writes,
    /// A write through the load balancer reaches the server, within [`SETTLE_NS`] or later.
    Arrives {
        key: usize,
        change: Change,
        is_quick: bool,
        sent: u64,
    },
    /// The answer to a strict write arrives and is forwarded.
    Acknowledged {
        key: usize,
        arrived: u64,
        sent: u64,
    },
    Asked {
        thread: usize,
        request: u16,
        datagram: Vec<u8>,
    },
    Answered {
        thread: usize,
        request: u16,
        datagram: Vec<u8>,
    },
    TimeOut {
        thread: usize,
        request: u16,
    },
}

#[derive(Clone, Copy, Debug)]
struct Rules {
    lease: u64,
    /// The maximum delay of a datagram in nanoseconds. If `slow_writes` is set, writes may take
    /// longer.
    trip: u64,
    slow_writes: bool,
    /// `true` if answers to writes pass through the load balancer.
    strict: bool,
    /// The percentage of answers that are lost, and of answers that are repeated.
    lost: u64,
    reads_a_lease: u64,
    reads_a_write: u64,
}

const KEYS: [&[u8]; 3] = [b"a", b"b", b"c"];
const START: u64 = 100 * SECOND;
const TIME_OUT: u64 = 20 * MILLI;
/// The time after which an answer to a write is no longer accepted.
const ANSWER_TIME_OUT: u64 = SECOND;

impl World {
    fn new(seed: u64, rules: Rules) -> Self {
        let epochs = Arc::new(Epochs::new());
        let threads = (0..3).map(|_| Thread { cache: cache(&epochs), under_way: Vec::new() }).collect();
        let mut world = Self {
            rules,
            random: seed | 1,
            now: START,
            events: BinaryHeap::new(),
            happening: Vec::new(),
            epochs,
            threads,
            server: Server::new(seed % SECOND),
            written: [0; KEYS.len()],
            hits: 0,
        };
        world.after(0, Event::Reads);
        world.after(0, Event::Writes);
        world
    }

    fn pick(&mut self, below: u64) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        (self.random >> 11) % below.max(1)
    }

    fn index(&mut self, below: usize) -> usize {
        usize::try_from(self.pick(below as u64)).unwrap()
    }

    fn after(&mut self, nanos: u64, event: Event) {
        self.events.push(Reverse((self.now + nanos, self.happening.len() as u64)));
        self.happening.push(Some(event));
    }

    fn run(&mut self, events: usize) {
        for _ in 0..events {
            let Reverse((time, number)) = self.events.pop().unwrap();
            self.now = time;
            let event = self.happening[usize::try_from(number).unwrap()].take().unwrap();
            self.take(event);
        }
    }

    fn take(&mut self, event: Event) {
        match event {
            Event::Reads => {
                let (thread, key) = (self.index(self.threads.len()), self.index(KEYS.len()));
                self.read(thread, key);
                let next = self.pick(2 * self.rules.lease / self.rules.reads_a_lease);
                self.after(next, Event::Reads);
            }
            Event::Writes => {
                self.write();
                let next =
                    self.pick(2 * self.rules.lease / self.rules.reads_a_lease * self.rules.reads_a_write);
                self.after(next, Event::Writes);
            }
            Event::Arrives { key, change, is_quick, sent } => {
                self.server.change(self.now, KEYS[key][0], change);
                if self.rules.strict {
                    self.answer_write(key, sent);
                } else if is_quick {
                    self.written[key] = self.now;
                }
            }
            Event::Acknowledged { key, arrived, sent } => {
                if self.now < sent + ANSWER_TIME_OUT {
                    // The forwarding thread reads its clock shortly before it records the write.
                    self.epochs.key_written(self.now - self.random % MILLI, hash(KEYS[key]));
                    self.written[key] = self.written[key].max(arrived);
                }
            }
            Event::Asked { thread, request, datagram } => {
                let datagram = self.server.answer(self.now, &datagram);
                let (fate, trip) = (self.pick(100), self.pick(self.rules.trip));
                if fate >= self.rules.lost {
                    self.after(trip, Event::Answered { thread, request, datagram: datagram.clone() });
                }
                if fate >= 100 - self.rules.lost {
                    let trip = self.pick(self.rules.lease * 2);
                    self.after(trip, Event::Answered { thread, request, datagram });
                }
            }
            Event::Answered { thread, request, datagram } => {
                let Thread { cache, under_way } = &mut self.threads[thread];
                let Some(number) = under_way[usize::from(request)] else { return };
                let answer = FetchAnswer { number, request, payload: &datagram };
                cache.answer(self.now, &MEMCACHED, &answer).expect("the answer is valid");
                under_way[usize::from(request)] = None;
                self.send(thread);
            }
            Event::TimeOut { thread, request } => {
                let Thread { cache, under_way } = &mut self.threads[thread];
                under_way[usize::from(request)].take().into_iter().for_each(|number| cache.give_up(number));
            }
        }
    }

    fn read_of(&self, key: usize) -> Read<'static, u16> {
        Read { lease: Lease::from_nanos(self.rules.lease), ..read(KEYS[key]) }
    }

    fn read(&mut self, thread: usize, key: usize) {
        let (now, read) = (self.now, self.read_of(key));
        let cache = &mut self.threads[thread].cache;
        if let Some(number) = cache.look_up(now, &read) {
            let copied = cache.copy(number).unwrap();
            assert_eq!(copied.key, KEYS[key]);
            let value = copied.stored.bytes.to_vec();
            let oldest = (now - self.rules.lease).max(self.written[key]);
            assert!(
                self.server.had(KEYS[key][0], &value, oldest, now),
                "at {now} {} is served, but the oldest allowed time is {oldest}",
                value.escape_ascii()
            );
            self.hits += 1;
            if cache.served(now, number) {
                cache.renew(now, &read, number);
            }
        }
        self.send(thread);
    }

    fn write(&mut self) {
        let key = self.index(KEYS.len());
        let seconds = [None, None, Some(1), Some(2), Some(3)][self.index(5)];
        let around = self.pick(3) == 0;
        let change = match self.pick(20) {
            0..10 => Change::Set { seconds },
            10..13 => Change::Incr,
            13..15 => Change::Touch { seconds: seconds.unwrap_or(9) },
            15..18 => Change::Delete,
            18 if around => Change::Flush,
            19 if around => Change::Restart,
            _ => Change::Set { seconds: None },
        };
        if around {
            self.server.change(self.now, KEYS[key][0], change);
            return;
        }
        self.epochs.key_written(self.now, hash(KEYS[key]));
        let is_slow = self.rules.slow_writes && self.pick(4) == 0;
        let trip = self.pick(if is_slow { self.rules.lease } else { self.rules.trip.min(SETTLE_NS) });
        self.after(trip, Event::Arrives { key, change, is_quick: !is_slow, sent: self.now });
    }

    /// The server sends the answer to a write.
    fn answer_write(&mut self, key: usize, sent: u64) {
        let is_slow = self.pick(4) == 0;
        let trip = self.pick(if is_slow { self.rules.lease } else { self.rules.trip });
        if self.pick(100) >= self.rules.lost {
            self.after(trip, Event::Acknowledged { key, arrived: self.now, sent });
        }
    }

    /// Sends the requested fetches, as a thread does between two batches.
    fn send(&mut self, thread: usize) {
        let now = self.now;
        while let Some(number) = self.threads[thread].cache.ask(now) {
            let Thread { cache, under_way } = &mut self.threads[thread];
            let request = u16::try_from(under_way.len()).unwrap();
            under_way.push(Some(number));
            let mut out = [0; 1_400];
            let length = cache.write_fetch(&MEMCACHED, number, request, &mut out).unwrap();
            let (trip, datagram) = (self.pick(self.rules.trip), out[..length].to_vec());
            self.after(trip, Event::Asked { thread, request, datagram });
            self.after(TIME_OUT, Event::TimeOut { thread, request });
        }
    }

    fn counts(&self) -> (u64, u64) {
        let of = |count: fn(&CacheCounts) -> u64| {
            self.threads.iter().map(|thread| count(&thread.cache.counts())).sum()
        };
        (of(|counts| counts.asked), of(|counts| counts.stale_avoided))
    }
}

fn rules() -> impl Strategy<Value = Rules> {
    let lease = prop::sample::select(vec![10 * MILLI, 50 * MILLI, 100 * MILLI, SECOND]);
    let trip = prop::sample::select(vec![50_000, 500_000, 2 * MILLI]);
    let reads = prop::sample::select(vec![300, 1_000, 3_000]);
    let writes = prop::sample::select(vec![10, 100, 1_000]);
    (lease, trip, any::<bool>(), prop::sample::select(vec![0, 10]), (reads, writes)).prop_map(
        |(lease, trip, slow_writes, lost, (reads_a_lease, reads_a_write))| Rules {
            lease,
            trip,
            slow_writes,
            strict: false,
            lost,
            reads_a_lease,
            reads_a_write,
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, ..ProptestConfig::default() })]
    // Promise: cache-staleness
    #[test]
    fn no_read_is_older_than_a_lease_whoever_wrote(seed: u64, rules in rules()) {
        let mut world = World::new(seed, rules);
        world.run(8_000);
        let (asked, _) = world.counts();
        let seconds = (world.now - START) / SECOND + 1;
        let free = 3 * seconds * u64::from(FREE_FETCHES);
        prop_assert!(asked <= world.hits / 20 + free, "{asked} for {}", world.hits);
    }

    // Promise: cache-strict
    #[test]
    fn cache_strict_read_is_never_older_than_acknowledged_write(seed: u64, rules in rules()) {
        let mut world = World::new(seed, Rules { slow_writes: true, strict: true, ..rules });
        world.run(8_000);
    }
}

#[test]
fn cache_answers_most_reads_and_detects_writes() {
    let rules = Rules {
        lease: 10 * MILLI,
        trip: 50_000,
        slow_writes: false,
        strict: false,
        lost: 0,
        reads_a_lease: 1_000,
        reads_a_write: 500,
    };
    let mut world = World::new(7, rules);
    world.run(60_000);
    let (asked, avoided) = world.counts();
    assert!(world.hits > 15_000 && avoided > 50 && asked > 100, "{} {asked} {avoided}", world.hits);
}
