//! A rolling restart of two balancers under read load. While a balancer's cache is still empty, the
//! servers must not get more requests than without a cache.

use std::iter;
use std::thread;
use std::time::Duration;

use testbed::{Host, eventually};

use crate::clients::say;
use crate::history::{History, Read, Write};
use crate::load::{Load, Way, Writer};
use crate::pair::Pair;
use crate::scene::BOUND;

/// The number of readers: one for each combination of address family and balancer.
const READERS: usize = 4;
const LEASE: Duration = Duration::from_millis(500);
const CACHE: &str = ", cache = { memory = \"16MiB\", lease = \"500ms\" }";
/// The interval between two samples of the counters.
const WINDOW: Duration = Duration::from_millis(100);

/// Counters of each server at one time. The counters are read in the order of the fields: finished
/// requests first, then requests that the server counted, then requests that were sent.
#[derive(Clone, Copy, Debug)]
struct Sample {
    settled: [u64; 2],
    counted: [u64; 2],
    sent: [u64; 2],
}

/// The requests to one server between two samples.
#[derive(Clone, Copy, Debug)]
struct Window {
    /// `get` requests from clients for keys that this server stores, including requests that are in
    /// flight during either sample. If there were no cache, all of these requests would reach the
    /// server.
    asked: u64,
    /// All `get` requests that the server counted, including upstream requests of the balancers.
    /// Memcached counts `mg` as `get`.
    counted: u64,
}

impl Window {
    fn between(first: &Sample, last: &Sample, server: usize) -> Self {
        let asked = last.sent[server] - first.settled[server];
        Self { asked, counted: last.counted[server] - first.counted[server] }
    }
}

fn gets(server: &Host) -> u64 {
    let text = say(server, "stats\r\nquit\r\n");
    let line = text.lines().find_map(|line| line.strip_prefix("STAT cmd_get "));
    line.unwrap_or_else(|| panic!("{text}")).parse().unwrap()
}

fn sample(load: &Load, servers: &[Host]) -> Sample {
    let settled = load.settled();
    let counted = [0, 1].map(|server| gets(&servers[server]));
    Sample { settled, counted, sent: load.sent() }
}

/// Takes samples until the load ends.
fn samples(load: &Load, servers: &[Host]) -> Vec<Sample> {
    let mut samples = vec![sample(load, servers)];
    while !load.is_over() {
        thread::sleep(WINDOW);
        samples.push(sample(load, servers));
    }
    samples
}

/// Waits until a balancer has served 100 more responses from its cache than at `since`.
fn until_hits(pair: &Pair, machine: usize, since: u64) {
    let hits = || (pair.counted("cache_hits")[machine] > since + 100).then_some(());
    assert!(eventually(BOUND, hits).is_some(), "no cache hits on lb{}\n{}", machine + 1, pair.diagnosis());
}

fn judge_windows(samples: &[Sample]) {
    for server in 0..2 {
        let windows = iter::zip(samples, &samples[1..]).map(|(a, b)| Window::between(a, b, server));
        let mut fullest = 0.0_f64;
        for window in windows {
            assert!(window.counted <= window.asked, "b{}: {window:?}", server + 1);
            fullest = fullest.max(window.counted as f64 / window.asked.max(1) as f64);
        }
        let all = Window::between(samples.first().unwrap(), samples.last().unwrap(), server);
        println!(
            "b{}: {} gets by clients, {} gets at the server, maximum ratio {fullest:.2} of {} intervals",
            server + 1,
            all.asked,
            all.counted,
            samples.len() - 1
        );
        assert!(
            4 * all.counted < 3 * all.asked,
            "the caches save too few requests at b{}, {all:?}",
            server + 1
        );
    }
}

/// The reads, the writes and the samples of the test.
struct Heard {
    reads: Vec<Read>,
    writes: Vec<Vec<Write>>,
    samples: Vec<Sample>,
}

/// Runs readers of all keys and one writer per key while both balancers restart. When a balancer
/// stops or returns, the router assigns clients to other balancers.
fn play(pair: &mut Pair, load: &Load) -> Heard {
    let readers = pair.clients_of_each().into_iter().flatten().enumerate();
    let writers: Vec<_> = (0..load.keys.len()).map(|key| (key, pair.client(key % 2 == 0))).collect();
    let servers = pair.bed.backends.clone();
    thread::scope(|scope| {
        let stop = load.stop_later();
        let read = |(number, client)| scope.spawn(move || load.read(number, 0..READERS, &client));
        let readers: Vec<_> = readers.map(read).collect();
        let write = |(key, client)| {
            let (ways, pause) = (vec![Way::Through(client)], LEASE..3 * LEASE);
            // The cache does not store deleted keys, so each read of a deleted key would reach the
            // server. The writers therefore do not delete keys.
            scope.spawn(move || load.write(Writer { key, ways, writes: u32::MAX, deletes: 0, pause }))
        };
        let writers: Vec<_> = writers.into_iter().map(write).collect();
        (0..2).for_each(|machine| until_hits(pair, machine, 0));
        let samples = scope.spawn(|| samples(load, &servers));
        for machine in 0..2 {
            let other = pair.counted("cache_hits")[1 - machine];
            pair.restart(machine);
            until_hits(pair, machine, 0);
            until_hits(pair, 1 - machine, other);
        }
        drop(stop);
        let reads = readers.into_iter().flat_map(|reader| reader.join().unwrap()).collect();
        let writes = writers.into_iter().map(|writer| writer.join().unwrap()).collect();
        Heard { reads, writes, samples: samples.join().unwrap() }
    })
}

// Promise: cache-restart-load
#[test]
fn rolling_restart_adds_no_requests_to_servers() {
    let mut pair = Pair::that_announces(CACHE);
    let load = Load::new(pair.keys("hot", 2), READERS);
    let Heard { reads, writes, samples } = play(&mut pair, &load);
    judge_windows(&samples);
    let (history, mut old) = (History { writes }, 0);
    for read in &reads {
        let age = history.age(read).unwrap_or_else(|| panic!("the value was never written, {read:?}"));
        assert!(age.sure <= LEASE, "{age:?}, {read:?}");
        old += usize::from(!age.when_sent.is_zero());
    }
    println!("{} reads, {old} of them stale, {} requests repeated", reads.len(), load.lost(reads.len()));
}
