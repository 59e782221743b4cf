//! Tests of a NIC with several queues. Each queue has its own socket and packet thread.

use testbed::{BedSpec, LbConfig};

use crate::scene::Scene;

#[test]
fn four_queues_use_four_threads() {
    let scene = Scene::new(&BedSpec { queues: 4, ..BedSpec::default() }, LbConfig::new);
    for ipv4 in [true, false] {
        scene.ask(ipv4, 50);
        let mut flows = scene.flows(ipv4, 50);
        for _ in 0..4 {
            scene.round(&mut flows);
        }
    }
    let counts = scene.settled();
    assert_eq!((counts.threads(), counts.drops()), (4, vec![]));
    let received: Vec<u64> = (0..4).map(|n| counts.0["threads"][n]["rx"].as_u64().unwrap()).collect();
    println!("received by thread: {received:?}");
    // The probability that at least one of the four queues gets none of the 200 flows is below 4 x
    // (3/4)^200 < 1e-24.
    assert!(received.iter().all(|&count| count > 0), "{received:?}");
    // All packets of a flow arrive on the same queue, so no packet moves to another thread.
    assert_eq!(counts.over_threads(&["to_threads"]), 0);
    scene.taken_off(counts.sent());
}

#[test]
fn queue_without_socket_passes_or_drops() {
    for no_socket in ["pass", "drop"] {
        let scene = Scene::new(&BedSpec { queues: 2, ..BedSpec::default() }, |bed| {
            let mut config = LbConfig::new(bed);
            config.io = format!("queues = 1\nno_socket = \"{no_socket}\"");
            config
        });
        let vip = scene.bed.vip(true, 53);
        let mut flows =
            testbed::UdpFlows::open(&scene.bed.client.ns, vip, 24, crate::scene::BOUND / 10).unwrap();
        let answered = flows.round().unwrap().into_iter().flatten().count();
        // The probability that all 24 flows use the same queue of two is 2^-23.
        assert!((1..24).contains(&answered), "{answered} of 24");
        let counts = scene.balancer.counters().unwrap();
        assert_eq!((counts.threads(), counts.at(&["xdp", "no_socket"])), (1, 24 - answered as u64));
    }
}
