//! Routes while a new process takes over: bird and FRR keep them, and have its session a moment later.

use std::fmt::Write as _;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde_json::Value;
use testbed::{
    Balancer, Bed, BedSpec, CLUSTER_ASN, Decap, Downloads, Ended, LbConfig, Process, ROUTER_ASN, Router,
    RouterKind, RouterSession, eventually,
};

use crate::scene::{BOUND, broken};

/// Dropped in this order.
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
             hold_time = \"9s\"\nlongest_retry = \"2s\"\n{peer}"
        );
    }
    LbConfig { vip_keys: "announce = {}".into(), more, ..LbConfig::new(bed) }
}

fn session(ipv4: bool) -> RouterSession {
    RouterSession { key: "", ..RouterSession::new(1, ipv4) }
}

impl Scene {
    fn new(kind: RouterKind, own: &str) -> Self {
        let bed = Bed::new(&BedSpec { queues: 2, ..BedSpec::default() }).unwrap();
        let router = Router::start(&bed, kind, &[session(true), session(false)]).unwrap();
        let decaps = Decap::start_all(&bed).unwrap();
        let lb = Balancer::start_with_heirs(&bed, 0, &config(&bed, own, ""), &[]).unwrap();
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
}

/// How many looks at a router's table there were, all of which found both routes.
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
    std::thread::scope(|threads| {
        let watcher = threads.spawn(|| {
            let mut looks = 0;
            while !over.load(Ordering::Relaxed) {
                assert!(has(scene), "a route has gone\n{}", scene.router.tail());
                looks += 1;
            }
            looks
        });
        during();
        over.store(true, Ordering::Relaxed);
        watcher.join().unwrap()
    })
}

fn routes_stay(kind: RouterKind) {
    let scene = Scene::new(kind, "graceful_restart = \"30s\"");
    let start = |ipv4| {
        let vip = scene.bed.vip(ipv4, Bed::HTTP_PORT);
        Downloads::start(&scene.bed.client.ns, vip, 20, Duration::from_secs(8))
    };
    let downloads = [start(true), start(false)];
    let begun = || (downloads.iter().map(Downloads::begun).sum::<usize>() == 40).then_some(());
    assert!(eventually(BOUND, begun).is_some());
    for _ in 0..2 {
        let looks = stay(&scene, kind, || {
            let ended = scene.verb(&["machine", "upgrade"]);
            assert_eq!(ended.code, Some(0), "{}{}\n{}", ended.out, ended.err, scene.lb.process.tail());
            let since = Instant::now();
            scene.has_sessions();
            println!("{kind:?}: sessions {:?} after {}", since.elapsed(), ended.out.trim());
            // The End-of-RIB, after which a router forgets what it was not told again.
            std::thread::sleep(Duration::from_secs(1));
        });
        println!("{kind:?}: both routes in {looks} looks");
        assert!(looks > 3, "{looks}");
    }
    let (count, broken) = broken(downloads);
    assert!(broken.is_empty(), "of {count}: {broken:?}");
}

#[test]
fn bird_keeps_the_routes_while_a_new_process_takes_over() {
    routes_stay(RouterKind::Bird);
}

#[test]
fn frr_keeps_the_routes_while_a_new_process_takes_over() {
    routes_stay(RouterKind::Frr);
}

#[test]
fn where_routers_would_drop_the_routes_a_new_process_is_refused() {
    let scene = Scene::new(RouterKind::Bird, "");
    let refused = |words: &str| {
        let ended = scene.verb(&["machine", "upgrade"]);
        assert_eq!(ended.code, Some(1), "{}", ended.out);
        assert!(ended.err.contains(words), "{words}: {}", ended.err);
    };
    refused("set bgp.graceful_restart and reload");
    let reload = |peer: &str| {
        let mut config = config(&scene.bed, "graceful_restart = \"30s\"", peer);
        // The sessions of before go on for so long.
        config.more = config.more.replace("graceful_shutdown = \"1s\"", "graceful_shutdown = \"600s\"");
        config.write(&scene.bed, 0).unwrap();
        assert_eq!(scene.verb(&["config", "reload"]).code, Some(0));
    };
    reload("");
    refused("has not agreed in this session to keep routes");
    reload("bfd = { interval = \"100ms\", multiplier = 5 }\n");
    refused("BFD would tell routers");
    scene.has_sessions();
}
