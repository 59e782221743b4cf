//! Tests of two balancers with independent caches. Writes go through one balancer or directly to
//! the servers. Reads go through the other balancer.

use std::collections::BTreeSet;
use std::thread;
use std::time::Duration;

use crate::history::{History, Read};
use crate::load::{Load, Way, Writer};
use crate::pair::Pair;

/// The number of writes per key in one round.
const WRITES: u32 = 24;
/// The maximum number of rounds. On a slow machine, more than one round may be needed.
const ROUNDS: usize = 10;

/// All writes of a round, and the reads through each balancer.
struct Heard {
    history: History,
    reads: [Vec<Read>; 2],
}

/// Returns the balancer through which half of a key's writes go. The other half of the writes
/// bypass both balancers.
fn home(key: usize) -> usize {
    key % 2
}

/// Runs one round: two readers per balancer (IPv4 and IPv6), and one writer for each of four keys.
fn play(pair: &Pair, load: &Load, lease: Duration) -> Heard {
    let (readers, writers) = (pair.clients_of_each(), pair.clients_of_each());
    let before = pair.counted("keyed_reads");
    let heard = thread::scope(|scope| {
        let stop = load.stop_later();
        let readers = readers.into_iter().flatten().enumerate();
        let readers: Vec<_> = readers
            .map(|(number, client)| scope.spawn(move || load.read(number, number..number + 1, &client)))
            .collect();
        let [[a4, a6], [b4, b6]] = writers;
        let writers: Vec<_> = [a4, b4, a6, b6].into_iter().enumerate().collect();
        let writers = writers.into_iter().map(|(key, client)| {
            let ways = vec![Way::Through(client), Way::around(pair, &load.keys[key])];
            let writer = Writer { key, ways, writes: WRITES, deletes: 8, pause: lease * 3 / 2..lease * 3 };
            scope.spawn(move || load.write(writer))
        });
        let writers: Vec<_> = writers.collect();
        let writes = writers.into_iter().map(|writer| writer.join().unwrap()).collect();
        drop(stop);
        let mut reads = readers.into_iter().map(|reader| reader.join().unwrap());
        let reads = [0, 1].map(|_| reads.by_ref().take(2).flatten().collect());
        Heard { history: History { writes }, reads }
    });
    // The router must have sent all requests of a client to the same balancer.
    let asked = pair.counted("keyed_reads");
    for machine in 0..2 {
        assert_eq!(asked[machine] - before[machine], heard.reads[machine].len() as u64, "lb{}", machine + 1);
    }
    heard
}

/// Statistics of the reads through one balancer, for keys whose writes do not go through this
/// balancer.
#[derive(Debug, Default)]
struct Staleness {
    reads: usize,
    /// Reads of a value that had been overwritten, but less than one lease earlier.
    old: usize,
    oldest: Duration,
    /// Writes after which a read could detect an error: if the balancer served cached values for
    /// twice the lease, that read would have returned a value that is too old.
    tried: usize,
    longest_round_trip: Duration,
}

impl Staleness {
    /// Adds the reads of a round through one balancer. Panics if a value is older than the lease.
    fn add(&mut self, heard: &Heard, machine: usize, lease: Duration) {
        let mut tried = BTreeSet::new();
        for read in &heard.reads[machine] {
            let age = heard.history.age(read);
            let age = age.unwrap_or_else(|| {
                panic!("lb{} returned a value that was never written, {read:?}", machine + 1)
            });
            assert!(
                age.sure <= lease,
                "lb{} returned a value older than {lease:?}, {age:?}, {read:?}",
                machine + 1
            );
            self.longest_round_trip = self.longest_round_trip.max(read.received - read.sent);
            if home(read.key) == machine {
                continue;
            }
            self.reads += 1;
            self.old += usize::from(!age.when_sent.is_zero());
            self.oldest = self.oldest.max(age.when_sent);
            // The initial value existed before the round, so it is not counted.
            tried.extend(heard.history.would_tell(read, lease).filter(|(_, write)| *write > 0));
        }
        self.tried += tried.len();
    }

    fn is_enough(&self) -> bool {
        self.old > 10 && self.tried > WRITES as usize
    }
}

/// Repeats rounds with new keys until enough reads could have detected a value that is too old. On
/// a slow machine, a round has few such reads.
fn bound_holds(lease: Duration) {
    let kv = format!(", cache = {{ memory = \"16MiB\", lease = \"{}ms\" }}", lease.as_millis());
    let pair = Pair::new(&kv);
    let mut found = [Staleness::default(), Staleness::default()];
    let rounds = (1..=ROUNDS).find(|round| {
        let load = Load::new(pair.keys(&format!("round{round}-"), 2), 4);
        let heard = play(&pair, &load, lease);
        for (machine, found) in found.iter_mut().enumerate() {
            found.add(&heard, machine, lease);
        }
        assert_eq!(load.lost(heard.reads.iter().map(Vec::len).sum()), 0);
        found.iter().all(Staleness::is_enough)
    });
    println!("lease {lease:?}: {found:#?}");
    let rounds = rounds.unwrap_or_else(|| panic!("too few conclusive reads after {ROUNDS} rounds"));
    for (machine, hits) in pair.counted("cache_hits").into_iter().enumerate() {
        println!("lb{} had {hits} cache hits in {rounds} rounds of {} writes", machine + 1, 2 * WRITES);
        assert!(hits > 100, "{}", pair.diagnosis());
    }
}

/// With a lease of 100 ms, the balancer asks the server whether the version of a cached value is
/// still current.
#[test]
fn copies_are_not_older_than_lease_100_ms() {
    bound_holds(Duration::from_millis(100));
}

/// With a lease of 250 ms, the balancer fetches cached values again.
#[test]
fn copies_are_not_older_than_lease_250_ms() {
    bound_holds(Duration::from_millis(250));
}
