//! SIGHUP and restarts: what moves, what stays, and that nothing is lost on the way.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use testbed::{Balancer, Bed, BedSpec, Connection, LbConfig, UdpFlows, VIP_V4, VIP_V6, eventually, udp_ask};

use crate::scene::{BOUND, SILENCE, Scene, backend_of, count, names};

/// Flows that are used from now on, in a thread of their own, until they are called back.
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
        // They are all known before anything changes.
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

    /// Ends it; asserts that no packet went unanswered and no flow moved; returns who answers which flow.
    pub(crate) fn kept(mut self, scene: &Scene) -> Vec<String> {
        self.stop.store(true, Ordering::Relaxed);
        let rounds = self.thread.take().unwrap().join().unwrap();
        let lost = rounds.iter().flatten().filter(|answer| answer.is_none()).count();
        assert_eq!(lost, 0, "of {} rounds\n{}", rounds.len(), scene.diagnosis());
        assert!(rounds.iter().all(|round| *round == rounds[0]), "a flow moved\n{}", scene.diagnosis());
        rounds[0].iter().flatten().cloned().collect()
    }
}

fn weights(n: usize) -> [u32; 3] {
    [[1, 1, 1], [1, 5, 1], [9, 1, 2], [1, 0, 1], [3, 3, 1]][n % 5]
}

#[test]
fn connections_stay_on_their_backends_while_snapshots_with_other_weights_are_published() {
    let (connections, packets) = (count(100, 500), count(200, 10_000));
    let mut scene = Scene::with(LbConfig::new);
    // Half of them TCP, where a request is at least one packet of the client, and half UDP over IPv6.
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
         {} packets redirected, as many taken off",
        counts.redirected()
    );
}

/// At least so many rounds, and on until `done`: who answers which flow, always the same, and the packets sent.
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

/// The same with a request on each connection a round; the number of requests.
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

/// Where each flow goes by a file alone.
fn by_file(bed: &Bed, file: &Path, flows: &[SocketAddr], vip: SocketAddr) -> Vec<String> {
    flows.iter().map(|local| backend_of(bed, file, *local, vip, "udp")).collect()
}

#[test]
fn after_a_restart_with_other_weights_exactly_the_flows_whose_table_entry_changed_move() {
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
    #[expect(clippy::cast_precision_loss, reason = "a few hundred flows")]
    let (moved, all) = (moved as f64, all as f64);
    // Six standard deviations of as many independent flows.
    let margin = 6.0 * (all * changed * (1.0 - changed)).sqrt();
    assert!(
        (moved - all * changed).abs() <= margin,
        "{moved} of {all} moved, {changed} of the slots changed"
    );
}

/// The share of slots that `disruption` counts as changed between two tables of the bed's backends.
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

#[test]
fn a_broken_file_is_refused_by_file_line_and_field_and_a_good_one_after_it_works() {
    let mut scene = Scene::with(LbConfig::new);
    let traffic = Traffic::start(scene.flows(true, 20));
    let mut broken = LbConfig::new(&scene.bed);
    broken.io = "batch = 64\nno_sockets = \"pass\"".into();
    let line = scene.balancer.reload(&scene.bed, &broken).unwrap();
    let file = scene.bed.dir().join("lb1.toml");
    let text = std::fs::read_to_string(&file).unwrap();
    let number = 1 + text.lines().position(|line| line.contains("no_sockets")).unwrap();
    assert!(line.contains("refused") && line.contains("io.no_sockets"), "{line}");
    assert!(line.contains(&format!("{}:{number}:", file.display())), "{line}, not line {number}");
    for garbage in ["", "schema = ", "\u{0}\u{1}"] {
        std::fs::write(&file, garbage).unwrap();
        let seen = scene.balancer.process.line_count();
        scene.balancer.process.signal(nix::sys::signal::Signal::SIGHUP).unwrap();
        let refused = |line: &str| line.contains("refused");
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
fn a_vip_comes_and_goes_by_reload_and_the_others_lose_nothing() {
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
            // At once: the threads know it before the filter does.
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
    assert_eq!(counts.drops(), [], "no packet reached a thread that did not know its VIP");
}

#[test]
fn a_backend_that_goes_keeps_its_connections_and_gets_no_new_ones() {
    let drain = |bed: &Bed| LbConfig { cluster: "drain_time = \"60s\"".into(), ..LbConfig::new(bed) };
    let mut scene = Scene::with(drain);
    let vip = scene.bed.vip(true, Bed::HTTP_PORT);
    let client = scene.bed.http_client();
    let mut open: Vec<_> = (0..60).map(|_| client.connect(vip).unwrap()).collect();
    let before: Vec<String> = open.iter_mut().map(|c| c.get("/").unwrap().backend).collect();
    // 60 flows miss one of three backends with probability (2/3)^60 = 3e-11.
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
    // It comes back under its old name: its connections never noticed, and new ones find it.
    scene.balancer.reload(&scene.bed, &drain(&scene.bed)).unwrap();
    let again: Vec<String> = open.iter_mut().map(|c| c.get("/").unwrap().backend).collect();
    assert_eq!(before, again);
    assert_eq!(names(scene.ask(true, 60).iter().map(|reply| &reply.backend)).len(), 3);
    assert_eq!(scene.settled().drops(), []);
}

#[test]
fn after_the_drain_time_the_flows_of_a_backend_that_went_go_to_others() {
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
        assert!(old == new || old == "b3", "{old} moved to {new}");
    }
    let reselected = before.iter().filter(|backend| *backend == "b3").count();
    assert_eq!(scene.settled().over_threads(&["reselected"]), reselected as u64);
}

#[test]
fn a_backend_that_comes_by_reload_takes_its_share_and_nothing_is_lost() {
    let two = |bed: &Bed| {
        let mut config = LbConfig::new(bed);
        config.pool.truncate(2);
        config
    };
    let mut scene = Scene::with(two);
    let traffic = Traffic::start(scene.flows(true, 60));
    scene.balancer.reload(&scene.bed, &LbConfig::new(&scene.bed)).unwrap();
    // From the first packet after the reload on.
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
fn what_needs_a_restart_is_said_and_the_rest_is_taken_over() {
    let mut scene = Scene::with(LbConfig::new);
    let mut config = LbConfig::new(&scene.bed).weights(&[1, 0, 0]);
    config.io = "batch = 32".into();
    let seen = scene.balancer.process.line_count();
    let line = scene.balancer.reload(&scene.bed, &config).unwrap();
    assert!(line.contains("reloaded"), "{line}");
    let reported = |line: &str| line.contains("takes effect at the next start: io.batch: 64 -> 32");
    scene.balancer.process.wait_for_line_after(seen, BOUND, reported).unwrap();
    // It is not forgotten while it waits, another reload or not.
    let waits = |scene: &Scene| scene.balancer.ask("/v1/status").unwrap()["needs_restart"].clone();
    assert_eq!(waits(&scene), serde_json::json!(["io.batch: 64 -> 32"]));
    scene.balancer.reload(&scene.bed, &config).unwrap();
    assert_eq!(waits(&scene), serde_json::json!(["io.batch: 64 -> 32"]));
    assert_eq!(names(scene.ask(true, 8).iter().map(|reply| &reply.backend)), ["b1"].into());
    config.io = String::new();
    scene.balancer.reload(&scene.bed, &config).unwrap();
    assert_eq!(waits(&scene), serde_json::json!([]), "what runs is configured again");
}

#[test]
fn a_reload_that_changes_nothing_keeps_the_generation_and_its_tag_and_is_told() {
    let mut scene = Scene::with(LbConfig::new);
    let tag = |scene: &Scene| scene.balancer.ask("/v1/config").unwrap()["etag"].clone();
    let before = tag(&scene);
    let line = scene.balancer.reload(&scene.bed, &LbConfig::new(&scene.bed)).unwrap();
    assert!(line.contains("nothing changed"), "{line}");
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
fn more_vips_than_the_filter_has_had_room_for_since_the_start_are_refused_whole() {
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
    assert!(line.contains("reload refused") && line.contains("io.max_vips"), "{line}");
    scene.ask(true, 8);
    scene.ask(false, 8);
}
