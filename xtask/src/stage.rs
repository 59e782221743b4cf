//! The stage on which benches measure forwarders beside each other: the test bed on two processors.
//!
//! In: a [`Peer`], and what is offered to it. Out: [`Rates`]. One veth pair joins router and device under test; at the router's
//! end is a generator ([`offer`](crate::offer)), and what comes back there is taken: the kernel counts
//! it, and drops it at once by its MAC address. Generator, clients and backends are on one processor, the device on another.
//! A veth copies each packet twice and makes a socket buffer of it: a ratio here is not that of a NIC.
//! Not here: what is compared, and how often (`testpmd`, `peers`).

use std::collections::HashMap;
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use testbed::{
    Balancer, Bed, BedSpec, Capture, Device, Frame, FrameSpec, Host, Process, device_counts, eventually,
    inject, mac_of,
};

use crate::offer::{Delays, FULL, Offer, Pass, Programs, Traffic};
use crate::processors::{
    DEVICE_CPU, GENERATOR_CPU, Priority, pin, receive_on, softirq_thread, thread_time_run, time_run,
};
use crate::statistics::rate;

/// A forwarder that can be put on the stage.
pub(crate) trait Peer {
    /// By which it is asked for, and shown.
    fn name(&self) -> &'static str;

    /// Whether it can be given this load at all.
    fn carries(&self, load: Load) -> bool;

    /// Why it can't run on this machine.
    fn missing(&self, _stage: &Stage) -> Result<Option<String>> {
        Ok(None)
    }

    /// Whether it attaches an XDP program of its own.
    fn has_xdp(&self) -> bool {
        false
    }

    /// Whether that program sends frames back itself: the far end of a veth takes them where it has a program too.
    fn sends_by_xdp(&self) -> bool {
        false
    }

    /// Makes the device under test forward.
    fn start(&self, stage: &Stage, load: Load) -> Result<Worker>;

    /// Takes back what [`Self::start`] changed, once its process has ended.
    fn clean_up(&self, _stage: &Stage) -> Result<()> {
        Ok(())
    }

    /// Whether a frame that came back is an offered one as this peer sends it on; those that carry no packets have none.
    fn is_forwarded(&self, _stage: &Stage, _frame: &Frame) -> bool {
        false
    }
}

/// What is asked of a forwarder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Load {
    /// Many small packets in one direction, for backends that are not there.
    Packets,
    /// Requests to real backends.
    Requests,
}

/// What does a peer's work.
pub(crate) enum Worker {
    /// Nobody but the kernel.
    Kernel,
    Process(Process),
    Balancer(Balancer),
}

/// Where packets are received that reach the device under test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Receive {
    /// On the processor that sends them, as a veth does by itself: the generator pays for it.
    BesideGenerator,
    /// By a kernel thread on the device's processor: the device pays for all that it does.
    OnDevice(Priority),
}

/// A peer at work.
pub(crate) struct Running<'a> {
    peer: &'a dyn Peer,
    pub(crate) worker: Worker,
    _passes: Vec<Pass>,
    kernel_threads: Vec<u32>,
}

impl Running<'_> {
    /// How long its processor has run for it: the threads of its process, the kernel thread that receives for its interface,
    /// and the one that has what softirqs are left over.
    pub(crate) fn time_run(&self) -> Result<Duration> {
        let kernel = self.kernel_threads.iter().map(|id| thread_time_run(format!("/proc/{id}").as_ref()));
        Ok(self.process_time()? + kernel.sum::<Result<Duration>>()?)
    }

    /// How long the threads of its process have run; zero where it has none.
    pub(crate) fn process_time(&self) -> Result<Duration> {
        match &self.worker {
            Worker::Kernel => Ok(Duration::ZERO),
            Worker::Process(process) => time_run(process.id()),
            Worker::Balancer(balancer) => time_run(balancer.process.id()),
        }
    }

    /// Whether it is more than the kernel.
    pub(crate) fn has_process(&self) -> bool {
        !matches!(self.worker, Worker::Kernel)
    }

    /// What its process said last.
    pub(crate) fn tail(&self) -> String {
        match &self.worker {
            Worker::Kernel => String::new(),
            Worker::Process(process) => process.tail(),
            Worker::Balancer(balancer) => balancer.process.tail(),
        }
    }

    /// Ends it; the stage is as before.
    pub(crate) fn stop(self, stage: &Stage) -> Result<()> {
        match self.worker {
            Worker::Kernel => {}
            Worker::Process(mut process) => drop(process.stop(STOP_BOUND)?),
            Worker::Balancer(balancer) => drop(balancer.stop()?),
        }
        self.peer.clean_up(stage)
    }
}

/// A bed of two processors.
pub(crate) struct Stage {
    pub(crate) bed: Bed,
    programs: Programs,
    receive: Receive,
}

impl Stage {
    /// Builds it. Nothing is forwarded yet, and whatever the device would send goes nowhere.
    pub(crate) fn build(spec: &BedSpec, receive: Receive) -> Result<Self> {
        let programs = Programs::compile()?;
        // The bed's threads, and so the processes that they start, keep the processor of the thread that builds it.
        pin(GENERATOR_CPU)?;
        let stage = Self { bed: Bed::new(spec)?, programs, receive };
        stage.lead_to(NOBODY)?;
        let host = stage.host();
        let redirects = format!("ipv4/conf/{}/send_redirects", host.device);
        let all = "ipv4/conf/all/send_redirects";
        host.ns.sysctl(&[("ipv4/ip_forward", "1"), (all, "0"), (&redirects, "0")])?;
        Ok(stage)
    }

    /// The machine of the device under test.
    pub(crate) fn host(&self) -> &Host {
        &self.bed.balancers[0]
    }

    /// The router's end of the link to the device under test.
    pub(crate) fn port(&self) -> Device<'_> {
        self.bed.router.device(&self.host().port)
    }

    /// Sends all that leaves the device under test to this MAC address: that of the router, or one that nobody has, so that its
    /// way ends before any look-up.
    pub(crate) fn lead_to(&self, mac: [u8; 6]) -> Result<()> {
        let Host { ns, device, .. } = self.host();
        ns.ip(&format!("neigh replace 192.0.2.0 lladdr {} nud permanent dev {device}", words(mac)))
    }

    /// Gives the device's machine the first VIP itself, or takes it back: proxies end connections there.
    pub(crate) fn own_vip(&self, owned: bool) -> Result<()> {
        let verb = if owned { "add" } else { "del" };
        self.host().ns.ip(&format!("addr {verb} {}/32 dev lo", self.bed.vip(true, 0).ip()))
    }

    /// 64-byte packets of UDP for the first VIP.
    pub(crate) fn smallest_udp(&self, flows: u16) -> Result<Traffic> {
        let Host { ns, device, .. } = self.host();
        let client = (self.bed.client.v4, 10_000).into();
        let to = self.bed.vip(true, Bed::SINK_PORT);
        let mut frame = FrameSpec::smallest_udp(NOBODY, mac_of(ns, device)?, client, to).bytes();
        frame[UDP_CHECKSUM].fill(0);
        Ok(Traffic { frame, flows, pace: FULL, probes: Duration::ZERO })
    }

    /// Starts a process of the device under test, on its processor.
    pub(crate) fn process(&self, name: &str, command: &[&str]) -> Result<Process> {
        let cpu = DEVICE_CPU.to_string();
        Process::start(&self.host().ns, name, "taskset", &[&["-c", &cpu], command].concat())
    }

    /// Puts a peer on the stage.
    pub(crate) fn start<'a>(&self, peer: &'a dyn Peer, load: Load) -> Result<Running<'a>> {
        let Host { ns, device, .. } = self.host();
        let device = ns.device(device);
        let ends = [(device, !peer.has_xdp()), (self.port(), peer.sends_by_xdp())];
        let ends = ends.into_iter().filter(|(_, wanted)| *wanted);
        let passes = ends.map(|(end, _)| Pass::attach(end, &self.programs)).collect::<Result<_>>()?;
        let worker = peer.start(self, load)?;
        let mut kernel_threads = vec![softirq_thread(DEVICE_CPU)?];
        if let Receive::OnDevice(priority) = self.receive {
            let receivers = receive_on(device, DEVICE_CPU, priority)?;
            let queues = self.bed.spec.queues;
            ensure!(
                receivers.len() == queues as usize,
                "{queues} queues, threads {receivers:?}: two benches?"
            );
            kernel_threads.extend(receivers);
        }
        Ok(Running { peer, worker, _passes: passes, kernel_threads })
    }

    /// Sends one packet again and again until one comes back as it should be.
    pub(crate) fn probe(&self, running: &Running<'_>, traffic: &Traffic) -> Result<()> {
        let Device { ns, name } = self.port();
        let back = Capture::start(ns, name, PROBES, |frame| frame.starts_with(&NOBODY))?;
        let is_forwarded =
            |bytes: &[u8]| Frame::parse(bytes).is_some_and(|frame| running.peer.is_forwarded(self, &frame));
        let seen = eventually(START_BOUND, || {
            inject(ns, name, &traffic.frame).ok()?;
            back.frames().iter().any(|frame| is_forwarded(&frame.bytes)).then_some(())
        });
        seen.with_context(|| match back.frames().pop() {
            Some(frame) => format!("strange packets come back: {:02x?}\n{}", frame.bytes, running.tail()),
            None => format!("no packet comes back\n{}", running.tail()),
        })
    }

    /// Offers for so long, and counts.
    pub(crate) fn rates(&self, running: &Running<'_>, traffic: &Traffic, window: Duration) -> Result<Rates> {
        self.rates_while(running, traffic, || {
            sleep(window);
            Ok(())
        })
        .map(|(rates, ())| rates)
    }

    /// As [`Self::rates`], and how long probes took that came back meanwhile, sorted.
    pub(crate) fn rates_and_delays(
        &self,
        running: &Running<'_>,
        traffic: &Traffic,
        window: Duration,
    ) -> Result<(Rates, Vec<Duration>)> {
        let (rates, delays) = self.rates_while(running, traffic, || {
            let delays = Delays::start(self.port().ns, &self.programs)?;
            sleep(window);
            Ok(delays)
        })?;
        Ok((rates, delays.sorted()?))
    }

    fn rates_while<T>(
        &self,
        running: &Running<'_>,
        traffic: &Traffic,
        meanwhile: impl FnOnce() -> Result<T>,
    ) -> Result<(Rates, T)> {
        let offer = Offer::start(self.port(), &self.programs, traffic.clone(), GENERATOR_CPU)?;
        sleep(WARM_UP);
        let ran = || Ok::<_, anyhow::Error>([offer.time_run()?, running.time_run()?]);
        let (offered_before, ran_before) = (self.offered()?, ran()?);
        let (start, before) = (Instant::now(), self.came_back()?);
        let made = meanwhile()?;
        let (time, after) = (start.elapsed(), self.came_back()?);
        let (ran_after, offered_after) = (ran()?, self.offered()?);
        offer.stop()?;
        let [generator, device] =
            [0, 1].map(|of| ran_after[of].saturating_sub(ran_before[of]).div_duration_f64(time));
        let rates = Rates {
            offered: rate(offered_after - offered_before, time),
            taken: rate(after - before, time),
            ran: generator.min(device).min(1.0),
            device,
        };
        Ok((rates, made))
    }

    fn came_back(&self) -> Result<u64> {
        let Device { ns, name } = self.port();
        Ok(device_counts(ns, name)?.rx_packets)
    }

    fn offered(&self) -> Result<u64> {
        let Device { ns, name } = self.port();
        let mut ethtool = Command::new("ethtool");
        ethtool.args(["-S", name]);
        parse_offered(&String::from_utf8_lossy(&ns.output(ethtool)?.stdout))
    }
}

/// XDP frames that were to leave by a veth: those that its far end had room for, and the others.
fn parse_offered(text: &str) -> Result<u64> {
    let counts: HashMap<&str, u64> = text
        .lines()
        .filter_map(|line| line.trim().split_once(": "))
        .filter_map(|(key, value)| Some((key, value.parse().ok()?)))
        .collect();
    let of = |end: &str| {
        let named = counts.iter().filter(|(key, _)| key.starts_with("tx_queue_") && key.ends_with(end));
        named.map(|(_, &count)| count).reduce(|a, b| a + b)
    };
    let sums = of("_xdp_xmit").zip(of("_xdp_xmit_errors"));
    let (sent, refused) = sums.with_context(|| format!("ethtool counts no XDP frames:\n{text}"))?;
    Ok(sent + refused)
}

/// Packets per second.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Rates {
    /// That were to reach the interface of the device under test.
    pub(crate) offered: f64,
    /// That came back.
    pub(crate) taken: f64,
    /// Which part of the time generator and device ran on their processors: the lower one.
    pub(crate) ran: f64,
    /// How many processors the device took.
    pub(crate) device: f64,
}

impl Rates {
    /// How many times what was taken was offered.
    pub(crate) fn excess(self) -> f64 {
        self.offered / self.taken.max(1.0)
    }

    /// Processor time of the device for a million packets, in seconds.
    pub(crate) fn seconds_a_million(self) -> f64 {
        self.device / self.taken.max(1.0) * 1e6
    }

    /// Nobody else had much of the processors.
    pub(crate) fn undisturbed(self) -> bool {
        self.ran >= UNDISTURBED
    }
}

/// As `ip` writes it.
fn words(mac: [u8; 6]) -> String {
    mac.map(|byte| format!("{byte:02x}")).join(":")
}

/// Less than this, and a generator may have been the limit.
pub(crate) const LEAST_EXCESS: f64 = 1.2;
/// Which part of the time is enough.
pub(crate) const UNDISTURBED: f64 = 0.85;
/// Locally administered, and no device's.
pub(crate) const NOBODY: [u8; 6] = [0x02, 0, 0, 0, 0, 0x01];
const UDP_CHECKSUM: std::ops::Range<usize> = 40..42;
/// Frames that are looked at before the first right one.
const PROBES: usize = 1_000;
const WARM_UP: Duration = Duration::from_millis(500);
/// Of a turn.
pub(crate) const WINDOW: Duration = Duration::from_secs(2);
pub(crate) const START_BOUND: Duration = Duration::from_secs(20);
const STOP_BOUND: Duration = Duration::from_secs(20);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_offered_is_what_went_and_what_was_refused_over_all_queues() {
        let text = "NIC statistics:\n     peer_ifindex: 2\n     rx_queue_0_xdp_packets: 1000\n     \
            tx_queue_0_xdp_xmit: 10\n     tx_queue_0_xdp_xmit_errors: 4\n     \
            tx_queue_1_xdp_xmit: 200\n     tx_queue_1_xdp_xmit_errors: 0\n";
        assert_eq!(parse_offered(text).unwrap(), 214);
        let error = parse_offered("NIC statistics:\n     peer_ifindex: 2\n").unwrap_err();
        assert!(error.to_string().contains("peer_ifindex"), "{error}");
    }

    #[test]
    fn a_million_packets_cost_what_the_processor_ran_for_them() {
        let rates = Rates { offered: 3e6, taken: 500_000.0, ran: 1.0, device: 0.5 };
        assert!((rates.seconds_a_million() - 1.0).abs() < 1e-9, "{}", rates.seconds_a_million());
        assert!((rates.excess() - 6.0).abs() < 1e-9);
    }
}
