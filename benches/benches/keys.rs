//! Measures the cost of choosing a server for a keyed request, which includes parsing the payload
//! of the datagram, hashing the key and looking up the server.
//!
//! Each iteration chooses one of 100 servers for a `get` of a new key. Each row measures one key
//! hash with one key length. A row looks up servers in a Maglev table of 65,537 slots or on a
//! ketama ring. Budget with Maglev: 60 ns for keys up to 32 bytes, and 130 ns for 250 bytes. Budget
//! with ketama: 350 ns. With the arguments `instructions/ROW N` the program runs one row N times
//! without Criterion, for use under callgrind.

use std::hint::black_box;
use std::time::Duration;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group};
use figures::{equal, names};
use kv_switch::{Application, Datagram, KeyHash, KeyRoom, Memcached, Ring, Routes, Server};
use maglev_hash::{Options, Seed, Table, build};

/// A request generator that uses 2^48 different keys in turn. All requests use the same buffer, so
/// the packet is in the CPU cache, as it is in a packet thread.
struct Requests(Vec<u8>, u64);

impl Requests {
    fn new(key_bytes: usize) -> Self {
        Self(format!("\0\x01\0\0\0\x01\0\0get {}\r\n", "k".repeat(key_bytes)).into_bytes(), 0)
    }

    fn payload(&mut self) -> &[u8] {
        self.1 = self.1.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let letters = (self.1 & 0x3f3f_3f3f_3f3f_3f3f) | 0x4040_4040_4040_4040;
        self.0[12..20].copy_from_slice(&letters.to_ne_bytes());
        &self.0
    }
}

enum Servers {
    Maglev(Table),
    Ketama(Ring),
}

/// Returns the server for a request. The function takes the same steps as the forwarder.
#[inline]
fn server(
    memcached: &dyn Application,
    hash: KeyHash,
    servers: &Servers,
    payload: &[u8],
    room: &mut KeyRoom,
) -> usize {
    let Ok(ask) = memcached.read(Datagram::whole(payload)) else { return usize::MAX };
    let hash = hash.hash(memcached.key(payload, &ask.first, room));
    match servers {
        Servers::Maglev(table) => table.lookup_uniform(hash).index_by_name(),
        Servers::Ketama(ring) => ring.lookup(hash).into(),
    }
}

fn maglev() -> Servers {
    let names = names(100);
    Servers::Maglev(build(&equal(&names), &Options::new(Seed::new(*b"seed of a bench."))).expect("100 names"))
}

fn ketama() -> Servers {
    let names: Vec<String> = (0..100).map(|n| format!("192.0.2.{n}")).collect();
    let server = |ring_name| Server { ring_name, weight: 1, is_ejected: false };
    let servers: Vec<Server<'_>> = names.iter().map(|name| server(name.as_str())).collect();
    Servers::Ketama(Ring::build(&servers).expect("100 servers"))
}

type Row = (&'static str, KeyHash, fn() -> Servers, usize);

const ROWS: [Row; 6] = [
    ("maglev", KeyHash::sip(1, 2), maglev, 16),
    ("maglev", KeyHash::sip(1, 2), maglev, 32),
    ("maglev", KeyHash::sip(1, 2), maglev, 250),
    ("ketama", KeyHash::md5(), ketama, 32),
    ("ketama", KeyHash::md5(), ketama, 250),
    ("fnv1a_64", KeyHash::fnv1a_64(), ketama, 32),
];

fn requests(c: &mut Criterion) {
    let mut group = c.benchmark_group("keys/get");
    group.throughput(Throughput::Elements(1));
    for (name, hash, servers, key_bytes) in ROWS {
        let (memcached, servers) = (Memcached::new(32), servers());
        let (mut requests, mut room) = (Requests::new(key_bytes), KeyRoom::default());
        group.bench_function(BenchmarkId::new(name, key_bytes), |b| {
            b.iter(|| {
                black_box(server(black_box(&memcached), hash, &servers, requests.payload(), &mut room))
            });
        });
    }
    group.finish();
}

fn routes(c: &mut Criterion) {
    let mut group = c.benchmark_group("keys/routes");
    group.throughput(Throughput::Elements(1));
    let (exact, prefixes): (Vec<String>, Vec<String>) =
        (0..10_000).map(|n| (format!("user:{n}"), format!("shard{n}:"))).unzip();
    let rules =
        |texts: &'static [String]| (0..).zip(texts).map(|(target, text)| (text.as_bytes(), target)).collect();
    let exact: Vec<(&[u8], u32)> = rules(exact.leak());
    let prefixes: Vec<(&[u8], u32)> = rules(prefixes.leak());
    let routes = Routes::build(&exact, &prefixes).expect("the routes are distinct");
    let keys: Vec<String> = (0..100_000).map(|n| format!("shard{}:{n}", n % 20_000)).collect();
    group.bench_function("10000 exact, 10000 prefixes", |b| {
        let mut next = 0;
        b.iter(|| {
            next = (next + 61_953) % keys.len();
            black_box(routes.lookup(keys[next].as_bytes()))
        });
    });
    group.finish();
}

/// Runs `instructions/ROW N`, which processes N requests with the key hash and the key length of
/// `row`.
fn instructions(row: &str, count: usize) {
    for (name, hash, servers, key_bytes) in ROWS {
        if row == format!("{name}/{key_bytes}") {
            let (memcached, servers) = (Memcached::new(32), servers());
            let (mut requests, mut room) = (Requests::new(key_bytes), KeyRoom::default());
            (0..count).for_each(|_| {
                black_box(server(black_box(&memcached), hash, &servers, requests.payload(), &mut room));
            });
        }
    }
}

criterion_group! {
    name = rows;
    config = Criterion::default().sample_size(30).warm_up_time(Duration::from_millis(500))
        .measurement_time(Duration::from_secs(2)).without_plots();
    targets = requests, routes
}

fn main() {
    let mut arguments = std::env::args().skip(1);
    let row = arguments.next().unwrap_or_default();
    if let Some(row) = row.strip_prefix("instructions/") {
        return instructions(row, arguments.next().and_then(|count| count.parse().ok()).unwrap_or(1));
    }
    rows();
    Criterion::default().configure_from_args().final_summary();
}
