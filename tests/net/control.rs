//! An operator's day under steady load: backends die, come back, are drained and lose their tunnel; reloads; orders.
//!
//! 2,000 requests a second over fresh connections, half of them IPv6. A request that fails is counted with its time.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;
use testbed::{Bed, BedSpec, Client, Connection, HttpServer, LbConfig, eventually};

use crate::scene::{BOUND, Scene, count, names, verb};

/// Requests at a steady pace until they are called back.
struct Load {
    stop: Arc<AtomicBool>,
    sent: Arc<AtomicU64>,
    failed: Arc<Mutex<Vec<(Instant, String)>>>,
    threads: Vec<thread::JoinHandle<()>>,
}

impl Load {
    fn start(scene: &Scene) -> Self {
        let mut load =
            Self { stop: Arc::default(), sent: Arc::default(), failed: Arc::default(), threads: Vec::new() };
        for ipv4 in [true, false] {
            for _ in 0..THREADS {
                let (client, vip) = (scene.bed.http_client(), scene.bed.vip(ipv4, Bed::HTTP_PORT));
                load.threads.push(load.one(client, vip));
            }
        }
        load
    }

    fn one(&self, client: Client, vip: SocketAddr) -> thread::JoinHandle<()> {
        let (stop, sent, failed) = (Arc::clone(&self.stop), Arc::clone(&self.sent), Arc::clone(&self.failed));
        thread::spawn(move || {
            let pace = Duration::from_secs(1) * 2 * THREADS / RATE;
            let mut next = Instant::now();
            while !stop.load(Ordering::Relaxed) {
                let started = Instant::now();
                if let Err(failure) = client.get(vip, "/") {
                    failed.lock().unwrap().push((started, format!("{failure:?}")));
                }
                sent.fetch_add(1, Ordering::Relaxed);
                next = (next + pace).max(Instant::now() - pace);
                thread::sleep(next.saturating_duration_since(Instant::now()));
            }
        })
    }

    /// Waits until so many requests more have been made.
    fn more(&self, requests: u64) {
        let goal = self.sent.load(Ordering::Relaxed) + requests;
        eventually(BOUND, || (self.sent.load(Ordering::Relaxed) >= goal).then_some(())).unwrap();
    }

    /// Failures of requests that began at `since` or later.
    fn failed_since(&self, since: Instant) -> Vec<String> {
        let failed = self.failed.lock().unwrap();
        failed.iter().filter(|(at, _)| *at >= since).map(|(_, failure)| failure.clone()).collect()
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            drop(thread.join());
        }
    }
}

/// Threads a family.
const THREADS: u32 = 2;
/// Requests a second in all.
const RATE: u32 = 2_000;

fn checked(bed: &Bed) -> LbConfig {
    let mut config = LbConfig::new(bed);
    config.pool_keys = "checks = [\"web\", \"vip\"]".into();
    config.more = CHECKS.into();
    config
}

/// Patient, so that no backend is taken for dead on a machine that builds something else meanwhile.
const CHECKS: &str = r#"
[check.web]
http = { port = 80, path = "/" }
interval = "2s"
fast_interval = "2s"
timeout = "1500ms"
fall = 4
rise = 1
[check.vip]
http = { port = 80, path = "/" }
via = "vip"
interval = "2s"
fast_interval = "2s"
timeout = "1500ms"
fall = 4
rise = 1
"#;

/// `fall` intervals and a time-out, the jitter of both included.
const FOUND_DOWN: Duration = Duration::from_millis(4 * 2_200 + 1_500);

fn state(scene: &Scene, backend: &str) -> Value {
    let rows = scene.balancer.ask("/v1/backends").unwrap();
    rows.as_array().unwrap().iter().find(|row| row["name"] == backend).cloned().unwrap_or_default()
}

/// Waits until a backend is in that state; gives how long it took.
fn becomes(scene: &Scene, backend: &str, wanted: &str) -> Duration {
    let start = Instant::now();
    let seen = eventually(10 * BOUND, || (state(scene, backend)["state"] == wanted).then_some(()));
    assert!(seen.is_some(), "{backend} is not {wanted}: {:#}\n{}", state(scene, backend), scene.diagnosis());
    start.elapsed()
}

/// A request on each connection: who answers.
fn use_each(scene: &Scene, open: &mut [Connection]) -> Vec<String> {
    let answer =
        |one: &mut Connection| one.get("/").unwrap_or_else(|e| panic!("{e}\n{}", scene.diagnosis())).backend;
    open.iter_mut().map(answer).collect()
}

fn ordered(scene: &Scene, args: &[&str]) -> Value {
    let socket = LbConfig::admin_socket(&scene.bed, 0);
    let args = [args, &["--json", "--socket", socket.to_str().unwrap()]].concat();
    let ended = verb(&scene.bed, &args);
    assert!(ended.code == Some(0), "{args:?}: {}{}", ended.out, ended.err);
    serde_json::from_str(&ended.out).unwrap()
}

#[test]
fn a_drain_says_how_many_flows_are_left_and_waits_for_the_last() {
    let scene = Scene::new(&BedSpec { queues: 2, ..BedSpec::default() }, |bed| {
        let mut config = LbConfig::new(bed);
        config.cluster += "\nflow_timeouts = { closing = \"1s\" }";
        config
    });
    let mut open = vec![];
    for ipv4 in [true, false] {
        let vip = scene.bed.vip(ipv4, Bed::HTTP_PORT);
        open.extend((0..20).map(|_| scene.bed.http_client().connect(vip).unwrap()));
    }
    let used = use_each(&scene, &mut open);
    let on = |name: &str| used.iter().filter(|backend| *backend == name).count();
    let flows = |backend: &str| counted_flows(&scene, backend);
    for backend in ["b1", "b2", "b3"] {
        assert_eq!(flows(backend), (on(backend) as u64, on(backend) as u64), "{used:?}");
    }
    let vips = scene.balancer.ask("/v1/vips").unwrap();
    assert_eq!(vips[0]["services"][0]["flows"], 40, "{vips:#}");
    let (_, metrics) = scene.balancer.ask_plainly("/metrics").unwrap();
    let of_b1 = format!("sluicegate_backend_flows{{backend=\"b1\"}} {}\n", on("b1"));
    assert!(on("b1") > 0 && metrics.contains(&of_b1), "{of_b1}: {metrics}");
    // They stay: the drain does, and the wait ends by its time.
    let socket = LbConfig::admin_socket(&scene.bed, 0);
    let drain = |wait: &[&str]| {
        let args =
            [&["backend", "drain", "b1", "--socket", socket.to_str().unwrap(), "--wait"], wait].concat();
        verb(&scene.bed, &args)
    };
    let ended = drain(&["1s"]);
    let left = format!("b1: {} flows left; the drain stays", on("b1"));
    assert!(ended.code == Some(1) && ended.err.contains(&left), "{}{}", ended.out, ended.err);
    assert_eq!(state(&scene, "b1")["state"], "draining");
    // They go: so does the wait.
    drop(open);
    let ended = drain(&[]);
    assert_eq!(ended.code, Some(0), "{}{}", ended.out, ended.err);
    assert_eq!(flows("b1"), (0, 0));
}

/// Flows of a backend, and those of them by the VIP. A busy machine may miss one count.
fn counted_flows(scene: &Scene, backend: &str) -> (u64, u64) {
    let counted = || {
        let row = state(scene, backend);
        Some((row["flows"].as_u64()?, row["flows_by_vip"]["www"].as_u64().unwrap_or(0)))
    };
    eventually(BOUND, counted).unwrap_or_else(|| panic!("not counted\n{}", scene.diagnosis()))
}

/// A count is kept for a second: that of before an order ended the wait at once, whatever had come since.
#[test]
fn a_drain_waits_for_flows_that_came_after_the_last_count() {
    let scene = Scene::with(LbConfig::new);
    let vip = scene.bed.vip(true, Bed::HTTP_PORT);
    assert_eq!(counted_flows(&scene, "b1"), (0, 0));
    let mut open: Vec<_> = (0..20).map(|_| scene.bed.http_client().connect(vip).unwrap()).collect();
    assert!(use_each(&scene, &mut open).iter().any(|backend| backend == "b1"));
    let socket = LbConfig::admin_socket(&scene.bed, 0);
    let args = ["backend", "drain", "b1", "--wait", "1s", "--socket", socket.to_str().unwrap()];
    let ended = verb(&scene.bed, &args);
    assert!(ended.code == Some(1) && ended.err.contains("the drain stays"), "{}{}", ended.out, ended.err);
}

#[test]
fn under_steady_load_backends_die_return_and_drain_and_requests_go_on() {
    let mut scene = Scene::with(checked);
    assert_eq!(state(&scene, "b2")["state"], "serving", "ready means checked");
    let load = Load::start(&scene);
    load.more(500);
    assert_eq!(load.failed_since(Instant::now() - BOUND), [""; 0]);

    // One dies.
    let dead = scene.bed.http.remove(1);
    let killed = Instant::now();
    drop(dead);
    becomes(&scene, "b2", "down");
    let found = Instant::now();
    load.more(1_000);
    assert_eq!(load.failed_since(found), [""; 0], "nobody is sent to b2 any more");
    println!(
        "b2 killed: down after {:?} (bound {FOUND_DOWN:?}), {} requests failed until then",
        found.duration_since(killed),
        load.failed_since(killed).len()
    );

    // It comes back.
    let returned = Instant::now();
    let server = HttpServer::start(&scene.bed.backends[1].ns, "b2", Bed::HTTP_PORT).unwrap();
    becomes(&scene, "b2", "serving");
    eventually(BOUND, || (server.requests() > 100).then_some(())).expect("b2 takes its share again");
    println!("b2 back: serving after {:?}", returned.elapsed());
    assert_eq!(load.failed_since(found), [""; 0], "{}", scene.diagnosis());

    // One is drained: its connections live on, new ones go elsewhere.
    let vip = scene.bed.vip(true, Bed::HTTP_PORT);
    let mut open: Vec<_> = (0..30).map(|_| scene.bed.http_client().connect(vip).unwrap()).collect();
    let before: Vec<String> = use_each(&scene, &mut open);
    assert!(before.iter().any(|backend| backend == "b1"));
    let change = ordered(&scene, &["backend", "drain", "b1"]);
    assert_eq!(change["memberships"][0]["after"], "draining", "{change:#}");
    load.more(500);
    let after: Vec<String> = use_each(&scene, &mut open);
    assert_eq!(before, after);
    // By UDP: the load has used so many TCP ports that one may come again while its flow is still closing on b1.
    let mut fresh = scene.flows(true, 60);
    assert!(!names(&scene.round(&mut fresh)).contains("b1"));
    assert_eq!(load.failed_since(found), [""; 0], "a drain loses nothing");
    // What was ordered for one pool is taken back with the rest; a second time there is nothing.
    ordered(
        &scene,
        &["backend", "drain", "b1", "--pool", change["memberships"][0]["pool"].as_str().unwrap()],
    );
    ordered(&scene, &["backend", "undrain", "b1"]);
    becomes(&scene, "b1", "serving");
    let socket = LbConfig::admin_socket(&scene.bed, 0);
    let again = verb(&scene.bed, &["backend", "undrain", "b1", "--socket", socket.to_str().unwrap()]);
    assert_eq!((again.code, again.out.contains("nothing changed")), (Some(1), true), "{}", again.out);

    // Reloads, one after the other; each says something else than the one before.
    for n in 0..count(20, 100) {
        let config = checked(&scene.bed).weights(&[[1, 5, 1], [9, 1, 2], [1, 1, 1]][n % 3]);
        let line = scene.balancer.reload(&scene.bed, &config).unwrap();
        assert!(line.contains("reloaded"), "{line}");
    }
    let still: Vec<String> = use_each(&scene, &mut open);
    assert_eq!(before, still, "reloads move no established flow");
    assert_eq!(load.failed_since(found), [""; 0], "reloads lose nothing");
    println!("{} requests in all", load.sent.load(Ordering::Relaxed));
}

#[test]
fn a_backend_whose_tunnel_is_broken_is_found_down_though_its_own_address_answers() {
    let mut scene = Scene::with(checked);
    assert_eq!(state(&scene, "b3")["state"], "serving");
    scene.decaps.remove(2).stop().unwrap();
    let took = becomes(&scene, "b3", "down");
    let row = state(&scene, "b3");
    let verdicts: Vec<(&str, &str)> = row["checks"]
        .as_array()
        .unwrap()
        .iter()
        .map(|check| (check["via"].as_str().unwrap(), check["state"].as_str().unwrap()))
        .collect();
    assert!(verdicts.contains(&("backend", "up")), "{row:#}");
    assert!(verdicts.contains(&("vip", "down")), "{row:#}");
    println!("tunnel of b3 broken: down after {took:?}: {}", row["checks"][1]["last_error"]);
    let replies = scene.ask(true, 40);
    assert_eq!(names(replies.iter().map(|reply| &reply.backend)), ["b1", "b2"].into());
}

#[test]
fn what_somebody_takes_from_the_checks_tunnel_is_put_back_and_no_backend_is_lost_for_good() {
    let scene = Scene::with(checked);
    let ns = &scene.bed.balancers[0].ns;
    let ip = |args: &[&str]| ns.text("ip", args).unwrap_or_default();
    let rules = || ip(&["rule"]).lines().filter(|line| line.starts_with("83:")).count();
    let is_up = || ip(&["link", "show", "sluicegate0"]).contains(",UP");
    assert_eq!((rules(), is_up()), (1, true));
    ip(&["rule", "del", "prio", "83"]);
    eventually(BOUND, || (rules() == 1).then_some(())).expect("the rule is back");
    ip(&["link", "set", "sluicegate0", "down"]);
    let routes = || ip(&["route", "show", "table", "8300"]);
    eventually(BOUND, || (is_up() && routes().contains("sluicegate0")).then_some(())).expect("up again");
    ip(&["link", "del", "sluicegate0"]);
    eventually(BOUND, || is_up().then_some(())).expect("there is a new device");
    for backend in ["b1", "b2", "b3"] {
        becomes(&scene, backend, "serving");
    }
    assert_eq!(names(scene.ask(true, 60).iter().map(|reply| &reply.backend)).len(), 3);
}

#[test]
fn a_machine_whose_vip_has_no_backend_is_not_ready_and_says_which() {
    let scene = Scene::with(checked);
    assert_eq!(scene.balancer.ask_plainly("/readyz").unwrap().0, 200);
    for backend in ["b1", "b2", "b3"] {
        ordered(&scene, &["backend", "down", backend]);
    }
    let reported = eventually(BOUND, || {
        let (status, words) = scene.balancer.ask_plainly("/readyz").unwrap();
        (status == 503).then_some(words)
    });
    assert!(reported.unwrap().contains("no backend serves VIP www"));
    ordered(&scene, &["backend", "up", "b1"]);
    let ready = eventually(BOUND, || (scene.balancer.ask_plainly("/readyz").unwrap().0 == 200).then_some(()));
    assert!(ready.is_some(), "{}", scene.diagnosis());
}

#[test]
fn an_operator_sees_and_changes_everything_by_the_command_line() {
    let mut scene = Scene::with(checked);
    let mut flows = scene.flows(true, 30);
    let before = scene.round(&mut flows);
    let status = ordered(&scene, &["status"]);
    assert_eq!((&status["ready"], &status["generation"]), (&true.into(), &1.into()), "{status:#}");
    assert_eq!(status["backends"]["serving"], 3);
    assert_eq!(status["drift"], "in_sync");
    let listed = ordered(&scene, &["flow", "list", "--vip", "www"]);
    let udp =
        listed["flows"].as_array().unwrap().iter().filter(|flow| flow["service"] == "www udp 53").count();
    assert_eq!(udp, before.len(), "{listed:#}");
    // The weight of one goes to 0: its flows stay, and are then purged.
    ordered(&scene, &["backend", "weight", "b1", "0"]);
    assert_eq!(scene.round(&mut flows), before);
    // The answer does not wait for the tables, which are built anew elsewhere.
    let left = || !names(scene.ask(true, 60).iter().map(|reply| &reply.backend)).contains("b1");
    assert!(eventually(BOUND, || left().then_some(())).is_some(), "{}", scene.diagnosis());
    let on_b1 = before.iter().filter(|backend| *backend == "b1").count() as u64;
    let purged = ordered(&scene, &["flow", "purge", "--backend", "b1"]);
    assert!(purged["flows"].as_u64().unwrap() >= on_b1, "{purged}");
    assert!(!scene.round(&mut flows).iter().any(|backend| backend == "b1"));
    // Orders outlive a reload, and show.
    let line = scene.balancer.reload(&scene.bed, &checked(&scene.bed).weights(&[1, 1, 2])).unwrap();
    assert!(line.contains("reloaded"), "{line}");
    let status = ordered(&scene, &["status"]);
    assert_eq!(status["overrides"][0]["backend"], "b1", "{status:#}");
    ordered(&scene, &["backend", "up", "b1"]);
    assert_eq!(ordered(&scene, &["status"])["overrides"], Value::Array(vec![]));
    // Down: its flows go at their next packet.
    let now = scene.round(&mut flows);
    ordered(&scene, &["backend", "down", "b2"]);
    let moved = scene.round(&mut flows);
    assert!(!moved.iter().any(|backend| backend == "b2"));
    for (old, new) in now.iter().zip(&moved) {
        assert!(old == new || old == "b2", "{old} moved to {new}");
    }
    let health = ordered(&scene, &["health", "list"]);
    assert_eq!(
        health["targets"].as_array().unwrap().len(),
        3 + 3 * 2,
        "each backend straight, and by both VIPs"
    );
    let live =
        ordered(&scene, &["where", "--live", "192.0.2.77:1234", &scene.bed.vip(true, 80).to_string(), "tcp"]);
    assert_eq!(live["threads"][0]["verdict"], "forward", "{live:#}");
}

#[test]
fn a_configuration_is_put_only_where_the_file_allows_it_and_the_file_wins_again() {
    let mut scene = Scene::with(|bed| LbConfig { admin: "put = true".into(), ..checked(bed) });
    let socket = LbConfig::admin_socket(&scene.bed, 0);
    let seen = ordered(&scene, &["config", "get"]);
    let etag = seen["etag"].as_str().unwrap().to_owned();
    let allowed = |bed: &Bed| LbConfig { admin: "put = true".into(), ..checked(bed) };
    let wanted = allowed(&scene.bed).weights(&[1, 0, 0]).toml(&scene.bed, 0);
    let file = scene.bed.dir().join("put.toml");
    std::fs::write(&file, wanted).unwrap();
    let put = |etag: &str| {
        let args = ["config", "put", file.to_str().unwrap(), "--if-match", etag, "--json", "--socket"];
        verb(&scene.bed, &[&args[..], &[socket.to_str().unwrap()]].concat())
    };
    let stale = put("no-such-generation");
    assert!(stale.code != Some(0), "{}", stale.out);
    let taken = put(&etag);
    assert!(taken.code == Some(0), "{}{}", taken.out, taken.err);
    assert_eq!(names(scene.ask(true, 20).iter().map(|reply| &reply.backend)), ["b1"].into());
    assert_eq!(ordered(&scene, &["status"])["drift"], "api");
    assert!(put(&etag).code != Some(0), "the generation is another now");
    let config = allowed(&scene.bed);
    scene.balancer.reload(&scene.bed, &config).unwrap();
    assert_eq!(ordered(&scene, &["status"])["drift"], "in_sync");
    assert_eq!(names(scene.ask(true, 60).iter().map(|reply| &reply.backend)).len(), 3);
}

#[test]
fn a_change_of_the_file_is_taken_up_when_the_file_says_so_a_thousand_replacements_too() {
    let watched = |bed: &Bed, weights: &[u32]| {
        let cluster = "drain_time = \"0s\"\nwatch = true".into();
        LbConfig { cluster, ..LbConfig::new(bed) }.weights(weights)
    };
    let mut scene = Scene::with(|bed| watched(bed, &[1, 1, 1]));
    let (file, next) = (scene.bed.dir().join("lb1.toml"), scene.bed.dir().join("next"));
    let replace = |weights: &[u32]| {
        std::fs::write(&next, watched(&scene.bed, weights).toml(&scene.bed, 0)).unwrap();
        std::fs::rename(&next, &file).unwrap();
    };
    let seen = scene.balancer.process.line_count();
    replace(&[1, 0, 0]);
    scene.balancer.process.wait_for_line_after(seen, BOUND, |line| line.contains("reloaded")).unwrap();
    assert_eq!(names(scene.ask(true, 20).iter().map(|reply| &reply.backend)), ["b1"].into());
    let start = Instant::now();
    // A writer that a busy machine holds up for that long has rested too.
    let (mut last, mut rests) = (start, 0);
    for n in 0..1_000 {
        replace(&[[1, 1, 1], [2, 1, 1]][n % 2]);
        rests += u64::from(last.elapsed() >= REST);
        last = Instant::now();
        thread::sleep(Duration::from_millis(count(1, 10) as u64));
    }
    replace(&[0, 0, 1]);
    let last = eventually(BOUND, || {
        let replies = scene.ask(true, 20);
        (names(replies.iter().map(|reply| &reply.backend)) == ["b3"].into()).then_some(())
    });
    assert!(last.is_some(), "{}", scene.diagnosis());
    let generation = scene.balancer.counters().unwrap().at(&["generation"]);
    println!("1,000 replacements in {:?}: generation {generation}", start.elapsed());
    // One for each rest, and one for each 10 s without one.
    let most = 10 + rests + start.elapsed().as_secs() / 10;
    assert!(generation < most, "they are taken up once they rest: {generation}, not {most}");
}

/// Just less than a change waits for the next.
const REST: Duration = Duration::from_millis(900);

/// 1,000 VIPs over 200 pools of 100 backends, the promise's measure.
fn large(bed: &Bed, weight: u32) -> LbConfig {
    let mut more = String::new();
    for pool in 0..200 {
        let backends: Vec<String> = (0..100)
            .map(|n| {
                format!(
                    "{{ name = \"p{pool}-{n}\", address = \"2001:db8:2:{pool:x}::{n:x}\", weight = {} }}",
                    { 1 + (n + weight) % 3 }
                )
            })
            .collect();
        more += &format!("[pool.p{pool}]\nbackends = [{}]\n", backends.join(", "));
    }
    for vip in 0..1_000 {
        more += &format!(
            "[vip.v{vip}]\naddresses = [\"2001:db8:1::{vip:x}\"]\nservices = [{{ ports = [80], protocol = \"tcp\", pool = \"p{}\" }}]\n",
            vip % 200
        );
    }
    LbConfig { more, io: "max_vips = 2048".into(), ..LbConfig::new(bed) }
}

#[test]
fn a_thousand_vips_over_two_hundred_pools_are_live_soon_after_a_reload() {
    let mut scene = Scene::with(|bed| large(bed, 0));
    let mut flows = scene.flows(true, 10);
    // On a busy machine a start is over before all of 20,000 next hops are known.
    let resolved = eventually(BOUND, || flows.round().unwrap().iter().all(Option::is_some).then_some(()));
    assert!(resolved.is_some(), "{}", scene.diagnosis());
    let before = scene.round(&mut flows);
    let mut took = Vec::new();
    for weight in 1..=count(3, 10) {
        let config = large(&scene.bed, u32::try_from(weight).unwrap());
        scene.balancer.reload(&scene.bed, &config).unwrap();
        // The control loop of an unoptimised build works for seconds on this, and longer where others have the processors.
        let status = eventually(10 * BOUND, || scene.balancer.ask("/v1/status").ok());
        let status = status.unwrap_or_else(|| panic!("no answer: {}", scene.diagnosis()));
        took.push(status["last_reload"]["took_ms"].as_f64().unwrap());
        assert_eq!(scene.round(&mut flows), before);
    }
    println!(
        "1,000 VIPs, 200 pools of 100 backends, every table another: from file to live in {took:.0?} ms (bar 300)"
    );
}
