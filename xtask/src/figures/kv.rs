//! Reproduces the evaluations of MemSwitch and AppSwitch on the testbed of `bench kv`.
//!
//! Each system is measured once per round, and the results are medians over a few rounds. The
//! measurements need root. `benches/figures` contains the results of the papers.
//!
//! References: Zhang et al., *SmartSwitch*, HotCloud 2014, figures 3 and 4, table 1; Cidon et al.,
//! *AppSwitch*, APNet 2017, table 1.

use std::fmt::Write as _;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::keyed::{self, Clients, Draw, Ledger, Pace, Popularity, Scene, Tally, Way};
use crate::setup;
use crate::stage::{Load, Peer, Running};
use crate::statistics::median;

/// Reproduces Figure 3 of MemSwitch: the response time of gets at different rates, with one server
/// and with two servers.
pub(super) fn by_rate(binary: Option<&Path>) -> Result<String> {
    let mut rows = format!("# runs: {ROUNDS}\nway,servers,asked_per_s,answered_per_s,mean_us,p99_us,lost\n");
    for servers in [1, 2] {
        let scene = scene(binary, servers)?;
        let mut measured = vec![Vec::new(); RATES.len() * BY_RATE.len()];
        for _ in 0..ROUNDS {
            for (way, of_way) in BY_RATE.into_iter().zip(measured.chunks_mut(RATES.len())) {
                rates(&scene, way, of_way)?;
            }
        }
        for (way, of_way) in BY_RATE.into_iter().zip(measured.chunks(RATES.len())) {
            for (rate, tallies) in RATES.into_iter().zip(of_way).filter(|(_, tallies)| !tallies.is_empty()) {
                let of = |value: fn(&Tally) -> f64| median(tallies.iter().map(value));
                let (answered, mean) = (of(Tally::per_second), of(Tally::mean_micros));
                let (p99, lost) =
                    (of(|tally| tally.micros(990)), tallies.iter().map(|tally| tally.lost).sum::<u64>());
                let name = way.name();
                let _ = writeln!(rows, "{name},{servers},{rate:.0},{answered:.0},{mean:.1},{p99:.1},{lost}");
            }
        }
    }
    Ok(rows)
}

/// Runs one measurement for each rate. Stops after the first rate that the system does not sustain.
fn rates(scene: &Scene, way: Way, measured: &mut [Vec<Tally>]) -> Result<()> {
    let running = scene.stage.start(&way, Load::Requests)?;
    for (rate, tallies) in RATES.into_iter().zip(measured) {
        let asking = Asking { pace: Pace::PerSecond(rate), ..BY_RATE_EACH };
        let tally = ask(scene, &running, way, asking)?;
        let is_full = tally.per_second() < CARRIED * rate;
        tallies.push(tally);
        if is_full {
            break;
        }
    }
    running.stop(&scene.stage)
}

/// Reproduces Table 1 of MemSwitch: 100 gets per second, with values of 32 bytes.
pub(super) fn light(binary: Option<&Path>) -> Result<String> {
    let scene = scene(binary, 1)?;
    let measured = in_turns(&scene, &LIGHT_WAYS, LIGHT)?;
    let mut rows = format!("# runs: {ROUNDS}\nway,least_us,mean_us,most_us,against_direct\n");
    for (way, tallies) in LIGHT_WAYS.iter().zip(&measured) {
        let of = |value: fn(&Tally) -> f64| median(tallies.iter().map(value));
        let pairs = tallies.iter().zip(&measured[0]);
        let against = median(pairs.map(|(tally, direct)| tally.mean_micros() / direct.mean_micros()));
        let (least, mean, most) =
            (of(|tally| tally.micros(0)), of(Tally::mean_micros), of(|tally| tally.micros(1_000)));
        let _ = writeln!(rows, "{},{least:.1},{mean:.1},{most:.1},{against:.3}", way.name());
    }
    Ok(rows)
}

/// Reproduces Figure 4 of MemSwitch: the response time of gets for different value sizes.
pub(super) fn by_size(binary: Option<&Path>) -> Result<String> {
    let scene = scene(binary, 1)?;
    let mut rows = format!("# runs: {ROUNDS}\nway,value_bytes,mean_us,p50_us\n");
    for value_bytes in SIZES {
        let measured = in_turns(&scene, &LIGHT_WAYS, Asking { value_bytes, ..BY_SIZE_EACH })?;
        for (way, tallies) in LIGHT_WAYS.iter().zip(&measured) {
            let of = |value: fn(&Tally) -> f64| median(tallies.iter().map(value));
            let (mean, p50) = (of(Tally::mean_micros), of(|tally| tally.micros(500)));
            let _ = writeln!(rows, "{},{value_bytes},{mean:.1},{p50:.1}", way.name());
        }
    }
    Ok(rows)
}

/// Reproduces Table 1 of AppSwitch: as many sets as gets with one server, at full speed.
pub(super) fn mixed(binary: Option<&Path>) -> Result<String> {
    let scene = scene(binary, 1)?;
    let measured = in_turns(&scene, &BY_RATE, MIXED)?;
    let mut rows = format!("# runs: {ROUNDS}\nway,operations_per_s,mean_us,p95_us,p99_us\n");
    for (way, tallies) in BY_RATE.iter().zip(&measured) {
        let of = |value: fn(&Tally) -> f64| median(tallies.iter().map(value));
        let (rate, mean) = (of(Tally::per_second), of(Tally::mean_micros));
        let (p95, p99) = (of(|tally| tally.micros(950)), of(|tally| tally.micros(990)));
        let _ = writeln!(rows, "{},{rate:.0},{mean:.1},{p95:.1},{p99:.1}", way.name());
    }
    Ok(rows)
}

fn scene(binary: Option<&Path>, servers: u8) -> Result<Scene> {
    setup::ensure(&[setup::BUILD, setup::BED, setup::KV_BENCH].concat())?;
    Scene::build(keyed::program(binary)?, servers)
}

/// The workload of one run.
#[derive(Clone, Copy)]
struct Asking {
    keys: u32,
    value_bytes: usize,
    /// The fraction of requests that are reads.
    gets: f64,
    pace: Pace,
    warm_up: Duration,
    length: Duration,
}

/// Measures each system once per round, and returns all measurements of each system.
fn in_turns(scene: &Scene, ways: &[Way], asking: Asking) -> Result<Vec<Vec<Tally>>> {
    let mut measured = vec![Vec::new(); ways.len()];
    for _ in 0..ROUNDS {
        for (way, tallies) in ways.iter().zip(&mut measured) {
            let running = scene.stage.start(way, Load::Requests)?;
            tallies.push(ask(scene, &running, *way, asking)?);
            running.stop(&scene.stage)?;
        }
    }
    Ok(measured)
}

fn ask(scene: &Scene, running: &Running<'_>, way: Way, asking: Asking) -> Result<Tally> {
    let Asking { keys, value_bytes, gets, pace, warm_up, length } = asking;
    scene.fill(keys, 1, value_bytes)?;
    let draw = Draw::new(Popularity::Even, keys, SEED);
    let ledger = Ledger::new(keys, 1, value_bytes, way.lease());
    let mut clients = Clients::new(scene.clients(way, CLIENTS, WINDOW)?, draw, gets, ledger);
    let tallies = [warm_up, length].map(|length| clients.run(pace, length));
    let [_, tally] =
        tallies.map(|tally| tally.with_context(|| format!("{}\n{}", way.name(), running.tail())));
    let tally = tally?;
    ensure!(tally.wrong == 0 && tally.missed == 0, "{} returned wrong values: {tally:?}", way.name());
    eprintln!(
        "{}: {value_bytes} bytes, {:.0}/s, mean {:.1} us, {} lost",
        way.name(),
        tally.per_second(),
        tally.mean_micros(),
        tally.lost
    );
    Ok(tally)
}

const BY_RATE: [Way; 3] = [Way::Direct, Way::Nutcracker, Way::Uncached];
/// The systems to compare under light load. The first system is the baseline.
const LIGHT_WAYS: [Way; 4] = [Way::Direct, Way::Nutcracker, Way::Uncached, Way::Cached1S];
const RATES: [f64; 10] = [5e3, 10e3, 20e3, 30e3, 45e3, 60e3, 80e3, 100e3, 130e3, 170e3];
/// A rate is considered sustained if at least this fraction of its requests is answered.
const CARRIED: f64 = 0.9;
const BY_RATE_EACH: Asking = Asking {
    keys: 10_000,
    value_bytes: 32,
    gets: 1.0,
    pace: Pace::Full,
    warm_up: Duration::from_millis(200),
    length: Duration::from_millis(600),
};
/// A light load with few keys. Each key is requested more than four times per lease, so it is
/// cached.
const LIGHT: Asking = Asking {
    keys: 10,
    value_bytes: 32,
    gets: 1.0,
    pace: Pace::PerSecond(100.0),
    warm_up: Duration::from_secs(3),
    length: Duration::from_secs(5),
};
const SIZES: [usize; 8] = [32, 128, 512, 1_024, 2_048, 4_096, 8_192, 11_000];
const BY_SIZE_EACH: Asking = Asking {
    pace: Pace::PerSecond(1_000.0),
    warm_up: Duration::from_millis(1_200),
    length: Duration::from_millis(800),
    ..LIGHT
};
const MIXED: Asking = Asking {
    keys: 10_000,
    value_bytes: 64,
    gets: 0.5,
    pace: Pace::Full,
    warm_up: Duration::from_millis(300),
    length: Duration::from_secs(1),
};
const CLIENTS: usize = 8;
const WINDOW: usize = 16;
const SEED: u64 = 0x5eed;
/// The number of rounds, which must be odd, so that the median is a measured value.
const ROUNDS: usize = 3;
