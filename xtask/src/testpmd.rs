//! Implements `bench testpmd`, which compares the packet rates of the balancer and of DPDK's
//! testpmd on the same veth.
//!
//! The balancer (AF_XDP, GRE, 1,024 flows) and `dpdk-testpmd --forward-mode=macswap` (AF_XDP, no
//! lookup, no encapsulation) are measured alternately on the [`Stage`]. The generator's processor
//! also does the kernel's receive processing for the packets that the generator sends. The device
//! under test receives and sends on the other processor. If other programs disturbed a pair of
//! measurements, the pair is repeated. At most twenty pairs are measured.

use std::path::Path;

use anyhow::{Context, Result};
use serde_json::{Value, json};
use testbed::{BedSpec, Counters, Encapsulation, VIP_V4};

use crate::forwarders::{Io, Ours, Testpmd};
use crate::processors::{DEVICE_CPU, GENERATOR_CPU};
use crate::stage::{LEAST_EXCESS, Load, Peer, Rates, Receive, Stage, UNDISTURBED, WINDOW, Worker};
use crate::statistics::median;
use crate::{cargo, setup};

/// Runs the comparison with the given balancer binary, or with a fresh build. A missed goal is
/// reported as a result and is not an error.
pub(crate) fn run(binary: Option<&Path>, json: bool) -> Result<()> {
    setup::require_root("bench testpmd")?;
    setup::ensure(&[setup::BUILD, setup::BED, setup::TESTPMD].concat())?;
    let program = match binary {
        Some(path) => {
            path.canonicalize().with_context(|| format!("cannot find a balancer at {}", path.display()))?
        }
        None => cargo::release_binary()?,
    };
    let spec = BedSpec { backends: 0, vips: vec![VIP_V4], program: Some(program), ..BedSpec::default() };
    let stage = Stage::build(&spec, Receive::BesideGenerator)?;
    let ours = Ours::new(Io::AfXdp, Encapsulation::Gre);
    let mut outcome = Outcome::default();
    for n in 1..=MOST_PAIRS {
        let (balancer, counters) = measure(&stage, &ours)?;
        let pair = Pair { balancer, testpmd: measure(&stage, &Testpmd)?.0 };
        eprintln!("pair {n}: {}", pair.words());
        outcome.pairs.push(pair);
        outcome.counters = counters;
        if outcome.undisturbed() == PAIRS {
            break;
        }
    }
    if outcome.undisturbed() == PAIRS {
        outcome.pairs.retain(Pair::undisturbed);
    }
    if json {
        println!("{:#}", outcome.json());
    } else {
        println!("{}", outcome.words());
    }
    Ok(())
}

/// Measures one forwarder once. Returns its rates, and the counters of the balancer.
fn measure(stage: &Stage, peer: &dyn Peer) -> Result<(Rates, Counters)> {
    let traffic = stage.smallest_udp(1_024)?;
    let running = stage.start(peer, Load::Packets)?;
    stage.probe(&running, &traffic)?;
    let rates = stage.rates(&running, &traffic, WINDOW)?;
    let counters = match &running.worker {
        Worker::Balancer(balancer) => balancer.counters()?,
        Worker::Kernel | Worker::Process(_) => Counters::default(),
    };
    running.stop(stage)?;
    Ok((rates, counters))
}

#[derive(Clone, Copy, Debug)]
struct Pair {
    balancer: Rates,
    testpmd: Rates,
}

impl Pair {
    fn ratio(&self) -> f64 {
        self.balancer.taken / self.testpmd.taken
    }

    /// Returns `true` if other programs used little time on the two processors.
    fn undisturbed(&self) -> bool {
        self.balancer.undisturbed() && self.testpmd.undisturbed()
    }

    fn words(&self) -> String {
        let side = |rates: Rates| {
            format!(
                "{:.0} k/s of {:.0} k/s ({:.2} x offered, ran {:.0} %)",
                rates.taken / 1e3,
                rates.offered / 1e3,
                rates.excess(),
                rates.ran * 100.0
            )
        };
        let disturbed = if self.undisturbed() { "" } else { ", disturbed" };
        format!(
            "balancer {}, testpmd {}, ratio {:.3}{disturbed}",
            side(self.balancer),
            side(self.testpmd),
            self.ratio()
        )
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Verdict {
    /// The generator offered too few packets to one of the forwarders for a valid result.
    GeneratorLimited,
    Met,
    Missed,
}

#[derive(Debug, Default)]
struct Outcome {
    pairs: Vec<Pair>,
    /// The counters of the balancer after its last measurement.
    counters: Counters,
}

impl Outcome {
    fn ratio(&self) -> f64 {
        median(self.pairs.iter().map(Pair::ratio))
    }

    fn undisturbed(&self) -> usize {
        self.pairs.iter().filter(|pair| pair.undisturbed()).count()
    }

    /// Returns the ratio of offered to forwarded packets for the forwarder with the lower ratio.
    fn excess(&self) -> f64 {
        let balancer = median(self.pairs.iter().map(|pair| pair.balancer.excess()));
        balancer.min(median(self.pairs.iter().map(|pair| pair.testpmd.excess())))
    }

    fn verdict(&self) -> Verdict {
        if self.excess() < LEAST_EXCESS {
            Verdict::GeneratorLimited
        } else if self.ratio() >= BAR {
            Verdict::Met
        } else {
            Verdict::Missed
        }
    }

    fn words(&self) -> String {
        let of = |pick: fn(&Pair) -> f64| median(self.pairs.iter().map(pick)) / 1e3;
        let verdict = match self.verdict() {
            Verdict::GeneratorLimited => {
                format!("generator-limited: offered less than {LEAST_EXCESS} x the forwarded packets")
            }
            Verdict::Met => format!("goal met: at least {BAR}"),
            Verdict::Missed => format!("goal missed: {:.3} below {BAR}", BAR - self.ratio()),
        };
        format!(
            "medians of {} pairs, 64-byte packets, 1,024 flows, veth, generator on processor {GENERATOR_CPU}, device on {DEVICE_CPU}\n\
             balancer (GRE) {:.0} k packets/s of {:.0} k offered\n\
             testpmd (macswap) {:.0} k packets/s of {:.0} k offered\n\
             offered at least {:.2} x the forwarded packets\n\
             ratio {:.3}; {verdict}\n\
             {} of {} pairs undisturbed: generator and device had their processors for {:.0} % of the time",
            self.pairs.len(),
            of(|pair| pair.balancer.taken),
            of(|pair| pair.balancer.offered),
            of(|pair| pair.testpmd.taken),
            of(|pair| pair.testpmd.offered),
            self.excess(),
            self.ratio(),
            self.undisturbed(),
            self.pairs.len(),
            UNDISTURBED * 100.0,
        )
    }

    fn json(&self) -> Value {
        let rates = |rates: Rates| {
            json!({
                "offered_per_s": rates.offered.round(), "taken_per_s": rates.taken.round(),
                "ran": rates.ran,
            })
        };
        let pair = |pair: &Pair| {
            json!({
                "balancer": rates(pair.balancer), "testpmd": rates(pair.testpmd),
                "ratio": pair.ratio(), "undisturbed": pair.undisturbed(),
            })
        };
        json!({
            "pairs": self.pairs.iter().map(pair).collect::<Vec<_>>(),
            "ratio": self.ratio(),
            "undisturbed": self.undisturbed(),
            "bar": BAR,
            "offered_over_taken": self.excess(),
            "verdict": match self.verdict() {
                Verdict::GeneratorLimited => "generator-limited",
                Verdict::Met => "met",
                Verdict::Missed => "missed",
            },
            "counters": self.counters.0,
        })
    }
}

const PAIRS: usize = 10;
/// The maximum number of pairs that are measured to get [`PAIRS`] undisturbed pairs. If too few
/// pairs are undisturbed, the result is computed from all pairs.
const MOST_PAIRS: usize = 20;
const BAR: f64 = 1.0;

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(balancer: [f64; 3], testpmd: f64, offered: f64) -> Outcome {
        let pair = |taken| Pair {
            balancer: Rates { offered, taken, ran: 1.0, device: 1.0 },
            testpmd: Rates { offered, taken: testpmd, ran: 1.0, device: 1.0 },
        };
        Outcome { pairs: balancer.map(pair).into(), counters: Counters::default() }
    }

    #[test]
    fn verdict_uses_medians_and_needs_enough_offered() {
        assert_eq!(outcome([1.0, 100.0, 109.0], 100.0, 120.0).verdict(), Verdict::Met);
        assert_eq!(outcome([1.0, 99.0, 109.0], 100.0, 120.0).verdict(), Verdict::Missed);
        assert_eq!(outcome([90.0; 3], 100.0, 119.0).verdict(), Verdict::GeneratorLimited);
        assert_eq!(outcome([110.0; 3], 90.0, 131.0).verdict(), Verdict::GeneratorLimited);
    }
}
