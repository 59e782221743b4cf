//! Implements `cargo xtask demo`, which runs the balancer with a client, a router and three
//! backends in network namespaces.
//!
//! The demo sends HTTP requests and then a burst of small packets. At the end, the demo stops the
//! balancer. The results are [`Figures`], which the module `report` prints. The demo fails if a
//! figure is wrong. The testbed is removed when the process ends, even if the process is killed.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use signal_hook::consts::{SIGINT, SIGTERM};
use testbed::{
    Balancer, Bed, BedSpec, Capture, Captured, Decap, Failure, Frame, FrameSpec, LbConfig, Response,
    device_counts, eventually, flood, hex, mac_of,
};

use crate::demo_stats::{Blast, Counts, Family, Figures, Packet, Share};
use crate::{cargo, report, setup};

/// Runs the demo with the given balancer binary, or with a fresh build.
pub(crate) fn run(binary: Option<PathBuf>, json: bool, keep: bool) -> Result<()> {
    let program = ready(binary, setup::BED)?;
    let start = Instant::now();
    let stage = Stage::build(program, |bed| Ok(LbConfig::new(bed).weights(&WEIGHTS)))?;
    let mut figures = stage.play()?;
    if keep {
        figures.seconds = start.elapsed().as_secs_f64();
        show(&figures, json);
        stage.keep()?;
    } else {
        figures.after_stop = Some(stage.without_balancer()?);
        figures.seconds = start.elapsed().as_secs_f64();
        show(&figures, json);
    }
    let faults = figures.faults();
    ensure!(faults.is_empty(), "the demo failed:\n  {}", faults.join("\n  "));
    Ok(())
}

/// Checks that the process runs as root and installs the packages. Returns the path of the given
/// balancer binary, or builds one.
pub(crate) fn ready(binary: Option<PathBuf>, packages: &[&str]) -> Result<PathBuf> {
    setup::require_root("the demo")?;
    setup::ensure(packages)?;
    match binary {
        Some(path) => {
            path.canonicalize().with_context(|| format!("cannot find a balancer at {}", path.display()))
        }
        None => {
            setup::ensure(setup::BUILD)?;
            cargo::release_binary()
        }
    }
}

/// A testbed with a running balancer.
pub(crate) struct Stage {
    pub(crate) balancer: Balancer,
    decaps: Vec<Decap>,
    pub(crate) bed: Bed,
}

impl Stage {
    /// Builds the testbed and then starts the balancer. Between the two steps, `config` is called
    /// to create the configuration.
    pub(crate) fn build(program: PathBuf, config: impl FnOnce(&Bed) -> Result<LbConfig>) -> Result<Self> {
        eprintln!(
            "building the testbed: client, router, balancer and 3 backends; offloads of its veth pairs are off (ethtool -K ... tx off)"
        );
        let bed = Bed::new(&BedSpec { program: Some(program), queues: QUEUES, ..BedSpec::default() })?;
        let decaps = Decap::start_all(&bed)?;
        let balancer = Balancer::start(&bed, 0, &config(&bed)?)?;
        Ok(Self { balancer, decaps, bed })
    }

    fn play(&self) -> Result<Figures> {
        let port = &self.bed.balancers[0].port;
        let encapsulated = |frame: &[u8]| Frame::parse(frame).is_some_and(|frame| frame.outer().is_some());
        let outside = Capture::start(&self.bed.router, port, 1, encapsulated)?;
        let before = self.counts()?;
        let (mut families, mut responses) = (Vec::new(), Vec::new());
        for ipv4 in [true, false] {
            let (family, answered) = self.ask(ipv4)?;
            families.push(family);
            responses.extend(answered);
        }
        let after_requests = self.settled(&before)?;
        let packet = outside.frames().first().and_then(packet_of);
        drop(outside);
        let (offered, seconds) = self.flood()?;
        let after_blast = self.settled(&after_requests)?;
        let counters = self.balancer.counters()?;
        Ok(Figures {
            families,
            shares: self.shares(&responses),
            packet,
            modes: counters.modes(),
            threads: counters.threads(),
            drops: counters.drops(),
            requests: after_requests.since(&before),
            blast: Blast { seconds, offered, counts: after_blast.since(&after_requests) },
            after_stop: None,
            seconds: 0.0,
        })
    }

    fn ask(&self, ipv4: bool) -> Result<(Family, Vec<Response>)> {
        let vip = self.bed.vip(ipv4, Bed::HTTP_PORT);
        eprintln!("{REQUESTS} requests to {vip}");
        let from_server =
            |frame: &[u8]| Frame::parse(frame).and_then(|f| f.ip.ports()).is_some_and(|p| p.0 == 80);
        let replies =
            Capture::start(&self.bed.client.ns, self.bed.client.device, 20 * REQUESTS, from_server)?;
        let results = self.bed.http_client().get_many(vip, "/", REQUESTS, WORKERS);
        // Each response has at least two packets: a SYN-ACK and data. The capture may still lack
        // the packets of the last response.
        let answered: Vec<Response> = results.iter().flatten().filter(|r| r.status == 200).cloned().collect();
        eventually(PATIENCE, || (replies.frames().len() >= 2 * answered.len()).then_some(()));
        let sources: Vec<_> =
            replies.frames().iter().filter_map(|seen| Some(Frame::parse(&seen.bytes)?.ip.source)).collect();
        let mut times: Vec<u128> = answered.iter().map(|response| response.time.as_micros()).collect();
        times.sort_unstable();
        let family = Family {
            vip: vip.to_string(),
            asked: results.len(),
            answered: answered.len(),
            own_address_seen: answered.iter().filter(|r| r.client_seen == Some(r.local)).count(),
            reply_packets: sources.len(),
            reply_packets_from_vip: sources.iter().filter(|&&source| source == vip.ip()).count(),
            median_us: times.get(times.len() / 2).copied().unwrap_or_default(),
            failures: results
                .iter()
                .filter_map(|r| r.as_ref().err())
                .map(Failure::to_string)
                .take(3)
                .collect(),
        };
        Ok((family, answered))
    }

    fn shares(&self, responses: &[Response]) -> Vec<Share> {
        let count = |name: &str| responses.iter().filter(|response| response.backend == name).count();
        let small = |n: usize| u32::try_from(n).expect("the demo sends a few hundred requests");
        let share = |(host, weight): (&testbed::Host, u32)| Share {
            backend: host.name.clone(),
            weight,
            requests: small(count(&host.name)),
            of_requests: small(responses.len()),
            of_weight: WEIGHTS.iter().sum(),
        };
        self.bed.backends.iter().zip(WEIGHTS).map(share).collect()
    }

    /// Sends a burst of small packets from the router to the balancer. Returns the number of
    /// packets and the duration in seconds.
    fn flood(&self) -> Result<(u64, f64)> {
        eprintln!("sending a burst of {} s", BLAST.as_secs());
        let balancer = &self.bed.balancers[0];
        let (from, to) = (mac_of(&self.bed.router, &balancer.port)?, mac_of(&balancer.ns, balancer.device)?);
        let source = (self.bed.client.v4, 10_000).into();
        let frames =
            FrameSpec::smallest_udp(from, to, source, self.bed.vip(true, Bed::SINK_PORT)).flows(FLOWS);
        let running = flood(&self.bed.router, &balancer.port, frames, BLAST)?;
        let (sent, time) = running.join().map_err(|_| anyhow!("the load generator panicked"))??;
        Ok((sent, time.as_secs_f64()))
    }

    /// Reads the packet counts repeatedly until the counts since `before` agree, for at most
    /// [`PATIENCE`]. If the counts never agree, the last counts are returned, and
    /// [`Figures::faults`] reports them.
    pub(crate) fn settled(&self, before: &Counts) -> Result<Counts> {
        let agreed = eventually(PATIENCE, || {
            self.counts().ok().filter(|now| now.since(before).agree() && now.received > before.received)
        });
        agreed.map_or_else(|| self.counts(), Ok)
    }

    pub(crate) fn counts(&self) -> Result<Counts> {
        let counters = self.balancer.counters()?;
        let balancer = &self.bed.balancers[0];
        let mut lost_on_links = device_counts(&balancer.ns, balancer.device)?.tx_dropped;
        for backend in &self.bed.backends {
            lost_on_links += device_counts(&self.bed.router, &backend.port)?.tx_dropped;
        }
        let counts = self.decaps.iter().filter_map(Decap::counts);
        Ok(Counts {
            redirected: counters.redirected(),
            lost_before_threads: counters.lost_before_threads(),
            received: counters.received(),
            dropped: counters.drops().iter().map(|(_, count)| count).sum(),
            sent: counters.sent(),
            lost_on_links,
            taken_off: counts.map(|counts| Decap::taken_off(&counts)).sum(),
        })
    }

    /// Stops the balancer and sends further requests. Returns the number of requests and the number
    /// of responses.
    fn without_balancer(self) -> Result<(usize, usize)> {
        eprintln!("stopping the balancer");
        self.balancer.stop()?;
        let client = self.bed.http_client().connect_timeout(SHORT);
        let results: Vec<_> = [true, false]
            .into_iter()
            .flat_map(|ipv4| client.get_many(self.bed.vip(ipv4, Bed::HTTP_PORT), "/", AFTER, AFTER))
            .collect();
        Ok((results.len(), results.iter().flatten().count()))
    }

    fn keep(self) -> Result<()> {
        let stop = Arc::new(AtomicBool::new(false));
        for signal in [SIGINT, SIGTERM] {
            signal_hook::flag::register(signal, Arc::clone(&stop))?;
        }
        let client = self.bed.client.ns.path();
        eprintln!("\nThe testbed is kept until Ctrl-C. To enter a host:\n{}", self.bed.how_to_enter());
        eprintln!("Examples:");
        for ipv4 in [true, false] {
            eprintln!("nsenter --net={client} curl -g 'http://{}/'", self.bed.vip(ipv4, Bed::HTTP_PORT));
        }
        let socket = LbConfig::admin_socket(&self.bed, 0);
        eprintln!("curl --unix-socket {} http://bed/counters", socket.display());
        eprintln!(
            "The configuration of the balancer is in {}; its process ID is {}.",
            self.bed.dir().display(),
            self.balancer.process.id()
        );
        while !stop.load(Ordering::Relaxed) {
            sleep(Duration::from_millis(100));
        }
        Ok(())
    }
}

fn show(figures: &Figures, json: bool) {
    if json {
        println!("{:#}", report::json(figures));
    } else {
        println!("\n{}", report::words(figures));
    }
}

fn packet_of(seen: &Captured) -> Option<Packet> {
    let outer = Frame::parse(&seen.bytes)?.outer()?;
    Some(Packet {
        words: outer.words(),
        hex: hex(&seen.bytes),
        checksums_ok: outer.outer.checksum_ok
            && outer.inner.checksum_ok
            && outer.inner.transport_checksum_ok() == Some(true),
    })
}

const REQUESTS: usize = 300;
const WORKERS: usize = 16;
/// The weights of the backends in all demos.
pub(crate) const WEIGHTS: [u32; 3] = [1, 2, 3];
const QUEUES: u32 = 2;
const FLOWS: u16 = 1000;
const BLAST: Duration = Duration::from_secs(2);
const AFTER: usize = 20;
const SHORT: Duration = Duration::from_millis(500);
const PATIENCE: Duration = Duration::from_secs(30);
