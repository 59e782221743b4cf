//! Two machines with a cache each, which share nothing: what is written through one, or past both, is read through the other.

use std::collections::BTreeSet;
use std::thread;
use std::time::Duration;

use crate::history::{History, Read};
use crate::load::{Load, Way, Writer};
use crate::pair::Pair;

/// Of each of four keys in a round; a machine reads two that are written elsewhere.
const WRITES: u32 = 24;
/// One is enough but on a slow machine.
const ROUNDS: usize = 10;

/// What was read through each machine, beside all writes.
struct Heard {
    history: History,
    reads: [Vec<Read>; 2],
}

/// A key's writes go through this machine, or past both.
fn home(key: usize) -> usize {
    key % 2
}

/// Two readers of each machine, one of each family; a writer for each of four keys, two of each server.
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
    // The router has kept each client at its machine.
    let asked = pair.counted("keyed_reads");
    for machine in 0..2 {
        assert_eq!(asked[machine] - before[machine], heard.reads[machine].len() as u64, "lb{}", machine + 1);
    }
    heard
}

/// Of reads of keys whose writes go another way.
#[derive(Debug, Default)]
struct Staleness {
    reads: usize,
    /// Said what had been overwritten, within the bound.
    old: usize,
    oldest: Duration,
    /// Writes after which a read came when copies of twice the lease would have been old.
    tried: usize,
    longest_round_trip: Duration,
}

impl Staleness {
    /// Adds the reads of a round through a machine, none of which may be older than the lease.
    fn add(&mut self, heard: &Heard, machine: usize, lease: Duration) {
        let mut tried = BTreeSet::new();
        for read in &heard.reads[machine] {
            let age = heard.history.age(read);
            let age = age.unwrap_or_else(|| panic!("lb{}: nobody wrote {read:?}", machine + 1));
            assert!(age.sure <= lease, "lb{}: older than {lease:?}: {age:?}, {read:?}", machine + 1);
            self.longest_round_trip = self.longest_round_trip.max(read.received - read.sent);
            if home(read.key) == machine {
                continue;
            }
            self.reads += 1;
            self.old += usize::from(!age.when_sent.is_zero());
            self.oldest = self.oldest.max(age.when_sent);
            // The first value was there before.
            tried.extend(heard.history.would_tell(read, lease).filter(|(_, write)| *write > 0));
        }
        self.tried += tried.len();
    }

    fn is_enough(&self) -> bool {
        self.old > 10 && self.tried > WRITES as usize
    }
}

/// Rounds of other keys, until enough writes were followed by a read in time to tell a copy that is too old: a slow machine
/// has few of them.
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
    let rounds = rounds.unwrap_or_else(|| panic!("{ROUNDS} rounds and too few reads in time"));
    for (machine, hits) in pair.counted("cache_hits").into_iter().enumerate() {
        println!("lb{}: {hits} hits in {rounds} rounds of {} writes", machine + 1, 2 * WRITES);
        assert!(hits > 100, "{}", pair.diagnosis());
    }
}

/// Copies are confirmed by their version.
#[test]
fn what_is_written_elsewhere_is_read_within_lease_and_round_trip_at_a_lease_of_100_ms() {
    bound_holds(Duration::from_millis(100));
}

/// Copies are fetched anew.
#[test]
fn what_is_written_elsewhere_is_read_within_lease_and_round_trip_at_a_lease_of_250_ms() {
    bound_holds(Duration::from_millis(250));
}
