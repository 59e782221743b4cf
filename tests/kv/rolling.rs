//! Both machines are restarted, one after the other, while clients read: a cold cache sends servers no more than none would.

use std::iter;
use std::thread;
use std::time::Duration;

use testbed::{Host, eventually};

use crate::clients::say;
use crate::history::{History, Read, Write};
use crate::load::{Load, Way, Writer};
use crate::pair::Pair;
use crate::scene::BOUND;

/// One of each family for each machine: as many as the bed chooses, so that both have requests.
const READERS: usize = 4;
const LEASE: Duration = Duration::from_millis(500);
const CACHE: &str = ", cache = { memory = \"16MiB\", lease = \"500ms\" }";
/// Between two looks at the servers' counts.
const WINDOW: Duration = Duration::from_millis(100);

/// Counts by server. In this order: what had been over when servers were looked at, what they said, what had been sent after that.
#[derive(Clone, Copy, Debug)]
struct Sample {
    settled: [u64; 2],
    counted: [u64; 2],
    sent: [u64; 2],
}

/// What a server had between two samples.
#[derive(Clone, Copy, Debug)]
struct Window {
    /// Gets of clients that it would have had without a cache, and those that were under way at both ends.
    asked: u64,
    /// All gets that it had, the machines' own too: memcached counts `mg` with them.
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

/// Until the load is over.
fn samples(load: &Load, servers: &[Host]) -> Vec<Sample> {
    let mut samples = vec![sample(load, servers)];
    while !load.is_over() {
        thread::sleep(WINDOW);
        samples.push(sample(load, servers));
    }
    samples
}

/// Until a machine has answered so many more from copies than `since`.
fn until_hits(pair: &Pair, machine: usize, since: u64) {
    let hits = || (pair.counted("cache_hits")[machine] > since + 100).then_some(());
    assert!(eventually(BOUND, hits).is_some(), "lb{}: no hits\n{}", machine + 1, pair.diagnosis());
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
            "b{}: {} gets of clients, {} at the server; at most {fullest:.2} of a window's, in {} windows",
            server + 1,
            all.asked,
            all.counted,
            samples.len() - 1
        );
        assert!(4 * all.counted < 3 * all.asked, "b{}: the caches save next to nothing: {all:?}", server + 1);
    }
}

/// What clients and servers noted meanwhile.
struct Heard {
    reads: Vec<Read>,
    writes: Vec<Vec<Write>>,
    samples: Vec<Sample>,
}

/// Readers of all keys and a writer of each, which the router gives to machines anew whenever one leaves or comes; both restart.
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
            // Of a key that is gone there are no copies, and now and then it is asked for in vain.
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

#[test]
fn no_server_has_more_requests_than_without_a_cache_while_both_machines_restart() {
    let mut pair = Pair::that_announces(CACHE);
    let load = Load::new(pair.keys("hot", 2), READERS);
    let Heard { reads, writes, samples } = play(&mut pair, &load);
    judge_windows(&samples);
    let (history, mut old) = (History { writes }, 0);
    for read in &reads {
        let age = history.age(read).unwrap_or_else(|| panic!("nobody wrote {read:?}"));
        assert!(age.sure <= LEASE, "{age:?}, {read:?}");
        old += usize::from(!age.when_sent.is_zero());
    }
    println!("{} reads, {old} of them old; {} were asked again", reads.len(), load.lost(reads.len()));
}
