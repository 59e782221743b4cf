//! Tests of reloads and restarts, which check which flows move to a different backend, and that no
//! packet is lost.

use std::collections::BTreeMap;
use std::fs;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use testbed::{Balancer, Bed, BedSpec, Connection, LbConfig, UdpFlows, VIP_V4, VIP_V6, eventually, udp_ask};

use crate::scene::{BOUND, SILENCE, Scene, backend_of, count, names};

/// A thread that sends packets on a set of flows until the handle is dropped.
pub(crate) struct Traffic {
    stop: Arc<AtomicBool>,
    thread: Option<thread::JoinHandle<Vec<Vec<Option<String>>>>>,
}

impl Drop for Traffic {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

impl Traffic {
    pub(crate) fn start(mut flows: UdpFlows) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let until = Arc::clone(&stop);
        // The first round establishes all flows before the test changes anything.
        let mut rounds = vec![flows.round().unwrap()];
        let thread = thread::spawn(move || {
            while !until.load(Ordering::Relaxed) {
                rounds.push(flows.round().unwrap());
            }
            rounds.push(flows.round().unwrap());
            rounds
        });
        Self { stop, thread: Some(thread) }
    }

    /// Ends the traffic and returns the backend of each flow. Panics if a packet was not answered
    /// or a flow moved to a different backend.
    pub(crate) fn kept(mut self, scene: &Scene) -> Vec<String> {
        self.stop.store(true, Ordering::Relaxed);
        let rounds = self.thread.take().unwrap().join().unwrap();
        let lost = rounds.iter().flatten().filter(|answer| answer.is_none()).count();
        assert_eq!(lost, 0, "of {} rounds\n{}", rounds.len(), scene.diagnosis());
        assert!(rounds.iter().all(|round| *round == rounds[0]), "a flow moved\n{}", scene.diagnosis());
        rounds[0].iter().flatten().cloned().collect()
    }
}

/// A new hash key breaks existing flows, so only a forced reload accepts it.
#[test]
fn new_hash_key_needs_force() {
    let mut scene = Scene::with(LbConfig::new);
    fs::write(scene.bed.dir().join("hash.key"), "f0f1f2f3f4f5f6f7f8f9fafbfcfdfeff\n").unwrap();
    let config = LbConfig::new(&scene.bed);
    let line = scene.balancer.reload(&scene.bed, &config).unwrap();
    assert!(line.contains("reload rejected") && line.contains("use --force"), "{line}");
    assert!(line.contains(" % of pool web") && !line.contains("f0f1f2"), "{line}");
    let status = scene.balancer.ask("/v1/status").unwrap();
    assert_eq!((&status["generation"], &status["last_reload"]["outcome"]), (&1.into(), &"refused".into()));
    let answer = scene.balancer.order("/v1/reload?force=true").unwrap();
    assert!(answer["changed"].to_string().contains("existing flows break"), "{answer:#}");
    assert_eq!(scene.balancer.ask("/v1/status").unwrap()["generation"], 2);
    assert_eq!(scene.ask(true, 20).len(), 20);
}

fn weights(n: usize) -> [u32; 3] {
    [[1, 1, 1], [1, 5, 1], [9, 1, 2], [1, 0, 1], [3, 3, 1]][n % 5]
}

#[test]
fn weight_changes_move_no_connection() {
    let (connections, packets) = (count(100, 500), count(200, 10_000));
    let mut scene = Scene::with(LbConfig::new);
    // Half of the connections use TCP over IPv4. Each request sends at least one packet. The other
    // half of the connections use UDP over IPv6.
    let (client, vip) = (scene.bed.http_client(), scene.bed.vip(true, Bed::HTTP_PORT));
    let open: Vec<_> = (0..connections).map(|_| client.connect(vip).unwrap()).collect();
    let done = Arc::new(AtomicBool::new(false));
    let udp = use_udp(scene.flows(false, connections), packets, &done);
    let tcp: Vec<_> = deal(open, 2).into_iter().map(|mine| use_tcp(mine, packets, &done)).collect();
    let reloads = count(10, 200);
    for n in 1..=reloads {
        let config = LbConfig::new(&scene.bed).weights(&weights(n));
        let line = scene.balancer.reload(&scene.bed, &config).unwrap();
        assert!(line.contains("reloaded"), "{line}");
    }
    done.store(true, Ordering::Relaxed);
    let (backends, sent) = udp.join().unwrap();
    let requests: usize = tcp.into_iter().map(|thread| thread.join().unwrap()).sum();
    assert!(backends.iter().all(Option::is_some), "{}", scene.diagnosis());
    assert_eq!(names(backends.iter().flatten()).len(), 3);
    let counts = scene.settled();
    assert_eq!(counts.drops(), []);
    assert_eq!(counts.at(&["generation"]), 1 + reloads as u64);
    scene.taken_off(counts.sent());
    println!(
        "{connections} TCP connections, {requests} requests; {connections} UDP flows, {sent} packets; {reloads} reloads; \
         {} packets redirected and decapsulated",
        counts.redirected()
    );
}

/// Starts a thread that sends packets on the flows for `rounds` rounds and then until `done`. The
/// thread returns the backend of each flow, which must not change, and the number of sent packets.
fn use_udp(
    mut flows: UdpFlows,
    rounds: usize,
    done: &Arc<AtomicBool>,
) -> thread::JoinHandle<(Vec<Option<String>>, u64)> {
    let done = Arc::clone(done);
    thread::spawn(move || {
        let (first, mut round) = (flows.round().unwrap(), 1);
        while round < rounds || !done.load(Ordering::Relaxed) {
            assert_eq!(flows.round().unwrap(), first, "in round {round}");
            round += 1;
        }
        (first, flows.sent())
    })
}

/// Starts a thread like [`use_udp`], but with TCP connections: it sends one request per connection
/// in each round. The thread returns the number of requests.
fn use_tcp(
    mut connections: Vec<Connection>,
    rounds: usize,
    done: &Arc<AtomicBool>,
) -> thread::JoinHandle<usize> {
    let done = Arc::clone(done);
    thread::spawn(move || {
        let mut round =
            || connections.iter_mut().map(|one| one.get("/").unwrap().backend).collect::<Vec<_>>();
        let (first, mut number) = (round(), 1);
        while number < rounds || !done.load(Ordering::Relaxed) {
            assert_eq!(round(), first, "in round {number}");
            number += 1;
        }
        number * first.len()
    })
}

fn deal<T>(all: Vec<T>, hands: usize) -> Vec<Vec<T>> {
    let mut dealt: Vec<Vec<T>> = (0..hands).map(|_| vec![]).collect();
    for (n, one) in all.into_iter().enumerate() {
        dealt[n % hands].push(one);
    }
    dealt
}

/// Returns the backend that `sluicegate where` computes for each flow from a configuration file,
/// without a running balancer.
fn by_file(bed: &Bed, file: &Path, flows: &[SocketAddr], vip: SocketAddr) -> Vec<String> {
    flows.iter().map(|local| backend_of(bed, file, *local, vip, "udp")).collect()
}

#[test]
fn restart_moves_only_flows_of_changed_slots() {
    let flows = count(100, 500);
    let mut scene = Scene::with(|bed| LbConfig::new(bed).weights(&[1, 1, 1]));
    let (bed, config) = (&scene.bed, |weights| LbConfig::new(&scene.bed).weights(weights));
    let (old, new) = (config(&[1, 1, 1]), config(&[1, 1, 2]));
    let old_file = bed.dir().join("old.toml");
    std::fs::write(&old_file, old.toml(bed, 0)).unwrap();
    let (mut v4, mut v6) = (scene.flows(true, flows), scene.flows(false, flows));
    let before = [scene.round(&mut v4), scene.round(&mut v6)];
    scene.balancer.process.stop(BOUND).unwrap();
    scene.balancer = Balancer::start(&scene.bed, 0, &new).unwrap();
    let new_file = scene.bed.dir().join("lb1.toml");
    let after = [scene.round(&mut v4), scene.round(&mut v6)];
    let mut moved = 0;
    for ((ipv4, flows), (before, after)) in
        [(true, &v4), (false, &v6)].into_iter().zip(before.iter().zip(&after))
    {
        let (vip, local) = (scene.bed.vip(ipv4, Bed::ECHO_PORT), flows.local().unwrap());
        assert_eq!(*before, by_file(&scene.bed, &old_file, &local, vip));
        assert_eq!(*after, by_file(&scene.bed, &new_file, &local, vip));
        moved += before.iter().zip(after).filter(|(old, new)| old != new).count();
    }
    let changed = changed_share(&[1, 1, 1], &[1, 1, 2]);
    let all = 2 * flows;
    println!("{moved} of {all} flows moved; {:.2} % of the table's slots changed", 100.0 * changed);
    #[expect(clippy::cast_precision_loss, reason = "the numbers are far below 2^52")]
    let (moved, all) = (moved as f64, all as f64);
    // The accepted deviation is six standard deviations of the number of moved flows.
    let margin = 6.0 * (all * changed * (1.0 - changed)).sqrt();
    assert!(
        (moved - all * changed).abs() <= margin,
        "{moved} of {all} flows moved, share of changed slots is {changed}"
    );
}

/// Returns the fraction of slots that differ between the Maglev tables for two sets of weights, as
/// `disruption` counts them.
fn changed_share(old: &[u32; 3], new: &[u32; 3]) -> f64 {
    let table = |weights: &[u32; 3]| {
        let key = std::array::from_fn(|n| u8::try_from(n).unwrap());
        let backends: Vec<_> = [b"b1", b"b2", b"b3"]
            .iter()
            .zip(weights)
            .map(|(name, &weight)| maglev_hash::Backend { name: *name, weight })
            .collect();
        maglev_hash::build(&backends, &maglev_hash::Options::new(maglev_hash::Seed::new(key))).unwrap()
    };
    let disruption = maglev_hash::disruption(&table(old), &table(new)).unwrap();
    println!("{disruption:?}");
    f64::from(disruption.changed()) / f64::from(maglev_hash::DEFAULT_SIZE)
}

// Promise: reload-atomic
#[test]
fn invalid_reload_is_rejected_with_file_and_line() {
    let mut scene = Scene::with(LbConfig::new);
    let traffic = Traffic::start(scene.flows(true, 20));
    let mut broken = LbConfig::new(&scene.bed);
    broken.io = "batch = 64\nno_sockets = \"pass\"".into();
    let line = scene.balancer.reload(&scene.bed, &broken).unwrap();
    let file = scene.bed.dir().join("lb1.toml");
    let text = std::fs::read_to_string(&file).unwrap();
    let number = 1 + text.lines().position(|line| line.contains("no_sockets")).unwrap();
    assert!(line.contains("rejected") && line.contains("unknown key \\\"no_sockets\\\" in [io]"), "{line}");
    assert!(
        line.contains(&format!("{}:{number}:", file.display())),
        "the error does not name line {number}, {line}"
    );
    for garbage in ["", "schema = ", "\u{0}\u{1}"] {
        std::fs::write(&file, garbage).unwrap();
        let seen = scene.balancer.process.line_count();
        scene.balancer.process.signal(nix::sys::signal::Signal::SIGHUP).unwrap();
        let refused = |line: &str| line.contains("reload rejected");
        scene.balancer.process.wait_for_line_after(seen, BOUND, refused).unwrap();
    }
    assert_eq!(scene.settled_generation(), 1);
    let line = scene.balancer.reload(&scene.bed, &LbConfig::new(&scene.bed).weights(&[0, 1, 0])).unwrap();
    assert!(line.contains("reloaded") && scene.settled_generation() == 2, "{line}");
    traffic.kept(&scene);
    assert_eq!(names(scene.ask(true, 8).iter().map(|reply| &reply.backend)), ["b2"].into());
}

impl Scene {
    fn settled_generation(&self) -> u64 {
        self.balancer.counters().unwrap().at(&["generation"])
    }
}

#[test]
fn reload_adds_and_removes_vip_without_loss() {
    let more: [IpAddr; 2] = ["203.0.113.11".parse().unwrap(), "2001:db8:f::11".parse().unwrap()];
    let all = vec![VIP_V4, VIP_V6, more[0], more[1]];
    let spec = BedSpec { vips: all, ..BedSpec::default() };
    let config = |bed: &Bed, vips: &[IpAddr]| LbConfig { vips: vips.to_vec(), ..LbConfig::new(bed) };
    let few = [VIP_V4, VIP_V6];
    let mut scene = Scene::new(&spec, |bed| config(bed, &few));
    let traffic = [Traffic::start(scene.flows(true, 10)), Traffic::start(scene.flows(false, 10))];
    for _ in 0..2 {
        for vip in more {
            udp_ask(&scene.bed.client.ns, (vip, Bed::ECHO_PORT).into(), b"x", SILENCE).unwrap_err();
        }
        let line = scene.balancer.reload(&scene.bed, &config(&scene.bed, &scene.bed.spec.vips)).unwrap();
        assert!(line.contains("reloaded"), "{line}");
        for vip in more {
            // Packet threads get a new VIP before the XDP filter does, so the VIP is served from
            // the first packet.
            let echo = (vip, Bed::ECHO_PORT).into();
            let reply = udp_ask(&scene.bed.client.ns, echo, b"x", BOUND).unwrap();
            assert_eq!(reply.from, echo);
        }
        scene.balancer.reload(&scene.bed, &config(&scene.bed, &few)).unwrap();
    }
    for flows in traffic {
        flows.kept(&scene);
    }
    let counts = scene.settled();
    assert_eq!(counts.drops(), [], "a packet reached a thread that did not know the VIP");
}

#[test]
fn removed_backend_keeps_connections_without_new_ones() {
    let drain = |bed: &Bed| LbConfig { cluster: "drain_time = \"60s\"".into(), ..LbConfig::new(bed) };
    let mut scene = Scene::with(drain);
    let vip = scene.bed.vip(true, Bed::HTTP_PORT);
    let client = scene.bed.http_client();
    let mut open: Vec<_> = (0..60).map(|_| client.connect(vip).unwrap()).collect();
    let before: Vec<String> = open.iter_mut().map(|c| c.get("/").unwrap().backend).collect();
    // The probability that none of 60 flows uses b3 is (2/3)^60 = 3e-11.
    assert!(before.iter().any(|backend| backend == "b3"));
    let traffic = Traffic::start(scene.flows(false, 60));
    let mut config = drain(&scene.bed);
    config.pool.truncate(2);
    scene.balancer.reload(&scene.bed, &config).unwrap();
    let after: Vec<String> = open.iter_mut().map(|c| c.get("/").unwrap().backend).collect();
    assert_eq!(before, after);
    let fresh = scene.ask(true, 60);
    assert_eq!(names(fresh.iter().map(|reply| &reply.backend)), ["b1", "b2"].into());
    assert!(names(&traffic.kept(&scene)).contains("b3"));
    // The backend is added again under its old name. Existing connections stay on this backend, and
    // new connections use it again.
    scene.balancer.reload(&scene.bed, &drain(&scene.bed)).unwrap();
    let again: Vec<String> = open.iter_mut().map(|c| c.get("/").unwrap().backend).collect();
    assert_eq!(before, again);
    assert_eq!(names(scene.ask(true, 60).iter().map(|reply| &reply.backend)).len(), 3);
    assert_eq!(scene.settled().drops(), []);
}

#[test]
fn flows_of_removed_backend_move_after_drain_time() {
    let drain = |bed: &Bed| LbConfig { cluster: "drain_time = \"1s\"".into(), ..LbConfig::new(bed) };
    let mut scene = Scene::with(drain);
    let mut flows = scene.flows(true, 60);
    let before = scene.round(&mut flows);
    let mut config = drain(&scene.bed);
    config.pool.truncate(2);
    scene.balancer.reload(&scene.bed, &config).unwrap();
    let moved = eventually(BOUND, || {
        let now = scene.round(&mut flows);
        (!now.iter().any(|backend| backend == "b3")).then_some(now)
    });
    let after = moved.unwrap_or_else(|| panic!("b3 is still in use\n{}", scene.diagnosis()));
    for (old, new) in before.iter().zip(&after) {
        assert!(old == new || old == "b3", "a flow moved from {old} to {new}");
    }
    let reselected = before.iter().filter(|backend| *backend == "b3").count();
    assert_eq!(scene.settled().over_threads(&["reselected"]), reselected as u64);
}

#[test]
fn added_backend_gets_share_without_loss() {
    let two = |bed: &Bed| {
        let mut config = LbConfig::new(bed);
        config.pool.truncate(2);
        config
    };
    let mut scene = Scene::with(two);
    let traffic = Traffic::start(scene.flows(true, 60));
    scene.balancer.reload(&scene.bed, &LbConfig::new(&scene.bed)).unwrap();
    // New flows use the backend from the first packet after the reload.
    let mut fresh = scene.flows(true, 60);
    let mut shares: BTreeMap<String, usize> = BTreeMap::new();
    for backend in scene.round(&mut fresh) {
        *shares.entry(backend).or_default() += 1;
    }
    assert_eq!(shares.len(), 3, "{shares:?}");
    traffic.kept(&scene);
    assert_eq!(scene.settled().drops(), []);
}

#[test]
fn reload_reports_settings_that_need_restart() {
    let mut scene = Scene::with(LbConfig::new);
    let mut config = LbConfig::new(&scene.bed).weights(&[1, 0, 0]);
    config.io = "batch = 32".into();
    let seen = scene.balancer.process.line_count();
    let line = scene.balancer.reload(&scene.bed, &config).unwrap();
    assert!(line.contains("reloaded"), "{line}");
    let reported = |line: &str| line.contains("restart needed") && line.contains("io.batch: 64 -> 32");
    scene.balancer.process.wait_for_line_after(seen, BOUND, reported).unwrap();
    // Another reload does not clear the reported pending restart.
    let waits = |scene: &Scene| scene.balancer.ask("/v1/status").unwrap()["needs_restart"].clone();
    assert_eq!(waits(&scene), serde_json::json!(["io.batch: 64 -> 32"]));
    scene.balancer.reload(&scene.bed, &config).unwrap();
    assert_eq!(waits(&scene), serde_json::json!(["io.batch: 64 -> 32"]));
    assert_eq!(names(scene.ask(true, 8).iter().map(|reply| &reply.backend)), ["b1"].into());
    config.io = String::new();
    scene.balancer.reload(&scene.bed, &config).unwrap();
    assert_eq!(waits(&scene), serde_json::json!([]), "a restart is still reported as required");
}

#[test]
fn unchanged_reload_keeps_generation_and_tag() {
    let mut scene = Scene::with(LbConfig::new);
    let tag = |scene: &Scene| scene.balancer.ask("/v1/config").unwrap()["etag"].clone();
    let before = tag(&scene);
    let line = scene.balancer.reload(&scene.bed, &LbConfig::new(&scene.bed)).unwrap();
    assert!(line.contains("configuration unchanged"), "{line}");
    assert_eq!((tag(&scene), scene.settled_generation()), (before, 1));
    let last = scene.balancer.ask("/v1/status").unwrap()["last_reload"].clone();
    assert_eq!(
        (&last["outcome"], &last["message"]),
        (&"unchanged".into(), &"nothing changed".into()),
        "{last:#}"
    );
    scene.ask(true, 8);
}

#[test]
fn reload_beyond_max_vips_is_rejected() {
    let mut scene = Scene::with(|bed| {
        let mut config = LbConfig::new(bed);
        config.io = "max_vips = 4".into();
        config
    });
    let mut config = LbConfig::new(&scene.bed);
    config.io = "max_vips = 64".into();
    let many: Vec<String> = (1..=20).map(|n| format!("\"203.0.113.{}\"", 100 + n)).collect();
    config.more = format!(
        "[vip.many]\naddresses = [{}]\nservices = [{{ ports = [80], protocol = \"tcp\", pool = \"web\" }}]\n",
        many.join(", ")
    );
    let line = scene.balancer.reload(&scene.bed, &config).unwrap();
    assert!(line.contains("reload rejected") && line.contains("io.max_vips"), "{line}");
    scene.ask(true, 8);
    scene.ask(false, 8);
}
