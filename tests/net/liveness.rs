//! Tests of health reporting. Each test breaks the running balancer in one way, and then checks the
//! log line, `/healthz`, `/readyz` and the messages to systemd.

use std::fs;
use std::process::Command;
use std::time::{Duration, Instant};

use testbed::{Bed, LbConfig, Stall, VIP_V4, VIP_V6, eventually, udp_ask};

use crate::scene::{BOUND, SILENCE, Scene};
use crate::service::{WATCHDOG, scene_as_unit};

/// Returns a field from the first file in the balancer's `/proc/PID/fdinfo` that contains `mark`.
pub(crate) fn described(scene: &Scene, mark: &str, field: &str) -> String {
    let folder = format!("/proc/{}/fdinfo", scene.balancer.process.id());
    let infos = fs::read_dir(folder).unwrap().flatten();
    let mut infos = infos.filter_map(|file| fs::read_to_string(file.path()).ok());
    let info = infos.find(|info| info.contains(mark)).expect("no file description matches");
    info.lines().find_map(|line| line.strip_prefix(field)).unwrap().trim().to_owned()
}

pub(crate) fn bpftool(arguments: &str) {
    let output = Command::new("bpftool").args(arguments.split(' ')).output().unwrap();
    assert!(output.status.success(), "bpftool {arguments}: {output:?}");
}

/// Waits until the balancer logs that it is unhealthy, with the reason `why`. Returns an upper
/// bound for the time from `broken` to this log line.
pub(crate) fn becomes_unhealthy(scene: &mut Scene, broken: Instant, why: &str) -> Duration {
    let said = |line: &str| line.contains("forwarder unhealthy") && line.contains(why);
    scene.balancer.process.wait_for_line(10 * SECOND, said).unwrap();
    let took = broken.elapsed();
    for path in ["/healthz", "/readyz"] {
        assert_eq!(scene.balancer.ask_plainly(path).unwrap(), (503, why.to_owned()), "{path}");
    }
    took
}

/// Sends a packet that must not get a reply.
fn lose_one(scene: &Scene) {
    udp_ask(&scene.bed.client.ns, scene.bed.vip(true, Bed::ECHO_PORT), b"x", SILENCE).unwrap_err();
}

#[test]
fn detached_program_is_unhealthy_within_a_second() {
    let (mut scene, manager) = scene_as_unit(&[VIP_V4, VIP_V6], "0s");
    manager.wait_for(BOUND, "WATCHDOG=1").unwrap();
    assert_eq!(scene.balancer.ask_plainly("/healthz").unwrap(), (200, "healthy".into()));
    let link = described(&scene, "link_id:", "link_id:");
    let broken = Instant::now();
    bpftool(&format!("link detach id {link}"));
    let why = "no XDP program is attached to lb0";
    println!("unhealthy {:?} after the program was detached", becomes_unhealthy(&mut scene, broken, why));
    manager
        .wait_for(
            BOUND,
            &format!("STATUS=not ready ({why}), generation 1: 2 VIP addresses, 3 backends on lb0"),
        )
        .unwrap();
    // The balancer must stop sending heartbeats, so none arrives within twice the watchdog
    // interval.
    let silence = manager.next(2 * WATCHDOG);
    assert!(silence.is_err(), "{silence:?}");
    let lines = scene.balancer.process.lines();
    assert_eq!(
        lines.iter().filter(|line| line.text.contains("unhealthy")).count(),
        1,
        "each change must be logged once"
    );
    assert_eq!(scene.balancer.process.stop(BOUND).unwrap().code(), Some(0));
}

#[test]
fn queue_without_socket_is_unhealthy_at_first_loss() {
    let mut scene = Scene::with(LbConfig::new);
    scene.ask(true, 8);
    let xskmap = described(&scene, "map_type:\t17\n", "map_id:");
    bpftool(&format!("map delete id {xskmap} key 0 0 0 0"));
    let broken = Instant::now();
    lose_one(&scene);
    let why = "packets for VIPs arrive on a queue without a socket";
    println!("unhealthy within {:?} of the packet", becomes_unhealthy(&mut scene, broken, why));
}

#[test]
fn stuck_thread_is_unhealthy_with_packets_waiting() {
    stands_still(Scene::with(LbConfig::new));
}

/// With software steering, packets for the stuck thread wait in its mailbox instead of a queue.
#[test]
fn stuck_thread_without_queue_is_unhealthy() {
    stands_still(Scene::with(|bed| {
        let mut config = LbConfig::new(bed);
        config.io = "steering = \"software\"\nthreads = 1".into();
        config
    }));
}

/// A sleeping thread wakes up when packets arrive and at least every 100 ms. On a busy machine, the
/// thread makes fewer iterations per second, never more.
#[test]
fn idle_thread_sleeps_unless_configured_to_spin() {
    for mode in ["af-xdp", "af-packet"] {
        let scene = |then: &str| {
            let io = format!("mode = \"{mode}\"\nqueues = 1\nidle = {{ then = \"{then}\" }}");
            let scene = Scene::with(|bed| LbConfig { io, ..LbConfig::new(bed) });
            scene.ask(true, 8);
            scene.settled();
            scene
        };
        let resting = scene("sleep");
        let begun = Instant::now();
        assert!(
            eventually(BOUND, || rests(&resting).then_some(())).is_some(),
            "the thread does not sleep with {mode}"
        );
        println!("thread slept for a second within {:?} with {mode}", begun.elapsed());
        drop(resting);
        let spinning = scene("spin");
        let (start, before) = (Instant::now(), iterations(&spinning));
        let beyond = || (iterations(&spinning) - before > most_turns(start.elapsed())).then_some(());
        assert!(eventually(BOUND, beyond).is_some(), "the thread does not spin with {mode}");
    }
}

fn iterations(scene: &Scene) -> u64 {
    scene.balancer.counters().unwrap().over_threads(&["socket", "iterations"])
}

/// Returns the maximum number of iterations that a thread makes in `span` if it wakes up every 100
/// ms. The maximum includes a margin for other wake-ups.
fn most_turns(span: Duration) -> u64 {
    20 * span.as_secs() + u64::from(span.subsec_millis() / 50) + 20
}

/// Counts iterations for about a second, and returns `true` if the thread sleeps between them. A
/// thread spins for a while after its last packet, so the first call may return `false`.
fn rests(scene: &Scene) -> bool {
    let (start, before) = (Instant::now(), iterations(scene));
    std::thread::sleep(SECOND);
    let more = eventually(BOUND, || Some(iterations(scene) - before).filter(|&more| more >= 10)).unwrap();
    more <= most_turns(start.elapsed())
}

fn stands_still(mut scene: Scene) {
    let stall = Stall::begin(&[scene.balancer.process.id()], "packet-0").unwrap();
    std::thread::sleep(SECOND);
    assert_eq!(
        scene.balancer.ask_plainly("/healthz").unwrap(),
        (200, "healthy".into()),
        "the thread is unhealthy without waiting packets"
    );
    let broken = Instant::now();
    lose_one(&scene);
    let why = "packet thread 0 is stuck with packets waiting (a signal or a debugger has stopped it)";
    println!("unhealthy within {:?} of the packet", becomes_unhealthy(&mut scene, broken, why));
    drop(stall);
    scene.balancer.process.wait_for_line(10 * SECOND, |line| line.contains("healthy again")).unwrap();
    assert_eq!(scene.balancer.ask_plainly("/readyz").unwrap(), (200, "ready".into()));
    scene.ask(true, 8);
}

const SECOND: Duration = Duration::from_secs(1);
