//! The fixture of tests with two balancers: a keyed pool, and a router with ECMP. The router has
//! static routes or learns routes by BGP.

use std::fmt::Write as _;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use testbed::{
    Balancer, Bed, BedSpec, CLUSTER_ASN, Decap, LbConfig, Process, QueryClient, ROUTER_ASN, Router,
    RouterKind, RouterSession, eventually,
};

use crate::history::{get, set};
use crate::scene::{BOUND, PORT, are_serving, config, memcached};

/// The testbed, the servers, the router and two balancers. Fields are dropped in this order, so the
/// testbed is removed last.
pub(crate) struct Pair {
    /// The balancers. An element is `None` while its balancer is stopped.
    pub(crate) machines: [Option<Balancer>; 2],
    router: Option<Router>,
    _servers: Vec<Process>,
    _decaps: Vec<Decap>,
    config: LbConfig,
    pub(crate) bed: Bed,
}

/// A memcached key and the index of its server.
#[derive(Clone, Debug)]
pub(crate) struct Key {
    pub(crate) name: String,
    pub(crate) server: usize,
}

impl Pair {
    /// Starts two balancers and two servers. The router has static routes. The text `kv` is added
    /// to the `kv` table of the pool.
    pub(crate) fn new(kv: &str) -> Self {
        Self::with(|bed| config(bed, kv), |_| None)
    }

    /// Starts two balancers that announce the VIPs to BIRD.
    pub(crate) fn that_announces(kv: &str) -> Self {
        let announcing = |bed: &Bed| {
            let mut config = config(bed, kv);
            config.cluster = "drain_time = \"30s\"".into();
            config.vip_keys = "announce = {}".into();
            config.more += &bgp();
            config
        };
        let router = |bed: &Bed| {
            // BGP replaces the static routes of the testbed.
            let routes = bed.spec.vips.iter().map(|vip| format!("route del {}", host_route(*vip)));
            bed.router.ip(&routes.collect::<Vec<_>>().join("\n")).unwrap();
            Some(Router::start(bed, RouterKind::Bird, &sessions()).unwrap())
        };
        let pair = Self::with(announcing, router);
        pair.wait_for_next_hops(2);
        pair
    }

    fn with(config: impl FnOnce(&Bed) -> LbConfig, router: impl FnOnce(&Bed) -> Option<Router>) -> Self {
        let bed = Bed::new(&BedSpec { balancers: 2, backends: 2, ..BedSpec::default() }).unwrap();
        let servers = bed.backends.iter().map(|host| memcached(&bed, host)).collect();
        let router = router(&bed);
        let decaps = Decap::start_all(&bed).unwrap();
        let config = config(&bed);
        let machines = [0, 1].map(|index| Some(Balancer::start(&bed, index, &config).unwrap()));
        let pair = Self { machines, router, _servers: servers, _decaps: decaps, config, bed };
        pair.wait_until_all_serve();
        pair
    }

    pub(crate) fn machine(&self, index: usize) -> &Balancer {
        self.machines[index].as_ref().unwrap()
    }

    /// Returns a counter of each balancer, as the sum over its packet threads.
    pub(crate) fn counted(&self, name: &str) -> [u64; 2] {
        [0, 1].map(|index| self.machine(index).counters().unwrap().over_threads(&[name]))
    }

    fn wait_until_all_serve(&self) {
        let serve = || (0..2).all(|index| are_serving(self.machine(index), 2)).then_some(());
        assert!(eventually(BOUND, serve).is_some(), "some backends are not serving\n{}", self.diagnosis());
    }

    /// Returns a client for the first VIP of this address family. While both balancers run, the
    /// router sends all requests of a client to the same balancer.
    pub(crate) fn client(&self, ipv4: bool) -> QueryClient {
        QueryClient::new(&self.bed.client.ns, self.bed.vip(ipv4, PORT))
    }

    /// Returns clients for each balancer, one per address family. The balancers' counters show
    /// which balancer receives the requests of a client.
    pub(crate) fn clients_of_each(&self) -> [[QueryClient; 2]; 2] {
        let [[a4, b4], [a6, b6]] = [true, false].map(|ipv4| {
            let (mut first, mut second) = (None, None);
            for _ in 0..TRIES {
                let client = self.client(ipv4);
                let before = self.counted("keyed_reads");
                assert_eq!(self.ask(&client, &get("nobody")), b"END\r\n");
                let after = self.counted("keyed_reads");
                match [after[0] - before[0], after[1] - before[1]] {
                    [1, 0] => first = Some(client),
                    [0, 1] => second = Some(client),
                    other => panic!("expected one request at one balancer, found {other:?}"),
                }
                if first.is_some() && second.is_some() {
                    break;
                }
            }
            [first, second].map(|client| client.expect("no client reaches this balancer"))
        });
        [[a4, a6], [b4, b6]]
    }

    /// Sends a command through one of the balancers, and returns the response.
    pub(crate) fn ask(&self, client: &QueryClient, command: &[u8]) -> Vec<u8> {
        let said = client.ask_within(command, BOUND);
        said.unwrap_or_else(|| panic!("no response to {}\n{}", command.escape_ascii(), self.diagnosis()))
    }

    /// Returns `each` keys for each server, grouped by server. The names of the keys begin with
    /// `word`.
    pub(crate) fn keys(&self, word: &str, each: usize) -> Vec<Key> {
        let client = self.client(true);
        let all = (0..TRIES).map(|number| {
            let name = format!("{word}{number}");
            assert_eq!(self.ask(&client, &set(&name, 0)), b"STORED\r\n");
            let has = |server: &usize| {
                let host = &self.bed.backends[*server];
                let beside = QueryClient::new(&host.ns, SocketAddr::new(host.v4.into(), PORT));
                beside.ask_within(&get(&name), BOUND).unwrap() != b"END\r\n"
            };
            let server = (0..2).find(has).expect("no server has the key");
            Key { name, server }
        });
        let all: Vec<Key> = all.collect();
        let of = |server| all.iter().filter(move |key| key.server == server).take(each).cloned();
        let keys: Vec<Key> = of(0).chain(of(1)).collect();
        assert_eq!(keys.len(), 2 * each, "{all:?}");
        keys
    }

    /// Restarts a balancer with the steps in `docs/how-to/restart-a-cluster.md`.
    pub(crate) fn restart(&mut self, index: usize) {
        self.wait_for_agreement();
        let begin = Instant::now();
        self.bed.say(index, &["machine", "drain"], BOUND).unwrap();
        let mut machine = self.machines[index].take().unwrap();
        let status = machine.process.wait(DRAINED);
        assert!(status.is_some_and(|status| status.success()), "{status:?}\n{}", machine.process.tail());
        self.wait_for_next_hops(1);
        let drained = begin.elapsed();
        self.machines[index] = Some(Balancer::start(&self.bed, index, &self.config).unwrap());
        let ready = begin.elapsed();
        self.wait_for_next_hops(2);
        let has_routes = begin.elapsed();
        println!(
            "lb{} drained in {drained:?}, ready after {ready:?}, routes after {has_routes:?}",
            index + 1
        );
        self.wait_until_all_serve();
        self.wait_for_agreement();
    }

    fn wait_for_next_hops(&self, count: usize) {
        let vips = || self.bed.spec.vips.iter();
        let have = || vips().all(|vip| self.bed.next_hops(&host_route(*vip)) == count).then_some(());
        assert!(eventually(BOUND, have).is_some(), "expected {count} next hops\n{}", self.diagnosis());
    }

    fn wait_for_agreement(&self) {
        let agree = || {
            let [first, second] = [0, 1].map(|index| self.bed.say(index, &["digest"], BOUND).unwrap());
            (first == second).then_some(())
        };
        assert!(
            eventually(BOUND, agree).is_some(),
            "the digests of the machines differ\n{}",
            self.diagnosis()
        );
    }

    pub(crate) fn diagnosis(&self) -> String {
        let mut text = self.router.as_ref().map(Router::tail).unwrap_or_default();
        for machine in self.machines.iter().flatten() {
            let counters = machine.counters().map(|counters| format!("{:#}", counters.0));
            let counters = counters.unwrap_or_else(|error| error.to_string());
            let _ = writeln!(text, "{}\n{counters}", machine.process.tail());
        }
        text
    }
}

fn sessions() -> Vec<RouterSession> {
    RouterSession::all().into_iter().map(|session| RouterSession { key: "", ..session }).collect()
}

/// Returns the BGP configuration of both balancers, with sessions over IPv4 and IPv6.
fn bgp() -> String {
    let mut text = format!("[bgp]\nasn = {CLUSTER_ASN}\ngraceful_shutdown = \"1s\"\nhold_down = \"1s\"\n");
    for session in sessions() {
        let ((router, _), name, machine) = (session.ends(), session.name(), session.machine);
        let family = if session.ipv4 { "ipv4" } else { "ipv6" };
        let _ = writeln!(
            text,
            "[[bgp.peers]]\nname = \"{name}\"\nmachines = [\"lb{machine}\"]\naddress = \"{router}\"\n\
             asn = {ROUTER_ASN}\nfamilies = [\"{family}\"]\nhold_time = \"30s\"\nmax_retry = \"2s\""
        );
    }
    text
}

fn host_route(vip: IpAddr) -> String {
    format!("{vip}/{}", if vip.is_ipv4() { 32 } else { 128 })
}

/// The number of clients to try. With this number of clients, the probability that the router
/// assigns no client to a balancer is 1e-9. The probability that a server gets none of the keys is
/// similar.
const TRIES: usize = 40;
/// The timeout of a drain: the drain time plus ten times the duration of the other steps.
const DRAINED: Duration = Duration::from_secs(90);
