//! Tests of two clusters with one balancer each and a common prefix group. Each cluster redirects
//! flows to the other cluster while its own backends are down.

use std::fmt::Write;
use std::net::{IpAddr, SocketAddr};

use testbed::{
    Balancer, Bed, BedSpec, Counters, Decap, HttpServer, LbConfig, Response, VIP_V4, VIP_V6, eventually,
    udp_ask,
};

use crate::scene::{BOUND, SILENCE};

/// The addresses of the service in each cluster. Each address belongs to a prefix of the group.
const VIPS: [[&str; 2]; 2] = [["198.51.100.20", "2001:db8:e::20"], ["198.51.100.148", "2001:db8:e:100::20"]];
const PREFIXES: [[&str; 2]; 2] =
    [["198.51.100.0/25", "2001:db8:e::/56"], ["198.51.100.128/25", "2001:db8:e:100::/56"]];

fn vip(cluster: usize, ipv4: bool, port: u16) -> SocketAddr {
    let address: IpAddr = VIPS[cluster][usize::from(!ipv4)].parse().unwrap();
    SocketAddr::new(address, port)
}

/// Fields are dropped in this order: the balancers must stop before the testbed is removed.
struct Clusters {
    balancers: [Balancer; 2],
    _decaps: Vec<Decap>,
    bed: Bed,
}

impl Clusters {
    /// Starts two clusters. The backends `b1` and `b2` belong to the first cluster, and `b3`
    /// belongs to the second. `weights` contains the weight of each cluster.
    fn new(weights: [u32; 2], checks: &str) -> Self {
        let vips = VIPS.concat().iter().map(|text| text.parse().unwrap()).collect();
        let bed = Bed::new(&BedSpec { balancers: 2, vips, ..BedSpec::default() }).unwrap();
        let mut routes = String::new();
        for (n, host) in bed.balancers.iter().enumerate() {
            for ipv4 in [true, false] {
                let vip = vip(n, ipv4, 0).ip();
                writeln!(
                    routes,
                    "route replace {vip}/{} via {}",
                    if ipv4 { 32 } else { 128 },
                    host.address(vip)
                )
                .unwrap();
            }
        }
        bed.router.ip(&routes).unwrap();
        let decaps = Decap::start_all(&bed).unwrap();
        let start = |n: usize| Balancer::start(&bed, n, &config(&bed, n, weights[n], checks)).unwrap();
        let balancers = [start(0), start(1)];
        Self { balancers, _decaps: decaps, bed }
    }

    fn counters(&self, cluster: usize) -> Counters {
        self.balancers[cluster].counters().unwrap()
    }

    /// Sends a request to the first cluster's VIP and returns the response, or `None` if it failed.
    fn ask(&self, ipv4: bool) -> Option<Response> {
        let reply = self.bed.http_client().connect_timeout(SILENCE).get(vip(0, ipv4, 80), "/").ok()?;
        assert_eq!((reply.peer, reply.server_seen), (vip(0, ipv4, 80), Some(vip(0, ipv4, 80))));
        assert_eq!(reply.client_seen, Some(reply.local), "the backend observed a different client address");
        Some(reply)
    }

    /// Waits until several consecutive requests are answered only by `backends`.
    fn served_by(&self, backends: &[&str]) {
        for ipv4 in [true, false] {
            let all = || {
                let answers = (0..20).map(|_| self.ask(ipv4)).collect::<Option<Vec<_>>>()?;
                answers.iter().all(|reply| backends.contains(&&*reply.backend)).then_some(())
            };
            assert!(eventually(BOUND, all).is_some(), "{backends:?} {ipv4}\n{}", self.diagnosis());
        }
    }

    fn diagnosis(&self) -> String {
        self.balancers.iter().map(|balancer| balancer.process.tail()).collect::<Vec<_>>().join("\n")
    }
}

fn config(bed: &Bed, cluster: usize, weight: u32, checks: &str) -> LbConfig {
    let (mut config, other) = (LbConfig::new(bed), 1 - cluster);
    let own = if cluster == 0 { 0..2 } else { 2..3 };
    config.pool = config.pool[own].to_vec();
    config.pool.iter_mut().for_each(|member| member.weight = weight);
    config.alone = true;
    config.vips = vec![VIP_V4, VIP_V6];
    let quoted = |texts: [&str; 2]| format!("\"{}\", \"{}\"", texts[0], texts[1]);
    let (ours, theirs, host) = (quoted(PREFIXES[cluster]), quoted(PREFIXES[other]), &bed.balancers[other]);
    if !checks.is_empty() {
        config.pool_keys = "checks = [\"port\"]".into();
        config.more = "[check.port]\ntcp = { port = 80 }\ninterval = \"1s\"\nfast_interval = \"1s\"\ntimeout = \"900ms\"\n".into();
    }
    config.more += &format!(
        "[prefix_group.edge]\nprefixes = [{ours}, {theirs}]\n\
         [remote.other]\nsources = [\"{}\", \"{}\"]\nprefixes = {{ edge = [{theirs}] }}\n\
         [vip.edge]\ngroup = \"edge\"\nsuffixes = [\"0.0.0.20/7\", \"::20/72\"]\nremotes = [\"other\"]\n{checks}\n\
         services = [{{ ports = [80], protocol = \"tcp\", pool = \"web\" }}, {{ ports = [53], protocol = \"udp\", pool = \"web\" }}]\n",
        host.v4, host.v6
    );
    config
}

#[test]
fn remote_cluster_serves_while_local_backends_are_down() {
    let mut clusters = Clusters::new([1, 1], "remote_checks = [\"port\"]");
    clusters.served_by(&["b1", "b2"]);
    // Health checks are still running, so a frame may be between the XDP program and its packet
    // thread. The other cluster may drop packets that arrive before the checks of its own backends
    // have finished.
    let agreed = eventually(BOUND, || {
        let there = clusters.counters(1);
        (there.received() == there.redirected()).then(|| there.drops())
    });
    let drops = agreed.unwrap_or_else(|| panic!("{}", clusters.diagnosis()));
    clusters.bed.http.drain(..2).for_each(drop);
    clusters.served_by(&["b3"]);
    let open = |ipv4: bool| (0..4).map(move |_| vip(0, ipv4, 80));
    let mut downloads: Vec<_> = [true, false]
        .into_iter()
        .flat_map(open)
        .map(|vip| clusters.bed.http_client().connect(vip).unwrap())
        .collect();
    let whole = |reply: &Response| (reply.backend.as_str(), reply.body.len()) == ("b3", 300_000);
    assert!(downloads.iter_mut().all(|download| whole(&download.get("/bytes/300000").unwrap())));
    let rows = clusters.balancers[0].ask("/v1/vips").unwrap();
    let edge = rows.as_array().unwrap().iter().find(|row| row["name"] == "edge").unwrap();
    assert_eq!(edge["services"][0]["redirected_to"], serde_json::json!(["other"]), "{rows:#}");
    for host in &clusters.bed.backends[..2] {
        clusters.bed.http.push(HttpServer::start(&host.ns, &host.name, Bed::HTTP_PORT).unwrap());
    }
    clusters.served_by(&["b1", "b2"]);
    let before = clusters.counters(0).over_threads(&["remote_flows"]);
    for download in &mut downloads {
        assert!(whole(&download.get("/bytes/300000").unwrap()), "{}", clusters.diagnosis());
    }
    let (here, there) = (clusters.counters(0), clusters.counters(1));
    assert_eq!(
        here.over_threads(&["remote_flows"]),
        before,
        "known flows were counted as new redirected flows"
    );
    let arrivals = there.over_threads(&["remote_decapsulated"]);
    println!(
        "{before} flows redirected, {arrivals} packets arrived at the other cluster, drops {:?} {:?}",
        here.drops(),
        there.drops()
    );
    assert!(before >= 48 && arrivals > before);
    assert_eq!(there.drops(), drops, "{}", clusters.diagnosis());
}

#[test]
fn clusters_without_backends_redirect_once_and_drop() {
    let clusters = Clusters::new([0, 0], "");
    for (n, ipv4) in [(1, true), (2, false)] {
        assert!(udp_ask(&clusters.bed.client.ns, vip(0, ipv4, Bed::ECHO_PORT), b"x", SILENCE).is_err());
        let dropped = || {
            let counts = clusters.counters(1);
            (counts.drops() == [("no_backend".to_owned(), n)]).then_some(counts)
        };
        let there = eventually(BOUND, dropped).unwrap_or_else(|| panic!("{}", clusters.diagnosis()));
        assert_eq!(
            (there.over_threads(&["remote_decapsulated"]), there.sent()),
            (n, 0),
            "a redirected packet was forwarded again"
        );
        let here = clusters.counters(0);
        assert_eq!((here.sent(), here.drops(), here.over_threads(&["remote_flows"])), (n, vec![], n));
    }
}

#[test]
fn vip_without_fragments_drops_fragments_by_reason() {
    let scene = crate::scene::Scene::with(|bed| LbConfig {
        vip_keys: "fragments = false".into(),
        ..LbConfig::new(bed)
    });
    for (n, ipv4) in [(1, true), (2, false)] {
        let echo = scene.bed.vip(ipv4, Bed::ECHO_PORT);
        assert!(udp_ask(&scene.bed.client.ns, echo, &[7; 2_000], SILENCE).is_err());
        assert!(udp_ask(&scene.bed.client.ns, echo, b"whole", BOUND).is_ok());
        assert_eq!(scene.settled().drops(), [("fragment".to_owned(), 2 * n)]);
    }
}
