//! `bench kv`: requests by key through the balancer, with a cache and without, beside clients that know all servers and nutcracker.
//!
//! In: a balancer. Out: a table, bars and, of a full run, `benches/results/kv.csv`, a line a turn. In each round every way has a
//! turn at each [`Mix`], and each round begins with another way. A turn has two parts: at full pace operations a second and
//! processor time are counted, at a rate that all ways carry times are taken. Every value that is read is verified.
//! Not here: the bed, the generator (`keyed`), what is fair about it (`benches/README.md`).

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

/// Runs the comparison with the balancer given, or a fresh build. A bar that is missed is a result, a false value an error.
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
        fs::write(&file, text).with_context(|| format!("can't write {}", file.display()))?;
        eprintln!("kept in {}", file.display());
    }
    Ok(())
}

/// What clients ask for.
struct Mix {
    name: &'static str,
    popularity: Popularity,
    /// Part of requests that read.
    gets: f64,
    /// What is compared at it.
    ways: &'static [Way],
}

/// How long the parts of a turn take.
#[derive(Clone, Copy)]
struct Lengths {
    /// Before anything is counted: copies are made, and those of the turn before have ended.
    warm_up: Duration,
    full: Duration,
    paced: Duration,
}

struct Comparison {
    scene: Scene,
    lengths: Lengths,
    /// Of all values in the turn before, at most.
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

    /// A turn of a way at each mix that it is compared at.
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

    /// A turn, and the newest version of a value that it wrote.
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
        ensure!(wrong == 0 && missed == 0, "{wrong} wrong values, {missed} keys that were not there");
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

/// What was answered from copies up to now.
fn hits(running: &Running<'_>) -> Result<u64> {
    match &running.worker {
        Worker::Balancer(balancer) => Ok(balancer.counters()?.over_threads(&["cache_hits"])),
        Worker::Kernel | Worker::Process(_) => Ok(0),
    }
}

#[expect(clippy::cast_precision_loss, reason = "counts of seconds")]
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
/// Sockets or connections of the generator.
const CLIENTS: usize = 8;
/// Requests that each has on its way at most: all together fit into a veth's ring.
const WINDOW: usize = 16;
/// Operations a second at which times are taken: less than half of what the slowest way carries.
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
/// Of a full run; with so many or more it is kept.
const ROUNDS: usize = 5;
