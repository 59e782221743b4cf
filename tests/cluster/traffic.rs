//! Downloads through the cluster, while machines drain, die and restart, and a backend dies.

use std::time::{Duration, Instant};

use testbed::{RouterKind as Kind, RouterSession as Session, eventually};

use crate::scene::{BOUND, Scene, broken};

/// How many downloads over each family, and how long each takes: `seconds`, or 20 s where that is more and the run is long.
fn size(seconds: u64) -> (usize, Duration) {
    let is_long = std::env::var_os("SLUICEGATE_LONG").is_some();
    let seconds = if is_long { seconds.max(20) } else { seconds };
    (if is_long { 200 } else { 25 }, Duration::from_secs(seconds))
}

/// As `docs/rolling-restart.md` has it: drain, wait for the end, start, wait until routers and the other machine agree.
fn restart(scene: &mut Scene, index: usize) {
    scene.wait_for_agreement();
    let left = drain(scene, index);
    scene.start(index);
    let back = scene.wait_for_next_hops(2);
    scene.wait_for_agreement();
    println!("lb{}: drained in {left:?}, two next hops {back:?} after it was ready", index + 1);
}

/// By the operator's own words; how long it took until the process was gone.
fn drain(scene: &mut Scene, index: usize) -> Duration {
    let start = Instant::now();
    scene.say(index, &["machine", "drain"]);
    let mut machine = scene.machines[index].take().unwrap();
    let status = machine.process.wait(BOUND);
    assert!(status.is_some_and(|status| status.success()), "{status:?}\n{}", machine.process.tail());
    assert!(scene.wait_for_next_hops(1) < BOUND);
    start.elapsed()
}

/// Both machines have carried some of what has begun.
fn downloads_over_both(scene: &Scene, seconds: u64) -> [testbed::Downloads; 2] {
    let before = [scene.sent(0), scene.sent(1)];
    let (count, length) = size(seconds);
    let downloads = scene.download(count, length);
    for (index, before) in before.into_iter().enumerate() {
        assert!(scene.sent(index) > before, "lb{} carries nothing", index + 1);
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
        "{what}: over after {took:?}; {} of {all} downloads broke, the last ended after {:?}",
        broke.len(),
        start.elapsed()
    );
    assert!(broke.is_empty(), "{what}: {broke:?}");
}

fn a_backend_that_dies_takes_its_own_with_it(scene: &mut Scene) {
    let before = scene.wait_for_agreement();
    let downloads = downloads_over_both(scene, 8);
    drop(scene.bed.http.remove(2));
    // Until each machine's checks have seen it, and both have the tables without it.
    let after = eventually(BOUND, || Some(scene.wait_for_agreement()).filter(|now| *now != before));
    assert!(after.is_some(), "no machine has noticed");
    let (all, broke) = broken(downloads);
    println!("a backend dies: {} of {all} downloads broke", broke.len());
    assert!(!broke.is_empty() && broke.iter().all(|one| one.backend == "b3"), "{broke:?}");
}

fn traffic_behind(kind: Kind) {
    let mut scene = Scene::new(kind, &Session::all());
    scene.wait_for_next_hops(2);
    scene.wait_for_agreement();
    nothing_breaks(&mut scene, "a machine drains", 12, |scene| {
        println!("gone after {:?}", drain(scene, 1));
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

#[test]
fn behind_bird_drains_deaths_and_restarts_of_machines_break_no_download() {
    traffic_behind(Kind::Bird);
}

#[test]
fn behind_frr_drains_deaths_and_restarts_of_machines_break_no_download() {
    traffic_behind(Kind::Frr);
}
