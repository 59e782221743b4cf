//! Implements `bench latency`, which measures the packet latency through the balancer and through
//! the kernel, and the CPU time that the idle balancer uses.
//!
//! A packet is created at the router's end of the link. The latency is the time until the kernel
//! receives the packet there again. Each round measures the kernel, which forwards packets
//! according to its routes, and the balancer (AF_XDP, GRE) with each value of `io.idle.prefer`.
//! Both forwarders are measured at several fractions of the balancer's maximum rate. Then each
//! round measures the CPU time of the idle balancer. The module prints a table, and writes the
//! percentiles of the latencies to `benches/results/latency.csv`. The modules `stage` and `offer`
//! create, timestamp and receive packets.

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

/// Measures the given balancer binary, or a fresh build. Results of at least [`ROUNDS_KEPT`] rounds
/// are written to a file.
pub(crate) fn run(binary: Option<&Path>, rounds: usize) -> Result<()> {
    setup::require_root("bench latency")?;
    setup::ensure(&[setup::BUILD, setup::BED].concat())?;
    let program = match binary {
        Some(path) => {
            path.canonicalize().with_context(|| format!("cannot find a balancer at {}", path.display()))?
        }
        None => cargo::release_binary()?,
    };
    let spec = BedSpec { backends: 0, vips: vec![VIP_V4], program: Some(program), ..BedSpec::default() };
    let stage = Stage::build(&spec, Receive::BesideGenerator)?;
    let capacity = capacity(&stage)?;
    let mut measured = Measured { capacity, ..Measured::default() };
    for n in 1..=rounds {
        eprintln!("round {n}");
        measured.kernel.push(turns(&stage, &Routes, capacity)?.0);
        for (prefer, (all, all_idle)) in PREFER.into_iter().zip(&mut measured.balancer) {
            let (turns, idle) = turns(&stage, &Ours { prefer: Some(prefer), ..OURS }, capacity)?;
            all.push(turns);
            all_idle.push(idle);
        }
    }
    println!("{}", measured.words());
    if rounds >= ROUNDS_KEPT {
        let text = figures::origin("cargo xtask bench latency", figures::VETH, false)? + &measured.csv();
        let file = cargo::root().join(RESULTS).join("latency.csv");
        fs::write(&file, text).with_context(|| format!("cannot write {}", file.display()))?;
        eprintln!("results written to {}", file.display());
    }
    Ok(())
}

/// Forwarding by the kernel, without a balancer. The kernel sends the packets back over its default
/// route.
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

/// Returns the maximum rate of the balancer in packets per second.
fn capacity(stage: &Stage) -> Result<f64> {
    let traffic = stage.smallest_udp(FLOWS)?;
    let running = stage.start(&OURS, Load::Packets)?;
    stage.probe(&running, &traffic)?;
    let rates = pace::turn(stage, &running, traffic, &mut None)?;
    running.stop(stage)?;
    Ok(rates.taken)
}

/// Measures the forwarder at each fraction of `capacity`. Also returns the fraction of a processor
/// that the forwarder's threads use without traffic.
fn turns(stage: &Stage, peer: &dyn Peer, capacity: f64) -> Result<([Turn; SHARES.len()], f64)> {
    let traffic = stage.smallest_udp(FLOWS)?;
    let running = stage.start(peer, Load::Packets)?;
    stage.probe(&running, &traffic)?;
    let mut turns = [Turn::default(); SHARES.len()];
    for (turn, share) in turns.iter_mut().zip(SHARES) {
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "it fits in 32 bits")]
        let pace = (capacity * f64::from(share) / 100.0) as u32;
        let traffic = Traffic { pace, probes: PROBES_APART, ..traffic.clone() };
        for _ in 0..TRIES {
            let (rates, delays) = stage.rates_and_delays(&running, &traffic, WINDOW)?;
            ensure!(!delays.is_empty(), "{} returned no packet with a timestamp", peer.name());
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
    /// The requested rate of the load generator, in packets per second.
    asked: f64,
    rates: Rates,
    probes: usize,
    /// The latencies at the percentiles in [`PER_MILLE`].
    times: [Duration; PER_MILLE.len()],
}

impl Turn {
    /// Returns the fraction of the requested packets that the load generator sent. The generator
    /// skips overdue packets.
    fn offered(&self) -> f64 {
        self.rates.offered / self.asked.max(1.0)
    }

    /// Returns `true` if other programs used little time on the processor of the load generator.
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

/// All measurements of a run.
#[derive(Debug, Default)]
struct Measured {
    capacity: f64,
    kernel: Vec<[Turn; SHARES.len()]>,
    /// The measurements and the idle CPU time for each value in [`PREFER`].
    balancer: [(Vec<[Turn; SHARES.len()]>, Vec<f64>); PREFER.len()],
}

impl Measured {
    /// Formats a table of medians. The latency that the balancer adds is the difference between two
    /// measurements of the same round. The table shows the median of these differences.
    fn words(&self) -> String {
        let mut text = format!(
            "latency in microseconds at p50, p99 and p99.9; medians of {} rounds; \
             100 % load is {:.0} packets/s\n{:>18}{:>30}{:>30}{:>30}\n",
            self.kernel.len(),
            self.capacity,
            "load",
            "kernel",
            "balancer",
            "added"
        );
        for (prefer, (balancer, idle)) in PREFER.into_iter().zip(&self.balancer) {
            for (at, share) in SHARES.into_iter().enumerate() {
                let _ = write!(text, "{prefer:>12}{share:>4} %");
                for of in [
                    |turns: [Turn; 2], n: usize| micros(turns[0].times[n]),
                    |turns: [Turn; 2], n: usize| micros(turns[1].times[n]),
                    |turns: [Turn; 2], n: usize| micros(turns[1].times[n]) - micros(turns[0].times[n]),
                ] {
                    for n in 0..PER_MILLE.len() {
                        let rounds = self.kernel.iter().zip(balancer);
                        let value = median(rounds.map(|(kernel, ours)| of([kernel[at], ours[at]], n)));
                        let _ = write!(text, "{value:>10.1}");
                    }
                }
                text.push('\n');
            }
            let idle = median(idle.iter().copied()) * 100.0;
            let _ = writeln!(
                text,
                "{prefer:>12} idle: {idle:.2} % of a processor, all threads of the balancer, {IDLE:?} per round"
            );
        }
        let turns = || {
            let balancer = self.balancer.iter().flat_map(|(turns, _)| turns);
            self.kernel.iter().chain(balancer).flatten()
        };
        let undisturbed = turns().filter(|turn| turn.is_undisturbed()).count();
        let _ = write!(text, "{undisturbed} of {} measurements undisturbed", turns().count());
        text
    }

    /// Formats one CSV line per measurement.
    fn csv(&self) -> String {
        let mut text = format!(
            "# capacity_per_s: {:.0}\nround,path,load,asked_per_s,offered_per_s,taken_per_s,cpus,probes,p50_ns,p99_ns,p999_ns\n",
            self.capacity
        );
        let balancer = PREFER.into_iter().zip(self.balancer.iter().map(|(turns, _)| turns));
        for (path, rounds) in [("kernel", &self.kernel)].into_iter().chain(balancer) {
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
        for (prefer, (_, idle)) in PREFER.into_iter().zip(&self.balancer) {
            for (n, cpus) in idle.iter().enumerate() {
                let _ = writeln!(text, "{},{prefer},idle,0,0,0,{cpus:.5},0,,,", n + 1);
            }
        }
        text
    }
}

fn micros(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}

const OURS: Ours = Ours::new(Io::AfXdp, Encapsulation::Gre);
/// The measured values of `io.idle.prefer`.
const PREFER: [&str; 3] = ["balanced", "low-latency", "low-cpu"];
/// The rates at which latency is measured, in percent of the balancer's maximum rate.
const SHARES: [u32; 3] = [1, 50, 90];
const PER_MILLE: [usize; 3] = [500, 990, 999];
const FLOWS: u16 = 1_024;
const PROBES_APART: Duration = Duration::from_micros(100);
/// The maximum number of attempts to get an undisturbed measurement.
const TRIES: usize = 3;
const LEAST_OFFERED: f64 = 0.9;
const WINDOW: Duration = Duration::from_secs(4);
const IDLE: Duration = Duration::from_secs(10);
/// The minimum number of rounds for which results are written to a file.
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
    fn added_latency_is_the_median_of_differences_in_rounds() {
        let mut measured =
            Measured { capacity: 1e5, kernel: vec![turns(10), turns(20), turns(30)], ..Measured::default() };
        measured.balancer[0] = (vec![turns(31), turns(22), turns(33)], vec![0.001, 0.002, 0.9]);
        for others in &mut measured.balancer[1..] {
            *others = (vec![turns(1)], vec![0.5]);
        }
        let words = measured.words();
        let row: Vec<&str> = words.lines().nth(2).unwrap().split_whitespace().collect();
        // The differences in the three rounds are 21, 2 and 3 us. The difference between the
        // medians of the two forwarders would be 20 or 31 us.
        let all = ["balanced", "1", "%", "20.0", "40.0", "60.0", "31.0", "62.0", "93.0", "3.0", "6.0", "9.0"];
        assert_eq!(row, all);
        assert!(words.contains("balanced idle: 0.20 % of a processor, all threads"), "{words}");
        assert!(words.ends_with("0 of 24 measurements undisturbed"), "{words}");
    }

    #[test]
    fn csv_has_every_turn_with_the_same_number_of_fields() {
        let mut measured = Measured { capacity: 1e5, kernel: vec![turns(1)], ..Measured::default() };
        measured.balancer[0] = (vec![turns(2)], vec![0.001]);
        let csv = measured.csv();
        let lines: Vec<&str> = csv.lines().skip(1).collect();
        assert_eq!(lines.len(), 8);
        assert_eq!(lines[1], "1,kernel,1,1200,1000,999,0.250,7,1000,2000,3000");
        assert_eq!(lines[7], "1,balanced,idle,0,0,0,0.00100,0,,,");
        assert!(lines.iter().all(|line| line.split(',').count() == 11), "{csv}");
    }
}
