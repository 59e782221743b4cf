//! Readers and writers that use a few hot keys in parallel until the test stops them.
//!
//! If a response is missing, a client repeats the request, because UDP may lose datagrams. Requests
//! are counted separately for each server.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use testbed::QueryClient;

use crate::history::{Read, Write, get, set, value};
use crate::pair::{Key, Pair};
use crate::scene::{BOUND, PORT};

pub(crate) struct Load {
    pub(crate) keys: Vec<Key>,
    stop: AtomicBool,
    begin: Instant,
    /// For each reader, the time at which it sent its last answered request, in nanoseconds since
    /// `begin`.
    answered: Vec<AtomicU64>,
    /// The time without a response after which a reader repeats a request.
    patience: Duration,
    /// The number of `get` requests that were sent, for each server.
    sent: [AtomicU64; 2],
    settled: [AtomicU64; 2],
}

/// Stops readers and writers when it is dropped, even during a panic.
pub(crate) struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// The path of a write to its server.
pub(crate) enum Way {
    /// Through a VIP of the balancers.
    Through(QueryClient),
    /// Directly to the server, without the balancers.
    Around(TcpStream),
}

impl Way {
    pub(crate) fn around(pair: &Pair, key: &Key) -> Self {
        let server = SocketAddr::new(pair.bed.backends[key.server].v4.into(), PORT);
        Self::Around(pair.bed.client.ns.run(move || {
            let stream = TcpStream::connect(server).unwrap();
            stream.set_read_timeout(Some(BOUND)).unwrap();
            stream
        }))
    }

    fn say(&mut self, command: &[u8]) -> Vec<u8> {
        match self {
            Self::Through(client) => {
                let mut tries = (0..TRIES).filter_map(|_| client.ask_within(command, ONCE));
                tries.next().unwrap_or_else(|| panic!("no response to {}", command.escape_ascii()))
            }
            Self::Around(stream) => {
                stream.write_all(command).unwrap();
                let (mut line, mut byte) = (Vec::new(), [0]);
                while !line.ends_with(b"\r\n") {
                    stream.read_exact(&mut byte).unwrap();
                    line.extend(byte);
                }
                line
            }
        }
    }
}

/// The settings of a writer.
pub(crate) struct Writer {
    /// The index of the key in [`Load::keys`].
    pub(crate) key: usize,
    pub(crate) ways: Vec<Way>,
    /// The number of writes after which the writer stops.
    pub(crate) writes: u32,
    /// Every n-th write is a delete. 0 means that there are no deletes.
    pub(crate) deletes: u32,
    /// The minimum and the maximum pause between a reply and the next write.
    pub(crate) pause: Range<Duration>,
}

impl Load {
    /// Creates a load for keys that have the value 0.
    pub(crate) fn new(keys: Vec<Key>, readers: usize) -> Self {
        let zero = || [const { AtomicU64::new(0) }; 2];
        let answered = (0..readers).map(|_| AtomicU64::new(0)).collect();
        Self {
            keys,
            stop: AtomicBool::new(false),
            begin: Instant::now(),
            answered,
            patience: ONCE,
            sent: zero(),
            settled: zero(),
        }
    }

    /// Sets the time without a response after which readers repeat a request.
    pub(crate) fn asking_again_after(self, patience: Duration) -> Self {
        Self { patience, ..self }
    }

    pub(crate) fn stop_later(&self) -> Stop<'_> {
        Stop(&self.stop)
    }

    pub(crate) fn is_over(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// Reads all keys in turn until the load stops. `peers` are the readers whose requests reach
    /// the same balancer.
    pub(crate) fn read(&self, reader: usize, peers: Range<usize>, client: &QueryClient) -> Vec<Read> {
        let mut reads = Vec::new();
        for key in (0..self.keys.len()).cycle() {
            if self.is_over() {
                break;
            }
            let read = self.read_once(key, peers.clone(), client);
            let sent = u64::try_from((read.sent - self.begin).as_nanos()).unwrap();
            self.answered[reader].store(sent, Ordering::SeqCst);
            reads.push(read);
        }
        reads
    }

    fn read_once(&self, key: usize, peers: Range<usize>, client: &QueryClient) -> Read {
        let Key { name, server } = &self.keys[key];
        let since = self.answered[peers].iter().map(|sent| sent.load(Ordering::SeqCst)).min().unwrap();
        let since = self.begin + Duration::from_nanos(since);
        let end = Instant::now() + TRIES * ONCE;
        while Instant::now() < end {
            self.sent[*server].fetch_add(1, Ordering::SeqCst);
            let sent = Instant::now();
            let said = client.ask_within(&get(name), self.patience);
            let received = Instant::now();
            self.settled[*server].fetch_add(1, Ordering::SeqCst);
            if let Some(said) = said {
                return Read { key, value: value(name, &said), since, sent, received };
            }
            let (at, patience) = (self.begin.elapsed(), self.patience);
            println!("no response for key {name} within {patience:?}, {at:?} after the start");
        }
        panic!("no response for {name}");
    }

    /// Returns how many `get` requests were sent to each server.
    pub(crate) fn sent(&self) -> [u64; 2] {
        [0, 1].map(|server| self.sent[server].load(Ordering::SeqCst))
    }

    /// Returns the number of `get` requests to each server that were answered or timed out.
    pub(crate) fn settled(&self) -> [u64; 2] {
        [0, 1].map(|server| self.settled[server].load(Ordering::SeqCst))
    }

    /// Returns how many `get` requests got no reply.
    pub(crate) fn lost(&self, answered: usize) -> u64 {
        self.sent().iter().sum::<u64>() - answered as u64
    }

    /// Repeatedly writes a new value for a key or deletes the key. Returns all writes, including
    /// the initial value.
    pub(crate) fn write(&self, mut writer: Writer) -> Vec<Write> {
        let key = &self.keys[writer.key].name;
        let mut writes = vec![Write { value: Some(0), sent: self.begin, acknowledged: self.begin }];
        let mut random = writer.key as u64 + 1;
        for number in 1..=writer.writes {
            random = next(random);
            let pause = writer.pause.end - writer.pause.start;
            thread::sleep(writer.pause.start + pause.mul_f64((random >> 40) as f64 / (1_u64 << 24) as f64));
            if self.is_over() {
                break;
            }
            let deletes = writer.deletes > 0 && number % writer.deletes == 0;
            let value = (!deletes).then_some(number);
            let command =
                value.map_or_else(|| format!("delete {key}\r\n").into_bytes(), |value| set(key, value));
            let way = usize::try_from(random >> 8).unwrap() % writer.ways.len();
            let sent = Instant::now();
            let said = writer.ways[way].say(&command);
            let acknowledged = Instant::now();
            // If the writer repeats a delete, the first request may have deleted the key already.
            let wanted: &[&[u8]] =
                if value.is_some() { &[b"STORED\r\n"] } else { &[b"DELETED\r\n", b"NOT_FOUND\r\n"] };
            assert!(wanted.contains(&&said[..]), "{}: {}", command.escape_ascii(), said.escape_ascii());
            writes.push(Write { value, sent, acknowledged });
        }
        writes
    }
}

/// Returns the next number of a xorshift64 generator.
fn next(mut random: u64) -> u64 {
    random ^= random << 13;
    random ^= random >> 7;
    random ^ random << 17
}

/// The timeout for a reply, which is far longer than a reply takes, but shorter than a test.
const ONCE: Duration = Duration::from_secs(2);
const TRIES: u32 = 10;
