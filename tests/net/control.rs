//! Tests of failures and operator commands under steady load: backend failures, drains, broken
//! tunnels, reloads and overrides.
//!
//! The load is 2,000 requests per second. Each request opens a new connection, and half of them use
//! IPv6. Failed requests are recorded with their start time.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;
use testbed::{Bed, BedSpec, Client, Connection, HttpServer, LbConfig, eventually};

use crate::scene::{BOUND, Scene, count, names, verb};

/// Threads that send requests at a constant rate until the handle is dropped.
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

    /// Waits until `requests` more requests have been sent.
    fn more(&self, requests: u64) {
        let goal = self.sent.load(Ordering::Relaxed) + requests;
        eventually(BOUND, || (self.sent.load(Ordering::Relaxed) >= goal).then_some(())).unwrap();
    }

    /// Returns the failures of requests that started at `since` or later.
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

/// The number of threads per address family.
const THREADS: u32 = 2;
/// The total number of requests per second.
const RATE: u32 = 2_000;

fn checked(bed: &Bed) -> LbConfig {
    let mut config = LbConfig::new(bed);
    config.pool_keys = "checks = [\"web\", \"vip\"]".into();
    config.more = CHECKS.into();
    config
}

/// The timeouts are long enough that backends are not marked down while other builds use the
/// machine.
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

/// The maximum time until a failed backend is marked down: `fall` intervals and one timeout,
/// including jitter.
const FOUND_DOWN: Duration = Duration::from_millis(4 * 2_200 + 1_500);

fn state(scene: &Scene, backend: &str) -> Value {
    let rows = scene.balancer.ask("/v1/backends").unwrap();
    rows.as_array().unwrap().iter().find(|row| row["name"] == backend).cloned().unwrap_or_default()
}

/// Waits until a backend has the state `wanted`. Returns the elapsed time.
fn becomes(scene: &Scene, backend: &str, wanted: &str) -> Duration {
    let start = Instant::now();
    let seen = eventually(10 * BOUND, || (state(scene, backend)["state"] == wanted).then_some(()));
    assert!(
        seen.is_some(),
        "{backend} did not become {wanted}, {:#}\n{}",
        state(scene, backend),
        scene.diagnosis()
    );
    start.elapsed()
}

/// Sends a request on each open connection, and returns the backends that answered.
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
fn drain_reports_remaining_flows_and_waits() {
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
    // While flows remain, the drain continues, and the command reports a timeout.
    let socket = LbConfig::admin_socket(&scene.bed, 0);
    let drain = |wait: &[&str]| {
        let args =
            [&["backend", "drain", "b1", "--socket", socket.to_str().unwrap(), "--wait"], wait].concat();
        verb(&scene.bed, &args)
    };
    let ended = drain(&["1s"]);
    let left = format!("b1: {} active flows and 0 idle entries left, the drain continues", on("b1"));
    assert!(ended.code == Some(1) && ended.err.contains(&left), "{}{}", ended.out, ended.err);
    assert_eq!(state(&scene, "b1")["state"], "draining");
    // When the flows end, the command that waits for the drain ends too.
    drop(open);
    let ended = drain(&[]);
    assert_eq!(ended.code, Some(0), "{}{}", ended.out, ended.err);
    assert_eq!(flows("b1"), (0, 0));
}

/// Returns how many flows a backend has, and how many of them use the VIP. Retries, because a busy
/// packet thread might not return its count in time.
fn counted_flows(scene: &Scene, backend: &str) -> (u64, u64) {
    let counted = || {
        let row = state(scene, backend);
        Some((row["flows"].as_u64()?, row["flows_by_vip"]["www"].as_u64().unwrap_or(0)))
    };
    eventually(BOUND, counted).unwrap_or_else(|| panic!("the flows were not counted\n{}", scene.diagnosis()))
}

/// Flow counts are cached for a second. A drain must not use a count from before the drain command,
/// because the drain could end too early.
#[test]
fn drain_ignores_outdated_flow_count() {
    let scene = Scene::with(LbConfig::new);
    let vip = scene.bed.vip(true, Bed::HTTP_PORT);
    assert_eq!(counted_flows(&scene, "b1"), (0, 0));
    let mut open: Vec<_> = (0..20).map(|_| scene.bed.http_client().connect(vip).unwrap()).collect();
    assert!(use_each(&scene, &mut open).iter().any(|backend| backend == "b1"));
    let socket = LbConfig::admin_socket(&scene.bed, 0);
    let args = ["backend", "drain", "b1", "--wait", "1s", "--socket", socket.to_str().unwrap()];
    let ended = verb(&scene.bed, &args);
    assert!(ended.code == Some(1) && ended.err.contains("the drain continues"), "{}{}", ended.out, ended.err);
}

// Promise: backend-failure
#[test]
fn backends_fail_recover_and_drain_under_load() {
    let mut scene = Scene::with(checked);
    assert_eq!(state(&scene, "b2")["state"], "serving", "the backend was not checked before readiness");
    let load = Load::start(&scene);
    load.more(500);
    assert_eq!(load.failed_since(Instant::now() - BOUND), [""; 0]);

    // Step 1: the backend b2 fails.
    let dead = scene.bed.http.remove(1);
    let killed = Instant::now();
    drop(dead);
    becomes(&scene, "b2", "down");
    let found = Instant::now();
    load.more(1_000);
    assert_eq!(load.failed_since(found), [""; 0], "requests failed after b2 was marked down");
    println!(
        "b2 down {:?} after its failure (limit {FOUND_DOWN:?}), {} requests failed",
        found.duration_since(killed),
        load.failed_since(killed).len()
    );

    // Step 2: the backend b2 recovers.
    let returned = Instant::now();
    let server = HttpServer::start(&scene.bed.backends[1].ns, "b2", Bed::HTTP_PORT).unwrap();
    becomes(&scene, "b2", "serving");
    eventually(BOUND, || (server.requests() > 100).then_some(()))
        .expect("b2 receives no requests after its recovery");
    println!("b2 serving {:?} after its recovery", returned.elapsed());
    assert_eq!(load.failed_since(found), [""; 0], "{}", scene.diagnosis());

    // Step 3: the backend b1 is drained. Existing connections stay on b1, and new connections use
    // other backends.
    let vip = scene.bed.vip(true, Bed::HTTP_PORT);
    let mut open: Vec<_> = (0..30).map(|_| scene.bed.http_client().connect(vip).unwrap()).collect();
    let before: Vec<String> = use_each(&scene, &mut open);
    assert!(before.iter().any(|backend| backend == "b1"));
    let change = ordered(&scene, &["backend", "drain", "b1"]);
    assert_eq!(change["memberships"][0]["after"], "draining", "{change:#}");
    load.more(500);
    let after: Vec<String> = use_each(&scene, &mut open);
    assert_eq!(before, after);
    // The new flows use UDP. The load uses so many TCP ports that a reused port could match a
    // closing flow on b1.
    let mut fresh = scene.flows(true, 60);
    assert!(!names(&scene.round(&mut fresh)).contains("b1"));
    assert_eq!(load.failed_since(found), [""; 0], "requests failed during the drain");
    // `undrain` also removes the override that is limited to one pool. A second `undrain` changes
    // nothing.
    ordered(
        &scene,
        &["backend", "drain", "b1", "--pool", change["memberships"][0]["pool"].as_str().unwrap()],
    );
    ordered(&scene, &["backend", "undrain", "b1"]);
    becomes(&scene, "b1", "serving");
    let socket = LbConfig::admin_socket(&scene.bed, 0);
    let again = verb(&scene.bed, &["backend", "undrain", "b1", "--socket", socket.to_str().unwrap()]);
    assert_eq!((again.code, again.out.contains("nothing changed")), (Some(1), true), "{}", again.out);

    // Step 4: reloads, each with changed weights.
    for n in 0..count(20, 100) {
        let config = checked(&scene.bed).weights(&[[1, 5, 1], [9, 1, 2], [1, 1, 1]][n % 3]);
        let line = scene.balancer.reload(&scene.bed, &config).unwrap();
        assert!(line.contains("reloaded"), "{line}");
    }
    let still: Vec<String> = use_each(&scene, &mut open);
    assert_eq!(before, still, "a reload moved an established flow");
    assert_eq!(load.failed_since(found), [""; 0], "requests failed during reloads");
    println!("{} requests in total", load.sent.load(Ordering::Relaxed));
}

#[test]
fn broken_tunnel_marks_backend_down() {
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
    println!("b3 down {took:?} after its tunnel failed, {}", row["checks"][1]["last_error"]);
    let replies = scene.ask(true, 40);
    assert_eq!(names(replies.iter().map(|reply| &reply.backend)), ["b1", "b2"].into());
}

#[test]
fn check_tunnel_is_repaired() {
    let scene = Scene::with(checked);
    let ns = &scene.bed.balancers[0].ns;
    let ip = |args: &[&str]| ns.text("ip", args).unwrap_or_default();
    let rules = || ip(&["rule"]).lines().filter(|line| line.starts_with("83:")).count();
    let is_up = || ip(&["link", "show", "sluicegate0"]).contains(",UP");
    assert_eq!((rules(), is_up()), (1, true));
    ip(&["rule", "del", "prio", "83"]);
    eventually(BOUND, || (rules() == 1).then_some(())).expect("the rule was not restored");
    ip(&["link", "set", "sluicegate0", "down"]);
    let routes = || ip(&["route", "show", "table", "8300"]);
    eventually(BOUND, || (is_up() && routes().contains("sluicegate0")).then_some(()))
        .expect("the device is not up");
    ip(&["link", "del", "sluicegate0"]);
    eventually(BOUND, || is_up().then_some(())).expect("the device was not created again");
    for backend in ["b1", "b2", "b3"] {
        becomes(&scene, backend, "serving");
    }
    assert_eq!(names(scene.ask(true, 60).iter().map(|reply| &reply.backend)).len(), 3);
}

#[test]
fn vip_without_backend_is_not_ready() {
    let scene = Scene::with(checked);
    scene.wait_until_ready();
    for backend in ["b1", "b2", "b3"] {
        ordered(&scene, &["backend", "down", backend]);
    }
    let reported = eventually(BOUND, || {
        let (status, words) = scene.balancer.ask_plainly("/readyz/vip/www").unwrap();
        (status == 503).then_some(words)
    });
    assert!(reported.unwrap().starts_with("not serving: www, no backend for www tcp 80"));
    assert_eq!(scene.balancer.ask_plainly("/readyz").unwrap().0, 200);
    ordered(&scene, &["backend", "up", "b1"]);
    let served = || (scene.balancer.ask_plainly("/readyz/vip/www").unwrap().0 == 200).then_some(());
    assert!(eventually(BOUND, served).is_some());
}

#[test]
fn command_line_shows_and_changes_backends() {
    let mut scene = Scene::with(checked);
    scene.wait_until_ready();
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
    // With weight 0, the existing flows of b1 remain until they are purged.
    ordered(&scene, &["backend", "weight", "b1", "0"]);
    assert_eq!(scene.round(&mut flows), before);
    // The command returns before the Maglev tables are rebuilt.
    let left = || !names(scene.ask(true, 60).iter().map(|reply| &reply.backend)).contains("b1");
    assert!(eventually(BOUND, || left().then_some(())).is_some(), "{}", scene.diagnosis());
    let on_b1 = before.iter().filter(|backend| *backend == "b1").count() as u64;
    let purged = ordered(&scene, &["flow", "purge", "--backend", "b1"]);
    assert!(purged["flows"].as_u64().unwrap() >= on_b1, "{purged}");
    assert!(!scene.round(&mut flows).iter().any(|backend| backend == "b1"));
    // Overrides survive a reload and appear in the list of overrides.
    let line = scene.balancer.reload(&scene.bed, &checked(&scene.bed).weights(&[1, 1, 2])).unwrap();
    assert!(line.contains("reloaded"), "{line}");
    let status = ordered(&scene, &["status"]);
    assert_eq!(status["overrides"][0]["backend"], "b1", "{status:#}");
    ordered(&scene, &["backend", "up", "b1"]);
    assert_eq!(ordered(&scene, &["status"])["overrides"], Value::Array(vec![]));
    // When b2 is down, its flows move with their next packet.
    let now = scene.round(&mut flows);
    ordered(&scene, &["backend", "down", "b2"]);
    let mut moved = vec![];
    let left = eventually(BOUND, || {
        moved = scene.round(&mut flows);
        (!moved.iter().any(|backend| backend == "b2")).then_some(())
    });
    assert!(left.is_some(), "{}", scene.diagnosis());
    for (old, new) in now.iter().zip(&moved) {
        assert!(old == new || old == "b2", "a flow moved from {old} to {new}");
    }
    let health = ordered(&scene, &["health", "list"]);
    assert_eq!(
        health["targets"].as_array().unwrap().len(),
        3 + 3 * 2,
        "the checks of a backend are incomplete"
    );
    let live =
        ordered(&scene, &["where", "--live", "192.0.2.77:1234", &scene.bed.vip(true, 80).to_string(), "tcp"]);
    assert_eq!(live["threads"][0]["verdict"], "forward", "{live:#}");
}

#[test]
fn config_put_requires_permission() {
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
    assert!(put(&etag).code != Some(0), "`config put` with an old generation must fail");
    let config = allowed(&scene.bed);
    scene.balancer.reload(&scene.bed, &config).unwrap();
    assert_eq!(ordered(&scene, &["status"])["drift"], "in_sync");
    assert_eq!(names(scene.ask(true, 60).iter().map(|reply| &reply.backend)).len(), 3);
}

#[test]
fn config_file_changes_are_watched() {
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
    // The balancer reloads a changed file after the file has stayed unchanged for about a second.
    // If a busy machine delays the writer for that long, a reload is allowed.
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
    println!("1,000 replacements of the file in {:?} gave generation {generation}", start.elapsed());
    // At most one reload is allowed for each such pause, and one for every 10 s.
    let most = 10 + rests + start.elapsed().as_secs() / 10;
    assert!(generation < most, "too many reloads, generation {generation} exceeds {most}");
}

/// Slightly less than the time for which the file must stay unchanged before the balancer reloads
/// it.
const REST: Duration = Duration::from_millis(900);

/// Returns a configuration with 1,000 VIPs and 200 pools of 100 backends each, which is the size
/// that docs/promises.md states.
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
fn reload_of_a_thousand_vips_is_fast() {
    let mut scene = Scene::with(|bed| large(bed, 0));
    let mut flows = scene.flows(true, 10);
    // On a busy machine, the balancer may be ready before all 20,000 next hops are resolved.
    // Packets to backends whose next hop is not resolved yet are lost.
    let resolved = eventually(BOUND, || flows.round().unwrap().iter().all(Option::is_some).then_some(()));
    assert!(resolved.is_some(), "{}", scene.diagnosis());
    let before = scene.round(&mut flows);
    let mut took = Vec::new();
    for weight in 1..=count(3, 10) {
        let config = large(&scene.bed, u32::try_from(weight).unwrap());
        scene.balancer.reload(&scene.bed, &config).unwrap();
        // In an unoptimized build, the reload occupies the control loop for seconds, or for longer
        // on a busy machine. The admin API does not respond during that time.
        let status = eventually(10 * BOUND, || scene.balancer.ask("/v1/status").ok());
        let status = status.unwrap_or_else(|| panic!("no response\n{}", scene.diagnosis()));
        took.push(status["last_reload"]["took_ms"].as_f64().unwrap());
        assert_eq!(scene.round(&mut flows), before);
    }
    println!(
        "reload with 1,000 VIPs, 200 pools of 100 backends and all tables changed took {took:.0?} ms (limit 300)"
    );
}
