//! Two machines with a cache each, which share nothing: what is written through one, or past both, is read through the other.

use std::collections::BTreeSet;
use std::thread;
use std::time::Duration;

use testbed::eventually;

use crate::history::{History, Read};
use crate::load::{Load, Way, Writer};
use crate::pair::Pair;
use crate::scene::BOUND;

/// Of each of four keys.
const WRITES: u32 = 24;

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
    tried: BTreeSet<(usize, usize)>,
    longest_round_trip: Duration,
}

fn judge(heard: &Heard, machine: usize, lease: Duration) -> Staleness {
    let mut found = Staleness::default();
    for read in &heard.reads[machine] {
        let age = heard.history.age(read);
        let age = age.unwrap_or_else(|| panic!("lb{}: nobody wrote {read:?}", machine + 1));
        assert!(age.sure <= lease, "lb{}: older than {lease:?}: {age:?}, {read:?}", machine + 1);
        found.longest_round_trip = found.longest_round_trip.max(read.received - read.sent);
        if home(read.key) == machine {
            continue;
        }
        found.reads += 1;
        found.old += usize::from(!age.when_sent.is_zero());
        found.oldest = found.oldest.max(age.when_sent);
        // The first value was there before.
        found.tried.extend(heard.history.would_tell(read, lease).filter(|(_, write)| *write > 0));
    }
    found
}

fn bound_holds(lease: Duration) {
    let kv = format!(", cache = {{ memory = \"16MiB\", lease = \"{}ms\" }}", lease.as_millis());
    let pair = Pair::new(&kv);
    let load = Load::new(pair.keys(2), 4);
    let heard = play(&pair, &load, lease);
    for machine in 0..2 {
        let hits = || Some(pair.counted("cache_hits")[machine]).filter(|hits| *hits > 100);
        let hits = eventually(BOUND, hits).unwrap_or_else(|| panic!("no hits\n{}", pair.diagnosis()));
        let found = judge(&heard, machine, lease);
        let writes = 2 * WRITES as usize;
        println!(
            "lb{}, lease {lease:?}: {hits} hits; {} reads of keys that are written elsewhere, {} of them old, by {:?} at most; \
             {} of {writes} writes were tried; longest round trip {:?}",
            machine + 1,
            found.reads,
            found.old,
            found.oldest,
            found.tried.len(),
            found.longest_round_trip
        );
        assert!(found.old > 10, "lb{} answered next to nothing from copies: {found:?}", machine + 1);
        // Where the machine is so slow that no read came in time nothing is said of a write.
        assert!(2 * found.tried.len() > writes, "lb{}: too few reads came in time: {found:?}", machine + 1);
    }
    assert_eq!(load.lost(heard.reads.iter().map(Vec::len).sum()), 0);
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
