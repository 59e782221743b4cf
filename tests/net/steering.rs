//! Tests of software steering: an I/O thread per queue distributes packets to the packet threads by
//! flow.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::time::Duration;

use testbed::{
    Bed, BedSpec, Counters, Flood, LbConfig, Received, UdpInbox, cut, digest, eventually, flood, send_at,
};

use crate::fragments::{INBOX_PORT, have_had, inboxes, with_inbox};
use crate::scene::{BOUND, Scene, count};

const IO: &str = "steering = \"software\"\nthreads = 2";

fn steered(bed: &Bed) -> LbConfig {
    let mut config = with_inbox(bed);
    config.io = IO.into();
    config
}

/// Returns a counter of each thread: first the packet threads, then the I/O threads.
fn by_thread(counts: &Counters, name: &str) -> Vec<u64> {
    (0..counts.threads()).map(|n| counts.0["threads"][n][name].as_u64().unwrap()).collect()
}

/// Sends UDP and TCP over IPv4 and IPv6, and checks which threads processed the packets.
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
    println!(
        "packets per thread: received {received:?}, steered {steered:?}, from other threads {taken:?}, sent {sent:?}"
    );
    assert_eq!((counts.threads(), counts.drops()), (2 + queues, vec![]));
    assert_eq!(counts.0["packet_threads"], 2);
    assert_eq!(
        (&received[..2], &sent[..2]),
        (&[0, 0][..], &[0, 0][..]),
        "a packet thread received or sent packets itself"
    );
    // The probability that one of the two threads gets none of the 100 flows is 2^-99. The
    // probability that at least one of four queues gets none of the flows is below 4 x (3/4)^100 <
    // 1e-11.
    assert!(taken[..2].iter().all(|count| *count > 0) && received[2..].iter().all(|count| *count > 0));
    assert_eq!(received, steered, "a ring overflowed");
    scene.taken_off(counts.sent());
}

#[test]
fn steering_of_one_and_four_queues_moves_no_flow() {
    for queues in [1, 4] {
        let spec = BedSpec { queues, ..BedSpec::default() };
        carries_all(&Scene::new(&spec, steered), queues as usize);
    }
}

/// Sends UDP datagrams in fragments from several client ports. Each datagram must arrive complete
/// at one backend.
#[test]
fn steered_fragments_are_reassembled_by_one_thread() {
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
            // The fragments are sent in reverse order, so later fragments are held until the first
            // fragment arrives.
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
    // The I/O thread steers fragments directly to the packet thread that has the entry of their
    // datagram. Packet threads therefore pass packets only to the I/O threads, which send them.
    let [handed, sent] = ["to_threads", "tx"].map(|name| by_thread(&counts, name));
    assert_eq!((handed[0] + handed[1], counts.drops()), (sent[2], vec![]));
}

#[test]
fn steered_reload_moves_no_flow_and_keeps_threads() {
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

/// The client sends packets faster than the balancer can forward them, until the balancer has
/// stopped.
#[test]
fn stop_during_flood_loses_no_frame() {
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
            lines.iter().find(|line| line.contains("lost between threads") || line.contains("panicked"));
        assert!(status.success() && left.is_none(), "{left:?}\n{lines:#?}");
    }
}

/// Returns how many packets per second the balancer forwards under the load of one sender.
fn rate(scene: &Scene, flows: u16) -> f64 {
    let before = scene.balanced(BOUND).sent();
    let (router, port) = (&scene.bed.router, &scene.bed.balancers[0].port);
    let offered =
        flood(router, port, scene.frame(true, INBOX_PORT).flows(flows), Duration::from_secs(1)).unwrap();
    let (_, time) = offered.join().unwrap().unwrap();
    (scene.balanced(BOUND).sent() - before) as f64 / time.as_secs_f64()
}

/// Measures hardware and software steering in turn. The results depend on the machine, so the test
/// does not check the results.
#[test]
#[ignore = "prints figures for docs/explanation/steering.md"]
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
                assert!(hardware > 0.0 && software > 0.0, "no packets were forwarded");
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
