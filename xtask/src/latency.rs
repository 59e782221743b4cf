//! `bench latency`: how long a packet takes through the balancer, beside the same way through the kernel alone; and idle CPU.
//!
//! In: a balancer. Out: a table, and `benches/results/latency.csv`: percentiles of the time from the making of a packet at the
//! router's end of the link until the kernel has received there what comes back, at shares of what the balancer takes at most.
//! In each round the kernel, which forwards the same packets by its routes, and the balancer (AF_XDP, GRE) have a turn at each
//! share; then the balancer has nothing to do, and the time that its threads run is counted.
//! Not here: the stage, and what makes, stamps and watches packets (`stage`, `offer`).

use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use testbed::{BedSpec, Encapsulation, Frame, VIP_V4};

use crate::forwarders::{Io, Ours};
use crate::offer::Traffic;
use crate::stage::{Load, Peer, Rates, Receive, Stage, Worker};
use crate::statistics::{median, percentile};
use crate::tidy::RESULTS;
use crate::{cargo, figures, pace, setup};

/// Measures the balancer given, or a fresh build, for so many rounds; keeps what [`ROUNDS_KEPT`] or more gave.
pub(crate) fn run(binary: Option<&Path>, rounds: usize) -> Result<()> {
    setup::require_root("bench latency")?;
    setup::ensure(&[setup::BUILD, setup::BED].concat())?;
    let program = match binary {
        Some(path) => path.canonicalize().with_context(|| format!("no balancer at {}", path.display()))?,
        None => cargo::release_binary()?,
    };
    let spec = BedSpec { backends: 0, vips: vec![VIP_V4], program: Some(program), ..BedSpec::default() };
    let stage = Stage::build(&spec, Receive::BesideGenerator)?;
    let capacity = capacity(&stage)?;
    let mut measured = Measured { capacity, ..Measured::default() };
    for n in 1..=rounds {
        eprintln!("round {n}");
        measured.kernel.push(turns(&stage, &Routes, capacity)?.0);
        let (turns, idle) = turns(&stage, &OURS, capacity)?;
        measured.balancer.push(turns);
        measured.idle.push(idle);
    }
    println!("{}", measured.words());
    if rounds >= ROUNDS_KEPT {
        let text = figures::origin("cargo xtask bench latency", figures::VETH, false)? + &measured.csv();
        let file = cargo::root().join(RESULTS).join("latency.csv");
        fs::write(&file, text).with_context(|| format!("can't write {}", file.display()))?;
        eprintln!("kept in {}", file.display());
    }
    Ok(())
}

/// The kernel's own forwarding: back by the default route.
struct Routes;

impl Peer for Routes {
    fn name(&self) -> &'static str {
        "kernel"
    }

    fn carries(&self, load: Load) -> bool {
        load == Load::Packets
    }

    fn start(&self, _stage: &Stage, _load: Load) -> Result<Worker> {
        Ok(Worker::Kernel)
    }

    fn is_forwarded(&self, stage: &Stage, frame: &Frame) -> bool {
        frame.outer().is_none() && stage.bed.spec.vips.contains(&frame.ip.destination)
    }
}

/// Packets a second that the balancer takes at most.
fn capacity(stage: &Stage) -> Result<f64> {
    let traffic = stage.smallest_udp(FLOWS)?;
    let running = stage.start(&OURS, Load::Packets)?;
    stage.probe(&running, &traffic)?;
    let rates = pace::turn(stage, &running, traffic, &mut None)?;
    running.stop(stage)?;
    Ok(rates.taken)
}

/// A turn at each share of `capacity`, and which part of a processor the peer's threads take while nothing comes.
fn turns(stage: &Stage, peer: &dyn Peer, capacity: f64) -> Result<([Turn; SHARES.len()], f64)> {
    let traffic = stage.smallest_udp(FLOWS)?;
    let running = stage.start(peer, Load::Packets)?;
    stage.probe(&running, &traffic)?;
    let mut turns = [Turn::default(); SHARES.len()];
    for (turn, share) in turns.iter_mut().zip(SHARES) {
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "some thousands")]
        let pace = (capacity * f64::from(share) / 100.0) as u32;
        let traffic = Traffic { pace, probes: PROBES_APART, ..traffic.clone() };
        for _ in 0..TRIES {
            let (rates, delays) = stage.rates_and_delays(&running, &traffic, WINDOW)?;
            ensure!(!delays.is_empty(), "{}: none of its probes came back", peer.name());
            let times = PER_MILLE.map(|n| percentile(&delays, n));
            let tried = Turn { asked: pace.into(), rates, probes: delays.len(), times };
            eprintln!("{}, {share} %: {}", peer.name(), tried.words());
            if tried.offered() > turn.offered() {
                *turn = tried;
            }
            if turn.is_undisturbed() {
                break;
            }
        }
    }
    let (start, before) = (Instant::now(), running.process_time()?);
    if running.has_process() {
        sleep(IDLE);
    }
    let idle = running.process_time()?.saturating_sub(before).div_duration_f64(start.elapsed());
    running.stop(stage)?;
    Ok((turns, idle))
}

#[derive(Clone, Copy, Debug, Default)]
struct Turn {
    /// Packets a second that the generator was to offer.
    asked: f64,
    rates: Rates,
    probes: usize,
    /// By [`PER_MILLE`].
    times: [Duration; PER_MILLE.len()],
}

impl Turn {
    /// Which part of what it was to offer the generator did offer: it drops what it is late for.
    fn offered(&self) -> f64 {
        self.rates.offered / self.asked.max(1.0)
    }

    /// Nobody else had much of the generator's processor.
    fn is_undisturbed(&self) -> bool {
        self.offered() >= LEAST_OFFERED
    }

    fn words(&self) -> String {
        let Rates { offered, taken, .. } = self.rates;
        let [p50, p99, p999] = self.times.map(micros);
        format!(
            "{taken:.0} of {offered:.0} packets/s{}, {} probes, p50 {p50:.1} us, p99 {p99:.1}, p99.9 {p999:.1}",
            if self.is_undisturbed() { "" } else { ", disturbed" },
            self.probes
        )
    }
}

/// All of a run, round by round.
#[derive(Debug, Default)]
struct Measured {
    capacity: f64,
    kernel: Vec<[Turn; SHARES.len()]>,
    balancer: Vec<[Turn; SHARES.len()]>,
    idle: Vec<f64>,
}

impl Measured {
    /// Medians; what is added is the median of the differences within a round.
    fn words(&self) -> String {
        let mut text = format!(
            "medians of {} rounds; 100 % is {:.0} packets/s; us at p50, p99 and p99.9\n{:>6}{:>30}{:>30}{:>30}\n",
            self.idle.len(),
            self.capacity,
            "load",
            "kernel",
            "balancer",
            "added"
        );
        for (at, share) in SHARES.into_iter().enumerate() {
            let _ = write!(text, "{share:>4} %");
            for of in [
                |turns: [Turn; 2], n: usize| micros(turns[0].times[n]),
                |turns: [Turn; 2], n: usize| micros(turns[1].times[n]),
                |turns: [Turn; 2], n: usize| micros(turns[1].times[n]) - micros(turns[0].times[n]),
            ] {
                for n in 0..PER_MILLE.len() {
                    let rounds = self.kernel.iter().zip(&self.balancer);
                    let value = median(rounds.map(|(kernel, ours)| of([kernel[at], ours[at]], n)));
                    let _ = write!(text, "{value:>10.1}");
                }
            }
            text.push('\n');
        }
        let turns = || self.kernel.iter().chain(&self.balancer).flatten();
        let undisturbed = turns().filter(|turn| turn.is_undisturbed()).count();
        let _ = writeln!(text, "{undisturbed} of {} turns undisturbed", turns().count());
        let idle = median(self.idle.iter().copied()) * 100.0;
        let _ = write!(
            text,
            "idle: {idle:.2} % of a processor, all threads of the balancer, over {IDLE:?} a round"
        );
        text
    }

    /// Every turn, a line each.
    fn csv(&self) -> String {
        let mut text = format!(
            "# capacity_per_s: {:.0}\nround,path,load,asked_per_s,offered_per_s,taken_per_s,cpus,probes,p50_ns,p99_ns,p999_ns\n",
            self.capacity
        );
        for (path, rounds) in [("kernel", &self.kernel), ("balancer", &self.balancer)] {
            for (n, turns) in rounds.iter().enumerate() {
                for (Turn { asked, rates: Rates { offered, taken, device, .. }, probes, times }, share) in
                    turns.iter().zip(SHARES)
                {
                    let [p50, p99, p999] = times.map(|time| time.as_nanos());
                    let _ = writeln!(
                        text,
                        "{},{path},{share},{asked:.0},{offered:.0},{taken:.0},{device:.3},{probes},{p50},{p99},{p999}",
                        n + 1
                    );
                }
            }
        }
        for (n, cpus) in self.idle.iter().enumerate() {
            let _ = writeln!(text, "{},balancer,idle,0,0,0,{cpus:.5},0,,,", n + 1);
        }
        text
    }
}

fn micros(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}

const OURS: Ours = Ours { io: Io::AfXdp, encapsulation: Encapsulation::Gre };
/// Of what the balancer takes at most, in hundredths.
const SHARES: [u32; 3] = [1, 50, 90];
const PER_MILLE: [usize; 3] = [500, 990, 999];
const FLOWS: u16 = 1_024;
const PROBES_APART: Duration = Duration::from_micros(100);
/// For a turn that is undisturbed.
const TRIES: usize = 3;
const LEAST_OFFERED: f64 = 0.9;
const WINDOW: Duration = Duration::from_secs(4);
const IDLE: Duration = Duration::from_secs(10);
/// Rounds from which on a run is kept.
const ROUNDS_KEPT: usize = 7;

#[cfg(test)]
mod tests {
    use super::*;

    fn turns(micros: u64) -> [Turn; SHARES.len()] {
        let rates = Rates { offered: 1e3, taken: 999.4, ran: 0.5, device: 0.25 };
        let times = [1, 2, 3].map(|times| Duration::from_micros(micros * times));
        [Turn { asked: 1_200.0, rates, probes: 7, times }; SHARES.len()]
    }

    #[test]
    fn what_is_added_is_the_median_of_differences_within_rounds() {
        let measured = Measured {
            capacity: 1e5,
            kernel: vec![turns(10), turns(20), turns(30)],
            balancer: vec![turns(31), turns(22), turns(33)],
            idle: vec![0.001, 0.002, 0.9],
        };
        let words = measured.words();
        let row: Vec<&str> = words.lines().nth(2).unwrap().split_whitespace().collect();
        // By rounds 21, 2 and 3; of the medians 20 and 31.
        let all = ["1", "%", "20.0", "40.0", "60.0", "31.0", "62.0", "93.0", "3.0", "6.0", "9.0"];
        assert_eq!(row, all);
        assert!(words.contains("0 of 18 turns undisturbed"), "{words}");
        assert!(
            words.ends_with("idle: 0.20 % of a processor, all threads of the balancer, over 10s a round")
        );
    }

    #[test]
    fn csv_has_every_turn_and_every_line_as_many_fields() {
        let measured =
            Measured { capacity: 1e5, kernel: vec![turns(1)], balancer: vec![turns(2)], idle: vec![0.001] };
        let csv = measured.csv();
        let lines: Vec<&str> = csv.lines().skip(1).collect();
        assert_eq!(lines.len(), 8);
        assert_eq!(lines[1], "1,kernel,1,1200,1000,999,0.250,7,1000,2000,3000");
        assert_eq!(lines[7], "1,balancer,idle,0,0,0,0.00100,0,,,");
        assert!(lines.iter().all(|line| line.split(',').count() == 11), "{csv}");
    }
}
