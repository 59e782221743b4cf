//! Health as seen from outside: each test breaks the running balancer in one way, and looks for the log line, for `/healthz`
//! and `/readyz`, and for the messages to the service manager.

use std::fs;
use std::process::Command;
use std::time::{Duration, Instant};

use nix::sys::ptrace;
use nix::sys::wait::{WaitPidFlag, waitpid};
use nix::unistd::Pid;
use testbed::{Bed, LbConfig, VIP_V4, VIP_V6, eventually, udp_ask};

use crate::scene::{BOUND, SILENCE, Scene};
use crate::service::{WATCHDOG, scene_as_unit};

/// A field of the first file description of the balancer's that has `mark` in its description.
pub(crate) fn described(scene: &Scene, mark: &str, field: &str) -> String {
    let folder = format!("/proc/{}/fdinfo", scene.balancer.process.id());
    let infos = fs::read_dir(folder).unwrap().flatten();
    let mut infos = infos.filter_map(|file| fs::read_to_string(file.path()).ok());
    let info = infos.find(|info| info.contains(mark)).expect("there is one");
    info.lines().find_map(|line| line.strip_prefix(field)).unwrap().trim().to_owned()
}

pub(crate) fn bpftool(arguments: &str) {
    let output = Command::new("bpftool").args(arguments.split(' ')).output().unwrap();
    assert!(output.status.success(), "bpftool {arguments}: {output:?}");
}

/// Waits until the balancer says that it is unhealthy, and `why`; at most how long that took.
pub(crate) fn becomes_unhealthy(scene: &mut Scene, broken: Instant, why: &str) -> Duration {
    let said = |line: &str| line.contains("the forwarder is unhealthy") && line.contains(why);
    scene.balancer.process.wait_for_line(10 * SECOND, said).unwrap();
    let took = broken.elapsed();
    for path in ["/healthz", "/readyz"] {
        assert_eq!(scene.balancer.ask_plainly(path).unwrap(), (503, why.to_owned()), "{path}");
    }
    took
}

/// A packet that nobody answers.
fn lose_one(scene: &Scene) {
    udp_ask(&scene.bed.client.ns, scene.bed.vip(true, Bed::ECHO_PORT), b"x", SILENCE).unwrap_err();
}

#[test]
fn without_its_program_it_is_unhealthy_within_a_second_and_the_watchdog_starves() {
    let (mut scene, manager) = scene_as_unit(&[VIP_V4, VIP_V6], "0s");
    manager.wait_for(BOUND, "WATCHDOG=1").unwrap();
    assert_eq!(scene.balancer.ask_plainly("/healthz").unwrap(), (200, "healthy".into()));
    let link = described(&scene, "link_id:", "link_id:");
    let broken = Instant::now();
    bpftool(&format!("link detach id {link}"));
    let why = "no XDP program is on lb0";
    println!("unhealthy {:?} after the program was taken off", becomes_unhealthy(&mut scene, broken, why));
    manager.wait_for(BOUND, &format!("STATUS={why}")).unwrap();
    // No heartbeat comes in twice the time that the manager would wait.
    let silence = manager.next(2 * WATCHDOG);
    assert!(silence.is_err(), "{silence:?}");
    let lines = scene.balancer.process.lines();
    assert_eq!(
        lines.iter().filter(|line| line.text.contains("unhealthy")).count(),
        1,
        "a line for each change"
    );
    assert_eq!(scene.balancer.process.stop(BOUND).unwrap().code(), Some(0));
}

#[test]
fn without_a_socket_on_a_queue_it_is_unhealthy_with_the_first_packet_that_is_lost() {
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
fn while_a_packet_thread_stands_still_it_is_unhealthy_as_soon_as_packets_wait() {
    stands_still(Scene::with(LbConfig::new));
}

/// Where packets wait in its mailbox.
#[test]
fn while_a_packet_thread_without_a_queue_stands_still_it_is_unhealthy_as_soon_as_packets_wait() {
    stands_still(Scene::with(|bed| {
        let mut config = LbConfig::new(bed);
        config.io = "steering = \"software\"\nthreads = 1".into();
        config
    }));
}

/// A thread that sleeps turns once in 100 ms and when it is woken; a busy machine has it turn less often, never more.
#[test]
fn while_nothing_comes_a_packet_thread_sleeps_unless_it_is_to_spin() {
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
        assert!(eventually(BOUND, || rests(&resting).then_some(())).is_some(), "{mode}: it never rests");
        println!("{mode}: rested for a second within {:?}", begun.elapsed());
        drop(resting);
        let spinning = scene("spin");
        let (start, before) = (Instant::now(), turns(&spinning));
        let beyond = || (turns(&spinning) - before > most_turns(start.elapsed())).then_some(());
        assert!(eventually(BOUND, beyond).is_some(), "{mode}: it does not spin");
    }
}

fn turns(scene: &Scene) -> u64 {
    scene.balancer.counters().unwrap().over_threads(&["socket", "turns"])
}

/// What a thread may turn in `span` that wakes every 100 ms, with room for what wakes it besides.
fn most_turns(span: Duration) -> u64 {
    20 * span.as_secs() + u64::from(span.subsec_millis() / 50) + 20
}

/// Whether a span of a second and more, with turns in it, had no more of them than rest allows: a thread still spins for a while
/// after its last packet, so that the first span may have more.
fn rests(scene: &Scene) -> bool {
    let (start, before) = (Instant::now(), turns(scene));
    std::thread::sleep(SECOND);
    let more = eventually(BOUND, || Some(turns(scene) - before).filter(|&more| more >= 10)).unwrap();
    more <= most_turns(start.elapsed())
}

fn stands_still(mut scene: Scene) {
    let tasks = fs::read_dir(format!("/proc/{}/task", scene.balancer.process.id())).unwrap().flatten();
    let named = |path: &std::path::Path| fs::read_to_string(path.join("comm")).unwrap().trim() == "packet-0";
    let thread = tasks.map(|task| task.path()).find(|path| named(path)).unwrap();
    let thread = Pid::from_raw(thread.file_name().unwrap().to_str().unwrap().parse().unwrap());
    // A tracer can stop one thread: a signal would stop all.
    ptrace::seize(thread, ptrace::Options::empty()).unwrap();
    ptrace::interrupt(thread).unwrap();
    waitpid(thread, Some(WaitPidFlag::__WALL)).unwrap();
    std::thread::sleep(SECOND);
    assert_eq!(
        scene.balancer.ask_plainly("/healthz").unwrap(),
        (200, "healthy".into()),
        "nothing waits for it"
    );
    let broken = Instant::now();
    lose_one(&scene);
    let why = "packet thread 0 makes no progress though packets wait";
    println!("unhealthy within {:?} of the packet", becomes_unhealthy(&mut scene, broken, why));
    ptrace::detach(thread, None).unwrap();
    scene.balancer.process.wait_for_line(10 * SECOND, |line| line.contains("healthy again")).unwrap();
    assert_eq!(scene.balancer.ask_plainly("/readyz").unwrap(), (200, "ready".into()));
    scene.ask(true, 8);
}

const SECOND: Duration = Duration::from_secs(1);
