//! `bench testpmd`: packets per second through the balancer, beside those through DPDK's testpmd on the same veth.
//!
//! One veth pair; at one end a generator ([`offer`]) that gives more than either takes, at the other, in turns, the balancer
//! (AF_XDP, GRE, 1,024 flows) and `dpdk-testpmd --forward-mode=macswap` (AF_XDP, no look-up, no header). What comes back at
//! the generator's end is taken; the kernel counts it there, and drops it at once by its MAC address.
//! Generator and what the kernel does for it run on processor 0, the device under test and its sending on processor 1.
//! A pair in which something else had much of them is measured again, up to ten times.
//! A veth copies each packet twice and makes a socket buffer of it: a ratio here is not that of a NIC.

use std::fs;
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use testbed::{
    Balancer, Bed, BedSpec, Capture, Counters, DeviceCounts, Frame, FrameSpec, LbConfig, PoolMember, Process,
    VIP_V4, device_counts, eventually, inject, mac_of,
};

use crate::offer::{self, Offer, pin, thread_time_run};
use crate::{cargo, setup};

/// Runs the comparison with the binary given, or a fresh build. Below the bar is a result, not an error.
pub(crate) fn run(binary: Option<&Path>, json: bool) -> Result<()> {
    setup::require_root("bench testpmd")?;
    setup::ensure(&[setup::BUILD, setup::BED, setup::TESTPMD].concat())?;
    let program = match binary {
        Some(path) => path.canonicalize().with_context(|| format!("no balancer at {}", path.display()))?,
        None => cargo::release_binary()?,
    };
    let stage = Stage::build(program)?;
    let mut outcome = Outcome::default();
    for n in 1..=MOST_PAIRS {
        let (balancer, counters) = stage.balancer()?;
        let pair = Pair { balancer, testpmd: stage.testpmd()? };
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

struct Stage {
    bed: Bed,
    object: Vec<u8>,
    frame: Vec<u8>,
}

impl Stage {
    fn build(program: PathBuf) -> Result<Self> {
        let object = offer::compile()?;
        // The bed's threads, and so the processes that they start, keep the processor of the thread that builds it.
        pin(DEVICE_CPU).context("two processors are needed")?;
        let spec = BedSpec { backends: 0, vips: vec![VIP_V4], program: Some(program), ..BedSpec::default() };
        let bed = Bed::new(&spec)?;
        pin(GENERATOR_CPU)?;
        let host = &bed.balancers[0];
        // All that comes back is for a MAC address that nobody has: its way ends before any look-up, for both.
        let nobody = NOBODY.map(|byte| format!("{byte:02x}")).join(":");
        host.ns.ip(&format!("neigh replace 192.0.2.0 lladdr {nobody} nud permanent dev {}", host.device))?;
        let to = mac_of(&host.ns, host.device)?;
        let frame = FrameSpec::smallest_udp(
            NOBODY,
            to,
            (bed.client.v4, 10_000).into(),
            bed.vip(true, Bed::SINK_PORT),
        );
        let mut frame = frame.bytes();
        frame[UDP_CHECKSUM].fill(0);
        Ok(Self { bed, object, frame })
    }

    fn balancer(&self) -> Result<(Rates, Counters)> {
        let config = LbConfig {
            pool: vec![PoolMember { name: "b1".into(), address: [198, 18, 1, 1].into(), weight: 1 }],
            ..LbConfig::new(&self.bed)
        };
        let balancer = Balancer::start(&self.bed, 0, &config)?;
        self.probe(true).with_context(|| format!("the balancer:\n{}", balancer.process.tail()))?;
        let rates = self.measure(balancer.process.id())?;
        let counters = balancer.counters()?;
        balancer.stop()?;
        Ok((rates, counters))
    }

    fn testpmd(&self) -> Result<Rates> {
        let host = &self.bed.balancers[0];
        let script = format!(
            "export RUNTIME_DIRECTORY={} && mount -t bpf bpf /sys/fs/bpf && exec dpdk-testpmd --no-huge -m 512 --no-pci --no-shconf --no-telemetry \
             --lcores=0@{DEVICE_CPU},1@{DEVICE_CPU} --vdev net_af_xdp0,iface={} -- --forward-mode=macswap \
             --no-lsc-interrupt --total-num-mbufs=16384 --stats-period=1",
            self.bed.dir().display(),
            host.device
        );
        let mut process = Process::start(&host.ns, "testpmd", "unshare", &["--mount", "sh", "-c", &script])?;
        process.wait_for_line(START_BOUND, |line| line.contains("NIC statistics for port 0"))?;
        self.probe(false).with_context(|| format!("testpmd:\n{}", process.tail()))?;
        let rates = self.measure(process.id())?;
        process.stop(STOP_BOUND)?;
        // It may have been killed, and its program outlives it.
        host.ns.ip(&format!("link set dev {} xdp off", host.device))?;
        Ok(rates)
    }

    /// Sends one packet until one comes back, and looks whether that is as it should be.
    fn probe(&self, encapsulated: bool) -> Result<()> {
        let (router, port) = (&self.bed.router, &self.bed.balancers[0].port);
        let back = Capture::start(router, port, 1, |frame| frame.starts_with(&NOBODY))?;
        let seen = eventually(START_BOUND, || {
            inject(router, port, &self.frame).ok()?;
            back.frames().pop()
        });
        let seen = seen.context("no packet comes back")?;
        let is_encapsulated = Frame::parse(&seen.bytes).is_some_and(|frame| frame.outer().is_some());
        ensure!(is_encapsulated == encapsulated, "a strange packet comes back: {:02x?}", seen.bytes);
        Ok(())
    }

    /// While process `device` forwards.
    fn measure(&self, device: u32) -> Result<Rates> {
        let host = &self.bed.balancers[0];
        let offer =
            Offer::start(&self.bed.router, &host.port, &self.object, self.frame.clone(), GENERATOR_CPU)?;
        sleep(WARM_UP);
        let ran = || Ok::<_, anyhow::Error>([offer.time_run()?, time_run(device)?]);
        let (start, ran_before, before) = (Instant::now(), ran()?, self.counts()?);
        sleep(WINDOW);
        let (time, ran_after, after) = (start.elapsed(), ran()?, self.counts()?);
        offer.stop()?;
        let shares = ran_after
            .iter()
            .zip(ran_before)
            .map(|(after, before)| after.saturating_sub(before).div_duration_f64(time));
        Ok(Rates {
            offered: rate(after.0.rx_packets - before.0.rx_packets, time),
            taken: rate(after.1.rx_packets - before.1.rx_packets, time),
            ran: shares.fold(1.0, f64::min),
        })
    }

    /// At the device under test, and at the generator.
    fn counts(&self) -> Result<(DeviceCounts, DeviceCounts)> {
        let host = &self.bed.balancers[0];
        Ok((device_counts(&host.ns, host.device)?, device_counts(&self.bed.router, &host.port)?))
    }
}

/// Packets per second.
#[derive(Clone, Copy, Debug, Default)]
struct Rates {
    /// That reached the interface of the device under test.
    offered: f64,
    /// That came back.
    taken: f64,
    /// Which part of the time generator and device ran on their processors: the lower one.
    ran: f64,
}

impl Rates {
    fn excess(self) -> f64 {
        self.offered / self.taken
    }
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

    /// Nobody else had much of the processors.
    fn undisturbed(&self) -> bool {
        self.balancer.ran.min(self.testpmd.ran) >= UNDISTURBED
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
    /// The generator gave one of them too little to tell.
    GeneratorLimited,
    Met,
    Missed,
}

#[derive(Debug, Default)]
struct Outcome {
    pairs: Vec<Pair>,
    /// The balancer's own, after its last turn.
    counters: Counters,
}

impl Outcome {
    fn ratio(&self) -> f64 {
        median(self.pairs.iter().map(Pair::ratio))
    }

    fn undisturbed(&self) -> usize {
        self.pairs.iter().filter(|pair| pair.undisturbed()).count()
    }

    /// How many times what a device took was offered to it: the lower one of the two devices.
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
            Verdict::GeneratorLimited => format!("generator-limited: less than {LEAST_EXCESS} x was offered"),
            Verdict::Met => format!("met: at least {BAR}"),
            Verdict::Missed => format!("missed: {:.3} below {BAR}", BAR - self.ratio()),
        };
        format!(
            "medians of {} pairs, 64-byte packets, 1,024 flows, veth, generator on processor {GENERATOR_CPU}, device on {DEVICE_CPU}\n\
             balancer (GRE) {:.0} k packets/s of {:.0} k offered\n\
             testpmd (macswap) {:.0} k packets/s of {:.0} k offered\n\
             offered at least {:.2} x what was taken\n\
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

/// How long the threads of a process have run.
fn time_run(process: u32) -> Result<Duration> {
    let threads = fs::read_dir(format!("/proc/{process}/task"))?;
    threads.map(|thread| thread_time_run(&thread?.path())).sum()
}

/// The middle one, or the mean of the two in the middle; 0 of none.
fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut sorted: Vec<f64> = values.collect();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    match sorted.len() {
        0 => 0.0,
        odd if odd % 2 == 1 => sorted[middle],
        _ => f64::midpoint(sorted[middle - 1], sorted[middle]),
    }
}

#[expect(clippy::cast_precision_loss, reason = "counts far below 2^52")]
fn rate(packets: u64, time: Duration) -> f64 {
    packets as f64 / time.as_secs_f64()
}

const PAIRS: usize = 10;
/// Tried for the sake of [`PAIRS`] undisturbed ones; without those all count.
const MOST_PAIRS: usize = 20;
const BAR: f64 = 0.9;
const LEAST_EXCESS: f64 = 1.2;
const GENERATOR_CPU: usize = 0;
const DEVICE_CPU: usize = 1;
/// Locally administered, and no device's.
const NOBODY: [u8; 6] = [0x02, 0, 0, 0, 0, 0x01];
const UDP_CHECKSUM: std::ops::Range<usize> = 40..42;
/// Which part of the time is enough.
const UNDISTURBED: f64 = 0.85;
const WARM_UP: Duration = Duration::from_millis(500);
const WINDOW: Duration = Duration::from_secs(2);
const START_BOUND: Duration = Duration::from_secs(20);
const STOP_BOUND: Duration = Duration::from_secs(20);

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(balancer: [f64; 3], testpmd: f64, offered: f64) -> Outcome {
        let pair = |taken| Pair {
            balancer: Rates { offered, taken, ran: 1.0 },
            testpmd: Rates { offered, taken: testpmd, ran: 1.0 },
        };
        Outcome { pairs: balancer.map(pair).into(), counters: Counters::default() }
    }

    #[test]
    fn the_verdict_is_the_medians_and_needs_a_generator_that_gives_enough() {
        assert_eq!(outcome([1.0, 90.0, 99.0], 100.0, 120.0).verdict(), Verdict::Met);
        assert_eq!(outcome([1.0, 89.0, 99.0], 100.0, 120.0).verdict(), Verdict::Missed);
        assert_eq!(outcome([90.0; 3], 100.0, 119.0).verdict(), Verdict::GeneratorLimited);
        assert_eq!(outcome([110.0; 3], 90.0, 131.0).verdict(), Verdict::GeneratorLimited);
    }

    #[test]
    fn an_even_number_has_its_median_between_two() {
        assert!((median([4.0, 1.0, 3.0, 2.0].into_iter()) - 2.5).abs() < f64::EPSILON);
        assert!((median([3.0, 1.0, 2.0].into_iter()) - 2.0).abs() < f64::EPSILON);
    }
}
