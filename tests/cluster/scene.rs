//! The fixture of the cluster tests: a testbed with two balancers that announce VIPs to a router.
//! Tests query the balancers and the router.

use std::fmt::Write as _;
use std::fs::OpenOptions;
use std::io::Write as _;
use std::net::IpAddr;
use std::os::unix::fs::OpenOptionsExt;
use std::time::{Duration, Instant};

use serde_json::Value;
use testbed::{
    Balancer, Bed, BedSpec, CLUSTER_ASN, Decap, Download, Downloads, LbConfig, ROUTER_ASN, ROUTER_KEY,
    Router, RouterKind, RouterSession, eventually,
};

/// The timeout of the tests. It is far longer than any wait.
pub(crate) const BOUND: Duration = Duration::from_secs(60);

/// The testbed, the router and two balancers. Fields are dropped in this order, so the testbed is
/// removed last.
pub(crate) struct Scene {
    /// The balancers. An element is `None` while its balancer is stopped.
    pub(crate) machines: [Option<Balancer>; 2],
    pub(crate) router: Router,
    _decaps: Vec<Decap>,
    /// The configuration with which balancers are started.
    pub(crate) config: LbConfig,
    /// Starts a balancer of the testbed.
    start: Start,
    pub(crate) bed: Bed,
}

type Start = fn(&Bed, usize, &LbConfig) -> Balancer;

impl Scene {
    /// Starts both balancers. When this function returns, the router might not have received their
    /// routes yet.
    pub(crate) fn new(kind: RouterKind, sessions: &[RouterSession]) -> Self {
        Self::with(|bed| Router::start(bed, kind, sessions).unwrap(), config)
    }

    /// Starts the fixture with a different router or a different configuration for the balancers.
    pub(crate) fn with(router: impl FnOnce(&Bed) -> Router, config: impl FnOnce(&Bed) -> LbConfig) -> Self {
        let spec = BedSpec { balancers: 2, ..BedSpec::default() };
        Self::of(&spec, |bed, index, config| Balancer::start(bed, index, config).unwrap(), router, config)
    }

    /// Starts the fixture with balancers that can be upgraded, and with `backends` backends.
    pub(crate) fn with_heirs(
        backends: u8,
        router: impl FnOnce(&Bed) -> Router,
        config: impl FnOnce(&Bed) -> LbConfig,
    ) -> Self {
        let spec = BedSpec { balancers: 2, backends, ..BedSpec::default() };
        let start: Start = |bed, index, config| Balancer::start_with_heirs(bed, index, config, &[]).unwrap();
        Self::of(&spec, start, router, config)
    }

    fn of(
        spec: &BedSpec,
        start: Start,
        router: impl FnOnce(&Bed) -> Router,
        config: impl FnOnce(&Bed) -> LbConfig,
    ) -> Self {
        let bed = Bed::new(spec).unwrap();
        // BGP replaces the static routes of the testbed.
        let routes: Vec<String> =
            bed.spec.vips.iter().map(|vip| format!("route del {}", host_route(*vip))).collect();
        bed.router.ip(&routes.join("\n")).unwrap();
        let router = router(&bed);
        let decaps = Decap::start_all(&bed).unwrap();
        let config = config(&bed);
        let machines = [0, 1].map(|index| Some(start(&bed, index, &config)));
        Self { machines, router, _decaps: decaps, config, start, bed }
    }

    pub(crate) fn machine(&mut self, index: usize) -> &mut Balancer {
        self.machines[index].as_mut().unwrap()
    }

    /// Starts a balancer again after it was stopped.
    pub(crate) fn start(&mut self, index: usize) {
        self.machines[index] = Some((self.start)(&self.bed, index, &self.config));
    }

    /// Returns how many next hops the router's kernel has for a VIP.
    fn next_hops(&self, vip: IpAddr) -> usize {
        self.bed.next_hops(&host_route(vip))
    }

    /// Returns `true` if the router's kernel has `count` next hops for every VIP.
    pub(crate) fn has_next_hops(&self, count: usize) -> bool {
        self.bed.spec.vips.iter().all(|vip| self.next_hops(*vip) == count)
    }

    /// Waits until the router's kernel has `count` next hops for every VIP. Returns how long this
    /// took.
    pub(crate) fn wait_for_next_hops(&self, count: usize) -> Duration {
        let start = Instant::now();
        let found = eventually(BOUND, || self.has_next_hops(count).then_some(()));
        let reported = || {
            let machines = self.machines.iter().flatten().map(|machine| machine.process.tail());
            format!("{}\n{}", self.router.tail(), machines.collect::<Vec<_>>().join("\n"))
        };
        let have: Vec<usize> = self.bed.spec.vips.iter().map(|vip| self.next_hops(*vip)).collect();
        assert!(found.is_some(), "expected {count} next hops, found {have:?}\n{}", reported());
        start.elapsed()
    }

    /// Runs a subcommand of `sluicegate` against a balancer, and returns its output.
    pub(crate) fn say(&self, index: usize, words: &[&str]) -> String {
        self.bed.say(index, words, BOUND).unwrap()
    }

    /// Waits until both balancers print the same digests, which means that they have the same
    /// configuration and the same backend states. Returns the output.
    pub(crate) fn wait_for_agreement(&self) -> String {
        let mut last = Vec::new();
        let agreed = eventually(BOUND, || {
            last = (0..2).map(|index| self.say(index, &["digest"])).collect();
            (last[0] == last[1]).then(|| last[0].clone())
        });
        agreed.unwrap_or_else(|| panic!("the digests of the machines differ:\n{}", last.join("\n")))
    }

    /// Returns the state that the balancer reports for its session with the router.
    pub(crate) fn peer(&self, index: usize, name: &str) -> Value {
        let view = self.machines[index].as_ref().unwrap().ask("/v1/bgp").unwrap();
        let peers = view["peers"].as_array().cloned().unwrap_or_default();
        peers.into_iter().find(|peer| peer["name"] == name).unwrap_or_default()
    }

    /// Starts downloads over IPv4 and IPv6, and waits until all of them have begun.
    pub(crate) fn download(&self, count: usize, length: Duration) -> [Downloads; 2] {
        let start = |ipv4| {
            let vip = self.bed.vip(ipv4, Bed::HTTP_PORT);
            Downloads::start(&self.bed.client.ns, vip, count, length)
        };
        let all = [start(true), start(false)];
        let begun = || all.iter().map(Downloads::begun).sum::<usize>();
        let begin = eventually(BOUND, || (begun() == 2 * count).then_some(()));
        assert!(begin.is_some(), "{} of {} downloads have begun", begun(), 2 * count);
        all
    }

    /// Returns the number of packets that a balancer has forwarded.
    pub(crate) fn sent(&self, index: usize) -> u64 {
        self.machines[index].as_ref().unwrap().counters().unwrap().sent()
    }
}

/// Waits until the downloads end. Returns the number of downloads, and those that broke.
pub(crate) fn broken(downloads: [Downloads; 2]) -> (usize, Vec<Download>) {
    let all: Vec<Download> = downloads.into_iter().flat_map(Downloads::join).collect();
    (all.len(), all.into_iter().filter(|one| one.broke.is_some()).collect())
}

fn host_route(vip: IpAddr) -> String {
    format!("{vip}/{}", if vip.is_ipv4() { 32 } else { 128 })
}

/// Returns a configuration as an operator would write it: one file for the cluster, BGP sessions
/// over IPv4 and IPv6, an MD5 key and BFD.
pub(crate) fn config(bed: &Bed) -> LbConfig {
    let key = bed.dir().join("bgp.key");
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&key).unwrap();
    file.write_all(ROUTER_KEY.as_bytes()).unwrap();
    let mut more = format!(
        "[check.up]\ntcp = {{ port = 80 }}\ninterval = \"1s\"\nfast_interval = \"1s\"\ntimeout = \"900ms\"\n\
         [bgp]\nasn = {CLUSTER_ASN}\ngraceful_shutdown = \"1s\"\nhold_down = \"1s\"\n"
    );
    for session in RouterSession::all() {
        let ((router, _), name, machine) = (session.ends(), session.name(), session.machine);
        let family = if session.ipv4 { "ipv4" } else { "ipv6" };
        let _ = writeln!(
            more,
            "[[bgp.peers]]\nname = \"{name}\"\nmachines = [\"lb{machine}\"]\naddress = \"{router}\"\nasn = {ROUTER_ASN}\n\
             password_file = {key:?}\nfamilies = [\"{family}\"]\nhold_time = \"9s\"\nmax_retry = \"2s\"\n\
             bfd = {{ interval = \"100ms\", multiplier = 5 }}"
        );
    }
    LbConfig {
        cluster: "drain_time = \"60s\"".into(),
        pool_keys: "checks = [\"up\"]".into(),
        vip_keys: "announce = {}".into(),
        more,
        ..LbConfig::new(bed)
    }
}
