//! Software steering: an I/O thread a queue, and packet threads that have their packets by flow.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::time::Duration;

use testbed::{
    Bed, BedSpec, Counters, Flood, LbConfig, Received, UdpInbox, blast, cut, digest, eventually, send_at,
};

use crate::fragments::{INBOX_PORT, have_had, inboxes, with_inbox};
use crate::scene::{BOUND, Scene, count};

const IO: &str = "steering = \"software\"\nthreads = 2";

fn steered(bed: &Bed) -> LbConfig {
    let mut config = with_inbox(bed);
    config.io = IO.into();
    config
}

/// Of each thread: packet threads, then I/O threads.
fn by_thread(counts: &Counters, name: &str) -> Vec<u64> {
    (0..counts.threads()).map(|n| counts.0["threads"][n][name].as_u64().unwrap()).collect()
}

/// UDP connections and TCP ones of both families, and who had them.
fn carries_all(scene: &Scene, queues: usize) {
    for ipv4 in [true, false] {
        scene.ask(ipv4, 50);
        let mut flows = scene.flows(ipv4, 50);
        let first = scene.round(&mut flows);
        for _ in 0..4 {
            assert_eq!(scene.round(&mut flows), first, "a flow moved");
        }
    }
    let counts = scene.settled();
    let [received, steered, taken, sent] =
        ["rx", "steered", "from_threads", "tx"].map(|name| by_thread(&counts, name));
    println!("received {received:?}, steered {steered:?}, taken over {taken:?}, sent {sent:?}");
    assert_eq!((counts.threads(), counts.drops()), (2 + queues, vec![]));
    assert_eq!(counts.0["packet_threads"], 2);
    assert_eq!((&received[..2], &sent[..2]), (&[0, 0][..], &[0, 0][..]), "packet threads have no queue");
    // 100 flows miss one of two threads with probability 2^-99, and one of four queues with 4 x (3/4)^100 < 1e-11.
    assert!(taken[..2].iter().all(|count| *count > 0) && received[2..].iter().all(|count| *count > 0));
    assert_eq!(received, steered, "nothing overflowed");
    scene.taken_off(counts.sent());
}

#[test]
fn one_queue_feeds_two_packet_threads_and_four_do_and_no_flow_moves() {
    for queues in [1, 4] {
        let spec = BedSpec { queues, ..BedSpec::default() };
        carries_all(&Scene::new(&spec, steered), queues as usize);
    }
}

/// Datagrams of UDP that no frame of this link holds, in pieces, from as many clients' ports: whole at one backend each.
#[test]
fn pieces_are_gathered_by_the_thread_that_steering_gives_them_to() {
    let scene = Scene::with(steered);
    let many = count(200, 2_000);
    for ipv4 in [true, false] {
        let inboxes = inboxes(&scene, ipv4);
        let (mut frames, mut expected) = (vec![], BTreeSet::new());
        for n in 0..many {
            let mut spec = scene.frame(ipv4, INBOX_PORT);
            spec.source = SocketAddr::new(spec.source.ip(), 2_000 + u16::try_from(n).unwrap());
            spec.payload = vec![u8::try_from(n % 251).unwrap(); 400 + n % 300];
            let (len, digest) = (spec.payload.len(), digest(&spec.payload));
            expected.insert(Received { from: spec.source, len, digest });
            // Later pieces first: they wait for the first one.
            frames.extend(cut(&spec.bytes(), u32::try_from(n).unwrap() + 1, 256).into_iter().rev());
        }
        for some in frames.chunks(300) {
            send_at(&scene.bed.router, &scene.bed.balancers[0].port, some.to_vec(), 20_000.0).unwrap();
        }
        assert!(have_had(&inboxes, many), "{}", scene.diagnosis());
        let seen: BTreeSet<Received> = inboxes.iter().flat_map(UdpInbox::seen).collect();
        assert_eq!(seen, expected);
    }
    let counts = scene.settled();
    // What is steered is with its gatherer at once: packet threads hand nothing on but what I/O threads send.
    let [handed, sent] = ["to_threads", "tx"].map(|name| by_thread(&counts, name));
    assert_eq!((handed[0] + handed[1], counts.drops()), (sent[2], vec![]));
}

#[test]
fn reloads_lose_nothing_move_no_flow_and_leave_the_threads_as_they_are() {
    let mut scene = Scene::with(steered);
    let mut flows = scene.flows(true, 100);
    let first = scene.round(&mut flows);
    for n in 0..5 {
        let mut config = steered(&scene.bed).weights(&[1, n % 3 + 1, 2]);
        config.io = IO.replace("threads = 2", &format!("threads = {}", n + 2));
        let line = scene.balancer.reload(&scene.bed, &config).unwrap();
        assert!(line.contains("reloaded"), "{line}");
        assert_eq!(scene.round(&mut flows), first, "a flow moved");
    }
    let waits = scene.balancer.ask("/v1/status").unwrap()["needs_restart"].to_string();
    assert!(waits.contains("io.threads: 2 -> 6"), "{waits}");
    let counts = scene.settled();
    assert_eq!((counts.threads(), counts.drops()), (3, vec![]));
}

/// With traffic at more than it carries, until the end.
#[test]
fn a_stop_in_a_flood_leaves_nothing_between_threads() {
    for queues in [1, 4] {
        let scene = Scene::new(&BedSpec { queues, ..BedSpec::default() }, steered);
        let frames: Vec<_> = (0..256u16)
            .map(|n| {
                let mut spec = scene.frame(true, Bed::ECHO_PORT);
                spec.source.set_port(3_000 + n);
                spec.bytes()
            })
            .collect();
        let (router, port) = (&scene.bed.router, &scene.bed.balancers[0].port);
        let flood = Flood::start(router, port, 1_000_000.0, move || frames.clone()).unwrap();
        let flows = || {
            let counts = scene.balancer.counters().unwrap();
            (counts.sent() > 20_000).then_some(())
        };
        assert!(eventually(BOUND, flows).is_some(), "{}", scene.diagnosis());
        let Scene { mut balancer, .. } = scene;
        let status = balancer.process.stop(BOUND).unwrap();
        drop(flood);
        let lines: Vec<String> = balancer.process.lines().iter().map(|line| line.text.clone()).collect();
        let left =
            lines.iter().find(|line| line.contains("left between threads") || line.contains("panicked"));
        assert!(status.success() && left.is_none(), "{left:?}\n{lines:#?}");
    }
}

/// Packets a second that a balancer forwards of what one thread offers.
fn rate(scene: &Scene, flows: u16) -> f64 {
    let before = scene.balanced(BOUND).sent();
    let (router, port) = (&scene.bed.router, &scene.bed.balancers[0].port);
    let offered =
        blast(router, port, scene.frame(true, INBOX_PORT).flows(flows), Duration::from_secs(1)).unwrap();
    let (_, time) = offered.join().unwrap().unwrap();
    (scene.balanced(BOUND).sent() - before) as f64 / time.as_secs_f64()
}

/// Both kinds of steering by turns. What is promised of neither, and depends on the machine.
#[test]
#[ignore = "prints figures for docs/steering.md"]
fn figures_of_both_kinds_of_steering() {
    for (queues, flows) in [(1, 1_024), (1, 1), (4, 1_024), (4, 1)] {
        let spec = BedSpec { queues, ..BedSpec::default() };
        let scenes = ["", IO].map(|io| {
            Scene::new(&spec, |bed| {
                let mut config = with_inbox(bed);
                config.io = io.into();
                config
            })
        });
        let mut ratios: Vec<f64> = (0..count(5, 15))
            .map(|_| {
                let [hardware, software] = [0, 1].map(|n: usize| rate(&scenes[n], flows));
                println!(
                    "{queues} queues, {flows} flows: hardware {hardware:.0}, software {software:.0} a second"
                );
                assert!(hardware > 0.0 && software > 0.0, "nothing was forwarded");
                software / hardware
            })
            .collect();
        ratios.sort_by(f64::total_cmp);
        println!(
            "{queues} queues, {flows} flows: software / hardware, median {:.2}",
            ratios[ratios.len() / 2]
        );
        let overflowed = by_thread(&scenes[1].balanced(BOUND), "overflowed");
        println!("overflowed: {overflowed:?}");
    }
}
