//! The fixture of most tests: a testbed, `decap` on all backends, and a running balancer.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use testbed::{
    Balancer, Bed, BedSpec, Counters, Decap, Encapsulation, Ended, FrameSpec, LbConfig, Process, Response,
    UdpFlows, eventually, mac_of,
};

/// The timeout of the tests, which is ten times the longest wait on two busy cores.
pub(crate) const BOUND: Duration = Duration::from_secs(20);
/// The time for which a test waits for a packet that must not arrive. On these links a reply takes
/// less than a millisecond.
pub(crate) const SILENCE: Duration = Duration::from_millis(300);

/// A testbed with `decap` on all backends and a running balancer. Fields are dropped in this order,
/// so the balancer stops before the testbed is removed.
pub(crate) struct Scene {
    pub(crate) balancer: Balancer,
    pub(crate) decaps: Vec<Decap>,
    pub(crate) bed: Bed,
}

impl Scene {
    /// Starts the fixture with the default testbed and this configuration.
    pub(crate) fn with(config: impl FnOnce(&Bed) -> LbConfig) -> Self {
        Self::new(&BedSpec::default(), config)
    }

    pub(crate) fn new(spec: &BedSpec, config: impl FnOnce(&Bed) -> LbConfig) -> Self {
        let bed = Bed::new(spec).unwrap();
        let config = config(&bed);
        let direct = config.encapsulation == Encapsulation::L2;
        let decaps = if direct { vec![] } else { Decap::start_all(&bed).unwrap() };
        let balancer = Balancer::start(&bed, 0, &config).unwrap();
        Self { balancer, decaps, bed }
    }

    /// Waits until the balancer is ready. If backends are checked, the balancer becomes ready some
    /// time after it has started.
    pub(crate) fn wait_until_ready(&self) {
        let ready = || (self.balancer.ask_plainly("/readyz").unwrap().0 == 200).then_some(());
        assert!(eventually(BOUND, ready).is_some(), "{}", self.diagnosis());
    }

    /// Sends `count` requests on new connections to the first VIP of this address family. Each
    /// response must come directly from a backend.
    pub(crate) fn ask(&self, ipv4: bool, count: usize) -> Vec<Response> {
        let vip = self.bed.vip(ipv4, Bed::HTTP_PORT);
        let replies = self.bed.http_client().get_many(vip, "/", count, 8);
        let failed: Vec<_> = replies.iter().filter_map(|reply| reply.as_ref().err()).collect();
        assert!(failed.is_empty(), "{vip}: {failed:?}\n{}", self.diagnosis());
        let replies: Vec<Response> = replies.into_iter().flatten().collect();
        assert_eq!(replies.len(), count);
        for reply in &replies {
            assert_eq!((reply.status, reply.peer, reply.server_seen), (200, vip, Some(vip)));
            assert_eq!(
                reply.client_seen,
                Some(reply.local),
                "the backend observed a different client address"
            );
        }
        replies
    }

    /// Opens `count` UDP flows to the echo port of the first VIP of this address family.
    pub(crate) fn flows(&self, ipv4: bool, count: usize) -> UdpFlows {
        UdpFlows::open(&self.bed.client.ns, self.bed.vip(ipv4, Bed::ECHO_PORT), count, BOUND).unwrap()
    }

    /// Sends one packet on each flow, and returns the backends that answered.
    pub(crate) fn round(&self, flows: &mut UdpFlows) -> Vec<String> {
        let answers = flows.round().unwrap();
        let lost = answers.iter().filter(|answer| answer.is_none()).count();
        assert_eq!(lost, 0, "of {} packets\n{}", answers.len(), self.diagnosis());
        answers.into_iter().flatten().collect()
    }

    /// Waits until the counters add up, and returns the counters. Packet threads must have received
    /// every packet that XDP redirected. The threads must have sent, answered or dropped every
    /// packet. Additional fragments that the balancer creates are taken into account.
    pub(crate) fn settled(&self) -> Counters {
        let counts = self.balanced(BOUND);
        assert_eq!(counts.lost_before_threads(), 0, "{}", self.diagnosis());
        counts
    }

    /// Returns counters that add up, like [`Self::settled`], but allows losses between the kernel
    /// and the packet threads.
    pub(crate) fn balanced(&self, bound: Duration) -> Counters {
        let agreed = eventually(bound, || {
            let counts = self.balancer.counters().unwrap();
            let dropped: u64 = counts.drops().iter().map(|(_, count)| count).sum();
            let (replies, cut) = (counts.over_threads(&["replies"]), counts.over_threads(&["originated"]));
            let agree = counts.redirected() == counts.received() + counts.lost_before_threads()
                && counts.received() + cut == counts.sent() + replies + dropped;
            agree.then_some(counts)
        });
        agreed.unwrap_or_else(|| panic!("the counters do not match\n{}", self.diagnosis()))
    }

    /// Waits until `count` packets were dropped for `reason`. All other drop counters must be 0.
    pub(crate) fn drops_become(&self, reason: &str, count: u64) {
        let wanted = [(reason.to_owned(), count)];
        let have = || (self.balancer.counters().unwrap().drops() == wanted).then_some(());
        assert!(eventually(BOUND, have).is_some(), "not {wanted:?}\n{}", self.diagnosis());
        assert_eq!(self.settled().drops(), wanted);
    }

    /// Waits until the backends have decapsulated all packets that the balancer sent, which are at
    /// least `expected`. Closing connections may send more packets after the caller read
    /// `expected`.
    pub(crate) fn taken_off(&self, expected: u64) {
        let sum =
            || -> u64 { self.decaps.iter().filter_map(Decap::counts).map(|c| Decap::taken_off(&c)).sum() };
        let sent = || self.balancer.counters().map_or(expected, |counters| counters.sent());
        let agreed = eventually(BOUND, || (sum() == sent() && sum() >= expected).then_some(()));
        assert!(agreed.is_some(), "{} packets decapsulated, {} sent\n{}", sum(), sent(), self.diagnosis());
    }

    /// Returns a UDP frame from the router to the balancer, addressed to this port of the first VIP
    /// of this address family.
    pub(crate) fn frame(&self, ipv4: bool, port: u16) -> FrameSpec {
        let host = &self.bed.balancers[0];
        let (from, to) =
            (mac_of(&self.bed.router, &host.port).unwrap(), mac_of(&host.ns, host.device).unwrap());
        let client = if ipv4 { self.bed.client.v4.into() } else { self.bed.client.v6.into() };
        FrameSpec::smallest_udp(from, to, SocketAddr::new(client, 4000), self.bed.vip(ipv4, port))
    }

    pub(crate) fn diagnosis(&self) -> String {
        let counters = self.balancer.counters().map(|counters| format!("{:#}", counters.0));
        format!("{}\n{}", self.balancer.process.tail(), counters.unwrap_or_else(|error| error.to_string()))
    }
}

/// Runs a subcommand of the balancer binary on the first balancer's host.
pub(crate) fn verb(bed: &Bed, args: &[&str]) -> Ended {
    let ns = bed.balancers.first().map_or(&bed.client.ns, |host| &host.ns);
    Process::to_end(ns, bed.program().unwrap(), args, 10 * BOUND).unwrap()
}

/// Returns the backend that `sluicegate where` computes for a flow from a configuration file.
pub(crate) fn backend_of(
    bed: &Bed,
    file: &Path,
    source: SocketAddr,
    vip: SocketAddr,
    protocol: &str,
) -> String {
    let output = std::process::Command::new(bed.program().unwrap())
        .args(["where", &source.to_string(), &vip.to_string(), protocol, "--json", "--config"])
        .arg(file)
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let answer: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(answer["verdict"], "forward", "{answer}");
    answer["backend"]["name"].as_str().unwrap().to_owned()
}

pub(crate) fn names<'a>(answers: impl IntoIterator<Item = &'a String>) -> BTreeSet<&'a str> {
    answers.into_iter().map(String::as_str).collect()
}

/// Returns `long` with the option `--long` of the test lane, otherwise `usual`.
pub(crate) fn count(usual: usize, long: usize) -> usize {
    if std::env::var_os("SLUICEGATE_LONG").is_some() { long } else { usual }
}
