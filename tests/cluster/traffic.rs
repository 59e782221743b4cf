//! Tests of downloads through a cluster while balancers drain, fail and restart, and while a
//! backend fails.

use std::time::{Duration, Instant};

use testbed::{RouterKind as Kind, RouterSession as Session, eventually};

use crate::scene::{BOUND, Scene, broken};

/// Returns the number of downloads per address family, and the duration of each: `seconds`, or at
/// least 20 s in long runs.
fn size(seconds: u64) -> (usize, Duration) {
    let is_long = std::env::var_os("SLUICEGATE_LONG").is_some();
    let seconds = if is_long { seconds.max(20) } else { seconds };
    (if is_long { 200 } else { 25 }, Duration::from_secs(seconds))
}

/// Restarts a balancer by following the steps in `docs/how-to/restart-a-cluster.md`.
fn restart(scene: &mut Scene, index: usize) {
    scene.wait_for_agreement();
    let left = drain(scene, index);
    scene.start(index);
    let back = scene.wait_for_next_hops(2);
    scene.wait_for_agreement();
    println!("lb{} drained in {left:?}, two next hops {back:?} after the restart", index + 1);
}

/// Drains a balancer with a command. Returns the time until its process has ended.
fn drain(scene: &mut Scene, index: usize) -> Duration {
    let start = Instant::now();
    scene.say(index, &["machine", "drain"]);
    let mut machine = scene.machines[index].take().unwrap();
    let status = machine.process.wait(BOUND);
    assert!(status.is_some_and(|status| status.success()), "{status:?}\n{}", machine.process.tail());
    assert!(scene.wait_for_next_hops(1) < BOUND);
    start.elapsed()
}

/// Starts downloads, and waits until both balancers have forwarded packets.
fn downloads_over_both(scene: &Scene, seconds: u64) -> [testbed::Downloads; 2] {
    let before = [scene.sent(0), scene.sent(1)];
    let (count, length) = size(seconds);
    let downloads = scene.download(count, length);
    for (index, before) in before.into_iter().enumerate() {
        assert!(scene.sent(index) > before, "lb{} forwards no packets", index + 1);
    }
    downloads
}

fn nothing_breaks(scene: &mut Scene, what: &str, seconds: u64, happens: impl FnOnce(&mut Scene)) {
    let downloads = downloads_over_both(scene, seconds);
    let start = Instant::now();
    happens(scene);
    let took = start.elapsed();
    let (all, broke) = broken(downloads);
    println!(
        "{what} took {took:?}, {} of {all} downloads broke, the last one ended after {:?}",
        broke.len(),
        start.elapsed()
    );
    assert!(broke.is_empty(), "{what}: {broke:?}");
}

fn a_backend_that_dies_takes_its_own_with_it(scene: &mut Scene) {
    let before = scene.wait_for_agreement();
    let downloads = downloads_over_both(scene, 8);
    drop(scene.bed.http.remove(2));
    // Waits until the health checks of both balancers have detected the failure, and both have the
    // same new tables.
    let after = eventually(BOUND, || Some(scene.wait_for_agreement()).filter(|now| *now != before));
    assert!(after.is_some(), "no balancer detected the failure");
    let (all, broke) = broken(downloads);
    println!("backend failure broke {} of {all} downloads", broke.len());
    assert!(!broke.is_empty() && broke.iter().all(|one| one.backend == "b3"), "{broke:?}");
}

fn traffic_behind(kind: Kind) {
    let mut scene = Scene::new(kind, &Session::all());
    scene.wait_for_next_hops(2);
    scene.wait_for_agreement();
    nothing_breaks(&mut scene, "a machine drains", 12, |scene| {
        println!("drained process exited after {:?}", drain(scene, 1));
    });
    scene.start(1);
    scene.wait_for_next_hops(2);
    nothing_breaks(&mut scene, "a machine is killed", 8, |scene| {
        scene.machine(1).process.kill();
        scene.machines[1] = None;
        scene.wait_for_next_hops(1);
    });
    scene.start(1);
    scene.wait_for_next_hops(2);
    nothing_breaks(&mut scene, "both machines restart", 24, |scene| {
        restart(scene, 0);
        restart(scene, 1);
    });
    a_backend_that_dies_takes_its_own_with_it(&mut scene);
}

// Promise: machine-failure
#[test]
fn bird_drains_failures_and_restarts_break_no_download() {
    traffic_behind(Kind::Bird);
}

// Promise: machine-failure
#[test]
fn frr_drains_failures_and_restarts_break_no_download() {
    traffic_behind(Kind::Frr);
}
