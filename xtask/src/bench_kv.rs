//! Implements `bench kv`, which compares four ways to reach memcached servers: through the balancer
//! with a cache, through the balancer without a cache, directly, and through the proxy nutcracker.
//!
//! Each of these systems ([`Way`]) is measured with each workload ([`Mix`]) once per round. Each
//! round begins with a different system. A measurement first counts operations per second and
//! processor time at full speed. After that, the measurement determines response times at a rate
//! that all systems can sustain. Every value that is read is verified. A full run writes one line
//! per measurement to `benches/results/kv.csv`. `benches/README.md` explains why the comparison is
//! fair.

mod results;

use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::bench_kv::results::{Results, Turn};
use crate::keyed::{self, Clients, Draw, Ledger, Pace, Popularity, Scene, Tally, Way};
use crate::stage::{Load, Peer, Running, Worker};
use crate::tidy::RESULTS;
use crate::{cargo, figures, setup};

/// Runs the comparison with the given balancer binary, or with a fresh build. A missed performance
/// goal is reported as a result, but a wrong value in a response is an error.
pub(crate) fn run(binary: Option<&Path>, rounds: Option<usize>, is_quick: bool) -> Result<()> {
    setup::require_root("bench kv")?;
    setup::ensure(&[setup::BUILD, setup::BED, setup::KV_BENCH].concat())?;
    let rounds = if is_quick { 1 } else { rounds.unwrap_or(ROUNDS) };
    let lengths = if is_quick { QUICK } else { FULL };
    let mut comparison = Comparison {
        scene: Scene::build(keyed::program(binary)?, SERVERS)?,
        lengths,
        version: 0,
        results: Results::new(MIXES.iter().flat_map(|mix| mix.ways.iter().map(|way| (mix.name, way.name())))),
    };
    (1..=rounds).try_for_each(|n| comparison.round(n))?;
    let Comparison { results, .. } = comparison;
    println!("{}", results.words());
    if rounds >= ROUNDS && !is_quick {
        let text = figures::origin("cargo xtask bench kv", figures::KEYED, false)? + &results.csv();
        let file = cargo::root().join(RESULTS).join("kv.csv");
        fs::write(&file, text).with_context(|| format!("cannot write {}", file.display()))?;
        eprintln!("results written to {}", file.display());
    }
    Ok(())
}

/// A workload, defined by the probability distribution of keys and the fraction of reads.
struct Mix {
    name: &'static str,
    popularity: Popularity,
    /// The fraction of requests that are reads.
    gets: f64,
    ways: &'static [Way],
}

/// The durations of the measurement phases.
#[derive(Clone, Copy)]
struct Lengths {
    /// The time before counting begins. During this time the cache is filled, and entries from the
    /// previous measurement expire.
    warm_up: Duration,
    full: Duration,
    paced: Duration,
}

struct Comparison {
    scene: Scene,
    lengths: Lengths,
    /// The highest version that any value had in the previous measurement.
    version: u32,
    results: Results,
}

impl Comparison {
    fn round(&mut self, n: usize) -> Result<()> {
        eprintln!("round {n}");
        for at in 0..WAYS.len() {
            let way = WAYS[(at + n) % WAYS.len()];
            self.turns(way).with_context(|| way.name())?;
        }
        Ok(())
    }

    /// Measures a system with each workload that includes it.
    fn turns(&mut self, way: Way) -> Result<()> {
        let running = self.scene.stage.start(&way, Load::Requests)?;
        for mix in MIXES.iter().filter(|mix| mix.ways.contains(&way)) {
            let turn = self.turn(&running, way, mix);
            let (turn, newest) = turn.with_context(|| format!("{}\n{}", mix.name, running.tail()))?;
            eprintln!("{} {}: {}", mix.name, way.name(), turn.words());
            self.version = newest;
            self.results.add(mix.name, way.name(), turn);
        }
        running.stop(&self.scene.stage)
    }

    /// Runs one measurement. Returns its result, and the highest version that it wrote.
    fn turn(&self, running: &Running<'_>, way: Way, mix: &Mix) -> Result<(Turn, u32)> {
        let Self { scene, lengths, version, .. } = self;
        let version = version + 1;
        scene.fill(KEYS, version, VALUE_BYTES)?;
        let ledger = Ledger::new(KEYS, version, VALUE_BYTES, way.lease());
        let draw = Draw::new(mix.popularity, KEYS, SEED);
        let mut clients = Clients::new(scene.clients(way, CLIENTS, WINDOW)?, draw, mix.gets, ledger);
        let warm_up = clients.run(Pace::Full, lengths.warm_up)?;
        let spent = || Ok::<_, anyhow::Error>([running.process_time()?, running.time_run()?]);
        let (before, hits_before) = (spent()?, hits(running)?);
        let full = clients.run(Pace::Full, lengths.full)?;
        let (after, hits_after) = (spent()?, hits(running)?);
        let paced = clients.run(Pace::PerSecond(RATE), lengths.paced)?;
        let of_all = |count: fn(&Tally) -> u64| [&warm_up, &full, &paced].map(count).iter().sum::<u64>();
        let (wrong, missed) = (of_all(|tally| tally.wrong), of_all(|tally| tally.missed));
        ensure!(
            wrong == 0 && missed == 0,
            "{wrong} reads returned a wrong value, {missed} stored keys were missing"
        );
        let [process, machine] = [0, 1].map(|of| after[of].saturating_sub(before[of]).as_secs_f64());
        let millions = full.per_second() * full.length.as_secs_f64() / 1e6;
        let turn = Turn {
            per_second: full.per_second(),
            p50: paced.micros(500),
            p99: paced.micros(990),
            process: process / millions,
            machine: machine / millions,
            paced: paced.per_second(),
            hits: share(hits_after - hits_before, full.answered()),
            lost: full.lost + paced.lost,
            old: full.old + paced.old,
        };
        Ok((turn, clients.ledger.newest()))
    }
}

/// Returns the number of requests that the balancer has answered from its cache so far.
fn hits(running: &Running<'_>) -> Result<u64> {
    match &running.worker {
        Worker::Balancer(balancer) => Ok(balancer.counters()?.over_threads(&["cache_hits"])),
        Worker::Kernel | Worker::Process(_) => Ok(0),
    }
}

#[expect(clippy::cast_precision_loss, reason = "the counts are far below 2^52")]
fn share(part: u64, whole: u64) -> f64 {
    part as f64 / whole.max(1) as f64
}

const FOUR: &[Way] = &[Way::Direct, Way::Nutcracker, Way::Uncached, Way::Cached10Ms];
const HOT: Popularity = Popularity::Hot { keys: 100, share: 0.9 };
const ZIPF: Popularity = Popularity::Zipf(0.99);
const MIXES: [Mix; 6] = [
    Mix { name: "even 50/50", popularity: Popularity::Even, gets: 0.5, ways: FOUR },
    Mix { name: "even 90/10", popularity: Popularity::Even, gets: 0.9, ways: FOUR },
    Mix { name: "zipf gets", popularity: ZIPF, gets: 1.0, ways: &WAYS },
    Mix { name: "zipf 90/10", popularity: ZIPF, gets: 0.9, ways: FOUR },
    Mix { name: "hot gets", popularity: HOT, gets: 1.0, ways: &WAYS },
    Mix { name: "hot 90/10", popularity: HOT, gets: 0.9, ways: &WAYS },
];
const WAYS: [Way; 6] =
    [Way::Direct, Way::Nutcracker, Way::Uncached, Way::Cached10Ms, Way::Cached50Ms, Way::Cached1S];
const SERVERS: u8 = 3;
const KEYS: u32 = 100_000;
const VALUE_BYTES: usize = 64;
/// The number of sockets or connections that the load generator uses.
const CLIENTS: usize = 8;
/// The maximum number of outstanding requests of each client. All outstanding requests of all
/// clients fit into the ring of a veth.
const WINDOW: usize = 16;
/// The rate at which response times are measured, in operations per second. The slowest system
/// sustains more than twice this rate.
const RATE: f64 = 20_000.0;
const SEED: u64 = 0x5eed;
const FULL: Lengths = Lengths {
    warm_up: Duration::from_millis(1_200),
    full: Duration::from_millis(1_000),
    paced: Duration::from_millis(700),
};
const QUICK: Lengths = Lengths {
    warm_up: Duration::from_millis(300),
    full: Duration::from_millis(300),
    paced: Duration::from_millis(300),
};
/// The number of rounds in a full run. Results of shorter runs are not written to a file.
const ROUNDS: usize = 5;
