//! Tests of stalled machines: packet threads that stop for a short time or for good, and processes
//! that stop as a whole.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{JoinHandle, sleep};
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use serde_json::Value;
use testbed::{Bed, LbConfig, Process, Router, RouterKind as Kind, RouterSession, Stall, eventually};

use crate::scene::{BOUND, Scene, config};

/// Clients that send requests over IPv4 and IPv6 until they are told to end.
struct Clients {
    end: Arc<AtomicBool>,
    threads: Vec<JoinHandle<(usize, Vec<String>)>>,
}

impl Clients {
    fn start(scene: &Scene) -> Self {
        let end = Arc::new(AtomicBool::new(false));
        let one = |number: usize| {
            let (client, vip) =
                (scene.bed.http_client(), scene.bed.vip(number.is_multiple_of(2), Bed::HTTP_PORT));
            let end = Arc::clone(&end);
            std::thread::spawn(move || {
                let (mut count, mut failed) = (0, Vec::new());
                while !end.load(Ordering::Relaxed) {
                    count += 1;
                    failed.extend(client.get(vip, "/").err().map(|why| format!("{vip}: {why}")));
                    sleep(Duration::from_millis(20));
                }
                (count, failed)
            })
        };
        Self { threads: (0..8).map(one).collect(), end }
    }

    /// Waits for the last responses. Returns the number of requests, and the failures.
    fn end(self) -> (usize, Vec<String>) {
        self.end.store(true, Ordering::Relaxed);
        let results: Vec<_> = self.threads.into_iter().map(|thread| thread.join().unwrap()).collect();
        let count = results.iter().map(|(count, _)| count).sum();
        (count, results.into_iter().flat_map(|(_, failed)| failed).collect())
    }
}

/// Starts the fixture. A withdrawal that starts a hold-down would fail the test by timeout.
fn stalled_scene(kind: Kind, max_stall: &str, bfd: &str) -> Scene {
    let with_stall = |bed: &Bed| {
        let config = config(bed);
        let more = config.more.replace("hold_down = \"1s\"", &format!("hold_down = \"1h\"\n{max_stall}"));
        LbConfig { more: more.replace(BFD, bfd), ..config }
    };
    let router = |bed: &Bed| Router::start(bed, kind, &RouterSession::all()).unwrap();
    let scene = Scene::with(router, with_stall);
    scene.wait_for_next_hops(2);
    scene.wait_for_agreement();
    scene
}

/// Waits until a machine announces the VIP without the graceful-shutdown community.
fn wait_for_announcement(scene: &Scene, index: usize) -> Value {
    let mut last = Value::Null;
    let found = eventually(BOUND, || {
        last = scene.machines[index].as_ref().unwrap().ask("/v1/bgp").unwrap()["vips"][0].take();
        (last["state"] == "announced").then_some(())
    });
    assert!(found.is_some(), "{last:#}");
    last
}

fn said(scene: &mut Scene, index: usize, what: &str) -> usize {
    scene.machine(index).process.lines().iter().filter(|line| line.text.contains(what)).count()
}

/// Stalls the packet threads of both machines three times.
fn short_stalls(kind: Kind) {
    // A pause of the test machine must not turn a short stall into a long one.
    let mut scene = stalled_scene(kind, "max_stall = \"1m\"", BFD);
    // The kernel reports each removed route. It also reports a replaced IPv6 route as removed.
    let monitor = Process::start(&scene.bed.router, "monitor", "ip", &["-4", "monitor", "route"]).unwrap();
    let clients = Clients::start(&scene);
    let processes = [0, 1].map(|index| scene.machine(index).process.id());
    for _ in 0..3 {
        sleep(Duration::from_millis(500));
        let stall = Stall::begin(&processes, "packet-").unwrap();
        sleep(Duration::from_millis(1_300));
        drop(stall);
        for index in [0, 1] {
            wait_for_announcement(&scene, index);
        }
        scene.wait_for_next_hops(2);
    }
    let (count, failed) = clients.end();
    let marks = [0, 1].map(|index| said(&mut scene, index, "VIP marked for graceful shutdown"));
    println!("{} of {count} requests failed, VIPs were marked {marks:?} times", failed.len());
    for index in [0, 1] {
        let vip = wait_for_announcement(&scene, index);
        assert_eq!(vip["withdrawals"], 0, "{vip:#}\n{}", scene.machine(index).process.tail());
    }
    let removed: Vec<_> =
        monitor.lines().into_iter().filter(|line| line.text.starts_with("Deleted")).collect();
    assert!(removed.is_empty(), "{removed:?}");
    assert!(failed.len() * 100 < count, "{count} requests, {failed:?}");
}

// Promise: forwarder-stall
#[test]
fn bird_keeps_routes_during_short_stalls_of_all_machines() {
    short_stalls(Kind::Bird);
}

// Promise: forwarder-stall
#[test]
fn frr_keeps_routes_during_short_stalls_of_all_machines() {
    short_stalls(Kind::Frr);
}

/// Stalls one machine until it withdraws its VIPs, and then stops its process.
fn lasting_stall(kind: Kind) {
    let mut scene = stalled_scene(kind, "", "bfd = {}");
    let clients = Clients::start(&scene);
    let process = scene.machine(1).process.id();
    let start = Instant::now();
    let stall = Stall::begin(&[process], "packet-").unwrap();
    scene.wait_for_next_hops(1);
    println!("the router prefers the other machine {:?} after the thread stopped", start.elapsed());
    let gone = |scene: &Scene| scene.peer(1, "r4lb2")["announced_v4"] == 0;
    assert!(eventually(BOUND, || gone(&scene).then_some(())).is_some(), "{:#}", scene.peer(1, "r4lb2"));
    println!("the VIPs were withdrawn {:?} after the thread stopped", start.elapsed());
    let why = "packet thread 0 is stuck with packets waiting (a signal or a debugger has stopped it)";
    for event in ["forwarder unhealthy", "VIP withdrawn"] {
        let line = scene.machine(1).process.wait_for_line(BOUND, |line| line.contains(event)).unwrap();
        assert!(line.contains(why), "{line}");
    }
    drop(stall);
    let freed = Instant::now();
    scene.wait_for_next_hops(2);
    println!("the VIPs were announced again {:?} after the thread continued", freed.elapsed());

    let seen = scene.machine(1).process.line_count();
    let start = Instant::now();
    scene.machine(1).process.pause().unwrap();
    scene.wait_for_next_hops(1);
    println!("the router dropped a stopped process after {:?}", start.elapsed());
    sleep(Duration::from_secs(1).saturating_sub(start.elapsed()));
    scene.machine(1).process.signal(Signal::SIGCONT).unwrap();
    let line = scene.machine(1).process.wait_for_line_after(seen, BOUND, |line| line.contains("did not run"));
    println!("{}", line.unwrap());
    scene.wait_for_next_hops(2);
    let lines = scene.machine(1).process.lines();
    let unhealthy = lines.iter().skip(seen).filter(|line| line.text.contains("forwarder unhealthy"));
    assert_eq!(unhealthy.count(), 0, "{}", scene.machine(1).process.tail());
    let (count, failed) = clients.end();
    println!("{} of {count} requests failed", failed.len());
    assert!(failed.len() * 100 < count, "{count} requests, {failed:?}");
}

// Promise: forwarder-stall
#[test]
fn bird_machine_that_hangs_leaves_and_returns_at_once() {
    lasting_stall(Kind::Bird);
}

// Promise: forwarder-stall
#[test]
fn frr_machine_that_hangs_leaves_and_returns_at_once() {
    lasting_stall(Kind::Frr);
}

/// The BFD settings of the fixture, which tolerate pauses of a busy test machine.
const BFD: &str = "bfd = { interval = \"100ms\", multiplier = 5 }";
