//! Tests of BGP and BFD during an upgrade. BIRD and FRR must keep the routes and establish a
//! session with the new process. The BFD session must continue without an interruption that they
//! could detect.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;
use std::net::IpAddr;
use std::os::unix::fs::PermissionsExt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde_json::Value;
use testbed::{
    Balancer, Bed, BedSpec, CLUSTER_ASN, Capture, Decap, Downloads, Ended, LbConfig, Process, ROUTER_ASN,
    Router, RouterKind, RouterSession, eventually,
};

use crate::scene::{BOUND, broken};

/// A balancer with a router. Fields are dropped in this order.
struct Scene {
    lb: Balancer,
    router: Router,
    _decaps: Vec<Decap>,
    bed: Bed,
}

fn config(bed: &Bed, own: &str, peer: &str) -> LbConfig {
    let mut more = format!("[bgp]\nasn = {CLUSTER_ASN}\ngraceful_shutdown = \"1s\"\n{own}\n");
    for session in [RouterSession::new(1, true), RouterSession::new(1, false)] {
        let ((router, _), name) = (session.ends(), session.name());
        let family = if session.ipv4 { "ipv4" } else { "ipv6" };
        let _ = writeln!(
            more,
            "[[bgp.peers]]\nname = \"{name}\"\naddress = \"{router}\"\nasn = {ROUTER_ASN}\nfamilies = [\"{family}\"]\n\
             hold_time = \"9s\"\nmax_retry = \"2s\"\n{peer}"
        );
    }
    LbConfig { vip_keys: "announce = {}".into(), more, ..LbConfig::new(bed) }
}

fn session(ipv4: bool) -> RouterSession {
    RouterSession { key: "", ..RouterSession::new(1, ipv4) }
}

impl Scene {
    fn new(kind: RouterKind, own: &str, peer: &str) -> Self {
        let bed = Bed::new(&BedSpec { queues: 2, ..BedSpec::default() }).unwrap();
        let router = Router::start(&bed, kind, &[session(true), session(false)]).unwrap();
        let decaps = Decap::start_all(&bed).unwrap();
        let lb = Balancer::start_with_heirs(&bed, 0, &config(&bed, own, peer), &[]).unwrap();
        let scene = Self { lb, router, _decaps: decaps, bed };
        scene.has_sessions();
        scene
    }

    fn verb(&self, words: &[&str]) -> Ended {
        let socket = LbConfig::admin_socket(&self.bed, 0).to_string_lossy().into_owned();
        let args = [words, &["--socket", &socket]].concat();
        Process::to_end(&self.bed.balancers[0].ns, self.bed.program().unwrap(), &args, 3 * BOUND).unwrap()
    }

    fn has_sessions(&self) {
        let are_up = || {
            let view = self.lb.ask("/v1/bgp").ok()?;
            let peers = view["peers"].as_array()?;
            let routes = |peer: &Value| peer["announced_v4"].as_u64().zip(peer["announced_v6"].as_u64());
            let is_up = |peer: &Value| {
                peer["state"] == "Established" && routes(peer).is_some_and(|(v4, v6)| v4 + v6 == 1)
            };
            (peers.len() == 2 && peers.iter().all(is_up)).then_some(())
        };
        assert!(
            eventually(2 * BOUND, are_up).is_some(),
            "{}\n{}",
            self.lb.process.tail(),
            self.router.tail()
        );
    }

    /// Returns the state and the number of losses that the balancer reports for each BFD session.
    fn bfd(&self) -> Vec<(String, u64)> {
        let view = self.lb.ask("/v1/bgp").unwrap();
        let peers = view["peers"].as_array().unwrap();
        let row = |peer: &Value| {
            let state = peer["bfd"]["state"].as_str().unwrap_or_default().to_owned();
            (state, peer["bfd"]["losses"].as_u64().unwrap_or(u64::MAX))
        };
        peers.iter().map(row).collect()
    }

    fn has_bfd(&self) {
        let are_up = || self.bfd().iter().all(|(state, _)| state == "Up").then_some(());
        assert!(
            eventually(BOUND, are_up).is_some(),
            "{:?}\n{}\n{}",
            self.bfd(),
            self.lb.process.tail(),
            self.router.tail()
        );
    }

    /// Writes a script that starts the balancer with a limit on open file descriptors.
    fn with_descriptors(&self, count: u32) -> String {
        let path = self.bed.dir().join("short");
        let program = self.bed.program().unwrap();
        let text = format!("#!/bin/sh\nulimit -n {count}\nexec {} \"$@\"\n", program.display());
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        path.to_string_lossy().into_owned()
    }
}

/// A capture of the BFD packets that the router receives from the balancer.
struct Heard(Capture);

impl Heard {
    fn start(bed: &Bed) -> Self {
        let is_bfd = |bytes: &[u8]| bfd_packet(bytes).is_some();
        Self(Capture::start(&bed.router, &bed.balancers[0].port, 1 << 16, is_bfd).unwrap())
    }

    /// Checks that each address family has one source port and one discriminator, and that all
    /// packets have the state Up. Returns the number of packets.
    fn is_of_one_session_each(&self) -> usize {
        let frames = self.0.frames();
        let all: Vec<_> = frames.iter().filter(|frame| !frame.outgoing).collect();
        let mut known = BTreeSet::new();
        for frame in &all {
            let (port, control) = bfd_packet(&frame.bytes).unwrap();
            assert_eq!(
                (control[1] >> 6, control[0] & 0x1f),
                (3, 0),
                "unexpected state or diagnostic in {control:02x?}"
            );
            known.insert((port, control[4..8].to_vec()));
        }
        assert_eq!(known.len(), 2, "expected one session per family, found {known:02x?}");
        assert_eq!(self.0.beyond_limit(), 0);
        all.len()
    }
}

/// Returns the UDP source port and the payload of a BFD frame, or `None` for other frames.
fn bfd_packet(frame: &[u8]) -> Option<(u16, &[u8])> {
    let udp = match frame.get(12..14)? {
        [0x08, 0x00] if frame.get(23) == Some(&17) => frame.get(34..)?,
        [0x86, 0xdd] if frame.get(20) == Some(&17) => frame.get(54..)?,
        _ => return None,
    };
    let port = |at: usize| Some(u16::from_be_bytes(udp.get(at..at + 2)?.try_into().ok()?));
    (port(2)? == 3784).then_some((port(0)?, udp.get(8..32)?))
}

/// Returns the router's BFD sessions, which must be up. For BIRD, the number is the start time of
/// the session. For FRR it is always 0, and the text contains the number of times that the session
/// went up and down.
fn router_bfd(scene: &Scene, kind: RouterKind) -> Vec<(String, f64)> {
    let question =
        if kind == RouterKind::Bird { "show bfd sessions" } else { "show bfd peers counters json" };
    let is_of = |line: &str, peer: IpAddr| line.split_whitespace().next() == Some(&peer.to_string());
    let text = scene.router.ask(question).unwrap();
    let peers = [true, false].map(|ipv4| session(ipv4).ends().1);
    if kind == RouterKind::Bird {
        let lines = text.lines().filter(|line| peers.iter().any(|peer| is_of(line, *peer)));
        // The columns are address, interface, state and start time. BIRD computes the start time
        // for each query, so it varies by a millisecond.
        let row = |line: &str| {
            let words: Vec<&str> = line.split_whitespace().take(4).collect();
            let since = words.last().copied().and_then(seconds).unwrap_or_else(|| panic!("{text}"));
            (words[..3].join(" "), since)
        };
        let rows: Vec<(String, f64)> = lines.map(row).collect();
        assert!(rows.len() == 2 && rows.iter().all(|(row, _)| row.ends_with(" Up")), "{text}");
        return rows;
    }
    let rows: Value = serde_json::from_str(&text).unwrap();
    let known = ["peer", "session-up", "session-down"];
    let row = |row: &Value| known.map(|key| row[key].to_string()).join(" ");
    let mut rows: Vec<String> = rows.as_array().unwrap().iter().map(row).collect();
    rows.sort();
    assert!(rows.len() == 2 && rows.iter().all(|row| row.ends_with(" 1 0")), "{text}");
    rows.into_iter().map(|row| (row, 0.0)).collect()
}

/// Converts a time of day in BIRD's format to seconds since midnight.
fn seconds(time: &str) -> Option<f64> {
    time.split(':').try_fold(0.0, |sum, part| Some(sum * 60.0 + part.parse::<f64>().ok()?))
}

/// Returns `true` if both lists have the same sessions with the same start times.
fn are_same(before: &[(String, f64)], after: &[(String, f64)]) -> bool {
    let same =
        |((a, since), (b, later)): (&(String, f64), &(String, f64))| a == b && (since - later).abs() < 0.1;
    before.len() == after.len() && before.iter().zip(after).all(same)
}

/// Checks the router's routing table again and again during an action. The routes to both VIPs must
/// always exist. Returns the number of checks.
fn stay(scene: &Scene, kind: RouterKind, during: impl FnOnce()) -> usize {
    let questions = match kind {
        RouterKind::Bird => ["show route table master4", "show route table master6"],
        RouterKind::Frr | RouterKind::Gobgp => ["show bgp ipv4 unicast", "show bgp ipv6 unicast"],
    };
    let vips = scene.bed.spec.vips.clone();
    let has = |scene: &Scene| {
        questions.iter().zip(&vips).all(|(question, vip)| {
            scene.router.ask(question).is_ok_and(|table| table.contains(&format!("{vip}/")))
        })
    };
    assert!(eventually(BOUND, || has(scene).then_some(())).is_some(), "{}", scene.router.tail());
    let over = AtomicBool::new(false);
    /// Ends the checks even if `during` panics. Otherwise the scope would wait forever for the
    /// thread that performs the checks.
    struct Over<'a>(&'a AtomicBool);
    impl Drop for Over<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }
    std::thread::scope(|threads| {
        let watcher = threads.spawn(|| {
            let mut looks = 0;
            while !over.load(Ordering::Relaxed) {
                assert!(has(scene), "a route was removed\n{}", scene.router.tail());
                looks += 1;
            }
            looks
        });
        let ends = Over(&over);
        during();
        drop(ends);
        watcher.join().unwrap()
    })
}

/// The BFD session fails after three seconds without packets. The routers have the same limit.
const BFD: &str = "bfd = { interval = \"100ms\", multiplier = 30 }\n";
const RESTARTS: &str = "graceful_restart = \"30s\"";

fn downloads(scene: &Scene, length: Duration) -> [Downloads; 2] {
    let start = |ipv4| {
        let vip = scene.bed.vip(ipv4, Bed::HTTP_PORT);
        Downloads::start(&scene.bed.client.ns, vip, 20, length)
    };
    let downloads = [start(true), start(false)];
    let begun = || (downloads.iter().map(Downloads::begun).sum::<usize>() == 40).then_some(());
    assert!(eventually(BOUND, begun).is_some());
    downloads
}

fn routes_stay(kind: RouterKind, peer: &str) {
    let scene = Scene::new(kind, RESTARTS, peer);
    let downloads = downloads(&scene, Duration::from_secs(8));
    for _ in 0..2 {
        let looks = stay(&scene, kind, || {
            let ended = scene.verb(&["machine", "upgrade"]);
            assert_eq!(ended.code, Some(0), "{}{}\n{}", ended.out, ended.err, scene.lb.process.tail());
            let ready = scene.lb.ask_plainly("/readyz").unwrap();
            assert_eq!(ready.0, 200, "{}, although the router keeps the routes", ready.1);
            let since = Instant::now();
            scene.has_sessions();
            println!("{kind:?}: sessions {:?} after {}", since.elapsed(), ended.out.trim());
            // The pause includes the End-of-RIB marker, after which a router removes stale routes.
            std::thread::sleep(Duration::from_secs(1));
        });
        println!("{kind:?} had both routes in {looks} checks");
        assert!(looks > 3, "{looks}");
    }
    let (count, broken) = broken(downloads);
    assert!(broken.is_empty(), "of {count}: {broken:?}");
}

#[test]
fn upgrade_keeps_routes_in_bird() {
    routes_stay(RouterKind::Bird, "");
}

#[test]
fn upgrade_keeps_routes_in_frr() {
    routes_stay(RouterKind::Frr, "");
}

/// Upgrades, and then attempts upgrades that fail at every step after the BFD handover begins. Each
/// attempt is allowed to open one more file descriptor than the previous attempt.
fn bfd_stays(kind: RouterKind) {
    let scene = Scene::new(kind, RESTARTS, BFD);
    scene.has_bfd();
    let downloads = downloads(&scene, Duration::from_secs(30));
    let (heard, before) = (Heard::start(&scene.bed), router_bfd(&scene, kind));
    let as_it_was = || {
        scene.has_sessions();
        assert_eq!(scene.bfd(), [("Up".to_owned(), 0), ("Up".to_owned(), 0)], "{}", scene.lb.process.tail());
        let after = router_bfd(&scene, kind);
        assert!(are_same(&before, &after), "{before:?} {after:?}\n{}", scene.router.tail());
    };
    stay(&scene, kind, || {
        for _ in 0..2 {
            let ended = scene.verb(&["machine", "upgrade"]);
            assert_eq!(ended.code, Some(0), "{}{}\n{}", ended.out, ended.err, scene.lb.process.tail());
            as_it_was();
            std::thread::sleep(Duration::from_secs(1)); // includes the End-of-RIB marker
            as_it_was();
        }
        let words = fail_at_each_step(&scene, as_it_was);
        let at = |step: &str| words.iter().any(|words| words.contains(step));
        assert!(at("descriptors are missing"), "no attempt failed during the BFD handover {words:#?}");
        assert!(
            at("BFD sessions of the previous process"),
            "no attempt failed after the BFD handover {words:#?}"
        );
        assert!(at("cannot create the BGP thread"), "no attempt failed at the BGP thread {words:#?}");
    });
    println!("{kind:?} received {} packets of two sessions", heard.is_of_one_session_each());
    let silent: Vec<_> = scene
        .lb
        .process
        .lines()
        .into_iter()
        .filter(|line| line.text.contains("BFD sessions handed over"))
        .collect();
    println!("{silent:#?}");
    assert!(silent.len() > 2, "{silent:?}");
    let (count, broken) = broken(downloads);
    assert!(broken.is_empty(), "of {count}: {broken:?}");
}

/// Attempts upgrades with a growing limit on open files until one succeeds. Returns the error
/// messages.
fn fail_at_each_step(scene: &Scene, as_it_was: impl Fn()) -> Vec<String> {
    let (mut words, mut descriptors) = (Vec::new(), 40);
    loop {
        let ended = scene.verb(&["machine", "upgrade", &scene.with_descriptors(descriptors)]);
        if ended.code == Some(0) {
            return words; // the new process has no free descriptor left to answer requests
        }
        as_it_was();
        println!("{descriptors} descriptors: {}", ended.err.trim());
        assert!(descriptors < 200, "{}", ended.err);
        words.push(ended.err);
        descriptors += 1;
    }
}

// Promise: upgrade-routes
#[test]
fn upgrade_keeps_bfd_session_with_bird() {
    bfd_stays(RouterKind::Bird);
}

// Promise: upgrade-routes
#[test]
fn upgrade_keeps_bfd_session_with_frr() {
    bfd_stays(RouterKind::Frr);
}

#[test]
fn upgrade_without_graceful_restart_is_rejected() {
    let scene = Scene::new(RouterKind::Bird, "", "");
    let refused = |words: &str| {
        let ended = scene.verb(&["machine", "upgrade"]);
        assert_eq!(ended.code, Some(1), "{}", ended.out);
        assert!(ended.err.contains(words), "{words}: {}", ended.err);
    };
    refused("set bgp.graceful_restart and reload");
    let mut config = config(&scene.bed, RESTARTS, "");
    // The old sessions stay established during this time, because they end only after
    // `graceful_shutdown`.
    config.more = config.more.replace("graceful_shutdown = \"1s\"", "graceful_shutdown = \"600s\"");
    config.write(&scene.bed, 0).unwrap();
    assert_eq!(scene.verb(&["config", "reload"]).code, Some(0));
    refused("did not negotiate graceful restart (RFC 4724) in this session");
    scene.has_sessions();
}

#[test]
fn upgrade_with_too_fast_bfd_is_rejected() {
    // Because of jitter, the interval between two packets is at most 810 ms. The router waits for
    // 900 ms, so it tolerates an interruption of 90 ms.
    let scene = Scene::new(RouterKind::Bird, RESTARTS, "bfd = { interval = \"900ms\", multiplier = 1 }\n");
    // On a busy machine, the router may miss a packet, and the BFD session starts again.
    let refused = || {
        scene.has_bfd();
        let ended = scene.verb(&["machine", "upgrade"]);
        let has_words = ended.err.contains("tolerates 90 ms of silence, but a handover may take 100 ms");
        (ended.code == Some(1) && has_words).then_some(())
    };
    assert!(eventually(BOUND, refused).is_some(), "{}", scene.lb.process.tail());
    scene.has_sessions();
}
