//! Provides the testbed for benchmarks that compare forwarders. The testbed needs two processors.
//!
//! A veth pair connects the router and the device under test. The load generator
//! ([`offer`](crate::offer)) sends packets from the router's end. The kernel counts the packets
//! that come back to this end, and then drops them because of their MAC address. The generator,
//! clients and backends run on one processor, and the device under test runs on the other
//! processor. A veth copies each packet twice and creates a socket buffer, so the measured ratios
//! differ from ratios on a real NIC. The modules `testpmd` and `peers` define the comparisons.

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

/// A forwarder that can be measured: the balancer, another load balancer, or the kernel.
pub(crate) trait Peer {
    /// Returns the name by which the forwarder is selected and printed.
    fn name(&self) -> &'static str;

    /// Returns `true` if the forwarder supports this load.
    fn carries(&self, load: Load) -> bool;

    /// Returns the reason why the forwarder cannot run on this machine, or `None` if it can.
    fn missing(&self, _stage: &Stage) -> Result<Option<String>> {
        Ok(None)
    }

    /// Returns `true` if the forwarder attaches its own XDP program.
    fn has_xdp(&self) -> bool {
        false
    }

    /// Returns `true` if the forwarder's XDP program sends frames itself. A veth accepts such
    /// frames only if its other end also has an XDP program.
    fn sends_by_xdp(&self) -> bool {
        false
    }

    /// Starts forwarding on the device under test.
    fn start(&self, stage: &Stage, load: Load) -> Result<Worker>;

    /// Reverts the changes that [`Self::start`] made. The function is called after the forwarder's
    /// process has ended.
    fn clean_up(&self, _stage: &Stage) -> Result<()> {
        Ok(())
    }

    /// Returns `true` if the received frame is a generated frame that this forwarder has forwarded
    /// correctly. A forwarder that does not support the packet load need not implement this
    /// function.
    fn is_forwarded(&self, _stage: &Stage, _frame: &Frame) -> bool {
        false
    }
}

/// The kind of load with which a forwarder is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Load {
    /// Many small packets in one direction, to backends that do not exist.
    Packets,
    /// Requests answered by real backends.
    Requests,
}

/// The part of the system in which a peer forwards packets: the kernel or a process.
pub(crate) enum Worker {
    /// The kernel forwards packets, and no process is started.
    Kernel,
    Process(Process),
    Balancer(Balancer),
}

/// The processor on which packets to the device under test are received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Receive {
    /// Packets are received on the processor of the sender, which is the default for a veth. In
    /// this case, the processor of the load generator also spends time on receiving the packets.
    BesideGenerator,
    /// Packets are received by a kernel thread on the processor of the device under test. The
    /// measured CPU time of the device therefore includes the time that the kernel spends on
    /// receiving packets.
    OnDevice(Priority),
}

/// A running forwarder.
pub(crate) struct Running<'a> {
    peer: &'a dyn Peer,
    pub(crate) worker: Worker,
    _passes: Vec<Pass>,
    kernel_threads: Vec<u32>,
}

impl Running<'_> {
    /// Returns the CPU time that was used by the process, by the kernel threads that receive
    /// packets for its interface, and by the kernel thread for deferred softirqs.
    pub(crate) fn time_run(&self) -> Result<Duration> {
        let kernel = self.kernel_threads.iter().map(|id| thread_time_run(format!("/proc/{id}").as_ref()));
        Ok(self.process_time()? + kernel.sum::<Result<Duration>>()?)
    }

    /// Returns the CPU time that the process has used, or zero if there is no process.
    pub(crate) fn process_time(&self) -> Result<Duration> {
        match &self.worker {
            Worker::Kernel => Ok(Duration::ZERO),
            Worker::Process(process) => time_run(process.id()),
            Worker::Balancer(balancer) => time_run(balancer.process.id()),
        }
    }

    /// Returns `true` if the forwarder runs as a process.
    pub(crate) fn has_process(&self) -> bool {
        !matches!(self.worker, Worker::Kernel)
    }

    /// Returns the last lines of the process's output.
    pub(crate) fn tail(&self) -> String {
        match &self.worker {
            Worker::Kernel => String::new(),
            Worker::Process(process) => process.tail(),
            Worker::Balancer(balancer) => balancer.process.tail(),
        }
    }

    /// Stops the forwarder and restores the testbed.
    pub(crate) fn stop(self, stage: &Stage) -> Result<()> {
        match self.worker {
            Worker::Kernel => {}
            Worker::Process(mut process) => drop(process.stop(STOP_BOUND)?),
            Worker::Balancer(balancer) => drop(balancer.stop()?),
        }
        self.peer.clean_up(stage)
    }
}

/// A testbed that uses two processors.
pub(crate) struct Stage {
    pub(crate) bed: Bed,
    programs: Programs,
    receive: Receive,
}

impl Stage {
    /// Builds the testbed. No forwarder is running yet, and packets that the device sends are
    /// dropped.
    pub(crate) fn build(spec: &BedSpec, receive: Receive) -> Result<Self> {
        let programs = Programs::compile()?;
        // The threads and processes of the testbed inherit the CPU affinity of this thread.
        pin(GENERATOR_CPU)?;
        let stage = Self { bed: Bed::new(spec)?, programs, receive };
        stage.lead_to(NOBODY)?;
        let host = stage.host();
        let redirects = format!("ipv4/conf/{}/send_redirects", host.device);
        let all = "ipv4/conf/all/send_redirects";
        host.ns.sysctl(&[("ipv4/ip_forward", "1"), (all, "0"), (&redirects, "0")])?;
        Ok(stage)
    }

    /// Returns the host that is the device under test.
    pub(crate) fn host(&self) -> &Host {
        &self.bed.balancers[0]
    }

    /// Returns the router's end of the veth to the device under test.
    pub(crate) fn port(&self) -> Device<'_> {
        self.bed.router.device(&self.host().port)
    }

    /// Sets the destination MAC address of all packets that the device under test sends. The
    /// address is either the router's address or an unused address. With an unused address, the
    /// router's kernel drops the packets before any lookup.
    pub(crate) fn lead_to(&self, mac: [u8; 6]) -> Result<()> {
        let Host { ns, device, .. } = self.host();
        ns.ip(&format!("neigh replace 192.0.2.0 lladdr {} nud permanent dev {device}", words(mac)))
    }

    /// Adds the first VIP to the addresses of the device under test, or removes it. Proxies accept
    /// connections at this address.
    pub(crate) fn own_vip(&self, owned: bool) -> Result<()> {
        let verb = if owned { "add" } else { "del" };
        self.host().ns.ip(&format!("addr {verb} {}/32 dev lo", self.bed.vip(true, 0).ip()))
    }

    /// Returns traffic that consists of 64-byte UDP packets to the first VIP.
    pub(crate) fn smallest_udp(&self, flows: u16) -> Result<Traffic> {
        let Host { ns, device, .. } = self.host();
        let client = (self.bed.client.v4, 10_000).into();
        let to = self.bed.vip(true, Bed::SINK_PORT);
        let mut frame = FrameSpec::smallest_udp(NOBODY, mac_of(ns, device)?, client, to).bytes();
        frame[UDP_CHECKSUM].fill(0);
        Ok(Traffic { frame, flows, pace: FULL, probes: Duration::ZERO })
    }

    /// Starts a process on the device under test, bound to the device's processor.
    pub(crate) fn process(&self, name: &str, command: &[&str]) -> Result<Process> {
        let cpu = DEVICE_CPU.to_string();
        Process::start(&self.host().ns, name, "taskset", &[&["-c", &cpu], command].concat())
    }

    /// Starts a forwarder on the testbed.
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
                "the device has {queues} queues but the receiving threads are {receivers:?} (are two benchmarks running?)"
            );
            kernel_threads.extend(receivers);
        }
        Ok(Running { peer, worker, _passes: passes, kernel_threads })
    }

    /// Sends packets until a correctly forwarded packet comes back.
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
            Some(frame) => format!("unexpected packets come back: {:02x?}\n{}", frame.bytes, running.tail()),
            None => format!("no packet comes back\n{}", running.tail()),
        })
    }

    /// Sends traffic for the time `window` and measures the rates.
    pub(crate) fn rates(&self, running: &Running<'_>, traffic: &Traffic, window: Duration) -> Result<Rates> {
        self.rates_while(running, traffic, || {
            sleep(window);
            Ok(())
        })
        .map(|(rates, ())| rates)
    }

    /// Measures the rates like [`Self::rates`]. Also returns the sorted latencies of the packets
    /// that came back with a timestamp.
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

/// Returns the number of XDP frames that were offered to a veth. The number includes the frames
/// that the other end accepted and the frames for which it had no space.
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
    let (sent, refused) = sums.with_context(|| format!("ethtool shows no XDP frame counts:\n{text}"))?;
    Ok(sent + refused)
}

/// The measured rates of one forwarder.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Rates {
    /// The packets per second that the generator sent to the interface of the device under test.
    pub(crate) offered: f64,
    /// The packets per second that the device forwarded back to the generator's end of the link.
    pub(crate) taken: f64,
    /// The fraction of a processor's time that the generator or the device got during the
    /// measurement, whichever is lower.
    pub(crate) ran: f64,
    /// The number of processors that the device used on average.
    pub(crate) device: f64,
}

impl Rates {
    /// Returns the ratio of offered to forwarded packets.
    pub(crate) fn excess(self) -> f64 {
        self.offered / self.taken.max(1.0)
    }

    /// Returns the CPU time that the device used, in seconds per million packets.
    pub(crate) fn seconds_a_million(self) -> f64 {
        self.device / self.taken.max(1.0) * 1e6
    }

    /// Returns `true` if other programs used little time on the two processors.
    pub(crate) fn undisturbed(self) -> bool {
        self.ran >= UNDISTURBED
    }
}

/// Formats a MAC address for the program `ip`.
fn words(mac: [u8; 6]) -> String {
    mac.map(|byte| format!("{byte:02x}")).join(":")
}

/// The minimum ratio of offered to forwarded packets. If the ratio is lower, the generator might
/// have been the bottleneck.
pub(crate) const LEAST_EXCESS: f64 = 1.2;
/// The minimum value of [`Rates::ran`]. If the generator or the device gets a smaller fraction of
/// its processor's time, other programs have disturbed the measurement.
pub(crate) const UNDISTURBED: f64 = 0.85;
/// A locally administered MAC address that no device uses.
pub(crate) const NOBODY: [u8; 6] = [0x02, 0, 0, 0, 0, 0x01];
const UDP_CHECKSUM: std::ops::Range<usize> = 40..42;
/// The maximum number of frames that are inspected to find a correctly forwarded frame.
const PROBES: usize = 1_000;
const WARM_UP: Duration = Duration::from_millis(500);
/// The duration of a rate measurement.
pub(crate) const WINDOW: Duration = Duration::from_secs(2);
pub(crate) const START_BOUND: Duration = Duration::from_secs(20);
const STOP_BOUND: Duration = Duration::from_secs(20);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offered_frames_are_sent_and_refused_over_all_queues() {
        let text = "NIC statistics:\n     peer_ifindex: 2\n     rx_queue_0_xdp_packets: 1000\n     \
            tx_queue_0_xdp_xmit: 10\n     tx_queue_0_xdp_xmit_errors: 4\n     \
            tx_queue_1_xdp_xmit: 200\n     tx_queue_1_xdp_xmit_errors: 0\n";
        assert_eq!(parse_offered(text).unwrap(), 214);
        let error = parse_offered("NIC statistics:\n     peer_ifindex: 2\n").unwrap_err();
        assert!(error.to_string().contains("peer_ifindex"), "{error}");
    }

    #[test]
    fn cost_of_a_million_packets_is_the_processor_time() {
        let rates = Rates { offered: 3e6, taken: 500_000.0, ran: 1.0, device: 0.5 };
        assert!((rates.seconds_a_million() - 1.0).abs() < 1e-9, "{}", rates.seconds_a_million());
        assert!((rates.excess() - 6.0).abs() < 1e-9);
    }
}
